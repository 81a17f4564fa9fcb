"""Starts after crashes: what the WAL holds goes into objects, once, and nothing acknowledged is dropped in
silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from millrace.runtime.errors import Corrupt
from millrace.runtime.objectstore import StoreUnavailable
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap, StreamFenced
from millrace.s3stream.ids import OpenedStream, StreamId, StreamRange
from millrace.s3stream.objects.format import EntryHeader, encode_entry_header
from millrace.s3stream.recovery import BLOCK_BYTES_MAX, ExpectedOffsets, Recovered, recovery_bounds
from millrace.wal.log import WalRecord
from tests.s3stream.build import MemoryWal, World, append, open_stream, run, shown

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_what_the_wal_holds_is_in_objects_afterwards": "counts what each tier answers",
    "test_which_records_are_needed": "reads nothing",
    "test_what_lies_behind_a_hole_is_given_up_by_word_alone": "reads nothing",
    "test_an_empty_wal_costs_nothing": "reads nothing",
    "test_what_counts_is_settled_before_a_stream_is_closed": "reads nothing",
    "test_committed_entries_are_not_uploaded_twice": "reads nothing",
    "test_a_hole_is_told_and_nothing_is_reset": "reads nothing",
    "test_a_record_that_is_no_entry_is_told": "reads nothing",
    "test_streams_of_others_are_left_alone": "reads nothing",
    "test_recovery_waits_for_the_store": "reads nothing",
    "test_blocks_are_put_while_the_log_is_read_and_committed_in_order": "reads nothing",
    "test_what_comes_after_a_block_that_fails_is_not_committed": "reads nothing",
    "test_a_block_of_a_large_cache_is_small": "reads nothing",
}


def header(stream_id: int, base: int, end: int) -> EntryHeader:
    return EntryHeader(StreamId(stream_id), 3, base, end - base, 100, 0)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(1, 100, 105), (1, 105, 106)], "accept accept"),
        ([(1, 90, 95), (1, 95, 100), (1, 100, 101)], "drop drop accept"),
        ([(1, 101, 105)], "gap of 1: 100 101"),
        ([(1, 100, 105), (1, 106, 107)], "accept gap of 1: 105 106"),
        ([(1, 95, 105)], "gap of 1: 100 95"),
        ([(1, 100, 105), (1, 100, 105)], "accept gap of 1: 105 100"),
        ([(9, 0, 5), (9, 77, 78)], "drop drop"),
        ([(2, 0, 4), (1, 100, 101), (2, 4, 5)], "accept accept accept"),
        ([(3, 10, 40), (3, 40, 50), (3, 50, 51)], "drop drop accept"),
    ],
)
def test_which_records_are_needed(spans: list[tuple[int, int, int]], expected: str) -> None:
    """Stream 1 is committed to 100, 2 to 0, and 3 trimmed to 50 beyond what is committed; 9 is not open
    here."""
    opened = [(1, 0, 100), (2, 0, 0), (3, 50, 20)]
    offsets = ExpectedOffsets(OpenedStream(StreamId(key), 3, start, end) for key, start, end in opened)
    said = []
    for stream_id, base, end in spans:
        try:
            said.append("accept" if offsets.judge(header(stream_id, base, end), Recovered()) else "drop")
        except OffsetGap as gap:
            said.append(f"gap of {gap.stream_id}: {gap.expected} {gap.found}")
    assert " ".join(said) == expected


def test_what_lies_behind_a_hole_is_given_up_by_word_alone() -> None:
    """All of the stream from there on, told as one range; what overlaps tells of two histories, and is
    refused as ever."""
    opened = [OpenedStream(StreamId(1), 3, 0, 100), OpenedStream(StreamId(2), 3, 0, 0)]
    offsets, recovered = ExpectedOffsets(opened, is_loss_accepted=True), Recovered()
    spans = [(1, 100, 105), (1, 107, 110), (2, 0, 4), (1, 110, 111), (2, 4, 5)]
    said = [offsets.judge(header(*span), recovered) for span in spans]
    assert said == [True, False, True, False, True]
    assert recovered.behind_hole == {1: StreamRange(StreamId(1), 107, 111)}
    with pytest.raises(OffsetGap):
        offsets.judge(header(2, 3, 6), recovered)


async def crashed(world: World, *counts: int) -> None:
    """An engine wrote so many entries to streams 1, 2, ... and was killed."""
    engine = await world.started()
    for number, count in enumerate(counts):
        stream = open_stream(world, engine, number + 1)
        for _ in range(count):
            await append(stream, b"s%d-%03d" % (number + 1, stream.next_offset))
    await world.crash(engine)


def test_what_the_wal_holds_is_in_objects_afterwards() -> None:
    """After a kill every acknowledged entry is read from objects by the next engine, and each stream is
    closed at its end."""

    async def scenario() -> None:
        world = World()
        await crashed(world, 20, 5)
        engine = await world.started()
        assert (engine.recovered.accepted_count, engine.recovered.closed_count) == (25, 2)
        assert world.wal.used_bytes == 0
        assert sorted(world.catalog.closed) == [1, 2]
        for emptied in (False, True):
            if emptied:
                engine.drop_caches()
            for number, count in ((1, 20), (2, 5)):
                stream = open_stream(world, engine, number) if not emptied else engine._streams[number]
                assert (stream.next_offset, stream.confirmed_end, stream.committed_end) == (
                    count,
                    count,
                    count,
                )
                found = await stream.fetch(0, count, 1 << 20)
                assert [bytes(entry.data) for entry in found] == [
                    b"s%d-%03d" % (number, k) for k in range(count)
                ]
        assert engine.block_cache.reads_from_objects == 2, (
            "before, the log cache still held what was recovered"
        )
        await engine.close(1000)

    run(scenario())


def test_an_empty_wal_costs_nothing() -> None:
    """A first start, and a start after a clean stop, put no object, prepare no id and take no time."""

    async def scenario() -> None:
        world = World()
        await (await world.started()).close(1000)
        engine = await world.started()
        assert (world.store.calls, world.catalog.commits, world.catalog.prepared) == ([], [], {})
        assert asyncio.get_running_loop().time() == 0
        await engine.close(1000)

    run(scenario())


def test_a_large_wal_is_recovered_in_blocks() -> None:
    """Memory holds three blocks of what is not committed, one read and two put, which fit the log cache: the
    WAL goes piece by piece, in order."""

    async def scenario() -> None:
        world = World(settings={"log_cache_bytes": 30_000})
        engine = await world.started(log_cache_bytes=1 << 30)
        stream = open_stream(world, engine, 1)
        for number in range(100):
            await append(stream, b"%04d" % number * 200)
        await world.crash(engine)
        most = 0

        def look(verb: str) -> None:
            nonlocal most
            most = max(most, recovering.log_cache.held_bytes)

        world.catalog.before = look
        recovering = world.engine()
        await recovering.start()
        assert len(world.catalog.commits) > 5
        assert 2 * (30_000 // 4) < most <= 30_000
        assert recovering.log_cache.size_bytes <= 30_000
        stream = open_stream(world, recovering, 1)
        offset = 0
        while offset < 100:
            for entry in await stream.fetch(offset, 100, 5000):
                assert bytes(entry.data[:4]) == b"%04d" % offset
                offset = entry.end
        await recovering.close(1000)

    run(scenario())


class ReadWal(MemoryWal):
    """Counts what recovery has taken of it; others have the loop between two records."""

    taken_count = 0
    is_read = False  # still

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        self.is_read = True
        try:
            async for record in super().recover():
                await asyncio.sleep(0)
                self.taken_count += 1
                yield record
        finally:
            self.is_read = False


async def large_world() -> tuple[World, ReadWal]:
    """A crash has left a hundred records of 800 bytes; a log cache that takes forty of them recovers them in
    blocks of ten."""
    world = World(settings={"log_cache_bytes": 40_000})
    engine = await world.started(log_cache_bytes=1 << 30)
    stream = open_stream(world, engine, 1)
    for number in range(100):
        await append(stream, b"%04d" % number * 200)
    await world.crash(engine)
    wal = ReadWal(records=world.wal.records)
    wal.end = wal._confirmed_end = world.wal.end
    world.wal = wal
    return world, wal


def test_blocks_are_put_while_the_log_is_read_and_committed_in_order() -> None:
    """The store takes the second block while the first is on its way, and the third is read; then reading
    waits, for memory holds no more. The second is there first, and is committed second."""

    async def scenario() -> None:
        world, wal = await large_world()
        gates = [asyncio.get_running_loop().create_future() for _ in range(2)]
        began: list[int] = []

        def hold(operation: str, key: str) -> Awaitable[None] | None:
            began.append(wal.taken_count)
            return gates[len(began) - 1] if len(began) <= len(gates) else None

        world.store.fault = hold
        engine = world.engine()
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(60)
        assert len(began) == 2, "two blocks are put at a time"
        assert began[0] < 25, "the first of them once ten records are read, of a hundred, and a little later"
        assert 25 < wal.taken_count < 35
        assert engine.log_cache.held_bytes <= 40_000
        gates[1].set_result(None)
        await asyncio.sleep(60)
        assert (len(began), world.catalog.commits) == (2, []), "the first is to be committed first"
        gates[0].set_result(None)
        await starting
        spans = [span for commit in world.catalog.commits for span in commit.ranges]
        assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]
        assert spans[-1].end == 100
        await engine.close(1000)

    run(scenario())


def test_the_first_block_is_put_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the store does not wait for a whole one to be read; the others are as large as they may be."""

    async def scenario() -> None:
        world, _ = await large_world()
        engine = await world.started(log_cache_bytes=40_000)
        spans = [span.end - span.start for commit in world.catalog.commits for span in commit.ranges]
        assert spans[0] == 3
        assert min(spans[1:-1]) > 6
        stream = open_stream(world, engine, 1)
        assert (await stream.fetch(0, 3, 1 << 20))[-1].end == 3
        await engine.close(1000)

    monkeypatch.setattr("millrace.s3stream.recovery.FIRST_BLOCK_BYTES", 2_400)
    run(scenario())


def test_what_comes_after_a_block_that_fails_is_not_committed() -> None:
    """The first block's commit is refused for good: the start fails, nothing is reset, and the second block,
    whose object is there, is nobody's."""

    async def scenario() -> None:
        world, wal = await large_world()

        def refuse(verb: str) -> Awaitable[None] | None:
            if verb == "commit":
                raise StreamFenced(1, 0, 1)
            return None

        world.catalog.before = refuse
        engine = world.engine()
        with pytest.raises(StreamFenced) as refused:
            await engine.start()
        assert refused.tb is not None, "whose frames hold what they read from"
        assert not wal.is_read, "the log may be closed"
        puts = world.store.count("put")
        assert puts <= 2
        assert (world.catalog.commits, world.catalog.closed, len(wal.records)) == ([], [], 100)
        await asyncio.sleep(60)
        assert world.store.count("put") == puts, "nothing is put behind it"
        await engine.close(1000)

    run(scenario())


@pytest.mark.parametrize(
    ("cache_bytes", "threshold_bytes", "expected"),
    [
        (4 << 30, 3 << 30, (BLOCK_BYTES_MAX, 1 << 30)),
        (192 << 20, 500_000_000, (BLOCK_BYTES_MAX, 48 << 20)),
        (192 << 20, 8 << 20, (8 << 20, 48 << 20)),
    ],
)
def test_a_block_of_a_large_cache_is_small(
    cache_bytes: int, threshold_bytes: int, expected: tuple[int, int]
) -> None:
    """Of a log of a gigabyte a sixteenth is read before the first upload begins, whatever memory there is."""
    settings = StreamSettings(log_cache_bytes=cache_bytes, upload_threshold_bytes=threshold_bytes)
    bounds = recovery_bounds(settings)
    assert (bounds.payload_bytes, bounds.charged_bytes) == expected


def test_a_crash_during_recovery_is_recovered() -> None:
    """Recovery is ended at each of its calls to metadata and store in turn; the one that completes leaves
    every entry, once."""

    async def scenario() -> None:
        for stop_at in range(1, 22):
            world = World(settings={"log_cache_bytes": 6000})
            await crashed(world, 8, 3)
            world.catalog.before = world.store.fault = hang_at(stop_at)
            engine = world.engine()
            try:
                async with asyncio.timeout(1000):
                    await engine.start()
                stopped.append(False)
            except TimeoutError:
                stopped.append(True)
                world.wal = world.wal.crash()
            world.catalog.before = lambda *call: None
            world.store.fault = lambda *call: None
            engine = await world.started()
            for number, entries in ((1, 8), (2, 3)):
                stream = open_stream(world, engine, number)
                engine.drop_caches()
                found = await stream.fetch(0, 100, 1 << 20)
                assert [bytes(entry.data) for entry in found] == [
                    b"s%d-%03d" % (number, k) for k in range(entries)
                ]
            await engine.close(1000)
        assert stopped[:8] == [True] * 8
        assert not stopped[-1], "every call was met"

    stopped: list[bool] = []
    run(scenario())


def test_what_counts_is_settled_before_a_stream_is_closed() -> None:
    """What a dead owner has under way may land in the log until its reset, and then be taken or not, stream
    by stream, by who is still open."""

    async def scenario() -> None:
        world = World()
        await crashed(world, 8, 3)
        left: list[int] = []
        world.catalog.before = lambda verb: left.append(world.wal.used_bytes) if verb == "close" else None
        await (await world.started()).close(1000)
        assert left == [0, 0]

    run(scenario())


def hang_at(number: int) -> Callable[..., Awaitable[Any] | None]:
    """A fault that lets all calls pass but the one of this number."""
    calls = 0

    def meet(*call: str) -> Awaitable[Any] | None:
        nonlocal calls
        calls += 1
        return asyncio.sleep(1_000_000) if calls == number else None

    return meet


def test_committed_entries_are_not_uploaded_twice() -> None:
    """The crash came between a commit and the trim of the WAL: what is committed is dropped, exactly, and the
    rest uploaded."""

    async def scenario() -> None:
        world = World(is_auto=False)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for number in range(10):
            stream.append(1, [b"%d" % number])
        world.wal.confirm(6)
        records = list(world.wal.records)
        assert await engine.upload_all(100) is False, "four are not confirmed"
        engine.log_cache.seal()
        engine._submit_sealed()
        await asyncio.sleep(1)
        assert world.catalog.streams[1].end == 6
        world.wal.records = records
        world.wal.trim_point = 0
        world.wal.confirm()
        await world.crash(engine)
        engine = await world.started()
        assert (engine.recovered.committed_count, engine.recovered.accepted_count) == (6, 4)
        assert [(span.start, span.end) for commit in world.catalog.commits for span in commit.ranges] == [
            (0, 6),
            (6, 10),
        ]
        await engine.close(1000)

    run(scenario())


def test_a_hole_is_told_and_nothing_is_reset() -> None:
    """Entries that do not continue the committed end mean that something acknowledged is missing: the start
    fails, the WAL stays."""

    async def scenario() -> None:
        world = World()
        await crashed(world, 5, 5)
        del world.wal.records[2]  # offset 2 of stream 1
        engine = world.engine()
        with pytest.raises(Corrupt, match="stream 1 should go on at offset 2, and goes on at 3"):
            await engine.start()
        assert len(world.wal.records) == 9
        assert world.catalog.closed == []

    run(scenario())


def test_a_record_that_is_no_entry_is_told() -> None:
    """A payload that fails its own checksum, or has bytes behind it, is named by its place in the WAL."""

    async def scenario() -> None:
        for payload in (b"x" * 60, bytes(60), encode_entry_header(1, 0, 0, 1, [b"data"]) + b"data" + b"more"):
            world = World()
            world.catalog.open(1)
            world.wal = MemoryWal(records=[WalRecord(4096, 4096 + len(payload), memoryview(payload))])
            with pytest.raises(ObjectCorrupt) as raised:
                await world.engine().start()
            assert (raised.value.position >= 4096, raised.value.key) == (True, ""), "of no object"

    run(scenario())


def test_streams_of_others_are_left_alone() -> None:
    """Entries of streams that are not open here any more are dropped; one that another owner takes meanwhile
    is no error."""

    async def scenario() -> None:
        world = World()
        await crashed(world, 5, 5, 5)
        world.catalog.streams[1].is_open = False
        world.catalog.streams[1].end = 5  # closed elsewhere, after its entries were committed there
        world.catalog.delete(2)

        def fence(verb: str) -> None:
            if verb == "close":
                raise StreamFenced(3, 0, 1)

        world.catalog.before = fence
        engine = await world.started()
        assert engine.recovered.unknown_count == 10
        assert (engine.recovered.accepted_count, engine.recovered.closed_count) == (5, 0)
        await engine.close(1000)

    run(scenario())


def test_recovery_waits_for_the_store() -> None:
    """The store is away at the start: recovery waits, says why, and goes on by itself."""

    async def scenario() -> None:
        world = World()
        await crashed(world, 5)

        def away(operation: str, key: str) -> None:
            raise StoreUnavailable("503")

        world.store.fault = away
        engine = world.engine()
        starting = asyncio.create_task(engine.start())
        await asyncio.sleep(600)
        assert not starting.done()
        assert "503" in engine.upload_blocked_reason
        world.store.fault = lambda operation, key: None
        await starting
        assert engine.recovered.accepted_count == 5
        await engine.close(1000)

    run(scenario())


def test_unconfirmed_records_that_survive_stand() -> None:
    """Records that reached the disk and were never acknowledged are recovered: somebody may have been told of
    their offsets."""

    async def scenario() -> None:
        world = World(is_auto=False)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        for number in range(4):
            stream.append(1, [b"%d" % number])
        world.wal.confirm(1)
        await world.crash(engine, unconfirmed_count=2)
        engine = await world.started()
        stream = open_stream(world, engine, 1)
        assert shown(await stream.fetch(0, 9, 1 << 20)) == "[0,1)0 [1,2)1 [2,3)2"
        await engine.close(1000)

    run(scenario())
