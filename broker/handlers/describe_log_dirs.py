"""DescribeLogDirs (key 35): how large the partitions led here are, and how much room their store has.

Versions 1 to 5. No field is ignored.

There is one log directory, the one of `log.dirs`; records live in the data bucket, so what is shown of it is

    partition size   of an open partition, the bytes of its batches: all that was taken and retention has not
                     dropped, uploaded or not. Of one that nobody has used since the start, what the store
                     keeps for it: the bytes of each committed object, or of those that metadata does not tell
                     apart (a group), are divided among the partitions still in them by their records, so that
                     all together are the store's bytes. That is exact where there is one partition, and an
                     estimate else; looking opens no partition.
    total, usable    of the file system where the bucket is a directory; -1, unknown, where it is an object
                     store without bounds

Not here: which partitions exist (metadata). As in Kafka, what was asked for and is not here is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.broker.config import BrokerSettings
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.requests.request import RequestContext
from millrace.broker.requests.work import RequestWork
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.ranges import SLOT_BITS, SLOTS
from millrace.kraft.tables.streams import StreamState
from millrace.kraft.tables.topics import Topic
from millrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from millrace.runtime.disk import Disk
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.s3stream.ids import ObjectId, StreamRole

PARTITIONS_PER_CHUNK = 60
RANGES_PER_CHUNK = 60  # of streams in objects; a stream without any counts as one


class CommittedSizes:
    """What a partition has in committed objects of one image, by the rule above. `count` looks at every
    stream once; then it answers."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._offsets: dict[int, int] = {}  # of data streams, by object or group
        self._is_counted = False

    async def count(self, work: RequestWork) -> None:
        if self._is_counted:
            return
        self._is_counted = True
        await work.yield_now()
        left = RANGES_PER_CHUNK
        for stream_id in self._image.objects.ranges:
            for held_by, start, end in self._held(self._image.streams.by_id[stream_id]):
                self._offsets[held_by] = self._offsets.get(held_by, 0) + end - start
                left -= 1
            left -= 1
            if left <= 0:
                await work.yield_now()
                left = RANGES_PER_CHUNK

    def of_partition(self, topic_id: bytes, index: int) -> int:
        size_bytes = 0.0
        for stream in self._image.streams.of_partition(topic_id, index):
            for held_by, start, end in self._held(stream):
                share = (end - max(start, stream.start)) / self._offsets[held_by]
                size_bytes += share * self._size_bytes(held_by)
        return round(size_bytes)

    def _held(self, stream: StreamState) -> Iterator[tuple[int, int, int]]:
        """Of a data stream (only there an offset is a record) who holds which offsets."""
        ranges = self._image.objects.ranges.get(stream.stream_id) if stream.role is StreamRole.DATA else None
        for start, end, holder in ranges.all(stream.end) if ranges is not None else ():
            if holder >= 0:  # else it is in no object
                yield holder >> SLOT_BITS, start, end

    def _size_bytes(self, held_by: int) -> int:
        objects = self._image.objects
        group = objects.groups.get(held_by)
        members = group.at(SLOTS) if group is not None else (ObjectId(held_by),)
        return sum(objects.by_id[object_id].size_bytes for object_id in members)


class DescribeLogDirs:
    def __init__(
        self, cache: MetadataCache, directory: PartitionDirectory, disk: Disk, settings: BrokerSettings
    ) -> None:
        self._cache = cache
        self._directory = directory
        self._disk = disk
        self._log_dir = settings.metadata_dir
        self._store_folder = settings.data.target if settings.data.scheme == "file" else None

    async def handle(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        image = self._cache.image
        sizes = CommittedSizes(image)
        await context.work.yield_now()
        opened = {(p.topic_id, p.index): p.state.segments.size_bytes for p in self._directory.opened()}
        result = DescribeLogDirsResult(log_dir=self._log_dir)
        topics: dict[bytes, DescribeLogDirsTopic] = {}
        async for part in in_chunks(
            await _wanted(context.work, image, request.topics), PARTITIONS_PER_CHUNK, context.work
        ):
            for topic, index in part:
                if topic.partitions[index].leader != self._cache.node_id:
                    continue
                size_bytes = opened.get((topic.topic_id, index))
                if size_bytes is None:
                    await sizes.count(context.work)
                    size_bytes = sizes.of_partition(topic.topic_id, index)
                described = topics.get(topic.topic_id)
                if described is None:
                    described = topics[topic.topic_id] = DescribeLogDirsTopic(topic.name)
                described.partitions.append(DescribeLogDirsPartition(index, size_bytes))
        result.topics = list(topics.values())
        if self._store_folder is not None:
            result.total_bytes = self._disk.total_bytes(self._store_folder)
            result.usable_bytes = self._disk.free_bytes(self._store_folder)
        return DescribeLogDirsResponse(results=[result])


async def _wanted(
    work: RequestWork, image: MetadataImage, asked: list[DescribableLogDirTopic] | None
) -> Iterable[tuple[Topic, int]]:
    """Topics by name and their partitions, each once, of those that there are."""
    if asked is None:
        return ((topic, index) for topic in image.topics for index in range(len(topic.partitions)))
    wanted: dict[bytes, tuple[Topic, dict[int, None]]] = {}
    async for part in in_chunks(asked, PARTITIONS_PER_CHUNK, work, lambda one: 1 + len(one.partitions)):
        for one in part:
            found = image.topics.by_name(one.topic)
            if found is not None:
                count = len(found.partitions)
                indexes = wanted.setdefault(found.topic_id, (found, {}))[1]
                indexes.update((index, None) for index in one.partitions if 0 <= index < count)
    return ((topic, index) for topic, indexes in wanted.values() for index in indexes)
