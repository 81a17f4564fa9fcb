"""Every figure the broker is held to, in one run, beside the device underneath: `make bench`.

    python -m tests.bench.bench [--folder DIR] [--only WORD,...] [--target NAME=NUMBER ...] [--short]

A broker process with its default settings, the load from this process beside it. Where a figure depends on
the disk, runs alternate with runs of the device itself (same file system, same flags), so that a neighbour's
load hits both alike, and the ratio is what counts. CPU is that of the broker's whole process, uploads
included. Exit code 1 when a target (targets.py) was missed, also one that is known to be. `--short`: a little
of everything (extent.py), whose figures say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from tests.bench.device import Device
from tests.bench.extent import FULL, SHORT, Extent
from tests.bench.fetch_load import FetchLoad, behind_of, ends_of
from tests.bench.large import measure_large
from tests.bench.produce_load import LoadResult, ProduceLoad, batch_of, make_topic, produce_frame
from tests.bench.report import OthersCpu, Row, exit_code, table
from tests.bench.starting import PARTITIONS, measure_many, measure_starts
from tests.bench.targets import KNOWN, Targets, is_kept
from tests.live import LiveBroker

MIB = 1 << 20


class Bench:
    """`broker` is up between the parts; parts that need one of their own make it."""

    def __init__(self, folder: Path, extent: Extent = FULL, targets: Targets | None = None) -> None:
        self.folder = folder
        self.extent = extent
        self.targets = targets or Targets()
        self.device = Device(folder, extent.device_bytes)
        self.rows: list[Row] = []
        self._broker: LiveBroker | None = None

    @property
    def broker(self) -> LiveBroker:
        if self._broker is None:
            settings = {"num.partitions": str(PARTITIONS)}
            self._broker = LiveBroker(self.folder / "main", settings, wal=self.extent.wal).start()
        return self._broker

    def stop_broker(self) -> None:
        """Until it is asked for again."""
        if self._broker is not None:
            assert self._broker.stop() == 0
            self._broker = None

    def close(self) -> None:
        if self._broker is not None:
            self._broker.kill()
        self.device.close()

    def add(self, what: str, figure: str, beside: str = "") -> None:
        """A figure without a target."""
        self._add(Row(what, figure, beside))

    def below(
        self, what: str, value: float, bound: float, unit: str, *, beside: str = "", digits: int = 0
    ) -> None:
        self._judge(what, f"{value:,.{digits}f} {unit}", beside, f"below {bound:,g} {unit}", value < bound)

    def above(self, what: str, value: float, bound: float, unit: str, *, beside: str = "") -> None:
        self._judge(what, f"{value:,.0f} {unit}", beside, f"{bound:,g} {unit}", value >= bound)

    def _judge(self, what: str, figure: str, beside: str, target: str, is_met: bool | None) -> None:
        self._add(Row(what, figure, beside, target, is_met, what.strip() in KNOWN))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(".", end="", flush=True, file=sys.stderr)

    # -- parts

    async def start(self) -> None:
        """Medians; with data: a topic that was written to, and an orderly stop or a kill -9 before."""
        found, most_s = await measure_starts(self.folder, self.extent), self.targets.ready_s
        alone = f"python, asyncio and uvloop alone {statistics.median(found.bare):.2f} s"
        filled = f"{self.extent.filled_bytes / 1e6:.0f} MB written"
        lost = (
            f"{statistics.median(found.lost_bytes) / 1e6:.0f} MB in the WAL: tests.bench.recovery judges that"
        )
        self.below("ready, first start", statistics.median(found.fresh), most_s, "s", beside=alone, digits=2)
        self.below(
            "ready, with data", statistics.median(found.with_data), most_s, "s", beside=filled, digits=2
        )
        self.add("  after kill -9", f"{statistics.median(found.killed):.2f} s", lost)
        self.below("idle memory", found.idle_bytes / MIB, self.targets.idle_mib, "MiB")

    async def large(self) -> None:
        """64 KiB batches, rounds of broker, device and floor by turns; the device before that with no broker
        up."""
        self.stop_broker()
        alone = self.device.write(64 << 10, self.extent.stretch(2)).bytes_per_second
        found = await measure_large(self.broker, self.device, self.folder, self.extent)
        rate = statistics.median(run.bytes_per_second for run in found.runs)
        device = f"device, 64 KiB one at a time {statistics.median(found.device_rates) / 1e6:.0f} MB/s"
        self.add("produce, 64 KiB, acks=all", f"{rate / 1e6:.0f} MB/s", device)
        rested = f"{found.restless_count} rounds began while uploads went on" if found.restless_count else ""
        least = self.targets.of_device_percent
        self.above("  of the device, median of pairs", 100 * found.of_device, least, "%", beside=rested)
        self.add(
            "  of the device with no broker up",
            f"{100 * rate / alone:.0f} %",
            f"device {alone / 1e6:.0f} MB/s",
        )
        worst = statistics.median(run.quantile_ms(0.99) for run in found.runs)
        self.add("  p99 at 16 in flight", f"{worst:.1f} ms")
        floor = f"received, copied, written and answered, no more: {found.floor_us:.0f} us"
        self.below("  CPU a request of 64 KiB", found.cpu_us, self.targets.request_us, "us", beside=floor)
        parts = f"threads {found.threads_us:.0f} us, on the loop {found.upload_loop_us:.0f} us"
        self.add("    of it uploads", f"{found.uploads_us:.0f} us", parts)
        self.add("    the rest", f"{found.cpu_us - found.uploads_us:.0f} us")
        self.add("  memory", f"{self.broker.memory_bytes() / MIB:.0f} MiB")

    async def sizes(self) -> None:
        """What a request of one batch costs by its size; 16 KiB is what clients fill a batch to unless told
        otherwise (batch.size). Uploads included, also those that are under way when the load ends."""
        broker, name = self.broker, "sizes"
        await make_topic(broker.port, name)
        for kib in (4, 16, 32):
            frames = [produce_frame(name, index, batch_of(kib, 1000)) for index in range(4)]
            load = await ProduceLoad(broker.port, frames, 4).start()
            await asyncio.sleep(self.extent.stretch(2))
            before = broker.cpu_seconds()
            run = await load.measure(self.extent.stretch(4))
            await load.stop()
            await asyncio.sleep(self.extent.stretch(1))
            cpu_us = 1e6 * (broker.cpu_seconds() - before) / load.result.requests_count
            rate = f"{run.bytes_per_second / 1e6:.0f} MB/s"
            self.below(f"CPU a request of {kib} KiB", cpu_us, self.targets.request_us, "us", beside=rate)

    async def small(self) -> None:
        """One record of 100 bytes a request, 50 connections, one request in flight on each."""
        broker, name = self.broker, "small"
        await make_topic(broker.port, name)
        frames = [produce_frame(name, index % PARTITIONS, batch_of(1, 100)) for index in range(50)]
        load = await ProduceLoad(broker.port, frames, 1).start()
        await asyncio.sleep(self.extent.stretch(1))
        others, before, own = OthersCpu([broker.pid]), broker.cpu_seconds(), time.process_time()
        run = await load.measure(self.extent.stretch(6))
        cpu_us = 1e6 * (broker.cpu_seconds() - before) / run.requests_count
        client_us = 1e6 * (time.process_time() - own) / run.requests_count
        busy = f"client {client_us:.0f} us a request; others {others.percent():.0f} % of the machine"
        await load.stop()
        rate = run.requests_per_second
        self.above(
            "produce, 1 record, 50 connections", rate, self.targets.requests_a_second, "/s", beside=busy
        )
        self.below("  CPU a request of one record", cpu_us, self.targets.request_us, "us")
        self.add("  p50, p99", f"{run.quantile_ms(0.5):.1f}, {run.quantile_ms(0.99):.1f} ms")

    async def latency(self) -> None:
        """1 MB/s in batches of 10 KB over ten connections, while nothing else is asked; the device at the
        same pace and at the same time, for a shared disk halts now and then for longer than the bound: what
        it does not give to anyone is not judged."""
        broker, name = self.broker, "latency"
        await make_topic(broker.port, name)
        frames = [produce_frame(name, index % PARTITIONS, batch_of(10, 1000)) for index in range(10)]
        load = await ProduceLoad(broker.port, frames, 1, pace_s=0.1).start()
        await asyncio.sleep(self.extent.stretch(1))
        seconds = self.extent.stretch(15)
        run, raw = await asyncio.gather(
            load.measure(seconds), asyncio.to_thread(self.device.write, 12 << 10, seconds, 0.01)
        )
        await load.stop()
        p99, raw_ms, bound = run.quantile_ms(0.99), raw.quantile_ms(0.99), self.targets.p99_ms
        beside = f"device, 12 KiB at that pace and time {raw_ms:.1f} ms"
        is_met = is_kept(p99, bound, raw_ms)
        beside += ": too busy a disk" if is_met is None else ""
        self._judge("p99 of acks=all at 1 MB/s", f"{p99:,.1f} ms", beside, f"below {bound:g} ms", is_met)
        raw_tail = f"device {raw.quantile_ms(0.5):.2f}, {raw.quantile_ms(0.999):.1f} ms"
        self.add("  p50, p99.9", f"{run.quantile_ms(0.5):.2f}, {run.quantile_ms(0.999):.1f} ms", raw_tail)

    async def tail(self) -> None:
        """A consumer a partition beside the producers at full rate: what it read of what they wrote
        meanwhile, and how far behind the end it is while they still write. The same load without consumers
        says what those cost it: they share a process."""
        for label, name, records, value, frames_count, depth in (
            ("tail fetch beside 64 KiB batches", "tail-large", 64, 1000, 4, 4),
            ("tail fetch beside single records", "tail-small", 1, 100, 48, 1),
        ):
            broker = self.broker
            await make_topic(broker.port, name, 4)
            batch = batch_of(records, value)
            frames = [produce_frame(name, index % 4, batch) for index in range(frames_count)]
            alone = await self._at_full_rate(frames, depth)
            readers = await FetchLoad(broker.port, name, list(range(4))).start(
                await ends_of(broker.port, name, 4)
            )
            load = await ProduceLoad(broker.port, frames, depth).start()
            await asyncio.sleep(self.extent.stretch(1))
            cpu, fetched, batches = (
                broker.cpu_seconds(),
                readers.count.fetches_count,
                readers.count.batches_count,
            )
            run = await load.measure(self.extent.stretch(4))
            cpu_s, batches = broker.cpu_seconds() - cpu, readers.count.batches_count - batches
            fetches = readers.count.fetches_count - fetched
            behind = await behind_of(broker.port, name, readers.consumers) / records
            await load.stop()
            await readers.stop()
            rate, targets = run.requests_per_second, self.targets
            beside = (
                f"{rate:,.0f} batches/s, without consumers {alone.requests_per_second:,.0f}; "
                f"{fetches / run.seconds:,.0f} fetches/s"
            )
            self.above(label, 100 * batches / run.requests_count, targets.tail_percent, "%", beside=beside)
            batches_behind = f"{behind:.0f} batches"
            self.below("  behind", behind / rate, targets.tail_behind_s, "s", beside=batches_behind, digits=3)
            self.add("  CPU a batch in and out", f"{1e6 * cpu_s / run.requests_count:.0f} us")

    async def _at_full_rate(self, frames: list[bytes], depth: int) -> LoadResult:
        load = await ProduceLoad(self.broker.port, frames, depth).start()
        await asyncio.sleep(self.extent.stretch(0.5))
        run = await load.measure(self.extent.stretch(2))
        await load.stop()
        return run

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
            await asyncio.sleep(self.extent.stretch(1.5))
            alone_s = broker.cpu_seconds() - before
            readers = await FetchLoad(broker.port, name, [0] * 10).start(await ends_of(broker.port, name, 1))
            await asyncio.sleep(self.extent.stretch(1.0))
            before, counted = broker.cpu_seconds(), readers.count.fetches_count
            await asyncio.sleep(self.extent.stretch(1.5))
            fetches = readers.count.fetches_count - counted
            costs.append(1e6 * (broker.cpu_seconds() - before - alone_s) / fetches)
            await readers.stop()
        await load.stop()
        cost_us = statistics.median(costs)
        beside = "10 consumers of one partition, 1 KB"
        self.below("CPU a tail fetch", cost_us, self.targets.tail_fetch_us, "us", beside=beside)

    async def partitions(self) -> None:
        """10,000 partitions in ten topics, a record in every tenth."""
        found, targets = await measure_many(self.folder, self.extent), self.targets
        count = self.extent.topics * self.extent.topic_partitions
        made = (
            f"made in {found.created_s:.1f} s, {found.written_count:,} of them written to; "
            f"{found.memory_bytes / MIB:.0f} MiB"
        )
        self.below(
            f"ready, {count:,} idle partitions",
            found.ready_s,
            targets.many_ready_s,
            "s",
            beside=made,
            digits=2,
        )
        self.below("  after kill -9", found.killed_s, targets.many_ready_s, "s", digits=2)
        self.below("  CPU of a core when idle", found.idle_percent, targets.many_cpu_percent, "%", digits=1)


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


async def run(options: argparse.Namespace) -> int:
    folder = Path(options.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bench = Bench(folder, SHORT if options.short else FULL, Targets().but(options.target))
    others, began = OthersCpu([]), time.perf_counter()
    try:
        for name in options.only.split(",") if options.only else PARTS:
            await PARTS[name](bench)
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(file=sys.stderr)
    flags = "direct" if bench.device.is_direct else "buffered"
    # builds differ by a quarter
    python = f"Python {platform.python_version()} of {os.path.realpath(sys.executable)}"
    print(
        f"{os.cpu_count()} processors, {flags} synchronous writes, {time.perf_counter() - began:.0f} s; "
        f"{python}"
    )
    print(f"processors busy, brokers under test included: {others.percent():.0f} %")
    print(table(bench.rows))
    return exit_code(bench.rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="build/bench", help="on the file system to be measured; emptied")
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}")
    parser.add_argument(
        "--target", action="append", default=[], help="NAME=NUMBER, another bound than that of targets.py"
    )
    parser.add_argument("--short", action="store_true", help="a little of everything: figures say nothing")
    return uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
