"""A process as others can tell whether it still runs: those on its machine at once, all others not at all."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
ENDED = ("Z", "X")  # killed, and not waited for yet by its parent


@dataclass(frozen=True)
class Process:
    """`boot`, `namespace` and `started` are empty where the system does not say them (it has no /proc)."""

    host: str
    pid: int
    boot: str = ""  # drawn by the kernel at each boot
    namespace: str = ""  # of process ids: a container's
    started: str = ""  # ticks after the boot; a number is given again to others


def process_of(pid: int, proc: Path = PROC) -> Process:
    """One that runs on this machine."""
    state = _state(pid, proc)
    return Process(socket.gethostname(), pid, *_machine(proc), state[1] if state else "")


def is_running(process: Process, proc: Path = PROC) -> bool | None:
    """None where that cannot be told from here: on another machine, in another container, or where the system
    hides other users' processes."""
    machine = _machine(proc)
    if not process.started or not all(machine) or (process.boot, process.namespace) != machine:
        return None
    found = _state(process.pid, proc)
    if found is None:
        return None if _is_there(process.pid) else False
    return found[0] not in ENDED and found[1] == process.started


def _machine(proc: Path) -> tuple[str, str]:
    try:
        boot = (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return boot, os.readlink(proc / "self" / "ns" / "pid")
    except OSError:
        return "", ""


def _is_there(pid: int) -> bool:
    """Also of one that /proc does not show (its option hidepid)."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def _state(pid: int, proc: Path) -> tuple[str, str] | None:
    """Its state and when it started; None where there is no such process. Its name, in brackets, may hold
    anything."""
    try:
        words = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return words[0], words[19]
