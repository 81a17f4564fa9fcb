"""Deletion of objects pending deletion: a real controller on a simulated disk, a store in memory that may
refuse, time set by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from millrace.broker.background import object_cleaner
from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.broker.background.pending_deletions import PendingDeletions, left_of_grace_ms
from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.kraft.node import ControllerNode
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest
from millrace.runtime.objectstore import StoreDenied, StoreUnavailable
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.ids import (
    NO_OBJECT,
    CommittedStreamObject,
    CompactedStreamObject,
    CompactionCommit,
    ObjectId,
    ObjectKind,
    StreamRange,
    StreamRole,
    UploadCommit,
)
from millrace.s3stream.objects.composite import LinkedRows, encode_composite
from millrace.s3stream.objects.format import BlockRef, encode_row
from millrace.s3stream.objects.keys import object_key
from tests.kraft.build import Broker, HandClock, open_node, sim_disk
from tests.patience import PATIENCE_S
from tests.s3stream.build import run as run_in_virtual_time

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
        kept = [key for key in keys if key in self.kept]  # as it was when asked: a test may let go meanwhile
        await super().delete([key for key in keys if key not in kept])
        return kept


class Cluster:
    """One topic with `count` objects of its own in the store."""

    node: ControllerNode

    async def start(self, count: int, is_set: bool = True) -> Cluster:
        """`is_set`: in stream-set objects, else in the stream's own."""
        self.clock = HandClock()
        self.node = await open_node(sim_disk(), clock=self.clock)
        broker = await Broker.register(self.node)
        self.store = Store(self.clock)
        self.cache = MetadataCache(self.node.publisher, self.node.cluster_id, 1)
        self.client = ControllerClient(self.node.channel, self.cache, 1)
        self.client.broker_epoch = broker.epoch
        topic_id = await broker.create("deleted")
        opened = await self.client.open_partition(topic_id, 0, 0, [StreamRole.META, StreamRole.DATA])
        data = opened[StreamRole.DATA].stream_id
        for number in range(count):
            object_id = await self.client.prepare(1, 60_000)
            await self.store.put(self.key(object_id), [b"x"])
            span = StreamRange(data, number, number + 1)
            own = CommittedStreamObject(object_id, 1, span)
            commit = (
                UploadCommit(object_id, 1, (span,), ()) if is_set else UploadCommit(NO_OBJECT, 0, (), (own,))
            )
            await self.client.commit_upload(commit)
        self.node.publisher.subscribe(lambda delta, image: self.cleaner.on_image())
        self.start_cleaner(GRACE_MS)
        return self

    def start_cleaner(self, grace_ms: int) -> None:
        """As a start of the process does."""
        self.cleaner = ObjectCleaner(self.store, self.client, self.cache, self.clock, grace_ms)
        self.running = asyncio.ensure_future(self.cleaner.run())

    def restart_cleaner(self, grace_ms: int = GRACE_MS) -> None:
        self.running.cancel()
        self.start_cleaner(grace_ms)

    def key(self, object_id: int) -> str:
        return object_key(self.node.cluster_id, ObjectId(object_id))

    async def delete_topic(self) -> None:
        await self.node.channel.send(DeleteTopicsRequest(topic_names=["deleted"]))

    async def is_forgotten(self) -> bool:
        return not self.cache.image.objects.pending_deletions

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
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


async def until(is_true: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_true():  # noqa: ASYNC110  (the condition is in another task)
            await asyncio.sleep(0.001)


def test_files_go_after_the_grace_and_then_the_metadata() -> None:
    """Nothing goes before a topic is deleted, nor within the grace; then every file does, and metadata
    forgets them."""

    async def scenario() -> None:
        cluster = await Cluster().start(3)
        await asyncio.sleep(0.01)
        assert len(await cluster.left()) == 3
        await cluster.delete_topic()
        await asyncio.sleep(0.01)
        assert not cluster.store.asked
        cluster.clock.now_ms += GRACE_MS
        cluster.restart_cleaner()  # it sleeps for the grace; a new start looks at the clock
        await until(cluster.is_forgotten)
        assert await cluster.left() == []
        assert cluster.cleaner.deleted_count == 3
        assert len(cluster.store.asked) == 1
        await cluster.stop()

    run(scenario)


def test_what_the_store_keeps_is_asked_for_again() -> None:
    """One key that it refuses stays in metadata with its file, the others go; when it lets go of it, that
    goes too."""

    async def scenario() -> None:
        cluster = await Cluster().start(3)
        kept = (await cluster.left())[1]
        cluster.store.kept = {kept}
        cluster.clock.now_ms -= GRACE_MS  # marked long ago, as the wall clock is set forward below
        await cluster.delete_topic()
        cluster.clock.now_ms += GRACE_MS

        async def is_one_left() -> bool:
            return len(cluster.cache.image.objects.pending_deletions) == 1

        cluster.restart_cleaner()
        await until(is_one_left)
        assert await cluster.left() == [kept]
        cluster.store.kept = set()

        async def is_none_left() -> bool:
            return not cluster.cache.image.objects.pending_deletions

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
        cluster.restart_cleaner()

        async def is_asked_again() -> bool:
            return len(cluster.store.asked) > 2

        await until(is_asked_again)
        assert len(cluster.cache.image.objects.pending_deletions) == 2
        cluster.store.error = None

        async def is_done() -> bool:
            return not await cluster.left()

        await until(is_done)
        assert not cluster.running.done()
        await cluster.stop()

    run(scenario)


def test_what_the_store_never_deletes_is_asked_for_ever_more_seldom() -> None:
    """A lock, or a right that is missing: a few requests a day for each, and its file is gone within an hour
    of being let go."""

    async def scenario() -> None:
        cluster = await Cluster().start(1)
        cluster.store.kept = set(await cluster.left())
        await cluster.delete_topic()
        await asyncio.sleep(24 * 3600)
        assert 20 < len(cluster.store.asked) < 50
        cluster.store.kept = set()
        await asyncio.sleep(object_cleaner.RETRY_S_MAX + 1)
        assert await cluster.left() == []
        await cluster.stop()

    run_in_virtual_time(scenario())


def test_what_a_batch_took_is_not_forgotten_when_it_fails() -> None:
    """Whatever ends it: the task is started again, and finds what it had taken."""

    async def scenario() -> None:
        cluster = await Cluster().start(3)
        cluster.clock.now_ms -= GRACE_MS
        await cluster.delete_topic()
        cluster.clock.now_ms += GRACE_MS
        cleaner = cluster.cleaner
        cluster.running.cancel()
        cleaner._note_first()
        cleaner._note()
        cluster.store.error = ValueError("nobody thought of this")
        with pytest.raises(ValueError, match="nobody"):
            await cleaner._delete_due()
        assert cleaner._pending.next_due_ms is not None
        cluster.store.error = None
        cluster.restart_cleaner()
        await cluster.stop()

    run(scenario)


def test_a_clock_that_is_set_forward_shortens_no_grace() -> None:
    """While the process runs its own clock counts; after a start, a mark that seems long ago waits a whole
    grace again."""

    async def scenario() -> None:
        cluster = await Cluster().start(2)
        await cluster.delete_topic()
        await asyncio.sleep(0.05)
        cluster.clock.now_ms += 30 * 86_400_000
        await cluster.client.prepare(1, 60_000)  # an image, so that it looks
        await asyncio.sleep(0.05)
        assert not cluster.store.asked
        cluster.restart_cleaner()
        await asyncio.sleep(0.05)
        assert not cluster.store.asked
        cluster.restart_cleaner(grace_ms=50)
        await until(cluster.is_forgotten)
        assert await cluster.left() == []
        await cluster.stop()

    run(scenario)


@pytest.mark.parametrize(
    ("passed_ms", "left_ms"),
    [(0, 60_000), (1, 59_999), (59_999, 1), (60_000, 0), (3_600_000, 0), (3_600_001, 60_000), (-1, 60_000)],
)
def test_what_is_left_of_a_grace(passed_ms: int, left_ms: int) -> None:
    """What the wall clock says, unless it says what a clock that was set would say."""
    assert left_of_grace_ms(1_000_000, 1_000_000 + passed_ms, 60_000) == left_ms


def test_pending_deletions_come_when_they_are_due() -> None:
    """The longest due first, each once until it is put off; one that is noted again keeps its time, one that
    is forgotten never comes."""
    pending = PendingDeletions()
    one, two, three = ObjectId(1), ObjectId(2), ObjectId(3)
    pending.note([two], 20)
    pending.note([one, two, three], 10)
    assert pending.next_due_ms == 10
    assert pending.take_due(9, 5) == []
    assert pending.take_due(10, 1) == [one]
    pending.put_off([one], 30)
    pending.forget([three])
    assert pending.take_due(25, 5) == [two]
    assert pending.next_due_ms == 30
    pending.forget([one, two])
    assert (len(pending), pending.next_due_ms) == (0, None)


class Linked(Cluster):
    """The topic's objects linked by a composite, which alone metadata knows."""

    async def link(self) -> ObjectId:
        (stream,) = [s for s in self.cache.image.streams.by_id.values() if s.end]
        sources = [object_id for object_id, _ in self.cache.image.objects.by_id.items()]
        rows = [
            encode_row(BlockRef(stream.stream_id, number, number + 1, 1, 0, 1))
            for number, _ in enumerate(sources)
        ]
        linked = [LinkedRows(one, 1, memoryview(row)) for one, row in zip(sources, rows, strict=True)]
        composite = await self.client.prepare(1, 60_000)
        await self.store.put(self.key(composite), [encode_composite(linked)])
        span = StreamRange(stream.stream_id, 0, stream.end)
        made = CompactedStreamObject(composite, ObjectKind.COMPOSITE, len(sources), span)
        await self.client.commit_compaction(
            CompactionCommit(NO_OBJECT, 0, (), (made,), (), linked_ids=tuple(sources))
        )
        return composite


def test_a_composite_goes_after_what_it_links() -> None:
    """Read first, then its links, of which some may be gone already; it stays to be read again while the
    store keeps one of them."""

    async def scenario() -> None:
        cluster = Linked()
        await cluster.start(3, is_set=False)
        composite = await cluster.link()
        assert len(cluster.cache.image.objects.by_id) == 1
        keys = [cluster.key(number) for number in range(3)]
        await MemoryObjectStore.delete(cluster.store, keys[:1])
        cluster.store.kept = {keys[2]}
        cluster.restart_cleaner(grace_ms=0)
        await cluster.delete_topic()

        async def is_asked_again() -> bool:
            return len(cluster.store.asked) > 2

        await until(is_asked_again)
        assert sorted(await cluster.left()) == sorted([keys[2], cluster.key(composite)])
        assert all(cluster.key(composite) not in asked for asked in cluster.store.asked)
        cluster.store.kept = set()
        await until(cluster.is_forgotten)
        assert await cluster.left() == []
        await cluster.stop()

    run(scenario)


def test_a_composite_that_cannot_be_read_goes_in_the_end() -> None:
    """Gone already: nothing is left to do. Damaged: tried a few times, then its own file goes, and what it
    linked is left to be found."""

    async def scenario(content: bytes | None) -> None:
        cluster = Linked()
        await cluster.start(2, is_set=False)
        composite = await cluster.link()
        if content is None:
            await cluster.store.delete([cluster.key(composite)])
        else:
            await cluster.store.put(cluster.key(composite), [content])
        cluster.restart_cleaner(grace_ms=0)
        await cluster.delete_topic()
        await until(cluster.is_forgotten)
        assert await cluster.left() == [cluster.key(0), cluster.key(1)]
        await cluster.stop()

    run(lambda: scenario(None))
    run(lambda: scenario(b"not a composite" * 20))
