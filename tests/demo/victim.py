"""kill -9 of a pipeline that is in the middle of its work: some batches are written, others are not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 180.0
LOOK_S = 0.05


def written_batches(checkpoint: Path) -> int:
    """As Spark writes them down when they are done."""
    return sum(path.name.isdigit() for path in checkpoint.glob("commits/*"))


def kill_between_batches(
    command: Sequence[str], checkpoint: Path, patience_s: float = PATIENCE_S
) -> int | None:
    """Starts it, and kills it and what it started when a batch is written; how many were. None when it had
    ended by itself, or wrote none in its time."""
    victim, ends_s = subprocess.Popen(command, start_new_session=True), time.monotonic() + patience_s
    while victim.poll() is None and not written_batches(checkpoint) and time.monotonic() < ends_s:
        time.sleep(LOOK_S)
    batches, is_alive = written_batches(checkpoint), victim.poll() is None
    if is_alive:
        os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    return batches if batches and is_alive else None
