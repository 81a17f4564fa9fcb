"""Batches behind the last checkpoint are damaged or missing in the store when a partition opens: all else is read, and no producer is judged by
what is not known of it."""

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
from tests.broker.partitions.build import START_MS, House, batch, read, run
from tests.s3stream.build import CLUSTER_ID

DATA = 1
BEFORE, WITHIN, BEHIND = 7, 8, 9  # producers by where their last batch lies, seen from what is lost
LOST = range(4, 8)
END = 12


async def append(house: House, partition: Partition, producer_id: int, sequence: int) -> int:
    """One record, in the time of its offset."""
    time_ms = START_MS + partition.log_end_offset
    data = batch(1, timestamp=time_ms, producer_id=producer_id, sequence=sequence)
    return (await house.produce(partition, data)).base_offset


async def write(house: House) -> None:
    """Four records before a checkpoint, in one object; the next four, and the last four, in one each behind it. Then a kill.

    offset     0 1 2 3    4 5 6 7    8 9 10 11
    producer   7 8 9 7    8 8 9 8    9 9 9  9
    sequence   0 0 0 1    1 2 1 3    2 3 4  5
    """
    partition = await house.open()
    for producer_id, sequence in ((BEFORE, 0), (WITHIN, 0), (BEHIND, 0), (BEFORE, 1)):
        await append(house, partition, producer_id, sequence)
    await partition.save()
    assert await house.engine.upload_all(60_000)
    for producer_id, sequence in ((WITHIN, 1), (WITHIN, 2), (BEHIND, 1), (WITHIN, 3)):
        await append(house, partition, producer_id, sequence)
    assert await house.engine.upload_all(60_000)
    for sequence in range(2, 6):
        await append(house, partition, BEHIND, sequence)
    assert await house.engine.upload_all(60_000)
    await house.crash()


def lost_key(house: House) -> str:
    (hint,) = [hint for hint in house.world.catalog.streams[DATA].objects if hint.start == LOST.start]
    assert hint.end == LOST.stop
    return object_key(CLUSTER_ID, hint.object_id)


def damage(house: House, how: str) -> bytes:
    """What the object was."""
    key = lost_key(house)
    whole = house.world.store.objects[key]
    if how == "missing":
        del house.world.store.objects[key]
    elif how == "block":
        house.world.store.objects[key] = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
    else:
        house.world.store.objects[key] = whole[:-1] + bytes([whole[-1] ^ 1])
    return whole


async def code_of(house: House, partition: Partition, producer_id: int, sequence: int) -> int:
    with pytest.raises(KafkaError) as refusal:
        await append(house, partition, producer_id, sequence)
    return refusal.value.code


def check_offsets(partition: Partition) -> None:
    assert (partition.log_start_offset, partition.high_watermark, partition.log_end_offset) == (0, END, END)
    segments = list(partition.state.segments)
    assert (segments[0].base_offset, segments[-1].end_offset) == (0, END)


@pytest.mark.parametrize("how", ["missing", "block", "footer"])
def test_all_else_is_read_and_nothing_is_taken(how: str) -> None:
    """Without a word of the operator's: offsets stay, the readable ones are read, producers are told that it is the storage, also those without
    a sequence. Nothing was written: with the object as it was the next opening knows every producer."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        whole = damage(house, how)
        partition = await house.open()
        check_offsets(partition)
        assert partition.state.doubts == [(LOST.start, LOST.stop)]
        assert len(await read(partition, LOST.stop)) == END - LOST.stop
        assert len(await partition.data.fetch(0, LOST.start, 1 << 20)) == LOST.start
        with pytest.raises(Corrupt):
            await read(partition, LOST.start)
        for producer_id in (-1, BEFORE, WITHIN, BEHIND):
            assert await code_of(house, partition, producer_id, -1 if producer_id < 0 else 0) == (
                ErrorCode.KAFKA_STORAGE_ERROR
            )
        with pytest.raises(KafkaError):
            partition.append_own(bytes(batch()), START_MS, lambda _: None)
        await partition.save()
        await house.settle()
        house.world.store.objects[lost_key(house)] = whole
        await house.crash()
        partition = await house.open()
        check_offsets(partition)
        assert not partition.state.doubts
        assert await append(house, partition, WITHIN, 3) == 7
        assert await append(house, partition, WITHIN, 4) == END

    run(scenario(), is_virtual=True)


@pytest.mark.parametrize("how", ["missing", "block", "footer"])
def test_skipped_by_the_operators_word(how: str) -> None:
    """Producers that may have written there go on at any sequence, as ones that are forgotten; who wrote behind it is judged by that.
    It is given up for good: a crash later, without the setting, batches are taken."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        damage(house, how)
        partition = await house.open(is_skipping=True)
        check_offsets(partition)
        assert await append(house, partition, BEHIND, 5) == 11  # a repeat
        assert await code_of(house, partition, BEHIND, 7) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await append(house, partition, WITHIN, 4) == END
        assert await append(house, partition, BEFORE, 2) == END + 1
        await house.crash()
        partition = await house.open()
        assert not partition.state.doubts
        assert await append(house, partition, WITHIN, 4) == END
        assert await append(house, partition, WITHIN, 5) == END + 2
        assert len(await read(partition, LOST.stop)) == END + 3 - LOST.stop

    run(scenario(), is_virtual=True)


def test_producers_in_the_log_are_forgotten_too() -> None:
    """A checkpoint has a producer's state in the log; its later batches are lost: it goes on at any sequence, also after the next checkpoint."""

    async def scenario() -> None:
        house = await House().start()
        partition = await house.open()
        for sequence in range(4):
            await append(house, partition, WITHIN, sequence)
        await partition.cool_producers(0)
        await partition.save()
        assert await house.engine.upload_all(60_000)
        finding = partition.find_producer(WITHIN, "client")
        assert finding is not None
        await finding
        for sequence in range(4, 8):
            await append(house, partition, WITHIN, sequence)
        assert await house.engine.upload_all(60_000)
        for sequence in range(4):
            await append(house, partition, BEHIND, sequence)
        await house.crash()
        assert await house.engine.upload_all(60_000)
        damage(house, "missing")
        partition = await house.open(is_skipping=True)
        assert WITHIN not in partition.state.producers
        assert await append(house, partition, WITHIN, 9) == END
        assert await append(house, partition, BEHIND, 3) == 11
        await house.crash()
        partition = await house.open()
        assert await append(house, partition, WITHIN, 9) == END
        assert await append(house, partition, WITHIN, 10) == END + 1

    run(scenario(), is_virtual=True)


def test_what_a_checkpoint_tells_of_is_in_no_doubt() -> None:
    """The log's end was given up, so that headers from before the checkpoint are read again, and some cannot be: the checkpoint knows the producers
    of those, and batches are taken."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        partition = await house.open()
        for sequence in (6, 7):
            await append(house, partition, BEHIND, sequence)
        await partition.save()
        wal = house.world.wal
        wal.records = [one for one in wal.records if decode_entry(one.payload, 0)[0].base_offset != END + 1]
        damage(house, "missing")
        await house.crash()
        partition = await house.open(leader_epoch=1)
        assert (partition.log_end_offset, partition.state.doubts) == (END + 1, [])
        assert await append(house, partition, WITHIN, 3) == 7
        assert await append(house, partition, WITHIN, 4) == END + 1

    run(scenario(), is_virtual=True)


def test_a_lookup_by_time_never_takes_it_for_read() -> None:
    """A time that may lie there is not answered with a later record, also once the state is stored; when the object is back it is found, and so is
    the latest of all."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        whole = damage(house, "missing")
        partition = await house.open(is_skipping=True)
        await partition.save()
        await house.crash()
        partition = await house.open()
        lookups = Lookups(house.unpacking)
        assert await lookups.find_time(partition, START_MS + 3, END) == (3, START_MS + 3)
        with pytest.raises(Corrupt):
            await lookups.find_time(partition, START_MS + 6, END)
        house.world.store.objects[lost_key(house)] = whole
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
def test_retention_keeps_it_as_long_as_its_latest_record_may_ask_for(rules: ProduceRules, ahead_ms: int) -> None:
    """Its times are not known: it is kept as if its records were as late as the topic allows, and goes then, with what is before it."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        damage(house, "missing")
        house.clock.now_ms = START_MS + 1000
        partition = await house.open(is_skipping=True, settings=TopicSettings(rules=rules))
        segments, latest_ms = partition.state.segments, START_MS + 1000 + ahead_ms
        assert segments.plan_retention(latest_ms + 10, 10, -1, END) == LOST.start
        assert segments.plan_retention(latest_ms + 11, 10, -1, END) == END

    run(scenario(), is_virtual=True)


def test_what_the_store_does_not_give_now_is_no_damage() -> None:
    """The store fails for a while: the opening fails, and nothing is in doubt afterwards. Bytes that come damaged once come whole the next time."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        key, store = lost_key(house), house.world.store

        def is_away(operation: str, asked: str) -> None:
            if asked == key:
                raise Unavailable("away")

        store.fault = is_away
        with pytest.raises(Unavailable):
            await house.open(is_skipping=True)
        store.fault = lambda operation, asked: None
        await house.crash()
        store.calls.clear()
        whole = damage(house, "block")
        opening = asyncio.ensure_future(house.open(is_skipping=True))
        await asyncio.sleep(AGAIN_S / 2)
        assert ("get", key) in store.calls
        store.objects[key] = whole
        partition = await opening
        assert not partition.state.doubts
        assert await append(house, partition, WITHIN, 3) == 7

    run(scenario(), is_virtual=True)


def test_all_of_it_may_be_lost() -> None:
    """Nothing behind the checkpoint can be read: the log ends where it ended."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        for hint in house.world.catalog.streams[DATA].objects:
            if hint.start >= LOST.start:
                del house.world.store.objects[object_key(CLUSTER_ID, hint.object_id)]
        partition = await house.open(is_skipping=True)
        check_offsets(partition)
        assert await append(house, partition, BEHIND, 0) == END

    run(scenario(), is_virtual=True)


def test_batches_are_taken_once_it_is_deleted_or_read() -> None:
    """A refused batch has a look taken, one at a time: the owner is told when it can be read, or was deleted."""

    async def scenario() -> None:
        house = await House().start()
        await write(house)
        damage(house, "missing")
        partition = await house.open()
        told: list[str] = []
        partition.on_readable = lambda: told.append("readable")
        for _ in range(3):
            assert await code_of(house, partition, BEFORE, 2) == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(house.tasks) == 1
        await house.settle()
        assert not told
        partition.raise_log_start(LOST.stop, START_MS)
        await house.settle()
        assert await code_of(house, partition, BEFORE, 2) == ErrorCode.KAFKA_STORAGE_ERROR
        await house.settle()
        assert told == ["readable"]
        await house.crash()
        partition = await house.open()
        assert (partition.log_start_offset, partition.log_end_offset) == (LOST.stop, END)
        assert await append(house, partition, BEHIND, 6) == END

    run(scenario(), is_virtual=True)
