"""A store that contradicts itself ends the taking of an object WAL after a bounded number of rounds, paced,
and is named with the key."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from millrace.runtime.objectstore import StoreContradicts
from millrace.runtime.objectstore.rounds import AT_ONCE, LONGEST_WAIT_MS, ROUNDS_MAX
from millrace.runtime.objectstore.watched import WAL_STORE
from millrace.runtime.rand import Rand
from millrace.wal.errors import WalFenced
from millrace.wal.log import WalOwner
from millrace.wal.object.layout import FenceKind, parse_claim, root_key
from millrace.wal.object.log import ObjectWal
from tests.contradicting import Contradicting
from tests.sim.loop import run_simulation
from tests.wal.build import Journal, owner
from tests.wal.object.build import StillClock, small_settings

EPOCH_1 = f"cluster/wal/1/{1:020}/"


async def opened(store: Contradicting, who: WalOwner, fence: str) -> ObjectWal:
    return await ObjectWal.open(store, small_settings(fence=fence), who, Rand(b"%d" % who.epoch))


async def written(store: Contradicting, fence: str) -> None:
    """Two records of a first owner, who is gone without a word."""
    wal, journal = await opened(store, owner(1), fence), Journal()
    assert [record async for record in wal.recover()] == []
    wal.start(journal.on_confirmed, journal.on_failed)
    for data in (b"one", b"two"):
        await journal.reach(wal.append(data).end)


async def refused(store: Contradicting, fence: str = "conditional") -> str:
    with pytest.raises(StoreContradicts) as raised:
        await opened(store, owner(2), fence)
    assert raised.value.store == WAL_STORE
    return str(raised.value)


def check_paced(store: Contradicting, key: str) -> None:
    """So many rounds, the first ones without delay, the later ones ever slower up to a bound."""
    times_s = [at_s for refused, at_s in store.refused if refused == key]
    waits_ms = [round(1000 * (later - earlier)) for earlier, later in itertools.pairwise(times_s)]
    assert len(times_s) == ROUNDS_MAX
    assert not any(waits_ms[: AT_ONCE - 1])
    assert all(0 < earlier <= later for earlier, later in itertools.pairwise(waits_ms[AT_ONCE - 1 :]))
    assert waits_ms[-1] == LONGEST_WAIT_MS


def test_a_root_that_cannot_be_made_and_is_not_there() -> None:
    """As of a store whose reads and lists are answered by an old copy, on a place where nobody ever was."""

    async def main() -> None:
        store = Contradicting(StillClock())
        store.is_refused = store.is_hidden = lambda key: True
        told = await refused(store)
        assert told == (
            f"{root_key(1)}: a put is told that it exists, a read that there is no such object (asked "
            f"{ROUNDS_MAX} times)"
        )
        check_paced(store, root_key(1))

    run_simulation(lambda loop: main())


def test_a_slot_that_cannot_be_sealed_and_is_not_there() -> None:
    """Where the next owner seals, the store says that something lies, and shows nothing: seals go out ever
    more at once, and end."""

    async def main() -> None:
        store = Contradicting(StillClock())
        await written(store, "conditional")
        tip = f"{EPOCH_1}{3:020}"
        store.is_refused = store.is_hidden = lambda key: key.startswith(EPOCH_1) and key >= tip
        told = await refused(store)
        assert told.startswith(f"{tip}: a put is told that it exists, a read that there is no such object")
        check_paced(store, tip)

    run_simulation(lambda loop: main())


@pytest.mark.parametrize("fence", list(FenceKind), ids=lambda fence: fence.name.lower())
def test_an_object_that_is_listed_and_cannot_be_read(fence: FenceKind) -> None:
    """Whichever fence: the listing names the newest object for ever, and a read finds nothing there."""

    async def main() -> None:
        store, name = Contradicting(StillClock()), fence.name.lower()
        await written(store, name)
        newest = [
            entry.key
            async for entry in store.list(EPOCH_1)
            if parse_claim("cluster/wal/1/", entry.key) is None
        ][-1]
        store.is_hidden, store.is_listed = lambda key: key == newest, True
        told = await refused(store, name)
        assert told.startswith(f"{newest}: a list names it, a read that there is no such object")

    run_simulation(lambda loop: main())


@pytest.mark.parametrize("away_s", [0.2, 20.0])
def test_a_slot_that_is_shown_late_is_put_again(away_s: float) -> None:
    """The store says "exists" of the slot of an owner that nobody replaced, and shows nothing there, for a
    moment or for long: the log waits, names what it waits for, and goes on."""

    async def main() -> None:
        store = Contradicting(StillClock())
        wal, journal = await opened(store, owner(1), "conditional"), Journal()
        assert [record async for record in wal.recover()] == []
        wal.start(journal.on_confirmed, journal.on_failed)
        await journal.reach(wal.append(b"before").end)
        store.is_refused = store.is_hidden = lambda key: key.startswith(EPOCH_1)
        record = wal.append(b"meanwhile")
        await asyncio.sleep(away_s)
        assert journal.end < record.end
        if away_s > 1:
            assert "a put is told that it exists" in wal.blocked_reason
        store.is_refused = store.is_hidden = lambda key: False
        await journal.reach(record.end)
        assert not journal.failures
        assert not wal.blocked_reason

    run_simulation(lambda loop: main())


def test_a_slot_that_vanished_with_the_log_ends_the_owner() -> None:
    """A newer owner has the log, and what it left of the old one's slot is a refusal and nothing to read: the
    old owner is fenced by what lies in the later epoch."""

    async def main() -> None:
        store = Contradicting(StillClock())
        wal, journal = await opened(store, owner(1), "conditional"), Journal()
        assert [record async for record in wal.recover()] == []
        wal.start(journal.on_confirmed, journal.on_failed)
        await journal.reach(wal.append(b"before").end)
        newer, known = await opened(store, owner(2), "conditional"), Journal()
        assert [bytes(record.payload) async for record in newer.recover()] == [b"before"]
        newer.start(known.on_confirmed, known.on_failed)
        await known.reach(newer.append(b"newer").end)
        store.is_refused = store.is_hidden = lambda key: key.startswith(EPOCH_1)
        wal.append(b"late")
        await asyncio.sleep(5)
        (error,) = journal.failures
        assert isinstance(error, WalFenced)
        assert error.args[-1] == 2

    run_simulation(lambda loop: main())
