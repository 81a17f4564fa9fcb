"""Batches that the broker itself looks into, and compresses anew: off the loop, within a bound, what is large
one at a time.

What codecs do is done in threads (they release the interpreter), what Python does with each record on the
loop, in chunks. Small batches are unpacked in place.

Not here: which batches are looked into (rewrite.py, time_lookup.py), in which order their requests go on
(handlers/produce.py).

Kept true: nothing comes to more than `bytes_max` here, and of batches that come to more than `ALONE_BYTES` at
most one is unpacked at a time, in the order of asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import compress, count, islice
from typing import ParamSpec, TypeVar

from millrace.broker.partitions.rewrite import (
    CHUNK_RECORDS,
    INDEXES_TOLD_MAX,
    UNPACKED_INLINE_BYTES_MAX,
    TimeSpan,
    demand_keys,
    guessed_max_timestamp,
    has_new_codec,
    needs_max_timestamp,
    told_max_timestamp,
    too_large_as_rewritten,
    unreadable,
)
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.validation import judge, times_taken
from millrace.protocol.batches import HEADER_BYTES, BatchHeader, Codec, check_produced_batch
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.primitives import Buffer
from millrace.protocol.record_walk import IS_COMPILED, YieldingWalk, walk
from millrace.runtime.offload import Offload
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.yield_queue import YieldQueue

P = ParamSpec("P")
T = TypeVar("T")
MIB = 1 << 20
TIME_MIN, TIME_MAX = -(1 << 63), (1 << 63) - 1

ALONE_BYTES = MIB
BOUND_BYTES_MIN = 16 * MIB
BOUND_PART = 16  # of the broker's memory
HELD_PART = 8  # the same
WALKED_INLINE_BYTES_MAX = 256 << 10  # half a millisecond, all of the smallest records
# zstd's higher levels take seconds and hundreds of MiB for what is that large.
ALONE_ZSTD_LEVEL_MAX = 9


class Unpacking:
    """A broker has one. `memory_bytes`: what the whole of it may use. `yield_queue`: where walks of many
    records in Python yield."""

    def __init__(self, offload: Offload, memory_bytes: int, yield_queue: YieldQueue) -> None:
        self._offload = offload
        self._alone = asyncio.Lock()
        self._memory_bytes = memory_bytes
        self.yield_queue = yield_queue

    @property
    def bytes_max(self) -> int:
        """The most that may come out of a batch."""
        from millrace.protocol.compression import RECORDS_BYTES_MAX

        return min(RECORDS_BYTES_MAX, max(BOUND_BYTES_MIN, self._memory_bytes // BOUND_PART))

    @property
    def held_bytes_max(self) -> int:
        """The most that several requests may hold of what was rewritten and is not appended yet."""
        return self._memory_bytes // HELD_PART

    @asynccontextmanager
    async def unpacked(self, view: memoryview, header: BatchHeader) -> AsyncIterator[Buffer]:
        """The records of a batch, good until the block is left. Raises WireError for what cannot be read and
        RecordsTooLarge for what comes to more than the bound. How much it is shows when it is unpacked: what
        is not small is tried with the room of ALONE_BYTES first."""
        from millrace.protocol.compression import RecordsTooLarge, unpack

        if not HEADER_BYTES <= header.size_bytes <= len(view):
            raise WireError(f"batch of {header.size_bytes} bytes in {len(view)}")
        data = view[HEADER_BYTES : header.size_bytes]
        payload: Buffer | None = data if header.codec == Codec.NONE else None
        with suppress(RecordsTooLarge):
            if payload is None and len(data) <= UNPACKED_INLINE_BYTES_MAX:
                payload = unpack(header.codec, data, UNPACKED_INLINE_BYTES_MAX)
        with suppress(RecordsTooLarge):
            if payload is None:
                payload = await self._hand_over(unpack, header.codec, data, ALONE_BYTES)
        if payload is not None:
            yield payload
            return
        async with self._alone:
            yield await self._hand_over(unpack, header.codec, data, self.bytes_max)

    @property
    def is_walk_compiled(self) -> bool:
        """Whether records are walked at a hundred times Python's speed."""
        from millrace.protocol.record_walk import IS_COMPILED

        return IS_COMPILED

    async def largest_time(self, header: BatchHeader, payload: Buffer) -> int | None:
        """Of the records of a batch that is unpacked, at least -1, at the compiled walk's speed; None where
        that is not installed, or finds a fault in them: then they have to be looked at one by one."""
        from millrace.protocol.record_walk import walk

        if not self.is_walk_compiled:
            return None
        asked = (payload, header.record_count, header.base_timestamp, TIME_MIN, TIME_MAX, False)
        is_small = len(payload) <= UNPACKED_INLINE_BYTES_MAX
        walked = walk(*asked) if is_small else await self._hand_over(walk, *asked)
        return walked if isinstance(walked, int) else None

    async def recode(
        self, view: memoryview, settings: TopicSettings, now_ms: int, api_version: int
    ) -> memoryview:
        """A client's batch, checked and with the topic's codec: `rewrite_batch` but for time and size. Raises
        KafkaError as an append would, and for more than the bound. Cancelled, it ends once no thread has to
        do with it any more."""
        from millrace.protocol.compression import RecordsTooLarge

        header = check_produced_batch(view, settings.rules, now_ms, api_version)
        is_walked = settings.record_rules is not None
        is_recompressed, is_unset = has_new_codec(header, settings), needs_max_timestamp(view, settings)
        if not (is_recompressed or settings.is_compacted or is_unset or is_walked):
            return view
        try:
            async with self.unpacked(view, header) as payload:
                if is_walked:
                    view, header = await self._walk(view, header, payload, settings, now_ms)
                elif is_unset:
                    view, header = told_max_timestamp(
                        view, header, await _span_of(header, payload, self.yield_queue), settings, now_ms
                    )
                if settings.is_compacted and not is_walked:
                    await self._demand_keys(header, payload)
                return await self._repack(header, payload, settings) if is_recompressed else view
        except RecordsTooLarge:
            if not (is_recompressed or settings.is_compacted or is_walked):
                return guessed_max_timestamp(view, header, settings, now_ms)[0]
            raise self._too_large() from None
        except WireError as error:
            raise unreadable(error) from None

    async def _walk(
        self, view: memoryview, header: BatchHeader, payload: Buffer, settings: TopicSettings, now_ms: int
    ) -> tuple[memoryview, BatchHeader]:
        """Judges each record. The compiled walk lets go of the interpreter; Python's own yields to
        others."""
        rules = settings.record_rules
        assert rules is not None
        arguments = (
            header.record_count,
            header.base_timestamp,
            *times_taken(rules, now_ms),
            settings.is_compacted,
        )
        if not IS_COMPILED:
            steps = YieldingWalk(payload, *arguments)
            for _ in steps:
                await self.yield_queue.yield_now()
            walked = steps.walked
        elif len(payload) <= WALKED_INLINE_BYTES_MAX:
            walked = walk(payload, *arguments)
        else:
            walked = await self._hand_over(walk, payload, *arguments)
        return judge(view, header, walked, rules, now_ms)

    async def _demand_keys(self, header: BatchHeader, payload: Buffer) -> None:
        from millrace.protocol.records import keyless_in

        keyless: list[int] = []
        numbers = count()
        async for found in in_chunks(keyless_in(header, payload), CHUNK_RECORDS, self.yield_queue):
            keyless += compress(islice(numbers, len(found)), found)
            if len(keyless) >= INDEXES_TOLD_MAX:
                break
        demand_keys(keyless)

    async def _repack(self, header: BatchHeader, payload: Buffer, settings: TopicSettings) -> memoryview:
        from millrace.protocol.compression import RecordsTooLarge, repack

        assert settings.codec is not None
        level, bytes_max = settings.codec_level, settings.rules.batch_bytes_max
        if settings.codec == Codec.ZSTD and level is not None and len(payload) > ALONE_BYTES:
            level = min(level, ALONE_ZSTD_LEVEL_MAX)
        try:
            return memoryview(
                await self._hand_over(repack, header, payload, settings.codec, level, bytes_max)
            )
        except RecordsTooLarge as error:
            raise too_large_as_rewritten(str(error), settings) from None

    def _too_large(self) -> KafkaError:
        text = (
            f"batch of more than {self.bytes_max} bytes when it is unpacked, the most that this broker "
            "unpacks: send smaller batches, or set"
            " compression.type=producer, record.validation=header (and cleanup.policy=delete) on the topic"
        )
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)

    async def _hand_over(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Off the loop. Cancelled, it ends once the function has: its memory is in use till then, and
        another's is not to come on top."""
        running = asyncio.ensure_future(self._offload.run(function, *args, **kwargs))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # nobody's news
            raise
        finally:
            del (
                running
            )  # an error knows this frame, and would keep what it was given until the collector comes by


async def _span_of(header: BatchHeader, payload: Buffer, yield_queue: YieldQueue) -> TimeSpan:
    from millrace.protocol.records import times_in

    span = TimeSpan()
    async for times in in_chunks(times_in(header, payload), CHUNK_RECORDS, yield_queue):
        span.add(times)
    return span
