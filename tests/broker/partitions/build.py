"""Partitions over the real engine on edges in memory, and batches as clients send them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from millrace.broker.identity.known_time import KnownTime
from millrace.broker.partitions.opening import Leadership, open_partition
from millrace.broker.partitions.partition import Appended, Partition
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.unpacking import Unpacking
from millrace.protocol.batch_build import build_batch
from millrace.protocol.records import Record
from millrace.runtime.offload import InlineOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.ids import StreamRole
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Append, Stream
from tests.patience import PATIENCE_S
from tests.s3stream.build import World, open_stream
from tests.s3stream.build import run as run_in_virtual_time
from tests.s3stream.cold import ColdStorage
from tests.sim.disk import SimDisk

TOPIC_ID = bytes(range(16))
START_MS = 1_700_000_000_000
MEMORY_BYTES = 128 << 20


class SteppedClock:
    """Wall time that moves when a test says so."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms
        self.slept_ms = 0

    def wall_ms(self) -> int:
        return self.now_ms

    def asleep_ms(self) -> int:
        return self.slept_ms

    def elapsed_ms(self) -> int:
        return self.now_ms


def batch(
    count: int = 1,
    *,
    timestamp: int = START_MS,
    step_ms: int = 0,
    value: bytes = b"v",
    key: bytes | None = None,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    **flags: bool,
) -> memoryview:
    """One batch; records are `step_ms` apart. With a producer id and no epoch, the epoch is 0."""
    records = [Record(key, value, timestamp + number * step_ms) for number in range(count)]
    epoch = 0 if producer_id >= 0 and epoch < 0 else epoch
    return memoryview(
        build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            **flags,
        )
    )


FIXTURES: list[Fixture] = []


def run(scenario: Coroutine[Any, Any, None], *, is_virtual: bool = False) -> None:
    """Runs a test's coroutine within a bound of time, which may be virtual, then stops the engines of the
    fixtures that it built."""

    async def bounded() -> None:
        try:
            async with asyncio.timeout(3600 if is_virtual else PATIENCE_S):
                await scenario
        finally:
            while FIXTURES:
                await FIXTURES.pop().engine._stop()

    (run_in_virtual_time if is_virtual else asyncio.run)(bounded())


class Fixture:
    """An engine, the partitions opened over it, and what they spawned. `crash` is what a kill leaves to the
    next process."""

    def __init__(self, world: World | None = None, **engine_settings: int) -> None:
        FIXTURES.append(self)
        self.world = world or World()
        self.clock = SteppedClock()
        self.engine_settings = engine_settings
        self.tasks: list[asyncio.Task[None]] = []
        self.unpacking = Unpacking(InlineOffload(), MEMORY_BYTES, YieldQueue())
        self.engine: Storage

    async def start(self) -> Fixture:
        """The clock by which it deletes has lived through all that the one it is given showed."""
        self.known = KnownTime(self.clock, SimDisk(), "log", 1 << 62, lambda: None)
        await self.known.settle(0)
        self.judged = self.known.judged
        self.engine = await self.world.started(**self.engine_settings)
        return self

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def settle(self) -> None:
        """Until what was appended is durable and what was spawned is done."""
        for _ in range(3):
            await asyncio.sleep(0)
        while self.tasks:
            await self.tasks.pop()
        await asyncio.sleep(0)

    def streams(self, first_id: int) -> dict[StreamRole, Stream]:
        roles = (StreamRole.META, StreamRole.DATA, StreamRole.TIME)
        return {
            role: open_stream(self.world, self.engine, first_id + number) for number, role in enumerate(roles)
        }

    async def open(
        self,
        index: int = 0,
        *,
        settings: TopicSettings | None = None,
        leader_epoch: int = 0,
        is_skipping: bool = False,
    ) -> Partition:
        return await open_partition(
            Leadership(TOPIC_ID, "topic", index, leader_epoch),
            self.streams(100 * index),
            settings or TopicSettings(),
            self.engine,
            self.spawn,
            self.clock,
            is_skipping=is_skipping,
        )

    async def crash(self, unconfirmed_count: int = 0) -> None:
        """The process is gone; the next one has recovered the WAL."""
        for task in self.tasks:
            task.cancel()
        self.tasks.clear()
        await self.world.crash(self.engine, unconfirmed_count)
        await self.start()

    async def begin_reading(self) -> None:
        """For what is answered from state: where engines are cold the process has ended meanwhile, with all
        that it took in objects, and the next one has loaded nothing yet."""
        if isinstance(self.engine, ColdStorage):
            await self.settle()
            assert await self.engine.upload_all(60_000)
            await self.crash()
            assert not self.engine.recovered.accepted_count

    async def produce(self, partition: Partition, data: memoryview, version: int = 9) -> Appended:
        """Appends and waits until it may be acknowledged."""
        done: asyncio.Future[Append | None] = asyncio.get_running_loop().create_future()
        tick_ms = int(asyncio.get_running_loop().time() * 1000)
        appended = partition.append(data, version, self.clock.now_ms, tick_ms, done.set_result)
        if not appended.is_durable:
            await done
        return appended


async def read(
    partition: Partition, offset: int | None = None, max_bytes: int = 1 << 20
) -> Sequence[memoryview]:
    start = partition.log_start_offset if offset is None else offset
    return [entry.data for entry in await partition.data.fetch(start, partition.high_watermark, max_bytes)]


__all__ = ["START_MS", "TOPIC_ID", "Fixture", "SteppedClock", "batch", "read", "run"]
