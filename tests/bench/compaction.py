"""What compaction costs: `python -m tests.bench.compaction [--mib N]`.

So many MiB in stream-set objects of many streams, in a directory store, are compacted once: some streams get
objects of their own, the rest one set. Then the stream objects of one stream are linked. Printed are bytes
read and written, CPU of this process with all its threads, and requests, each for a GiB of live data. The
catalog is in memory, with the controller's rules. What a steady load costs in requests, over all that happens
to its data: tests.bench.compaction_steady.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.local import LocalObjectStore
from millrace.runtime.objectstore.metered import MeteredObjectStore
from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.ids import NO_OBJECT, CommittedStreamObject, UploadCommit
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.writer import FinishedObject, ObjectWriter
from tests.bench.report import Row, table
from tests.s3stream.build import CLUSTER_ID
from tests.s3stream.compaction_build import CompactingCatalog, SteppedClock

GIB = 1 << 30
SOURCES = 8
STREAMS = 40
BYTES_TARGET, CPU_S_TARGET = 1.2, 6.0


class Meter:
    """Counts and bytes by operation."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.sent_bytes = self.received_bytes = 0

    def on_operation(self, operation: str, outcome: str, sent: int, received: int, elapsed_ms: float) -> None:
        self.counts[operation] += 1
        self.sent_bytes += sent
        self.received_bytes += received


class Bench:
    def __init__(self, bare: ObjectStore, memory_bytes: int) -> None:
        self.bare = bare
        self.meter = Meter()
        self.clock = SteppedClock()
        self.catalog = CompactingCatalog(self.clock)
        settings = CompactionSettings(memory_bytes=memory_bytes)
        store = MeteredObjectStore(bare, self.meter)
        self.work = Work(store, self.catalog, settings, CLUSTER_ID, self.clock)
        self.live_bytes = 0

    async def put(self, finished: FinishedObject, *, is_set: bool) -> None:
        object_id = await self.catalog.prepare(1, 3_600_000)
        await self.bare.put(object_key(CLUSTER_ID, object_id), finished.parts)
        self.live_bytes += finished.size_bytes
        if is_set:
            await self.catalog.commit_upload(
                UploadCommit(object_id, finished.size_bytes, finished.ranges, ())
            )
            return
        own = CommittedStreamObject(object_id, finished.size_bytes, finished.ranges[0])
        await self.catalog.commit_upload(UploadCommit(NO_OBJECT, 0, (), (own,)))

    async def fill_set(self, size_bytes: int, entry_bytes: int) -> None:
        """A set object: a quarter of the streams hold nine tenths of it."""
        writer = ObjectWriter()
        for stream_id in range(STREAMS):
            share = 0.9 / (STREAMS // 4) if stream_id % 4 == 0 else 0.1 / (STREAMS - STREAMS // 4)
            writer.add(
                stream_id, self.entries(stream_id, int(size_bytes * share) // entry_bytes + 1, entry_bytes)
            )
        await self.put(writer.finish(), is_set=True)

    def entries(self, stream_id: int, count: int, entry_bytes: int) -> Sequence[Entry]:
        if stream_id not in self.catalog.streams:
            self.catalog.open(stream_id)
        start = self.catalog.streams[stream_id].end
        data = memoryview(random.Random(stream_id).randbytes(entry_bytes))
        return [Entry(start + n, 1, data) for n in range(count)]

    async def measure(self, what: str) -> list[Row]:
        self.meter.counts.clear()
        self.meter.sent_bytes = self.meter.received_bytes = 0
        scale = GIB / self.live_bytes
        cpu, wall = time.process_time(), time.perf_counter()
        await SetCompactor(self.work).round()
        await StreamCompactor(self.work).round()
        cpu, wall = (time.process_time() - cpu) * scale, (time.perf_counter() - wall) * scale
        read, written = self.meter.received_bytes / self.live_bytes, self.meter.sent_bytes / self.live_bytes
        requests = ", ".join(
            f"{name} {count * scale:.0f}" for name, count in sorted(self.meter.counts.items())
        )
        counts = self.work.counts
        assert not counts.skipped, counts
        return [
            Row(
                what,
                f"{self.live_bytes / MIB:.0f} MiB",
                f"{counts.objects_in} objects became {counts.objects_out}",
            ),
            Row("  read", f"{read:.3f} of it", "", f"{BYTES_TARGET}", read < BYTES_TARGET),
            Row("  written", f"{written:.3f} of it", "", f"{BYTES_TARGET}", written < BYTES_TARGET),
            Row(
                "  CPU a GiB",
                f"{cpu:.2f} s",
                f"{wall:.1f} s in all",
                f"{CPU_S_TARGET:.0f} s",
                cpu < CPU_S_TARGET,
            ),
            Row("  requests a GiB", f"{sum(self.meter.counts.values()) * scale:.0f}", requests),
        ]


async def sets(folder: Path, mib: int, entry_bytes: int, memory_mib: int) -> list[Row]:
    store = await LocalObjectStore.open(str(folder))
    try:
        bench = Bench(store, memory_mib * MIB)
        for _ in range(SOURCES):
            await bench.fill_set(mib * MIB // SOURCES, entry_bytes)
        return await bench.measure(f"sets, entries of {entry_bytes} B, {memory_mib} MiB of memory")
    finally:
        await store.close()
        shutil.rmtree(folder)


async def links(folder: Path, mib: int) -> list[Row]:
    store = await LocalObjectStore.open(str(folder))
    try:
        bench = Bench(store, 64 * MIB)
        for _ in range(SOURCES):
            writer = ObjectWriter()
            writer.add(1, bench.entries(1, mib * MIB // SOURCES // 65_536, 65_536))
            await bench.put(writer.finish(), is_set=False)
        return await bench.measure("objects of a stream, linked")
    finally:
        await store.close()
        shutil.rmtree(folder)


async def run(options: argparse.Namespace) -> None:
    folder = Path(options.folder).resolve() / str(os.getpid())
    rows: list[Row] = []
    for entry_bytes, memory_mib in ((16_384, 256), (1_000, 256), (100, 256), (100, 16), (16_384, 64)):
        # Entries of 100 bytes take long to make.
        mib = options.mib if entry_bytes > 100 else options.mib // 4
        rows += await sets(folder, mib, entry_bytes, memory_mib)
    rows += await links(folder, options.mib)
    print(table(rows))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="build/compaction", help="where there is room for twice the data")
    parser.add_argument("--mib", type=int, default=512)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
