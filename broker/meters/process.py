"""What /metrics shows of the process, under the names that Prometheus' own client libraries use, and of the
build."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from pathlib import Path

from millrace.broker.version import VERSION
from millrace.runtime.clock import Clock
from millrace.runtime.metrics import Registry

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def show_process(registry: Registry, clock: Clock) -> None:
    """On a system without /proc, memory and open files are not shown."""
    registry.counter(
        "process_cpu_seconds_total", "User and system CPU time of the process", time.process_time
    )
    started_s = clock.wall_ms() / 1000
    registry.gauge(
        "process_start_time_seconds",
        "When the process started, in seconds since the epoch",
        lambda: started_s,
    )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    registry.gauge("process_max_fds", "Most files that may be open", lambda: limit)
    if Path("/proc/self/statm").exists():
        registry.gauge("process_open_fds", "Open files", lambda: len(os.listdir("/proc/self/fd")))
        registry.gauge(
            "process_resident_memory_bytes",
            "Memory of the process that is resident",
            lambda: _pages(1) * PAGE_BYTES,
        )
        registry.gauge(
            "process_virtual_memory_bytes",
            "Memory of the process that is mapped",
            lambda: _pages(0) * PAGE_BYTES,
        )
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    about = {"version": VERSION, "python": sys.version.split()[0], "event_loop": loop}
    registry.gauge("millrace_build_info", "1, with the build in its labels", lambda: 1, **about)


def _pages(column: int) -> int:
    return int(Path("/proc/self/statm").read_text().split()[column])
