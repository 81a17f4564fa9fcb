"""Times to records, through segments, index chunks, tails and batches, against a plain search."""

from __future__ import annotations

import asyncio
import random

import pytest

from millrace.broker.partitions.rewrite import CHUNK_RECORDS
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.time_lookup import Lookups, TimedOffset
from millrace.broker.partitions.unpacking import Unpacking
from millrace.protocol.batches import CRC_START, FROM_CRC, Codec, ProduceRules, seal_batch
from millrace.protocol.crc32c import crc32c
from millrace.protocol.record_walk import IS_COMPILED
from millrace.protocol.records import encode_record
from millrace.runtime.offload import InlineOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.stream import Stream
from tests.broker.others import Others
from tests.broker.partitions.build import MEMORY_BYTES, START_MS, Fixture, batch, run
from tests.broker.partitions.stopped import StoppedOffload, settle, turns

SETTINGS = TopicSettings(rules=ProduceRules(segment_bytes=2000), index_interval_bytes=150)
# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_nothing_is_found_in_an_empty_or_timeless_log": "reads nothing",
}


@pytest.mark.parametrize("seed", range(6))
def test_any_time_is_found_as_by_a_plain_search(seed: int) -> None:
    """Growing, equal and disordered timestamps, plain and compressed, in several segments, some checkpointed,
    some after a restart."""
    chance = random.Random(seed)

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        records: list[tuple[int, int]] = []
        now = 0
        for number in range(120):
            now += chance.choice([0, 1, 5]) if seed % 2 else chance.randrange(-20, 25)
            count, step = chance.randrange(1, 6), chance.choice([0, 2])
            codec = chance.choice([Codec.NONE, Codec.GZIP])
            base = len(records)
            records += [(base + index, START_MS + now + index * step) for index in range(count)]
            await fixture.produce(
                partition, batch(count, timestamp=START_MS + now, step_ms=step, codec=codec)
            )
            if number in (40, 80):
                await partition.save()
            if number == 60 and seed % 3 == 0:
                await fixture.crash()
                partition = await fixture.open(settings=SETTINGS, leader_epoch=1)
        assert len(partition.state.segments) > 3
        partition.raise_log_start(start := chance.randrange(30), START_MS)
        await fixture.settle()
        visible = [record for record in records if record[0] >= start]
        end = partition.high_watermark
        for target in range(min(time for _, time in records) - 2, max(time for _, time in records) + 3):
            expected = next((record for record in visible if record[1] >= target), None)
            assert await Lookups(fixture.unpacking).find_time(partition, target, end) == expected
            bounded = next((record for record in visible if record[1] >= target and record[0] < 100), None)
            assert await Lookups(fixture.unpacking).find_time(partition, target, 100) == bounded
        for latest_end in (end, end - 1, 230, 150, 100, 60, start + 1):
            below = [record for record in visible if record[0] < latest_end]
            expected = max(below, key=lambda record: (record[1], -record[0]))
            assert await Lookups(fixture.unpacking).find_latest(partition, latest_end) == expected

    run(scenario())


def test_a_lookup_reads_little_when_times_grow() -> None:
    """With everything checkpointed and caches emptied, a lookup in the middle reads the index and one
    stretch, not the log."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=TopicSettings(index_interval_bytes=4096))
        for number in range(300):
            await fixture.produce(partition, batch(1, timestamp=START_MS + number, value=b"v" * 10_000))
        await partition.save()
        await fixture.engine.upload_all(1000)
        fixture.engine.drop_caches()
        before = fixture.world.store.count("get")
        assert await Lookups(fixture.unpacking).find_time(partition, START_MS + 150, 300) == (
            150,
            START_MS + 150,
        )
        assert fixture.world.store.count("get") - before <= 8

    run(scenario())


@pytest.mark.parametrize("is_saved", [False, True])
def test_the_latest_is_found_beside_an_append_without_reading_the_log(
    is_saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not durable yet does not count, and the index tells of all below it, in memory or stored."""
    read: list[Entry] = []

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=TopicSettings(index_interval_bytes=4096))
        for number in range(100):
            await fixture.produce(partition, batch(1, timestamp=START_MS + number, value=b"v" * 10_000))
        if is_saved:
            await partition.save()
        fetch = Stream.fetch

        async def counted(stream: Stream, *asked: int) -> list[Entry]:
            found = await fetch(stream, *asked)
            read.extend(found if stream is partition.data else [])
            return found

        monkeypatch.setattr(Stream, "fetch", counted)
        fixture.world.wal.is_auto = False
        partition.append(batch(1, timestamp=START_MS + 100), 9, START_MS, 0, lambda _: None)
        assert await Lookups(fixture.unpacking).find_latest(partition, 100) == (99, START_MS + 99)
        assert 1 <= len(read) <= 3
        fixture.world.wal.confirm()
        fixture.world.wal.is_auto = True

    run(scenario())


@pytest.mark.parametrize("is_latest", [False, True])
def test_a_lookup_that_the_logs_start_overtakes_goes_on_behind_it(
    is_latest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention or DeleteRecords takes away what is being read: the answer is of what is left, and no
    error."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=TopicSettings(index_interval_bytes=1 << 30))
        for number in range(8):
            await fixture.produce(partition, batch(1, timestamp=START_MS + number // 7, value=bytes(200_000)))
        partition.raise_log_start(1, START_MS)
        await fixture.settle()
        fetch, asked_count = Stream.fetch, 0

        async def overtaken(stream: Stream, *asked: int) -> list[Entry]:
            nonlocal asked_count
            found = await fetch(stream, *asked)
            asked_count += stream is partition.data
            if asked_count == 1 and stream is partition.data:
                partition.raise_log_start(5, START_MS)
                await fixture.settle()
                await settle(lambda: partition.data.start == 5)
            return found

        monkeypatch.setattr(Stream, "fetch", overtaken)
        if is_latest:
            found = await Lookups(fixture.unpacking).find_latest(partition, 8)
        else:
            found = await Lookups(fixture.unpacking).find_time(partition, START_MS + 1, 8)
        assert found == (7, START_MS + 1)
        assert asked_count > 1

    run(scenario())


def test_the_latest_is_sought_among_what_is_left() -> None:
    """A largest timestamp below the log's start does not count, though its segment is still there."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for number, timestamp in enumerate((90, 70, 10, 80, 20)):
            await fixture.produce(partition, batch(2, timestamp=START_MS + timestamp))
            assert partition.log_end_offset == 2 * number + 2
        assert await Lookups(fixture.unpacking).find_latest(partition, 10) == (0, START_MS + 90)
        partition.raise_log_start(1, START_MS)
        await fixture.settle()
        assert await Lookups(fixture.unpacking).find_latest(partition, 10) == (1, START_MS + 90)
        partition.raise_log_start(2, START_MS)
        await fixture.settle()
        assert await Lookups(fixture.unpacking).find_latest(partition, 10) == (6, START_MS + 80)
        assert await Lookups(fixture.unpacking).find_latest(partition, 7) == (6, START_MS + 80)
        assert await Lookups(fixture.unpacking).find_latest(partition, 6) == (2, START_MS + 70)

    run(scenario())


def test_nothing_is_found_in_an_empty_or_timeless_log() -> None:
    """No records, or none with a timestamp: no answer for a time; for the latest the first record, as Apache
    Kafka answers."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        assert await Lookups(fixture.unpacking).find_time(partition, 0, 0) is None
        assert await Lookups(fixture.unpacking).find_latest(partition, 0) is None
        await fixture.produce(partition, batch(2, timestamp=-1))
        assert await Lookups(fixture.unpacking).find_time(partition, 0, 2) is None
        assert await Lookups(fixture.unpacking).find_latest(partition, 2) == (0, -1)
        partition.raise_log_start(1, START_MS)
        await fixture.settle()
        assert await Lookups(fixture.unpacking).find_latest(partition, 2) == (1, -1)

    run(scenario())


def test_a_batch_that_cannot_be_read_answers_by_its_header() -> None:
    """Records are not walked when they are produced, so a lookup may meet nonsense: it answers with the
    batch's start."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        lying = bytearray(batch(3, value=b"not gzip" * 3))
        lying[22] = Codec.GZIP
        lying[17:21] = crc32c(bytes(lying[CRC_START:])).to_bytes(4, "big")
        await fixture.produce(partition, batch(1, timestamp=START_MS - 10))
        await fixture.produce(partition, memoryview(lying))
        assert await Lookups(fixture.unpacking).find_time(partition, START_MS - 5, 4) == TimedOffset(
            1, START_MS
        )

    run(scenario())


def test_offsets_that_a_producer_made_up_are_not_told() -> None:
    """Of records that claim places before their batch or behind it, only one within the log is an answer."""
    claims = ((-3, 0), (1, 10), (900, 20))  # offset delta, milliseconds
    payload = b"".join(encode_record(delta, later_ms, None, b"v") for delta, later_ms in claims)
    body = FROM_CRC.pack(Codec.NONE, len(claims) - 1, START_MS, START_MS + 20, -1, -1, -1, len(claims))

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        await fixture.produce(partition, batch(1, timestamp=START_MS - 10))
        await fixture.produce(partition, memoryview(seal_batch(0, -1, body, payload)))
        assert await Lookups(fixture.unpacking).find_time(partition, START_MS, 4) == TimedOffset(
            2, START_MS + 10
        )
        assert await Lookups(fixture.unpacking).find_time(partition, START_MS + 15, 4) is None

    run(scenario())


def test_a_batch_above_the_bound_answers_by_its_header() -> None:
    """What may not be unpacked is as what cannot be read: its start for a time, its largest time for the
    latest."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        large = batch(2, timestamp=START_MS, step_ms=100, value=bytes(9 << 20), codec=Codec.ZSTD)
        await fixture.produce(partition, batch(1, timestamp=START_MS - 10))
        await fixture.produce(partition, large)
        assert await Lookups(fixture.unpacking).find_time(partition, START_MS + 50, 3) == TimedOffset(
            1, START_MS + 100
        )
        assert await Lookups(fixture.unpacking).find_latest(partition, 2) == TimedOffset(1, START_MS + 100)
        larger = Unpacking(InlineOffload(), 16 * (32 << 20), YieldQueue())
        assert await Lookups(larger).find_time(partition, START_MS + 50, 3) == TimedOffset(2, START_MS + 100)
        assert await Lookups(larger).find_latest(partition, 2) == TimedOffset(1, START_MS)

    run(scenario())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_many_records_are_looked_through_in_chunks(codec: Codec) -> None:
    """Others have the loop between any two thousand records, for a time as for the latest."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        count = 20 * CHUNK_RECORDS
        await fixture.produce(partition, batch(count, step_ms=1, codec=codec))
        async with Others() as others:
            found = await Lookups(fixture.unpacking).find_time(partition, START_MS + count - 2, count)
            assert found == (count - 2, START_MS + count - 2)
            assert others.turns >= 20
            others.turns = 0
            end = count - 5
            assert await Lookups(fixture.unpacking).find_latest(partition, end) == (
                end - 1,
                START_MS + end - 1,
            )
            assert others.turns >= 2 * 19

    run(scenario())


def test_lookups_unpack_one_large_batch_at_a_time() -> None:
    """However many partitions are asked about, the memory of one is in use; a small batch's is answered
    meanwhile."""

    async def scenario() -> None:
        fixture, offload = await Fixture().start(), StoppedOffload()
        unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        large = [await fixture.open(index) for index in range(8)]
        small = await fixture.open(8)
        for partition in large:
            await fixture.produce(partition, batch(1, value=bytes(3 << 20), codec=Codec.ZSTD))
        await fixture.produce(small, batch(1, value=bytes(3000), codec=Codec.ZSTD))
        lookups = [
            asyncio.ensure_future(Lookups(unpacking).find_time(partition, START_MS, 1)) for partition in large
        ]
        await settle(lambda: len(offload.held) == 8)
        await offload.go_on(8)  # tried with the room of a smaller one
        for _ in large:
            await settle(lambda: len(offload.held) == 1)
            await turns(20)
            assert len(offload.held) == 1
            assert await Lookups(unpacking).find_time(small, START_MS, 1) == (0, START_MS)
            await offload.go_on()
            if IS_COMPILED:
                await settle(lambda: len(offload.held) == 1)
                await offload.go_on()  # its walk
        assert {lookup.result() for lookup in lookups} == {TimedOffset(0, START_MS)}

    run(scenario())
