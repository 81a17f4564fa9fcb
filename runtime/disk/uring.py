"""An io_uring of one thread by plain system calls: writes in, and reads that follow one, (tag, result) pairs
out, an eventfd that says when.

Layout and numbers are the kernel's ABI (include/uapi/linux/io_uring.h), equal on every architecture. It uses
no binding: PyPI's `liburing` takes only `bytes` for a write, and its Iovec never releases the export of a
memoryview, so that no arena could ever be seen free again. It knows no files and no futures; `uring_file.py`
does.

Memory order: this thread writes an entry and enters the kernel itself, so submission needs no barrier.
Completions may be posted by another CPU: the eventfd is read, or the kernel entered, before the queue is
looked at.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from typing import Any

_SETUP, _ENTER, _REGISTER = 425, 426, 427
_REGISTER_EVENTFD = 4
_OFFSET_SQES = 0x10000000
_OP_READ, _OP_WRITE = 22, 23
_LINKED = 1 << 2  # the next entry begins when this one has ended, and never where it failed or fell short
_SETUP_COOP_TASKRUN = 1 << 8  # completions are posted at our next system call, not by interrupting us
_SETUP_SINGLE_ISSUER = 1 << 12
_FEATURE_SINGLE_MMAP = 1

# opcode, flags, ioprio, fd, offset, address, length, rw_flags, user_data, and 24 bytes we do not use
_SQE = struct.Struct("=BBHiQQIIQ24x")
_CQE = struct.Struct("=QiI")
_OFFSETS = struct.Struct("=8IQ")
_MASK = 0xFFFFFFFF
# The kernel may be short of memory for a moment; longer than this is a failure.
_ENTER_TRIES = 1000


class UringRefused(OSError):
    """The kernel, a seccomp filter or a limit does not allow io_uring here."""


class Uring:
    """Not for use from two threads. `eventfd` becomes readable when completions wait."""

    def __init__(self, entries: int = 64) -> None:
        try:
            self._syscall = ctypes.PyDLL(None, use_errno=True).syscall  # PyDLL: the interpreter stays ours
        except (OSError, AttributeError) as error:
            raise UringRefused(errno.ENOSYS, "no syscall()") from error
        self._syscall.restype = ctypes.c_long
        self._fd, parameters = self._set_up(entries)
        self._map(parameters)
        self.eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._register_eventfd()
        self._enter_ring = (ctypes.c_long(_ENTER), ctypes.c_int(self._fd))
        self._enter_one, self._enter_two = (
            (*self._enter_ring, ctypes.c_uint(count), ctypes.c_uint(0), ctypes.c_uint(0),
             ctypes.c_void_p(None), ctypes.c_size_t(0))
            for count in (1, 2)
        )  # fmt: skip

    def _set_up(self, entries: int) -> tuple[int, bytearray]:
        code = errno.ENOSYS
        for flags in (_SETUP_COOP_TASKRUN | _SETUP_SINGLE_ISSUER, _SETUP_COOP_TASKRUN, 0):
            parameters = bytearray(120)
            struct.pack_into("=I", parameters, 8, flags)
            pointer = (ctypes.c_char * 120).from_buffer(parameters)
            fd = int(self._syscall(ctypes.c_long(_SETUP), ctypes.c_uint(entries), ctypes.byref(pointer)))
            if fd >= 0:
                return fd, parameters
            code = ctypes.get_errno()
            if code != errno.EINVAL:
                break
        raise UringRefused(code, os.strerror(code))

    def _map(self, parameters: bytearray) -> None:
        self.entries, completions, _, _, _, features, _ = struct.unpack_from("=7I", parameters)
        submit = _OFFSETS.unpack_from(parameters, 40)
        complete = _OFFSETS.unpack_from(parameters, 80)
        if not features & _FEATURE_SINGLE_MMAP:
            os.close(self._fd)
            raise UringRefused(errno.ENOSYS, "kernel older than 5.4")
        size = max(submit[6] + self.entries * 4, complete[5] + completions * _CQE.size)
        flags, access = mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ | mmap.PROT_WRITE
        self._rings = mmap.mmap(self._fd, size, flags, access)
        self._sqes = mmap.mmap(self._fd, self.entries * _SQE.size, flags, access, offset=_OFFSET_SQES)
        self._words = memoryview(self._rings).cast("I")
        self._submit_tail = submit[1] // 4
        self._submit_mask = self._words[submit[2] // 4]
        for index in range(self.entries):
            self._words[submit[6] // 4 + index] = index  # entry n always stands in place n
        self._complete_head, self._complete_tail = complete[0] // 4, complete[1] // 4
        self._complete_mask = self._words[complete[2] // 4]
        self._cqes = complete[5]

    def _register_eventfd(self) -> None:
        number = ctypes.c_int(self.eventfd)
        answer = self._syscall(
            ctypes.c_long(_REGISTER),
            ctypes.c_int(self._fd),
            ctypes.c_uint(_REGISTER_EVENTFD),
            ctypes.byref(number),
            ctypes.c_uint(1),
        )
        if answer < 0:
            code = ctypes.get_errno()
            self.close()
            raise UringRefused(code, os.strerror(code))

    def write(self, fd: int, position: int, address: int, length: int, tag: int) -> None:
        """Hands one write to the kernel now. The caller keeps the memory, and at most `entries` writes
        outstanding. Raises OSError where the kernel did not take it: the memory is the caller's again."""
        self._put(0, _OP_WRITE, 0, fd, position, address, length, tag)
        self._submit(1, self._enter_one)

    def read(self, fd: int, position: int, address: int, length: int, tag: int) -> None:
        """As `write`."""
        self._put(0, _OP_READ, 0, fd, position, address, length, tag)
        self._submit(1, self._enter_one)

    def write_then_read(
        self, fd: int, write: tuple[int, int, int, int], read: tuple[int, int, int, int]
    ) -> bool:
        """Both (position, address, length, tag) in one system call: the read begins when the write has ended,
        and ends with ECANCELED where that failed or fell short. False: the kernel took the write alone."""
        self._put(0, _OP_WRITE, _LINKED, fd, *write)
        self._put(1, _OP_READ, 0, fd, *read)
        return self._submit(2, self._enter_two) == 2

    def _put(
        self, index: int, code: int, flags: int, fd: int, position: int, address: int, length: int, tag: int
    ) -> None:
        at = (self._words[self._submit_tail] + index & self._submit_mask) * _SQE.size
        _SQE.pack_into(self._sqes, at, code, flags, 0, fd, position, address, length, 0, tag)

    def _submit(self, count: int, enter: tuple[Any, ...]) -> int:
        """How many the kernel took of those that were put: at least one."""
        words = self._words
        tail = words[self._submit_tail]
        words[self._submit_tail] = (tail + count) & _MASK
        for _ in range(_ENTER_TRIES):
            taken = int(self._syscall(*enter))
            if taken > 0:
                words[self._submit_tail] = (tail + taken) & _MASK
                return taken
            code = ctypes.get_errno()
            if code not in (errno.EINTR, errno.EAGAIN, errno.EBUSY):
                break
        # the kernel took nothing, and never shall: the caller may let go of the memory
        words[self._submit_tail] = tail
        raise OSError(code, os.strerror(code))

    def reap(self) -> list[tuple[int, int]]:
        """Completions that wait: the tag, and bytes written or a negative error number."""
        try:
            os.eventfd_read(self.eventfd)
        except BlockingIOError:
            pass
        words = self._words
        head, tail = words[self._complete_head], words[self._complete_tail]
        found = []
        while head != tail:
            tag, result, _ = _CQE.unpack_from(
                self._rings, self._cqes + (head & self._complete_mask) * _CQE.size
            )
            found.append((tag, result))
            head = (head + 1) & _MASK
        words[self._complete_head] = head
        return found

    def close(self) -> None:
        """Only when nothing is outstanding."""
        self._words.release()
        self._rings.close()
        self._sqes.close()
        os.close(self._fd)
        os.close(self.eventfd)


def address_of(buffer: memoryview) -> int:
    """Where a writable buffer's bytes lie. Good only as long as the buffer is held."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
