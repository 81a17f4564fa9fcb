"""What claims cost a block WAL: the same log with a lock and with `fencing=claim`, beside what the device
itself takes for a write, and for a write and a read of 4 KiB behind it. `python -m tests.bench.claims`

Rounds alternate, so that a neighbour's load hits all alike; each figure is the median of its rounds. CPU is
this process's, all threads, for one append or one write.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field

from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.opening import open_block_descriptor
from millrace.runtime.disk.posix import PosixDisk
from millrace.wal.block.log import BlockWal
from millrace.wal.config import BlockWalSettings
from millrace.wal.log import WalOwner
from tests.bench.wal_bench import MIB, Result, fail, prepare, run_wal

CAPACITY_BYTES = 256 * MIB
FENCINGS = ("lock", "claim")
RAW = ("write", "write and read")
SIZES = (100, 4096, 65536, 1048576)
DEPTHS = (1, 16)


@dataclass(slots=True)
class Figures:
    """Of one way, over its rounds: microseconds, but for the rate in MB/s."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)

    def add(self, result: Result) -> None:
        ordered = sorted(result.latencies_s)
        self.p50.append(ordered[len(ordered) // 2] * 1e6)
        self.p99.append(ordered[int(len(ordered) * 0.99)] * 1e6)
        self.cpu.append(result.cpu_s / result.count * 1e6)
        self.rate.append(result.rate)

    def medians(self) -> tuple[float, float, float, float]:
        p50, p99, cpu, rate = (statistics.median(each) for each in (self.p50, self.p99, self.cpu, self.rate))
        return p50, p99, cpu, rate

    def line(self, name: str) -> str:
        p50, p99, cpu, rate = self.medians()
        return f"  {name:<22} p50 {p50:7.0f} us  p99 {p99:7.0f} us  CPU {cpu:6.1f} us  {rate:7.1f} MB/s"


def ratio_line(name: str, of: Figures, to: Figures) -> str:
    p50, p99, cpu, rate = (a / b for a, b in zip(of.medians(), to.medians(), strict=True))
    return f"  {name:<22} p50 {p50:7.2f}     p99 {p99:7.2f}     CPU {cpu:6.2f}     {rate:7.2f}"


def run_raw(path: str, size: int, count: int, *, reads: bool) -> Result:
    descriptor = open_block_descriptor(path, 0, "prefer")
    size = max(size, 4096)
    view, into = Arena(size).view, Arena(4096).view
    latencies = []
    places = (descriptor.size_bytes - 12288) // size
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        start = time.perf_counter()
        os.pwrite(descriptor.fd, view, 12288 + number % places * size)
        if reads:
            os.preadv(descriptor.fd, [into], 8192)
        latencies.append(time.perf_counter() - start)
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    os.close(descriptor.fd)
    return Result("raw", count, count * size, wall, used, latencies)


async def run_log(path: str, fencing: str, size: int, count: int, depth: int, driver: str) -> Result:
    settings = BlockWalSettings(capacity_bytes=CAPACITY_BYTES, fill_ahead_bytes=0, fencing=fencing)
    owner = WalOwner("bench", 1, time.time_ns() // 1_000_000, bytes(range(16)))
    wal = await BlockWal.open(PosixDisk(driver=driver), path, settings, owner, incarnation=os.urandom(16))
    async for _ in wal.recover():
        pass
    await wal.reset()
    wal.start(lambda end: None, fail)
    result = await run_wal(wal, size, count, depth, fencing)
    await wal.close()
    return result


async def compare(paths: dict[str, str], size: int, depth: int, options: argparse.Namespace) -> None:
    found = {name: Figures() for name in (*RAW, *FENCINGS)}
    count = max(100, min(options.count, options.mib * MIB // size))
    for number in range(options.rounds):
        for name in RAW:
            found[name].add(run_raw(paths["raw"], size, min(count, 1000), reads=name != "write"))
        for fencing in FENCINGS[:: 1 - 2 * (number % 2)]:
            found[fencing].add(await run_log(paths[fencing], fencing, size, count, depth, options.driver))
    print(f"{size} bytes, {depth} at once, {count} appends a round")
    for name, figures in found.items():
        print(figures.line(name if name in FENCINGS else f"device: {name}"))
    print(ratio_line("device, with read", found["write and read"], found["write"]))
    print(ratio_line("claim to lock", found["claim"], found["lock"]))


async def run(options: argparse.Namespace) -> None:
    folder = tempfile.mkdtemp(prefix="claims", dir=options.folder)
    paths = {name: os.path.join(folder, name) for name in ("raw", *FENCINGS)}
    try:
        for path in paths.values():
            prepare(path, CAPACITY_BYTES, "prefer")
        print(f"{folder}: driver {options.driver}, {options.rounds} rounds")
        for size in SIZES:
            for depth in DEPTHS:
                await compare(paths, size, depth, options)
    finally:
        for path in paths.values():
            os.unlink(path)
        os.rmdir(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=None)
    parser.add_argument("--driver", default="auto", choices=("auto", "uring", "thread"))
    parser.add_argument("--count", type=int, default=4000, help="appends a round, at most")
    parser.add_argument("--mib", type=int, default=96, help="bytes a round, at most")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import uvloop

    uvloop.run(run(options))


if __name__ == "__main__":
    main()
