"""Uploads, compaction, trims, deletions and the cleaner on a real controller: readers get the same bytes, and
in the end nothing is left."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.kraft.node import ControllerNode
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest
from millrace.runtime.objectstore import ObjectMissing
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.s3stream.compaction.batch import AtOnce
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.compaction.merging import merge
from millrace.s3stream.compaction.plan import plan_sets
from millrace.s3stream.compaction.reclaim import Reclaimer
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.finder import ObjectFinder
from millrace.s3stream.ids import (
    NO_OBJECT,
    CommittedStreamObject,
    ObjectId,
    StreamId,
    StreamRange,
    StreamRole,
    UploadCommit,
)
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.writer import ObjectWriter
from tests.kraft.build import Broker, HandClock, open_node, sim_disk
from tests.kraft.check import check_image
from tests.patience import PATIENCE_S

ROLES = [StreamRole.META, StreamRole.DATA, StreamRole.TIME]
KIB = 1 << 10
SETTINGS = CompactionSettings(
    split_bytes=8 * KIB, object_bytes_max=64 << 20, memory_bytes=4 << 20, run_count_min=4
)


class Fixture:
    """A controller, a store, and what was written: by stream, payloads by offset."""

    node: ControllerNode

    async def start(self, seed: int) -> Fixture:
        self.rand = Rand(b"compaction %d" % seed)
        self.clock = HandClock()
        self.node = await open_node(sim_disk(), clock=self.clock)
        self.store = MemoryObjectStore(self.clock)
        self.cache = MetadataCache(self.node.publisher, self.node.cluster_id, 1)
        self.client = ControllerClient(self.node.channel, self.cache, 1)
        self.broker = await Broker.register(self.node)
        self.client.broker_epoch = self.broker.epoch
        self.written: dict[int, dict[int, bytes]] = {}
        self.starts: dict[int, int] = {}
        self.topics: dict[str, list[int]] = {}
        self.finder = ObjectFinder(self.store, self.client, self.node.cluster_id, 1 << 20)
        work = Work(self.store, self.client, SETTINGS, self.node.cluster_id, self.clock)
        self.work, self.counts = work, work.counts
        self.sets, self.streams = SetCompactor(work), StreamCompactor(work)
        self.reclaimer = Reclaimer(work)
        self.cleaner = ObjectCleaner(self.store, self.client, self.cache, self.clock, 0)
        self.node.publisher.subscribe(lambda delta, image: self.cleaner.on_image())
        self.cleaning = asyncio.ensure_future(self.cleaner.run())
        return self

    async def stop(self) -> None:
        self.cleaning.cancel()
        await asyncio.wait([self.cleaning])
        await self.node.close()

    async def create(self, name: str) -> None:
        topic_id = await self.broker.create(name)
        opened = await self.client.open_partition(topic_id, 0, 0, ROLES)
        self.topics[name] = [stream.stream_id for stream in opened.values()]
        for stream_id in self.topics[name]:
            self.written[stream_id], self.starts[stream_id] = {}, 0

    async def delete(self, name: str) -> None:
        await self.node.channel.send(DeleteTopicsRequest(topic_names=[name]))
        for stream_id in self.topics.pop(name):
            del self.written[stream_id], self.starts[stream_id]

    async def upload(self) -> None:
        """Some streams together, now and then one by itself."""
        first = await self.client.prepare(2, 60_000)
        chosen = [stream_id for stream_id in self.written if self.rand.below(3)]
        own = chosen.pop() if chosen and not self.rand.below(4) else None
        ranges, set_bytes = await self.put(first, chosen) if chosen else ((), 0)
        alone = ()
        if own is not None:
            spans, size_bytes = await self.put(ObjectId(first + 1), [own])
            alone = (CommittedStreamObject(ObjectId(first + 1), size_bytes, spans[0]),)
        if ranges or alone:
            await self.client.commit_upload(
                UploadCommit(first if ranges else NO_OBJECT, set_bytes, ranges, alone)
            )

    async def put(self, object_id: ObjectId, streams: list[int]) -> tuple[tuple[StreamRange, ...], int]:
        writer = ObjectWriter(4 * KIB)
        for stream_id in streams:
            known = self.written[stream_id]
            start = max(known, default=-1) + 1
            many = 2 if stream_id % 3 == 0 else 20  # a partition's state is small: it stays in sets
            for offset in range(start, start + 1 + self.rand.below(many)):
                known[offset] = b"%d/%d " % (stream_id, offset) * (1 + self.rand.below(60))
                writer.add(StreamId(stream_id), [Entry(offset, 1, memoryview(known[offset]))])
        made = writer.finish()
        await self.store.put(object_key(self.node.cluster_id, object_id), made.parts)
        return made.ranges, made.size_bytes

    async def trim(self) -> None:
        stream_id = list(self.written)[self.rand.below(len(self.written))]
        end = max(self.written[stream_id], default=-1) + 1
        start = self.starts[stream_id] + self.rand.below(end - self.starts[stream_id] + 1)
        await self.client.trim(StreamId(stream_id), 0, start)
        self.starts[stream_id] = start

    async def check(self) -> None:
        """Every stream reads as it was written, from its start to its end."""
        check_image(self.cache.image)
        for stream_id, known in self.written.items():
            start, end = self.starts[stream_id], max(known, default=-1) + 1
            read = await self.read(stream_id, start, end)
            assert read == {offset: known[offset] for offset in range(start, end)}, stream_id

    async def read(self, stream_id: int, start: int, end: int) -> dict[int, bytes]:
        """As a reader does: an object that is gone between the look and the read is looked up anew."""
        found: dict[int, bytes] = {}
        at, tries = start, 0
        while at < end:
            try:
                blocks = await self.finder.find(stream_id, at, end, 8 * KIB)
                entries = [entry for block in await blocks.reader.read_blocks(blocks.refs) for entry in block]
            except ObjectMissing:
                tries += 1
                assert tries < 50
                continue
            found |= {
                entry.base_offset: bytes(entry.data) for entry in entries if at <= entry.base_offset < end
            }
            at = blocks.refs[-1].end
        return found

    async def left(self) -> list[str]:
        return [entry.key async for entry in self.store.list("")]


def run(scenario: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_readers_see_the_same_before_and_after(seed: int) -> None:
    """Whatever was merged, split, linked, rewritten or deleted meanwhile; and a bucket without topics is
    empty in the end."""

    async def scenario() -> None:
        fixture = await Fixture().start(seed)
        for name in ("a", "b", "c"):
            await fixture.create(name)
        for number in range(72):
            await fixture.upload()
            if fixture.rand.below(6) == 0:
                await fixture.trim()
            if number % 6 == 5:
                fixture.clock.now_ms += SETTINGS.force_split_ms if fixture.rand.below(4) == 0 else 1000
                await fixture.reclaimer.round()
                await fixture.check()
                await fixture.sets.round()
                await fixture.check()
                await fixture.streams.round()
                await fixture.check()
            if number == 40:
                await fixture.delete("b")
        assert fixture.counts.commits > 10
        for name in ("a", "c"):
            await fixture.delete(name)
        while await fixture.left():  # noqa: ASYNC110  (the cleaner is another task)
            await asyncio.sleep(0.005)
        while fixture.cache.image.objects.pending_deletions:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        check_image(fixture.cache.image)
        assert fixture.cache.image.objects.committed_count == 0
        await fixture.stop()

    run(scenario())


def test_one_set_of_a_group_is_split_after_a_trim() -> None:
    """What of it was trimmed is no longer wanted, though its stream goes on in others of the group: the
    commit says so and is taken."""

    async def scenario() -> None:
        fixture = await Fixture().start(0)
        await fixture.create("a")
        streams = fixture.topics["a"]
        for _ in range(3):
            object_id = await fixture.client.prepare(1, 60_000)
            ranges, size_bytes = await fixture.put(object_id, streams)
            await fixture.client.commit_upload(UploadCommit(object_id, size_bytes, ranges, ()))
        second = next(iter(fixture.client.stream_set_objects()[1:]))
        trimmed = streams[1]
        third = await fixture.finder.find(trimmed, max(fixture.written[trimmed]), 1 << 40, 1)
        assert third.object_id > second.object_id
        fixture.starts[trimmed] = max(fixture.written[trimmed])
        await fixture.client.trim(StreamId(trimmed), 0, fixture.starts[trimmed])
        plan = partial(plan_sets, settings=SETTINGS, split_bytes=0)
        assert await merge(fixture.work, [second], plan, AtOnce(fixture.work))
        assert len(fixture.client.stream_set_objects()) == 2
        await fixture.check()
        await fixture.stop()

    run(scenario())
