"""A partition over the real engine: offsets, repeats, rewriting, checkpoints, crashes, the log's start."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from millrace.broker.partitions import partition as partition_module
from millrace.broker.partitions.partition import Appended, Partition
from millrace.broker.partitions.settings import TopicSettings, parse_settings
from millrace.broker.purgatory import CompletionQueue, Subscriber, Subscription
from millrace.protocol.batches import BatchHeader, Codec, ProduceRules, is_intact
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.records import iter_records
from tests.broker.partitions.build import START_MS, Fixture, batch, read, run
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_an_epoch_below_a_start_ends_where_it_ended_until_the_start_is_shown": "it reads nothing",
    "test_the_high_watermark_moves_when_batches_are_durable": "reads nothing",
    "test_a_refused_batch_takes_no_offset": "reads nothing",
    "test_a_repeat_in_flight_is_told_when_the_original_is_durable": "reads nothing",
    "test_what_grows_by_recompression_is_measured_again": "reads nothing",
    "test_a_compacted_topic_demands_keys": "reads nothing",
    "test_changed_settings_hold_from_the_next_batch_on": "reads nothing",
    "test_an_idle_partition_writes_nothing": "reads nothing",
    "test_a_close_finishes_a_deletion_that_is_under_way": "reads nothing",
    "test_a_segment_deleted_before_it_was_written_down_never_is": "reads nothing",
    "test_subscriptions_hear_of_bytes_starts_and_the_end": "reads nothing",
}


def start_now(partition: Partition, data: memoryview, told: list[str], name: str) -> Appended:
    return partition.append(data, 9, START_MS, 0, lambda _: told.append(name))


def refused(partition: Partition, data: memoryview, version: int = 9, now_ms: int = START_MS) -> int:
    with pytest.raises(KafkaError) as caught:
        partition.append(data, version, now_ms, 0, lambda _: None)
    return caught.value.code


def test_batches_get_offsets_in_order_and_are_read_back() -> None:
    """Each batch takes as many offsets as it has records; base offset and epoch are in its header, its
    checksum is whole."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(leader_epoch=7)
        offsets = [(await fixture.produce(partition, batch(count))).base_offset for count in (1, 5, 3)]
        assert offsets == [0, 1, 6]
        assert (partition.high_watermark, partition.log_end_offset, partition.last_stable_offset) == (9, 9, 9)
        views = await read(partition)
        headers = [BatchHeader(view) for view in views]
        assert [(h.base_offset, h.leader_epoch, h.record_count) for h in headers] == [
            (0, 7, 1),
            (1, 7, 5),
            (6, 7, 3),
        ]
        assert all(is_intact(view, header) for view, header in zip(views, headers, strict=True))
        assert [record.offset for view in views for record in iter_records(view)] == list(range(9))
        assert repr(partition) == "topic-0@7 [0, 9, 9)"

    run(scenario())


def test_the_high_watermark_moves_when_batches_are_durable() -> None:
    """Offsets are given at once; what is visible and acknowledged follows the WAL, in order."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        partition, told = await fixture.open(), []
        for name in "abc":
            start_now(partition, batch(2), told, name)
        assert (partition.high_watermark, partition.log_end_offset, told) == (0, 6, [])
        fixture.world.wal.confirm(2)
        assert (partition.high_watermark, partition.log_end_offset, told) == (4, 6, ["a", "b"])
        fixture.world.wal.confirm()
        assert (partition.high_watermark, told) == (6, ["a", "b", "c"])

    run(scenario())


def test_a_refused_batch_takes_no_offset() -> None:
    """After any refusal the next batch has the offset that the refused one would have had."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        broken = bytearray(batch(3))
        broken[-1] ^= 1
        assert refused(partition, memoryview(broken)) == ErrorCode.CORRUPT_MESSAGE
        assert refused(partition, batch(1, timestamp=START_MS + 3_600_001)) == ErrorCode.INVALID_TIMESTAMP
        await fixture.produce(partition, batch(1, producer_id=5, sequence=0))
        assert (
            refused(partition, batch(1, producer_id=5, sequence=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert (await fixture.produce(partition, batch(1))).base_offset == 1

    run(scenario())


def test_a_repeat_in_flight_is_told_when_the_original_is_durable() -> None:
    """Neither before it nor twice; and the log holds the batch once. A repeat of a durable batch is told at
    once."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        partition, told = await fixture.open(), []
        data = batch(4, producer_id=5, sequence=0)
        assert start_now(partition, data, told, "first") == Appended(0, -1, False)
        assert start_now(partition, data, told, "repeat") == Appended(0, -1, False)
        following = batch(1, producer_id=5, sequence=4)
        start_now(partition, following, told, "next")
        assert start_now(partition, following, told, "next again") == Appended(4, -1, False)
        assert start_now(partition, data, told, "repeat again") == Appended(0, -1, False)
        assert told == []
        fixture.world.wal.confirm(1)
        assert told == ["first", "repeat", "repeat again"]
        assert start_now(partition, data, told, "late repeat") == Appended(0, -1, True)
        fixture.world.wal.confirm()
        assert told == ["first", "repeat", "repeat again", "next", "next again"]
        assert partition.log_end_offset == 5

    run(scenario())


@pytest.mark.parametrize("is_clean", [True, False])
def test_repeats_are_known_after_a_restart(is_clean: bool) -> None:
    """Sequence windows survive a clean close and a crash alike: a batch acknowledged before is never appended
    again."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        sent = [batch(2, producer_id=5, sequence=2 * number) for number in range(8)]
        for data in sent[:4]:
            await fixture.produce(partition, data)
        await partition.save()
        for data in sent[4:]:
            await fixture.produce(partition, data)
        if is_clean:
            await partition.close()
        await fixture.crash()
        partition = await fixture.open(leader_epoch=1)
        for number, data in enumerate(sent[3:], 3):
            appended = await fixture.produce(partition, data)
            assert appended == Appended(2 * number, -1, True)
        assert partition.log_end_offset == 16
        assert refused(partition, sent[2]) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await fixture.produce(partition, batch(1, producer_id=5, sequence=16))).base_offset == 16

    run(scenario())


def test_a_batch_that_was_never_acknowledged_may_be_there_and_is_known() -> None:
    """A crash keeps some unconfirmed batches: their repeats are duplicates, and the others' are not."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        partition, told = await fixture.open(), []
        sent = [batch(1, producer_id=5, sequence=number) for number in range(6)]
        for data in sent[:3]:
            start_now(partition, data, told, "")
        fixture.world.wal.confirm()
        for data in sent[3:]:
            start_now(partition, data, told, "")
        await fixture.crash(unconfirmed_count=2)
        partition = await fixture.open(leader_epoch=1)
        assert partition.log_end_offset == 5
        assert start_now(partition, sent[4], told, "") == Appended(4, -1, True)
        assert start_now(partition, sent[5], told, "") == Appended(5, -1, False)

    run(scenario())


def test_the_brokers_time_is_written_and_told() -> None:
    """LogAppendTime: type bit, largest timestamp, checksum; a repeat is told the time of the first append."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=TopicSettings(rules=ProduceRules(is_append_time=True)))
        data = batch(3, timestamp=5, step_ms=10, producer_id=5, sequence=0)
        assert await fixture.produce(partition, data) == Appended(0, START_MS, False)
        fixture.clock.now_ms += 50
        assert await fixture.produce(partition, data) == Appended(0, START_MS, True)
        (view,) = await read(partition)
        header = BatchHeader(view)
        assert is_intact(view, header)
        assert header.max_timestamp == START_MS
        assert [record.timestamp for record in iter_records(view)] == [START_MS] * 3

    run(scenario())


@pytest.mark.parametrize("codec", list(Codec))
def test_a_topics_own_codec_is_imposed(codec: Codec) -> None:
    """Batches of any codec are stored in the topic's, with the same records; those that have it already are
    left alone."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=TopicSettings(codec=codec))
        for sent in Codec:
            await fixture.produce(partition, batch(20, codec=sent, value=b"some value " * 5, step_ms=3))
        views = await read(partition)
        assert {BatchHeader(view).codec for view in views} == {codec}
        assert all(is_intact(view, BatchHeader(view)) for view in views)
        expected = [(b"some value " * 5, START_MS + 3 * number) for number in range(20)]
        for view in views:
            assert [(record.value, record.timestamp) for record in iter_records(view)] == expected

    run(scenario())


def test_what_grows_by_recompression_is_measured_again() -> None:
    """A batch that fits as sent and not as stored is MESSAGE_TOO_LARGE, and records that cannot be read are
    INVALID_RECORD."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        settings = TopicSettings(rules=ProduceRules(batch_bytes_max=500), codec=Codec.NONE)
        partition = await fixture.open(settings=settings)
        assert (
            refused(partition, batch(100, codec=Codec.GZIP, value=b"a" * 50)) == ErrorCode.MESSAGE_TOO_LARGE
        )
        lying = bytearray(batch(1, codec=Codec.NONE, value=b"not gzip" * 3))
        lying[22] = Codec.GZIP
        from millrace.protocol.batches import CRC_START
        from millrace.protocol.crc32c import crc32c

        lying[17:21] = crc32c(bytes(lying[CRC_START:])).to_bytes(4, "big")
        assert refused(partition, memoryview(lying)) == ErrorCode.INVALID_RECORD

    run(scenario())


def test_a_compacted_topic_demands_keys() -> None:
    """A batch with a record without a key is refused whole, and the records to blame are named."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=parse_settings({"cleanup.policy": "compact"}))
        await fixture.produce(partition, batch(2, key=b"k"))
        with pytest.raises(KafkaError) as caught:
            partition.append(batch(2), 9, START_MS, 0, lambda _: None)
        assert caught.value.code == ErrorCode.INVALID_RECORD
        assert [index for index, _ in caught.value.errors] == [0, 1]  # type: ignore[attr-defined]

    run(scenario())


def test_changed_settings_hold_from_the_next_batch_on() -> None:
    """No reopening is needed for a new bound, and none for taking it back."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        before = partition.settings
        partition.settings = replace(before, rules=ProduceRules(batch_bytes_max=70))
        assert refused(partition, batch(5)) == ErrorCode.MESSAGE_TOO_LARGE
        partition.settings = before
        await fixture.produce(partition, batch(5))

    run(scenario())


def test_after_a_clean_close_nothing_is_read_again() -> None:
    """The checkpoint stands at the log's end; segments, epochs and windows are as they were."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        settings = TopicSettings(rules=ProduceRules(segment_bytes=400))
        partition = await fixture.open(settings=settings)
        for number in range(20):
            await fixture.produce(partition, batch(3, producer_id=1, sequence=3 * number))
        segments = repr(partition.state.segments)
        assert len(partition.state.segments) > 3
        await partition.close()
        assert refused(partition, batch(1)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await fixture.engine.close(1000)
        await fixture.crash()
        again = await fixture.open(settings=settings, leader_epoch=3)
        assert again.state.unsaved_bytes == 0
        assert repr(again.state.segments) == segments
        assert again.state.epochs.entries == ((0, 0), (3, 60))
        await again.close()
        await fixture.crash()
        meta = fixture.streams(0)
        assert next(iter(meta.values())).next_offset == 1

    run(scenario())


def test_an_idle_partition_writes_nothing() -> None:
    """Opening and closing a partition over and over leaves its streams as they are."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        for epoch in range(5):
            partition = await fixture.open(leader_epoch=epoch)
            await partition.close()
        assert [stream.next_offset for stream in fixture.streams(0).values()] == [0, 0, 0]

    run(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_point_keeps_what_was_acknowledged(seed: int) -> None:
    """Random produces, repeats, checkpoints, deletions and crashes against a model: acknowledged batches stay
    at their offsets, repeats are recognised, segments cover the log, epochs only grow, and the log's start
    never falls."""
    chance = random.Random(seed)

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        settings = TopicSettings(rules=ProduceRules(segment_bytes=600), index_interval_bytes=100)
        durable: dict[int, bytes] = {}
        sequence, log_start, sent = 0, 0, []
        for epoch in range(6):
            opening = asyncio.ensure_future(fixture.open(settings=settings, leader_epoch=epoch))
            while not opening.done():
                fixture.world.wal.confirm()
                await asyncio.sleep(0)
            partition = opening.result()
            assert partition.log_start_offset >= log_start
            end = partition.high_watermark
            assert not durable or end > max(durable)
            for offset, value in durable.items():
                if offset >= partition.log_start_offset:
                    (view, *_) = await read(partition, offset, 1)
                    assert (BatchHeader(view).base_offset, bytes(view[61:])) == (offset, value)
            segments = list(partition.state.segments)
            assert segments[0].base_offset <= partition.log_start_offset
            assert segments[-1].end_offset == end
            sent = [one for one in sent if one[1] < end]
            sequence = sent[-1][0] + 1 if sent else 0
            flying: list[int] = []
            for _ in range(chance.randrange(5, 60)):
                roll = chance.random()
                if roll < 0.6:
                    value = b"%d" % chance.randrange(10**9)
                    data = batch(
                        1, producer_id=9, sequence=sequence, value=value, timestamp=START_MS + sequence
                    )

                    def on_done(_: object, data: memoryview = data, place: list[int] = flying) -> None:
                        durable[place.pop(0)] = bytes(data[61:])

                    flying.append(partition.log_end_offset)
                    assert partition.append(data, 9, START_MS, 0, on_done).base_offset == flying[-1]
                    sent.append((sequence, flying[-1], data))
                    sequence += 1
                elif roll < 0.7 and sent:
                    for again, offset, data in sent[-5:]:
                        assert partition.append(data, 9, START_MS, 0, lambda _: None).base_offset == offset, (
                            again
                        )
                elif roll < 0.8:
                    fixture.spawn(partition.save())
                elif roll < 0.85:
                    offset = chance.randint(partition.log_start_offset, partition.high_watermark)
                    partition.raise_log_start(offset, START_MS)
                else:
                    fixture.world.wal.confirm(chance.randrange(1, 10))
                    await asyncio.sleep(0)
            log_start = partition.log_start_offset
            await fixture.crash(unconfirmed_count=chance.randrange(20))

    run(scenario())


def test_an_epoch_below_a_start_ends_where_it_ended_until_the_start_is_shown() -> None:
    """Where a leader epoch ended is told by the log's start only once that is shown: a reader of it learns of
    the change with it."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        partition = await fixture.open(leader_epoch=1)
        start_now(partition, batch(10), [], "")
        partition.raise_epoch(2)
        start_now(partition, batch(10), [], "")
        fixture.world.wal.confirm()
        partition.raise_log_start(15, START_MS)
        assert (partition.log_start_offset, partition.end_of_epoch(1)) == (0, (1, 10))
        fixture.world.wal.confirm()
        assert (partition.log_start_offset, partition.end_of_epoch(1)) == (15, (1, 15))

    run(scenario())


def test_deleted_records_stay_deleted() -> None:
    """The log's start is shown once durable, survives a crash, cuts the streams, and drops segments and
    epochs below it."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        settings = TopicSettings(rules=ProduceRules(segment_bytes=300))
        partition, told = await fixture.open(settings=settings), []
        for _ in range(10):
            start_now(partition, batch(10), [], "")
        fixture.world.wal.confirm()
        partition.raise_log_start(35, START_MS, lambda: told.append(35))
        partition.raise_log_start(33, START_MS, lambda: told.append(33))
        assert (partition.log_start_offset, told) == (0, [])
        fixture.world.wal.confirm()
        assert (partition.log_start_offset, told) == (35, [35, 33])
        partition.raise_log_start(20, START_MS, lambda: told.append(20))
        assert (partition.log_start_offset, told[-1]) == (35, 20)
        await fixture.settle()
        assert partition.data.start == 35
        assert next(iter(partition.state.segments)).base_offset <= 35
        await fixture.crash()
        partition = await fixture.open(settings=settings, leader_epoch=1)
        assert partition.log_start_offset == 35
        assert BatchHeader((await read(partition))[0]).base_offset == 30

    run(scenario())


def test_a_lost_trim_is_done_at_the_next_opening() -> None:
    """The log's start was durable and the streams were not cut when the process died: the next opening cuts
    them."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(leader_epoch=3)
        for _ in range(4):
            await fixture.produce(partition, batch(5))
        partition.raise_epoch(4)
        for _ in range(4):
            await fixture.produce(partition, batch(5))
        partition.meta.put(partition.state.raise_log_start(12, START_MS))
        await asyncio.sleep(0)
        await fixture.crash()
        assert fixture.world.catalog.streams[1].start == 0
        partition = await fixture.open(leader_epoch=5)
        await fixture.settle()
        assert partition.log_start_offset == partition.data.start == 12
        assert partition.state.epochs.entries == ((3, 12), (4, 20), (5, 40))

    run(scenario())


def test_a_close_finishes_a_deletion_that_is_under_way() -> None:
    """The streams are cut before they are given up: nobody else would do it before the partition's next
    opening."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for _ in range(4):
            await fixture.produce(partition, batch(5))
        await partition.save()
        await fixture.engine.upload_all(1000)
        fixture.world.wal.is_auto = False
        partition.raise_log_start(10, START_MS)
        closing = asyncio.ensure_future(partition.close())
        await asyncio.sleep(0.02)
        assert fixture.world.catalog.streams[1].is_open
        fixture.world.wal.is_auto = True
        fixture.world.wal.confirm()
        await closing
        stream = fixture.world.catalog.streams[1]
        assert (stream.is_open, stream.start) == (False, 10)

    run(scenario())


def test_a_close_writes_what_describes_the_log_before_its_streams_close() -> None:
    """Index entries that no checkpoint has yet go into the time stream first: then all streams are closed,
    and nothing is read again."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for number in range(100):
            await fixture.produce(partition, batch(10, timestamp=START_MS + number))
        assert partition.time.next_offset == 0
        await partition.close()
        assert partition.time.next_offset > 0
        assert [stream.is_open for stream in fixture.world.catalog.streams.values()] == [False] * 3
        again = await fixture.open(leader_epoch=1)
        assert again.state.unsaved_bytes == 0
        await again.close()

    run(scenario())


def test_a_segment_deleted_before_it_was_written_down_never_is() -> None:
    """A roll and a deletion between two checkpoints leave no value of the segment that is gone."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        settings = TopicSettings(rules=ProduceRules(segment_bytes=300), index_interval_bytes=10)
        partition = await fixture.open(settings=settings)
        for _ in range(10):
            await fixture.produce(partition, batch(10))
        partition.raise_log_start(55, START_MS)
        await partition.save()
        bases = [segment.base_offset for segment in partition.state.segments]
        assert list(partition.meta.of_kind(5)) == bases
        assert bases[0] > 0

    run(scenario())


def test_segments_that_do_not_fit_are_made_anew() -> None:
    """When stored segments leave a gap the log is read again from its start: windows, times and ends are
    right, nothing stale is left."""
    from millrace.broker.partitions.time_lookup import Lookups

    async def scenario() -> None:
        fixture = await Fixture().start()
        settings = TopicSettings(rules=ProduceRules(segment_bytes=300), index_interval_bytes=10)
        partition = await fixture.open(settings=settings)
        sent = [batch(1, producer_id=5, sequence=number, timestamp=START_MS + number) for number in range(40)]
        for data in sent:
            await fixture.produce(partition, data)
        await partition.save()
        before = [(s.base_offset, s.end_offset) for s in partition.state.segments]
        (_, second, *_) = partition.meta.of_kind(5)
        partition.meta.put({(5, second): None, (5, 7): partition.meta.of_kind(5)[second]})
        await fixture.settle()
        for round_number in range(2):
            await fixture.crash()
            partition = await fixture.open(settings=settings, leader_epoch=1 + round_number)
            assert [(s.base_offset, s.end_offset) for s in partition.state.segments] == before
            for data in sent[-5:]:
                assert (await fixture.produce(partition, data)).is_durable
            assert refused(partition, sent[-6]) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert await Lookups(fixture.unpacking).find_time(partition, START_MS + 17, 40) == (
                17,
                START_MS + 17,
            )
            await partition.save()
            assert [base for base, _ in before] == list(partition.meta.of_kind(5))
            assert bool(partition.state.unsaved_bytes) is False

    run(scenario())


def test_everything_may_be_deleted() -> None:
    """A log cut at its end is empty, goes on at the next offset, and is so after a crash and after a clean
    close."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for _ in range(3):
            await fixture.produce(partition, batch(5, producer_id=1, sequence=5 * _))
        partition.raise_log_start(15, START_MS)
        await fixture.settle()
        assert list(map(repr, [partition.state.segments])) == ["[15,15) 0B -1..-1 time [0,0)"]
        await fixture.crash()
        partition = await fixture.open(leader_epoch=1)
        assert (partition.log_start_offset, partition.high_watermark) == (15, 15)
        assert (await fixture.produce(partition, batch(5, producer_id=1, sequence=10))).base_offset == 10
        assert (await fixture.produce(partition, batch(5, producer_id=1, sequence=15))).base_offset == 15
        await partition.close()
        await fixture.crash()
        partition = await fixture.open(leader_epoch=2)
        assert (partition.log_start_offset, partition.high_watermark) == (15, 20)

    run(scenario())


@pytest.mark.parametrize(
    ("has_room", "is_saved"),
    [(True, False), (True, True), (False, False)],
    ids=["with room", "saved", "without room"],
)
def test_producers_go_on_after_their_records_are_deleted(has_room: bool, is_saved: bool) -> None:
    """Windows are saved before the batches that tell them leave the log. Where there was no room for that, a
    producer whose batches are all gone is unknown, as in Kafka, and may go on at any sequence: it is never
    refused for ever."""

    async def scenario() -> None:
        fixture = await Fixture(World(wal_bytes=1 << 17)).start()
        partition = await fixture.open()
        await fixture.produce(partition, batch(1, producer_id=1, sequence=0))
        await partition.save()
        for number in range(1, 6):
            await fixture.produce(partition, batch(1, producer_id=1, sequence=number))
        if is_saved:
            await partition.save()
            await fixture.produce(partition, batch(1))
        end = partition.high_watermark
        await fixture.engine.upload_all(1000)
        fixture.world.wal.capacity_bytes = 1 << (17 if has_room else 13)
        partition.raise_log_start(end, START_MS)
        await fixture.settle()
        fixture.world.wal.capacity_bytes = 1 << 17
        assert fixture.world.catalog.streams[1].start == end
        await fixture.crash()
        partition = await fixture.open(leader_epoch=1)
        assert partition.log_start_offset == partition.high_watermark == end
        if has_room:
            assert (await fixture.produce(partition, batch(1, producer_id=1, sequence=5))).base_offset == 5
        assert (await fixture.produce(partition, batch(1, producer_id=1, sequence=6))).base_offset == end
        assert (await fixture.produce(partition, batch(1, producer_id=1, sequence=7))).base_offset == end + 1

    run(scenario())


def test_checkpoints_come_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written beside the batches until enough were; then one checkpoint, and what a crash reads
    again is little."""
    monkeypatch.setattr(partition_module, "CHECKPOINT_BYTES", 20_000)
    monkeypatch.setattr(partition_module, "CHECKPOINT_RATIO", 1)

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for _ in range(18):
            await fixture.produce(partition, batch(1, value=b"v" * 1000))
        await fixture.settle()
        assert (partition.meta.stream.next_offset, partition.time.next_offset) == (0, 0)
        for number in range(100):
            await fixture.produce(partition, batch(1, value=b"v" * 1000, timestamp=START_MS + number))
        await fixture.settle()
        segment = partition.state.segments.open
        assert (segment.time_start, segment.time_end) == (0, partition.time.next_offset)
        assert 3 <= partition.meta.stream.next_offset <= 6
        assert partition.time.next_offset > 0
        await fixture.crash()
        partition = await fixture.open(leader_epoch=1)
        assert 0 < partition.state.unsaved_bytes < 40_000
        assert partition.high_watermark == 118

    run(scenario())


def test_index_entries_that_the_wal_is_too_small_for_are_given_up() -> None:
    """The rest of the checkpoint is written; a time is found all the same."""
    from millrace.broker.partitions.time_lookup import Lookups

    async def scenario() -> None:
        fixture = await Fixture().start()
        settings = TopicSettings(index_interval_bytes=0)
        partition = await fixture.open(settings=settings)
        for number in range(900):
            await fixture.produce(partition, batch(1, timestamp=START_MS + number))
        # of which the checkpoint's own bound is 12,500, and the entries 10,800
        fixture.world.wal.max_record_bytes = 14_000
        assert partition.state.checkpoint_bytes > 14_000
        await partition.save()
        assert (partition.meta.stream.next_offset, partition.time.next_offset) == (1, 0)
        await fixture.crash()
        partition = await fixture.open(leader_epoch=1, settings=settings)
        assert partition.state.unsaved_bytes == 0
        found = await Lookups(fixture.unpacking).find_time(partition, START_MS + 700, 900)
        assert found is not None
        assert found.offset == 700

    run(scenario())


@pytest.mark.parametrize("is_one_too_long", [True, False], ids=["too long for an entry", "no room"])
def test_a_checkpoint_that_the_wal_is_too_small_for_is_done_without(is_one_too_long: bool) -> None:
    """Nothing is written and nothing raised, at a close as well; the next opening reads the log again and
    knows all producers."""

    async def scenario() -> None:
        fixture = await Fixture(World(wal_bytes=1 << 17)).start()
        partition = await fixture.open()
        sent = [batch(1, producer_id=number, sequence=0) for number in range(400)]
        for data in sent:
            await fixture.produce(partition, data)
        if is_one_too_long:
            fixture.world.wal.max_record_bytes = 40_000
        assert partition.state.checkpoint_bytes > 60_000
        await partition.save()
        assert partition.meta.stream.next_offset == 0
        await partition.close()
        await fixture.crash()
        partition = await fixture.open(leader_epoch=1)
        assert [(await fixture.produce(partition, data)).base_offset for data in sent] == list(range(400))
        assert partition.log_end_offset == 400

    run(scenario())


def test_a_checkpoint_torn_between_its_streams_is_healed() -> None:
    """Index entries that no checkpoint names are passed over: a new segment begins at the checkpoint, and
    times are still found."""
    from millrace.broker.partitions.time_lookup import Lookups

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        settings = TopicSettings(index_interval_bytes=100)
        partition = await fixture.open(settings=settings)
        offsets = iter(range(10_000))

        def produce(count: int) -> None:
            for _ in range(count):
                number = next(offsets)
                partition.append(batch(1, timestamp=START_MS + number), 9, START_MS, 0, lambda _: None)

        produce(50)
        saving = asyncio.ensure_future(partition.save())
        await asyncio.sleep(0)
        fixture.world.wal.confirm()
        await saving
        produce(50)
        fixture.spawn(partition.save())
        await asyncio.sleep(0)
        await fixture.crash(
            unconfirmed_count=50 + 1
        )  # the batches and the index entries, not the checkpoint's values
        assert partition.time.next_offset > 0
        partition = await fixture.open(settings=settings, leader_epoch=1)
        assert partition.high_watermark == 100
        assert [(s.base_offset, s.end_offset) for s in partition.state.segments] == [(0, 50), (50, 100)]
        for number in (0, 10, 49, 50, 75, 99):
            found = await Lookups(fixture.unpacking).find_time(partition, START_MS + number, 100)
            assert found == (number, START_MS + number)

    run(scenario())


def test_subscriptions_hear_of_bytes_starts_and_the_end() -> None:
    """A delayed fetch completes when bytes are durable, hears of a new log start, and completes when the
    leader resigns."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        partition, woken = await fixture.open(), []
        subscriber, subscription = (
            Subscriber(CompletionQueue(asyncio.get_running_loop().call_soon)),
            Subscription(),
        )
        subscriber.add(subscription)
        subscription.subscribe(partition.subscriptions)
        subscription.countable_bytes = 10**6
        subscriber.mark_clean(subscription)
        data = batch(1)
        subscriber.delay(len(data) + 1, lambda: woken.append("bytes"))
        start_now(partition, data, [], "")
        fixture.world.wal.confirm()
        assert (subscriber.missing_bytes, list(subscriber.dirty)) == (1, [subscription])
        start_now(partition, data, [], "")
        await asyncio.sleep(0)
        assert woken == []
        fixture.world.wal.confirm()
        await asyncio.sleep(0)
        assert woken == ["bytes"]
        subscriber.mark_clean(subscription)
        partition.raise_log_start(1, START_MS)
        fixture.world.wal.confirm()
        assert list(subscriber.dirty) == [subscription]
        subscriber.delay(1, lambda: woken.append("end"))
        partition.raise_epoch(5)
        await asyncio.sleep(0)
        assert woken == ["bytes", "end"]
        assert partition.leader_epoch == 5
        assert partition.state.epochs.entries == ((0, 1), (5, 2))

    run(scenario())
