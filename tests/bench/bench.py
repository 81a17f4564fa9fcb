"""Every figure the broker is held to, in one run, beside the device underneath: `make bench`.

    python -m tests.bench.bench [--folder DIR] [--only WORD,...]

A broker process with its default settings, the load from this process beside it. Where a figure depends on the disk, runs alternate with runs
of the device itself (same file system, same flags), so that a neighbour's load hits both alike, and the ratio is what counts. CPU is that of the
broker's whole process, uploads included. Nothing here fails by time: a missed target is a word in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.bench.device import Device
from tests.bench.fetch_load import FetchLoad
from tests.bench.large import measure_large
from tests.bench.produce_load import ProduceLoad, ask, batch_of, make_topic, produce_frame
from tests.bench.report import OthersCpu, Row, table
from tests.live import LiveBroker

MIB = 1 << 20
PARTITIONS = 8


class Bench:
    """`broker` is up between the parts; parts that need one of their own make it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.device = Device(folder)
        self.rows: list[Row] = []
        self._broker: LiveBroker | None = None

    @property
    def broker(self) -> LiveBroker:
        if self._broker is None:
            self._broker = LiveBroker(self.folder / "main", {"num.partitions": str(PARTITIONS)}).start()
        return self._broker

    def close(self) -> None:
        if self._broker is not None:
            self._broker.kill()
        self.device.close()

    def add(self, *row: str | bool | None) -> None:
        self.rows.append(Row(*row))  # type: ignore[arg-type]
        print(".", end="", flush=True, file=sys.stderr)

    # -- parts

    async def start(self) -> None:
        """Fresh data, then with data: the median of five each; and what the interpreter and the loop alone take."""
        fresh, again, bare = [], [], []
        for number in range(5):
            bare.append(bare_start_s())
            broker = LiveBroker(self.folder / f"start{number}").start()
            fresh.append(broker.ready_seconds)
            if number == 0:
                await asyncio.sleep(1)
                idle_bytes = broker.memory_bytes()
            broker.stop()
            again.append(broker.start().ready_seconds)
            broker.kill()
            shutil.rmtree(broker.folder)
        alone = f"python, asyncio and uvloop alone {statistics.median(bare):.2f} s"
        first, second = statistics.median(fresh), statistics.median(again)
        self.add("ready, first start", f"{first:.2f} s", alone, "0.5 s", first < 0.5)
        self.add("ready, with data", f"{second:.2f} s", "", "0.5 s", second < 0.5)
        self.add("idle memory", f"{idle_bytes / MIB:.0f} MiB", "", "80 MiB", idle_bytes < 80 * MIB)

    async def large(self) -> None:
        """64 KiB batches, rounds of broker, device and floor by turns."""
        found = await measure_large(self.broker, self.device, self.folder)
        rate = statistics.median(run.bytes_per_second for run in found.runs)
        device = f"device, 64 KiB one at a time {statistics.median(found.device_rates) / 1e6:.0f} MB/s"
        self.add("produce, 64 KiB, acks=all", f"{rate / 1e6:.0f} MB/s", device, "", None)
        self.add(
            "  of the device, median of pairs", f"{100 * found.of_device:.0f} %", "", "60 %", found.of_device >= 0.6
        )
        worst = statistics.median(run.quantile_ms(0.99) for run in found.runs)
        self.add("  p99 at 16 in flight", f"{worst:.1f} ms")
        floor = f"received, copied, written and answered, no more: {found.floor_us:.0f} us"
        self.add("  CPU a request", f"{found.cpu_us:.0f} us", floor, "100 us", found.cpu_us < 100)
        parts = f"threads {found.threads_us:.0f} us, on the loop {found.upload_loop_us:.0f} us"
        self.add("    of it uploads", f"{found.uploads_us:.0f} us", parts)
        self.add("    the rest", f"{found.cpu_us - found.uploads_us:.0f} us")
        self.add("  memory", f"{self.broker.memory_bytes() / MIB:.0f} MiB")

    async def sizes(self) -> None:
        """What a request of one batch costs by its size; 16 KiB is what clients fill a batch to unless told otherwise (batch.size). Uploads
        included, also those that are under way when the load ends."""
        broker, name = self.broker, "sizes"
        await make_topic(broker.port, name)
        for kib in (4, 16, 32):
            frames = [produce_frame(name, index, batch_of(kib, 1000)) for index in range(4)]
            load = await ProduceLoad(broker.port, frames, 4).start()
            await asyncio.sleep(2)
            before = broker.cpu_seconds()
            run = await load.measure(4)
            await load.stop()
            await asyncio.sleep(1)
            cpu_us = 1e6 * (broker.cpu_seconds() - before) / load.result.requests_count
            self.add(
                f"CPU a request of {kib} KiB",
                f"{cpu_us:.0f} us",
                f"{run.bytes_per_second / 1e6:.0f} MB/s",
                "100 us",
                cpu_us < 100,
            )

    async def small(self) -> None:
        """One record of 100 bytes a request, 50 connections, one request in flight on each."""
        broker, name = self.broker, "small"
        await make_topic(broker.port, name)
        frames = [produce_frame(name, index % PARTITIONS, batch_of(1, 100)) for index in range(50)]
        load = await ProduceLoad(broker.port, frames, 1).start()
        await asyncio.sleep(1)
        others, before, own = OthersCpu([broker.pid]), broker.cpu_seconds(), time.process_time()
        run = await load.measure(6)
        cpu_us = 1e6 * (broker.cpu_seconds() - before) / run.requests_count
        client_us = 1e6 * (time.process_time() - own) / run.requests_count
        busy = f"client {client_us:.0f} us a request; others {others.percent():.0f} % of the machine"
        await load.stop()
        rate = run.requests_per_second
        self.add("produce, 1 record, 50 connections", f"{rate:,.0f} /s", busy, "5,000 /s", rate >= 5000)
        self.add("  CPU a request", f"{cpu_us:.0f} us", "", "100 us", cpu_us < 100)
        self.add("  p50, p99", f"{run.quantile_ms(0.5):.1f}, {run.quantile_ms(0.99):.1f} ms")

    async def latency(self) -> None:
        """1 MB/s in batches of 10 KB over ten connections, while nothing else is asked; the device at the same pace before and after."""
        broker, name = self.broker, "latency"
        await make_topic(broker.port, name)
        frames = [produce_frame(name, index % PARTITIONS, batch_of(10, 1000)) for index in range(10)]
        before = self.device.write(12 << 10, 3, pace_s=0.01)
        load = await ProduceLoad(broker.port, frames, 1, pace_s=0.1).start()
        await asyncio.sleep(1)
        run = await load.measure(15)
        await load.stop()
        after = self.device.write(12 << 10, 3, pace_s=0.01)
        p99 = run.quantile_ms(0.99)
        raw = (before.quantile_ms(0.99) + after.quantile_ms(0.99)) / 2
        beside = f"device, 12 KiB at that pace {raw:.1f} ms"
        self.add("p99 of acks=all at 1 MB/s", f"{p99:.1f} ms", beside, "10 ms", p99 < 10)
        self.add("  p50, p99.9", f"{run.quantile_ms(0.5):.2f}, {run.quantile_ms(0.999):.1f} ms")

    async def tail(self) -> None:
        """A consumer a partition beside the producers at full rate: what it has read when they stop, of what they wrote."""
        for label, name, records, value, frames_count, depth in (
            ("tail fetch beside 64 KiB batches", "tail-large", 64, 1000, 4, 4),
            ("tail fetch beside single records", "tail-small", 1, 100, 48, 1),
        ):
            broker = self.broker
            await make_topic(broker.port, name, 4)
            batch = batch_of(records, value)
            frames = [produce_frame(name, index % 4, batch) for index in range(frames_count)]
            readers = await FetchLoad(broker.port, name, list(range(4))).start()
            load = await ProduceLoad(broker.port, frames, depth).start()
            await asyncio.sleep(1)
            cpu, fetched, batches = broker.cpu_seconds(), readers.count.fetches_count, readers.count.batches_count
            run = await load.measure(4)
            cpu_s, batches = broker.cpu_seconds() - cpu, readers.count.batches_count - batches
            fetches = readers.count.fetches_count - fetched
            behind = sum(reader.high_watermark - reader.offset for reader in readers.consumers) / records
            await load.stop()
            await readers.stop()
            share = batches / run.requests_count
            beside = f"{run.requests_per_second:,.0f} batches/s, {fetches / run.seconds:,.0f} fetches/s, {behind:.0f} batches behind"
            self.add(label, f"{100 * share:.0f} %", beside, "keeps up", share > 0.98)
            self.add("  CPU a batch in and out", f"{1e6 * cpu_s / run.requests_count:.0f} us")

    async def fetch_cost(self) -> None:
        """The same paced produce without consumers and with ten at the tail: what a fetch adds."""
        broker, name = self.broker, "fetch-cost"
        await make_topic(broker.port, name, 1)
        frames = [produce_frame(name, 0, batch_of(1, 1000))] * 5
        load = await ProduceLoad(broker.port, frames, 1, pace_s=0.01).start()
        costs = []
        for _ in range(3):
            await asyncio.sleep(0.3)
            before = broker.cpu_seconds()
            await asyncio.sleep(1.5)
            alone_s = broker.cpu_seconds() - before
            readers = await FetchLoad(broker.port, name, [0] * 10).start(await end_of(broker.port, name))
            await asyncio.sleep(1.0)
            before, counted = broker.cpu_seconds(), readers.count.fetches_count
            await asyncio.sleep(1.5)
            fetches = readers.count.fetches_count - counted
            costs.append(1e6 * (broker.cpu_seconds() - before - alone_s) / fetches)
            await readers.stop()
        await load.stop()
        cost_us = statistics.median(costs)
        self.add("CPU a tail fetch", f"{cost_us:.0f} us", "10 consumers of one partition, 1 KB", "60 us", cost_us < 60)

    async def partitions(self) -> None:
        """10,000 partitions in ten topics; a restart; then nothing."""
        broker = LiveBroker(self.folder / "partitions").start()
        topics = [CreatableTopic(f"idle-{number}", num_partitions=1000, replication_factor=-1) for number in range(10)]
        began = time.perf_counter()
        for topic in topics:
            response = await ask(broker.port, 19, 5, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
            assert response.topics[0].error_code == 0, response.topics[0]
        created_s = time.perf_counter() - began
        broker.stop()
        broker.start()
        await asyncio.sleep(1)
        before = broker.cpu_seconds()
        await asyncio.sleep(5)
        used = 100 * (broker.cpu_seconds() - before) / 5
        ready, memory = broker.ready_seconds, broker.memory_bytes() / MIB
        broker.kill()
        shutil.rmtree(broker.folder)
        beside = f"made in {created_s:.1f} s; {memory:.0f} MiB"
        self.add("ready, 10,000 idle partitions", f"{ready:.2f} s", beside, "1 s", ready < 1)
        self.add("  CPU over 5 s", f"{used:.1f} % of a core", "", "none", used < 1)


async def end_of(port: int, topic: str) -> int:
    """The latest offset of partition 0."""
    wanted = ListOffsetsTopic(topic, [ListOffsetsPartition(0, timestamp=-1)])
    response = await ask(port, 2, 5, ListOffsetsRequest(replica_id=-1, topics=[wanted]))
    return int(response.topics[0].partitions[0].offset)


def bare_start_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import asyncio, uvloop"], check=True)
    return time.perf_counter() - began


PARTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "start": Bench.start,
    "large": Bench.large,
    "sizes": Bench.sizes,
    "small": Bench.small,
    "latency": Bench.latency,
    "tail": Bench.tail,
    "fetch": Bench.fetch_cost,
    "partitions": Bench.partitions,
}


async def run(options: argparse.Namespace) -> None:
    folder = Path(options.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bench = Bench(folder)
    others, began = OthersCpu([]), time.perf_counter()
    try:
        for name in options.only.split(",") if options.only else PARTS:
            await PARTS[name](bench)
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(file=sys.stderr)
    flags = "direct" if bench.device.is_direct else "buffered"
    print(f"{os.cpu_count()} processors, {flags} synchronous writes, {time.perf_counter() - began:.0f} s")
    print(f"processors busy, brokers under test included: {others.percent():.0f} %")
    print(table(bench.rows))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="build/bench", help="on the file system to be measured; emptied")
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
