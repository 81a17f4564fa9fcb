"""The device underneath, asked directly: one write after the other to a file as the WAL's, with the WAL's
flags, on the same file system.

The file is preallocated and written with zeros first, as a WAL after its first lap is. Blocking, for
benchmarks alone.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.opening import open_block_descriptor

FILE_BYTES = 256 << 20
MIB = 1 << 20
STEP_BYTES = 4 * MIB


def both_ways_s(folder: Path, size_bytes: int) -> float:
    """How long it takes to read as much as that from one file while as much is written to another, which is
    what the recovery of a log does at the least."""
    steps = range(0, size_bytes // STEP_BYTES * STEP_BYTES, STEP_BYTES)
    source, target = (
        open_block_descriptor(str(folder / name), len(steps) * STEP_BYTES, "prefer").fd
        for name in ("both-ways-source", "both-ways-target")
    )
    read, written = Arena(STEP_BYTES).view, Arena(STEP_BYTES).view
    for start in steps:
        os.pwrite(source, written, start)
    reader = threading.Thread(target=lambda: [os.preadv(source, [read], start) for start in steps])
    began_s = time.perf_counter()
    reader.start()
    for start in steps:
        os.pwrite(target, written, start)
    reader.join()
    seconds = time.perf_counter() - began_s
    for fd in (source, target):
        os.close(fd)
    for name in ("both-ways-source", "both-ways-target"):
        (folder / name).unlink()
    return seconds


@dataclass
class DeviceRun:
    size_bytes: int
    seconds: float
    latencies_s: list[float]

    @property
    def bytes_per_second(self) -> float:
        return self.size_bytes * len(self.latencies_s) / self.seconds

    def quantile_ms(self, fraction: float) -> float:
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


class Device:
    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self._file_bytes = file_bytes
        self._descriptor = open_block_descriptor(str(folder / "device"), file_bytes, "prefer")
        self._view = Arena(MIB).view
        self._position = 0
        for start in range(0, file_bytes, MIB):
            os.pwrite(self._descriptor.fd, self._view, start)

    @property
    def is_direct(self) -> bool:
        return self._descriptor.is_direct

    def write(self, size_bytes: int, seconds: float, pace_s: float = 0.0) -> DeviceRun:
        """Whole blocks, one at a time, as many as the time allows. With `pace_s` one is due so often, and its
        time counts from then: what waits for a device that halts is late as well."""
        latencies: list[float] = []
        fd, view = self._descriptor.fd, self._view[:size_bytes]
        began = time.perf_counter()
        due = end = began
        while due < began + seconds:
            self._position = (self._position + size_bytes) % (self._file_bytes - size_bytes) // 4096 * 4096
            os.pwrite(fd, view, self._position)
            end = time.perf_counter()
            latencies.append(end - due)
            due = due + pace_s if pace_s else end
            if due > end:
                time.sleep(due - end)
        return DeviceRun(size_bytes, end - began, latencies)

    def close(self) -> None:
        os.close(self._descriptor.fd)
