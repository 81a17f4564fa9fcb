"""What compaction asks of the store at a steady load: `python -m tests.bench.compaction_steady [--gib N]
[--partitions N] [--machine GIB ...]`.

Uploads of the default size, in true sizes but of zeros, come as at a given rate over so many partitions;
compaction with default settings, and the memory that a broker has on a machine of so many GiB, looks at them
at its intervals until so much was produced. Printed for each: requests a GiB produced by cause, bytes read
and written, and dollars. What is not in its last place yet at the end is named: its way there is not in the
figures.

Bytes are counted over the whole run, indexes and all, and told twice. *A GiB compacted* is one of what
compactions replaced: a byte counts as often as it was in one, so the figure says what compaction reads and
writes beside the data itself. *A GiB produced* counts each byte once: the figure says how often it was copied
on its way to its last place, and has no target: a byte is merged twice, for one merge of all would read in
windows so small that it would be a thousand requests a GiB. Requests are held to their target from so much
memory on as docs/settings.md says.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter

from millrace.broker.config import load as load_config
from millrace.runtime.objectstore.metered import MeteredObjectStore
from millrace.s3stream.compaction.config import MIB, CompactionSettings
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.compaction.work import Work
from millrace.s3stream.ids import ObjectId, ObjectKind, UploadCommit
from millrace.s3stream.objects.composite import links_of
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.writer import ObjectWriter
from tests.bench.prices import DOLLARS_A_GET, DOLLARS_A_PUT
from tests.bench.report import Row, exit_code, table
from tests.bench.sparse_store import SparseObjectStore
from tests.s3stream.build import CLUSTER_ID
from tests.s3stream.compaction_build import CompactingCatalog, SteppedClock

GIB = 1 << 30
UPLOAD_BYTES = 500_000_000
REQUESTS_MAX = 100
CPU_S_MAX = 6  # a tenth of a core at a GiB a minute
HELD_FROM_BYTES = 144 * MIB  # of compaction's memory
BYTES_MAX = 1.2
LOOK_S = 300
LOOKS_A_STREAM_ROUND = 6


class Meter:
    def __init__(self) -> None:
        self.cause = ""
        self.gets: Counter[str] = Counter()
        self.puts: Counter[str] = Counter()
        self.read_bytes = self.written_bytes = 0

    def on_operation(self, operation: str, outcome: str, sent: int, received: int, elapsed_ms: float) -> None:
        (self.gets if operation in ("get", "head") else self.puts)[self.cause] += 1
        self.written_bytes += sent
        self.read_bytes += received


class Load:
    def __init__(self, partitions: int, settings: CompactionSettings) -> None:
        self.bare = SparseObjectStore()
        self.meter = Meter()
        self.clock = SteppedClock()
        self.catalog = CompactingCatalog(self.clock)
        self.partitions = partitions
        self.produced_bytes = self.deleted_count = self.compacted_bytes = 0
        self._sizes: dict[ObjectId, int] = {}
        self._counted = 0
        store = MeteredObjectStore(self.bare, self.meter)
        self.work = Work(store, self.catalog, settings, CLUSTER_ID, self.clock)
        self.sets, self.streams = SetCompactor(self.work), StreamCompactor(self.work)
        for stream_id in range(partitions):
            self.catalog.open(stream_id)

    async def upload(self, entry_bytes: int, entries_count: int) -> None:
        """A stream-set object of so much of every partition."""
        payload = memoryview(bytes(entry_bytes))
        writer = ObjectWriter()
        for stream_id in range(self.partitions):
            end = self.catalog.streams[stream_id].end
            writer.add(stream_id, [Entry(end + n, 1, payload) for n in range(entries_count)])
        made = writer.finish()
        object_id = await self.catalog.prepare(1, 3_600_000)
        await self.bare.put(object_key(CLUSTER_ID, object_id), made.parts)
        await self.catalog.commit_upload(UploadCommit(object_id, made.size_bytes, made.ranges, ()))
        self._sizes[object_id] = made.size_bytes
        self.produced_bytes += made.size_bytes

    async def look(self, *, is_stream_round: bool) -> None:
        self.clock.ms += LOOK_S * 1000
        self.meter.cause = "sets"
        await self.sets.round()
        if is_stream_round:
            self.meter.cause = "streams"
            await self.streams.round()
        self.count()
        await self.clean()

    def count(self) -> None:
        """What compactions replaced. What they only linked was not copied."""
        for commit in self.catalog.compactions[self._counted :]:
            self.compacted_bytes += sum(self._sizes.pop(object_id) for object_id in commit.compacted_ids)
            self._sizes |= {one.object_id: one.size_bytes for one in commit.stream_objects}
            self._sizes[commit.object_id] = commit.size_bytes
        self._counted = len(self.catalog.compactions)

    async def clean(self) -> None:
        for object_id, with_links in self.catalog.pending_deletions.items():
            key = object_key(CLUSTER_ID, object_id)
            links = links_of(memoryview(await self.bare.get(key))) if with_links else []
            self.deleted_count += 1 + len(links)
            await self.bare.delete([key, *(object_key(CLUSTER_ID, link.object_id) for link in links)])
        self.catalog.pending_deletions.clear()

    def kinds(self) -> str:
        found: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for one in self.catalog.live.values():
            name = ObjectKind(one.kind).name.lower()
            found[name] += 1
            size[name] += one.size_bytes
        return ", ".join(
            f"{count} {name} of {size[name] / GIB:.1f} GiB" for name, count in sorted(found.items())
        )


async def steady(options: argparse.Namespace, name: str, memory_bytes: int) -> list[Row]:
    load = Load(options.partitions, CompactionSettings(memory_bytes=memory_bytes))
    cpu, looks, due_bytes = time.process_time(), 0, 0.0
    while load.produced_bytes < options.gib * GIB:
        due_bytes += options.rate * MIB * LOOK_S
        while load.produced_bytes + UPLOAD_BYTES <= due_bytes:
            await load.upload(UPLOAD_BYTES // options.partitions // 2, 2)
        looks += 1
        await load.look(is_stream_round=looks % LOOKS_A_STREAM_ROUND == 0)
    await load.look(is_stream_round=True)
    assert not load.work.counts.skipped, load.work.counts
    gib = load.produced_bytes / GIB
    cpu_a_gib = (time.process_time() - cpu) / gib
    title = f"{name}: {memory_bytes // MIB} MiB of memory"
    return [
        Row(title, f"{gib:.0f} GiB produced", load.kinds()),
        *request_rows(load.meter, gib, is_held=memory_bytes >= HELD_FROM_BYTES),
        *byte_rows(load),
        Row(
            "  CPU a GiB",
            f"{cpu_a_gib:.1f} s",
            "making the uploads, too",
            f"{CPU_S_MAX} s",
            cpu_a_gib < CPU_S_MAX,
        ),
    ]


def request_rows(meter: Meter, gib: float, *, is_held: bool) -> list[Row]:
    gets, puts = sum(meter.gets.values()) / gib, sum(meter.puts.values()) / gib
    by_cause = "; ".join(
        f"{one}: {meter.gets[one] / gib:.0f} GET, {meter.puts[one] / gib:.0f} PUT" for one in meter.gets
    )
    dollars = f"${gets * DOLLARS_A_GET + puts * DOLLARS_A_PUT:.5f} a GiB with the GETs"
    rows = [Row("  GET a GiB", f"{gets:.0f}", by_cause), Row("  PUT a GiB", f"{puts:.0f}", dollars)]
    if is_held:
        for row, figure in zip(rows, (gets, puts), strict=True):
            row.target, row.is_met = str(REQUESTS_MAX), figure <= REQUESTS_MAX
    return rows


def byte_rows(load: Load) -> list[Row]:
    rows = []
    for name, all_bytes in (("compacted", load.compacted_bytes), ("produced", load.produced_bytes)):
        read, written = load.meter.read_bytes / all_bytes, load.meter.written_bytes / all_bytes
        row = Row(f"  GiB a GiB {name}", f"{read:.2f} read, {written:.2f} written")
        if name == "compacted":
            row.target, row.is_met = str(BYTES_MAX), max(read, written) < BYTES_MAX
        rows.append(row)
    return rows


def memories(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Of compaction: as a default broker on each machine has it, or as asked."""
    if options.memory:
        return [("as asked", memory_mib * MIB) for memory_mib in options.memory]
    split = [
        (gib, load_config({}, data_dir="/data", machine_bytes=gib * GIB).settings.memory)
        for gib in options.machine
    ]
    return [(f"a machine of {gib} GiB", one.compaction_bytes) for gib, one in split]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=60.0)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument(
        "--rate", type=float, default=20.0, help="MiB/s: how many uploads there are at each look"
    )
    parser.add_argument(
        "--machine", type=int, nargs="+", default=[4, 8, 16], help="GiB: whose default broker's memory"
    )
    parser.add_argument(
        "--memory", type=int, nargs="+", default=[], help="MiB: of compaction, in place of the machine's"
    )
    options = parser.parse_args()
    code = 0
    for name, memory_bytes in memories(options):
        rows = asyncio.run(steady(options, name, memory_bytes))
        print(table(rows), flush=True)
        code |= exit_code(rows)
    sys.exit(code)


if __name__ == "__main__":
    main()
