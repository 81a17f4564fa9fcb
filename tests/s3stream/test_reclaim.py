"""Room in a full store: which stream-set objects are spent, what is put for them, and when they are looked
for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

import pytest

from millrace.runtime.objectstore import StoreFull
from millrace.runtime.objectstore.folder import SMALL_BYTES_MAX
from millrace.runtime.scheduling.yielding import run_to_end
from millrace.s3stream.compaction.choose import choose_beyond
from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.compaction.plan import Bounds, SetPlan, SourceIndex, find_uncovered
from millrace.s3stream.compaction.reclaim import Reclaimer
from millrace.s3stream.compaction.run import RECLAIM_INTERVAL_MS, Compactor
from millrace.s3stream.compaction.spent import GAIN_BYTES_MIN, MADE_BYTES_MAX, plan_spent
from millrace.s3stream.ids import ObjectId, StreamBounds, StreamId, StreamRange, StreamSetInfo
from tests.s3stream.build import run
from tests.s3stream.compaction_build import drained
from tests.s3stream.test_compaction import Books
from tests.s3stream.test_compaction_plan import index_of, parse_range

SETTINGS = CompactionSettings()
KIB = 1 << 10
GONE, KEPT = 1, 2  # a stream that is trimmed to 100, and one that is not


def sources_of(*objects: str) -> list[SourceIndex]:
    """Each `stream:start-end*KiB ...`; numbered from 0."""
    return [
        SourceIndex(ObjectId(number), index_of([parse_range(row) for row in rows.split()]))
        for number, rows in enumerate(objects)
    ]


def planned(*objects: str, bounds: Mapping[int, int] | None = None) -> list[str]:
    """What goes together, `->` how many KiB in how many objects. `bounds`: starts of streams, of those that
    exist."""
    starts = {GONE: 100, KEPT: 0} if bounds is None else bounds
    known: Bounds = {StreamId(key): StreamBounds(start, 1000) for key, start in starts.items()}
    return [told(plan) for plan in run_to_end(plan_spent(sources_of(*objects), known, SETTINGS))]


def told(plan: SetPlan) -> str:
    kib = sum(portion.size_bytes for portion in plan.portions) // KIB
    return f"{' '.join(map(str, plan.source_ids))} -> {kib} in {plan.objects_count}"


def test_what_nobody_wants_goes_together_and_first() -> None:
    """Wherever they lie, those of which nothing is wanted are one plan that puts nothing: of trimmed streams,
    and of deleted ones."""
    found = planned(
        "1:0-10*900",
        "1:10-20*900 2:0-1*1",
        "7:0-5*500",
        "1:100-110*900",
        "1:20-30*1",
        bounds={GONE: 100, KEPT: 0},
    )
    assert found == ["0 2 4 -> 0 in 0", "1 -> 1 in 1"]


def test_neighbours_that_are_spent_leave_one_small_object() -> None:
    """What is left of them is written together, also across what goes entirely; an object that is wanted
    parts them, and is left alone."""
    dead, spent, alive = "1:0-10*900", "1:10-20*900 2:{0}-{1}*1", "1:100-110*900 2:{0}-{1}*1"
    found = planned(
        spent.format(0, 1),
        dead,
        spent.format(1, 2),
        alive.format(2, 3),
        spent.format(3, 4),
        spent.format(4, 5),
    )
    assert found == ["1 -> 0 in 0", "0 2 -> 2 in 1", "4 5 -> 2 in 1"]


def test_no_more_is_put_than_is_small() -> None:
    """Each plan's object fits what a full folder takes for small, with its index and at the very bound; what
    is left of one object and does not fit is left alone."""
    assert MADE_BYTES_MAX <= SMALL_BYTES_MAX
    spent = ["1:{0}-{1}*2000 2:{0}-{1}*100".format(n, n + 1) for n in range(5)]
    assert planned(*spent) == ["0 1 -> 200 in 1", "2 3 -> 200 in 1", "4 -> 100 in 1"]
    assert planned("1:0-1*2000 2:0-1*255") == ["0 -> 255 in 1"]
    assert planned("1:0-1*2000 2:0-1*256") == []
    rows = " ".join(f"2:{n}-{n + 1}*1" for n in range(250))
    assert planned(f"1:0-1*2000 {rows}") == []  # with its rows it is more


def test_what_is_not_worth_its_put_is_left_alone() -> None:
    """An object that is half wanted, and neighbours that make little room together."""
    assert planned("1:0-1*100 2:0-1*101") == []
    assert planned("1:0-1*101 2:0-1*100") == ["0 -> 100 in 1"]
    little = GAIN_BYTES_MIN // KIB // 2
    spent = [f"1:{n}-{n + 1}*{little} 2:{n}-{n + 1}*1" for n in range(3)]
    assert planned(spent[0]) == []
    assert planned(*spent[:2]) == ["0 1 -> 2 in 1"]


def test_a_gap_in_a_stream_makes_no_object_of_its_own() -> None:
    """Between two of them the stream is elsewhere: they are written apart, each as one object."""
    found = planned("1:0-1*900 2:0-1*1", "1:1-2*900 2:1-2*1", "1:2-3*900 2:5-6*1", "1:3-4*900 2:6-7*1")
    assert found == ["0 1 -> 2 in 1", "2 3 -> 2 in 1"]


@pytest.mark.parametrize("seed", range(40))
def test_any_plan(seed: int) -> None:
    """Every object is in one plan at most; what is wanted of its sources is what it holds; it puts one small
    object or none, and makes more room than that takes. Of what is left, or was made, nothing is spent any
    more."""
    chance = random.Random(seed)
    ends = [0] * 5
    objects = []
    for _ in range(chance.randint(1, 30)):
        rows = []
        for stream_id in sorted(chance.sample(range(5), chance.randint(1, 5))):
            start, ends[stream_id] = ends[stream_id], ends[stream_id] + chance.randint(1, 9)
            rows.append(f"{stream_id}:{start}-{ends[stream_id]}*{chance.choice([1, 3, 30, 300])}")
        objects.append(" ".join(rows))
    known = {
        StreamId(key): StreamBounds(int(end * chance.choice([0, 0.5, 0.9, 1])), end)
        for key, end in enumerate(ends)
    }
    known.pop(StreamId(chance.randint(0, 9)), None)
    sources = {one.object_id: one for one in sources_of(*objects)}
    plans = run_to_end(plan_spent(list(sources.values()), known, SETTINGS))
    taken = [object_id for plan in plans for object_id in plan.source_ids]
    assert len(taken) == len(set(taken))
    for plan in plans:
        held = [StreamRange(one.stream_id, one.start, one.end) for one in plan.portions]
        assert run_to_end(find_uncovered([sources[key] for key in plan.source_ids], known, held)) is None
        assert plan.objects_count == bool(plan.portions)
        put_bytes = sum(one.size_bytes for one in plan.portions)
        gone_bytes = sum(sources[key].index.blocks_end for key in plan.source_ids)
        assert not put_bytes or (
            put_bytes <= MADE_BYTES_MAX and gone_bytes >= max(2 * put_bytes, put_bytes + 65536)
        )
    made = [
        index_of([(one.stream_id, one.start, one.end, one.size_bytes // KIB) for one in plan.portions])
        for plan in plans
        if plan.portions
    ]
    again = [SourceIndex(ObjectId(100 + number), index) for number, index in enumerate(made)]
    assert run_to_end(plan_spent(again, known, SETTINGS)) == []


def test_objects_are_looked_into_by_as_many_as_memory_holds() -> None:
    """The oldest neighbours beyond the last look, up to a block of each in memory; one that is quarantined
    parts them."""
    settings = CompactionSettings(memory_bytes=8 * MIB)
    objects = [StreamSetInfo(ObjectId(n), 50 * MIB, n, 0) for n in range(9)]
    seen: list[list[int]] = []
    after = -1
    while found := choose_beyond(objects, lambda one: one.object_id == 2, settings, after):
        seen.append([one.object_id for one in found])
        after = found[-1].order_id
    assert seen == [[0, 1], [3, 4, 5, 6], [7, 8]]
    few = CompactionSettings(sources_max=3)
    assert [one.object_id for one in choose_beyond(objects, lambda one: False, few, 4)] == [5, 6, 7]


# Carried out.


async def upload_spent(books: Books, *, has_little: bool = True) -> None:
    """A stream-set object of 200 KB of stream 1 and, if so, a few bytes of stream 2."""
    world, pieces = books.world, []
    for stream_id, size in ((1, 200_000), (2, 100))[: 2 if has_little else 1]:
        book = books.books.setdefault(stream_id, [])
        book.append(bytes([len(book)]) * size)
        pieces.append((stream_id, book[-1:]))
    await world.upload(*pieces)


async def filled(**compaction: int) -> Books:
    """Six objects: of four a few bytes are wanted, of the third nothing, of the last all."""
    books = Books(**compaction)
    for number in range(6):
        await upload_spent(books, has_little=number != 2)
    await books.trim(1, 5)
    return books


def test_a_round_makes_room_and_changes_nothing_a_reader_sees() -> None:
    """Five objects of six go for one put of a few hundred bytes, without a byte read that goes; a second
    round finds nothing to do."""

    async def main() -> None:
        books = await filled()
        world, counts = books.world, books.world.work.counts
        assert await Reclaimer(world.work).round()
        assert world.kinds() == "2 set"
        assert (counts.puts, counts.commits, counts.reclaim_rounds) == (1, 2, 1)
        assert counts.written_bytes < 1500
        assert counts.read_bytes < 6 * 17_000  # the ends of all, and what is kept
        await books.check()
        assert await Reclaimer(world.work).round()
        assert (counts.puts, counts.commits) == (1, 2)

    run(main())


def test_what_needs_no_put_goes_though_nothing_can_be_put() -> None:
    """The store has room for nothing at all: what is dead goes, the rest when there is some."""

    async def main() -> None:
        books = await filled()

        def full(verb: str, key: str) -> None:
            if verb.startswith("put"):
                raise StoreFull(key, "no room")

        books.world.store.fault = full
        with pytest.raises(StoreFull):
            await Reclaimer(books.world.work).round()
        assert books.world.kinds() == "5 set"
        await books.check()
        books.world.store.fault = lambda verb, key: None
        assert await Reclaimer(books.world.work).round()
        assert books.world.kinds() == "2 set"
        await books.check()

    run(main())


def test_an_object_that_cannot_be_read_keeps_no_other() -> None:
    """It is quarantined, is never taken for dead, and parts its neighbours; the others go."""

    async def main() -> None:
        books = await filled()
        world = books.world
        damaged = next(iter(world.catalog.live))
        sound = world.store.objects[world.key(damaged)]
        world.store.objects[world.key(damaged)] = sound[:-100] + bytes(100)
        assert await Reclaimer(world.work).round()
        assert world.kinds() == "3 set"
        assert damaged in world.catalog.live
        assert world.work.counts.skipped == {"unreadable": 1}
        world.store.objects[world.key(damaged)] = sound
        await books.check()

    run(main())


def test_a_round_goes_through_all_of_them_within_its_memory() -> None:
    """Two hundred objects, of which a few fit into memory at once: all that are spent go."""

    async def main() -> None:
        books = Books(memory_bytes=4 * MIB)
        for _ in range(200):
            await upload_spent(books)
        await books.trim(1, 199)
        assert await Reclaimer(books.world.work).round()
        sets = books.world.catalog.stream_set_objects()
        assert len(sets) < 30
        assert sum(one.size_bytes for one in sets) < 2 * 200_000
        await books.check()

    run(main())


# When.


def running(
    test: Callable[[Books, Compactor], Awaitable[None]], begin_at_s: float = 0.0, *, is_full: bool = False
) -> None:
    async def main() -> None:
        books = await filled()
        books.world.is_full = is_full
        compactor = books.world.compactor(begin_at_s)
        task = asyncio.create_task(compactor.run())
        await test(books, compactor)
        if task.done():
            task.result()
        await drained(task)

    run(main())


def is_small(books: Books) -> bool:
    """Of the last object, too, what was trimmed is gone."""
    return sum(one.size_bytes for one in books.world.catalog.live.values()) < 5000


def fill(books: Books, compactor: Compactor) -> None:
    books.world.is_full = True
    compactor.on_full()


def test_a_full_store_is_seen_to_at_once() -> None:
    """Whatever the intervals of other rounds, and before the first of them may begin; while it is not full,
    nothing is looked for."""

    async def test(books: Books, compactor: Compactor) -> None:
        counts = books.world.work.counts
        await asyncio.sleep(1000)
        compactor.on_change()
        await asyncio.sleep(1000)
        assert counts.reclaim_rounds == 0
        fill(books, compactor)
        await asyncio.sleep(0.1)
        assert (books.world.kinds(), counts.reclaim_rounds) == ("2 set", 1)
        assert (counts.set_rounds, counts.stream_rounds) == (0, 0)
        await asyncio.sleep(3600)
        assert counts.set_rounds
        await books.check()

    running(test, begin_at_s=3000.0)


def test_a_store_that_is_full_before_compaction_begins() -> None:
    """It is seen to first."""

    async def test(books: Books, compactor: Compactor) -> None:
        await asyncio.sleep(0.01)
        assert books.world.kinds() == "2 set"

    running(test, is_full=True)


def test_a_full_store_is_looked_at_again_when_something_changed() -> None:
    """Nothing is looked at twice without a change, however often uploads are refused; changes are seen
    together, an interval after the last look at least, as long as it is full."""

    async def test(books: Books, compactor: Compactor) -> None:
        counts = books.world.work.counts
        fill(books, compactor)
        await asyncio.sleep(1)
        for _ in range(100):
            compactor.on_full()
            await asyncio.sleep(1)
        assert counts.reclaim_rounds == 1
        for _ in range(100):
            compactor.on_change()
            await asyncio.sleep(1)
        interval_s = RECLAIM_INTERVAL_MS / 1000
        assert 0.7 * 100 / interval_s <= counts.reclaim_rounds <= 1.2 * 100 / interval_s
        await asyncio.sleep(100)
        rounds = counts.reclaim_rounds
        await books.trim(1, 6)
        compactor.on_change()
        await asyncio.sleep(1)
        assert (is_small(books), counts.reclaim_rounds) == (True, rounds + 1)
        books.world.is_full = False
        compactor.on_change()
        await asyncio.sleep(1000)
        assert counts.reclaim_rounds == rounds + 1

    running(test)


def test_a_change_that_came_while_both_other_rounds_were_due_is_seen() -> None:
    """Sets and streams wait for their intervals with something to do, and need no news: a full store does."""

    async def test(books: Books, compactor: Compactor) -> None:
        await asyncio.sleep(4000)
        fill(books, compactor)
        await asyncio.sleep(10)
        compactor.on_change()
        await asyncio.sleep(10)
        await books.trim(1, 6)
        compactor.on_change()
        await asyncio.sleep(10)
        assert is_small(books)

    running(test)


def test_a_round_without_room_for_its_put_is_tried_again() -> None:
    """Without a change, later and later: somebody else may have made room."""

    async def test(books: Books, compactor: Compactor) -> None:
        counts = books.world.work.counts

        def full(verb: str, key: str) -> None:
            if verb.startswith("put"):
                raise StoreFull(key, "no room")

        books.world.store.fault = full
        fill(books, compactor)
        await asyncio.sleep(600)
        assert 3 <= counts.reclaim_rounds <= 14
        books.world.store.fault = lambda verb, key: None
        await asyncio.sleep(100)
        assert books.world.kinds() == "2 set"

    running(test)
