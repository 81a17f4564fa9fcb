"""The directory: opening on first use, following the metadata, quiet openings, closing."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.partitions import directory as directory_module
from millrace.broker.partitions import producers as producers_module
from millrace.broker.partitions.directory import OPENS_IN_FLIGHT
from millrace.broker.partitions.partition import LOOK_AGAIN_S, Partition
from millrace.broker.partitions.producers import BATCH_BYTES, PRODUCER_BYTES, Producers
from millrace.broker.partitions.state import KEY_PRODUCERS
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.tables.features import MILLRACE_VERSION
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
)
from millrace.protocol.stream_records import StreamRecord
from millrace.runtime.objectstore import ObjectMissing, StoreFull
from millrace.runtime.scheduling.semaphore import Owner
from millrace.s3stream.errors import StreamFenced
from millrace.s3stream.ids import StreamId
from millrace.s3stream.left_open import CLOSED_AT_ONCE
from tests.broker.broker_fixture import NODE, OTHER, BrokerFixture, parts_of, topic_id
from tests.broker.partitions.build import START_MS, batch, run
from tests.calls import calls_below
from tests.patience import PATIENCE_S, eventually
from tests.s3stream.build import World


def refused(fixture: BrokerFixture, name: str, index: int = 0) -> int:
    with pytest.raises(KafkaError) as caught:
        fixture.directory.get(topic_id(name), index)
    return caught.value.code


async def failed(fixture: BrokerFixture, name: str) -> int:
    with pytest.raises(KafkaError) as caught:
        await fixture.partition(name)
    return caught.value.code


def test_a_partition_opens_once_however_many_ask() -> None:
    """All who ask while it opens get the same future, and the same partition afterwards."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        futures = [fixture.directory.get(topic_id("a"), 0) for _ in range(3)]
        assert futures[0] is futures[1] is futures[2]
        assert not fixture.directory.is_open(topic_id("a"), 0)
        assert isinstance(futures[0], asyncio.Future)
        partition = await asyncio.shield(futures[0])
        assert fixture.directory.get(topic_id("a"), 0) is partition
        assert fixture.directory.opened() == [partition]
        assert fixture.opener.opened == [(topic_id("a"), 0, 0)]

    run(scenario())


def test_what_is_not_led_here_is_refused() -> None:
    """Each reason has its code, and the controller is not asked."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", leader=2)
        fixture.make_topic("nobodys", leader=-1)
        assert refused(fixture, "none") == ErrorCode.UNKNOWN_TOPIC_ID
        assert refused(fixture, "a", 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refused(fixture, "a") == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused(fixture, "nobodys") == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert fixture.opener.opened == []

    run(scenario())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (StreamFenced(-1, 0), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (RuntimeError("a defect"), ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_an_opening_that_fails_is_not_tried_again_at_once(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits is told; for a while who asks is told the same without a try; then it is tried again."""
    monkeypatch.setattr("millrace.broker.partitions.directory.RETRY_MS", 20)

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.opener.error = error
        assert await failed(fixture, "a") == code
        fixture.opener.error = None
        assert refused(fixture, "a") == code
        assert len(fixture.opener.opened) == 1
        await asyncio.sleep(0.03)
        assert isinstance(await fixture.partition("a"), Partition)

    run(scenario())


def test_a_change_of_leader_forgives_a_failed_opening() -> None:
    """What went wrong in one epoch says nothing of the next."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.opener.error = KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        assert await failed(fixture, "a") == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fixture.opener.error = None
        fixture.move("a", 0, NODE)
        assert (await fixture.partition("a")).leader_epoch == 1

    run(scenario())


def test_the_metadata_may_change_while_a_partition_opens() -> None:
    """It ends in the state that the newest image says: a later epoch, another configuration, not here, or not
    at all."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        for name in ("renewed", "configured", "moved", "deleted"):
            fixture.make_topic(name)
        fixture.opener.gate = asyncio.Event()
        futures = {
            n: fixture.directory.get(topic_id(n), 0) for n in ("renewed", "configured", "moved", "deleted")
        }
        await asyncio.sleep(0)
        fixture.move("renewed", 0, NODE)
        fixture.set_config("configured", "max.message.bytes", "777")
        fixture.move("moved", 0, 2)
        fixture.delete_topic("deleted")
        fixture.opener.gate.set()
        found = dict(
            zip(futures, await asyncio.gather(*futures.values(), return_exceptions=True), strict=True)
        )  # type: ignore[arg-type]
        assert found["renewed"].leader_epoch == 1
        assert found["configured"].settings.rules.batch_bytes_max == 777
        assert found["moved"].code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found["deleted"].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await fixture.settle()
        catalog, streams = fixture.world.catalog, fixture.opener.streams_of(topic_id("moved"), 0)
        assert len(streams) == 3
        await eventually(lambda: not any(catalog.streams[stream].is_open for stream in streams))

    run(scenario())


def test_the_configuration_may_change_while_a_partition_is_read() -> None:
    """As late as that: it opens with the newest all the same."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.produce({("a", 0): batch(1)})
        await fixture.crash()
        fixture.engine.drop_caches()
        is_read, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            is_read.set()
            await go_on.wait()

        fixture.world.store.fault = lambda operation, key: wait()
        opening = asyncio.ensure_future(fixture.partition("a"))
        async with asyncio.timeout(PATIENCE_S):
            await is_read.wait()
            fixture.set_config("a", "max.message.bytes", "777")
            go_on.set()
            assert (await opening).settings.rules.batch_bytes_max == 777

    run(scenario())


def test_what_goes_wrong_in_a_partition_that_is_deleted_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Its objects go while it opens: whoever waits is told that it is not there, and nothing is logged as an
    error."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        for name in ("deleted", "moved", "kept"):
            fixture.make_topic(name)
        fixture.opener.gate = asyncio.Event()
        fixture.opener.error = ObjectMissing("(stream 13, offset 4)")
        waiting = {name: fixture.directory.get(topic_id(name), 0) for name in ("deleted", "moved", "kept")}
        await asyncio.sleep(0)
        fixture.delete_topic("deleted")
        fixture.move("moved", 0, 2)
        fixture.opener.gate.set()
        found = dict(
            zip(waiting, await asyncio.gather(*waiting.values(), return_exceptions=True), strict=True)
        )  # type: ignore[arg-type]
        assert found["deleted"].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert found["moved"].code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found["kept"].code == ErrorCode.KAFKA_STORAGE_ERROR

    run(scenario())
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [text.partition(":")[0] for text in told] == ["kept-0 does not open"]


def test_what_is_led_here_no_more_counts_as_nothing_that_failed() -> None:
    """A partition that moves or is deleted while it opens is nothing to be told of, nor to be remembered."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.opener.gate = asyncio.Event()
        for name in ("moved", "deleted"):
            fixture.make_topic(name)
            fixture.directory.get(topic_id(name), 0)
        await asyncio.sleep(0)
        fixture.move("moved", 0, OTHER)
        fixture.delete_topic("deleted")
        fixture.opener.gate.set()
        await eventually(lambda: not fixture.directory._opening)
        assert fixture.directory.failed_count == 0

    run(scenario())


def test_a_partition_that_leaves_hands_over_and_may_come_back() -> None:
    """Its streams are closed with everything in them before they are opened again; nothing is lost on the
    way."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.produce({("a", 0): batch(5)})
        before = await fixture.partition("a")
        fixture.move("a", 0, 2)
        assert not before.is_led
        fixture.move("a", 0, NODE)
        after = await fixture.partition("a")
        assert after is not before
        assert (after.leader_epoch, after.high_watermark, after.state.unsaved_bytes) == (2, 5, 0)
        assert after.state.epochs.entries == ((0, 0), (2, 5))

    run(scenario())


def test_a_partition_opens_anew_once_its_damage_is_repaired() -> None:
    """While batches that no checkpoint tells of are missing it takes none, and stays as it is; put back, the
    next refused batch has it opened again, and its producer is known."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()

        async def produce(sequence: int) -> tuple[int, int]:
            response = await fixture.produce({("a", 0): batch(5, producer_id=7, sequence=sequence)})
            part = parts_of(response)["a", 0]
            return part.error_code, part.base_offset

        fixture.make_topic("a")
        assert await produce(0) == (0, 0)
        assert await fixture.engine.upload_all(60_000)
        await fixture.crash()
        store = fixture.world.store
        away, store.objects = store.objects, {}
        before = await fixture.partition("a")
        for _ in range(2):
            assert (await produce(5))[0] == ErrorCode.KAFKA_STORAGE_ERROR
            await asyncio.sleep(2 * LOOK_AGAIN_S)
            assert await fixture.partition("a") is before
        assert fixture.directory.failed_count == 1
        store.objects = away
        assert (await produce(5))[0] == ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(2 * LOOK_AGAIN_S)
        assert not before.is_led
        assert await produce(5) == (0, 5)
        assert await produce(0) == (0, 0)
        assert fixture.directory.failed_count == 0

    run(scenario(), is_virtual=True)


def test_a_deleted_topic_is_dropped_and_its_name_may_be_used_again() -> None:
    """Handles are void at once; the topic of the same name and another id begins at nothing."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        await fixture.produce({("a", 0): batch(5)})
        before = await fixture.partition("a")
        fixture.delete_topic("a")
        assert not before.is_led
        assert fixture.directory.topic_named("a") is None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert before.is_fenced
        fixture.make_topic("a")
        assert fixture.directory.topic_named("a") is not None

    run(scenario())


def test_partitions_added_to_a_topic_are_found() -> None:
    """An image with more partitions of a topic that is open already."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.partition("a", 0)
        assert refused(fixture, "a", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        record = PartitionRecord(
            1, topic_id("a"), [NODE], [NODE], leader=NODE, leader_epoch=0, partition_epoch=0
        )
        fixture.publish(record)
        assert (await fixture.partition("a", 1)).index == 1

    run(scenario())


def test_broker_wide_defaults_reach_open_partitions() -> None:
    """A dynamic default of all brokers holds for topics without a value of their own."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        fixture.make_topic("b", retention_ms="5")
        for name in "ab":
            await fixture.partition(name)
        fixture.publish(ConfigRecord(ResourceType.BROKER, "", "log.retention.ms", "9"))
        found = [partition.settings.retention_ms for partition in fixture.directory.opened()]
        assert found == [9, 5]

    run(scenario())


def test_a_quiet_opening_ends_unless_somebody_wants_it() -> None:
    """A partition opened for retention is closed after it; one that a client came for meanwhile stays."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        quiet = fixture.directory.get(topic_id("a"), 0, is_retention_only=True)
        wanted = fixture.directory.get(topic_id("a"), 1, is_retention_only=True)
        assert isinstance(quiet, asyncio.Future)
        assert isinstance(wanted, asyncio.Future)
        one, other = await asyncio.gather(quiet, wanted)
        assert len(fixture.directory.opened()) == 2
        await fixture.produce({("a", 1): batch()})
        await fixture.directory.release_quiet()
        assert fixture.directory.opened() == [other]
        assert (one.is_led, other.is_led) == (False, True)
        assert (await fixture.partition("a", 0)) is not one

    run(scenario())


async def full_store(fixture: BrokerFixture) -> None:
    """Every put is refused from now on, and the engine knows."""

    def refuse(operation: str, key: str) -> None:
        if operation in ("put", "start_multipart"):
            raise StoreFull(key, "507")

    fixture.world.store.fault = refuse


def test_a_stop_does_not_wait_for_a_store_that_is_away() -> None:
    """The log is full, so that no checkpoint fits, and a partition that moved away waits for its last upload:
    both are left to the next start."""

    async def scenario() -> None:
        fixture = await BrokerFixture(log_cache_bytes=16 << 20).start()
        fixture.make_topic("a", 2)
        await fixture.produce({("a", 1): batch()})
        partition = await fixture.partition("a", 0)
        await full_store(fixture)
        fixture.move("a", 1, OTHER)
        data = bytes(batch(value=b"x" * 100_000))
        while fixture.engine.room_bytes > 2 * len(data):
            partition.append_own(data, START_MS, lambda append: None)
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert fixture.directory._closing
        assert not partition.state.is_saved
        began = asyncio.get_running_loop().time()
        await fixture.directory.close(7_000)
        assert asyncio.get_running_loop().time() - began == pytest.approx(7, abs=0.1)
        assert not fixture.directory._closing
        end = partition.data.next_offset
        await fixture.engine.close(20_000)
        fixture.world.store.fault = lambda operation, key: None
        fixture.world.wal = fixture.world.wal.crash()
        await fixture.start()
        assert (await fixture.partition("a", 0)).data.next_offset == end

    run(scenario(), is_virtual=True)


def test_closes_that_wait_keep_no_opening_from_its_turn() -> None:
    """As many partitions as may open at once wait for their former selves' last upload, and are wanted back;
    another one opens."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", OPENS_IN_FLIGHT)
        fixture.make_topic("b")
        for index in range(OPENS_IN_FLIGHT):
            await fixture.produce({("a", index): batch()})
        await full_store(fixture)
        for index in range(OPENS_IN_FLIGHT):
            fixture.move("a", index, OTHER)
        for index in range(OPENS_IN_FLIGHT):
            fixture.move("a", index, NODE)
            fixture.directory.get(topic_id("a"), index)
        await asyncio.sleep(1)
        assert len(fixture.directory._closing) == OPENS_IN_FLIGHT
        async with asyncio.timeout(1):
            await fixture.partition("b")
        fixture.world.store.fault = lambda operation, key: None
        async with asyncio.timeout(PATIENCE_S):
            for index in range(OPENS_IN_FLIGHT):
                assert (await fixture.partition("a", index)).data.next_offset == 1

    run(scenario(), is_virtual=True)


def test_one_who_wants_many_partitions_opened_keeps_nobody_waiting() -> None:
    """Another's own partition opens with the next, and one that both want in the turn of whoever comes
    first."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 10 * OPENS_IN_FLIGHT)
        fixture.make_topic("b")
        many, other = Owner(1, "10.0.0.1"), Owner(2, "10.0.0.1")
        for index in range(10 * OPENS_IN_FLIGHT):
            fixture.directory.get(topic_id("a"), index, many)
        await asyncio.sleep(0)
        last = 10 * OPENS_IN_FLIGHT - 1
        wanted = [("b", 0), ("a", last)]
        for name, index in wanted:
            fixture.directory.get(topic_id(name), index, other)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(
                [
                    opening
                    for name, index in wanted
                    if isinstance(
                        opening := fixture.directory.get(topic_id(name), index, other), asyncio.Future
                    )
                ]
            )
        assert all(fixture.directory.is_open(topic_id(name), index) for name, index in wanted)
        assert len(fixture.directory.opened()) < 3 * OPENS_IN_FLIGHT
        async with asyncio.timeout(PATIENCE_S):
            for index in range(last):
                await fixture.partition("a", index)
        assert len(fixture.directory.opened()) == 10 * OPENS_IN_FLIGHT + 1

    run(scenario())


def test_closing_leaves_a_checkpoint_of_everything() -> None:
    """After it and the engine's close the next start reads nothing again."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 5)
        for index in range(5):
            await fixture.produce({("a", index): batch(3)})
        await fixture.directory.close()
        await fixture.engine.close(1000)
        assert not any(stream.is_open for stream in fixture.world.catalog.streams.values())
        await fixture.crash()
        for index in range(5):
            partition = await fixture.partition("a", index)
            assert (partition.high_watermark, partition.state.unsaved_bytes) == (3, 0)

    run(scenario())


def test_producers_of_many_partitions_go_to_the_log() -> None:
    """Also where each partition has one: memory has a bound for all of them."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World()).start()
        memory = fixture.directory.memory
        memory.hot_bytes_max = 4 * (PRODUCER_BYTES + BATCH_BYTES)
        fixture.make_topic("a", 20)
        for index in range(20):
            await fixture.produce({("a", index): batch(producer_id=5, sequence=0)})
        await asyncio.sleep(3)
        assert memory.hot_bytes <= memory.hot_bytes_max
        for index in range(20):
            repeated = await fixture.produce({("a", index): batch(producer_id=5, sequence=0)})
            assert repeated.responses[0].partition_responses[0].base_offset == 0, "its state is read back"

    run(scenario(), is_virtual=True)


def test_at_level_0_the_build_before_finds_every_producer_that_it_would_remember(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads checkpoints alone and knows nothing of producers in the log: at millrace.version 0 as many as
    it remembers stay out of the log, however crowded memory is; once version 1 is finalized they go there."""
    monkeypatch.setattr(directory_module, "HOT_MIN_AT_LEVEL_0", 30)
    monkeypatch.setattr(producers_module, "HOT_MAX", 8)
    monkeypatch.setattr(producers_module, "BLOCK_ROWS", 4)

    async def scenario() -> None:
        fixture = await BrokerFixture(World(), level=0).start()
        memory = fixture.directory.memory
        fixture.make_topic("a")
        for producer_id in range(40):
            await fixture.produce({("a", 0): batch(producer_id=producer_id, sequence=0)})
        memory.hot_bytes_max = 4 * (PRODUCER_BYTES + BATCH_BYTES)
        memory.on_crowded()
        partition = await fixture.partition("a")
        await eventually(lambda: partition.state.producers.hot_count <= 34)
        assert partition.state.producers.hot_count >= 30
        stored = partition.state.checkpoint(40, 0, 0).values[KEY_PRODUCERS]
        assert stored is not None
        read = Producers.restore(stored, 0)
        assert all(producer_id in read for producer_id in range(10, 40))
        fixture.publish(FeatureLevelRecord(MILLRACE_VERSION, 1))
        memory.on_crowded()
        assert fixture.directory._cooling is not None
        await fixture.directory._cooling
        assert memory.hot_bytes <= memory.hot_bytes_max

    run(scenario())


def test_a_close_elsewhere_is_looked_at_by_who_waits_for_it_alone() -> None:
    """Of a thousand partitions that wait for another broker to close them each opens when its own streams are
    closed; what a change costs does not grow with how many others wait."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        count = 1_000
        made = fixture.make_topic("a", count)
        fixture.publish(*(StreamRecord(n, made, n, 1, 0, OTHER, 1, 0, 0) for n in range(count)))
        opening = [fixture.directory.get(made, index) for index in range(count)]
        await eventually(lambda: len(fixture.directory._streams_changed) == count)
        assert not fixture.opener.opened
        with calls_below(500 * count):
            for n in range(count - 1):
                fixture.publish(StreamRecord(n, made, n, 1, 0, OTHER, 0, 0, 0))
        assert list(fixture.directory._streams_changed) == [(made, count - 1)]
        for future in opening[:-1]:
            assert isinstance(future, asyncio.Future)
            await asyncio.shield(future)
        fixture.move("a", count - 1, OTHER)
        assert isinstance(opening[-1], asyncio.Future)
        with pytest.raises(KafkaError):
            await asyncio.shield(opening[-1])

    run(scenario())


def test_partitions_that_go_to_others_are_closed_in_turns() -> None:
    """Four hundred with one change: their checkpoints are written some an iteration of the loop, so that it
    does not stand still meanwhile; and none is left open."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        count = 400
        made = fixture.make_topic("a", count)
        await fixture.produce({("a", index): batch() for index in range(count)})
        metas = [partition.meta.stream for partition in fixture.directory.opened()]
        before = [stream.next_offset for stream in metas]

        def written() -> int:
            return sum(stream.next_offset != end for stream, end in zip(metas, before, strict=True))

        fixture.publish(*(PartitionChangeRecord(index, made, leader=OTHER) for index in range(count)))
        assert not fixture.directory.opened()
        most = last = 0
        while last < count:
            await asyncio.sleep(0)
            most, last = max(most, written() - last), written()
        assert most <= directory_module.CLOSES_PER_CHUNK
        await eventually(lambda: not fixture.directory._closing)
        assert not fixture.engine._streams

    run(scenario())


def test_what_was_saved_is_closed_without_a_write() -> None:
    """A broker that ends saves while it leads its partitions still: they take batches on, and those that took
    none since have nothing to write or upload when they go to another."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        made = fixture.make_topic("a", 3)
        await fixture.produce({("a", index): batch() for index in range(3)})
        await fixture.directory.save()
        await fixture.produce({("a", 2): batch()})
        assert await fixture.engine.upload_all(1000)
        partitions = fixture.directory.opened()
        assert [partition.has_to_upload for partition in partitions] == [False, False, True]
        ends = [partition.meta.stream.next_offset for partition in partitions]
        fixture.publish(*(PartitionChangeRecord(index, made, leader=OTHER) for index in range(3)))
        await eventually(lambda: not fixture.directory._closing)
        after = [partition.meta.stream.next_offset for partition in partitions]
        assert [end - before for end, before in zip(after, ends, strict=True)] == [0, 0, 1]

    run(scenario())


def test_what_was_left_open_is_kept_by_who_opens_it() -> None:
    """This node's process before had two partitions open. Who opens one of them takes its streams from those
    that are closed in the background; where that is refused they are given back."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        made = fixture.make_topic("a", 2)
        held = asyncio.get_running_loop().create_future()
        fixture.world.catalog.before = lambda verb: asyncio.shield(held) if verb == "close" else None
        ids = [[1000, 1001, 1002], [2000, 2001, 2002]]  # the first as the opener gives them
        fixture.publish(
            *(
                StreamRecord(stream_id, made, index, role, 0, NODE, 1, 0, 0)
                for index in range(2)
                for role, stream_id in enumerate(ids[index])
            )
        )
        others = range(5000, 5000 + CLOSED_AT_ONCE)
        left = fixture.engine.left_open
        left.begin([(StreamId(one), 0) for one in (*others, *ids[0], *ids[1])])
        await fixture.partition("a", 0)
        assert len(left) == len(others) + 3
        assert [one for one in (*ids[0], *ids[1]) if one in left._left] == ids[1]
        fixture.opener.error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        with pytest.raises(KafkaError):
            await fixture.partition("a", 1)
        assert [one for one in ids[1] if one in left._left] == ids[1]
        held.set_result(None)
        await eventually(lambda: not len(left))

    run(scenario())


def test_after_closing_nothing_opens() -> None:
    """A request that comes late is sent elsewhere."""

    async def scenario() -> None:
        fixture = await BrokerFixture(World()).start()
        fixture.make_topic("a", 2)
        await fixture.produce({("a", 0): batch()})
        await fixture.directory.close()
        assert refused(fixture, "a", 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = await fixture.produce({("a", 0): batch()})
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario())


def test_ten_thousand_idle_partitions_cost_nothing() -> None:
    """Topics that nobody uses are not opened, remembered or visited by changes of others."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        for number in range(20):
            fixture.make_topic(f"t{number}", 500)
        await fixture.produce({("t3", 7): batch()})
        fixture.set_config("t5", "retention.ms", "1")
        assert len(fixture.directory.opened()) == 1
        assert len(fixture.opener.opened) == 1

    run(scenario())
