"""A node under everything at once for a long while, and its memory flat: `make soak`.

    python -m tests.bench.soak [--seconds 600] [--folder DIR]

At full rate: batches of 64 KiB, single small records, a reader at the tail of each large partition, a group of three with one member that goes
and comes, topics made, written and deleted, retention that keeps the disk bounded. Judged, not watched: the highest resident memory after
the warm-up against what the settings allow, and its growth by a robust line (flat.py). Exit code 1 when it is not flat, or when any part
of the load stood still.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.bench.fetch_load import FetchLoad
from tests.bench.flat import Flatness, judge
from tests.bench.produce_load import ProduceLoad, ask, batch_of, produce_frame
from tests.bench.report import Row, table
from tests.bench.soak_group import Group
from tests.live import LiveBroker

MIB = 1 << 20
MEMORY_BYTES = 256 * MIB
# Beside what memory.max.bytes bounds: interpreter and code (35 MiB), the allocator's slack, WAL blocks and objects under way.
BESIDE_BYTES = 192 * MIB
GROWTH_BYTES_MAX = 24 * MIB
WARM_PART = 1 / 3
SAMPLE_S, LOOK_S = 0.25, 2.0
LARGE_PARTITIONS, SMALL_PARTITIONS, SMALL_CONNECTIONS = 4, 4, 8
SETTINGS = {
    "memory.max.bytes": str(MEMORY_BYTES),
    "log.retention.check.interval.ms": "1000",
    "s3.object.delete.retention.minutes": "0",
    "s3.wal.upload.interval.ms": "2000",
}
DISK_BYTES_MAX = 6 << 30
CHURN_KEPT = 4


@dataclass
class Story:
    """What happened; samples are (seconds since the start, bytes)."""

    seconds: float = 0.0
    warm_s: float = 0.0
    memory: list[tuple[float, int]] = field(default_factory=list)
    disk_bytes: list[int] = field(default_factory=list)
    requests: int = 0
    bytes_in: int = 0
    latencies_s: list[float] = field(default_factory=list)  # one window's median each
    churned: int = 0
    fetches: int = 0
    behind: int = 0
    consumed: int = 0
    rejoins: int = 0

    def verdict(self) -> Flatness:
        samples = [sample for sample in self.memory if sample[0] >= self.warm_s]
        return judge(samples, MEMORY_BYTES + BESIDE_BYTES, GROWTH_BYTES_MAX)

    def eighths(self) -> list[int]:
        """The median of each eighth of the samples."""
        step = len(self.memory) // 8
        return [
            int(statistics.median(size for _, size in self.memory[at : at + step])) for at in range(0, 8 * step, step)
        ]

    def stood_still(self) -> list[str]:
        """Parts of the load that did nothing: such a run shows nothing."""
        parts = {"produce": self.requests, "fetch": self.fetches, "topics": self.churned, "group": self.consumed}
        return [name for name, count in parts.items() if not count]


async def make(port: int, topic: str, partitions: int, **configs: int) -> None:
    texts = [CreatableTopicConfig(name.replace("_", "."), str(value)) for name, value in configs.items()]
    wanted = CreatableTopic(topic, num_partitions=partitions, replication_factor=-1, configs=texts)
    answer = await ask(port, 19, 5, CreateTopicsRequest(topics=[wanted], timeout_ms=60_000))
    assert answer.topics[0].error_code == 0, answer


async def drop(port: int, topic: str) -> None:
    answer = await ask(port, 20, 6, DeleteTopicsRequest([DeleteTopicState(topic)], timeout_ms=60_000))
    assert answer.responses[0].error_code == 0, answer


async def churn(port: int, story: Story) -> None:
    """A topic after the other: made, written to, deleted a few rounds later."""
    number = 0
    while True:
        await make(port, f"churn-{number}", 2, retention_ms=10_000)
        load = await ProduceLoad(
            port, [produce_frame(f"churn-{number}", index, batch_of(10, 500)) for index in (0, 1)], 1
        ).start()
        await load.measure(0.3)
        await load.stop()
        if number >= CHURN_KEPT:
            await drop(port, f"churn-{number - CHURN_KEPT}")
        number += 1
        story.churned += 1
        await asyncio.sleep(0.5)


def folder_bytes(folder: Path) -> int:
    """Files and folders may go meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


async def watch(broker: LiveBroker, loads: list[ProduceLoad], story: Story, seconds: float) -> None:
    """Samples until the time is over. It is warm after a part of the time, and not before what was produced would have filled every
    cache. The disk is looked at now and then, and must stay bounded."""
    began = time.monotonic()
    looked_s = -LOOK_S
    warm_for_s, measured_s = seconds * WARM_PART, seconds * (1 - WARM_PART)
    while (now_s := time.monotonic() - began) < story.warm_s + measured_s or not story.warm_s:
        story.memory.append((now_s, broker.memory_bytes()))
        if not story.warm_s and now_s > warm_for_s and story.bytes_in > MEMORY_BYTES:
            story.warm_s = now_s
        if now_s - looked_s > LOOK_S:
            looked_s = now_s
            story.disk_bytes.append(await asyncio.to_thread(folder_bytes, broker.folder))
            assert story.disk_bytes[-1] < DISK_BYTES_MAX, f"the disk fills up: {story.disk_bytes[-1] / MIB:.0f} MiB"
            take(loads, story)
        await asyncio.sleep(SAMPLE_S)
    story.seconds = time.monotonic() - began
    take(loads, story)


def take(loads: list[ProduceLoad], story: Story) -> None:
    """Moves the loads' counts into the story, so that the client's own memory is bounded too."""
    for load in loads:
        result = load.result
        story.requests += result.requests_count
        story.bytes_in += result.bytes_count
        if result.latencies_s:
            story.latencies_s.append(statistics.median(result.latencies_s))
        result.requests_count = result.bytes_count = 0
        result.latencies_s.clear()


async def run(broker: LiveBroker, seconds: float) -> Story:
    """The broker is up, with SETTINGS; it stays up."""
    port, story = broker.port, Story()
    await make(port, "large", LARGE_PARTITIONS, retention_bytes=48 * MIB, segment_bytes=8 * MIB)
    await make(port, "small", SMALL_PARTITIONS, retention_bytes=8 * MIB, segment_bytes=2 * MIB)
    readers = await FetchLoad(port, "large", list(range(LARGE_PARTITIONS))).start()
    batch = batch_of(64, 1000)
    large = ProduceLoad(port, [produce_frame("large", index, batch) for index in range(LARGE_PARTITIONS)], 2)
    frames = [produce_frame("small", index % SMALL_PARTITIONS, batch_of(1, 100)) for index in range(SMALL_CONNECTIONS)]
    loads = [large, ProduceLoad(port, frames, 1)]
    with Group(broker.address, "small") as group:
        for load in loads:
            await load.start()
        churning = asyncio.ensure_future(churn(port, story))
        watching = asyncio.ensure_future(watch(broker, loads, story, seconds))
        others = [consumer.done for consumer in readers.consumers]
        await asyncio.wait([churning, watching, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in (churning, *others):
            if task.done():
                await task  # only a failure ends one of them
        await watching
        churning.cancel()
        for load in loads:
            await load.stop()
        await asyncio.gather(churning, return_exceptions=True)
    story.fetches = readers.count.fetches_count
    story.behind = sum(reader.high_watermark - reader.offset for reader in readers.consumers)
    await readers.stop()
    story.consumed, story.rejoins = group.consumed, group.rejoins
    return story


def rows(story: Story) -> list[Row]:
    found = story.verdict()
    first, last = story.memory[0][1], story.memory[-1][1]
    bound, growth = f"{found.bound_bytes / MIB:.0f} MiB", f"{found.growth_bytes_max / MIB:.0f} MiB"
    rate = f"{story.requests / story.seconds:,.0f} requests/s"
    return [
        Row("time", f"{story.seconds:.0f} s", f"first {story.warm_s:.0f} s are warm-up"),
        Row("produced", f"{story.bytes_in / 1e9:.2f} GB", f"{story.bytes_in / 1e6 / story.seconds:.0f} MB/s, {rate}"),
        Row("  median wait of a request", f"{1000 * statistics.median(story.latencies_s):.1f} ms"),
        Row("tail fetches", f"{story.fetches:,}", f"{story.behind} records behind at the end"),
        Row("read by the group", f"{story.consumed:,} records", f"{story.rejoins} times a member left and came"),
        Row("topics made and deleted", f"{story.churned}"),
        Row("disk, highest", f"{max(story.disk_bytes) / MIB:.0f} MiB", "WAL, objects and metadata"),
        Row(
            "memory, first and last",
            f"{first / MIB:.0f}, {last / MIB:.0f} MiB",
            f"memory.max.bytes {MEMORY_BYTES / MIB:.0f} MiB",
        ),
        Row("  by eighths, MiB", ", ".join(f"{size / MIB:.0f}" for size in story.eighths())),
        Row("memory, highest", f"{found.peak_bytes / MIB:.0f} MiB", "", bound, found.peak_bytes <= found.bound_bytes),
        Row(
            "memory, growth by the line",
            f"{found.grown_bytes / MIB:+.1f} MiB",
            "",
            growth,
            found.grown_bytes <= found.growth_bytes_max,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--folder", default="build/soak", help="emptied, and removed at the end")
    options = parser.parse_args()
    folder = Path(options.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with LiveBroker(folder, SETTINGS, wal="512MiB") as broker:
            try:
                story = uvloop.run(run(broker, options.seconds))
            except Exception:
                print("the broker's last words:", broker.log_path.read_text()[-2000:], sep="\n", file=sys.stderr)
                raise
            code = broker.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(rows(story)))
    for name in story.stood_still():
        print(f"nothing was done by: {name}")
    return 0 if story.verdict().is_flat and not story.stood_still() and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
