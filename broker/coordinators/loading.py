"""Reading a shard's partition from its log start to its end, record by record, in slices that do not hold up the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.broker.partitions.partition import Partition
from millrace.protocol.batches import BatchHeader
from millrace.protocol.coordinator_records import (
    CoordinatorKey,
    CoordinatorValue,
    decode_key,
    decode_value,
)
from millrace.protocol.errors import WireError
from millrace.protocol.records import Record, iter_records

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
SLICE_RECORDS = 500

Apply = Callable[[CoordinatorKey, CoordinatorValue | None], None]


async def read_log(partition: Partition, apply: Apply) -> int:
    """Everything that was appended before the call, once it is durable; gives how many bytes that was. Records that are not ours to
    read (of later types, or written by somebody else) are stepped over. Raises what the engine's reads raise."""
    await partition.confirmed(partition.log_end_offset)
    offset, end = partition.log_start_offset, partition.high_watermark
    read_bytes = stepped_over = 0
    while offset < end:
        for entry in await partition.data.fetch(offset, end, LOAD_BYTES):
            stepped_over += await _read_batch(entry.data, apply)
            read_bytes += len(entry.data)
            offset = entry.end
        await asyncio.sleep(0)
    if stepped_over:
        log.warning("%r: %d records are of no kind that is known, and were stepped over", partition, stepped_over)
    return read_bytes


async def _read_batch(data: memoryview, apply: Apply) -> int:
    if BatchHeader(data).is_control:
        return 0
    stepped_over = 0
    try:
        for number, record in enumerate(iter_records(data), 1):
            stepped_over += not _read_record(record, apply)
            if number % SLICE_RECORDS == 0:
                await asyncio.sleep(0)
    except WireError:
        return stepped_over + 1
    return stepped_over


def _read_record(record: Record, apply: Apply) -> bool:
    """Whether it was one of ours."""
    try:
        key = None if record.key is None else decode_key(record.key)
        if key is None:
            return False
        value = None if record.value is None else decode_value(key, record.value)
    except WireError:
        return False
    apply(key, value)
    return True
