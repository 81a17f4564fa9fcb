"""A file of the directory store while it is written: small writes through the page cache, large ones past it.

Readers of history have a cache of their own, one number bounds the node's memory, and memory that is used
again at once was measured five times cheaper than fresh memory (on a virtual machine, whose host gives pages
out at their first touch and takes them back when they are free). So a large write is gathered in memory that
was used before and written with O_DIRECT. Through the page cache a page is found, copied into, mapped to the
disk, written and given back: 23 us of CPU for 64 KiB, against 13 us, and 10 where a write is 2 MiB. Where the
system refuses direct I/O, at the opening or at a write, the same bytes go through the page cache a few MiB at
a time, are synced and leave it.

What does not begin or end at a page's edge goes through the page cache beside the direct writes; the two
never touch the same page.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from millrace.runtime.disk import Buffer
from millrace.runtime.disk.aligned import PAGE_BYTES, aligned_memory

VECTOR_MAX = 1024  # IOV_MAX
LARGE_BYTES_MIN = 1 << 20
CACHED_BYTES_MAX = 4 << 20  # of a large write that goes through the page cache: so much of it at a time
STAGE_BYTES = 2 << 20  # of one large page; a direct write costs 60 to 80 us of CPU, whatever its size
STAGES_KEPT = 4
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class SystemCalls(Protocol):
    """The calls whose failure decides what is durable. `os` has them; tests hand in ones that fail."""

    def open(self, path: str, flags: int, /) -> int: ...
    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int, /) -> int: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int, /) -> int: ...
    def fsync(self, fd: int, /) -> None: ...
    def rename(self, source: str, target: str, /) -> None: ...
    def link(self, source: str, target: str, /) -> None: ...
    def fstatvfs(self, fd: int, /) -> os.statvfs_result: ...


class NewFile:
    """A file being written; nothing of it shows under its key before `publish`. Its lock tells the sweep that
    it lives."""

    def __init__(self, fd: int, path: str, key: str) -> None:
        self.fd = fd  # -1 once closed
        self.direct_fd = -1  # the same file for direct I/O, once a large write came
        self.path = path
        self.key = key
        self.is_published = False
        # Held while a descriptor is used: a cancelled call goes on in its thread, and must not meet the
        # number in another file's hands.
        self.lock = threading.Lock()


def check_open(new: NewFile) -> None:
    """Raises FileNotFoundError where the file was removed while it was written."""
    if new.fd < 0:
        raise FileNotFoundError(errno.ENOENT, "the unfinished file is gone", new.path)


def close_new(new: NewFile) -> None:
    """Closes the file and removes its first name, if it still has it. Under its lock."""
    try:
        os.unlink(new.path)
    except OSError:
        pass  # renamed; or left for the sweep
    for fd in (new.fd, new.direct_fd):
        if fd >= 0:
            os.close(fd)
    new.fd = new.direct_fd = -1


class Stages:
    """Pieces of aligned memory, one for each thread that writes; STAGES_KEPT of them are kept."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []
        self._lock = threading.Lock()

    def take(self) -> memoryview:
        with self._lock:
            if self._free:
                return self._free.pop()
        return memoryview(aligned_memory(STAGE_BYTES))

    def give(self, stage: memoryview) -> None:
        with self._lock:
            if len(self._free) < STAGES_KEPT:
                self._free.append(stage)


class Cursor:
    """Reads on through the concatenation of `parts`."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._views = [memoryview(part).cast("B") for part in parts if len(part)]
        self._views.reverse()
        self.left_bytes = sum(map(len, self._views))

    def fill(self, target: memoryview) -> None:
        """Copies the next bytes, as many as `target` has."""
        views, at, end = self._views, 0, len(target)
        self.left_bytes -= end
        while at < end:
            view = views.pop()
            stop = at + len(view)
            if stop > end:
                views.append(view[end - at :])
                view, stop = view[: end - at], end
            target[at:stop] = view
            at = stop

    def rest(self) -> list[memoryview]:
        return self._views[::-1]


class FileWriter:
    def __init__(self, calls: SystemCalls) -> None:
        self._calls = calls
        self._stages = Stages()
        self.is_direct = _O_DIRECT != 0

    def write(self, new: NewFile, parts: Sequence[Buffer], position: int) -> None:
        """All of `parts` from `position` on; not yet durable. Threads may write different places at once."""
        cursor = Cursor(parts)
        if cursor.left_bytes < LARGE_BYTES_MIN:
            self._write_cached(new, cursor.rest(), position)
            return
        if self.is_direct:
            position = self._write_direct(new, cursor, position)
        self._write_synced(new, cursor.rest(), position)

    def sync(self, new: NewFile) -> None:
        """Under its lock. A file whose sync failed is gone: a second one would lie."""
        try:
            self._calls.fsync(new.fd)
        except OSError:
            close_new(new)
            raise

    def _write_direct(self, new: NewFile, cursor: Cursor, position: int) -> int:
        """Writes what it is allowed to; gives the position that it came to."""
        stage = self._stages.take()
        try:
            while cursor.left_bytes and self.is_direct:
                view = stage[: stage_bytes(position, cursor.left_bytes)]
                cursor.fill(view)
                while len(view):
                    with new.lock:
                        check_open(new)
                        written = self._write_once(new, view, position)
                    view, position = view[written:], position + written
        finally:
            self._stages.give(stage)
        return position

    def _write_once(self, new: NewFile, view: memoryview, position: int) -> int:
        """Directly where the place allows it. The first refusal is the last: nothing is tried again."""
        if self.is_direct and not (position | len(view)) % PAGE_BYTES:
            try:
                if new.direct_fd < 0:
                    new.direct_fd = self._calls.open(new.path, os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT)
                return self._calls.pwritev(new.direct_fd, [view], position)
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                self.is_direct = False
        return self._calls.pwritev(new.fd, [view], position)

    def _write_synced(self, new: NewFile, views: list[memoryview], position: int) -> None:
        first = 0
        while first < len(views):
            end, length = first, 0
            while end < len(views) and length < CACHED_BYTES_MAX:
                length += len(views[end])
                end += 1
            self._write_cached(new, views[first:end], position)
            self._leave_page_cache(new, position, length)
            first, position = end, position + length

    def _write_cached(self, new: NewFile, views: list[memoryview], position: int) -> None:
        first = 0
        while first < len(views):
            with new.lock:
                check_open(new)
                written = self._calls.pwritev(new.fd, views[first : first + VECTOR_MAX], position)
            position += written
            while first < len(views) and written >= len(views[first]):
                written -= len(views[first])
                first += 1
            if written:
                views[first] = views[first][written:]

    def _leave_page_cache(self, new: NewFile, position: int, length: int) -> None:
        """Pages can go only once they are on the disk."""
        with new.lock:
            check_open(new)
            self.sync(new)
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):
                    os.posix_fadvise(new.fd, position, length, os.POSIX_FADV_DONTNEED)


def stage_bytes(position: int, left_bytes: int) -> int:
    """What the next write from `position` takes: up to a page's edge first, then whole pages, then the
    rest."""
    to_edge = -position % PAGE_BYTES
    if to_edge:
        return min(to_edge, left_bytes)
    return min(left_bytes & -PAGE_BYTES or left_bytes, STAGE_BYTES)
