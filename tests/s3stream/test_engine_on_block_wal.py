"""The engine on the real block WAL, over a disk that loses power: lives one after another on one world.

In each life producers append, readers read, uploads run, and at some write the power goes. The next life must
find every acknowledged entry, nothing that was never appended, and each offset with the bytes it was given
first.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter

import pytest

from millrace.runtime.rand import Rand
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Append, Stream
from millrace.wal.block.log import BlockWal
from millrace.wal.config import BlockWalSettings
from tests.s3stream.build import World, append, open_stream, run
from tests.sim.disk import Cut, SimDisk
from tests.wal.build import PATH, owner, small_settings

STREAMS = 3
SETTINGS = {
    "log_cache_bytes": 120 << 10,
    "block_cache_bytes": 32 << 10,
    "stream_object_split_bytes": 24 << 10,
    "block_bytes": 4 << 10,
    "read_merge_bytes": 8 << 10,
    "readahead_bytes_min": 4 << 10,
    "readahead_bytes_max": 8 << 10,
    "upload_interval_ms": 50,
}


class Lives:
    def __init__(self, seed: str) -> None:
        self.rand = Rand(seed.encode())
        self.world = World(settings=SETTINGS)
        self.disk = SimDisk(self.rand.split("disk"))
        self.epoch = 0
        self.appended: list[list[bytes]] = [[] for _ in range(STREAMS)]
        self.acknowledged = [0] * STREAMS
        self.counted: Counter[str] = Counter()

    async def start(self) -> Storage:
        self.epoch += 1
        wal = await BlockWal.open(self.disk, PATH, small_settings(), owner(self.epoch))
        engine = self.world.engine(wal)
        await engine.start()
        self.counted["recovered"] += engine.recovered.accepted_count
        self.counted["found committed"] += engine.recovered.committed_count
        return engine

    async def live(self) -> None:
        """One life: to the power cut, or to a clean stop when the cut was planned too late."""
        self.disk.at_write(5 + self.rand.below(120), Cut())
        ended = asyncio.ensure_future(self.disk.was_cut.wait())
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
        self.disk = self.disk.restart()

    async def work(self) -> None:
        engine = await self.start()
        streams = [open_stream(self.world, engine, number) for number in range(STREAMS)]
        for number, stream in enumerate(streams):
            await self.verify(engine, number, stream)
        await asyncio.gather(*(self.produce(engine, number, stream) for number, stream in enumerate(streams)))
        await engine.close(60_000)

    async def verify(self, engine: Storage, number: int, stream: Stream) -> None:
        """What survived is what was acknowledged, and perhaps some of what was appended behind it."""
        appended = self.appended[number]
        assert self.acknowledged[number] <= stream.next_offset <= len(appended), (
            number,
            stream,
            self.acknowledged,
        )
        self.counted["unacknowledged survived"] += stream.next_offset - self.acknowledged[number]
        engine.drop_caches()
        offset = 0
        while offset < stream.next_offset:
            for entry in await stream.fetch(offset, stream.next_offset, 50_000):
                assert bytes(entry.data) == appended[offset]
                offset = entry.end
        del appended[offset:]
        self.acknowledged[number] = offset

    async def produce(self, engine: Storage, number: int, stream: Stream) -> None:
        rand = self.rand.split(f"producer-{self.epoch}-{number}")

        def on_done(made: Append) -> None:
            self.acknowledged[number] = made.end

        for _ in range(60):
            data = rand.uuid() * (1 + rand.below(1 << rand.below(12)))
            if engine.room_bytes < len(data):
                self.counted["waits"] += 1
                await engine.wait_for_room(len(data))
            self.appended[number].append(data)
            stream.append(1, [data[:7], data[7:]], on_done)
            if rand.below(6) == 0:
                await asyncio.sleep(rand.below(20) / 1000)
            if rand.below(12) == 0 and stream.confirmed_end:
                await self.read_some(stream, number, rand)

    async def read_some(self, stream: Stream, number: int, rand: Rand) -> None:
        start = rand.below(stream.confirmed_end)
        for entry in await stream.fetch(start, stream.confirmed_end, 20_000):
            assert bytes(entry.data) == self.appended[number][entry.base_offset]
            self.counted["read"] += 1


def test_power_cuts() -> None:
    """Lives that end at any write, with whatever of the last writes survived; every path is met."""
    counted: Counter[str] = Counter()

    async def lives(seed: int) -> None:
        world = Lives(f"seed {seed}")
        for _ in range(8):
            await world.live()
        counted.update(world.counted)

    for seed in range(10):
        run(lives(seed))
    print(counted)
    for name in ("cuts", "stops", "recovered", "found committed", "unacknowledged survived", "waits", "read"):
        assert counted[name], name


def test_a_quick_answer_about_room_is_the_right_one() -> None:
    """From an empty log to a full one, over several laps: `has_room`, asked first, says what `room_bytes`
    says, in whatever sizes records come, and what it promised is taken."""

    async def scenario() -> None:
        rand = Rand(b"room")
        disk = SimDisk(rand.split("disk"))
        settings = dataclasses.replace(BlockWalSettings(), capacity_bytes=12 << 20)
        world = World(settings={"log_cache_bytes": 24 << 20, "upload_threshold_bytes": 1 << 30})
        engine = world.engine(await BlockWal.open(disk, PATH, settings, owner(1)))
        await engine.start()
        stream = open_stream(world, engine, 1)
        appended_bytes, uploads = 0, 0
        while appended_bytes < 60 << 20:
            size = 64 + rand.below(400_000 if rand.below(3) else 3000)
            has_room = engine.has_room(size)
            assert has_room is (size <= engine.room_bytes)
            if not has_room:
                assert await engine.upload_all(30_000)
                uploads += 1
                continue
            stream.append(1, [bytes(size)])
            appended_bytes += size
            if not rand.below(4):
                await asyncio.sleep(0)
        assert uploads >= 4
        await engine.close(30_000)

    run(scenario())


@pytest.mark.parametrize(
    ("capacity", "threshold"), [(256 << 20, 2 << 20), (9 << 20, 1 << 30)], ids=["threshold", "wal"]
)
def test_a_small_upload_is_no_tiny_one(capacity: int, threshold: int) -> None:
    """Uploads go by what there is to upload, or by what of the WAL it takes: not by the arena of the WAL's
    memory that the first view of it pins, which is larger than either."""

    async def scenario() -> None:
        disk = SimDisk(Rand(b"small").split("disk"))
        settings = dataclasses.replace(BlockWalSettings(), capacity_bytes=capacity)
        assert settings.arena_bytes > min(threshold, capacity // 3)
        world = World(settings={"log_cache_bytes": 96 << 20, "upload_threshold_bytes": threshold})
        engine = world.engine(await BlockWal.open(disk, PATH, settings, owner(1)))
        await engine.start()
        stream = open_stream(world, engine, 1)
        for _ in range(24 << 7):
            await engine.wait_for_room(8 << 10)
            await append(stream, bytes(8 << 10))
        assert await engine.upload_all(30_000)
        assert 8 <= len(world.store.objects) <= 14
        await engine.close(30_000)

    run(scenario())
