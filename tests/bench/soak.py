"""A node under everything at once for a long while, and its memory flat: `make soak`.

    python -m tests.bench.soak [--seconds 600] [--folder DIR] [--least MB/S]

At full rate: batches of 64 KiB, single small records, a reader at the tail of each large partition, a group
of three with one member that goes and comes, topics made, written and deleted, retention that keeps the disk
bounded. Judged, not watched (soak_story.py): every part of the load gets on between one look and the next,
readers keep up, the member that goes comes back and reads, the highest resident memory after the warm-up
against what the settings allow, and its growth by a robust line (flat.py). Exit code 1 when a row was missed.
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
from pathlib import Path

import uvloop

from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.bench.fetch_load import FetchLoad, behind_of
from tests.bench.produce_load import ProduceLoad, ask, batch_of, produce_frame
from tests.bench.report import exit_code, table
from tests.bench.soak_group import Group
from tests.bench.soak_story import MEMORY_BYTES, MIB, Look, Story, rows
from tests.live import LiveBroker

WARM_PART = 1 / 3
# Of a run of minutes; what this node takes of a machine with two cores is three times as much.
LEAST_BYTES_A_SECOND = 10e6
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
RECORDS_A_BATCH = 64
LEFT_LOOKS_MAX = 80


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


class Watch:
    """Looks at a load now and then, and writes what it saw into the story."""

    def __init__(
        self,
        broker: LiveBroker,
        story: Story,
        loads: dict[str, ProduceLoad],
        readers: FetchLoad,
        group: Group,
    ) -> None:
        self._broker = broker
        self._story = story
        self._loads = loads
        self._readers = readers
        self._group = group
        self._looked_s = time.monotonic()
        self._before = self._counted()

    async def run(self, seconds: float) -> None:
        """Samples until the time is over. It is warm after a part of the time, and not before what was
        produced would have filled every cache. The disk is looked at now and then, and must stay bounded."""
        story, began = self._story, time.monotonic()
        warm_for_s, measured_s = seconds * WARM_PART, seconds * (1 - WARM_PART)
        while (now_s := time.monotonic() - began) < story.warm_s + measured_s or not story.warm_s:
            story.memory.append((now_s, self._broker.memory_bytes()))
            if not story.warm_s and now_s > warm_for_s and story.bytes_in > MEMORY_BYTES:
                story.warm_s = now_s
            if time.monotonic() - self._looked_s > LOOK_S:
                await self._look()
            await asyncio.sleep(SAMPLE_S)
        story.seconds = time.monotonic() - began

    async def _look(self) -> None:
        story, broker = self._story, self._broker
        story.disk_bytes.append(await asyncio.to_thread(folder_bytes, broker.folder))
        assert story.disk_bytes[-1] < DISK_BYTES_MAX, (
            f"the disk fills up: {story.disk_bytes[-1] / MIB:.0f} MiB"
        )
        behind = await behind_of(broker.port, "large", self._readers.consumers)
        now_s = time.monotonic()
        done = {name: self._take(load) for name, load in self._loads.items()}
        now = self._counted()
        done |= {name: count - self._before[name] for name, count in now.items()}
        story.looks.append(Look(now_s - self._looked_s, done, behind))
        self._looked_s, self._before = now_s, now

    def _counted(self) -> dict[str, int]:
        """What only grows."""
        return {
            "fetch": self._readers.count.batches_count,
            "topics": self._story.churned,
            "group": self._group.consumed,
        }

    def _take(self, load: ProduceLoad) -> int:
        """Moves the load's counts into the story, so that the client's own memory is bounded too; how many
        requests there were."""
        result, story = load.result, self._story
        load.raise_failure()
        count = result.requests_count
        story.bytes_in += result.bytes_count
        if result.latencies_s:
            story.latencies_s.append(statistics.median(result.latencies_s))
        result.requests_count = result.bytes_count = 0
        result.latencies_s.clear()
        return count


async def run(broker: LiveBroker, seconds: float) -> Story:
    """The broker is up, with SETTINGS; it stays up."""
    port, story = broker.port, Story(RECORDS_A_BATCH)
    await make(port, "large", LARGE_PARTITIONS, retention_bytes=48 * MIB, segment_bytes=8 * MIB)
    await make(port, "small", SMALL_PARTITIONS, retention_bytes=8 * MIB, segment_bytes=2 * MIB)
    readers = await FetchLoad(port, "large", list(range(LARGE_PARTITIONS))).start()
    batch = batch_of(RECORDS_A_BATCH, 1000)
    large = ProduceLoad(port, [produce_frame("large", index, batch) for index in range(LARGE_PARTITIONS)], 2)
    frames = [
        produce_frame("small", index % SMALL_PARTITIONS, batch_of(1, 100))
        for index in range(SMALL_CONNECTIONS)
    ]
    loads = {"large": large, "small": ProduceLoad(port, frames, 1)}
    with Group(broker.address, "small") as group:
        for load in loads.values():
            await load.start()
        churning = asyncio.ensure_future(churn(port, story))
        watching = asyncio.ensure_future(Watch(broker, story, loads, readers, group).run(seconds))
        others = [consumer.done for consumer in readers.consumers]
        await asyncio.wait([churning, watching, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in (churning, *others):
            if task.done():
                await task  # only a failure ends one of them
        await watching
        churning.cancel()
        for load in loads.values():
            await load.stop()
        await asyncio.gather(churning, return_exceptions=True)
    story.left_behind = await left_behind(port, readers)
    await readers.stop()
    story.rejoins = group.rejoins
    return story


async def left_behind(port: int, readers: FetchLoad) -> int:
    """What readers have not read when nothing is written any more, and they had time."""
    for _ in range(LEFT_LOOKS_MAX):
        if not (behind := await behind_of(port, "large", readers.consumers)):
            break
        await asyncio.sleep(SAMPLE_S)
    return behind


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--folder", default="build/soak", help="emptied, and removed at the end")
    parser.add_argument(
        "--least", type=float, default=LEAST_BYTES_A_SECOND / 1e6, help="MB/s that have to be produced"
    )
    options = parser.parse_args()
    folder = Path(options.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with LiveBroker(folder, SETTINGS, wal="512MiB") as broker:
            try:
                story = uvloop.run(run(broker, options.seconds))
            except Exception:
                print(
                    "the broker's last words:", broker.log_path.read_text()[-2000:], sep="\n", file=sys.stderr
                )
                raise
            code = broker.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = rows(story, options.least * 1e6)
    print(table(found))
    return exit_code(found) or int(code != 0)


if __name__ == "__main__":
    sys.exit(main())
