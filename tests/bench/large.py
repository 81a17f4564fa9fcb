"""Batches of 64 KiB: the broker, the device and the floor (floor.py) by turns, and what a request costs, part
by part.

A round begins when the broker rests: uploads of the last one would slow the device beside which the next is
held.

CPU is charged whole: from before the first round to after the last one, pauses included, over every request
of that time, so that an upload counts wherever it ran. Split off are the process's threads (they write
objects, and touch memory that is new) and, measured here alone, what an upload does on the loop: every byte
summed once more, headers, an index.
"""

from __future__ import annotations

import asyncio
import mmap
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from millrace.s3stream.objects.format import Entry, encode_entry_header
from millrace.s3stream.objects.writer import ObjectWriter
from tests.bench.device import Device
from tests.bench.extent import Extent
from tests.bench.floor import FloorServer
from tests.bench.produce_load import LoadResult, ProduceLoad, batch_of, make_topic, produce_frame
from tests.bench.rest import wait_rest
from tests.cpu import cpu_seconds
from tests.live import LiveBroker

TOPIC = "large"
CONNECTIONS, DEPTH = 4, 4
WARM_S_MAX = 20
OBJECT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class CpuClock:
    """What a process has used: all of it, and its main thread, which is the loop's."""

    all_s: float
    loop_s: float

    @staticmethod
    def read(pid: int) -> CpuClock:
        return CpuClock(cpu_seconds(pid), cpu_seconds(pid, thread_id=pid))


@dataclass
class Charge:
    """CPU of one process over rounds, and the requests that it is for."""

    pid: int
    before: CpuClock = field(init=False)
    requests_count: int = 0

    def __post_init__(self) -> None:
        self.before = CpuClock.read(self.pid)

    def us(self) -> tuple[float, float]:
        """Microseconds a request: of the process, and of its threads beside the loop."""
        now = CpuClock.read(self.pid)
        all_s, loop_s = now.all_s - self.before.all_s, now.loop_s - self.before.loop_s
        return 1e6 * all_s / self.requests_count, 1e6 * (all_s - loop_s) / self.requests_count


@dataclass
class LargeResult:
    runs: list[LoadResult] = field(default_factory=list)
    device_rates: list[float] = field(default_factory=list)
    cpu_us: float = 0.0
    threads_us: float = 0.0
    upload_loop_us: float = 0.0
    floor_us: float = 0.0
    restless_count: int = 0  # rounds that began while the broker was still busy

    @property
    def of_device(self) -> float:
        """The median over rounds of the broker's rate beside that of the device before and after."""
        rates = self.device_rates
        return statistics.median(
            2 * run.bytes_per_second / (rates[place] + rates[place + 1])
            for place, run in enumerate(self.runs)
        )

    @property
    def uploads_us(self) -> float:
        return self.threads_us + self.upload_loop_us


async def measure_large(broker: LiveBroker, device: Device, folder: Path, extent: Extent) -> LargeResult:
    await make_topic(broker.port, TOPIC)
    batch = batch_of(64, 1000)
    frames = [produce_frame(TOPIC, index, batch) for index in range(CONNECTIONS)]
    result = LargeResult(upload_loop_us=upload_loop_us(batch))
    floor = FloorServer(folder / "floor", extent.device_bytes).start()
    try:
        await _warm(broker.port, frames, extent.warm_bytes)
        await _round(floor.port, frames, extent.stretch(0.5))
        ours, bare = Charge(broker.pid), Charge(floor.pid)
        for _ in range(extent.rounds):
            result.restless_count += not await wait_rest(broker.pid)
            result.device_rates.append(device.write(64 << 10, extent.stretch(0.7)).bytes_per_second)
            bare.requests_count += (await _round(floor.port, frames, extent.stretch(0.5)))[1]
            run, count = await _round(broker.port, frames, extent.stretch(1.2))
            result.runs.append(run)
            ours.requests_count += count
        result.restless_count += not await wait_rest(broker.pid)
        result.device_rates.append(device.write(64 << 10, extent.stretch(0.7)).bytes_per_second)
        result.cpu_us, result.threads_us = ours.us()
        result.floor_us = bare.us()[0]
    finally:
        floor.kill()
    return result


async def _warm(port: int, frames: list[bytes], warm_bytes: int) -> None:
    load = await ProduceLoad(port, frames, DEPTH).start()
    for _ in range(WARM_S_MAX):
        if load.result.bytes_count < warm_bytes:
            await asyncio.sleep(1)
    await load.stop()


async def _round(port: int, frames: list[bytes], seconds: float) -> tuple[LoadResult, int]:
    """What was measured, and how many requests there were from the first to the last."""
    load = await ProduceLoad(port, frames, DEPTH).start()
    await asyncio.sleep(0.2)
    warm_count = load.result.requests_count
    run = await load.measure(seconds)
    await load.stop()
    return run, warm_count + load.result.requests_count


def upload_loop_us(batch: bytes) -> float:
    """CPU of the uploader's part on the loop for one such batch, the least of a few objects; the bytes are no
    longer in a processor's cache."""
    count = OBJECT_BYTES // len(batch)
    memory = memoryview(mmap.mmap(-1, count * len(batch)))
    entries = []
    for place in range(count):
        view = memory[place * len(batch) : (place + 1) * len(batch)]
        view[:] = batch
        header = encode_entry_header(1, 0, place, 1, [batch])
        entries.append(Entry(place, 1, view.toreadonly(), 0, int.from_bytes(header[-4:], "big")))
    spent = []
    for _ in range(3):
        began = time.process_time()
        writer = ObjectWriter()
        writer.add(1, entries)
        writer.finish()
        spent.append(time.process_time() - began)
    return 1e6 * min(spent) / count
