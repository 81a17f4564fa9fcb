"""Records of types that this release does not know: a rewrite of the log carries them along, byte for
byte."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC
from millrace.broker.coordinators.runtime.unknown_records import UnknownRecords
from millrace.broker.state_memory import StateMemory
from millrace.protocol.batch_build import build_batch
from millrace.protocol.coordinator_records import OffsetCommitKey, encode_key
from millrace.protocol.records import Record, iter_records
from tests.broker.coordinators.build import GroupFixture, commit_request, run

# Kafka's ConsumerGroupMetadata (3) and ConsumerGroupTargetAssignmentMetadata (6) of a group `new`, and a type
# that nobody has yet.
NEWER = (
    Record(b"\x00\x03\x00\x03new", b"\x00\x00\x00\x00\x00\x07\x00", 1_600_000_000_123),
    Record(b"\x00\x06\x00\x03new", b"\x00\x00\x00\x00\x00\x07\x00", 1_600_000_000_124),
    Record(b"\x7a\x69whatever", b"\xff" * 300, 1_600_000_000_125, [(b"header", b"\x00"), (b"empty", None)]),
)
LATER_VALUE = Record(encode_key(OffsetCommitKey("later", "t", 0)), b"\x00\x63" + bytes(40), 1_600_000_000_126)


def tombstone(record: Record) -> Record:
    return Record(record.key, None, record.timestamp)


async def append(fixture: GroupFixture, *records: Record) -> None:
    partition = await fixture.partition(OFFSETS_TOPIC)
    partition.append_own(build_batch(records), fixture.clock.wall_ms(), lambda _: None)
    await fixture.settle()


async def raw_log(
    fixture: GroupFixture,
) -> list[tuple[bytes | None, bytes | None, int, list[tuple[bytes, bytes | None]]]]:
    """All that the log has, from its start, apart from the commits that fill it."""
    partition = await fixture.partition(OFFSETS_TOPIC)
    found = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        for entry in await partition.data.fetch(offset, partition.high_watermark, 1 << 20):
            found += [
                (record.key, record.value, record.timestamp, list(record.headers))
                for record in iter_records(entry.data)
                if b"filler" not in (record.key or b"")
            ]
            offset = entry.end
    return found


async def rewritten(fixture: GroupFixture) -> None:
    """Commits until the log start has moved."""
    partition = await fixture.partition(OFFSETS_TOPIC)
    start = partition.log_start_offset
    for number in range(200):
        commits = (
            commit_request(f"filler{n}", {("t", 0): number}, 9, metadata="m" * 4000) for n in range(20)
        )
        await asyncio.gather(*(fixture.later(8, 9, commit) for commit in commits))
        if partition.log_start_offset > start:
            await fixture.settle()
            return
    raise AssertionError("the log was never rewritten")


def as_read(
    *records: Record,
) -> list[tuple[bytes | None, bytes | None, int, list[tuple[bytes, bytes | None]]]]:
    return [(record.key, record.value, record.timestamp, list(record.headers)) for record in records]


def test_records_of_unknown_types_survive_rewrites_and_kills(caplog: pytest.LogCaptureFixture) -> None:
    """The latest of each key, with value, timestamp and headers; of a known type with a later version, too.
    What was deleted is gone, and the log tells of them once a load, by their types."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await append(fixture, tombstone(NEWER[0]), Record(NEWER[2].key, b"older", 1), *NEWER, LATER_VALUE)
        await append(fixture, tombstone(NEWER[1]))
        kept = as_read(NEWER[0], NEWER[2], LATER_VALUE)
        for _ in range(2):
            await rewritten(fixture)
            assert await raw_log(fixture) == kept
            await fixture.crash()
            await fixture.loaded()
        assert await raw_log(fixture) == kept
        assert fixture.failures == []

    run(scenario())
    told = [record.getMessage() for record in caplog.records if "unknown types" in record.getMessage()]
    assert told == 3 * [
        "coordinator shard __consumer_offsets-0 loaded: 3 records of unknown types kept for the release that "
        "wrote them:"
        " type 1 (1), type 3 (1), type 31337 (1)"
    ]


@pytest.mark.parametrize("is_killed", [False, True])
def test_known_record_replaces_unknown_one_of_its_key(is_killed: bool) -> None:
    """A commit here, behind one that a newer release wrote: the older one does not come back with a rewrite,
    nor after a kill."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await append(fixture, LATER_VALUE)
        assert await fixture.fetch_offsets("later", ("t", 0)) == {("t", 0): -1}
        await fixture.commit("later", {("t", 0): 7})
        if is_killed:
            await fixture.crash()
        await rewritten(fixture)
        assert [value for key, value, *_ in await raw_log(fixture) if value == LATER_VALUE.value] == []
        await fixture.crash()
        assert await fixture.fetch_offsets("later", ("t", 0)) == {("t", 0): 7}
        assert len(fixture.shard().unknown) == 0

    run(scenario())


def test_unknown_record_is_later_than_known_one_of_its_key() -> None:
    """A newer release's commit behind one of this release: both survive a rewrite, in this order."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("later", {("t", 0): 7})
        await append(fixture, LATER_VALUE)
        await fixture.crash()
        await rewritten(fixture)
        values = [value for key, value, *_ in await raw_log(fixture) if key == LATER_VALUE.key]
        assert len(values) == 2
        assert values[1] == LATER_VALUE.value
        await fixture.crash()
        assert await fixture.fetch_offsets("later", ("t", 0)) == {("t", 0): 7}
        assert len(fixture.shard().unknown) == 1

    run(scenario())


def test_unknown_records_are_charged_to_memory() -> None:
    """As restored from a log; given back when a tombstone, or a record that is known, removes them, and with
    the shard."""
    memory = StateMemory()
    unknown = UnknownRecords(memory)
    for record in (*NEWER, LATER_VALUE):
        unknown.keep(record)
    unknown.keep(Record(NEWER[0].key, b"x" * 1000, 2))
    assert memory.restored.held_bytes == memory.used_bytes > 1300
    assert unknown.live_bytes < memory.used_bytes
    unknown.keep(tombstone(NEWER[2]))
    unknown.forget([Record(LATER_VALUE.key, b"known")])
    unknown.keep(Record(None, b"no key"))
    assert unknown.counts() == {3: 1, 6: 1}
    for record in NEWER:
        unknown.keep(tombstone(record))
    assert (memory.used_bytes, unknown.live_bytes, len(unknown)) == (0, 0, 0)

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await append(fixture, *NEWER)
        await fixture.loaded()
        assert fixture.memory.used_bytes > 700
        fixture.shard().end(16)
        assert fixture.memory.used_bytes == 0

    run(scenario())


def test_more_unknown_records_than_are_kept_stop_rewrites(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They take no memory, and stay where they are: the log grows, and after a kill all of it is there."""
    memory = StateMemory()
    unknown = UnknownRecords(memory, bytes_max=1000)
    for record in NEWER:
        unknown.keep(record)
    unknown.keep(NEWER[0])
    assert (unknown.is_complete, len(unknown), memory.used_bytes) == (False, 0, 0)
    monkeypatch.setattr(UnknownRecords.__init__, "__defaults__", (1000,))

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await append(fixture, *NEWER)
        with pytest.raises(AssertionError, match="never rewritten"):
            await rewritten(fixture)
        await fixture.crash()
        await fixture.loaded()
        assert await raw_log(fixture) == as_read(*NEWER)
        assert await fixture.fetch_offsets("filler3") == {("t", 0): 199}

    run(scenario())
    assert [record for record in caplog.records if "too many records of unknown types" in record.getMessage()]
