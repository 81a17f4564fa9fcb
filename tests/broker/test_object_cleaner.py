"""Deletion of doomed objects: a real controller on a simulated disk, a store in memory that may refuse, time set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from millrace.broker import object_cleaner
from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.object_cleaner import ObjectCleaner
from millrace.kraft.node import ControllerNode
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest
from millrace.runtime.objectstore import StoreDenied, StoreUnavailable
from millrace.runtime.objectstore_memory import MemoryObjectStore
from millrace.s3stream.ids import ObjectId, StreamRange, StreamRole, UploadCommit
from millrace.s3stream.objects.keys import object_key
from tests.kraft.build import Broker, HandClock, open_node, sim_disk

GRACE_MS = 60_000


class Store(MemoryObjectStore):
    """`kept` are keys it will not delete, `error` fails every deletion."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(clock)
        self.kept: set[str] = set()
        self.error: Exception | None = None
        self.asked: list[list[str]] = []

    async def delete(self, keys: Sequence[str]) -> list[str]:
        self.asked.append(list(keys))
        if self.error is not None:
            raise self.error
        await super().delete([key for key in keys if key not in self.kept])
        return [key for key in keys if key in self.kept]


class Cluster:
    """One topic with `count` objects of its own in the store."""

    node: ControllerNode

    async def start(self, count: int) -> Cluster:
        self.clock = HandClock()
        self.node = await open_node(sim_disk(), clock=self.clock)
        broker = await Broker.register(self.node)
        self.store = Store(self.clock)
        self.cache = MetadataCache(self.node.publisher, self.node.cluster_id, 1)
        self.client = ControllerClient(self.node.channel, self.cache, 1)
        self.client.broker_epoch = broker.epoch
        topic_id = await broker.create("doomed")
        opened = await self.client.open_partition(topic_id, 0, 0, [StreamRole.META, StreamRole.DATA])
        data = opened[StreamRole.DATA].stream_id
        for number in range(count):
            object_id = await self.client.prepare(1, 60_000)
            await self.store.put(self.key(object_id), [b"x"])
            await self.client.commit_upload(UploadCommit(object_id, 1, (StreamRange(data, number, number + 1),), ()))
        self.cleaner = ObjectCleaner(self.store, self.client, self.cache, self.clock, GRACE_MS)
        self.node.publisher.subscribe(lambda delta, image: self.cleaner.on_image())
        self.running = asyncio.ensure_future(self.cleaner.run())
        return self

    def key(self, object_id: int) -> str:
        return object_key(self.node.cluster_id, ObjectId(object_id))

    async def delete_topic(self) -> None:
        await self.node.channel.send(DeleteTopicsRequest(topic_names=["doomed"]))

    async def left(self) -> list[str]:
        return [entry.key async for entry in self.store.list("")]

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.node.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cleaner, "RETRY_S", 0.01)


def run(scenario: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(main())


async def until(is_true: Any) -> None:
    async with asyncio.timeout(60):
        while not await is_true():  # noqa: ASYNC110  (the condition is in another task)
            await asyncio.sleep(0.001)


def test_files_go_after_the_grace_and_then_the_metadata() -> None:
    """Nothing goes before a topic is deleted, nor within the grace; then every file does, and metadata forgets them."""

    async def scenario() -> None:
        cluster = await Cluster().start(3)
        await asyncio.sleep(0.01)
        assert len(await cluster.left()) == 3
        await cluster.delete_topic()
        await asyncio.sleep(0.01)
        assert not cluster.store.asked
        cluster.clock.now_ms += GRACE_MS
        cluster.running.cancel()  # it sleeps for the grace; a new start looks at once
        cluster.running = asyncio.ensure_future(cluster.cleaner.run())

        async def is_forgotten() -> bool:
            return not cluster.cache.image.objects.dooms

        await until(is_forgotten)
        assert await cluster.left() == []
        assert cluster.cleaner.deleted_count == 3
        assert len(cluster.store.asked) == 1
        await cluster.stop()

    run(scenario)


def test_what_the_store_keeps_is_asked_for_again() -> None:
    """One key that it refuses stays in metadata with its file, the others go; when it lets go of it, that goes too."""

    async def scenario() -> None:
        cluster = await Cluster().start(3)
        kept = (await cluster.left())[1]
        cluster.store.kept = {kept}
        cluster.clock.now_ms -= GRACE_MS  # doomed long ago, as the wall clock is set forward below
        await cluster.delete_topic()
        cluster.clock.now_ms += GRACE_MS

        async def is_one_left() -> bool:
            return len(cluster.cache.image.objects.dooms) == 1

        cluster.running.cancel()
        cluster.running = asyncio.ensure_future(cluster.cleaner.run())
        await until(is_one_left)
        assert await cluster.left() == [kept]
        cluster.store.kept = set()

        async def is_none_left() -> bool:
            return not cluster.cache.image.objects.dooms

        await until(is_none_left)
        assert await cluster.left() == []
        await cluster.stop()

    run(scenario)


@pytest.mark.parametrize("error", [StoreUnavailable("k", "503"), StoreDenied("k", "no right to delete")])
def test_a_store_that_will_not_now_is_asked_later(error: Exception) -> None:
    """The task goes on, and nothing is forgotten before its file is gone."""

    async def scenario() -> None:
        cluster = await Cluster().start(2)
        cluster.store.error = error
        cluster.clock.now_ms -= GRACE_MS
        await cluster.delete_topic()
        cluster.clock.now_ms += GRACE_MS
        cluster.running.cancel()
        cluster.running = asyncio.ensure_future(cluster.cleaner.run())

        async def is_asked_again() -> bool:
            return len(cluster.store.asked) > 2

        await until(is_asked_again)
        assert len(cluster.cache.image.objects.dooms) == 2
        cluster.store.error = None

        async def is_done() -> bool:
            return not await cluster.left()

        await until(is_done)
        assert not cluster.running.done()
        await cluster.stop()

    run(scenario)
