"""The device underneath, asked directly: one write after the other to a file as the WAL's, with the WAL's
flags, on the same file system.

The file is preallocated and written with zeros first, as a WAL after its first lap is. Blocking, for
benchmarks alone.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.opening import open_block_descriptor

FILE_BYTES = 256 << 20
MIB = 1 << 20


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
