"""The real disk: block files by io_uring or by a thread, log files and small files by system calls off the
loop.

Cold operations run on the loop's own executor, one system call or a short run of them at a time; those of
block files, whose devices may hang, on threads of their own (apart.py). Writes of a log file keep the order
of the calls even when several are under way, since each is given its place when it is asked for. After a
failed sync a log file refuses everything: the kernel may have dropped what it could not write.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from millrace.runtime.disk import BlockFile, Buffer, DiskFailed, DiskLocked
from millrace.runtime.disk.apart import THREADS_APART
from millrace.runtime.disk.opening import (
    BlockDescriptor,
    OpenFd,
    allocate,
    disk_error,
    file_system_of,
    nearest_present,
    open_block_descriptor,
    sync_folder,
    sync_name,
)
from millrace.runtime.errors import Closed
from millrace.runtime.scheduling.yield_queue import DurableWrites

P = ParamSpec("P")
T = TypeVar("T")

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_PARTS_MAX = 512  # below IOV_MAX everywhere


class Caller(Protocol):
    """Makes a blocking call about the file of that path; an OSError comes out as the project's."""

    async def __call__(self, path: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...


async def _off_loop(path: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a blocking call on the executor; an OSError comes out as the project's."""
    run = partial(_in_own_words, path, call, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(None, run)


def _in_own_words(path: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    except OSError as error:
        raise disk_error(error, path) from error


async def _held(opening: asyncio.Future[T], close: Callable[[T], None]) -> T:
    """What a cancelled caller will not see is closed when the thread has it: it holds a descriptor, and may
    hold a lock."""
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(
            lambda done: None if done.cancelled() or done.exception() else close(done.result())
        )
        raise


class PosixDisk:
    """`driver`: auto | uring | thread. `open_fd` is `os.open`, or what a test puts in its place to refuse
    flags. `writes`: where durable writes to blocks are counted. `call`: how blocking calls are made."""

    def __init__(
        self,
        *,
        driver: str = "auto",
        open_fd: OpenFd = os.open,
        writes: DurableWrites | None = None,
        call: Caller = _off_loop,
    ) -> None:
        self._call = call
        self._driver = driver
        self._open_fd = open_fd
        self._writes = writes or DurableWrites()

    async def open_block(
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> BlockFile:
        loop = asyncio.get_running_loop()
        call = partial(open_block_descriptor, path, size_bytes, direct, self._open_fd, is_shared=is_shared)
        opening = loop.run_in_executor(THREADS_APART, call)
        descriptor = await _held(opening, lambda descriptor: os.close(descriptor.fd))
        try:
            return self._drive(descriptor, loop)
        except BaseException:
            os.close(descriptor.fd)
            raise

    def _drive(self, descriptor: BlockDescriptor, loop: asyncio.AbstractEventLoop) -> BlockFile:
        if self._driver != "thread" and hasattr(os, "eventfd"):
            from millrace.runtime.disk.uring_file import UringBlockFile

            try:
                return UringBlockFile(descriptor, loop, self._writes)
            except OSError as error:
                if self._driver == "uring":
                    raise disk_error(error, descriptor.path) from error
        from millrace.runtime.disk.thread import ThreadBlockFile

        return ThreadBlockFile(descriptor, loop, self._writes)

    async def open_log(self, path: str) -> PosixLogFile:
        opening = asyncio.ensure_future(self._call(path, _open_log, path, self._call))
        return await _held(opening, lambda file: os.close(file._fd))

    async def read_file(self, path: str) -> bytes | None:
        return await self._call(path, _read_file, path)

    async def write_file(self, path: str, data: bytes) -> None:
        await self._call(path, _write_file, path, data)

    async def list_folder(self, path: str) -> list[str]:
        """On a thread of its own: it is how a log is looked for whose device may hang."""
        run = partial(_in_own_words, path, _list_folder, path)
        return await asyncio.get_running_loop().run_in_executor(THREADS_APART, run)

    async def make_folder(self, path: str) -> None:
        await self._call(path, _make_folder, path)

    async def missing_folders(self, path: str) -> list[str]:
        return await self._call(path, _missing_folders, path)

    async def remove_folder(self, path: str) -> None:
        await self._call(path, _remove_folder, path)

    async def remove(self, path: str) -> None:
        await self._call(path, _remove, path)

    async def rename(self, source: str, target: str) -> None:
        await self._call(source, _rename, source, target)

    async def reserve(self, path: str, size_bytes: int) -> None:
        await self._call(path, _reserve, path, size_bytes)

    def free_bytes(self, path: str) -> int:
        """Of the file system that holds `path`, or would."""
        found = file_system_of(path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self, path: str) -> int:
        found = file_system_of(path)
        return found.f_blocks * found.f_frsize

    def volume_of(self, path: str) -> int:
        return os.stat(nearest_present(path)).st_dev

    def lock(self, path: str) -> PosixLock:
        return PosixLock(path)

    def lock_holder(self, path: str) -> str:
        return _lock_holder(path)


class PosixLock:
    """flock on a file of its own, which holds the pid for whoever is refused. Kept true: who has it has the
    file of that name, for a holder may remove it before he lets go."""

    def __init__(self, path: str) -> None:
        try:
            self._fd = _locked(path)
        except OSError as error:
            raise disk_error(error, path) from error

    def release(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _locked(path: str) -> int:
    """The descriptor of the file, made if need be, that is locked until it is closed. Raises DiskLocked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _is_taken(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_taken(fd: int, path: str) -> bool:
    """False: the file was removed meanwhile, and whoever comes next makes another."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        raise DiskLocked(path, holder) from None
    if not _is_still_there(fd, path):
        return False
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return True


def _is_still_there(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _lock_holder(path: str) -> str:
    """A flock that is tried is taken for an instant, so it is not tried: the file names a process, and that
    process has it open, or not."""
    try:
        with open(path, "rb") as file:
            pid = file.read(32).decode("ascii", "replace").strip()
            wanted = os.fstat(file.fileno())
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise disk_error(error, path) from error
    if not pid.isdigit():
        return ""
    try:
        return (
            pid
            if any(_is_open_as(f"/proc/{pid}/fd/{fd}", wanted) for fd in os.listdir(f"/proc/{pid}/fd"))
            else ""
        )
    except OSError:
        return pid if _is_alive(int(pid)) else ""  # it is gone, another user's, or there is no /proc


def _is_open_as(path: str, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), wanted)
    except OSError:
        return False  # closed meanwhile


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class PosixLogFile:
    def __init__(self, fd: int, path: str, size_bytes: int, call: Caller) -> None:
        self._fd = fd
        self._call = call
        self._path = path
        self._size_bytes = size_bytes
        self._is_failed = False
        self._calls: dict[asyncio.Future[Any], None] = {}  # under way off the loop
        self._closing: asyncio.Task[None] | None = None

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def append(self, parts: Sequence[Buffer]) -> None:
        self._check()
        position = self._size_bytes
        self._size_bytes += sum(len(part) for part in parts)
        await self._guard(_append, self._fd, self._path, list(parts), position)

    async def sync(self) -> None:
        self._check()
        await self._guard(_sync, self._fd)

    async def read_at(self, position: int, length: int) -> bytes:
        self._check_open()
        return await self._under_way(self._call(self._path, os.pread, self._fd, length, position))

    async def truncate(self, size_bytes: int) -> None:
        self._check()
        self._size_bytes = size_bytes
        await self._guard(_truncate, self._fd, size_bytes)

    async def close(self) -> None:
        """Waits for whatever was asked for, and syncs nothing. Idempotent."""
        if self._closing is None:
            fd, self._fd = self._fd, -1
            self._closing = asyncio.get_running_loop().create_task(self._close(fd))
        await asyncio.shield(self._closing)

    async def _close(self, fd: int) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._call(self._path, os.close, fd)

    def _check(self) -> None:
        self._check_open()
        if self._is_failed:
            raise DiskFailed(self._path, "an earlier write failed")

    def _check_open(self) -> None:
        if self._fd < 0:
            raise Closed(self._path)

    async def _guard(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async def guarded() -> T:
            try:
                return await self._call(self._path, call, *args, **kwargs)
            except Exception:
                self._is_failed = True
                raise

        return await self._under_way(guarded())

    async def _under_way(self, work: Coroutine[Any, Any, T]) -> T:
        """A thread goes on where whoever waits for it is cancelled: `close` waits for it, or it would work on
        whichever file has the number next."""
        task = asyncio.get_running_loop().create_task(work, name=f"call for {self._path}")
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
        return await asyncio.shield(task)


def _open_log(path: str, call: Caller) -> PosixLogFile:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        sync_name(path, is_new=size == 0)
        return PosixLogFile(fd, path, size, call)
    except BaseException:
        os.close(fd)
        raise


def _append(fd: int, path: str, parts: list[Buffer], position: int) -> None:
    try:
        write_all(fd, parts, position)
    except OSError as error:
        raise disk_error(error, path, sum(map(len, parts))) from error


def write_all(fd: int, parts: list[Buffer], position: int) -> None:
    for first in range(0, len(parts), _PARTS_MAX):
        views = [memoryview(part).cast("B") for part in parts[first : first + _PARTS_MAX] if len(part)]
        while views:
            count = (
                os.pwritev(fd, views, position)
                if hasattr(os, "pwritev")
                else os.pwrite(fd, views[0], position)
            )
            position += count
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if views and count:
                views[0] = views[0][count:]


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def _truncate(fd: int, size_bytes: int) -> None:
    os.ftruncate(fd, size_bytes)
    os.fsync(fd)


def _read_file(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write_file(path: str, data: bytes) -> None:
    temporary = path + ".tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, [data], 0)
        _sync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path) or ".")


def _list_folder(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def _make_folder(path: str) -> None:
    """Makes the missing ones from the top down, and syncs the folder each stands in."""
    parent = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(path):
        if not os.path.isdir(parent):
            _make_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        sync_folder(parent)


def _missing_folders(path: str) -> list[str]:
    found: list[str] = []
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        found.insert(0, path)
        path = os.path.dirname(path)
    return found


def remove_empty(path: str) -> bool:
    """Whether it was a folder, and empty."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def _remove_folder(path: str) -> None:
    if remove_empty(path):
        sync_folder(os.path.dirname(path) or ".")


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        sync_folder(os.path.dirname(path) or ".")


def _rename(source: str, target: str) -> None:
    os.replace(source, target)
    sync_folder(os.path.dirname(target) or ".")
    if os.path.dirname(source) != os.path.dirname(target):
        sync_folder(os.path.dirname(source) or ".")


def _reserve(path: str, size_bytes: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        allocate(fd, 0, size_bytes)
        os.fsync(fd)
    except OSError as error:
        raise disk_error(error, path, size_bytes) from error
    finally:
        os.close(fd)
    sync_folder(os.path.dirname(path) or ".")
