"""Produce where a batch takes long to rewrite: others are served, order is kept, bounds hold, and nothing is
left of what is given up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.handlers.produce import REWRITES_AT_ONCE, Produce
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.unpacking import Unpacking
from millrace.protocol.batches import BatchHeader, Codec, is_intact
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.records import iter_records
from millrace.runtime.offload import ThreadOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture, connection, parts_of, produce_request
from tests.broker.partitions.build import MEMORY_BYTES, START_MS, batch, read, run
from tests.broker.partitions.stopped import StoppedOffload, settle, turns

MIB = 1 << 20
SLOW = b"slow" * 5000


async def stopped_fixture(**configs: str) -> tuple[BrokerFixture, StoppedOffload]:
    """Topic "a" is kept in gzip, or as `configs` say; "plain" as it comes. Their partitions are open."""
    fixture, offload = BrokerFixture(), StoppedOffload()
    fixture.unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
    await fixture.start()
    fixture.make_topic("a", 2, **(configs or {"compression_type": "gzip"}))
    fixture.make_topic("plain")
    for name, index in (("a", 0), ("a", 1), ("plain", 0)):
        await fixture.partition(name, index)
    return fixture, offload


def send(fixture: BrokerFixture, *data: tuple[str, int, memoryview], version: int = 9, **fields: Any) -> Any:
    request = produce_request({(name, index): view for name, index, view in data}, version, **fields)
    return fixture.begin(fixture.produce_handler, 0, version, request)


async def answer(fixture: BrokerFixture, outcome: Any, version: int = 9) -> dict[tuple[str, int], Any]:
    return parts_of(await fixture.finish(outcome, 0, version))


def assert_nothing_left(fixture: BrokerFixture) -> None:
    assert not fixture.produce_handler._queue
    assert fixture.produce_handler._rewrites.held_count == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "rewrite"]


def test_others_are_served_while_a_batch_is_rewritten() -> None:
    """Another connection's request, another partition's, and a small one's are answered before it; what goes
    on elsewhere takes no turn here."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        slow = send(fixture, ("a", 0, batch(1, value=SLOW)))
        await settle(lambda: bool(offload.held))
        other = produce_request({("plain", 0): batch(1, value=SLOW)}, 9)
        begun = fixture.begin(fixture.produce_handler, 0, 9, other, to=connection(2))
        assert (await answer(fixture, begun))["plain", 0].error_code == 0
        assert (await answer(fixture, send(fixture, ("a", 1, batch(1)))))["a", 1].error_code == 0
        await turns(50)
        assert not slow.done()
        await offload.go_on()
        assert (await answer(fixture, slow))["a", 0].base_offset == 0
        assert_nothing_left(fixture)

    run(scenario())


def test_a_quick_batch_behind_a_slow_one_comes_after_it() -> None:
    """Offsets are given in the order of the wire, whichever of several is ready first."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        outcomes = [
            send(fixture, ("a", 0, batch(2, value=SLOW))),
            send(fixture, ("a", 0, batch(3))),
            send(fixture, ("a", 0, batch(1, value=SLOW)), ("a", 1, batch(1))),
            send(fixture, ("a", 1, batch(1)), ("a", 0, batch(1))),
        ]
        await turns(50)
        assert not any(outcome.done() for outcome in outcomes)
        assert len(offload.held) == 1
        await offload.go_on(2)
        found = [await answer(fixture, outcome) for outcome in outcomes]
        assert [parts["a", 0].base_offset for parts in found] == [0, 2, 5, 6]
        assert [parts["a", 1].base_offset for parts in found[2:]] == [0, 1]
        stored = await read(await fixture.partition("a"))
        assert [BatchHeader(view).record_count for view in stored] == [2, 3, 1, 1]
        assert all(
            is_intact(view, BatchHeader(view)) and BatchHeader(view).codec == Codec.GZIP for view in stored
        )
        assert_nothing_left(fixture)

    run(scenario())


@pytest.mark.parametrize("version", [3, 13])
@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_time_is_imposed(codec: str, version: int) -> None:
    """As on the short way: records, the producer's fields and the broker's time, also zstd for a producer
    that cannot speak it."""

    async def scenario() -> None:
        fixture = BrokerFixture()
        offload = ThreadOffload()
        fixture.unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        await fixture.start()
        fixture.make_topic(
            "a", compression_type=codec, message_timestamp_type="LogAppendTime", max_message_bytes="9000000"
        )
        for sequence, value in ((0, SLOW), (3, b"v"), (6, SLOW * 100)):
            data = batch(3, key=b"k", value=value, codec=Codec.SNAPPY, producer_id=5, sequence=sequence)
            part = parts_of(await fixture.produce({("a", 0): data}, version)).popitem()[1]
            assert (part.error_code, part.base_offset, part.log_append_time_ms) == (0, sequence, START_MS)
        for sequence, view in zip(
            (0, 3, 6), await read(await fixture.partition("a"), max_bytes=32 * MIB), strict=True
        ):
            header = BatchHeader(view)
            assert is_intact(view, header)
            assert (header.base_sequence, header.producer_id) == (sequence, 5)
            assert header.codec == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(codec)
            assert [record.timestamp for record in iter_records(view)] == [START_MS] * 3
        await offload.close()

    run(scenario())


def test_a_repeat_is_known_by_its_first_sending() -> None:
    """Sequences are judged at the append: what was sent twice is rewritten twice and appended once."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        data = batch(2, value=SLOW, producer_id=7, sequence=0)
        outcomes = [send(fixture, ("a", 0, data)), send(fixture, ("a", 0, data))]
        await offload.go_on(2)
        assert [(await answer(fixture, outcome))["a", 0].base_offset for outcome in outcomes] == [0, 0]
        gap = send(fixture, ("a", 0, batch(1, value=SLOW, producer_id=7, sequence=9)))
        await offload.go_on()
        assert (await answer(fixture, gap))["a", 0].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await fixture.partition("a")).log_end_offset == 2

    run(scenario())


def test_one_bad_batch_does_not_hold_its_neighbours() -> None:
    """Above the bound, above the topic's size, without keys, damaged: each has its code and reason, the
    others their offsets."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 4, compression_type="uncompressed", max_message_bytes="100000")
        fixture.make_topic("keyed", cleanup_policy="compact")
        damaged = bytearray(batch(1, value=SLOW, codec=Codec.GZIP))
        damaged[80] ^= 1
        parts = parts_of(
            await fixture.produce(
                {
                    ("a", 0): batch(1, value=bytes(17 * MIB), codec=Codec.GZIP),
                    ("a", 1): batch(1, value=bytes(100_001), codec=Codec.GZIP),
                    ("a", 2): memoryview(damaged),
                    ("a", 3): batch(1, value=SLOW, codec=Codec.GZIP),
                    ("keyed", 0): batch(3000),
                }
            )
        )
        assert [parts["a", index].error_code for index in range(4)] == [
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.CORRUPT_MESSAGE,
            0,
        ]
        assert "16777216" in parts["a", 0].error_message
        assert "compression.type=producer" in parts["a", 0].error_message
        assert "as rewritten, above max.message.bytes=100000" in parts["a", 1].error_message
        keyed = parts["keyed", 0]
        assert keyed.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in keyed.record_errors] == list(range(100))
        assert_nothing_left(fixture)

    run(scenario())


def test_a_request_whose_time_is_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """REQUEST_TIMED_OUT while the thread is at work: nothing is appended, and who stands behind it goes on
    once the thread has ended."""
    monkeypatch.setattr("millrace.broker.handlers.produce.TIMEOUT_MS_MIN", 20)

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        late = send(fixture, ("a", 0, batch(1, value=SLOW)), timeout_ms=1)
        behind = send(fixture, ("a", 0, batch(1)))
        assert (await answer(fixture, late))["a", 0].error_code == ErrorCode.REQUEST_TIMED_OUT
        await turns(20)
        assert not behind.done()
        assert len(offload.held) == 1
        await offload.go_on()
        assert (await answer(fixture, behind))["a", 0].base_offset == 0
        assert_nothing_left(fixture)

    run(scenario())


def test_what_was_not_begun_when_the_time_was_up_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several batches for a partition the first is in a thread; the others cost nothing more."""
    monkeypatch.setattr("millrace.broker.handlers.produce.TIMEOUT_MS_MIN", 20)

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        slow = batch(1, value=SLOW)
        for late in [send(fixture, ("a", 0, slow), timeout_ms=1) for _ in range(2)]:
            parts = await answer(fixture, late)
            assert {part.error_code for part in parts.values()} == {ErrorCode.REQUEST_TIMED_OUT}
        await offload.go_on()
        assert offload.asked == ["repack"]
        behind = send(fixture, ("a", 0, slow))
        await offload.go_on()
        assert (await answer(fixture, behind))["a", 0].base_offset == 0
        assert_nothing_left(fixture)

    run(scenario())


def test_a_topic_that_is_deleted_meanwhile_takes_nothing() -> None:
    """The request is told so when its batch is ready, and acks=0 closes the connection."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        outcome = send(fixture, ("a", 0, batch(1, value=SLOW)), ("plain", 0, batch(1)))
        await settle(lambda: bool(offload.held))
        fixture.delete_topic("a")
        await offload.go_on()
        parts = await answer(fixture, outcome)
        assert parts["a", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert parts["plain", 0].base_offset == 0
        assert_nothing_left(fixture)

    run(scenario())


def test_a_configuration_that_changes_meanwhile_holds_from_the_next_batch_on() -> None:
    """What was rewritten for the topic as it was is appended so; what has waited behind it is rewritten as
    the topic is now."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture(compression_type="zstd")
        first = send(fixture, ("a", 0, batch(1, value=SLOW)), version=3)
        second = send(fixture, ("a", 0, batch(1, value=SLOW)))
        await settle(lambda: bool(offload.held))
        fixture.set_config("a", "compression.type", "lz4")
        await offload.go_on(2)
        fixture.set_config("a", "compression.type", "producer")
        assert (await answer(fixture, first, 3))["a", 0].error_code == 0
        assert (await answer(fixture, second))["a", 0].error_code == 0
        stored = await read(await fixture.partition("a"))
        assert [BatchHeader(view).codec for view in stored] == [Codec.ZSTD, Codec.LZ4]

    run(scenario())


def test_a_fault_is_an_answer() -> None:
    """What fails in a thread for a reason of ours is told to the client, and its partition goes on."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        outcome = send(fixture, ("a", 0, batch(1, value=SLOW)))
        await settle(lambda: bool(offload.held))
        offload.held[0].set_exception(MemoryError("no more"))
        assert (await answer(fixture, outcome))["a", 0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (await answer(fixture, send(fixture, ("a", 0, batch(1)))))["a", 0].base_offset == 0
        assert_nothing_left(fixture)

    run(scenario())


def test_few_requests_hold_what_was_rewritten() -> None:
    """A frame may grow a hundredfold: however many requests wait, REWRITES_AT_ONCE are begun, each at most
    once."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        fixture.make_topic("many", 3 * REWRITES_AT_ONCE, compression_type="uncompressed")
        data = batch(1, value=bytes(200_000), codec=Codec.ZSTD)
        outcomes = []
        for index in range(3 * REWRITES_AT_ONCE):
            await fixture.partition("many", index)
            outcomes.append(send(fixture, ("many", index, data)))
        await turns(50)
        assert len(offload.held) == REWRITES_AT_ONCE
        await offload.go_on_until(asyncio.gather(*outcomes))
        for index, outcome in enumerate(outcomes):
            assert (await answer(fixture, outcome))["many", index].error_code == 0
        assert_nothing_left(fixture)

    run(scenario())


def test_who_has_much_rewritten_lets_others_pass() -> None:
    """A connection may have many requests under way; another's first is the next that is begun."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        count = 2 * REWRITES_AT_ONCE
        fixture.make_topic("many", count + 1, compression_type="uncompressed")
        data = batch(1, value=bytes(200_000), codec=Codec.ZSTD)
        outcomes = []
        for index in range(count + 1):
            await fixture.partition("many", index)
            request = produce_request({("many", index): data}, 9)
            to = connection(2 if index == count else 1)
            outcomes.append(fixture.begin(fixture.produce_handler, 0, 9, request, to=to))
        await turns(50)
        while not outcomes[-1].done():
            await offload.go_on()
        assert sum(outcome.done() for outcome in outcomes[:-1]) < count
        await offload.go_on_until(asyncio.gather(*outcomes))
        assert_nothing_left(fixture)

    run(scenario())


def test_small_batches_are_answered_as_ever() -> None:
    """Nothing is handed over, parked or looked into for what is small, nor for topics that keep what they are
    sent."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        fixture.make_topic("keyed", cleanup_policy="compact")
        await fixture.partition("keyed")
        handler = fixture.produce_handler
        for data in (
            ("a", 0, batch(3)),
            ("a", 0, batch(3, value=b"v" * 2000, codec=Codec.ZSTD)),
            ("keyed", 0, batch(1000, key=b"k", codec=Codec.LZ4)),
            ("plain", 0, batch(1, value=SLOW * 10, codec=Codec.GZIP)),
        ):
            outcome = send(fixture, data)
            assert not handler._queue
            assert (await answer(fixture, outcome))[data[0], 0].error_code == 0
        assert offload.asked == []

    run(scenario())


def test_a_long_line_behind_a_slow_batch_is_served() -> None:
    """Hundreds of small requests wait for one that is rewritten: all are appended behind it, in their order,
    and so is what comes later."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        slow = send(fixture, ("a", 0, batch(1, value=SLOW)))
        clients = [connection(number) for number in range(2, 102)]
        behind = [
            fixture.begin(
                fixture.produce_handler,
                0,
                9,
                produce_request({("a", 0): batch(1)}, 9),
                to=clients[number % 100],
            )
            for number in range(500)
        ]
        await offload.go_on()
        offsets = [(await answer(fixture, outcome))["a", 0].base_offset for outcome in (slow, *behind)]
        assert offsets == list(range(501))
        assert (await answer(fixture, send(fixture, ("a", 0, batch(1)))))["a", 0].base_offset == 501
        assert_nothing_left(fixture)

    run(scenario())


def test_a_rewrite_whose_time_is_up_before_its_first_step_leaves_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A timer may be due in the very iteration of the loop in which the task is made, and a task that never
    began runs none of its own clean-up."""
    begin = Produce._begin_rewrite

    def begin_too_late(self: Produce, work: Any, parts: Any) -> None:
        begin(self, work, parts)
        self._expire(work)

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        with monkeypatch.context() as patch:
            patch.setattr(Produce, "_begin_rewrite", begin_too_late)
            late = send(fixture, ("a", 0, batch(1, value=SLOW)))
        behind = send(fixture, ("a", 0, batch(1)))
        assert (await answer(fixture, late))["a", 0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert (await answer(fixture, behind))["a", 0].base_offset == 0
        assert not offload.asked
        assert_nothing_left(fixture)

    run(scenario())


def test_a_partition_does_not_wait_for_what_another_of_its_request_waits_for() -> None:
    """A request names a partition beside one whose batch is rewritten, and one that is not open: what comes
    for it later, of whomever, is appended at once, behind its own."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        both = send(fixture, ("a", 0, batch(1, value=SLOW)), ("a", 1, batch(1)))
        await settle(lambda: bool(offload.held))
        behind = send(fixture, ("a", 1, batch(1)))
        assert (await answer(fixture, behind))["a", 1].base_offset == 1
        assert not both.done()
        await offload.go_on()
        parts = await answer(fixture, both)
        assert [parts["a", index].base_offset for index in (0, 1)] == [0, 0]
        assert_nothing_left(fixture)

    run(scenario())


def test_a_defect_met_by_one_request_in_line_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered with an error, and those behind it are served."""
    append = Partition.append
    calls = 0

    def fail_once(self: Partition, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RecursionError
        return append(self, *args)

    async def scenario() -> None:
        fixture, offload = await stopped_fixture()
        slow = send(fixture, ("a", 0, batch(1, value=SLOW)))
        struck = send(fixture, ("a", 0, batch(1)), ("a", 1, batch(1)))
        behind = send(fixture, ("a", 0, batch(1)))
        monkeypatch.setattr(Partition, "append", fail_once)
        await offload.go_on()
        assert (await answer(fixture, slow))["a", 0].base_offset == 0
        codes = [part.error_code for part in (await answer(fixture, struck)).values()]
        assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR, 0]
        assert (await answer(fixture, behind))["a", 0].base_offset == 1
        assert_nothing_left(fixture)

    run(scenario())


def test_what_is_rewritten_and_not_appended_yet_is_bounded() -> None:
    """Each request's small frames may grow to the bound of a batch: a second of many partitions waits until
    the first is appended, one that is larger than all the room passes alone."""

    async def scenario() -> None:
        fixture, offload = await stopped_fixture(
            compression_type="gzip", max_message_bytes=str(MEMORY_BYTES // 8)
        )
        first = send(fixture, ("a", 0, batch(1, value=SLOW)))
        other = send(fixture, ("a", 1, batch(1, value=SLOW)))
        await settle(lambda: bool(offload.held))
        await turns(20)
        assert len(offload.held) == 1
        await offload.go_on()
        assert (await answer(fixture, first))["a", 0].base_offset == 0
        await offload.go_on()
        assert (await answer(fixture, other))["a", 1].base_offset == 0
        assert_nothing_left(fixture)

    run(scenario())
