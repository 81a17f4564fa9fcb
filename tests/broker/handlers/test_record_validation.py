"""Produce on topics whose records are judged: codes and record errors as Kafka's, the same however a batch is
looked at, and the work bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.partitions import validation
from millrace.broker.partitions.unpacking import Unpacking
from millrace.broker.partitions.validation import LOOKED_INLINE_BYTES_MAX, UNPACKED_INLINE_BYTES_MAX
from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import BatchHeader, Codec, iter_headers
from millrace.protocol.compression import compress
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.records import Record, iter_records
from millrace.runtime.offload import ThreadOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture, parts_of
from tests.broker.partitions.build import MEMORY_BYTES, START_MS, read, run
from tests.broker.partitions.stopped import StoppedOffload
from tests.live.odd_batches import batch_of, odd_batches, readable_batches, records

DAY_MS = 86_400_000
ODD = dict(odd_batches())


async def fixture_with(**configs: str) -> BrokerFixture:
    """Topic "a" of eight partitions judges records; "plain" judges headers."""
    fixture = await BrokerFixture().start()
    fixture.make_topic("a", 8, **{"record_validation": "records", **configs})
    fixture.make_topic("plain")
    for index in range(8):
        await fixture.partition("a", index)
    await fixture.partition("plain")
    return fixture


async def answer(fixture: BrokerFixture, data: bytes, topic: str = "a") -> Any:
    return parts_of(await fixture.produce({(topic, 0): memoryview(data)}, version=9))[topic, 0]


def stamped(data: bytes) -> bytes:
    """The batch with the project's time in place of the machine's."""
    header = BatchHeader(data)
    return batch_of(
        data[61:],
        header.record_count,
        header.attributes,
        max_delta_ms=header.max_timestamp - header.base_timestamp,
        time_ms=START_MS,
    )


def test_what_no_consumer_can_read_is_refused() -> None:
    """Every kind of broken batch in every codec is INVALID_RECORD, with the reason, and no offset is given;
    where headers are judged all of these are taken but those whose count their bytes cannot hold."""

    async def scenario() -> None:
        fixture = await fixture_with()
        for name, data in ODD.items():
            found = await answer(fixture, stamped(data))
            assert (found.error_code, found.base_offset) == (ErrorCode.INVALID_RECORD, -1), name
            assert found.error_message
            assert found.record_errors == []
            loose = await answer(fixture, stamped(data), "plain")
            assert loose.error_code in (0, ErrorCode.INVALID_RECORD), name
        assert (await fixture.partition("a")).log_end_offset == 0
        assert (await fixture.partition("plain")).log_end_offset > 0

    run(scenario())


def test_odd_batches_that_can_be_read_are_taken() -> None:
    """And the largest timestamp in the header becomes that of the records, whatever the header said."""

    async def scenario() -> None:
        fixture = await fixture_with()
        for name, data in readable_batches():
            assert (await answer(fixture, stamped(data))).error_code == 0, name
        stored = [BatchHeader(view) for view in await read(await fixture.partition("a"))]
        assert [header.max_timestamp - header.base_timestamp for header in stored] == [0, 0, 0, 5_000]

    run(scenario())


@pytest.mark.parametrize("codec", list(Codec))
def test_records_to_blame_are_told_by_index(codec: Codec) -> None:
    """A compacted topic's records without keys, and records out of time, are in record_errors by their
    indexes, each with its reason; a time that is not taken makes INVALID_TIMESTAMP of all, as in Kafka.
    Versions before 8 have the code alone."""
    keyless = Record(None, b"v", START_MS)
    early = Record(b"k", b"v", START_MS - 2 * DAY_MS)
    sound = Record(b"k", b"v", START_MS)

    async def scenario() -> None:
        fixture = await fixture_with(cleanup_policy="compact", message_timestamp_before_max_ms=str(DAY_MS))
        for blamed, code, indexes in (
            ([sound, keyless, sound, keyless], ErrorCode.INVALID_RECORD, [1, 3]),
            ([sound, sound, early], ErrorCode.INVALID_TIMESTAMP, [2]),
            ([keyless, early, sound], ErrorCode.INVALID_TIMESTAMP, [0, 1]),
            ([keyless] * 300, ErrorCode.INVALID_RECORD, list(range(100))),
        ):
            found = await answer(fixture, build_batch(blamed, codec=codec))
            assert found.error_code == code
            assert [error.batch_index for error in found.record_errors] == indexes
            for error in found.record_errors:
                word = "key" if blamed[error.batch_index] is keyless else str(START_MS - DAY_MS)
                assert word in error.batch_index_error_message
            assert found.error_message
        wanted = {("a", 0): memoryview(build_batch([keyless], codec=codec))}
        if codec != Codec.ZSTD:
            old = parts_of(await fixture.produce(wanted, version=6))["a", 0]
            assert (old.error_code, old.record_errors) == (ErrorCode.INVALID_RECORD, [])
        assert (await answer(fixture, build_batch([sound] * 3, codec=codec))).error_code == 0

    run(scenario())


def test_headers_are_not_asked_for_times_where_records_are() -> None:
    """A header that tells a time the topic does not take is no reason to refuse records that have others:
    Kafka writes it anew."""

    async def scenario() -> None:
        fixture = await fixture_with(message_timestamp_after_max_ms="1000")
        data = batch_of(records(0, 1), 2, max_delta_ms=DAY_MS, time_ms=START_MS)
        assert (await answer(fixture, data)).error_code == 0
        assert (await answer(fixture, data, "plain")).error_code == ErrorCode.INVALID_TIMESTAMP

    run(scenario())


def test_times_of_the_broker_are_not_asked_of_records() -> None:
    """On a topic with LogAppendTime records may have any time, and get the broker's."""

    async def scenario() -> None:
        fixture = await fixture_with(
            message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="1000"
        )
        data = build_batch([Record(b"k", b"v", START_MS - DAY_MS), Record(b"k", b"v", -1)], codec=Codec.LZ4)
        assert (await answer(fixture, data)).error_code == 0
        (view,) = await read(await fixture.partition("a"))
        assert [record.timestamp for record in iter_records(view)] == [fixture.clock.now_ms] * 2

    run(scenario())


def test_records_without_times_are_taken() -> None:
    """librdkafka told -1 leaves base -1 and maximum 0: taken as Kafka takes it, with -1 for the largest."""

    async def scenario() -> None:
        fixture = await fixture_with()
        data = bytearray(build_batch([Record(None, b"v", -1)] * 3))
        data = bytearray(batch_of(bytes(data[61:]), 3, time_ms=-1, max_delta_ms=1))
        assert (await answer(fixture, bytes(data))).error_code == 0
        (view,) = await read(await fixture.partition("a"))
        assert (BatchHeader(view).base_timestamp, BatchHeader(view).max_timestamp) == (-1, -1)

    run(scenario())


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("topic_codec", ["producer", "zstd", "uncompressed"])
@pytest.mark.parametrize("value_bytes", [10, 3_000, 20_000])
def test_large_batches_are_judged_the_same(codec: Codec, topic_codec: str, value_bytes: int) -> None:
    """What is unpacked in place, in a thread, and alone: sound batches come out as they are, one with a fault
    at its end is refused."""

    async def scenario() -> None:
        fixture = BrokerFixture()
        offload = ThreadOffload()
        fixture.unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        await fixture.start()
        fixture.make_topic(
            "a", compression_type=topic_codec, record_validation="records", max_message_bytes="9000000"
        )
        await fixture.partition("a")
        sound = [Record(b"k", b"%06d" % number + b"v" * value_bytes, START_MS) for number in range(200)]
        assert (await answer(fixture, build_batch(sound, codec=codec))).error_code == 0
        (view,) = await read(await fixture.partition("a"), max_bytes=9_000_000)
        assert [(record.key, record.value) for record in iter_records(view)] == [
            (one.key, one.value) for one in sound
        ]
        plain = build_batch(sound)[61:]
        broken = batch_of(bytes(compress(codec, plain + records(0))), 201, codec, time_ms=START_MS)
        found = await answer(fixture, broken)
        assert (found.error_code, found.error_message) == (
            ErrorCode.INVALID_RECORD,
            "record 200 has another offset delta than its place",
        )
        await offload.close()

    run(scenario())


def test_more_than_may_be_unpacked_is_too_large() -> None:
    """The refusal names the setting that would take the batch as it is."""

    async def scenario() -> None:
        fixture = await fixture_with()
        data = build_batch([Record(None, bytes(17 << 20), START_MS)], codec=Codec.GZIP)
        found = await answer(fixture, data)
        assert found.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "record.validation=header" in found.error_message
        assert (await answer(fixture, data, "plain")).error_code == 0

    run(scenario())


def test_one_turn_of_the_loop_looks_at_so_much_and_no_more() -> None:
    """Batches of a request that come to more than the bound, each of them small, go the way of slow ones, and
    all are taken in order; those that come to less are taken at once."""
    data = build_batch([Record(None, bytes(UNPACKED_INLINE_BYTES_MAX - 100), START_MS)], codec=Codec.ZSTD)
    one_too_many = LOOKED_INLINE_BYTES_MAX // UNPACKED_INLINE_BYTES_MAX + 1

    async def scenario() -> None:
        fixture = BrokerFixture()
        offload = StoppedOffload()
        fixture.unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        await fixture.start()
        fixture.make_topic("a", one_too_many, record_validation="records")
        for index in range(one_too_many):
            await fixture.partition("a", index)
        few = {("a", index): memoryview(data) for index in range(one_too_many - 2)}
        assert {part.error_code for part in parts_of(await fixture.produce(few)).values()} == {0}
        assert offload.asked == []
        many = {("a", index): memoryview(data) for index in range(one_too_many)}

        asking = asyncio.ensure_future(fixture.produce(many))
        await offload.go_on_until(asking)
        assert {part.error_code for part in parts_of(asking.result()).values()} == {0}
        assert offload.asked

    run(scenario())


def test_a_changed_setting_holds_from_the_next_batch() -> None:
    """Between two batches the topic is told to judge records, and then not to."""

    async def scenario() -> None:
        fixture = await fixture_with()
        junk = stamped(ODD["random bytes"])
        assert (await answer(fixture, junk)).error_code == ErrorCode.INVALID_RECORD
        fixture.set_config("a", "record.validation", "header")
        assert (await answer(fixture, junk)).error_code == 0
        fixture.set_config("a", "record.validation", None)
        fixture.set_config("a", "record.validation", "records")
        assert (await answer(fixture, junk)).error_code == ErrorCode.INVALID_RECORD

    run(scenario())


def test_without_compiled_code_the_same_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no compiler was there Python's walk judges, in chunks where there are many records."""
    from millrace.broker.handlers import produce
    from millrace.broker.partitions import unpacking
    from millrace.protocol.record_walk import walk_in_python

    for module in (validation, unpacking, produce):
        monkeypatch.setattr(module, "IS_COMPILED", False)
    monkeypatch.setattr(validation, "walk", walk_in_python)

    async def scenario() -> None:
        fixture = await fixture_with()
        for name, data in ODD.items():
            assert (await answer(fixture, stamped(data))).error_code == ErrorCode.INVALID_RECORD, name
        many = [Record(b"k", b"v", START_MS)] * 5000
        for codec in Codec:
            assert (await answer(fixture, build_batch(many, codec=codec))).error_code == 0
            plain = build_batch(many)[61:]
            broken = batch_of(plain + records(0), 5001, time_ms=START_MS)
            assert (await answer(fixture, broken)).error_code == ErrorCode.INVALID_RECORD
        stored = await read(await fixture.partition("a"), max_bytes=1 << 24)
        assert [header.record_count for view in stored for _, header in iter_headers(view)] == [5000] * len(
            Codec
        )

    run(scenario())


def test_a_missing_compiled_walk_is_said_where_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a start that asks for every record to be looked at, and nowhere else."""
    asked = {"record.validation": "records"}
    monkeypatch.setattr(validation, "IS_COMPILED", False)
    assert "the compiled walk over records is missing" in validation.slow_validation(asked)
    assert validation.slow_validation({"record.validation": "header"}) == validation.slow_validation({}) == ""
    monkeypatch.setattr(validation, "IS_COMPILED", True)
    assert validation.slow_validation(asked) == ""
