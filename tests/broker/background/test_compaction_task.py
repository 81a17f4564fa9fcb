"""Compaction as a task of the broker: when it begins."""

from __future__ import annotations

import asyncio

from millrace.broker.background.compaction import CompactionTask
from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.s3stream.compaction.config import CompactionSettings
from tests.kraft.build import HandClock, open_node, sim_disk


def test_a_full_store_does_not_wait_for_the_first_round() -> None:
    """Compaction is put off for an hour: it begins when an upload is refused for want of room, and then with
    nothing but what makes some."""

    async def main() -> None:
        clock, is_full = HandClock(), False
        node = await open_node(sim_disk(), clock=clock)
        client = ControllerClient(node.channel, MetadataCache(node.publisher, node.cluster_id, 1), 1)
        settings = CompactionSettings(begin_ms=3_600_000)
        failures: list[BaseException] = []
        task = CompactionTask(
            MemoryObjectStore(clock),
            client,
            1,
            settings,
            node.cluster_id,
            clock,
            Rand(b"task"),
            failures.append,
            is_full=lambda: is_full,
        )
        running = asyncio.create_task(task.run())
        for _ in range(20):
            await asyncio.sleep(0)
        assert task.counts.reclaim_rounds == 0
        is_full = True
        task.on_full()
        for _ in range(200):
            await asyncio.sleep(0)
        assert (task.counts.reclaim_rounds, task.counts.set_rounds, task.counts.stream_rounds) == (1, 0, 0)
        running.cancel()
        await asyncio.wait([running])
        await node.close()
        assert not failures

    asyncio.run(main())
