"""The engine on the object WAL, whose store loses the node at any request: lives one after another on one
world.

As on the block WAL (test_engine_on_block_wal.py): the next life must find every acknowledged entry, nothing
that was never appended, and each offset with the bytes it was given first. A node that was cut off may have
had requests under way; each took effect or not.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from millrace.s3stream.storage import Storage
from millrace.wal.log import WriteAheadLog
from tests.s3stream.build import run
from tests.s3stream.test_engine_on_block_wal import Lives
from tests.sim.objectstore import SimObjectStore, StoreFaults
from tests.wal.build import owner
from tests.wal.object.build import make_bucket, open_wal, store_on

SETTINGS = {"capacity_bytes": 256 << 10, "max_record_bytes": 64 << 10, "trim_wait_ms": 5}


class ObjectLives(Lives):
    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.bucket = make_bucket()
        self.cut = asyncio.Event()

    async def start(self) -> Storage:
        self.epoch += 1
        store = store_on(
            self.bucket, f"{self.epoch} {self.rand.below(1 << 30)}", StoreFaults(latency_ms=(0, 2))
        )
        store.on_event = self._on_event
        self.store: SimObjectStore = store
        wal: WriteAheadLog = await open_wal(self.bucket, owner(self.epoch), store, **SETTINGS)
        engine = self.world.engine(wal)
        await engine.start()
        self.counted["recovered"] += engine.recovered.accepted_count
        self.counted["found committed"] += engine.recovered.committed_count
        return engine

    def _on_event(self, *words: object) -> None:
        self.events_left -= 1
        if self.events_left == 0:
            asyncio.get_running_loop().call_soon(self.store.cut)
            asyncio.get_running_loop().call_soon(self.cut.set)

    async def live(self) -> None:
        """One life: to the cut, or to a clean stop when the cut was planned too late."""
        self.events_left = 10 + self.rand.below(160)
        self.cut.clear()
        ended = asyncio.ensure_future(self.cut.wait())
        life = asyncio.ensure_future(self.work())
        await asyncio.wait([ended, life], return_when=asyncio.FIRST_COMPLETED)
        self.counted["cuts" if ended.done() else "stops"] += 1
        if not ended.done():
            life.result()  # what ended it, if it was no stop in order
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        results = await asyncio.gather(*others, return_exceptions=True)
        bugs = [result for result in results if isinstance(result, AssertionError)]
        assert not bugs, bugs
        assert not self.world.failures, self.world.failures


def test_lives_that_end_at_any_request() -> None:
    """Lives cut off at any request of the WAL's store; every path is met."""
    counted: Counter[str] = Counter()

    async def lives(seed: int) -> None:
        world = ObjectLives(f"seed {seed}")
        for _ in range(8):
            await world.live()
        counted.update(world.counted)

    for seed in range(12):
        run(lives(seed))
    for name in ("cuts", "stops", "recovered", "found committed", "unacknowledged survived", "waits", "read"):
        assert counted[name], (name, counted)
