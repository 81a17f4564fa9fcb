"""What a process has used of the processors, by the kernel's count."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_seconds(pid: int, thread_id: int | None = None) -> float:
    """User and system time of a process so far, or of one of its threads. OSError when it is not there."""
    path = Path(f"/proc/{pid}/stat" if thread_id is None else f"/proc/{pid}/task/{thread_id}/stat")
    fields = path.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def delayed_seconds(pid: int) -> float:
    """How long a process's first thread was ready to run so far and was given no processor; 0 where the
    kernel does not count it."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
