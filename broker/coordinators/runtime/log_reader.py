"""Reading a shard's partition from its log start to its end, record by record, in chunks that do not hold up
the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.broker.partitions.partition import Partition
from millrace.protocol.batches import BatchHeader
from millrace.protocol.errors import WireError
from millrace.protocol.records import Record, iter_records

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
CHUNK_RECORDS = 500


async def read_log(partition: Partition, apply: Callable[[Record], object]) -> int:
    """Everything that was appended before the call, once it is durable; gives how many bytes that was.
    Control batches are no records, and a batch that cannot be read is skipped from there on. Raises what the
    engine's reads raise."""
    await partition.confirmed(partition.log_end_offset)
    offset, end = partition.log_start_offset, partition.high_watermark
    read_bytes = unreadable = 0
    while offset < end:
        entries = await partition.data.fetch(offset, end, LOAD_BYTES)
        for entry in entries:
            unreadable += not await _is_read(entry.data, apply)
            read_bytes += len(entry.data)
            offset = entry.end
        if not entries:
            break  # the rest was given up with a write-ahead log
        await asyncio.sleep(0)
    if unreadable:
        log.warning("coordinator shard %r loaded: %d unreadable batches skipped", partition, unreadable)
    return read_bytes


async def _is_read(data: memoryview, apply: Callable[[Record], object]) -> bool:
    if BatchHeader(data).is_control:
        return True
    try:
        for number, record in enumerate(iter_records(data), 1):
            apply(record)
            if number % CHUNK_RECORDS == 0:
                await asyncio.sleep(0)
    except WireError:
        return False
    return True
