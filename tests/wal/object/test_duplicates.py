"""Objects that are put twice: when that happens, that the first answer counts, and that a duplicate does no
harm whenever it arrives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import MillraceError
from millrace.runtime.objectstore import ObjectMissing, PreconditionFailed, StoreConflict
from millrace.runtime.rand import Rand
from millrace.wal.object.hedging import DUPLICATES_BYTES_MAX
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.objectstore import SimBucket, SimObjectStore, StoreFault, StoreFaults
from tests.wal.build import KIB, Journal, payload
from tests.wal.object.build import make_bucket, recover_wal, start_wal, store_on
from tests.wal.object.test_log import headers, keys
from tests.wal.object.test_race import Actor, check
from tests.wal.object.turnstile import Turnstile, TurnstileStore, explore

STEADY = StoreFaults(latency_ms=(60, 60))


def expect_duplicates(wal: Any, elapsed_ms: float = 60.0) -> None:
    """As after uploads that took so long."""
    for _ in range(8):
        wal.hedging.on_uploaded(elapsed_ms)


async def two_waiting(bucket: SimBucket, store: SimObjectStore, **settings: Any) -> tuple[Any, Journal]:
    """A record on its way and, a little later, one that waits behind it."""
    wal, _, journal = await start_wal(bucket, 1, store, **settings)
    expect_duplicates(wal)
    wal.append(payload(1))
    await asyncio.sleep(0.01)
    wal.append(payload(2))
    return wal, journal


def test_the_first_answer_counts() -> None:
    """The put of an object is lost without a word: its duplicate is acknowledged long before the put's time
    is over. One duplicate was sent for each object, nothing is left running, and no error that nobody
    took."""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=STEADY)
        store.plan(
            "put_if_absent", StoreFault.NONE, StoreFault.NONE, StoreFault.LOST_REQUEST
        )  # root, mark, record
        began = loop.time()
        wal, journal = await two_waiting(bucket, store)
        await journal.reach(wal.used_bytes)
        assert loop.time() - began < 1
        assert keys(bucket) == ["1:0", "1:1", "1:2"]
        assert store.requests["put_if_absent"] == 2 + 2 * 2
        assert wal.hedging.begun == 2
        assert wal.hedging.won == 1
        assert wal.hedging.under_way_bytes == 0
        assert wal._writer._duplicates == 0
        await asyncio.sleep(0)
        assert not wal._writer._puts
        await wal.close()
        assert not journal.failures
        assert not loop.problems

    run_simulation(run)


def test_nobody_waits_behind_a_lone_upload() -> None:
    """A producer that waits for each answer: no duplicates, unless a put takes two and a half times as long
    as usual."""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=STEADY)
        wal, _, journal = await start_wal(bucket, 1, store)
        expect_duplicates(wal)
        for number in range(5):
            await journal.reach(wal.append(payload(number)).end)
        assert wal.hedging.begun == 0
        store.plan("put_if_absent", StoreFault.LOST_REQUEST)
        began = loop.time()
        await journal.reach(wal.append(payload(9)).end)
        assert round(loop.time() - began, 3) == 0.15 + 0.06
        assert (wal.hedging.begun, wal.hedging.won) == (1, 1)

    run_simulation(run)


def test_who_comes_to_wait_makes_it_late() -> None:
    """An upload that has been alone for 30 ms is put again at the instant when a record comes that waits
    behind it."""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=STEADY)
        wal, _, journal = await start_wal(bucket, 1, store)
        expect_duplicates(wal)
        store.plan("put_if_absent", StoreFault.LOST_REQUEST)
        first = wal.append(payload(1))
        began = loop.time()
        await asyncio.sleep(0.03)
        wal.append(payload(2))
        await journal.reach(first.end)
        assert round(loop.time() - began, 3) == 0.03 + 0.06

    run_simulation(run)


@pytest.mark.parametrize("why", ["off", "refused", "large", "connections"])
def test_there_is_no_duplicate(why: str) -> None:
    """Where hedging is off, after the store refused something, of objects beyond the bound, and where no
    connection is free for it: one request for each object, as without."""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=STEADY)
        changes: dict[str, dict[str, Any]] = {"off": {"hedge": "off"}, "connections": {"uploads_max": 1}}
        wal, _, journal = await start_wal(bucket, 1, store, **changes.get(why, {}))
        expect_duplicates(wal)
        if why == "refused":
            store.plan("put_if_absent", StoreFault.THROTTLED)
            await journal.reach(wal.append(payload(0)).end)
        if why == "large":
            wal.hedging.under_way_bytes = DUPLICATES_BYTES_MAX
        before = store.requests["put_if_absent"]
        for number in range(3):
            record = wal.append(payload(number, 30 * KIB))
            await asyncio.sleep(0.003)
        await journal.reach(record.end)
        assert store.requests["put_if_absent"] - before == len(headers(bucket)) - (
            2 if why == "refused" else 1
        )
        assert wal.hedging.begun == 0

    run_simulation(run)


def test_a_refused_put_leaves_the_other_its_time() -> None:
    """Of two puts of an object the first is refused at last: the second's answer is waited for, and nothing
    is sent a third time."""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=StoreFaults(latency_ms=(60, 60), timeout_ms=30))
        store.plan("put_if_absent", StoreFault.NONE, StoreFault.NONE, StoreFault.LOST_REQUEST)
        wal, journal = await two_waiting(bucket, store)
        await journal.reach(wal.used_bytes)
        assert (
            store.requests["put_if_absent"] == 2 + 2 + 1
        )  # after the refusal the second record had no duplicate
        assert wal._writer.retries == 0

    run_simulation(run)


class ConflictingStore(SimObjectStore):
    """Refuses a put of a key while another of it is under way, as S3 may."""

    under_way: ClassVar[dict[str, None]] = {}

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        if key in self.under_way:
            raise StoreConflict(key, "ConditionalRequestConflict", 409)
        self.under_way[key] = None
        try:
            await super().put_if_absent(key, parts)
        finally:
            del self.under_way[key]


def test_a_conflict_with_its_own_duplicate_is_no_refusal() -> None:
    """The store answers 409 to the second put of a slot while the first is under way: that says nothing of
    the store's health, and later objects are put twice too. (It stopped duplicates for five seconds each
    time.)"""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = ConflictingStore(bucket, Rand(b"conflicts"), STEADY)
        wal, _ = await two_waiting(bucket, store)
        await asyncio.sleep(0.05)
        assert wal.hedging.begun
        assert wal.hedging.gather_ms(1, loop.time() * 1000) is not None
        await wal.close()
        assert not loop.problems

    run_simulation(run)


def test_both_refused_is_a_retry() -> None:
    """Both puts of an object are refused: after the pause it is sent again, alone, and counts as one
    retry."""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=StoreFaults(latency_ms=(60, 60), timeout_ms=30))
        store.plan("put_if_absent", StoreFault.NONE, StoreFault.NONE, *[StoreFault.LOST_REQUEST] * 2)
        wal, _, journal = await start_wal(bucket, 1, store)
        expect_duplicates(wal)
        first = wal.append(payload(1))
        await asyncio.sleep(0.001)
        wal.append(payload(2))
        await journal.reach(first.end)
        assert wal._writer.retries == 1
        assert wal.hedging.begun == 1
        assert wal.hedging.won == 0
        assert wal.hedging.under_way_bytes == 0

    run_simulation(run)


def test_duplicates_and_uploads_share_one_bound() -> None:
    """No upload begins while duplicates fill the puts that there may be at once, and it begins when one of
    them ends. (The simulator saw nine of eight.)"""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=StoreFaults(latency_ms=(60, 400)))
        wal, _, journal = await start_wal(bucket, 1, store, uploads_max=3)
        expect_duplicates(wal, 30.0)
        puts = []
        for number in range(120):
            wal.append(payload(number))
            await asyncio.sleep(0.01)
            puts.append(wal._writer._active_count + wal._writer._duplicates)
        assert max(puts) == 3
        assert wal.hedging.begun > 3
        await journal.reach(wal.used_bytes)
        await wal.close()
        assert not loop.problems

    run_simulation(run)


def test_a_close_takes_its_duplicates_along() -> None:
    """A log that is given up with both puts of an object under way leaves no task behind."""

    async def run(loop: SimLoop) -> None:
        bucket = make_bucket()
        store = store_on(bucket, faults=STEADY)
        wal, _ = await two_waiting(bucket, store, close_wait_ms=100)
        bucket.is_away = True
        await asyncio.sleep(0.02)
        assert len(wal._writer._puts) == 2
        store.faults = StoreFaults(latency_ms=(60_000, 60_000))
        await wal.close()
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("wal-")] == []
        assert not loop.problems

    run_simulation(run)


# Every order in which the store may take them.


class LastingTurnstile(Turnstile):
    """A write that nobody waits for any more is still on its way, and takes effect at any time: `late_s` says
    when it may at the earliest."""

    late_s: Callable[[], float] = staticmethod(lambda: 0.0)

    async def pass_through(self, name: str, effect: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        entry = (name, effect, loop.create_future())
        self.waiting.append(entry)
        entry[2].add_done_callback(lambda done: done.exception())
        try:
            return await asyncio.shield(entry[2])
        except asyncio.CancelledError:
            if entry in self.waiting:
                self.waiting.remove(entry)
                loop.call_later(self.late_s(), self.waiting.append, entry)
            raise


class TwoStepStore(TurnstileStore):
    """Conditional puts as S3 has them: who is told that there is something reads it and compares, some time
    later."""

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        content = b"".join(parts)

        def effect() -> None:
            if key in self._bucket.objects:
                raise PreconditionFailed(key)
            self._bucket.put(key, content)

        try:
            await self._pass(f"{self._name} put_if_absent {key[-41:]}", effect)
        except PreconditionFailed:
            try:
                if await self.get(key) == content:
                    return
            except ObjectMissing:
                pass
            raise


async def replaced(
    choose: Callable[[int], int], fence: str, is_two_step: bool, uploads: int, seen: set[str]
) -> None:
    """An owner whose every upload is put twice is replaced by another, which trims what it found."""
    bucket = make_bucket()
    turnstile = LastingTurnstile(bucket, choose)
    turnstile.in_order = ("new",)
    old, new = Actor(b"old", 1), Actor(b"new", 2)
    kind = TwoStepStore if is_two_step else TurnstileStore
    wal, old.journal = await begin_hedged(bucket, turnstile, fence, kind(turnstile, "old"))
    await old.append(wal, uploads)
    assert wal.hedging.begun == uploads
    taking = asyncio.create_task(new.take(bucket, kind(turnstile, "new"), fence))
    await turnstile.run([taking])
    everything = await check(bucket, [old, new], fence)
    count = len(old.acknowledged())
    assert everything == [*new.recovered, b"new 0"]
    assert new.recovered[1:] == [data for _, _, data in old.sent][: len(new.recovered) - 1]
    assert count <= len(new.recovered) - 1
    assert bool(old.journal.failures) == (count < uploads)
    seen.add(f"{count} of {len(new.recovered) - 1}")


async def begin_hedged(
    bucket: SimBucket, turnstile: Turnstile, fence: str, store: TurnstileStore
) -> tuple[Any, Journal]:
    choose, turnstile.choose = turnstile.choose, lambda count: 0
    starting = asyncio.create_task(start_wal(bucket, 1, store, fence=fence))  # type: ignore[arg-type]
    await turnstile.run([starting])
    wal, _, journal = starting.result()
    record = wal.append(b"before")
    await turnstile.run([asyncio.ensure_future(journal.reach(record.end))])
    await asyncio.sleep(1)
    expect_duplicates(wal, 1.0)
    turnstile.choose = choose
    return wal, journal


@pytest.mark.parametrize(
    ("fence", "is_two_step", "outcomes"),
    [
        ("conditional", False, {"0 of 0", "1 of 1"}),
        ("conditional", True, {"0 of 0", "1 of 1"}),
        ("reservation", False, {"0 of 0", "0 of 1", "1 of 1"}),
    ],
)
def test_a_replaced_owner_puts_twice_in_every_order(
    fence: str, is_two_step: bool, outcomes: set[str]
) -> None:
    """Each interleaving of both puts with all that a new owner does, those that were given up included: what
    the old one acknowledged the new one has, and nothing else counts."""
    seen: set[str] = set()

    async def run() -> None:
        for walk in explore(lambda choose: replaced(choose, fence, is_two_step, 1, seen)):
            await walk

    run_simulation(lambda loop: run())
    assert seen == outcomes


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_two_objects_are_put_twice_in_many_orders(fence: str) -> None:
    """The same with two objects, four puts and conditions that are read back, in orders drawn by chance."""
    seen: set[str] = set()
    for seed in range(600):
        rand = Rand(b"twice %d" % seed)
        run_simulation(
            lambda loop, rand=rand: replaced(lambda count: rand.below(count), fence, True, 2, seen)
        )  # type: ignore[misc]
    assert seen >= {"0 of 0", "2 of 2"}
    assert seen & {"0 of 1", "1 of 1", "1 of 2"}


async def trimmed(seed: int, fence: str, met: Counter[str]) -> None:
    """An owner whose every upload is put twice writes, trims, deletes and closes or is replaced; whatever was
    given up arrives at any time, behind all that as well. Two more owners come one after the other."""
    rand = Rand(b"trimmed %d" % seed)
    bucket = make_bucket()
    turnstile = LastingTurnstile(bucket, lambda count: rand.below(count))
    turnstile.late_s = lambda: rand.below(2) * rand.below(2000) / 1000  # type: ignore[method-assign]
    old, new, last = Actor(b"old", 1), Actor(b"new", 2), Actor(b"last", 3)
    wal, old.journal = await begin_hedged(bucket, turnstile, fence, TwoStepStore(turnstile, "old"))
    deleted: list[str] = []
    bucket.on_delete = deleted.append
    bucket.on_put = lambda key, content: met.update(["into a deleted slot"] * (key in deleted))
    is_closing = rand.below(2) == 0

    async def work() -> None:
        try:
            for _ in range(3):
                await old.append(wal, 1 + rand.below(2))
                await old.journal.reach(old.sent[-1][1])
                await wal.trim(min(old.journal.end, old.sent[-1][1]))
                old.sent.clear()
            await old.append(wal, 1)
            await old.journal.reach(old.sent[-1][1])
        except MillraceError as error:
            met[type(error).__name__] += 1

    working = asyncio.create_task(work())
    if is_closing:
        await turnstile.run([working])
        await turnstile.run([asyncio.create_task(wal.close())])
    for actor in (new, last):
        taking = asyncio.create_task(actor.take(bucket, TwoStepStore(turnstile, actor.name.decode()), fence))
        await turnstile.run([taking])
        assert actor.error is None
    if is_closing:
        assert last.recovered == [b"old 0", b"new 0"]
    await asyncio.sleep(10)
    await turnstile.run()
    everything = await check(bucket, [old, new, last], fence)
    assert everything == [*last.recovered, b"last 0"]
    met["duplicates"] += wal.hedging.begun


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_a_duplicate_that_arrives_behind_everything_changes_nothing(fence: str) -> None:
    """In orders drawn by chance duplicates land in slots that were trimmed and deleted, before and after a
    close, a seal and a second one: each owner finds what was acknowledged, and the duplicate is nobody's."""
    met: Counter[str] = Counter()
    for seed in range(80):
        run_simulation(lambda loop, seed=seed: trimmed(seed, fence, met))  # type: ignore[misc]
    assert met["into a deleted slot"] > 10
    assert met["duplicates"] > 100


@pytest.mark.parametrize("fence", ["conditional", "reservation"])
def test_what_a_late_duplicate_left_is_deleted_by_the_next_owner(fence: str) -> None:
    """A put of the past has filled a slot below the head again: recovery passes it by, and deletes it."""

    async def run() -> None:
        bucket = make_bucket()
        wal, _, journal = await start_wal(bucket, 1, fence=fence)
        first = wal.append(payload(1))
        await journal.reach(first.end)
        name = max(key for key in bucket.objects if "/wal/" in key and not key.endswith("claim"))
        content = bucket.objects[name][0]
        await wal.trim(first.end)
        second = wal.append(payload(2))
        await journal.reach(second.end)
        await asyncio.sleep(1)
        assert name not in bucket.objects
        bucket.put(name, content)
        wal, records = await recover_wal(bucket, 2, fence=fence)
        assert [bytes(record.payload) for record in records] == [payload(2)]
        await asyncio.sleep(1)
        assert name not in bucket.objects

    run_simulation(lambda loop: run())
