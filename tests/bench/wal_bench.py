"""Block WAL against the raw file underneath, in one run: same file, same flags. `python -m
tests.bench.wal_bench`

Rounds alternate, so that a neighbour's load hits both alike; the best round of each is compared. Raw is one
write after the other of one size by `os.pwrite`; the WAL keeps so many appends outstanding and trims as it
goes. CPU is this process's, all threads, for one append or one write.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass

from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.opening import open_block_descriptor
from millrace.runtime.disk.posix import PosixDisk
from millrace.wal.block.log import BlockWal
from millrace.wal.config import BlockWalSettings
from millrace.wal.log import WalOwner

MIB = 1024 * 1024


@dataclass(slots=True)
class Result:
    name: str
    count: int
    bytes: int
    wall_s: float
    cpu_s: float
    latencies_s: list[float]

    @property
    def rate(self) -> float:
        return self.bytes / self.wall_s / 1e6

    def line(self) -> str:
        ordered = sorted(self.latencies_s)
        p50, p99 = ordered[len(ordered) // 2] * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6
        return (
            f"{self.name:<28} {self.rate:8.0f} MB/s {self.count / self.wall_s:9.0f} /s"
            f"   p50 {p50:7.0f} us  p99 {p99:7.0f} us   CPU {self.cpu_s / self.count * 1e6:6.1f} us"
        )


def run_raw(path: str, size: int, count: int, direct: str) -> Result:
    descriptor = open_block_descriptor(path, 0, direct)
    view = Arena(max(4096, size)).view
    latencies = []
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        start = time.perf_counter()
        os.pwrite(
            descriptor.fd,
            view[:size],
            8192 + number * size % (descriptor.size_bytes - 8192 - size) // 4096 * 4096,
        )
        latencies.append(time.perf_counter() - start)
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    os.close(descriptor.fd)
    return Result(f"raw {size // 1024} KiB, depth 1", count, count * size, wall, used, latencies)


async def run_wal(wal: BlockWal, size: int, count: int, depth: int, name: str) -> Result:
    loop = asyncio.get_running_loop()
    payload = os.urandom(size)
    waiting: list[tuple[int, float]] = []
    latencies: list[float] = []
    state = {"sent": 0, "trim": 0}
    done = loop.create_future()

    def send() -> None:
        while len(waiting) < depth and state["sent"] < count and wal.room_bytes > size:
            waiting.append((wal.append(payload).end, time.perf_counter()))
            state["sent"] += 1

    def on_confirmed(end: int) -> None:
        now = time.perf_counter()
        taken = 0
        while taken < len(waiting) and waiting[taken][0] <= end:
            latencies.append(now - waiting[taken][1])
            taken += 1
        del waiting[:taken]
        if wal.used_bytes > wal.capacity_bytes // 2 and not state["trim"]:
            state["trim"] = 1
            trims.append(asyncio.ensure_future(trim(end)))
        send()
        if not waiting and state["sent"] == count and not done.done():
            done.set_result(None)

    async def trim(end: int) -> None:
        await wal.trim(end)
        state["trim"] = 0
        send()

    trims: list[asyncio.Future[None]] = []
    wal._on_confirmed = on_confirmed
    began, cpu = time.perf_counter(), time.process_time()
    send()
    await done
    result = Result(
        name, count, count * size, time.perf_counter() - began, time.process_time() - cpu, latencies
    )
    await asyncio.gather(*trims)
    await wal.trim(wal.confirmed_end)
    return result


def fail(error: BaseException) -> None:
    print("the WAL failed:", repr(error))
    os._exit(1)


async def bench_size(
    path: str, options: argparse.Namespace, size: int, epoch: int
) -> tuple[Result, Result, int]:
    settings = BlockWalSettings(
        capacity_bytes=options.capacity_mib * MIB, fill_ahead_bytes=0, direct=options.direct,
        writes_in_flight=options.in_flight, eager_bytes=options.eager_kib * 1024,
    )  # fmt: skip
    best: dict[str, Result] = {}
    count = max(200, int(options.mib * MIB / size)) if size >= 16384 else options.small_count
    for _ in range(options.rounds):
        raw_size = max(4096, size)
        raw = run_raw(path, raw_size, min(count, 2000), options.direct)
        wal = await BlockWal.open(
            PosixDisk(driver=options.driver), path, settings, WalOwner("bench", 1, epoch)
        )
        epoch += 1
        async for _record in wal.recover():
            pass
        await wal.reset()
        wal.start(lambda end: None, fail)
        name = f"wal {size / 1024:g} KiB, depth {options.depth}"
        result = await run_wal(wal, size, count, options.depth, name)
        await wal.close()
        for found in (raw, result):
            if found.name not in best or found.rate > best[found.name].rate:
                best[found.name] = found
    return best[raw.name], best[name], epoch


def prepare(path: str, capacity_bytes: int, direct: str) -> bool:
    descriptor = open_block_descriptor(path, capacity_bytes, direct)
    zeros = Arena(MIB).view
    for start in range(0, capacity_bytes, MIB):
        os.pwrite(descriptor.fd, zeros[: min(MIB, capacity_bytes - start)], start)
    os.close(descriptor.fd)
    return descriptor.is_direct


async def run(options: argparse.Namespace) -> None:
    folder = tempfile.mkdtemp(prefix="walbench", dir=options.folder)
    path = os.path.join(folder, "wal")
    try:
        is_direct = prepare(path, options.capacity_mib * MIB, options.direct)
        print(
            f"{path}: {'direct' if is_direct else 'buffered'}, driver {options.driver}, {options.in_flight} "
            "in flight"
        )
        epoch = 1
        for size in [int(float(kib) * 1024) for kib in options.sizes.split(",")]:
            raw, wal, epoch = await bench_size(path, options, size, epoch)
            print(raw.line())
            print(wal.line())
            print(f"{'ratio of bytes per second':<28} {wal.rate / raw.rate:8.2f}")
    finally:
        os.unlink(path)
        os.rmdir(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=None)
    parser.add_argument("--driver", default="auto", choices=("auto", "uring", "thread"))
    parser.add_argument("--direct", default="prefer")
    parser.add_argument("--sizes", default="0.1,4,64,1024", help="payloads in KiB")
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--small-count", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--capacity-mib", type=int, default=256)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--eager-kib", type=int, default=32)
    parser.add_argument("--asyncio", action="store_true", help="plain asyncio instead of uvloop")
    options = parser.parse_args()
    if options.asyncio:
        asyncio.run(run(options))
    else:
        import uvloop

        uvloop.run(run(options))


if __name__ == "__main__":
    main()
