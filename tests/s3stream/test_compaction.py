"""Compaction carried out: what is read stays the same, whatever fails; and what went wrong elsewhere does not
go wrong here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from millrace.runtime.objectstore import StoreUnavailable
from millrace.runtime.rand import Rand
from millrace.s3stream.compaction import batch, copying, stream_plan
from millrace.s3stream.compaction.choose import choose_sets
from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.compaction.known_rows import KnownRows
from millrace.s3stream.compaction.outputs import Output, PutMemory
from millrace.s3stream.compaction.plan import STEP_ROWS, SourceIndex, plan_sets
from millrace.s3stream.compaction.quarantine import Quarantine
from millrace.s3stream.compaction.run import Rhythm
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.sources import ReadMemory, Source, SourceUnreadable
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.compaction.windows import Window, staggered, window_sizes
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.errors import CompactionRefused, StreamFenced, UploadExpired
from millrace.s3stream.ids import ObjectId, StreamBounds, StreamId, StreamSetInfo, UploadCommit, Writer
from millrace.s3stream.objects.format import (
    FOOTER_BYTES,
    INT32_MAX,
    BlockRef,
    Entry,
    decode_footer,
    encode_footer,
)
from millrace.s3stream.objects.writer import ObjectWriter
from tests.s3stream.build import CLUSTER_ID, run
from tests.s3stream.compaction_build import CompactedWorld, drained
from tests.s3stream.test_compaction_plan import index_of

KIB = 1 << 10
HOUR_MS = 3_600_000


def payloads(stream_id: int, count: int, size: int = 100, first: int = 0) -> list[bytes]:
    return [b"%d:%d;" % (stream_id, first + n) * (size // 4) for n in range(count)]


class Books:
    """A world, and what was put into it."""

    def __init__(self, **compaction: int) -> None:
        self.world = CompactedWorld(**compaction)
        self.books: dict[int, list[bytes]] = {}

    async def upload(
        self, *streams: int, count: int = 5, size: int = 100, is_split: bool = False
    ) -> ObjectId:
        pieces = []
        for stream_id in streams:
            book = self.books.setdefault(stream_id, [])
            pieces.append((stream_id, payloads(stream_id, count, size, len(book))))
            book += pieces[-1][1]
        return await self.world.upload(*pieces, is_split=is_split)

    async def trim(self, stream_id: int, start: int) -> None:
        stream = self.world.catalog.streams[stream_id]
        await self.world.catalog.trim(StreamId(stream_id), stream.epoch, start)

    async def check(self) -> None:
        """Every stream reads as its book, with empty caches; files are as metadata says."""
        for stream_id, book in self.books.items():
            stream = self.world.catalog.streams.get(stream_id)
            if stream is None:
                continue
            found = await self.world.read(stream_id)
            assert (
                found[-len(book[stream.start :]) :] == book[stream.start :]
                if stream.start < len(book)
                else True
            )
            assert len(found) - len(book[stream.start :]) in range(1000)
        self.world.check_files()
        self.world.clean()
        self.world.check_files()


def test_small_uploads_become_few_objects() -> None:
    """Sixty uploads of small streams: few objects are left, all is read as before, the old files go; what was
    read and written is little more than what there is, once for each level of merging."""

    async def main() -> None:
        books = Books()
        for _ in range(60):
            await books.upload(1, 2, 3, 4, size=2000)
            await books.world.compact()
        world, counts = books.world, books.world.work.counts
        assert len(world.catalog.live) <= 12, world.kinds()
        await books.check()
        assert len(world.store.objects) == world.files_count()
        live = sum(len(data) for book in books.books.values() for data in book)
        assert counts.written_bytes < 5 * live
        assert counts.read_bytes < 5 * live
        assert not counts.skipped
        gets = counts.gets
        await world.compact()
        assert counts.gets == gets  # a look that finds nothing to do reads nothing

    run(main())


def test_one_compaction_reads_and_writes_what_is_wanted_once() -> None:
    """Reads and writes stay below 1.2 of the live bytes each, requests few: one a small source, one a large
    window."""

    async def main() -> None:
        books = Books(split_bytes=2 * MIB, memory_bytes=32 * MIB)
        for _ in range(8):
            await books.upload(1, 2, 3, count=20, size=30_000)
        live = sum(one.size_bytes for one in books.world.catalog.live.values())
        await books.world.compact()
        counts = books.world.work.counts
        assert counts.read_bytes < 1.05 * live
        assert counts.written_bytes < 1.05 * live
        assert counts.gets <= 8 * 3
        assert counts.puts == 3  # three objects of a part and a half at most, whole
        assert books.world.kinds() == "3 own"
        await books.check()

    run(main())


def test_an_object_with_nothing_wanted_goes_without_a_successor() -> None:
    """Trimmed and deleted streams: the sets go, nothing is put, nothing prepared."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            await books.upload(1, 2)
        await books.trim(1, 20)
        books.world.catalog.delete(2)
        puts = books.world.store.count("put")
        await books.world.compact()
        assert not books.world.catalog.live
        assert books.world.store.count("put") == puts
        books.world.clean()
        assert not books.world.store.objects

    run(main())


def test_streams_of_many_small_objects_become_few_and_then_one_composite() -> None:
    """Small objects of a stream are merged by copying, large ones linked; with the composite's links trimmed
    one after another it is made anew without them, and in the end it goes with all it links."""

    async def main() -> None:
        books = Books(split_bytes=32 * KIB)
        for _ in range(12):
            await books.upload(1, count=3, size=1500, is_split=True)
        await books.world.compact()
        assert books.world.kinds() == "2 own"
        for _ in range(6):
            await books.upload(1, count=10, size=5000, is_split=True)
        await books.world.compact()
        assert books.world.kinds() == "1 composite"
        (composite,) = books.world.catalog.live
        before = books.world.links(composite)
        assert len(before) == 8
        await books.check()
        for _ in range(5):
            await books.upload(1, count=10, size=5000, is_split=True)
        await books.world.compact()
        assert books.world.kinds() == "1 composite"
        (longer,) = books.world.catalog.live
        assert books.world.links(longer)[:8] == before
        assert len(books.world.links(longer)) == 13
        await books.check()
        await books.trim(1, 36 + 70)
        await books.world.compact()
        (pruned,) = books.world.catalog.live
        assert len(books.world.links(pruned)) == 4
        await books.check()
        assert len(books.world.store.objects) == 5
        await books.trim(1, len(books.books[1]))
        await books.world.compact()
        await books.check()
        assert not books.world.store.objects

    run(main())


@pytest.mark.parametrize("size", [100, 9000])
def test_an_object_may_begin_before_what_metadata_names_of_it(size: int) -> None:
    """Merged or linked: what lies below the range that metadata names was trimmed, and is no damage. An index
    that lacks some of the range is."""

    async def main() -> None:
        books = Books(split_bytes=16 * KIB)
        for _ in range(4):
            await books.upload(1, size=size, is_split=True)
        world = books.world
        await books.trim(1, 3)
        hints = world.catalog.streams[1].objects
        hints[0] = replace(hints[0], start=2)
        await world.compact()
        assert world.kinds() == ("1 own" if size == 100 else "1 composite")
        assert not world.work.counts.skipped
        await books.check()
        for _ in range(4):
            await books.upload(1, size=size, is_split=True)
        hints = world.catalog.streams[1].objects
        hints[-1] = replace(hints[-1], end=hints[-1].end + 1)
        await world.compact()
        assert world.work.counts.skipped == {"unreadable": 1}

    run(main())


def test_an_object_that_begins_within_the_one_before_it_is_linked_with_none() -> None:
    """A commit whose sources had changed meanwhile leaves such a one: it is quarantined, its neighbours are
    linked without it once there are enough of them, and the stream reads as before."""

    async def main() -> None:
        books = Books(split_bytes=16 * KIB)
        world = books.world
        for _ in range(2):
            await books.upload(1, size=9000, is_split=True)
        stream = world.catalog.streams[1]
        stream.end = 7
        await world.upload((1, payloads(1, 8, 9000, first=7)), is_split=True)
        stream.objects[-1] = replace(stream.objects[-1], start=10)
        books.books[1] += payloads(1, 5, 9000, first=10)
        await books.upload(1, size=9000, is_split=True)
        await world.compact()
        assert world.kinds() == "4 own"
        assert world.work.counts.skipped == {"overlap": 1}
        for _ in range(4):
            await books.upload(1, size=9000, is_split=True)
        await world.compact()
        assert world.kinds() == "3 own 1 composite"
        await books.check()

    run(main())


def test_what_was_written_here_is_linked_without_reading_its_index() -> None:
    """Four splits of a stream: the composite that links them costs no request but its own; after a restart it
    costs their indexes."""

    async def main() -> None:
        for is_restarted in (False, True):
            books = Books()
            world = books.world
            for _ in range(4):
                await books.upload(1, 2, size=20_000)
                world.clock.ms += 3 * HOUR_MS
                await SetCompactor(world.work).round()
            assert world.kinds() == "8 own"
            if is_restarted:
                world.work = Work(world.store, world.catalog, world.compaction, CLUSTER_ID, world.clock)
            before = world.work.counts.gets
            await StreamCompactor(world.work).round()
            assert world.kinds() == "2 composite"
            assert world.work.counts.gets - before == (8 if is_restarted else 0)
            assert world.work.known_rows.held_bytes == 0
            await books.check()

    run(main())


def test_known_rows_are_bounded() -> None:
    """A thousand objects' rows within 10,000 bytes: the oldest are forgotten, what is linked is; an id counts
    once."""
    known = KnownRows(10_000)
    for number in range(1000):
        known.put(ObjectId(number), bytes(72))
        known.put(ObjectId(number), bytes(72))
        assert known.held_bytes <= 10_000
    assert known.get(ObjectId(999)) == bytes(72)
    assert known.get(ObjectId(900)) is None
    known.forget([ObjectId(number) for number in range(2000)])
    assert known.held_bytes == 0
    known.put(ObjectId(7), bytes(20_000))
    assert known.held_bytes == 0


def test_parts_of_an_object_are_equal_and_few() -> None:
    """An object a little larger than a part is put at once; a larger one in equal parts, none of them a
    scrap; never below the stores' least part."""
    settings = CompactionSettings()
    part, whole = settings.open_part_bytes, settings.whole_bytes_max
    assert (part, whole) == (256 * MIB // 10, 256 * MIB // 10 * 3 // 2)
    assert settings.part_bytes_of(whole) > whole
    for size_bytes in (whole + 1, 60 * MIB, 77 * MIB, 1 << 30, 30 << 30):
        parts = settings.part_bytes_of(size_bytes)
        assert parts <= part
        assert -(-size_bytes // parts) <= -(-size_bytes // part) + 1
    assert CompactionSettings(memory_bytes=4 * MIB).part_bytes_of(1 << 30) == 5 * MIB
    others = settings.known_rows_bytes_max - 1000
    assert (
        settings.reading_bytes_of(has_set=True, has_split=True) + part + 2 * whole + others
        <= settings.memory_bytes
    )
    assert (
        settings.reading_bytes_of(has_set=False, has_split=True) + 2 * whole + others <= settings.memory_bytes
    )
    alone = settings.part_bytes_of(30 << 30, is_alone=True)
    assert alone == 32 * MIB
    assert (
        settings.reading_bytes_of(has_set=True, has_split=False) + 2 * alone + others <= settings.memory_bytes
    )


@pytest.mark.parametrize("memory_mib", [4, 76, 128, 256])
@pytest.mark.parametrize("object_gib", [1, 10, 16, 1000])
def test_no_object_has_more_parts_than_a_store_takes(memory_mib: int, object_gib: int) -> None:
    """S3 refuses part 10,001, after all before it were copied."""
    settings = CompactionSettings(memory_bytes=memory_mib * MIB, object_bytes_max=object_gib << 30)
    for size_bytes in (settings.merge_bytes_max, settings.object_bytes_max):
        for is_alone in (False, True):
            assert size_bytes / settings.part_bytes_of(size_bytes, is_alone=is_alone) < 10_000


@pytest.mark.parametrize("memory_mib", [128, 160, 255])
def test_where_memory_is_short_two_merges_make_objects_that_are_put_whole(memory_mib: int) -> None:
    """Runs are of six, so that windows are large, and what a stream has after two merges of uploads of half
    a MiB of each leaves, in one put."""
    settings = CompactionSettings(memory_bytes=memory_mib * MIB)
    assert settings.run_count == 6
    sets = [StreamSetInfo(ObjectId(n), 500_000_000, n, 0) for n in range(40)]
    assert len(choose_sets(sets, lambda one: False, settings)) == 6
    made_bytes = 6 * 6 * 500_000
    assert settings.own_bytes_min <= made_bytes
    assert settings.part_bytes_of(made_bytes) > made_bytes
    alone = settings.part_bytes_of(30 << 30, is_alone=True)
    assert settings.reading_bytes_of(has_set=True, has_split=False) + 2 * alone <= settings.memory_bytes


def test_a_composite_is_looked_into_once_while_its_links_live() -> None:
    """Mostly dead by offsets and not by links: it is read once, not at each look."""

    async def main() -> None:
        books = Books(split_bytes=KIB)
        for size in (90_000, 90_000, 90_000, 90_000):
            await books.upload(1, count=10, size=size, is_split=True)
        await books.world.compact()
        assert books.world.kinds() == "1 composite"
        await books.trim(1, 9)
        before, stream_plan.DEAD_BYTES_MAX = stream_plan.DEAD_BYTES_MAX, KIB
        try:
            compactor = StreamCompactor(books.world.work)
            gets = books.world.work.counts.gets
            for _ in range(3):
                await compactor.round()
            assert books.world.work.counts.gets == gets + 1
            await books.trim(1, 12)
            await compactor.round()
        finally:
            stream_plan.DEAD_BYTES_MAX = before
        (pruned,) = books.world.catalog.live
        assert len(books.world.links(pruned)) == 3
        await books.check()

    run(main())


def test_multipart_for_large_outputs_and_memory_within_bounds() -> None:
    """20 MiB a stream through 8 MiB of memory: several parts of at least 5 MiB, what is held never passes the
    bound by more than a block."""

    async def main() -> None:
        books = Books(split_bytes=4 * MIB, memory_bytes=8 * MIB)
        for _ in range(4):
            await books.upload(1, 2, count=64, size=80_000)
        live = sum(one.size_bytes for one in books.world.catalog.live.values())
        held: list[ReadMemory] = []
        begin = Source.begin

        def watched(self: Source, *args: Any) -> None:
            held.append(self._memory)
            begin(self, *args)

        Source.begin = watched  # type: ignore[method-assign]
        try:
            await books.world.compact()
        finally:
            Source.begin = begin  # type: ignore[method-assign]
        assert live > 40 * MIB
        assert books.world.kinds() == "2 own"
        assert books.world.store.count("put_part") >= live / (5.2 * MIB)
        assert held
        assert max(memory.peak_bytes for memory in held) <= 5 * MIB  # half of it, and one window
        assert all(memory.held_bytes == 0 for memory in held)
        await books.check()

    run(main())


def test_many_objects_that_end_together_hold_no_more_than_there_is_memory_for() -> None:
    """Nine streams of 5 MB each get objects of their own, of one part: with a slow store only so many wait to
    be put."""

    async def main() -> None:
        books = Books(split_bytes=MIB, memory_bytes=32 * MIB)
        for _ in range(4):
            await books.upload(*range(1, 10), count=10, size=100_000)
        world = books.world
        peak = live = 0
        finish, add = Output.finish, Output.add

        async def added(self: Output, ref: BlockRef, data: memoryview, body_sum: int | None) -> None:
            nonlocal peak, live
            before = self.held_bytes
            await add(self, ref, data, body_sum)
            live += self.held_bytes - before
            peak = max(peak, live)

        async def finished(self: Output) -> Any:
            nonlocal live
            held = self.held_bytes
            written = await finish(self)
            live -= held
            return written

        world.store.fault = lambda verb, key: asyncio.sleep(1) if verb == "put" else None
        Output.add, Output.finish = added, finished  # type: ignore[assignment,method-assign]
        try:
            await world.compact()
        finally:
            Output.add, Output.finish = add, finish  # type: ignore[method-assign]
        assert world.kinds() == "9 own"
        assert live == 0
        assert peak <= 14 * MIB  # a quarter of it, and the one that is gathered
        await books.check()

    run(main())


# What went wrong in systems before this one.


def test_joined_rows_guard_their_numbers() -> None:
    """Offset deltas beyond 2**31 in merged rows lost data elsewhere: here each offset is still found, and
    read."""

    async def main() -> None:

        books = Books()
        world = books.world
        world.catalog.open(1)
        end = 0
        for _ in range(4):
            writer = ObjectWriter()
            writer.add(1, [Entry(end, INT32_MAX - 7, memoryview(b"x" * 50))])
            finished = writer.finish()
            object_id = await world.catalog.prepare(1, 1000)
            world.store.objects[world.key(object_id)] = b"".join(finished.parts)
            await world.catalog.commit_upload(
                UploadCommit(object_id, finished.size_bytes, finished.ranges, ())
            )
            end += INT32_MAX - 7
        await world.compact()
        assert world.kinds() == "1 set"
        assert len(await world.read(1)) == 4

    run(main())


@pytest.mark.parametrize("damage", ["gone", "cut", "index", "denied"])
def test_an_index_that_cannot_be_read_is_not_an_empty_index(damage: str) -> None:
    """The object is quarantined, told once and tried again; the others are compacted without it, and nothing
    of it is dropped."""

    async def main() -> None:
        books = Books()
        ids = [await books.upload(1, 2) for _ in range(9)]
        world = books.world
        bad = world.key(ids[4])
        sound = world.store.objects[bad]
        if damage == "gone":
            del world.store.objects[bad]
        elif damage == "cut":
            world.store.objects[bad] = sound[:-1]
        elif damage == "index":
            world.store.objects[bad] = sound[:-60] + b"X" + sound[-59:]
        else:
            world.store.fault = lambda verb, key: failing(StoreUnavailable(key, "no")) if key == bad else None
        await world.compact()
        assert ids[4] in world.catalog.live
        assert world.kinds() == "3 set"
        assert sum(world.work.counts.skipped.values()) == 1
        await world.compact()
        assert sum(world.work.counts.skipped.values()) == 1
        world.store.objects[bad] = sound
        world.store.fault = lambda verb, key: None
        await asyncio.sleep(400)
        await books.upload(1, 2)
        await world.compact()
        assert world.kinds() == "1 set"
        assert len(world.work.quarantined) == 0
        await books.check()

    run(main())


def failing(error: Exception) -> Awaitable[None]:
    async def fail() -> None:
        raise error

    return fail()


def test_a_damaged_block_stops_its_own_compaction_alone() -> None:
    """Rot in a block is met while it is copied: nothing is committed, the object is quarantined, others are
    compacted."""

    async def main() -> None:
        books = Books()
        ids = [await books.upload(1, 2, size=2000) for _ in range(9)]
        world = books.world
        data = bytearray(world.store.objects[world.key(ids[4])])
        data[200] ^= 1
        world.store.objects[world.key(ids[4])] = bytes(data)
        await world.compact()
        assert ids[4] in world.catalog.live
        assert world.kinds() == "3 set"
        assert world.work.counts.skipped == {"unreadable": 1}
        world.check_files()

    run(main())


def test_ids_that_run_out_before_the_commit_lose_nothing() -> None:
    """A store so slow that the outputs' time is over when they are put: the plan is thrown away, the sources
    stay, the next try works."""

    async def main() -> None:
        books = Books(prepare_ttl_ms=60_000)
        for _ in range(4):
            await books.upload(1, 2)
        world = books.world

        def slow(verb: str, key: str) -> Awaitable[None] | None:
            return asyncio.sleep(70) if verb == "put" else None

        world.store.fault = slow
        with pytest.raises(UploadExpired):
            await world.compact()
        assert world.kinds() == "4 set"
        world.clock.ms += 70_000
        await books.check()
        assert len(world.store.objects) == 4
        world.store.fault = lambda verb, key: None
        await world.compact()
        assert world.kinds() == "1 set"
        await books.check()

    run(main())


def test_the_controller_refuses_ids_that_ran_out() -> None:
    """As above, with clocks that disagree: the node believes its ids are good, the controller has dropped
    them."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            await books.upload(1, 2)
        world = books.world

        def expire(verb: str) -> None:
            if verb == "commit_compaction":
                world.clock.ms += 10**9
                world.clean()

        world.catalog.before = expire
        with pytest.raises(CompactionRefused):
            await world.compact()
        world.catalog.before = lambda verb: None
        await books.check()

    run(main())


class StaleCatalog:
    """Bounds as of an image in which some streams are not there yet."""

    def __init__(self, world: CompactedWorld, unknown: Sequence[int]) -> None:
        self._catalog = world.catalog
        self._unknown = unknown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def stream_bounds(self, stream_ids: Sequence[StreamId]) -> Mapping[StreamId, StreamBounds]:
        found = dict(self._catalog.stream_bounds(stream_ids))
        return {key: bounds for key, bounds in found.items() if key not in self._unknown}


def test_stale_metadata_drops_nothing_that_is_wanted() -> None:
    """An image without a stream that exists: the plan leaves the stream's blocks out, the commit is refused,
    nothing changes."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            await books.upload(1, 2)
        world = books.world
        true_catalog, world.work.catalog = world.work.catalog, StaleCatalog(world, [2])  # type: ignore[assignment]
        with pytest.raises(CompactionRefused):
            await world.compact()
        world.work.catalog = StaleCatalog(world, [1, 2])  # type: ignore[assignment]
        with pytest.raises(CompactionRefused):
            await world.compact()
        assert world.kinds() == "4 set"
        world.work.catalog = true_catalog
        await world.compact()
        assert world.kinds() == "1 set"
        await books.check()

    run(main())


def test_a_trim_or_a_deletion_during_the_copying_passes() -> None:
    """What was wanted when the plan was made is wanted no more at the commit: it is committed all the same,
    and reads as trimmed."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            await books.upload(1, 2, 3)
        world = books.world

        async def trim_and_delete() -> None:
            await books.trim(1, 12)
            await books.trim(3, 20)
            world.catalog.delete(2)

        world.catalog.before = lambda verb: (
            trim_and_delete() if verb == "prepare" and not world.catalog.trims else None
        )
        await world.compact()
        assert world.kinds() == "1 set"
        await books.check()

    run(main())


def test_offset_holes_after_trims_are_no_loss_and_no_stop() -> None:
    """Streams trimmed to the middle of entries, of blocks and of objects, some beyond gaps left by objects of
    their own: all that is wanted is read as before, after each round."""

    async def main() -> None:
        books = Books(split_bytes=4 * KIB)
        for number in range(24):
            await books.upload(1, 2, 3, count=7, size=300)
            if number % 3 == 0:
                await books.upload(2, count=9, size=900, is_split=True)
            if number % 4 == 1:
                await books.trim(1 + number % 3, len(books.books[1 + number % 3]) - 1 - number)
            if number % 5 == 4:
                await books.world.compact()
                await books.check()
        books.world.clock.ms += 3 * HOUR_MS
        await books.world.compact()
        assert "set" not in books.world.kinds()
        await books.check()

    run(main())


def test_a_block_larger_than_all_memory_is_compacted() -> None:
    """One entry of 24 MiB among small ones, with 8 MiB of memory: it goes through like any other."""

    async def main() -> None:
        books = Books()
        for number in range(4):
            await books.upload(1, 2, count=1, size=24 * MIB if number == 2 else 100)
        books.world.clock.ms += 3 * HOUR_MS
        await books.world.compact()
        assert books.world.kinds() == "2 own"
        await books.check()

    run(main())


def block(position: int, size: int) -> BlockRef:
    return BlockRef(StreamId(1), position, position + size, 1, position, size)


@pytest.mark.parametrize(
    ("positions", "bytes_max", "taken"),
    [
        ([0, 100_000], MIB, True),  # side by side
        ([0, 400_000], MIB, True),  # near
        ([0, 700_000], MIB, False),  # too much between them
        ([0, 100_000, 200_000, 300_000, 400_000, 500_000, 650_000], MIB, True),  # little between them
        ([0, 100_000], 150_000, False),  # more than a window
        ([100_000, 0], MIB, False),  # behind
    ],
)
def test_near_blocks_come_with_one_request(positions: list[int], bytes_max: int, taken: bool) -> None:
    """Blocks of 100,000 bytes at these positions: whether the last one is read with those before it."""
    window = Window(block(positions[0], 100_000))
    for position in positions[1:-1]:
        assert window.takes(block(position, 100_000), bytes_max)
        window.add(block(position, 100_000))
    assert window.takes(block(positions[-1], 100_000), bytes_max) is taken


def test_windows_are_read_ahead_while_there_is_memory() -> None:
    """Eight blocks of 100 KiB in windows of two: with room for them they are read before they are needed;
    with none short ones when they are."""

    async def main() -> None:
        for limit, gets in ((0, 8), (10 * MIB, 4)):
            books = Books()
            object_id = await books.upload(1, count=8, size=100 * KIB)
            world = books.world
            memory = ReadMemory(limit)
            size = world.catalog.live[object_id].size_bytes
            source = world.work.source(object_id, size)
            index = await source.open(memory, 0)
            source.begin(index.index, world.catalog.stream_bounds([StreamId(1)]), 220 * KIB, 220 * KIB)
            await asyncio.sleep(1)
            assert (memory.held_bytes > 0) is (limit > 0)
            for ref in list(index.index.rows()):
                data, _ = await source.take(ref)
                assert len(data) == ref.size_bytes
            assert world.work.counts.gets == 1 + gets
            assert memory.peak_bytes < (4 if limit else 1) * 110 * KIB
            await source.close()
            assert memory.held_bytes == 0

    run(main())


def test_a_source_is_read_for_its_writer_alone() -> None:
    """An object that somebody else wrote under the id that metadata names is no source: it is quarantined
    like a damaged one."""

    async def main() -> None:
        books = Books()
        object_id = await books.upload(1, count=2, size=KIB)
        world = books.world
        info = world.catalog.live[object_id]
        key = world.work.key(object_id)
        for writer, token in ((None, 5), (Writer(1, 6), 5), (Writer(1, 5), 5), (Writer(1, 5), 0)):
            content = world.store.objects[key]
            footer = decode_footer(memoryview(content)[-FOOTER_BYTES:], len(content))
            world.store.objects[key] = content[:-FOOTER_BYTES] + encode_footer(replace(footer, writer=writer))
            opened = world.work.source(object_id, info.size_bytes, token).open(ReadMemory(0), 0)
            if writer is not None and token in (0, writer.token):
                assert (await opened).index.count
                continue
            with pytest.raises(SourceUnreadable, match=r"and metadata names incarnation 0{15}5"):
                await opened

    run(main())


def test_who_runs_out_first_is_read_ahead_first() -> None:
    """Of two sources one holds what comes next in the order of streams: what is given back goes to its
    windows, the other's wait."""

    async def main() -> None:
        books = Books()
        ids = [await books.upload(stream_id, count=12, size=100 * KIB) for stream_id in (1, 2)]
        world, memory = books.world, ReadMemory(700 * KIB)
        sources = []
        for object_id in ids:
            size = world.catalog.live[object_id].size_bytes
            source = world.work.source(object_id, size)
            sources.append((source, await source.open(memory, 0)))
        bounds = world.catalog.stream_bounds([StreamId(1), StreamId(2)])
        for source, index in sources:
            source.begin(index.index, bounds, 220 * KIB, 220 * KIB)
        (first, index), (second, _) = sources
        rows = list(index.index.rows())
        for ref in rows[:10]:
            await first.take(ref)
            await asyncio.sleep(0.1)
        assert second.next_key() == (2, 2)
        assert not first.wants_ahead
        assert memory.peak_bytes <= 700 * KIB
        for source, _ in sources:
            await source.close()

    run(main())


def test_windows_share_memory_by_the_roots_of_sizes() -> None:
    """Equal sources get equal windows, of which half are held on average; unequal ones by the roots; bounds
    and a memory of nothing hold."""
    assert window_sizes([], 100 * MIB, MIB, 32 * MIB) == []
    assert window_sizes([500 * MIB] * 8, 110 * MIB, MIB, 32 * MIB) == [20 * MIB] * 8
    assert window_sizes([900 * MIB, 100 * MIB], 25 * MIB, MIB, 32 * MIB) == [15 * MIB, 5 * MIB]
    assert window_sizes([900 * MIB, 100 * MIB], 1000 * MIB, MIB, 32 * MIB) == [32 * MIB, 32 * MIB]
    assert window_sizes([900 * MIB, 0], 0, MIB, 32 * MIB) == [MIB, MIB]
    assert [staggered(20 * MIB, place, 4, MIB) // MIB for place in range(4)] == [5, 10, 15, 20]
    for memory_mib in (16, 64, 154, 300):
        for count in (1, 2, 8, 14, 100):
            windows = window_sizes([500 * MIB] * count, memory_mib * MIB, 0, 1 << 40)
            first = sum(staggered(one, place, count, 0) for place, one in enumerate(windows))
            assert first + windows[0] <= memory_mib * MIB


def test_a_thousand_streams_over_the_limit_are_planned_in_a_few_tries() -> None:
    """Sources whose streams pass the limit are halved, not excluded one by one: the older ones are compacted.
    Three tries look at 16, 8 and 4 of them, at all rows, four steps for each; one source less at a time would
    be thirteen tries."""
    sources = [
        SourceIndex(ObjectId(n), index_of([(2000 * n + key, 0, 1, 1) for key in range(4 * STEP_ROWS)]))
        for n in range(16)
    ]
    bounds = {StreamId(2000 * n + key): StreamBounds(0, 1) for n in range(16) for key in range(4 * STEP_ROWS)}
    settings = CompactionSettings(streams_per_set_max=16 * STEP_ROWS)
    steps = list(plan_sets(sources, bounds, settings, split_bytes=MIB))
    assert len(steps) == 4 * (16 + 8 + 4)

    async def main() -> None:
        books = Books(streams_per_set_max=300, stream_objects_per_commit_max=100)
        for number in range(16):
            await books.upload(*range(number * 100, number * 100 + 100), count=1)
        await books.world.compact()
        sets = books.world.catalog.stream_set_objects()
        assert len(sets) < 16
        assert all(len(books.world.catalog.live[one.object_id].ranges) <= 300 for one in sets)
        await books.check()

    run(main())


def test_links_are_never_deleted_before_the_commit() -> None:
    """A composite is pruned and its commit refused: every file that it still links is there, and it reads as
    before."""

    async def main() -> None:
        books = Books(split_bytes=KIB)
        for _ in range(6):
            await books.upload(1, count=10, size=5000, is_split=True)
        await books.world.compact()
        await books.trim(1, 35)
        world = books.world

        def refuse(verb: str) -> None:
            if verb == "commit_compaction":
                raise CompactionRefused("a newer plan was quicker")

        world.catalog.before = refuse
        files = len(world.store.objects)
        await world.compact()
        assert world.work.counts.skipped == {"refused": 1}
        world.clean()
        assert len(world.store.objects) == files + 1
        await books.check()
        world.catalog.before = lambda verb: None
        await world.compact()
        await books.check()
        world.clock.ms += 10**9
        await books.check()
        assert len(world.store.objects) == 4

    run(main())


def test_stream_set_objects_listed_twice_take_part_once() -> None:
    """Four sets that metadata lists twice become one, which holds each offset once."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            await books.upload(1, 2)
        catalog = books.world.catalog
        listed = catalog.stream_set_objects

        def twice() -> Any:
            return [one for one in listed() for _ in range(2)]

        catalog.stream_set_objects = twice  # type: ignore[method-assign]
        await books.world.compact()
        catalog.stream_set_objects = listed  # type: ignore[method-assign]
        assert books.world.kinds() == "1 set"
        await books.check()

    run(main())


@pytest.mark.parametrize("is_linked_before", [False, True])
def test_a_streams_objects_listed_twice_take_part_once(is_linked_before: bool) -> None:
    """Its own objects, and a composite that is linked on with what follows it: each file is linked once, and
    the stream reads as before."""

    async def main() -> None:
        books = Books(split_bytes=KIB)
        catalog = books.world.catalog
        for number in range(8):
            await books.upload(1, count=10, size=90_000, is_split=True)
            if is_linked_before and number == 3:
                await books.world.compact()
        listed = catalog.stream_objects
        catalog.stream_objects = lambda stream_id: [one for one in listed(stream_id) for _ in range(2)]  # type: ignore[method-assign]
        await books.world.compact()
        catalog.stream_objects = listed  # type: ignore[method-assign]
        assert books.world.kinds() == "1 composite"
        (composite,) = catalog.live
        links = books.world.links(composite)
        assert len(links) == len(frozenset(links)) == 8
        await books.check()

    run(main())


def test_two_objects_with_the_same_offsets_are_quarantined() -> None:
    """Nobody can tell which is right: neither is compacted, others are."""

    async def main() -> None:
        books = Books()
        for _ in range(5):
            await books.upload(1, 2)
        world = books.world
        stream = world.catalog.streams[1]
        stream.end = 20
        await world.upload((1, payloads(1, 5, first=20)))
        await world.compact()
        assert world.work.counts.skipped == {"overlap": 1}
        assert world.kinds() == "3 set"

    run(main())


def test_outputs_that_do_not_cover_the_sources_are_never_committed() -> None:
    """If the copying lost a block, the check by the sources' own rows finds it before the commit."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            await books.upload(1, 2, size=9000)
        merged = copying.merged_rows

        def losing(*args: Any) -> Any:
            rows = list(merged(*args))
            return iter(rows[:-1])

        copying.merged_rows = losing  # type: ignore[assignment]
        try:
            await books.world.compact()
        finally:
            copying.merged_rows = merged
        assert books.world.kinds() == "4 set"
        assert books.world.work.counts.skipped == {"uncovered": 1}
        assert not books.world.catalog.compactions
        await books.check()

    run(main())


# Failures and stops.


@pytest.mark.parametrize("verb", ["get", "put", "start_multipart", "put_part", "complete"])
def test_a_store_that_fails_leaves_everything_as_it_was(verb: str) -> None:
    """Whichever request fails: nothing is committed, multipart uploads are aborted, and the next try
    works."""

    async def main() -> None:
        books = Books(split_bytes=4 * MIB, memory_bytes=32 * MIB)
        for _ in range(4):
            await books.upload(1, count=40, size=80_000)
            await books.upload(2)
        world = books.world
        failures = 0

        def fault(called: str, key: str) -> Awaitable[None] | None:
            nonlocal failures
            if called == verb:
                failures += 1
                if failures == 3 or called != "put_part":
                    raise StoreUnavailable(key, "not now")
            return None

        world.store.fault = fault
        with pytest.raises(StoreUnavailable):
            await world.compact()
        assert failures
        assert world.kinds() == "8 set"
        if verb in ("put_part", "complete"):
            assert world.store.count("abort") >= 1
        world.store.fault = lambda called, key: None
        await asyncio.sleep(400)
        await world.compact()
        assert "8 set" not in world.kinds()
        await books.check()

    run(main())


def test_a_stop_at_any_moment_leaves_nothing_wrong() -> None:
    """Cancelled after each number of requests: what is committed is there and reads as before, multipart
    uploads are aborted, and after the ids' time nothing is left behind."""

    async def main() -> None:
        committed = 0
        for after in range(0, 60, 5):
            books = Books(split_bytes=4 * MIB, memory_bytes=32 * MIB)
            for _ in range(4):
                await books.upload(1, count=40, size=80_000)
                await books.upload(2)
            world = books.world
            reached, left = asyncio.Event(), after

            def count(verb: str, key: str, reached: asyncio.Event = reached) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    reached.set()

            world.store.fault = count
            task = asyncio.create_task(world.compact())
            task.add_done_callback(lambda _, reached=reached: reached.set())
            await reached.wait()
            await drained(task)
            starts = world.store.count("start_multipart")
            assert starts - world.store.count("abort") - world.store.count("complete") <= 0
            world.clock.ms += 10**8
            await books.check()
            assert len(world.store.objects) == world.files_count()
            committed += bool(world.catalog.compactions)
        assert 0 < committed < 12

    run(main())


def test_a_lost_answer_is_asked_again_with_the_same_ids() -> None:
    """The catalog's own retry sends the same commit: the second changes nothing."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            await books.upload(1, 2)
        world = books.world
        await world.compact()
        (commit,) = world.catalog.compactions
        await world.catalog.commit_compaction(commit)
        assert len(world.catalog.compactions) == 1
        await books.check()

    run(main())


def test_what_is_on_its_way_to_the_store_is_bounded() -> None:
    """Who brings more than there is room for waits, in order, but for one that is larger than all; who gives
    up takes no room."""

    async def main() -> None:
        memory = PutMemory(10)
        await memory.enter(6)
        entered: list[int] = []

        async def enter(size: int) -> None:
            await memory.enter(size)
            entered.append(size)

        tasks = [asyncio.create_task(enter(size)) for size in (5, 50, 4, 2)]
        await asyncio.sleep(1)
        assert entered == []
        memory.leave(6)
        await asyncio.sleep(1)
        assert entered == [5]
        await drained(tasks[2])
        memory.leave(5)
        await asyncio.sleep(1)
        assert entered == [5, 50]
        memory.leave(50)
        await asyncio.sleep(1)
        assert entered == [5, 50, 2]
        await asyncio.gather(tasks[0], tasks[1], tasks[3])

    run(main())


def test_what_stands_aside_is_tried_later_and_later() -> None:
    """Five minutes, ten, and so on up to a day; what was only not answered keeps to five minutes; a look
    forgets when it was due."""
    quarantine, now = Quarantine(), 0.0
    pauses = []
    for _ in range(12):
        quarantine.put(ObjectId(1), now)
        again = quarantine.next_try_s(now)
        assert again is not None
        assert quarantine.has(ObjectId(1), again - 1)
        assert not quarantine.has(ObjectId(1), again)
        pauses.append(int(again - now))
        assert quarantine.next_try_s(again) is None
        now = again
    assert pauses == [300, 600, 1200, 2400, 4800, 9600, 19200, 38400, 76800, 86400, 86400, 86400]
    assert not quarantine.put(ObjectId(1), now, is_growing=False)
    assert quarantine.next_try_s(now) == now + 300
    assert quarantine.put(ObjectId(2), now)
    quarantine.readmit([ObjectId(1), ObjectId(2)])
    assert len(quarantine) == 0


# When it runs.


def running(books: Books, test: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        compactor = books.world.compactor()
        task = asyncio.create_task(compactor.run())
        await test(compactor)
        if task.done():
            task.result()
        await drained(task)

    run(main())


def test_nothing_is_looked_at_while_nothing_changes() -> None:
    """After a look that found nothing there is no second one until something changes, or an object gets
    old."""
    books = Books()

    async def test(compactor: Any) -> None:
        counts = books.world.work.counts
        await asyncio.sleep(3600)
        assert (counts.set_rounds, counts.stream_rounds) == (1, 1)
        await asyncio.sleep(36_000)
        assert (counts.set_rounds, counts.stream_rounds) == (1, 1)
        for _ in range(4):
            await books.upload(1, 2)
            compactor.on_change()
        await asyncio.sleep(400)
        assert counts.set_rounds == 3  # at the first change, and an interval later
        assert books.world.kinds() == "1 set"
        await asyncio.sleep(7000)
        rounds = counts.set_rounds
        books.world.clock.ms += 2 * HOUR_MS
        gets = counts.gets
        await asyncio.sleep(7000)
        assert (books.world.kinds(), counts.gets) == ("1 set", gets + 1)
        assert counts.set_rounds == rounds + 1
        books.world.clock.ms += 2 * HOUR_MS
        await asyncio.sleep(36_000)
        assert counts.set_rounds == rounds + 1
        await books.check()

    running(books, test)


def test_a_timer_that_comes_a_grain_early_begins_the_round() -> None:
    """The clock that a timer goes by is coarser than a float: waiting on for what is less than its grain
    would never end."""
    rhythm = Rhythm(1000, Rand(b"x"), 5.0)
    assert not rhythm.begin(rhythm.next_at_s - 0.01)
    assert rhythm.begin(rhythm.next_at_s - 0.000_000_5)


def test_changes_that_come_in_a_stream_are_looked_at_once_an_interval() -> None:
    """A change each second for an hour: twelve looks at sets, two or three at streams."""
    books = Books()

    async def test(compactor: Any) -> None:
        counts = books.world.work.counts
        for _ in range(3600):
            compactor.on_change()
            await asyncio.sleep(1)
        assert 10 <= counts.set_rounds <= 15
        assert 2 <= counts.stream_rounds <= 4

    running(books, test)


@pytest.mark.parametrize("verbs", [("get", "put"), ("put",)])
def test_a_round_that_failed_is_tried_again_without_a_change(verbs: tuple[str, ...]) -> None:
    """The store is away for a while, or takes nothing: the work is done some intervals after it is back."""
    books = Books()

    async def test(compactor: Any) -> None:
        for _ in range(4):
            await books.upload(1, 2)

        def away(verb: str, key: str) -> None:
            if verb in verbs:
                raise StoreUnavailable(key, "away")

        books.world.store.fault = away
        compactor.on_change()
        await asyncio.sleep(3600)
        assert books.world.kinds() == "4 set"
        assert books.world.work.counts.skipped["store"] >= 3
        books.world.store.fault = lambda verb, key: None
        await asyncio.sleep(3600)
        assert books.world.kinds() == "1 set"
        await books.check()

    running(books, test)


def test_a_refusal_of_one_stream_keeps_no_other_from_its_own() -> None:
    """The second of three streams is refused: the others are compacted, and the round counts as not done."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            for stream_id in (1, 2, 3):
                await books.upload(stream_id, is_split=True)
        world = books.world
        commits = 0

        def refuse(verb: str) -> None:
            nonlocal commits
            commits += verb == "commit_compaction"
            if verb == "commit_compaction" and commits in (1, 3):  # all together, and the second by itself
                raise CompactionRefused("metadata moved on")

        world.catalog.before = refuse
        assert not await StreamCompactor(world.work).round()
        assert world.kinds() == "6 own"
        assert await StreamCompactor(world.work).round()
        assert world.kinds() == "3 own"
        await books.check()

    run(main())


def test_compactions_of_many_streams_share_commits() -> None:
    """Two hundred streams of four small objects each: a thousand objects change places in four commits, with
    seven requests for ids."""

    async def main() -> None:
        books = Books()
        streams = range(1, 201)
        for _ in range(4):
            for stream_id in streams:
                await books.upload(stream_id, count=1, is_split=True)
        world = books.world
        asked: list[str] = []
        world.catalog.before = asked.append
        assert await StreamCompactor(world.work).round()
        assert world.kinds() == "200 own"
        assert asked.count("commit_compaction") == len(world.catalog.compactions) == 4
        assert asked.count("prepare") == 7
        made = [len(one.stream_objects) for one in world.catalog.compactions]
        assert all(5 * count <= batch.OBJECTS_MAX + 5 for count in made), "bounded"
        await books.check()

    run(main())


def test_a_store_that_goes_away_in_a_round_takes_nothing_back() -> None:
    """The third of four merges finds no store: what was put for the first two is committed before the round
    ends in its error."""

    async def main() -> None:
        books = Books()
        for _ in range(4):
            for stream_id in (1, 2, 3, 4):
                await books.upload(stream_id, is_split=True)
        world, puts = books.world, 0

        def fail(verb: str, key: str) -> None:
            nonlocal puts
            puts += verb == "put"
            if verb == "put" and puts == 3:
                raise StoreUnavailable("away")

        world.store.fault = fail
        with pytest.raises(StoreUnavailable):
            await StreamCompactor(world.work).round()
        assert len(world.catalog.compactions) == 1
        assert world.kinds() == "10 own"
        world.store.fault = lambda verb, key: None
        assert await StreamCompactor(world.work).round()
        assert world.kinds() == "4 own"
        world.clock.ms += 10 * HOUR_MS
        await books.check()

    run(main())


def test_what_is_refused_again_and_again_is_tried_later_and_later() -> None:
    """A compaction may be a lot of work: of a hundred intervals in which it is refused it is tried in a
    few."""
    books = Books()

    async def test(compactor: Any) -> None:
        for _ in range(4):
            await books.upload(1, 2)

        def refuse(verb: str) -> None:
            if verb == "commit_compaction":
                raise CompactionRefused("no")

        books.world.catalog.before = refuse
        compactor.on_change()
        await asyncio.sleep(100 * 300)
        counts = books.world.work.counts
        assert 6 <= counts.set_rounds <= 12
        books.world.catalog.before = lambda verb: None
        await asyncio.sleep(20 * 300)
        assert books.world.kinds() == "1 set"
        await books.check()

    running(books, test)


def test_a_newer_owner_ends_it() -> None:
    """Fenced, it does nothing more, and says so to who runs it, which ends the process."""
    books = Books()

    async def test(compactor: Any) -> None:
        for _ in range(4):
            await books.upload(1, 2)
        books.world.catalog.is_fenced = True
        compactor.on_change()
        await asyncio.sleep(3600)
        assert books.world.work.counts.set_rounds == 1

    with pytest.raises(StreamFenced):
        running(books, test)
