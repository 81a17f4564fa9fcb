"""What a crash costs: a full WAL, kill -9, and the time until the broker serves again: `python -m
tests.bench.recovery [--mib N] [--kib N]`.

The ring is as large as `--mib` says and is filled until it takes no more: a file stands in the bucket's place
meanwhile, since a broker that can upload keeps two thirds of its ring empty. The bucket is a directory, so
that the disk is all there is to wait for. It runs twice: with memory for the whole ring, and with
what a default broker has on a machine of 4 GiB, whose log cache is half of what the ring holds.

Phases are the broker's own (`millrace_storage_recovery_seconds`): `open` opens and fences the WAL and the
streams, `read` is the WAL's reading and judging, `flush` what then remains of putting and committing objects,
`close` the closing of streams and the reset. Beside them stands what the same bytes take to be read and put
by a plain loop over the same disk, in the same run. Exit code 1 when a target is MISSED.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from tests.bench.produce_load import ProduceLoad, batch_of, make_topic, produce_frame
from tests.bench.report import Row, exit_code, table
from tests.live import LiveBroker

MIB = 1 << 20
TARGET_S_PER_GIB = 5.0
START_S = 3.0  # beside recovery: the interpreter, the metadata log, listeners
# an append is refused where the rest would not hold the headers and padding of what is under way
FULL_SHARE_MIN = 0.9
FULL_AFTER_S = 3.0  # without one byte more
DEFAULT_MEMORY_MIB = 1024
PHASES = ("open", "read", "flush", "close")


@contextlib.contextmanager
def out_of_reach(bucket: Path) -> Iterator[None]:
    """No request to the bucket in this directory succeeds."""
    away = bucket.with_name("away")
    bucket.rename(away)  # puts wait for a folder that is not there, as for a volume that is not mounted
    try:
        yield
    finally:
        away.rename(bucket)


async def fill(broker: LiveBroker, batch_kib: int) -> float:
    """Bytes in the WAL when it took no more, and the broker was killed."""
    batch = batch_of(batch_kib, 1000)
    load = await ProduceLoad(
        broker.port, [produce_frame("lost", index, batch) for index in range(8)], 2
    ).start()
    held, since = -1.0, time.monotonic()
    while time.monotonic() - since < FULL_AFTER_S:
        await asyncio.sleep(0.1)
        used = broker.metrics()["millrace_wal_used_bytes"]
        if used > held:
            held, since = used, time.monotonic()
    broker.kill()
    await asyncio.gather(load.stop(), return_exceptions=True)
    return held


def plain_copy_s(source: Path, target: Path, size_bytes: int) -> float:
    """The store's own time for the bytes: read from the WAL's file and written, synced, in parts as large as
    the uploader's."""
    began = time.perf_counter()
    buffer = bytearray(32 * MIB)
    with source.open("rb") as reading, target.open("wb") as writing:
        os.posix_fadvise(reading.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        done = 0
        while done < size_bytes:
            got = reading.readinto(buffer)
            writing.write(memoryview(buffer)[:got])
            done += got
        os.fsync(writing.fileno())
    target.unlink()
    return time.perf_counter() - began


async def recover(options: argparse.Namespace, name: str, memory_mib: int) -> list[Row]:
    folder = Path(options.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    wal, ring_bytes = folder / "data" / "wal", options.mib * MIB
    path = {"s3.wal.path": f"0@file://{wal}?capacity={ring_bytes}"}
    room = {"memory.max.bytes": str(4 * ring_bytes), "s3.wal.cache.size": str(2 * ring_bytes)}
    filled = LiveBroker(folder, {**path, **room}).start()
    try:
        await make_topic(filled.port, "lost", 8)
        with out_of_reach(folder / "data" / "objects"):
            held = await fill(filled, options.kib)
    finally:
        filled.kill()
    plain_s = plain_copy_s(wal, folder / "plain", int(held))
    broker = LiveBroker(folder, {**path, "memory.max.bytes": f"{memory_mib}MiB"})
    try:
        return rows_of(broker.start(), name, held / ring_bytes, held, plain_s, memory_mib)
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


def rows_of(
    broker: LiveBroker, name: str, full_share: float, held: float, plain_s: float, memory_mib: int
) -> list[Row]:
    found = broker.metrics()
    phases = {phase: found[f'millrace_storage_recovery_seconds{{phase="{phase}"}}'] for phase in PHASES}
    told = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in phases.items())
    recovered_s, bound_s = sum(phases.values()), TARGET_S_PER_GIB * held / (1 << 30) + plain_s
    peak_mib = broker.peak_memory_bytes() / MIB
    ready_s, ready_max_s = broker.ready_seconds, bound_s + START_S
    return [
        Row(
            f"{name}: WAL at the crash",
            f"{full_share:.0%} full",
            f"{held / MIB:.0f} MiB",
            f"{FULL_SHARE_MIN:.0%}",
            full_share >= FULL_SHARE_MIN,
        ),
        Row(
            f"{name}: recovered and committed",
            f"{recovered_s:.2f} s",
            told,
            f"{bound_s:.1f} s",
            recovered_s < bound_s,
        ),
        Row(
            f"{name}: writable",
            f"{ready_s:.2f} s",
            f"copied plainly {plain_s:.2f} s",
            f"{ready_max_s:.1f} s",
            ready_s < ready_max_s,
        ),
        Row(
            f"{name}: memory at most",
            f"{peak_mib:.0f} MiB",
            "of the whole process",
            f"{memory_mib} MiB, the setting",
            peak_mib < memory_mib,
        ),
    ]


async def run(options: argparse.Namespace) -> list[Row]:
    rows = []
    for name, memory_mib in (("room for all", 4 * options.mib), ("default", options.memory_mib)):
        print(
            f"{name}: filling a ring of {options.mib} MiB, then a start with {memory_mib} MiB of memory",
            flush=True,
        )
        rows += await recover(options, name, memory_mib)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--folder", default="build/recovery", help="on the file system to be measured; emptied"
    )
    parser.add_argument("--mib", type=int, default=1024, help="of the ring")
    parser.add_argument("--kib", type=int, default=64, help="of a batch")
    parser.add_argument(
        "--memory-mib", type=int, default=DEFAULT_MEMORY_MIB, help="memory.max.bytes of the second start"
    )
    rows = uvloop.run(run(parser.parse_args()))
    print(table(rows))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
