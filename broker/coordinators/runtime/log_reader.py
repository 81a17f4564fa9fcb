"""Reading a shard's partition from its log start to its end, record by record, in chunks that do not hold up
the loop."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from millrace.broker.partitions.partition import Partition
from millrace.protocol.batches import BatchHeader
from millrace.protocol.errors import WireError
from millrace.protocol.records import Record, iter_records
from millrace.runtime.scheduling.yield_queue import yield_to_loop

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
CHUNK_RECORDS = 200  # some five milliseconds; a batch counts as one more


async def read_log(
    partition: Partition,
    apply: Callable[[Record], object],
    yield_now: Callable[[], Awaitable[object]] = yield_to_loop,
) -> int:
    """Everything that was appended before the call, once it is durable; gives how many bytes that was.
    Control batches are no records, and a batch that cannot be read is skipped from there on. Raises what the
    engine's reads raise."""
    await partition.confirmed(partition.log_end_offset)
    offset, end = partition.log_start_offset, partition.high_watermark
    read_bytes = unreadable = count = 0
    while offset < end:
        entries = await partition.data.fetch(offset, end, LOAD_BYTES)
        for entry in entries:
            try:
                for record in () if BatchHeader(entry.data).is_control else iter_records(entry.data):
                    apply(record)
                    count += 1
                    if count >= CHUNK_RECORDS:
                        count = 0
                        await yield_now()
            except WireError:
                unreadable += 1
            count += 1
            read_bytes += len(entry.data)
            offset = entry.end
        if not entries:
            break  # the rest was given up with a write-ahead log
        await yield_now()
    if unreadable:
        log.warning("coordinator shard %r loaded: %d unreadable batches skipped", partition, unreadable)
    return read_bytes
