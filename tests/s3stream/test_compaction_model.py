"""Random lives of streams with compaction, against a dictionary: every read equals the model after each step,
caches emptied or not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.runtime.objectstore import StoreUnavailable
from millrace.s3stream.compaction import spent
from millrace.s3stream.compaction.config import MIB
from millrace.s3stream.compaction.plan import streams_of, wanted_rows
from millrace.s3stream.compaction.reclaim import Reclaimer
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.sources import ReadMemory
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.errors import CompactionRefused, UploadExpired
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Stream
from tests.s3stream.build import append, open_stream, run
from tests.s3stream.compaction_build import CompactedWorld, drained

SETTINGS = {
    "log_cache_bytes": 256 << 10,
    "block_cache_bytes": 24 << 10,
    "upload_threshold_bytes": 64 << 10,
    "stream_object_split_bytes": 9 << 10,
    "block_bytes": 2 << 10,
    "read_merge_bytes": 8 << 10,
    "readahead_bytes_min": 4 << 10,
    "readahead_bytes_max": 16 << 10,
}
STREAMS = 6
Piece = tuple[int, int, bytes]  # base, count, payload


class Life:
    """One engine on one world, the streams' handles, and what they should hold."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.world = CompactedWorld(
            settings=SETTINGS,
            split_bytes=self.chance.choice([1 << 10, 8 << 10, 24 << 10]),
            object_bytes_max=self.chance.choice([60 << 10, 10 << 30]),
            streams_per_set_max=self.chance.choice([4, 100]),
            stream_objects_per_commit_max=self.chance.choice([3, 100]),
            memory_bytes=4 * MIB,
            block_bytes=2 << 10,
        )
        self.engine: Storage
        self.handles: dict[int, Stream] = {}
        self.model: dict[int, list[Piece]] = {}
        self.next_id = 1
        self.counted: Counter[str] = Counter()

    async def begin(self) -> None:
        self.engine = await self.world.started()
        for _ in range(STREAMS):
            self.new_stream()

    def new_stream(self) -> None:
        stream_id, self.next_id = self.next_id, self.next_id + 1
        self.handles[stream_id] = open_stream(self.world, self.engine, stream_id)
        self.model[stream_id] = []

    def any_stream(self) -> int:
        return self.chance.choice(sorted(self.handles))

    # -- steps

    async def write(self) -> None:
        for _ in range(self.chance.randint(1, 12)):
            stream_id = self.any_stream()
            handle = self.handles[stream_id]
            count, size = self.chance.randint(1, 4), self.chance.choice([1, 50, 400, 3000])
            data = self.chance.randbytes(size)
            self.model[stream_id].append((handle.confirmed_end, count, data))
            await append(handle, data, count)

    async def upload(self) -> None:
        assert await self.engine.upload_all(600_000)

    async def upload_often(self) -> None:
        for _ in range(5):
            await self.write()
            await self.upload()

    async def trim_all(self) -> None:
        await self.upload()
        for handle in self.handles.values():
            await handle.trim(handle.confirmed_end)

    async def trim(self) -> None:
        handle = self.handles[self.any_stream()]
        share = self.chance.choice([0.1, 0.2, 0.3, 0.6, 1.0])
        await handle.trim(handle.start + int((handle.confirmed_end - handle.start) * share))

    async def delete(self) -> None:
        await self.upload()
        stream_id = self.any_stream()
        await self.engine.drop_streams([self.handles.pop(stream_id).stream_id])
        self.world.catalog.delete(stream_id)
        del self.model[stream_id]
        self.new_stream()

    async def compact_sets(self) -> None:
        await self.compaction(SetCompactor(self.world.work).round())

    async def compact_streams(self) -> None:
        await self.compaction(StreamCompactor(self.world.work).round())

    async def compaction(self, work: Coroutine[Any, Any, bool]) -> None:
        try:
            await work
        except (CompactionRefused, UploadExpired, StoreUnavailable) as error:
            self.counted[type(error).__name__] += 1

    async def compact_beside(self) -> None:
        """Reads, trims and uploads go on while objects are replaced."""
        task = asyncio.create_task(self.compact_sets())
        await self.write()
        await self.trim()
        await self.upload()
        await self.check_reads()
        await task
        await self.compact_streams()

    async def stop_compaction(self) -> None:
        """Cancelled somewhere."""
        task = asyncio.create_task(self.compact_sets())
        for _ in range(self.chance.randint(0, 40)):
            await asyncio.sleep(0)
        await drained(task)

    async def get_old(self) -> None:
        self.world.clock.ms += 100 * 60_000

    async def clean(self) -> None:
        self.world.clean()

    async def reclaim(self) -> None:
        before = len(self.world.catalog.compactions)
        await self.compaction(Reclaimer(self.world.work).round())
        self.counted["reclaims"] += len(self.world.catalog.compactions) - before

    async def store_fails(self) -> None:
        """One request of a compaction is not answered; what stood aside for it is tried again later."""
        left = self.chance.randint(0, 12)

        def fault(verb: str, key: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise StoreUnavailable(key, "not now")

        self.world.store.fault = fault
        await self.compact_sets()
        await self.compact_streams()
        self.world.store.fault = lambda verb, key: None
        await asyncio.sleep(400)

    async def drop_caches(self) -> None:
        self.engine.drop_caches()

    # -- what holds

    async def check_reads(self) -> None:
        for stream_id, handle in self.handles.items():
            start, end = handle.start, handle.confirmed_end
            expected = [piece for piece in self.model[stream_id] if piece[0] + piece[1] > start]
            found: list[Piece] = []
            offset = start
            while offset < end:
                entries = await handle.fetch(offset, end, self.chance.choice([100, 5000, 1 << 20]))
                found += [(one.base_offset, one.count, bytes(one.data)) for one in entries]
                offset = entries[-1].end
            assert found == expected, stream_id

    async def check(self) -> None:
        assert not self.world.failures
        self.world.check_files()
        await self.check_reads()

    async def check_sets(self) -> None:
        """More than half of an old set is wanted, by streams that have little in it."""
        work = self.world.work
        for one in work.catalog.stream_set_objects():
            found = await work.source(one.object_id, one.size_bytes).open(ReadMemory(0), 0)
            bounds = work.catalog.stream_bounds(streams_of([found]))
            wanted = Counter[int]()
            for ref in wanted_rows(found, bounds):
                wanted[ref.stream_id] += ref.size_bytes
            little = [size_bytes for size_bytes in wanted.values() if size_bytes < work.settings.small_bytes]
            assert 2 * sum(little) > found.index.blocks_end

    async def end(self) -> None:
        await self.upload()
        self.world.clock.ms += 10**8
        for _ in range(3):
            await self.compact_sets()
            await self.compact_streams()
            self.world.clock.ms += 10**8
        await self.check_sets()
        self.world.clean()
        self.engine.drop_caches()
        await self.check()
        assert len(self.world.store.objects) == self.world.files_count()
        counts = self.world.work.counts
        self.counted.update({"commits": counts.commits, "composites": counts.composites})
        self.counted["pruned"] = sum(1 for one in self.world.catalog.compactions if one.dropped_link_ids)
        self.counted["emptied"] = sum(
            1 for one in self.world.catalog.compactions if not one.stream_objects and not one.size_bytes
        )
        await self.engine.close(600_000)


WEIGHTS = {
    "write": 12,
    "upload": 12,
    "upload_often": 20,
    "trim": 6,
    "trim_all": 1,
    "delete": 1,
    "compact_sets": 8,
    "compact_streams": 8,
    "compact_beside": 4,
    "stop_compaction": 3,
    "get_old": 4,
    "clean": 5,
    "store_fails": 3,
    "drop_caches": 10,
}


# What comes up in each life at least, so that a change of the weights that leaves something out is noticed.
LIVES = {0: ("emptied",), 7: ("StoreUnavailable",), 13: ("composites",), 43: ("pruned",)}


@pytest.mark.parametrize("seed", LIVES)
def test_reads_equal_the_model_whatever_is_compacted(seed: int) -> None:
    """Writes, uploads, trims, deletions, failures, stops and compactions in any order: every stream reads as
    the model after each, and files are as metadata says."""

    lived(Life(seed), WEIGHTS, ("commits", *LIVES[seed]))


@pytest.mark.parametrize("seed", range(4))
def test_reads_equal_the_model_whatever_makes_room(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, while rounds of reclaim come as often as uploads."""
    monkeypatch.setattr(spent, "GAIN_BYTES_MIN", 100)
    lived(Life(seed), {**WEIGHTS, "reclaim": 20}, ("reclaims",))


def lived(life: Life, weights: dict[str, int], counted: tuple[str, ...]) -> None:
    async def main() -> None:
        await life.begin()
        for _ in range(80):
            (step,) = life.chance.choices(list(weights), list(weights.values()))
            await getattr(life, step)()
            await life.check()
        await life.end()
        assert all(life.counted[name] for name in counted), life.counted

    run(main())
