"""A log that is fenced by claims, an owner at work, and others who take it, in every order in which the
storage may see their reads and writes: what was acknowledged is recovered.

Nobody waits for the storage to settle here: the argument needs no time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from millrace.runtime.errors import Fenced
from millrace.runtime.rand import Rand
from millrace.wal.block import fence
from millrace.wal.block.layout import BLOCK_BYTES
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalCorrupt, WalFenced
from tests.sim.loop import run_simulation
from tests.wal.block.turnstile import SharedStorage
from tests.wal.build import PATH, Journal, owner, payload, small_settings
from tests.wal.object.turnstile import explore

WAL_ID = bytes(range(16))
SIZE_BYTES = 3 * BLOCK_BYTES + 8 * BLOCK_BYTES


@pytest.fixture(autouse=True)
def _nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "SETTLE_S", 0.0)


@dataclass(slots=True)
class Actor:
    """One opening as it sees itself."""

    storage: SharedStorage
    name: str
    epoch: int
    recovered: list[bytes] = field(default_factory=list)
    sent: list[tuple[int, bytes]] = field(default_factory=list)  # end, payload
    journal: Journal = field(default_factory=Journal)
    error: BaseException | None = None
    wal: BlockWal | None = None
    resets: bool = False  # what it recovered is elsewhere, as in the stream engine

    def acknowledged(self) -> list[bytes]:
        return [data for end, data in self.sent if end <= self.journal.end]

    async def open(self) -> BlockWal:
        settings = small_settings(
            capacity_bytes=SIZE_BYTES, fencing="claim", block_soft_bytes=BLOCK_BYTES, arena_bytes=64 * 1024,
            max_record_bytes=3000, window_bytes=4 * BLOCK_BYTES,
        )  # fmt: skip
        who = replace(owner(self.epoch), new_wal_id=WAL_ID)
        incarnation = self.name.encode().ljust(16, b"-")
        self.wal = await BlockWal.open(
            self.storage.machine(self.name), PATH, settings, who, incarnation=incarnation
        )
        self.recovered = [bytes(record.payload) async for record in self.wal.recover()]
        if self.resets:
            await self.wal.reset()
        self.wal.start(self.journal.on_confirmed, self.journal.on_failed)
        return self.wal

    def append(self, number: int) -> None:
        assert self.wal is not None
        data = payload(number, 2000)
        self.sent.append((self.wal.append(data).end, data))

    async def take(self, count: int = 0) -> None:
        """Opens, appends, and waits for the answers; or is fenced on the way."""
        try:
            await self.open()
            for number in range(count):
                self.append(1000 * self.epoch + number)
                await self.journal.reach(self.sent[-1][0])
        except Fenced as error:
            self.error = error


async def begin(storage: SharedStorage, *, before: int = 1) -> Actor:
    """An owner of epoch 1 that has acknowledged so many records, and passes the turnstile from now on."""
    old = Actor(storage, "old", 1)
    choose, storage.turnstile.choose = storage.turnstile.choose, lambda count: 0
    opening = asyncio.create_task(old.open())
    await storage.turnstile.run([opening])
    opening.result()
    for number in range(before):
        old.append(number)
        await storage.turnstile.run([asyncio.ensure_future(old.journal.reach(old.sent[-1][0]))])
    storage.turnstile.choose = choose
    return old


async def last_look(storage: SharedStorage) -> list[bytes]:
    """What an opening finds when nobody is at work any more."""
    storage.turnstile.choose = lambda count: 0
    last = Actor(storage, "last", 99)
    opening = asyncio.create_task(last.open())
    await storage.turnstile.run([opening])
    opening.result()
    return last.recovered


async def stop(*actors: Actor) -> None:
    """As killed processes."""
    for actor in actors:
        if actor.wal is not None and actor.wal._watch_task is not None:
            actor.wal._watch_task.cancel()
    await asyncio.sleep(0)


async def old_and_new(
    choose: Callable[[int], int], torn: tuple[str, ...], writes: int, seen: dict[str, int]
) -> None:
    storage = SharedStorage(choose, SIZE_BYTES, torn)
    old, new = await begin(storage), Actor(storage, "new", 2)
    for number in range(1, 1 + writes):
        old.append(number)
        await asyncio.sleep(0)
    await storage.turnstile.run([asyncio.create_task(new.take())])
    sent = [data for _, data in old.sent]
    count = len(new.recovered)
    assert new.recovered == sent[:count], "only what was sent, in order, without a hole"
    assert len(old.acknowledged()) <= count, "what is acknowledged is recovered"
    assert bool(old.journal.failures) == (len(old.acknowledged()) < len(sent))
    assert all(isinstance(error, WalFenced) for error in old.journal.failures)
    assert await last_look(storage) == new.recovered, "a block that landed later is void"
    await stop(old, new)
    outcome = f"{len(old.acknowledged())} of {count}"
    seen[outcome] = seen.get(outcome, 0) + 1


@pytest.mark.parametrize(
    ("torn", "writes", "outcomes"),
    [
        ((), 1, {"1 of 1", "1 of 2", "2 of 2"}),
        (("old",), 1, {"1 of 1", "1 of 2", "2 of 2"}),
    ],
)
def test_what_was_acknowledged_is_recovered(torn: tuple[str, ...], writes: int, outcomes: set[str]) -> None:
    """Every order of an owner's write (whole, or torn in two), its look, and all that a taker reads and
    writes. A write that lands behind the scan is never acknowledged, and void for the next owner."""
    seen: dict[str, int] = {}

    async def run(loop: object) -> None:
        for scene in explore(lambda choose: old_and_new(choose, torn, writes, seen)):
            await scene

    run_simulation(run)
    print(seen)
    assert set(seen) == outcomes


def drawn(seed: str, scene: Callable[[Callable[[int], int]], Any], count: int) -> None:
    async def run(loop: object) -> None:
        for number in range(count):
            await scene(Rand(f"{seed} {number}".encode()).below)

    run_simulation(run)


@pytest.mark.parametrize("torn", [(), ("old",)])
def test_a_block_that_lands_very_late_lies_over_nothing(torn: tuple[str, ...]) -> None:
    """It was on its way when its owner was replaced, and lands once the next owner has acknowledged a record:
    that one is still there, for its log began further on."""

    async def scene(loop: object) -> None:
        storage = SharedStorage(lambda count: 0, SIZE_BYTES, torn)
        old, new = await begin(storage), Actor(storage, "new", 2, resets=True)
        old.append(1)
        await storage.turnstile._quiet()
        late = list(storage.turnstile.waiting)
        assert len(late) == 1
        storage.turnstile.waiting.clear()
        await storage.turnstile.run([asyncio.create_task(new.take(1))])
        assert (new.recovered, new.error) == ([payload(0, 2000)], None)
        assert new.acknowledged() == [payload(2000, 2000)]
        storage.turnstile.waiting += late
        await storage.turnstile.run([asyncio.ensure_future(old.journal.reach(old.sent[-1][0]))])
        assert (len(old.acknowledged()), [type(error) for error in old.journal.failures]) == (1, [WalFenced])
        assert await last_look(storage) == [payload(2000, 2000)]
        await stop(old, new)

    run_simulation(scene)


def test_space_that_a_header_frees_is_whole_for_the_taker() -> None:
    """The owner trims, and writes over what that frees, while another takes the log: in drawn orders the scan
    never meets what was written over."""
    seen: dict[str, int] = {}

    async def scene(choose: Callable[[int], int]) -> None:
        storage = SharedStorage(choose, SIZE_BYTES)
        old, new = await begin(storage, before=6), Actor(storage, "new", 2)
        assert old.wal is not None
        trim = asyncio.create_task(old.wal.trim(old.sent[3][0]))
        trim.add_done_callback(lambda task: task.cancelled() or task.exception())
        taking = asyncio.create_task(new.take())

        async def write_over() -> None:
            for number in range(100, 105):
                while old.wal is not None and old.wal.room_bytes < 3000 and not old.journal.failures:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                if old.journal.failures:
                    return
                old.append(number)
                await old.journal.reach(old.sent[-1][0])

        writing = asyncio.create_task(write_over())
        await storage.turnstile.run([taking, writing, trim])
        assert new.error is None
        acknowledged = old.acknowledged()
        kept = [data for data in acknowledged if data not in [sent for _, sent in old.sent[:4]]]
        assert [data for data in new.recovered if data in kept] == kept
        outcome = "trimmed" if not trim.exception() else "fenced"
        seen[outcome] = seen.get(outcome, 0) + 1
        await stop(old, new)

    drawn("freed", scene, 400)
    print(seen)
    assert set(seen) == {"trimmed", "fenced"}


def test_of_two_takers_one_goes_on() -> None:
    """An owner at work and two who take its log at once: nobody's acknowledgement is lost, and the two never
    both acknowledge. It may be that both end, where the one of the older epoch claims last."""
    seen: dict[str, int] = {}

    async def scene(choose: Callable[[int], int]) -> None:
        storage = SharedStorage(choose, SIZE_BYTES)
        old = await begin(storage)
        takers = [Actor(storage, "second", 2), Actor(storage, "third", 3)]
        old.append(1)
        await storage.turnstile.run([asyncio.create_task(taker.take(1)) for taker in takers])
        acknowledged = [data for actor in (old, *takers) for data in actor.acknowledged()]
        try:
            found = await last_look(storage)
        except WalCorrupt:  # a late block lies over one that counted: told, never silent
            found = acknowledged
            seen["told"] = seen.get("told", 0) + 1
        assert [data for data in acknowledged if data not in found] == []
        who = "+".join(taker.name for taker in takers if taker.acknowledged())
        seen[who or "nobody"] = seen.get(who or "nobody", 0) + 1
        await stop(old, *takers)

    drawn("takers", scene, 600)
    print(seen)
    assert {"second", "third"} <= set(seen)


def test_who_fails_between_claim_and_scan_has_fenced_the_owner() -> None:
    """And owns nothing: the next one claims anew and recovers all."""

    async def scene(choose: Callable[[int], int]) -> None:
        storage = SharedStorage(choose, SIZE_BYTES)
        old, gone, new = await begin(storage), Actor(storage, "gone", 2), Actor(storage, "new", 3)
        taking = asyncio.create_task(gone.take())
        await storage.turnstile._quiet()
        while not any("gone write" in name for name, _, _ in storage.turnstile.waiting):
            _, effect, future = storage.turnstile.waiting.pop(0)
            future.set_result(effect())
            await storage.turnstile._quiet()
        _, effect, future = storage.turnstile.waiting.pop(0)
        future.set_result(effect())  # its claim
        taking.cancel()
        old.append(1)
        await storage.turnstile.run([asyncio.ensure_future(old.journal.reach(old.sent[-1][0]))])
        assert [type(error) for error in old.journal.failures] == [WalFenced]
        await storage.turnstile.run([asyncio.create_task(new.take(1))])
        assert new.recovered == [payload(0, 2000), payload(1, 2000)]
        assert new.acknowledged() == [payload(3000, 2000)]
        await stop(old, new)

    run_simulation(lambda loop: scene(lambda count: 0))
