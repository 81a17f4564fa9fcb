"""Opens the descriptor under a block file: direct where that works, preallocated, locked, checked by a first
read.

Blocking system calls only; `posix.py` runs this off the loop. What the descriptor promises: a write that
returns is durable (O_DSYNC; on macOS the writer adds F_FULLFSYNC), and no other process has the file open
here. Direct I/O is given up, unless required, where the file system refuses it with EINVAL or where it means
nothing (tmpfs takes the flag and is memory).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.runtime.disk import DiskFailed, DiskFull, DiskLocked, DiskTaken
from millrace.runtime.disk.aligned import PAGE_BYTES, aligned_memory
from millrace.runtime.disk.denial import denial_words
from millrace.runtime.disk.lock_keeper import LockKeeper
from millrace.runtime.disk.machine_ids import read_keeper
from millrace.runtime.disk.reserve import DeviceReservation

OpenFd = Callable[[str, int, int], int]

_O_DIRECT = getattr(os, "O_DIRECT", 0)
_O_DSYNC = getattr(os, "O_DSYNC", getattr(os, "O_SYNC", 0))
_LOCK_WAIT_S = 1.0
VIEWED_BYTES_MIN = 1 << 20  # of a read that is given where it lies
# What Linux makes of a device's "reservation conflict" (BLK_STS_RESV_CONFLICT); nobody else has such devices.
_RESERVATION_CONFLICT = getattr(errno, "EBADE", -1)
_MEMORY_FILE_SYSTEMS = frozenset({0x01021994, 0x858458F6})  # tmpfs, ramfs


class DirectRefused(DiskFailed):
    """Direct I/O was required and the file system does not give it. Attribute: path."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(slots=True)
class BlockDescriptor:
    fd: int
    path: str
    size_bytes: int
    is_direct: bool
    is_device: bool
    is_new: bool
    reservation: DeviceReservation
    is_exclusive: bool = True
    keeper: LockKeeper | None = None
    spare: list[mmap.mmap] = field(default_factory=list)  # memory of former reads; at most two


def disk_error(error: OSError, path: str, wanted_bytes: int = 0) -> DiskFull | DiskFailed | DiskTaken:
    """The project's error for an OSError. `wanted_bytes`: how many were to be written or reserved, where that
    is known."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free_bytes = -1
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(OSError):
                found = file_system_of(path)
                free_bytes = found.f_bavail * found.f_frsize
        return DiskFull(path, os.strerror(error.errno), wanted_bytes, free_bytes)
    if error.errno == _RESERVATION_CONFLICT:
        return DiskTaken(path)
    return DiskFailed(path, denial_words(error, path))


def file_system_of(path: str) -> os.statvfs_result:
    """That holds it, or would."""
    return os.statvfs(nearest_present(path))


def nearest_present(path: str) -> str:
    """The path, or the nearest folder above it that is there."""
    while not os.path.exists(path):
        path = os.path.dirname(os.path.abspath(path))
    return path


def open_block_descriptor(
    path: str,
    size_bytes: int,
    direct: str,
    open_fd: OpenFd = os.open,
    *,
    is_kept: bool = True,
    is_shared: bool = False,
) -> BlockDescriptor:
    """Opens or creates; durable on return where it `is_kept`. `is_shared`: also what another process has
    open. Raises DiskFull, DiskFailed, DiskLocked,
    DirectRefused."""
    is_ours = not os.path.exists(path)
    options = _Options(size_bytes, open_fd, is_ours, is_kept, is_shared)
    try:
        is_direct = direct != "never" and _O_DIRECT != 0
        if is_direct:
            try:
                return _open(path, options, is_direct=True)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
        if direct == "require":
            raise DirectRefused(path)
        return _open(path, options, is_direct=False)
    except OSError as error:
        raise disk_error(error, path, size_bytes) from error


@dataclass(frozen=True, slots=True)
class _Options:
    size_bytes: int
    open_fd: OpenFd
    is_ours: bool  # nothing was there
    is_kept: bool
    is_shared: bool


def _open(path: str, options: _Options, *, is_direct: bool) -> BlockDescriptor:
    kind = os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG
    is_device = stat.S_ISBLK(kind)
    if not is_device and not stat.S_ISREG(kind):
        raise OSError(errno.ENOTBLK, "it is neither a file nor a block device: give another path", path)
    flags = os.O_RDWR | os.O_CLOEXEC | _O_DSYNC
    flags |= _O_DIRECT if is_direct else 0
    fd, is_exclusive = _open_fd(path, flags, options, is_device=is_device)
    try:
        is_exclusive = _is_locked(fd, path, is_shared=options.is_shared) and is_exclusive
        if is_direct and is_memory(fd):
            raise OSError(errno.EINVAL, "a file system in memory", path)
        size = os.lseek(fd, 0, os.SEEK_END)
        is_new = size == 0 and not is_device and is_exclusive
        if is_new:
            _create(fd, path, options.size_bytes, is_ours=options.is_ours, is_kept=options.is_kept)
            size = options.size_bytes
        if options.is_kept and not is_device:
            sync_name(path, is_new=is_new)
        if is_direct and size:
            _read_first_block(fd)
        reservation = DeviceReservation(fd, path)
        keeper = read_keeper(fd)
        return BlockDescriptor(
            fd, path, size, is_direct, is_device, is_new, reservation, is_exclusive, keeper
        )
    except BaseException:
        os.close(fd)
        raise


def _open_fd(path: str, flags: int, options: _Options, *, is_device: bool) -> tuple[int, bool]:
    """And whether nobody else on this machine has the device: O_EXCL alone gives EBUSY where a process has
    it, or where it is mounted."""
    try:
        return options.open_fd(path, flags | (os.O_EXCL if is_device else os.O_CREAT), 0o600), True
    except OSError as error:
        if not (options.is_shared and is_device and error.errno == errno.EBUSY):
            raise
    return options.open_fd(path, flags, 0o600), False


def takes_direct(folder: str) -> bool:
    """Whether files there, or in the nearest folder above that is there, are read and written past the page
    cache: one is made to see, and removed."""
    path = os.path.join(nearest_present(folder), f".direct.{os.getpid()}")
    try:
        descriptor = open_block_descriptor(path, PAGE_BYTES, "require", is_kept=False)
    except (DiskFull, DiskFailed, DiskLocked):
        return False
    else:
        os.close(descriptor.fd)
        return True
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _is_locked(fd: int, path: str, *, is_shared: bool) -> bool:
    """Whether the lock is ours; where the file may be shared it is tried once. Raises DiskLocked. The lock is
    the open file's, so it outlives a killed process until the kernel has finished that process's writes:
    nobody reads the file while they may still land. That takes milliseconds, which the next process waits
    for."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if is_shared:
                return False
            if time.monotonic() > deadline:
                raise DiskLocked(path) from None
        time.sleep(0.005)


def _create(fd: int, path: str, size_bytes: int, *, is_ours: bool, is_kept: bool) -> None:
    """Or leaves nothing: no file, or one that was there before as empty as it was."""
    try:
        allocate(fd, 0, size_bytes)
        if is_kept:
            os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            if is_ours:
                os.unlink(os.path.realpath(path))  # a link that named nothing stays
            else:
                os.ftruncate(fd, 0)
        raise


def _read_first_block(fd: int) -> None:
    """Some file systems take the flag at open and refuse the first transfer: better to learn it here."""
    if hasattr(os, "preadv"):
        memory = aligned_memory(PAGE_BYTES)
        os.preadv(fd, [memory], 0)


def allocate(fd: int, start: int, end: int) -> None:
    """Reserves real blocks for [start, end), which read as zeros."""
    if end <= start:
        return
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(fd, end)
        return
    try:
        os.posix_fallocate(fd, start, end - start)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV):
            raise
        os.ftruncate(fd, end)


def resize_descriptor(descriptor: BlockDescriptor, size_bytes: int, *, is_kept: bool = True) -> None:
    """Grows with reserved space or cuts; durable on return where it `is_kept`. A device keeps its size, and
    so does what cannot grow: what was reserved of it by then is given back, or it would be all that the disk
    has."""
    if descriptor.is_device or size_bytes == descriptor.size_bytes:
        return
    try:
        if size_bytes > descriptor.size_bytes:
            allocate(descriptor.fd, descriptor.size_bytes, size_bytes)
        else:
            os.ftruncate(descriptor.fd, size_bytes)
        if is_kept:
            os.fsync(descriptor.fd)
    except OSError as error:
        if size_bytes > descriptor.size_bytes:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor.fd, descriptor.size_bytes)
        raise disk_error(error, descriptor.path, size_bytes - descriptor.size_bytes) from error
    descriptor.size_bytes = size_bytes


def reserve_descriptor(descriptor: BlockDescriptor, key: int, old_key: int) -> bool:
    """Whether the device now refuses everybody else's writes. A file has its lock alone."""
    if not descriptor.is_device:
        return False
    try:
        return descriptor.reservation.take(key, old_key)
    except OSError as error:
        raise disk_error(error, descriptor.path) from error


def close_descriptor(descriptor: BlockDescriptor) -> None:
    descriptor.reservation.release()
    os.close(descriptor.fd)


def read_block(descriptor: BlockDescriptor, position: int, length: int) -> bytes | memoryview:
    """Reads exactly `length` bytes through aligned memory. Both numbers are multiples of a page. Many bytes
    are given where they lie, in memory of their own: to copy a megabyte holds all other threads up."""
    if length >= VIEWED_BYTES_MIN:
        view = memoryview(aligned_memory(length))[:length]
        failure = read_into(descriptor, position, view)
        if failure is not None:
            raise failure
        return view
    memory = descriptor.spare.pop() if descriptor.spare else aligned_memory(length)
    if len(memory) < length:
        memory = aligned_memory(length)
    try:
        with memoryview(memory) as view:
            _read_into(descriptor, position, view[:length])
            return bytes(view[:length])
    except OSError as error:
        raise disk_error(error, descriptor.path) from error
    finally:
        if len(descriptor.spare) < 2:
            descriptor.spare.append(memory)


def read_into(descriptor: BlockDescriptor, position: int, view: memoryview) -> DiskFailed | None:
    """Fills `view`, which is page-aligned; or why it cannot be."""
    try:
        _read_into(descriptor, position, view)
    except DiskFailed as error:
        return error
    except OSError as error:
        return DiskFailed(descriptor.path, denial_words(error, descriptor.path))
    return None


def _read_into(descriptor: BlockDescriptor, position: int, view: memoryview) -> None:
    done = 0
    while done < len(view):
        if hasattr(os, "preadv"):
            count = os.preadv(descriptor.fd, [view[done:]], position + done)
        else:
            data = os.pread(descriptor.fd, len(view) - done, position + done)
            count = len(data)
            view[done : done + count] = data
        if count == 0:
            raise DiskFailed(descriptor.path, "read beyond the end")
        done += count


def sync_folder(path: str) -> None:
    """Names in it are durable on return, as far as the file system knows of that: some refuse it for
    folders."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def sync_name(path: str, *, is_new: bool) -> None:
    """Also of a file that is there: who made it may have been killed before its name was durable. Whose
    folder may not be read was made for us, and its name is its maker's business. Of what a link names: its
    own folder."""
    try:
        sync_folder(os.path.dirname(os.path.realpath(path)))
    except PermissionError:
        if is_new:
            raise


def is_memory(fd: int) -> bool:
    """Whether the file lives on tmpfs or ramfs, where neither direct I/O nor a sync means anything."""
    if not hasattr(os, "O_DIRECT"):
        return False
    import ctypes

    try:
        fstatfs = ctypes.CDLL(None, use_errno=True).fstatfs
    except (OSError, AttributeError):
        return False
    answer = ctypes.create_string_buffer(512)  # struct statfs is at most 120 bytes; f_type is its first word
    if fstatfs(ctypes.c_int(fd), answer) != 0:
        return False
    return ctypes.c_long.from_buffer(answer).value & 0xFFFFFFFF in _MEMORY_FILE_SYSTEMS
