"""What a GiB costs in requests: `python -m tests.bench.cost [--gib N] [--partitions N]`.

A steady load over many partitions until so much is stored, then the store's requests by cause and their
price; then a trickle, where uploads go by age, with few and with many partitions: a few uploads by a broker,
then hours of them with compaction in virtual time (tests.bench.trickle). Requests are the broker's own count
of what it asked of the store, parts of multipart uploads included. What compaction adds to a steady load
needs more data than a run has: tests.bench.compaction_steady.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from pathlib import Path

import uvloop

from millrace.protocol.apis import API
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.bench.prices import DOLLARS_A_PUT
from tests.bench.produce_load import PRODUCE_VERSION, ProduceLoad, batch_of, make_topic
from tests.bench.report import Row, exit_code, table
from tests.bench.trickle import trickle as trickle_compacted
from tests.live import LiveBroker

MIB, GIB = 1 << 20, 1 << 30
FRAMES = 8
PUTS = ("put", "put_if_absent", "replace", "multipart_start", "multipart_part", "multipart_complete", "list")
GETS = ("get", "head")
INGEST_PUTS_MAX = 40
TRICKLE_INTERVAL_S = 2
# Longer than stream-set objects are left alone.
TRICKLE_HOURS = 3


def frames_of(topic: str, partitions: int, batch: bytes) -> list[bytes]:
    """Every partition once, in a few requests."""
    frames = []
    for first in range(FRAMES):
        data = [
            PartitionProduceData(index=index, records=batch) for index in range(first, partitions, FRAMES)
        ]
        wanted = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        frames.append(encode_request(API[0], PRODUCE_VERSION, 1, "load", wanted))
    return frames


def requests(broker: LiveBroker, operations: tuple[str, ...]) -> float:
    found = broker.metrics()
    asked = [f'millrace_store_requests_total{{operation="{name}"' for name in operations]
    return sum(count for key, count in found.items() if any(key.startswith(one) for one in asked))


async def steady(folder: Path, gib: float, partitions: int) -> list[Row]:
    quiet = {"s3.stream.set.object.compaction.interval.minutes": "1440"}
    broker = LiveBroker(folder / "steady", quiet).start()
    try:
        await make_topic(broker.port, "steady", partitions)
        load = await ProduceLoad(broker.port, frames_of("steady", partitions, batch_of(4, 1000)), 2).start()
        while broker.metrics()["millrace_store_sent_bytes_total"] < gib * GIB:
            await asyncio.sleep(0.1)
            load.raise_failure()
        puts, stored = requests(broker, PUTS), broker.metrics()["millrace_store_sent_bytes_total"] / GIB
        await load.stop()
        by_operation = ", ".join(
            f"{name} {requests(broker, (name,)):.0f}" for name in PUTS if requests(broker, (name,))
        )
        dollars = puts * DOLLARS_A_PUT / stored
        return [
            Row(f"ingestion, {partitions} partitions", f"{stored:.2f} GiB", by_operation),
            Row(
                "  PUT a GiB",
                f"{puts / stored:.0f}",
                f"${dollars:.5f} a GiB",
                f"{INGEST_PUTS_MAX}",
                puts / stored <= INGEST_PUTS_MAX,
            ),
        ]
    finally:
        broker.kill()
        shutil.rmtree(broker.folder)


async def trickle(folder: Path, partitions: int) -> Row:
    """A batch a second for every partition, uploaded by age: requests an interval, and what that is an hour
    at the default age."""
    settings = {"s3.wal.upload.interval.ms": str(1000 * TRICKLE_INTERVAL_S)}
    broker = LiveBroker(folder / f"trickle{partitions}", settings).start()
    try:
        await make_topic(broker.port, "trickle", partitions)
        load = await ProduceLoad(
            broker.port, frames_of("trickle", partitions, batch_of(1, 100)), 1, pace_s=1.0
        ).start()
        await asyncio.sleep(2 * TRICKLE_INTERVAL_S)
        before = requests(broker, PUTS)
        await asyncio.sleep(5 * TRICKLE_INTERVAL_S)
        puts = (requests(broker, PUTS) - before) / 5
        await load.stop()
        return Row(
            f"trickle, {partitions} partitions",
            f"{puts:.1f} PUT an upload",
            f"{60 * puts:.0f} an hour at an upload a minute",
            "2",
            puts <= 2,
        )
    finally:
        broker.kill()
        shutil.rmtree(broker.folder)


async def run(options: argparse.Namespace) -> int:
    folder = Path(options.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    rows = await steady(folder, options.gib, options.partitions)
    rows += [await trickle(folder, count) for count in (8, options.partitions)]
    for count in (10, options.partitions):
        rows += await trickle_compacted(count, TRICKLE_HOURS)
    print(table(rows))
    shutil.rmtree(folder, ignore_errors=True)
    return exit_code(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--folder", default="build/cost", help="on a disk with room for what is stored; emptied"
    )
    parser.add_argument("--gib", type=float, default=3.0, help="stored before the steady part is counted")
    parser.add_argument("--partitions", type=int, default=1000)
    sys.exit(uvloop.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
