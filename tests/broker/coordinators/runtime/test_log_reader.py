"""Reading a log that holds more than our own records: clients may write to the topic, and later Kafkas know
more kinds."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from millrace.broker.coordinators.groups.state_machine import GroupStateMachine
from millrace.broker.coordinators.runtime.log_reader import CHUNK_RECORDS, read_log
from millrace.protocol.batch_build import build_batch, build_end_marker
from millrace.protocol.batches import Codec
from millrace.protocol.coordinator_records import OffsetCommitKey, OffsetCommitValue, encode_key, encode_value
from millrace.protocol.records import Record
from tests.broker.coordinators.build import SETTINGS, run
from tests.broker.partitions.build import Fixture

KEY = OffsetCommitKey("g", "t", 0)


def commit(offset: int, version: int | None = None) -> Record:
    return Record(encode_key(KEY), encode_value(OffsetCommitValue(offset, -1, "", 1), version), 1)


async def loaded(*batches: bytes) -> tuple[GroupStateMachine, int]:
    """The shard, and how many bytes it was read from."""
    fixture = await Fixture().start()
    partition = await fixture.open()
    for batch in batches:
        partition.append_own(batch, 0, lambda _: None)
    shard = GroupStateMachine(SETTINGS, str)
    return shard, await read_log(partition, shard.apply)


STRANGE = {
    "no key": Record(None, b"x"),
    "an empty key": Record(b"", b"x"),
    "a key of a later kind": Record(b"\x00\x63whatever", b"x"),
    "a tombstone of a later kind": Record(b"\x00\x03\x00\x01g", None),
    "half a key": Record(encode_key(KEY)[:7], b"x"),
    "a value of a later version": Record(encode_key(KEY), b"\x00\x63" + bytes(40)),
    "half a value": Record(encode_key(KEY), encode_value(OffsetCommitValue(9))[:9]),
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=list(STRANGE))
def test_records_that_are_not_ours_are_stepped_over(strange: Record) -> None:
    """What stands before and behind them in the batch counts."""

    async def scenario() -> None:
        shard, _ = await loaded(build_batch([commit(1)]), build_batch([commit(2), strange, commit(3)]))
        assert shard.offsets.of_topic("g", "t")[0].offset == 3

    run(scenario())


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_values_of_every_version_are_read(version: int) -> None:
    """Logs of older brokers load."""

    async def scenario() -> None:
        shard, read_bytes = await loaded(batch := build_batch([commit(1, version)]))
        assert shard.offsets.of_topic("g", "t")[0].offset == 1
        assert read_bytes == len(batch)

    run(scenario())


@pytest.mark.parametrize("count", [1, 7])
def test_a_log_of_small_batches_is_read_in_chunks(count: int) -> None:
    """However few records a batch has, an iteration of the loop reads no more of them than a chunk."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for number in range(3 * CHUNK_RECORDS // count):
            partition.append_own(build_batch([commit(number)] * count), 0, lambda _: None)
        loop, records = asyncio.get_running_loop(), list[Record]()
        counts: list[int] = []

        def look() -> None:
            counts.append(len(records))
            loop.call_soon(look)

        look()
        await read_log(partition, records.append)
        assert len(records) == 3 * CHUNK_RECORDS // count * count
        counts.append(len(records))
        assert max(after - before for before, after in pairwise(counts)) <= CHUNK_RECORDS

    run(scenario())


def test_markers_are_no_records_and_codecs_are_read() -> None:
    """A control batch says nothing here; a compressed batch is one like others; a batch that cannot be read
    is stepped over."""

    async def scenario() -> None:
        marker = build_end_marker(
            producer_id=1, producer_epoch=0, is_commit=True, coordinator_epoch=0, timestamp=0
        )
        broken = bytearray(build_batch([commit(9)], codec=Codec.GZIP))
        broken[61:] = bytes(len(broken) - 61)
        shard, _ = await loaded(
            build_batch([commit(1)]), marker, build_batch([commit(2)] * 1200, codec=Codec.ZSTD), bytes(broken)
        )
        assert shard.offsets.of_topic("g", "t")[0].offset == 2

    run(scenario())
