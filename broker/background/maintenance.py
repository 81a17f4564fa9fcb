"""What partitions need now and then: retention, and forgetting producers that are silent.

Each `retention_check_interval_ms` one round of retention: open partitions first, which costs no I/O where
nothing is due. A partition that is not open cannot grow, so all that can become due is its oldest segment's
age; it is looked at only when

    its topic's policy deletes at all, and metadata says that it holds data, and it was not looked at since
    this process started, or what it said then has become due, or its configuration changed.

Looking means opening it, quietly, and closing it again, those with the shortest retention first:
`OPENS_IN_A_BURST` together, so that what they write shares an object, every `BURST_S`, and no more in a round
than fit its interval. While uploads wait they stay open. Partitions that another broker still holds are
passed over, and a burst in which some were late is the last of its round: what is open has its turn. What
each said is kept, in memory alone. So ten thousand that are due at once are looked at within a quarter of an
hour; after a start each is looked at once, and then when due. (Refused: opening all of them each round; a
hint of the due time in metadata, which would be one more command for each that is closed.)

The clock is the one by which something may be found too old (known_time.py): while the wall clock is doubted,
it goes on from the newest known time, and retention by time goes no further. By size it goes on.

Not here: what is dropped (segments.py), physical deletion of objects (object_cleaner.py), compaction
(compaction.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.settings import TopicSettings
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.topics import Topic
from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import KafkaError
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed, Fenced, in_words
from millrace.s3stream.ids import StreamRole

log = logging.getLogger(__name__)

OPENS_IN_A_BURST = 200
BURST_S = 10.0
OPENS_AT_ONCE = 8
LOOKED_PER_CHUNK = 500  # partitions or topics looked at before others have their turn on the loop
IDS_PER_CHUNK = 8  # of ids of producers in the log
NEVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    retention_check_interval_ms: int = 300_000
    producer_check_interval_ms: int = 600_000


@dataclass(slots=True)
class _Forecast:
    """What a closed partition said when it was looked at: by these settings nothing is due before
    `due_ms`."""

    settings: TopicSettings
    due_ms: int


class Maintenance:
    def __init__(
        self, directory: PartitionDirectory, cache: MetadataCache, clock: Clock, settings: MaintenanceSettings
    ) -> None:
        """`clock`: what records are judged by; see above."""
        self._directory = directory
        self._cache = cache
        self._clock = clock
        self._settings = settings
        self._forecasts: dict[tuple[bytes, int], _Forecast] = {}

    async def run(self) -> None:
        """Until cancelled, which loses nothing."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._settings.retention_check_interval_ms, self.retain))
            group.create_task(self._every(self._settings.producer_check_interval_ms, self.expire_producers))

    async def _every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await work()

    # -- producers

    async def expire_producers(self) -> None:
        tick_ms = _tick_ms()
        for number, partition in enumerate(self._directory.opened()):
            producers = partition.state.producers
            producers.expire(tick_ms, self._directory.memory.producer_expiration_ms)
            if producers.cold is not None:
                for step, _ in enumerate(producers.cold.sweep_yielding(), 1):
                    if step % IDS_PER_CHUNK == 0:
                        await asyncio.sleep(0)
            if number % LOOKED_PER_CHUNK == LOOKED_PER_CHUNK - 1:
                await asyncio.sleep(0)

    # -- retention

    async def retain(self) -> None:
        """One round. On return everything that is due and was looked at is asked for; it is shown when
        durable."""
        await self._directory.release_quiet()
        for number, partition in enumerate(self._directory.opened()):
            self._retain(partition)
            if number % LOOKED_PER_CHUNK == LOOKED_PER_CHUNK - 1:
                await asyncio.sleep(0)
        await self._retain_closed()

    def _retain(self, partition: Partition) -> None:
        settings = partition.settings
        if not (settings.has_retention and partition.is_led):
            return
        now_ms = self._clock.wall_ms()  # asked before each decision: a round takes minutes
        keep_from = partition.state.segments.plan_retention(
            now_ms, settings.retention_ms, settings.retention_bytes, partition.high_watermark
        )
        if keep_from > partition.log_start_offset:
            log.info("%r: retention drops what lies below %d", partition, keep_from)
            try:
                partition.raise_log_start(keep_from, now_ms)
            except (Closed, Fenced) as error:
                log.info("%r: not dropped here: %s", partition, in_words(error))

    async def _retain_closed(self) -> None:
        image = self._cache.image
        now_ms = self._clock.wall_ms()
        candidates: list[tuple[int, bytes, int]] = []
        number = 0
        for topic in image.topics:
            for index, state in enumerate(topic.partitions):
                if state.leader == self._directory.node_id and self._is_candidate(
                    image, topic, index, now_ms
                ):
                    candidates.append((self._retention_ms(topic), topic.topic_id, index))
                number += 1
                if number % LOOKED_PER_CHUNK == 0:
                    await asyncio.sleep(0)
        self._forecasts = {
            key: said for key, said in self._forecasts.items() if image.topics.partition(*key) is not None
        }
        candidates.sort(key=lambda candidate: candidate[0])
        bursts = max(1, int(self._settings.retention_check_interval_ms / 1000 / BURST_S))
        due = [(topic_id, index) for _, topic_id, index in candidates[: bursts * OPENS_IN_A_BURST]]
        for first in range(0, len(due), OPENS_IN_A_BURST):
            if first:
                await asyncio.sleep(BURST_S)
            keys = iter(due[first : first + OPENS_IN_A_BURST])
            visits = await asyncio.gather(*(self._visit(keys) for _ in range(OPENS_AT_ONCE)))
            await self._directory.release_quiet()
            if any(visits):
                return  # to what is open: the rest is looked at in the next round

    def _is_candidate(self, image: MetadataImage, topic: Topic, index: int, now_ms: int) -> bool:
        """Neither open nor another's, holds data, and something in it may be due. Cheap questions first: it
        is asked of every partition, every round."""
        key = topic.topic_id, index
        if self._directory.is_open(*key) or self._directory.is_elsewhere(key):
            return False
        said = self._forecasts.get(key)
        if said is None and not _holds_data(image, *key):
            return False
        led = self._directory.topic_of(topic.topic_id)
        if led is None or not led.settings.has_retention:
            return False
        if said is not None and said.settings is led.settings and said.due_ms > now_ms:
            return False
        return said is None or _holds_data(image, *key)

    def _retention_ms(self, topic: Topic) -> int:
        led = self._directory.topic_of(topic.topic_id)
        return led.settings.retention_ms if led is not None and led.settings.retention_ms >= 0 else NEVER_MS

    async def _visit(self, keys: Iterator[tuple[bytes, int]]) -> bool:
        """Whether one was waited for in vain; one that was late before is not waited for."""
        loop, is_late = asyncio.get_running_loop(), False
        for topic_id, index in keys:
            left_s = 0.0
            try:
                found = self._directory.get(topic_id, index, is_retention_only=True)
                if not isinstance(found, Partition):
                    left_s = self._directory.opening_due_s(topic_id, index, found) - loop.time()
                    async with asyncio.timeout(left_s):
                        found = await asyncio.shield(found)
            except (KafkaError, TimeoutError) as error:
                is_late = is_late or (isinstance(error, TimeoutError) and left_s > 0)
                log.info(
                    "partition %d of topic %s was not looked at: %s", index, topic_id.hex(), in_words(error)
                )
                continue
            self._retain(found)
            retention_ms = found.settings.retention_ms
            due_ms = found.state.segments.retention_due_ms(retention_ms) if retention_ms >= 0 else NEVER_MS
            self._forecasts[topic_id, index] = _Forecast(found.settings, due_ms)
        return is_late


def _holds_data(image: MetadataImage, topic_id: bytes, index: int) -> bool:
    return any(
        stream.role is StreamRole.DATA and stream.end > stream.start
        for stream in image.streams.of_partition(topic_id, index)
    )


def _tick_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
