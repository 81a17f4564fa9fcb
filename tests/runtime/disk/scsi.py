"""A device with persistent reservations, as several machines see it, behind the ioctls of linux/pr.h. In
memory."""

from __future__ import annotations

import errno
import os

from millrace.runtime.disk import reserve as pr

REFUSED = 0x18


class SharedDevice:
    """`nexus(name)` is a machine's ioctl. What the standard says of "write exclusive, registrants only", and
    no more: who is preempted or cleared away has its commands aborted, and is told of it once, by a unit
    attention in place of its next answer. `faults`: statuses that a machine gets instead, in order."""

    def __init__(self) -> None:
        self.attentions: dict[str, int] = {}  # machine -> unit attentions that it has not been told
        self.faults: dict[str, list[int]] = {}
        self.keys: dict[str, int] = {}  # machine -> its registered key
        self.holder = ""
        self.calls: list[str] = []
        self.aborted: list[str] = []

    def may_write(self, machine: str) -> bool:
        return not self.holder or machine in self.keys

    def write_error(self, machine: str) -> OSError | None:
        """As the kernel tells of a write that the device refuses."""
        return None if self.may_write(machine) else OSError(errno.EBADE, os.strerror(errno.EBADE))

    def attend(self, machine: str) -> None:
        self.attentions[machine] = self.attentions.get(machine, 0) + 1

    def nexus(self, machine: str) -> pr.Ioctl:
        def ioctl(fd: int, request: int, argument: bytearray) -> int:
            return self._call(machine, request, bytes(argument))

        return ioctl

    def _call(self, machine: str, request: int, data: bytes) -> int:
        if self.faults.get(machine):
            return self.faults[machine].pop(0)
        if self.attentions.get(machine):
            self.attentions[machine] -= 1
            return pr.IO_ERROR
        old, new = int.from_bytes(data[:8], "little"), int.from_bytes(data[8:16], "little")
        if request == pr.PR_REGISTER:
            assert len(data) == 24
            self.calls.append(f"{machine} register {old:x} {new:x}")
            return self._register(machine, old, new, is_any=bool(data[16] & pr.IGNORE_KEY))
        own = self.keys.get(machine)
        if request in (pr.PR_RESERVE, pr.PR_RELEASE):
            assert len(data) == 16
            assert data[8] == pr.WRITE_EXCLUSIVE_REGISTRANTS
            self.calls.append(f"{machine} {'reserve' if request == pr.PR_RESERVE else 'release'} {old:x}")
            if own != old or (self.holder not in ("", machine) and request == pr.PR_RESERVE):
                return REFUSED
            self.holder = (
                machine if request == pr.PR_RESERVE else "" if self.holder == machine else self.holder
            )
            return 0
        if request == pr.PR_PREEMPT_ABORT:
            assert data[16] == pr.WRITE_EXCLUSIVE_REGISTRANTS
            self.calls.append(f"{machine} preempt {old:x} {new:x}")
            return self._preempt(machine, old, new)
        if request == pr.PR_CLEAR:
            self.calls.append(f"{machine} clear {old:x}")
            if own != old:
                return REFUSED
            for name in self.keys:
                if name != machine:
                    self.attend(name)
            self.keys.clear()
            self.holder = ""
            return 0
        raise OSError(errno.ENOTTY, "no such request")

    def _register(self, machine: str, old: int, new: int, *, is_any: bool) -> int:
        if not is_any and self.keys.get(machine, 0) != old:
            return REFUSED
        if new:
            self.keys[machine] = new
        else:
            self.keys.pop(machine, None)
            self.holder = "" if self.holder == machine else self.holder
        return 0

    def _preempt(self, machine: str, old: int, new: int) -> int:
        victims = [name for name, key in self.keys.items() if key == old and name != machine]
        if self.keys.get(machine) != new or not victims:
            return REFUSED
        for name in victims:
            del self.keys[name]
            self.aborted.append(name)
            self.attend(name)
        if self.holder in victims:
            self.holder = machine
        return 0
