"""Persistent reservations of a block device, by the kernel's generic ioctls (linux/pr.h): SCSI, NVMe and
multipath devices have them.

A device that several machines see lets only those write whose key is registered, once one of them holds the
reservation ("write exclusive, registrants only"; registrants, since the paths of a multipath device are
several to the device and one to us). Taking it over removes the old holder's registration and aborts its
commands that are under way: what it writes from then on fails there, on its own machine, whatever it believes
of itself.

Blocking system calls only. They need CAP_SYS_ADMIN on older kernels. A partition has none: the whole device
is reserved or nothing.
"""

from __future__ import annotations

import errno
import fcntl
import struct
import sys
from collections.abc import Callable

from millrace.runtime.disk import DiskLocked

Ioctl = Callable[[int, int, bytearray], int]

_REGISTER = struct.Struct("=QQII")  # old key, new key, flags, padding
_RESERVE = struct.Struct("=QII")  # key, type, flags
_PREEMPT = struct.Struct("=QQII")  # old key, new key, type, flags
_CLEAR = struct.Struct("=QII")  # key, flags, padding


def _iow(number: int, layout: struct.Struct) -> int:
    return 1 << 30 | layout.size << 16 | ord("p") << 8 | number


PR_REGISTER = _iow(200, _REGISTER)
PR_RESERVE = _iow(201, _RESERVE)
PR_RELEASE = _iow(202, _RESERVE)
PR_PREEMPT_ABORT = _iow(204, _PREEMPT)
PR_CLEAR = _iow(205, _CLEAR)
IGNORE_KEY = 1
WRITE_EXCLUSIVE_REGISTRANTS = 3
# What a device answers (enum pr_status of linux/pr.h; NVMe's own number before Linux 6.4, with and without
# its "do not retry"). Kernels give "I/O error" for a unit attention, which a device reports once to each
# machine after it was preempted or reset, and for a command that the device does not know.
CONFLICTS = frozenset((0x18, 0x83, 0x4083))
IO_ERROR = 0x2
_PATH_FAILURES = frozenset((0xE0000, 0xF0000, 0x10000))
_TRIES = 4
# The device, the kernel or our rights have none: told apart from a device that refuses.
_ABSENT = frozenset((errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EPERM, errno.ENOSYS))


class DeviceReservation:
    """One open descriptor's. `key` is 0 while nothing is held."""

    def __init__(self, fd: int, path: str, ioctl: Ioctl | None = None) -> None:
        self._fd = fd
        self._path = path
        self._ioctl: Ioctl = ioctl or fcntl.ioctl
        self.key = 0

    def take(self, key: int, old_key: int) -> bool:
        """True: from now on the device refuses everybody else's writes. False: it has no reservations, or we
        no right to them.

        `old_key` is the last known holder's, 0 when there was none; then a device that somebody holds is left
        to them. Raises DiskLocked for that, and when another takes it at the same time.
        """
        if not sys.platform.startswith("linux") and self._ioctl is fcntl.ioctl:
            return False
        if self._call(PR_REGISTER, _REGISTER.pack(0, key, IGNORE_KEY, 0)) != 0:
            return False
        if not self._is_held(key, old_key):
            self._call(PR_REGISTER, _REGISTER.pack(key, 0, 0, 0))
            raise DiskLocked(self._path, "another machine, which has reserved the device")
        self.key = key
        return True

    def _is_held(self, key: int, old_key: int) -> bool:
        wanted = _RESERVE.pack(key, WRITE_EXCLUSIVE_REGISTRANTS, 0)
        if self._is_done(PR_RESERVE, wanted):
            return True
        if not old_key:
            return False
        if self._is_done(PR_PREEMPT_ABORT, _PREEMPT.pack(old_key, key, WRITE_EXCLUSIVE_REGISTRANTS, 0)):
            # Some devices let go of the reservation when the preempted key was only registered: ask for it
            # once more.
            return self._is_done(PR_RESERVE, wanted)
        # The holder is not the last owner that the log knows of: it reserved the device and ended before it
        # wrote its name. It has written nothing else either, so there is nothing of its to abort.
        if not self._is_done(PR_CLEAR, _CLEAR.pack(key, 0, 0)):
            return False
        return self._is_done(PR_REGISTER, _REGISTER.pack(0, key, IGNORE_KEY, 0)) and self._is_done(
            PR_RESERVE, wanted
        )

    def release(self) -> None:
        """Lets others have it. Idempotent; what goes wrong here is the next owner's to take over."""
        if self.key:
            key, self.key = self.key, 0
            try:
                self._call(PR_RELEASE, _RESERVE.pack(key, WRITE_EXCLUSIVE_REGISTRANTS, 0))
                self._call(PR_REGISTER, _REGISTER.pack(key, 0, 0, 0))
            except OSError:
                pass

    def _is_done(self, request: int, argument: bytes) -> bool:
        """False: another's reservation stands against it. Raises OSError for all else: a device that took a
        registration has reservations."""
        status = self._call(request, argument)
        if status == 0:
            return True
        if status in CONFLICTS:
            return False
        raise OSError(errno.EIO, f"the device failed a reservation (status {status:#x})", self._path)

    def _call(self, request: int, argument: bytes) -> int:
        """0, or the device's status when it refuses, or -1 where there is no such thing. What may pass is
        asked again: a unit attention is reported once for each event. Raises OSError for what is broken, a
        path to the device among it."""
        for _ in range(_TRIES):
            try:
                status = self._ioctl(self._fd, request, bytearray(argument))
            except OSError as error:
                if error.errno in _ABSENT:
                    return -1
                raise
            if status != IO_ERROR and status not in _PATH_FAILURES:
                return status
        if status in _PATH_FAILURES:
            raise OSError(errno.EIO, f"no path to the device (status {status:#x})", self._path)
        return status
