"""What a crash costs: a full WAL, kill -9, and the time until the broker serves again: `python -m tests.bench.recovery [--mib N] [--kib N]`.

Phases are the broker's own (`millrace_recovery_seconds`): `open` opens and fences the WAL and the streams, `read` is the WAL's reading and
judging, `flush` what then remains of putting and committing objects, `close` the closing of streams and the reset. Beside them stands
what the same bytes take to be read and put by a plain loop over the same disk, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import time
from pathlib import Path

import uvloop

from tests.bench.produce_load import ProduceLoad, batch_of, make_topic, produce_frame
from tests.bench.report import Row, table
from tests.live import LiveBroker

MIB = 1 << 20
TARGET_S_PER_GIB = 5.0
PHASES = ("open", "read", "flush", "close")


async def fill(broker: LiveBroker, wanted_mib: int, batch_kib: int) -> float:
    """Bytes in the WAL once the load has ended."""
    await make_topic(broker.port, "lost", 8)
    batch = batch_of(batch_kib, 1000)
    load = await ProduceLoad(broker.port, [produce_frame("lost", index, batch) for index in range(8)], 2).start()
    while broker.metrics()["millrace_wal_used_bytes"] < wanted_mib * MIB:  # noqa: ASYNC110  (another process)
        await asyncio.sleep(0.05)
    await load.stop()
    return broker.metrics()["millrace_wal_used_bytes"]


def plain_copy_s(source: Path, target: Path, size_bytes: int) -> float:
    """The store's own time for the bytes: read from the WAL's file and written, synced, in parts as large as the uploader's."""
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


async def run(options: argparse.Namespace) -> None:
    folder = Path(options.folder).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    capacity = (options.mib + 512) * MIB
    wal = folder / "data" / "wal"
    waits = {"s3.wal.upload.threshold": str(4 << 30), "s3.wal.upload.interval.ms": "3600000"}
    cache = {"memory.max.bytes": str(4 * capacity), "s3.wal.cache.size": str(3 * capacity)}
    path = {"s3.wal.path": f"0@file://{wal}?capacity={3 * capacity}"}
    broker = LiveBroker(folder, {**waits, **cache, **path}).start()
    try:
        held = await fill(broker, options.mib, options.kib)
        broker.kill()
        plain_s = plain_copy_s(wal, folder / "plain", int(held))
        broker.start()
        found = broker.metrics()
        phases = {name: found[f'millrace_recovery_seconds{{phase="{name}"}}'] for name in PHASES}
        gib = held / (1 << 30)
        bound_s = TARGET_S_PER_GIB * gib + plain_s
        rows = [
            Row("WAL at the crash", f"{held / MIB:.0f} MiB", f"batches of {options.kib} KiB"),
            *(Row(f"  {name}", f"{seconds:.2f} s") for name, seconds in phases.items()),
            Row(
                "recovered and committed",
                f"{sum(phases.values()):.2f} s",
                "",
                f"{bound_s:.1f} s",
                sum(phases.values()) < bound_s,
            ),
            Row("writable", f"{broker.ready_seconds:.2f} s", f"the bytes copied plainly {plain_s:.2f} s"),
            Row("  memory then", f"{broker.memory_bytes() / MIB:.0f} MiB"),
        ]
        print(table(rows))
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="build/recovery", help="on the file system to be measured; emptied")
    parser.add_argument("--mib", type=int, default=1024, help="bytes in the WAL at the crash")
    parser.add_argument("--kib", type=int, default=64, help="of a batch")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
