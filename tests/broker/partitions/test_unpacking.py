"""Unpacking: its bound, one large batch at a time, work handed over and in chunks, and what is left when it
is given up."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.broker.partitions.rewrite import CHUNK_RECORDS, InvalidRecords, is_slow, rewrite_batch
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.unpacking import ALONE_BYTES, Unpacking
from millrace.protocol.batches import BatchHeader, Codec, ProduceRules
from millrace.protocol.compression import RecordsTooLarge
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.offload import InlineOffload, Offload, ThreadOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.others import Others
from tests.broker.partitions.build import MEMORY_BYTES, START_MS, batch
from tests.broker.partitions.stopped import StoppedOffload, settle, turns
from tests.patience import PATIENCE_S

MIB = 1 << 20
VERSION = 9
COMPRESSED = [codec for codec in Codec if codec != Codec.NONE]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario

    asyncio.run(bounded())


def settings_of(
    codec: Codec | None = None, *, batch_bytes_max: int = 64 * MIB, **fields: Any
) -> TopicSettings:
    return TopicSettings(rules=ProduceRules(batch_bytes_max=batch_bytes_max), codec=codec, **fields)


async def recode(unpacking: Unpacking, data: memoryview, settings: TopicSettings) -> memoryview:
    return await unpacking.recode(data, settings, START_MS, VERSION)


@pytest.mark.parametrize(
    ("memory_bytes", "bytes_max"),
    [(0, 16 * MIB), (128 * MIB, 16 * MIB), (512 * MIB, 32 * MIB), (64 << 30, 104_857_600)],
)
def test_the_bound_is_a_part_of_memory(memory_bytes: int, bytes_max: int) -> None:
    """A sixteenth, at least 16 MiB and at most what a producer could send uncompressed."""
    assert Unpacking(InlineOffload(), memory_bytes, YieldQueue()).bytes_max == bytes_max


@pytest.mark.parametrize("target", list(Codec))
@pytest.mark.parametrize("source", list(Codec))
@pytest.mark.parametrize("size_bytes", [100, 300_000, 3 * MIB])
def test_a_batch_comes_out_as_from_a_rewrite_in_place(source: Codec, target: Codec, size_bytes: int) -> None:
    """Small, larger, and large enough to be alone: byte for byte what `rewrite_batch` makes of it."""

    async def scenario() -> None:
        data = batch(2, value=b"abcdefgh" * (size_bytes // 16), codec=source, key=b"k")
        settings = settings_of(target, is_compacted=True)
        expected, _ = rewrite_batch(data, BatchHeader(data), settings, START_MS)
        offload = ThreadOffload()
        assert await recode(Unpacking(offload, MEMORY_BYTES, YieldQueue()), data, settings) == expected
        await offload.close()

    run(scenario())


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize(
    "settings", [settings_of(Codec.NONE), settings_of(is_compacted=True)], ids=["codec", "keys"]
)
def test_more_than_the_bound_is_too_large(codec: Codec, settings: TopicSettings) -> None:
    """MESSAGE_TOO_LARGE with the bound and what to do, for each codec, whichever of the two the topic asks
    for."""

    async def scenario() -> None:
        unpacking = Unpacking(InlineOffload(), MEMORY_BYTES, YieldQueue())
        await recode(unpacking, batch(1, key=b"k", value=bytes(16 * MIB - 100), codec=codec), settings)
        with pytest.raises(KafkaError) as refusal:
            await recode(unpacking, batch(1, key=b"k", value=bytes(16 * MIB + 1), codec=codec), settings)
        assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE
        for word in ("16777216 bytes", "smaller batches", "compression.type=producer"):
            assert word in refusal.value.message

    run(scenario())


def test_what_is_damaged_is_refused_before_anything_is_unpacked() -> None:
    """A wrong checksum, as well as a batch above max.message.bytes, costs no thread and no memory."""

    async def scenario() -> None:
        offload = StoppedOffload()
        unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        data = batch(1, value=bytes(range(256)) * 4000, codec=Codec.SNAPPY)
        damaged = bytearray(data)
        damaged[-1] ^= 1
        for view, settings, code in (
            (memoryview(damaged), settings_of(Codec.ZSTD), ErrorCode.CORRUPT_MESSAGE),
            (data, settings_of(Codec.ZSTD, batch_bytes_max=100), ErrorCode.MESSAGE_TOO_LARGE),
        ):
            with pytest.raises(KafkaError) as refusal:
                await recode(unpacking, view, settings)
            assert refusal.value.code == code
        assert offload.asked == []

    run(scenario())


def test_one_large_batch_is_unpacked_at_a_time_in_the_order_of_asking() -> None:
    """The next is begun when the memory of the one before is free; what is smaller passes by."""

    async def scenario() -> None:
        offload = StoppedOffload()
        unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        inside: list[int] = []
        order: list[int] = []

        async def open_it(number: int, size_bytes: int) -> None:
            data = batch(1, value=bytes(size_bytes), codec=Codec.ZSTD)
            async with unpacking.unpacked(data, BatchHeader(data)) as payload:
                assert len(payload) >= size_bytes
                order.append(number)
                inside.append(number)
                await turns(20)
                assert size_bytes < ALONE_BYTES or inside == [number]
                inside.remove(number)

        tasks = [asyncio.ensure_future(open_it(number, 2 * MIB)) for number in range(4)]
        await settle(lambda: len(offload.held) == 4)
        await offload.go_on(4)  # each was tried with the room of a smaller one
        await settle(lambda: len(offload.held) == 1)
        await turns(50)
        assert len(offload.held) == 1
        small = asyncio.ensure_future(open_it(9, 200_000))
        await settle(lambda: len(offload.held) == 2)
        offload.held[1].set_result(None)
        await small
        await offload.go_on_until(asyncio.gather(*tasks))
        assert order == [9, 0, 1, 2, 3]

    run(scenario())


def test_who_is_cancelled_lets_the_next_in_once_the_thread_has_ended() -> None:
    """A thread cannot be stopped, and its memory is in use until it ends: only then is it another's turn. One
    that waits just leaves."""

    async def scenario() -> None:
        offload = StoppedOffload()
        unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        data = batch(1, value=bytes(2 * MIB), codec=Codec.ZSTD)
        settings = settings_of(Codec.NONE)
        first, second, third = (asyncio.ensure_future(recode(unpacking, data, settings)) for _ in range(3))
        await settle(lambda: len(offload.held) == 3)
        await offload.go_on(3)
        await settle(lambda: len(offload.held) == 1)
        first.cancel()
        second.cancel()
        await turns(20)
        first.cancel()
        await turns(20)
        assert second.cancelled()
        assert not first.done()
        assert len(offload.held) == 1
        await offload.go_on()
        assert first.cancelled()
        await settle(lambda: len(offload.held) == 1)  # the third's
        await offload.go_on_until(third)
        assert len(third.result()) > 2 * MIB

    run(scenario())


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (settings_of(Codec.ZSTD), None),
        (settings_of(Codec.NONE, batch_bytes_max=MIB), ErrorCode.MESSAGE_TOO_LARGE),
        (settings_of(is_compacted=True), ErrorCode.INVALID_RECORD),
    ],
    ids=["done", "too large as rewritten", "no key"],
)
def test_what_was_unpacked_is_freed_at_once(settings: TopicSettings, code: ErrorCode | None) -> None:
    """Whatever came of it, no cycle keeps the memory until the collector comes by."""

    memory: list[weakref.ref[Any]] = []

    class Watching(ThreadOffload):
        async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            found = await super().run(function, *args, **kwargs)
            if function.__name__ == "unpack":
                memory.append(weakref.ref(found.obj))
            return found

    async def scenario() -> None:
        offload = Watching()
        unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        data = batch(1, value=bytes(4 * MIB), codec=Codec.SNAPPY)
        found = None
        try:
            await recode(unpacking, data, settings)
        except KafkaError as error:
            found = error.code
        assert found == code
        await offload.close()
        assert [view() for view in memory] == [None]

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


def test_keys_are_looked_for_in_chunks() -> None:
    """Others have the loop many times while the records of one batch are stepped over, and the hundredth
    without a key ends it."""

    async def scenario() -> None:
        unpacking = Unpacking(InlineOffload(), MEMORY_BYTES, YieldQueue())
        settings = settings_of(is_compacted=True)
        async with Others() as others:
            await recode(unpacking, batch(20 * CHUNK_RECORDS, key=b"k"), settings)
            assert others.turns >= 20
            others.turns = 0
            with pytest.raises(InvalidRecords) as refusal:
                await recode(unpacking, batch(20 * CHUNK_RECORDS), settings)
            assert [index for index, _ in refusal.value.errors] == list(range(100))
            assert others.turns <= 3

    run(scenario())


@pytest.mark.parametrize(
    ("data", "settings", "expected"),
    [
        (batch(1, value=b"v" * 9000), settings_of(Codec.GZIP), True),
        (batch(1, value=b"v" * 7000), settings_of(Codec.GZIP), False),
        (batch(1, value=b"v" * 9000), settings_of(Codec.NONE), False),
        (batch(1, value=b"v" * 9000), settings_of(), False),
        (batch(1, value=b"v" * 9000, codec=Codec.GZIP), settings_of(Codec.NONE), True),
        (batch(1, value=b"v" * 7000, codec=Codec.GZIP), settings_of(Codec.NONE), False),
        (batch(1, value=b"v" * 9000, codec=Codec.GZIP), settings_of(Codec.GZIP), False),
        (batch(1, value=b"v" * 90_000), settings_of(is_compacted=True), False),
        (batch(1, value=b"v" * 9000, codec=Codec.ZSTD), settings_of(is_compacted=True), False),
        (batch(1, value=b"v" * 90_000, codec=Codec.ZSTD), settings_of(is_compacted=True), True),
        (batch(CHUNK_RECORDS), settings_of(is_compacted=True), False),
        (batch(CHUNK_RECORDS + 1), settings_of(is_compacted=True), True),
        (memoryview(b"no batch"), settings_of(Codec.GZIP), False),
        (memoryview(bytes(batch(1, codec=Codec.LZ4))[:-1] + b"!"), settings_of(Codec.GZIP), False),
    ],
)
def test_what_is_quick_is_done_in_place(data: memoryview, settings: TopicSettings, expected: bool) -> None:
    """By the bytes that are compressed anew, the bytes that are only unpacked, and the records whose keys are
    sought."""
    assert is_slow(data, settings) is expected


def test_zstd_is_held_to_a_level_for_what_is_large() -> None:
    """Its highest levels take seconds and hundreds of MiB: below a MiB the topic's holds, above no higher one
    than 9."""
    levels: list[int] = []

    class Noting(InlineOffload):
        async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            if function.__name__ == "repack":
                levels.append(args[3])
                args = (*args[:3], 1, *args[4:])
            return await super().run(function, *args, **kwargs)

    async def scenario() -> None:
        offload: Offload = Noting()
        unpacking = Unpacking(offload, MEMORY_BYTES, YieldQueue())
        for size_bytes in (MIB - 100, 2 * MIB):
            for level in (3, 22):
                await recode(
                    unpacking, batch(1, value=bytes(size_bytes)), settings_of(Codec.ZSTD, codec_level=level)
                )

    run(scenario())
    assert levels == [3, 22, 3, 9]


def test_a_batch_that_is_no_batch_is_not_opened() -> None:
    """A lookup may meet anything: the bound is an error of the records, told apart from what is too large for
    a topic."""

    async def scenario() -> None:
        unpacking = Unpacking(InlineOffload(), MEMORY_BYTES, YieldQueue())
        data = batch(1, value=bytes(17 * MIB), codec=Codec.LZ4)
        with pytest.raises(RecordsTooLarge):
            async with unpacking.unpacked(data, BatchHeader(data)):
                pass

    run(scenario())
