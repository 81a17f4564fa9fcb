"""Owners who race for one log: whatever the order in which the store takes their requests, nothing
acknowledged is lost and no place in the log is acknowledged twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Fenced, MillraceError
from millrace.runtime.objectstore import Keys
from millrace.runtime.rand import Rand
from tests.sim.loop import run_simulation
from tests.sim.objectstore import SimBucket
from tests.wal.build import Journal, owner
from tests.wal.object.build import make_bucket, open_wal, recover_wal, start_wal
from tests.wal.object.turnstile import Turnstile, TurnstileStore, explore


@dataclass(slots=True)
class Actor:
    """One owner as it sees itself."""

    name: bytes
    epoch: int
    recovered: list[bytes] = field(default_factory=list)
    sent: list[tuple[int, int, bytes]] = field(default_factory=list)  # position, end, payload
    journal: Journal = field(default_factory=Journal)
    error: BaseException | None = None

    def acknowledged(self) -> list[tuple[int, int, bytes]]:
        return [entry for entry in self.sent if entry[1] <= self.journal.end]

    async def take(self, bucket: SimBucket, store: TurnstileStore, fence: str, count: int = 1) -> None:
        """Opens, recovers, appends and waits."""
        try:
            wal = await open_wal(bucket, owner(self.epoch), store, fence=fence)  # type: ignore[arg-type]
            self.recovered = [bytes(record.payload) async for record in wal.recover()]
            wal.start(self.journal.on_confirmed, self.journal.on_failed)
            await self.append(wal, count)
            await self.journal.reach(self.sent[-1][1])
        except Fenced as error:
            self.error = error

    async def append(self, wal: Any, count: int) -> None:
        """So many records, each in an object of its own."""
        for number in range(count):
            data = b"%s %d" % (self.name, number)
            record = wal.append(data)
            self.sent.append((record.position, record.end, data))
            await asyncio.sleep(0.05)


async def check(bucket: SimBucket, actors: list[Actor], fence: str) -> list[bytes]:
    """The log as a last owner finds it holds, in order, all that was acknowledged, and no two acknowledged
    records overlap."""
    _, records = await recover_wal(bucket, 99, fence=fence)
    found = {(record.position, record.end): bytes(record.payload) for record in records}
    acknowledged = [entry for actor in actors for entry in actor.acknowledged()]
    for position, end, data in acknowledged:
        assert found.get((position, end)) == data, (position, data, found)
    places = sorted((position, end) for position, end, _ in acknowledged)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    return [bytes(record.payload) for record in records]


async def old_and_new(choose: Callable[[int], int], fence: str, uploads: int, seen: dict[str, int]) -> None:
    """An owner with uploads under way is replaced by another."""
    bucket = make_bucket()
    turnstile = Turnstile(bucket, choose)
    turnstile.in_order = ("new",)  # several at once are its seals alone, of different slots
    old, new = Actor(b"old", 1), Actor(b"new", 2)
    wal, _, old.journal = await begin(bucket, turnstile, fence, seed=b"before")
    await old.append(wal, uploads)
    taking = asyncio.create_task(new.take(bucket, turnstile.store("new"), fence))
    await turnstile.run([taking])
    everything = await check(bucket, [old, new], fence)
    count = len(old.acknowledged())
    assert everything[0] == b"before"
    assert everything == [*new.recovered, b"new 0"]
    assert new.recovered[1:] == [data for _, _, data in old.sent][: len(new.recovered) - 1]
    assert count <= len(new.recovered) - 1
    assert bool(old.journal.failures) == (count < uploads)
    seen[f"{count} of {len(new.recovered) - 1}"] = seen.get(f"{count} of {len(new.recovered) - 1}", 0) + 1


async def begin(
    bucket: SimBucket, turnstile: Turnstile, fence: str, seed: bytes
) -> tuple[Any, list[bytes], Journal]:
    """An owner of epoch 1 with one confirmed record, whose requests pass the turnstile from now on."""
    starting = asyncio.create_task(start_wal(bucket, 1, turnstile.store("old"), fence=fence))  # type: ignore[arg-type]
    choose, turnstile.choose = turnstile.choose, lambda count: 0
    await turnstile.run([starting])
    wal, found, journal = starting.result()
    record = wal.append(seed)
    await turnstile.run([asyncio.ensure_future(journal.reach(record.end))])
    await asyncio.sleep(1)
    turnstile.choose = choose
    return wal, found, journal


@pytest.mark.parametrize(
    ("fence", "uploads", "outcomes"),
    [
        ("conditional", 3, {"0 of 0", "1 of 1", "1 of 2", "2 of 2", "3 of 3"}),
        ("reservation", 2, {"0 of 0", "0 of 1", "1 of 1", "0 of 2", "1 of 2", "2 of 2"}),
    ],
)
def test_an_owner_is_replaced_in_every_order(fence: str, uploads: int, outcomes: set[str]) -> None:
    """Each interleaving of puts under way with all that a new owner does: what the old one acknowledged the
    new one has, of so many; the old one fails unless all were acknowledged. Every outcome that can be is met,
    and no other."""
    seen: dict[str, int] = {}

    async def run() -> None:
        for walk in explore(lambda choose: old_and_new(choose, fence, uploads, seen)):
            await walk

    run_simulation(lambda loop: run())
    assert seen.keys() == outcomes, seen
    assert sum(seen.values()) > 100, seen


async def two_on_nothing(choose: Callable[[int], int], fence: str, outcomes: list[tuple[bool, bool]]) -> None:
    bucket = make_bucket()
    turnstile = Turnstile(bucket, choose)
    turnstile.in_order = ("low", "high")
    actors = [Actor(b"low", 2), Actor(b"high", 3)]
    tasks = [
        asyncio.create_task(actor.take(bucket, turnstile.store(actor.name.decode()), fence))
        for actor in actors
    ]
    await turnstile.run(tasks)
    await check(bucket, actors, fence)
    outcomes.append((not actors[0].sent, not actors[1].sent))
    for actor in actors:
        assert actor.error is None or not actor.acknowledged()


def test_two_first_owners_in_every_order() -> None:
    """Two owners on a place where nobody ever was: in every order at least one goes through, the higher epoch
    always, and the lower is fenced or was there before."""
    outcomes: list[tuple[bool, bool]] = []

    async def run() -> None:
        for walk in explore(lambda choose: two_on_nothing(choose, "conditional", outcomes)):
            await walk

    run_simulation(lambda loop: run())
    assert len(outcomes) > 100
    assert not any(is_high_fenced for _, is_high_fenced in outcomes)
    assert {is_low_fenced for is_low_fenced, _ in outcomes} == {True, False}


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_three_owners_in_many_orders(fence: str) -> None:
    """One owner with uploads under way, two who replace it, in orders drawn by chance: the same holds; the
    highest epoch always goes through, the lower one sometimes before it."""
    went_through = [0, 0]

    async def run(seed: int) -> None:
        rand = Rand(b"three %d" % seed)
        bucket = make_bucket()
        turnstile = Turnstile(bucket, lambda count: rand.below(count))
        old, low, high = Actor(b"old", 1), Actor(b"low", 2), Actor(b"high", 3)
        wal, _, old.journal = await begin(bucket, turnstile, fence, b"before")
        await old.append(wal, 2)
        tasks = [
            asyncio.create_task(actor.take(bucket, turnstile.store(actor.name.decode()), fence, count=2))
            for actor in (low, high)
        ]
        await turnstile.run(tasks)
        everything = await check(bucket, [old, low, high], fence)
        assert everything[0] == b"before"
        for number, actor in enumerate((low, high)):
            went_through[number] += bool(actor.acknowledged())
        assert len(high.acknowledged()) == 2

    for seed in range(60):
        run_simulation(lambda loop, seed=seed: run(seed))  # type: ignore[misc]
    assert all(went_through), went_through


class HeldStore(TurnstileStore):
    """Its conditional puts wait until they may go."""

    def __init__(self, turnstile: Turnstile, name: str) -> None:
        super().__init__(turnstile, name)
        self.is_waiting = asyncio.Event()
        self.may_go = asyncio.Event()

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        self.is_waiting.set()
        await self.may_go.wait()
        await super().put_if_absent(key, parts)


class KeepingStore(TurnstileStore):
    """Refuses to delete slot 0."""

    async def delete(self, keys: Sequence[str]) -> Keys:
        kept = [key for key in keys if key.endswith("/" + "0" * 20)]
        return [*await super().delete([key for key in keys if key not in kept]), *kept]


@pytest.mark.parametrize("old_store", [TurnstileStore, KeepingStore])
def test_a_seal_that_comes_late_into_a_slot_that_was_deleted_seals_nothing(
    old_store: type[TurnstileStore],
) -> None:
    """Between a new owner's look and its seal the old one fills the slot, and many more, trims and deletes
    them; whether the object before is there or not, the new owner looks again, and has all that the old one
    acknowledges."""

    async def run() -> None:
        bucket = make_bucket()
        turnstile = Turnstile(bucket, lambda count: 0)
        old, new = Actor(b"old", 1), Actor(b"new", 2)
        starting = asyncio.create_task(start_wal(bucket, 1, old_store(turnstile, "old")))  # type: ignore[arg-type]
        held = HeldStore(turnstile, "new")
        running = asyncio.create_task(turnstile.run([starting]))
        await running
        wal, _, old.journal = starting.result()
        taking = asyncio.create_task(new.take(bucket, held, "conditional"))
        running = asyncio.create_task(turnstile.run([taking]))
        await held.is_waiting.wait()
        for _ in range(3):
            await old.append(wal, 2)
            await old.journal.reach(old.sent[-1][1])
            await wal.trim(old.sent[-1][1])
        old.sent.clear()
        await old.append(wal, 1)
        await old.journal.reach(old.sent[-1][1])
        held.may_go.set()
        await running
        await taking
        assert len(old.acknowledged()) == 1
        assert await check(bucket, [old, new], "conditional") == [b"old 0", b"new 0"]
        wal.append(b"too late")
        await turnstile.run()
        assert old.journal.failures

    run_simulation(lambda loop: run())


def test_an_owner_who_writes_without_pause_is_caught() -> None:
    """An old owner fills slot after slot as fast as the store takes them; the new one seals ahead of it and
    ends it."""

    async def run() -> None:
        bucket = make_bucket()
        # The old owner's requests go first, always, five for each of the new one's.
        turns = iter(range(10**9))
        turnstile = Turnstile(bucket, lambda count: 0)
        wal, _, journal = await begin(bucket, turnstile, "conditional", b"before")
        new = Actor(b"new", 2)
        sent: list[int] = []

        def choose(count: int) -> int:
            names = [name for name, _, _ in turnstile.waiting]
            own = [place for place, name in enumerate(names) if name.startswith("new")]
            others = [place for place, name in enumerate(names) if name.startswith("old")]
            return own[0] if own and (not others or next(turns) % 6 == 5) else others[0]

        async def write() -> None:
            try:
                while True:
                    sent.append(wal.append(b"x" * 50).end)
                    await asyncio.sleep(0)
            except MillraceError:
                pass

        turnstile.choose = choose
        writing = asyncio.create_task(write())
        taking = asyncio.create_task(new.take(bucket, turnstile.store("new"), "conditional"))
        await turnstile.run([taking])
        await writing
        assert journal.failures
        acknowledged = sum(end <= journal.end for end in sent)
        assert len(new.recovered) >= acknowledged + 1
        assert len(new.recovered) > 20

    run_simulation(lambda loop: run())
