"""Stream-set objects of a broker that is gone, on a real controller: its heir compacts them after a while,
and no longer once it is back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.background.inherited_sets import InheritingCatalog
from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.errors import CompactionRefused
from millrace.s3stream.ids import CompactionCommit, StreamRange
from tests.broker.background.test_compaction_on_controller import SETTINGS, Fixture, run

AFTER_MS = 150


class Heir:
    """Broker 2 beside the fixture's broker 1, which wrote every set. `due`: how often sets came to it."""

    async def start(self, fixture: Fixture) -> Heir:
        node = fixture.node
        self.due = 0
        self.client = ControllerClient(node.channel, MetadataCache(node.publisher, node.cluster_id, 2), 2)
        await self.client.register((2).to_bytes(16, "big"), [], [])
        self.catalog = InheritingCatalog(self.client, 2, AFTER_MS, self._on_due)
        self.catalog.on_image(node.publisher.image)
        self.unsubscribe = node.publisher.subscribe(lambda delta, image: self.catalog.on_image(image))
        work = Work(fixture.store, self.catalog, SETTINGS, node.cluster_id, fixture.clock)
        self.sets, self.counts = SetCompactor(work), work.counts
        return self

    def _on_due(self) -> None:
        self.due += 1

    def close(self) -> None:
        self.unsubscribe()
        self.catalog.close()


def with_heir(scenario: Any) -> None:
    """Broker 1 has written a dozen sets of three topics, and is there."""

    async def main() -> None:
        fixture = await Fixture().start(1)
        for name in ("a", "b"):
            await fixture.create(name)
        heir = await Heir().start(fixture)
        for _ in range(24):
            await fixture.upload()
        await scenario(fixture, heir)
        heir.close()
        await fixture.stop()

    run(main())


async def leave(fixture: Fixture) -> None:
    """Broker 1 is fenced."""
    await fixture.client.heartbeat(want_fence=True)


async def wait_until_due(heir: Heir, count: int = 1) -> None:
    while heir.due < count:  # noqa: ASYNC110  (a timer of the catalog)
        await asyncio.sleep(0.01)


def test_the_heir_waits_and_then_compacts_what_the_other_left() -> None:
    """Nothing is taken from a broker that is away for a moment. What was merged is the heir's own, and reads
    as before; so does what the other had trimmed, which is gone."""

    async def scenario(fixture: Fixture, heir: Heir) -> None:
        before = len(fixture.client.stream_set_objects())
        await leave(fixture)
        assert not heir.catalog.stream_set_objects()
        await wait_until_due(heir)
        assert len(heir.catalog.stream_set_objects()) == before
        await heir.sets.round()
        assert heir.counts.commits >= 1
        await fixture.check()
        assert heir.client.stream_set_objects()
        assert len(heir.catalog.stream_set_objects()) < before

    with_heir(scenario)


def test_a_broker_that_is_back_keeps_its_sets() -> None:
    """It is fenced for less than the time: nothing of its was listed elsewhere, and the next absence counts
    from its own beginning."""

    async def scenario(fixture: Fixture, heir: Heir) -> None:
        await leave(fixture)
        await asyncio.sleep(AFTER_MS / 3000)
        await fixture.client.heartbeat()
        await asyncio.sleep(AFTER_MS / 1000)
        assert not heir.due
        await leave(fixture)
        await wait_until_due(heir)
        assert heir.catalog.stream_set_objects()
        await fixture.client.heartbeat()
        assert not heir.catalog.stream_set_objects()

    with_heir(scenario)


def test_a_refused_commit_puts_off_what_is_inherited() -> None:
    """As where a controller that is older takes nothing of another broker's: the heir's own sets are not held
    up by it."""

    async def scenario(fixture: Fixture, heir: Heir) -> None:
        await leave(fixture)
        await wait_until_due(heir)
        first, *_ = heir.catalog.stream_set_objects()
        made = await heir.catalog.prepare(1, 60_000)
        nothing = (StreamRange(next(iter(fixture.written)), 0, 1),)  # it covers nearly nothing of the source
        with pytest.raises(CompactionRefused):
            await heir.catalog.commit_compaction(
                CompactionCommit(made, 100, nothing, (), (first.object_id,))  # type: ignore[arg-type]
            )
        assert not heir.catalog.stream_set_objects()
        await wait_until_due(heir, 2)
        await heir.sets.round()
        await fixture.check()

    with_heir(scenario)


def test_nothing_is_left_behind_by_one_that_never_comes_back() -> None:
    """Its topics are deleted: what the heir made and what it left are all deleted in the end."""

    async def scenario(fixture: Fixture, heir: Heir) -> None:
        await leave(fixture)
        await wait_until_due(heir)
        await heir.sets.round()
        for name in ("a", "b"):
            await fixture.delete(name)
        while fixture.cache.image.objects.committed_count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert not heir.catalog.stream_set_objects()

    with_heir(scenario)
