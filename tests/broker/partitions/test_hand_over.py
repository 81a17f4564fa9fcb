"""A partition that is sealed goes to its next leader while the store takes and gives nothing: its records,
its producers' states and its log start with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from millrace.broker.partitions.directory import OPENS_IN_FLIGHT
from millrace.broker.partitions.partition import Partition
from millrace.kraft.tables.features import OWED_RANGES_LEVEL
from millrace.protocol.batches import BatchHeader
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.metadata_records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from millrace.protocol.stream_records import LoseOwedRangeRecord, OwedRangeRecord, StreamRecord
from millrace.s3stream.ids import StreamId, StreamRange, StreamRole
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.storage import Storage
from tests.broker.broker_fixture import NODE, OTHER, BrokerFixture, topic_id
from tests.broker.partitions.build import START_MS, Fixture, batch, read, run
from tests.patience import PATIENCE_S, eventually
from tests.s3stream.build import World
from tests.s3stream.test_sealed_streams import NodeCatalog, Pair, until_uploaded

# Not run cold, and why.
HOT_ONLY = {
    "test_it_goes_on_without_the_store": "the store gives nothing",
    "test_it_goes_while_producers_wait_for_room": "the store gives nothing",
    "test_a_broker_that_is_gone_is_waited_for_in_nobodys_place": "reads nothing",
    "test_what_this_broker_owes_itself_is_waited_for_in_nobodys_place": "reads nothing",
    "test_it_comes_back_while_the_store_takes_nothing": "the store gives nothing",
    "test_streams_are_sealed_where_another_broker_leads": "looks at the catalog alone",
}
PRODUCER = 7


class FromOwner:
    """What the earlier leader owes, of any stream."""

    def __init__(self, pair: Pair, owner: Storage) -> None:
        self._streams, self._owner = pair.old.catalog.streams, owner
        self.asked: list[int] = []

    async def read(self, wanted: StreamRange, max_bytes: int) -> Sequence[Entry]:
        owed = self._streams[wanted.stream_id].owed.get("old")
        if owed is None:
            return []
        self.asked.append(wanted.stream_id)
        return await self._owner.read_sealed(wanted.stream_id, owed[2], wanted.start, max_bytes)


async def append(fixture: Fixture, partition: Partition, sequence: int) -> int:
    data = batch(1, timestamp=START_MS + sequence, producer_id=PRODUCER, sequence=sequence)
    return (await fixture.produce(partition, data)).base_offset


async def led(pair: Pair) -> tuple[Fixture, Fixture, Partition]:
    """Both leaders, and the earlier one's partition, of five records."""
    old, new = await Fixture(pair.old).start(), await Fixture(pair.new).start()
    partition = await old.open()
    for sequence in range(5):
        await append(old, partition, sequence)
    return old, new, partition


def test_it_goes_on_without_the_store() -> None:
    """Sequences go on where they were, a batch that is sent again is known, a gap is refused; the log start
    is as it was; small states are read from the owner's memory alone, and written to the next leader's
    log."""

    async def scenario() -> None:
        pair = Pair()
        old, new, partition = await led(pair)
        assert await old.engine.upload_all(60_000)
        for sequence in range(5, 12):
            await append(old, partition, sequence)
        partition.raise_log_start(2, START_MS)
        await old.settle()
        pair.away()
        await partition.close(is_sealing=True)
        owed = {key: one.owed for key, one in pair.old.catalog.streams.items()}
        assert owed[1] == {"old": (5, 12, 0)}
        assert all(not one.is_open for one in pair.old.catalog.streams.values())

        reader = new.engine.owed_reads.reader = FromOwner(pair, old.engine)
        gets_count = pair.new.store.count("get")
        async with asyncio.timeout(PATIENCE_S):
            following = await new.open(leader_epoch=1)
            assert (following.log_start_offset, following.high_watermark) == (2, 12)
            assert await append(new, following, 11) == 11, "it is there already"
            with pytest.raises(KafkaError) as refusal:
                await append(new, following, 13)
            assert refusal.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert await append(new, following, 12) == 12
            assert [BatchHeader(one).base_offset for one in await read(following, 6)] == list(range(6, 13))
        assert pair.new.store.count("get") == gets_count
        assert set(reader.asked) == {0, 1}, "small states and records"
        meta = following.meta.stream
        following.meta.rewrite()
        await new.settle()
        assert meta.start >= pair.new.catalog.streams[0].end - 1, "what the earlier leader has is not needed"
        assert meta.start == pair.new.catalog.streams[0].start
        pair.back()
        await until_uploaded(old.engine, StreamId(0), StreamId(1), StreamId(2))
        assert [BatchHeader(one).base_offset for one in await read(following, 2)] == list(range(2, 13))

    run(scenario())


def test_it_goes_while_producers_wait_for_room() -> None:
    """The log is full and the store takes nothing: nobody waits for a checkpoint. What it would have told is
    read from the records."""

    async def scenario() -> None:
        pair = Pair()
        old, new, partition = await led(pair)
        pair.away()
        waiting = old.engine.wait_for_room(old.engine.room_bytes + 1)
        await old.settle()
        assert not waiting.done()
        async with asyncio.timeout(PATIENCE_S):
            await partition.close(is_sealing=True)
            assert all(not one.is_open for one in pair.old.catalog.streams.values())
            new.engine.owed_reads.reader = FromOwner(pair, old.engine)
            following = await new.open(leader_epoch=1)
            assert await append(new, following, 4) == 4, "it is there already"
            assert await append(new, following, 5) == 5
        pair.back()

    run(scenario())


@pytest.mark.parametrize("level", [2, OWED_RANGES_LEVEL])
def test_streams_are_sealed_where_another_broker_leads(level: int) -> None:
    """And where all brokers know owed ranges; else they are closed when they are uploaded."""

    async def scenario() -> None:
        world = World()
        world.catalog = catalog = NodeCatalog("old")
        fixture = await BrokerFixture(world, level=level).start()
        fixture.make_topic("a")
        await Fixture.produce(fixture, await fixture.partition("a"), batch(1))
        fixture.publish(PartitionChangeRecord(0, topic_id("a"), leader=OTHER, isr=[OTHER], replicas=[OTHER]))
        await eventually(lambda: not any(one.is_open for one in catalog.streams.values()))
        assert bool(catalog.seals) == (level >= OWED_RANGES_LEVEL)

    run(scenario())


@pytest.mark.parametrize("is_back", [True, False])
def test_a_broker_that_is_gone_is_waited_for_in_nobodys_place(
    caplog: pytest.LogCaptureFixture, is_back: bool
) -> None:
    """It owes the small states that an opening reads: until it is back, or that is owed no more, its
    partitions keep no others from opening. The log says once what they wait for."""

    async def scenario() -> None:
        fixture = await BrokerFixture(level=OWED_RANGES_LEVEL).start()
        count = OPENS_IN_FLIGHT
        owed, other = fixture.make_topic("owed", count), fixture.make_topic("other")
        for number in range(count):
            fixture.publish(
                StreamRecord(number, owed, number, StreamRole.META, 0, OTHER, 0, 0, 0),
                OwedRangeRecord(number, 0, 5, OTHER, 0, bytes(16)),
            )
        fixture.publish(BrokerRegistrationChangeRecord(OTHER, OTHER, fenced=1))
        opening = [fixture.directory.get(owed, number) for number in range(count)]
        await eventually(lambda: len(fixture.directory._streams_changed) == count)
        async with asyncio.timeout(PATIENCE_S):
            await fixture.partition("other")
        assert fixture.opener.opened == [(other, 0, 0)]
        (told,) = [one.getMessage() for one in caplog.records if "wait for the write-ahead" in one.message]
        assert f"log of broker {OTHER}" in told
        if is_back:
            fixture.publish(BrokerRegistrationChangeRecord(OTHER, OTHER, fenced=-1))
        else:
            fixture.publish(*(LoseOwedRangeRecord(number, OTHER) for number in range(count)))
        for one in opening:
            assert isinstance(one, asyncio.Future)
            await asyncio.shield(one)

    run(scenario())


def test_it_comes_back_while_the_store_takes_nothing() -> None:
    """Where nothing of it is owed any more, since the next leader has written its small states anew and its
    records were deleted: the upload of what is left here is not waited for."""

    async def scenario() -> None:
        world = World()
        world.catalog = catalog = NodeCatalog("old")
        fixture = await BrokerFixture(world, level=OWED_RANGES_LEVEL).start()
        fixture.make_topic("a")
        await Fixture.produce(fixture, await fixture.partition("a"), batch(1))
        back = asyncio.Event()

        async def wait() -> None:
            await back.wait()

        world.store.fault = lambda operation, key: wait()
        fixture.move("a", 0, OTHER)
        await eventually(lambda: not any(one.is_open for one in catalog.streams.values()))
        await eventually(lambda: bool(fixture.engine.sealed))
        for stream in catalog.streams.values():
            stream.owed.clear()
            stream.start = stream.end
        fixture.move("a", 0, NODE)
        async with asyncio.timeout(PATIENCE_S):
            partition = await fixture.partition("a")
        assert (partition.log_start_offset, partition.high_watermark) == (1, 1)
        await Fixture.produce(fixture, partition, batch(1))
        back.set()
        assert await fixture.engine.upload_all(60_000)
        assert len(await read(partition)) == 1

    run(scenario())


def test_what_this_broker_owes_itself_is_waited_for_in_nobodys_place() -> None:
    """A partition has come back before what this broker's log owes of it is uploaded: the controller is not
    asked to open it, which would refuse, again and again, in the place of others."""

    async def scenario() -> None:
        fixture = await BrokerFixture(level=OWED_RANGES_LEVEL).start()
        count = OPENS_IN_FLIGHT
        back, other = fixture.make_topic("back", count), fixture.make_topic("other")
        for number in range(count):
            fixture.publish(
                StreamRecord(number, back, number, StreamRole.DATA, 0, OTHER, 0, 0, 0),
                OwedRangeRecord(number, 0, 5, NODE, 0, bytes(16)),
            )
        opening = [fixture.directory.get(back, number) for number in range(count)]
        await eventually(lambda: len(fixture.directory._streams_changed) == count)
        async with asyncio.timeout(PATIENCE_S):
            await fixture.partition("other")
        assert fixture.opener.opened == [(other, 0, 0)]
        fixture.publish(*(LoseOwedRangeRecord(number, NODE) for number in range(count)))
        for one in opening:
            assert isinstance(one, asyncio.Future)
            await asyncio.shield(one)

    run(scenario())
