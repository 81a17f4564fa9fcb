"""Openings of the partitions that one request names: they begin together, and are waited for together, so
that a request waits no longer for thousands of partitions than for one.

Not here: how long each is waited for (partitions/directory.py), what those are told that are late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from millrace.broker.partitions.directory import OPENING_LATE_S, PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.protocol.errors import KafkaError
from millrace.runtime.scheduling.chunks import Yielder, in_chunks
from millrace.runtime.scheduling.semaphore import Owner

BEGUN_PER_CHUNK = 100
Opening = tuple[asyncio.Future[Partition], float]  # and until when it is waited for


async def settled(
    directory: PartitionDirectory,
    places: Iterable[tuple[str, int]],
    asker: Owner,
    yielder: Yielder,
    *,
    is_reading: bool = False,
) -> None:
    """On return each of these, topics' names and partitions, is open, refused or late, which
    `PartitionDirectory.at_hand` tells; `is_reading` as there."""
    openings: list[Opening] = []
    async for part in in_chunks(places, BEGUN_PER_CHUNK, yielder):
        for name, index in part:
            topic = directory.topic_named(name)
            if topic is None or index in topic.partitions:
                continue
            try:
                found = directory.get(topic.topic_id, index, asker, is_reading=is_reading)
            except KafkaError:
                continue
            if not isinstance(found, Partition):
                openings.append((found, directory.opening_due_s(topic.topic_id, index, found)))
    await until_open(openings)


async def until_open(openings: Iterable[Opening]) -> bool:
    """Waits for all, for each until it is due; whether some are late. What went wrong with the others is not
    told."""
    loop = asyncio.get_running_loop()
    late_s, is_late = loop.time() + OPENING_LATE_S, False
    for opening, due_s in openings:
        if not opening.done():
            await asyncio.wait((opening,), timeout=max(0.0, max(due_s, late_s) - loop.time()))
            is_late = is_late or not opening.done()
    return is_late
