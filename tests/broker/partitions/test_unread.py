"""Batches behind the last checkpoint are damaged or missing in the store when a partition opens: all else is
read, and no producer is judged by what is not known of it."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.replaying import AGAIN_S, AHEAD_MS_MAX
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.time_lookup import Lookups
from millrace.protocol.batches import ProduceRules
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.errors import Corrupt, Unavailable
from millrace.s3stream.objects.format import decode_entry
from millrace.s3stream.objects.keys import object_key
from tests.broker.partitions.build import START_MS, Fixture, batch, read, run
from tests.s3stream.build import CLUSTER_ID

DATA = 1
BEFORE, WITHIN, BEHIND = 7, 8, 9  # producers by where their last batch lies, seen from what is lost
LOST = range(4, 8)
END = 12


async def append(fixture: Fixture, partition: Partition, producer_id: int, sequence: int) -> int:
    """One record, in the time of its offset."""
    time_ms = START_MS + partition.log_end_offset
    data = batch(1, timestamp=time_ms, producer_id=producer_id, sequence=sequence)
    return (await fixture.produce(partition, data)).base_offset


async def write(fixture: Fixture) -> None:
    """Four records before a checkpoint, in one object; the next four, and the last four, in one each behind
    it. Then a kill.

    offset     0 1 2 3    4 5 6 7    8 9 10 11
    producer   7 8 9 7    8 8 9 8    9 9 9  9
    sequence   0 0 0 1    1 2 1 3    2 3 4  5
    """
    partition = await fixture.open()
    for producer_id, sequence in ((BEFORE, 0), (WITHIN, 0), (BEHIND, 0), (BEFORE, 1)):
        await append(fixture, partition, producer_id, sequence)
    await partition.save()
    assert await fixture.engine.upload_all(60_000)
    for producer_id, sequence in ((WITHIN, 1), (WITHIN, 2), (BEHIND, 1), (WITHIN, 3)):
        await append(fixture, partition, producer_id, sequence)
    assert await fixture.engine.upload_all(60_000)
    for sequence in range(2, 6):
        await append(fixture, partition, BEHIND, sequence)
    assert await fixture.engine.upload_all(60_000)
    await fixture.crash()


def lost_key(fixture: Fixture) -> str:
    (hint,) = [hint for hint in fixture.world.catalog.streams[DATA].objects if hint.start == LOST.start]
    assert hint.end == LOST.stop
    return object_key(CLUSTER_ID, hint.object_id)


def damage(fixture: Fixture, how: str) -> bytes:
    """What the object was."""
    key = lost_key(fixture)
    whole = fixture.world.store.objects[key]
    if how == "missing":
        del fixture.world.store.objects[key]
    elif how == "block":
        fixture.world.store.objects[key] = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    else:
        fixture.world.store.objects[key] = whole[:-1] + bytes([whole[-1] ^ 1])
    return whole


async def code_of(fixture: Fixture, partition: Partition, producer_id: int, sequence: int) -> int:
    with pytest.raises(KafkaError) as refusal:
        await append(fixture, partition, producer_id, sequence)
    return refusal.value.code


def check_offsets(partition: Partition) -> None:
    assert (partition.log_start_offset, partition.high_watermark, partition.log_end_offset) == (0, END, END)
    segments = list(partition.state.segments)
    assert (segments[0].base_offset, segments[-1].end_offset) == (0, END)


@pytest.mark.parametrize("how", ["missing", "block", "footer"])
def test_all_else_is_read_and_nothing_is_taken(how: str) -> None:
    """Without a word of the operator's: offsets stay, the readable ones are read, producers are told that it
    is the storage, also those without a sequence. Nothing was written: with the object as it was the next
    opening knows every producer."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        whole = damage(fixture, how)
        partition = await fixture.open()
        check_offsets(partition)
        assert partition.state.doubts == [(LOST.start, LOST.stop)]
        assert len(await read(partition, LOST.stop)) == END - LOST.stop
        assert len(await partition.data.fetch(0, LOST.start, 1 << 20)) == LOST.start
        with pytest.raises(Corrupt):
            await read(partition, LOST.start)
        for producer_id in (-1, BEFORE, WITHIN, BEHIND):
            assert await code_of(fixture, partition, producer_id, -1 if producer_id < 0 else 0) == (
                ErrorCode.KAFKA_STORAGE_ERROR
            )
        with pytest.raises(KafkaError):
            partition.append_own(bytes(batch()), START_MS, lambda _: None)
        await partition.save()
        await fixture.settle()
        fixture.world.store.objects[lost_key(fixture)] = whole
        await fixture.crash()
        partition = await fixture.open()
        check_offsets(partition)
        assert not partition.state.doubts
        assert await append(fixture, partition, WITHIN, 3) == 7
        assert await append(fixture, partition, WITHIN, 4) == END

    run(scenario(), is_virtual=True)


@pytest.mark.parametrize("how", ["missing", "block", "footer"])
def test_skipped_by_the_operators_word(how: str) -> None:
    """Producers that may have written there go on at any sequence, as ones that are forgotten; who wrote
    behind it is judged by that. It is given up for good: a crash later, without the setting, batches are
    taken."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        damage(fixture, how)
        partition = await fixture.open(is_skipping=True)
        check_offsets(partition)
        assert await append(fixture, partition, BEHIND, 5) == 11  # a repeat
        assert await code_of(fixture, partition, BEHIND, 7) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await append(fixture, partition, WITHIN, 4) == END
        assert await append(fixture, partition, BEFORE, 2) == END + 1
        await fixture.crash()
        partition = await fixture.open()
        assert not partition.state.doubts
        assert await append(fixture, partition, WITHIN, 4) == END
        assert await append(fixture, partition, WITHIN, 5) == END + 2
        assert len(await read(partition, LOST.stop)) == END + 3 - LOST.stop

    run(scenario(), is_virtual=True)


def test_producers_in_the_log_are_forgotten_too() -> None:
    """A checkpoint has a producer's state in the log; its later batches are lost: it goes on at any sequence,
    also after the next checkpoint."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for sequence in range(4):
            await append(fixture, partition, WITHIN, sequence)
        await partition.cool_producers(0)
        await partition.save()
        assert await fixture.engine.upload_all(60_000)
        finding = partition.find_producer(WITHIN, "client")
        assert finding is not None
        await finding
        for sequence in range(4, 8):
            await append(fixture, partition, WITHIN, sequence)
        assert await fixture.engine.upload_all(60_000)
        for sequence in range(4):
            await append(fixture, partition, BEHIND, sequence)
        await fixture.crash()
        assert await fixture.engine.upload_all(60_000)
        damage(fixture, "missing")
        partition = await fixture.open(is_skipping=True)
        assert WITHIN not in partition.state.producers
        assert await append(fixture, partition, WITHIN, 9) == END
        assert await append(fixture, partition, BEHIND, 3) == 11
        await fixture.crash()
        partition = await fixture.open()
        assert await append(fixture, partition, WITHIN, 9) == END
        assert await append(fixture, partition, WITHIN, 10) == END + 1

    run(scenario(), is_virtual=True)


def test_what_a_checkpoint_tells_of_is_in_no_doubt() -> None:
    """The log's end was given up, so that headers from before the checkpoint are read again, and some cannot
    be: the checkpoint knows the producers of those, and batches are taken."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        partition = await fixture.open()
        for sequence in (6, 7):
            await append(fixture, partition, BEHIND, sequence)
        await partition.save()
        wal = fixture.world.wal
        wal.records = [one for one in wal.records if decode_entry(one.payload, 0)[0].base_offset != END + 1]
        damage(fixture, "missing")
        await fixture.crash()
        partition = await fixture.open(leader_epoch=1)
        assert (partition.log_end_offset, partition.state.doubts) == (END + 1, [])
        assert await append(fixture, partition, WITHIN, 3) == 7
        assert await append(fixture, partition, WITHIN, 4) == END + 1

    run(scenario(), is_virtual=True)


def test_a_lookup_by_time_never_takes_it_for_read() -> None:
    """A time that may lie there is not answered with a later record, also once the state is stored; when the
    object is back it is found, and so is the latest of all."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        whole = damage(fixture, "missing")
        partition = await fixture.open(is_skipping=True)
        await partition.save()
        await fixture.crash()
        partition = await fixture.open()
        lookups = Lookups(fixture.unpacking)
        assert await lookups.find_time(partition, START_MS + 3, END) == (3, START_MS + 3)
        with pytest.raises(Corrupt):
            await lookups.find_time(partition, START_MS + 6, END)
        fixture.world.store.objects[lost_key(fixture)] = whole
        for number in range(END):
            assert await lookups.find_time(partition, START_MS + number, END) == (number, START_MS + number)
        assert await lookups.find_latest(partition, END) == (11, START_MS + 11)

    run(scenario(), is_virtual=True)


@pytest.mark.parametrize(
    ("rules", "ahead_ms"),
    [
        (ProduceRules(), 3_600_000),
        (ProduceRules(timestamp_after_max_ms=1 << 62), AHEAD_MS_MAX),
        (ProduceRules(is_append_time=True), 0),
    ],
)
def test_retention_keeps_it_as_long_as_its_latest_record_may_ask_for(
    rules: ProduceRules, ahead_ms: int
) -> None:
    """Its times are not known: it is kept as if its records were as late as the topic allows, and goes then,
    with what is before it."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        damage(fixture, "missing")
        fixture.clock.now_ms = START_MS + 1000
        partition = await fixture.open(is_skipping=True, settings=TopicSettings(rules=rules))
        segments, latest_ms = partition.state.segments, START_MS + 1000 + ahead_ms
        assert segments.plan_retention(latest_ms + 10, 10, -1, END) == LOST.start
        assert segments.plan_retention(latest_ms + 11, 10, -1, END) == END

    run(scenario(), is_virtual=True)


def test_what_the_store_does_not_give_now_is_no_damage() -> None:
    """The store fails for a while: the opening fails, and nothing is in doubt afterwards. Bytes that come
    damaged once come whole the next time."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        key, store = lost_key(fixture), fixture.world.store

        def is_away(operation: str, asked: str) -> None:
            if asked == key:
                raise Unavailable("away")

        store.fault = is_away
        with pytest.raises(Unavailable):
            await fixture.open(is_skipping=True)
        store.fault = lambda operation, asked: None
        await fixture.crash()
        store.calls.clear()
        whole = damage(fixture, "block")
        opening = asyncio.ensure_future(fixture.open(is_skipping=True))
        await asyncio.sleep(AGAIN_S / 2)
        assert ("get", key) in store.calls
        store.objects[key] = whole
        partition = await opening
        assert not partition.state.doubts
        assert await append(fixture, partition, WITHIN, 3) == 7

    run(scenario(), is_virtual=True)


def test_all_of_it_may_be_lost() -> None:
    """Nothing behind the checkpoint can be read: the log ends where it ended."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        for hint in fixture.world.catalog.streams[DATA].objects:
            if hint.start >= LOST.start:
                del fixture.world.store.objects[object_key(CLUSTER_ID, hint.object_id)]
        partition = await fixture.open(is_skipping=True)
        check_offsets(partition)
        assert await append(fixture, partition, BEHIND, 0) == END

    run(scenario(), is_virtual=True)


def test_batches_are_taken_once_it_is_deleted_or_read() -> None:
    """A refused batch has a look taken, one at a time: the owner is told when it can be read, or was
    deleted."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        damage(fixture, "missing")
        partition = await fixture.open()
        told: list[str] = []
        partition.on_readable = lambda: told.append("readable")
        for _ in range(3):
            assert await code_of(fixture, partition, BEFORE, 2) == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(fixture.tasks) == 1
        await fixture.settle()
        assert not told
        partition.raise_log_start(LOST.stop, START_MS)
        await fixture.settle()
        assert await code_of(fixture, partition, BEFORE, 2) == ErrorCode.KAFKA_STORAGE_ERROR
        await fixture.settle()
        assert told == ["readable"]
        await fixture.crash()
        partition = await fixture.open()
        assert (partition.log_start_offset, partition.log_end_offset) == (LOST.stop, END)
        assert await append(fixture, partition, BEHIND, 6) == END

    run(scenario(), is_virtual=True)
