"""The store as the parts of a node are given it: what of one part's traffic is charged to it."""

from __future__ import annotations

import asyncio

from millrace.broker.stores import stack_stores
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.hedge import GETS_A_HEDGE, SAMPLES_MIN
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.config import TrafficSettings
from millrace.s3stream.limiter import Tier
from tests.sim.loop import SimLoop, run_simulation


class Late(MemoryObjectStore):
    """Each GET takes as long as the plan says; then 20 ms."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.plan_s: list[float] = []

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await asyncio.sleep(self.plan_s.pop(0) if self.plan_s else 0.02)
        return await super().get_range(key, start, end)


class NoMeter:
    def on_operation(self, operation: str, outcome: str, sent: int, received: int, elapsed_ms: float) -> None:
        pass


class Keeping(MemoryObjectStore):
    """Keeps room; `data` is how it is given to who puts data."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.data = MemoryObjectStore(SystemClock())

    def for_data(self) -> ObjectStore:
        return self.data


def test_data_takes_nothing_of_what_a_full_store_keeps() -> None:
    """Uploads, and a log in such a store, go the way of data; compaction, deletions and what binds the bucket
    go the other one."""

    async def main(loop: SimLoop) -> None:
        bare, own = Keeping(), Keeping()
        stores = stack_stores(
            bare, NoMeter(), Rand(b"stores"), TrafficSettings(), lambda *_: None, YieldQueue()
        )
        await stores.engine.upload.put("upload", [b"x"])
        await stores.wal(own).put("batch", [b"x"])
        await stores.compaction.put("compacted", [b"x"])
        await stores.plain.put("marker", [b"x"])
        assert [entry.key async for entry in bare.data.list("")] == ["upload"]
        assert [entry.key async for entry in own.data.list("")] == ["batch"]
        assert [entry.key async for entry in bare.list("")] == ["compacted", "marker"]
        assert not [entry async for entry in own.list("")]

    run_simulation(main)


def test_a_second_attempt_is_charged_to_whose_get_it_is() -> None:
    """A late GET of each reader is sent again, and its bytes are charged twice, to that reader's tier and at
    once; times and budget are of the store, whoever reads."""

    async def main(loop: SimLoop) -> None:
        late = Late()
        settings = TrafficSettings(bandwidth_bytes=100 << 20)
        stores = stack_stores(late, NoMeter(), Rand(b"stores"), settings, lambda *_: None, YieldQueue())
        counts = stores.traffic.inbound.tiers.counts
        await stores.plain.put("a", [bytes(1000)])
        for _ in range(max(SAMPLES_MIN, 3 * GETS_A_HEDGE)):
            await stores.engine.reads.get_range("a", 0, 1000)
        parts = {
            Tier.TAIL: stores.engine.reads,
            Tier.CATCH_UP: stores.engine.read_ahead,
            Tier.COMPACTION: stores.compaction,
        }
        for number, (tier, store) in enumerate(parts.items(), 1):
            before, late.plan_s = (counts[tier].bytes, counts[tier].requests, counts[tier].waits), [30.0]
            await store.get_range("a", 0, 900)
            bytes_charged = counts[tier].bytes - before[0]
            assert (bytes_charged, counts[tier].requests - before[1], counts[tier].waits - before[2]) == (
                1800,
                2,
                0,
            )
            assert stores.hedges.begun == number

    run_simulation(main)
