"""Fetch of what an earlier owner's write-ahead log owes, or has lost: who waits for it, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from millrace.broker.handlers.fetch import REMOTE_READS_IN_FLIGHT
from millrace.s3stream.ids import StreamRange
from millrace.s3stream.objects.format import Entry
from tests.broker.broker_fixture import BrokerFixture, parts_of
from tests.broker.handlers.test_fetch import begin, filled, offsets
from tests.broker.partitions.build import run
from tests.patience import PATIENCE_S
from tests.s3stream.build import World
from tests.s3stream.test_sealed_streams import NodeCatalog

# Not run cold, and why.
HOT_ONLY = {"test_who_waits_for_an_owner_holds_nobody_up": "cold as it is"}


class Silent:
    """The broker that owes stands still."""

    def __init__(self) -> None:
        self.count = 0

    async def read(self, wanted: StreamRange, max_bytes: int) -> Sequence[Entry]:
        self.count += 1
        await asyncio.Event().wait()
        raise AssertionError


async def owed_and_cold() -> tuple[BrokerFixture, Silent]:
    """Topic `owed` is owed by a broker that stands still, `cold` is in objects."""
    world = World()
    world.catalog = catalog = NodeCatalog("new")
    fixture = await BrokerFixture(world).start()
    await filled(fixture, "owed")
    await filled(fixture, "cold")
    assert await fixture.engine.upload_all(1000)
    fixture.engine.drop_caches()
    stream_id = (await fixture.partition("owed")).data.stream_id
    catalog.streams[stream_id].owed = {"old": (0, 10, 0)}
    silent = Silent()
    fixture.engine.owed_reads.reader = silent
    return fixture, silent


def test_who_waits_for_an_owner_holds_nobody_up() -> None:
    """However many do: reads of objects have places of their own."""

    async def scenario() -> None:
        fixture, silent = await owed_and_cold()
        waiting: list[Any] = [
            begin(fixture, {("owed", 0): 0}, max_wait_ms=1) for _ in range(REMOTE_READS_IN_FLIGHT)
        ]
        await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE_S):
            parts = parts_of(await fixture.fetch({("cold", 0): 0}))
        assert offsets(parts["cold", 0]) == [0, 2, 4, 6, 8]
        assert silent.count == REMOTE_READS_IN_FLIGHT
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()

    run(scenario())
