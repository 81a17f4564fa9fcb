"""Asks the system who keeps the lock of an open file: which machine this is, which boot of it, which file.

Kept true: where not even the boot can be told nobody is named at all. A machine is known by the id of its
board, which root alone may read, else by /etc/machine-id, but not within a container: an image may bring
that, the same everywhere. What was copied with its memory (two virtual machines from one snapshot) passes for
one boot of one machine. Blocking.
"""

from __future__ import annotations

import hashlib
import os
import struct
import uuid
from pathlib import Path
from typing import Final

from millrace.runtime.disk.lock_keeper import ID_BYTES, NO_MACHINE, LockKeeper

_BOOT: Final = "proc/sys/kernel/random/boot_id"
_BOARD: Final = "sys/class/dmi/id/product_uuid"
_MACHINE: Final = "etc/machine-id"
# Of Docker, Podman, systemd within any container, systemd-nspawn and others, and a pod of Kubernetes.
_CONTAINER_MARKS: Final = (
    ".dockerenv",
    "run/.containerenv",
    "run/systemd/container",
    "run/host/container-manager",
    "var/run/secrets/kubernetes.io",
)
_MOUNTS: Final = "proc/self/mountinfo"
# Boards whose maker left the id as the firmware's maker had it.
_DEFAULT_BOARD: Final = "03000200040005000006000700080009"
_FILE: Final = struct.Struct(">QQ")
_U64: Final = (1 << 64) - 1
_DIGITS_MIN: Final = 5  # an id of fewer different digits is none


def read_keeper(fd: int, root: Path = Path("/")) -> LockKeeper | None:
    """Of an open file. None where the system does not tell its boot. Blocking."""
    try:
        boot = uuid.UUID((root / _BOOT).read_text().strip()).bytes
    except (OSError, ValueError):
        return None
    found = os.fstat(fd)
    return LockKeeper(_machine(root), boot, _FILE.pack(found.st_dev & _U64, found.st_ino & _U64))


def _machine(root: Path) -> bytes:
    """Its ids themselves are told to nobody."""
    board = _id_in(root / _BOARD)
    machine = "" if _is_container(root) else _id_in(root / _MACHINE)
    if board == _DEFAULT_BOARD or len(set(board)) < _DIGITS_MIN:
        board = ""
    if not board and len(set(machine)) < _DIGITS_MIN:
        return NO_MACHINE
    return hashlib.blake2b(
        f"{board} {machine}".encode(), digest_size=ID_BYTES, person=b"lock keeper"
    ).digest()


def _id_in(path: Path) -> str:
    """Thirty-two hexadecimal digits, or "" where it cannot be read or says something else."""
    try:
        return uuid.UUID(path.read_text().strip()).hex
    except (OSError, ValueError):
        return ""


def _is_container(root: Path) -> bool:
    if any((root / mark).exists() for mark in _CONTAINER_MARKS):
        return True
    try:
        mounts = (root / _MOUNTS).read_text().splitlines()
    except OSError:
        return True
    return any(_is_overlay_root(line.split(" ")) for line in mounts)


def _is_overlay_root(fields: list[str]) -> bool:
    """Of a line of mountinfo: the fifth field is where, and behind a dash stands what."""
    if "-" not in fields or fields[4] != "/":
        return False
    return fields[fields.index("-") + 1] == "overlay"
