"""Objects as files of one folder: the blocking half of the directory store. Nothing here belongs on the event
loop.

A key is a path below the folder; no part of it begins with a dot, so that `.new` is free for files being
written. What it keeps true: a file that has a key's name is whole and synced, and its name is synced once the
call returned.

    write    `.new/PID-N`, locked; fsync; rename to its key (or link, when it must be first); fsync of the
             folders
    crash    `.new/PID-N` remains without its lock: swept at the next start, which never touches a living
             writer's

Unfinished files lie in one folder, not beside their target, so that a start looks at them and not at every
object.

Not here: how bytes get into a file (folder_write.py).
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from millrace.runtime.disk import Buffer
from millrace.runtime.disk.denial import denial_words
from millrace.runtime.objectstore import (
    FolderDenied,
    ObjectEntry,
    ObjectMissing,
    PreconditionFailed,
    StoreFull,
    StoreUnavailable,
)
from millrace.runtime.objectstore.folder_write import (
    VECTOR_MAX,
    FileWriter,
    NewFile,
    SystemCalls,
    check_open,
    close_new,
)

NEW_FOLDER = ".new"
KEY_BYTES_MAX = 1024
_PART_BYTES_MAX = 255
_READ_BYTES_MAX = 1 << 30  # a single pread gives at most 2 GiB less a page
_SYNCED_MAX = 10_000
_ATTEMPTS_MAX = 100  # at names and folders that other processes take or remove at the same instant

# Free bytes of the file system that data never takes: the metadata log on the same disk must still be able to
# record the deletions that make room. Above what it keeps in reserve for that, and the same again
# (kraft/log/reserve.py), so that it has these before puts go on.
KEPT_FREE_BYTES = 32 << 20
# What goes on making room is put itself: what compaction keeps of objects that are dead but for a little,
# pieces of metadata, claims. Such a put, small and of a whole object, leaves this much and may take the rest
# of what is kept.
KEPT_FROM_SMALL_BYTES = KEPT_FREE_BYTES * 3 // 4
SMALL_BYTES_MAX = 256 << 10

PRIVATE_FILE = 0o600

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NEVER = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


def store_error(error: OSError, key: str) -> Exception:
    """The remedy for a failed call. After anything but a missing file the outcome is unknown."""
    if error.errno == errno.ENOENT:
        return ObjectMissing(key)
    if error.errno in _FULL:
        return StoreFull(key, error.strerror)
    if error.errno in _DENIED:
        return FolderDenied(key, denial_words(error, error.filename or ""))
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY):
        return ValueError(f"key {key!r} is a folder here, or lies below an object")
    return StoreUnavailable(key, error.strerror)


def _id_of(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def kept_by(size_bytes: int) -> int:
    """Free bytes that a put of such an object leaves, unless it is data."""
    return KEPT_FROM_SMALL_BYTES if size_bytes <= SMALL_BYTES_MAX else KEPT_FREE_BYTES


def check_key(key: str) -> None:
    """ValueError for a key that would leave the folder, meet our unfinished files, or not fit a file
    system."""
    parts = key.split("/")
    is_sound = all(part and part[0] != "." and len(part.encode()) <= _PART_BYTES_MAX for part in parts)
    if not is_sound or "\0" in key or len(key.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"key {key!r} cannot name a file of the store")


class ObjectFolder:
    def __init__(self, root: str, calls: SystemCalls, mode: int | None = None) -> None:
        """`mode`: of files; folders may be entered by whom files may be read by. Without one they are their
        owner's alone, and what the process is told to keep back (umask) is kept back."""
        self._mode = mode
        self._root = os.path.abspath(root)
        self._new = f"{self._root}/{NEW_FOLDER}"
        self._root_id = (-1, -1)  # of the folder that was prepared: its device and number
        self._calls = calls
        self._numbers = itertools.count()
        # Folders two or more above an object whose own names are known to be synced. Such a folder is never
        # removed.
        self._synced: set[str] = set()
        self._writing_bytes = 0  # of writes under way, whose room is spoken for
        self._writer = FileWriter(calls)
        self._lock = threading.Lock()
        self._replacing = threading.Lock()

    def prepare(self) -> None:
        """Makes the folder and sweeps the unfinished files of writers that are gone. ValueError where no
        folder can be."""
        try:
            self._make_folder(self._root)
            Path(self._new).mkdir(mode=0o700, exist_ok=True)
            self._root_id = _id_of(self._root)
        except (NotADirectoryError, FileExistsError):
            raise ValueError(f"{self._root} is a file, or lies below one, and a folder is needed") from None
        except OSError as error:
            if error.errno not in _NEVER:
                raise
            raise ValueError(f"no folder can be made at {self._root}: {error.strerror}") from None
        try:
            self._sync_folder(os.path.dirname(self._root))
        except PermissionError:
            pass  # a folder that was made for us: its name is its maker's business
        self._sync_folder(self._root)
        with os.scandir(self._new) as found:
            for file in found:
                _sweep(file.path)

    def _make_folder(self, path: str) -> None:
        """With those above it, each with the mode that the store's folders have; what is there keeps its
        own."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for each in reversed(missing):
            try:
                os.mkdir(each, 0o700)
            except FileExistsError:
                if not self._is_folder(each):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), each) from None
                continue  # another process was faster
            if self._mode is not None:
                os.chmod(each, self._mode | (self._mode & 0o444) >> 2)

    @staticmethod
    def _is_folder(path: str) -> bool:
        """As os.path.isdir, but for a loop of links, which it raises."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except FileNotFoundError:
            return False

    def write(
        self, key: str, parts: Sequence[Buffer], *, is_first: bool = False, kept_bytes: int = KEPT_FREE_BYTES
    ) -> None:
        """Durable on return. `is_first`: PreconditionFailed when the key exists, unless with these very
        bytes. `kept_bytes`: see kept_by."""
        new = self.create(key)
        try:
            self.write_at(new, parts, 0, kept_bytes)
            self.publish(new, is_first=is_first)
        except FileExistsError:
            if not self._is_content(key, parts):
                raise PreconditionFailed(key) from None
            self._sync_name(key)
        finally:
            self.discard(new)

    def replace(self, key: str, content: bytes, before: bytes) -> None:
        """Durable on return. PreconditionFailed when the object is not `before`, nor `content` already. One
        at a time in this process; another process's may come between."""
        with self._replacing:
            if self._is_content(key, [before]):
                self.write(key, [content], kept_bytes=kept_by(len(content)))
            elif self._is_content(key, [content]):
                self._sync_name(key)
            else:
                raise PreconditionFailed(key)

    def create(self, key: str) -> NewFile:
        """An unfinished file, not yet under its key. Raises OSError where none can be made, ValueError for a
        key that cannot be."""
        check_key(key)
        for _ in range(_ATTEMPTS_MAX):
            path = f"{self._new}/{os.getpid()}-{next(self._numbers)}"
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
            except FileExistsError:
                continue  # another container's process has our number
            except FileNotFoundError:
                if not self._has_made_new():
                    raise
                continue
            if _take(fd):
                if self._mode is not None:
                    os.fchmod(fd, self._mode)
                return NewFile(fd, path, key)
            os.close(fd)
        raise OSError(errno.EEXIST, "no free name for a new file", self._new)

    def _has_made_new(self) -> bool:
        """Of a folder for unfinished files that is gone: whoever removes empty folders takes it. Not where
        the whole folder is gone or another one, for its volume may not be mounted."""
        if _id_of(self._root) != self._root_id:
            return False
        with suppress(FileExistsError):
            os.mkdir(self._new, 0o700)
        return True

    def write_at(
        self, new: NewFile, parts: Sequence[Buffer], position: int, kept_bytes: int = KEPT_FREE_BYTES
    ) -> None:
        """Writes all of `parts` from `position` on; not yet durable. Threads may write different places at
        once. ENOSPC, with nothing written, when it would leave less than `kept_bytes` free."""
        size_bytes = sum(map(len, parts))
        self._take_room(new, size_bytes, kept_bytes)
        try:
            self._writer.write(new, parts, position)
        finally:
            with self._lock:
                self._writing_bytes -= size_bytes

    def _take_room(self, new: NewFile, size_bytes: int, kept_bytes: int) -> None:
        with new.lock:
            check_open(new)
            status = self._calls.fstatvfs(new.fd)
        with self._lock:
            self._writing_bytes += size_bytes
            free_bytes = status.f_bavail * status.f_frsize
            is_enough = free_bytes >= self._writing_bytes + kept_bytes
            if not is_enough:
                self._writing_bytes -= size_bytes
        if not is_enough:
            sizes = (
                f"{size_bytes} bytes wanted, {free_bytes} free, of which {kept_bytes} are kept for metadata"
            )
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({sizes})", new.path)

    def publish(self, new: NewFile, *, is_first: bool = False) -> None:
        """Gives the file its key, durably. FileExistsError when `is_first` and another is there. May be
        called again when the outcome is unknown; a file that was discarded, or whose sync failed, is missing
        for good: a second sync would lie."""
        with new.lock:
            if not new.is_published:
                check_open(new)
                self._writer.sync(new)
                self._place(
                    new.path, self._path(new.key), self._calls.link if is_first else self._calls.rename
                )
                new.is_published = True
        self._sync_name(new.key)

    def _place(self, source: str, target: str, place: Callable[[str, str], None]) -> None:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                with self._lock:  # our own `_prune` waits; another process's may still come between
                    self._make_folder(os.path.dirname(target))
                    place(source, target)
                return
            except FileNotFoundError:  # the folder was removed as empty this instant
                if attempt == _ATTEMPTS_MAX - 1:
                    raise

    def discard(self, new: NewFile) -> None:
        """Closes the file and removes its first name, if it still has it. A second time it does nothing."""
        with new.lock:
            if new.fd >= 0:
                close_new(new)

    def read(self, key: str, start: int, end: int | None) -> bytes:
        """Bytes [start, end), to the end of the object when that is None. A file is never changed in place,
        so one open sees one object."""
        with self._opened(key) as (fd, size_bytes):
            end = size_bytes if end is None else end
            pieces: list[bytes] = []
            while start < end:
                piece = self._calls.pread(fd, min(end - start, _READ_BYTES_MAX), start)
                if not piece:
                    break
                pieces.append(piece)
                start += len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_into(
        self, key: str, start: int, views: Sequence[memoryview], call_bytes_max: int = _READ_BYTES_MAX
    ) -> int:
        """Fills the views, one after the other, from `start` on; how many bytes there were. With the fewest
        calls: each takes the interpreter from the loop when it returns. With `call_bytes_max` no more than so
        many are asked of the device at a time, nor by the kernel ahead."""
        left = [view for view in views if len(view)]
        came = 0
        with self._opened(key) as (fd, _):
            if call_bytes_max < _READ_BYTES_MAX and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            while left:
                count = self._calls.preadv(fd, _first(left, call_bytes_max), start + came)
                if not count:
                    break
                came += count
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if count:
                    left[0] = left[0][count:]
        return came

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """An object's file and its size."""
        check_key(key)
        try:
            fd = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except NotADirectoryError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key) from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key)
            yield fd, status.st_size
        finally:
            os.close(fd)

    def head(self, key: str) -> ObjectEntry | None:
        check_key(key)
        path = self._path(key)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (
            ObjectEntry(key, status.st_size, status.st_mtime_ns // 1_000_000)
            if stat.S_ISREG(status.st_mode)
            else None
        )

    def scan(self, prefix: str, after: str) -> Iterator[ObjectEntry]:
        """In key order: a folder sorts as its name with the slash, which is how its keys go on."""
        yield from self._scan_folder(prefix.rpartition("/")[0], prefix, after)

    def delete(self, keys: Sequence[str]) -> list[str]:
        """Removes files, durably, and folders that became empty; returns the keys it could not remove."""
        failed: list[str] = []
        changed: dict[str, None] = {}
        for key in keys:
            check_key(key)
            path = self._path(key)
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError:
                failed.append(key)
                continue
            folder = os.path.dirname(path)
            changed[os.path.dirname(folder) if self._prune(folder) else folder] = None
        for folder in changed:
            with suppress(FileNotFoundError):  # another delete removed it as empty, and syncs the one above
                self._sync_folder(folder)
        return failed

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _is_content(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Whether the object has exactly these bytes: then it was put by an earlier attempt of ours."""
        try:
            return self.read(key, 0, None) == b"".join(parts)
        except FileNotFoundError:
            return False

    def _scan_folder(self, folder: str, prefix: str, after: str) -> Iterator[ObjectEntry]:
        path = self._path(folder) if folder else self._root
        try:
            with os.scandir(path) as found:
                names = sorted(f"{e.name}/" if e.is_dir() else e.name for e in found if e.name[0] != ".")
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            key = f"{folder}/{name}" if folder else name
            if name.endswith("/"):
                if (key.startswith(prefix) or prefix.startswith(key)) and (
                    key > after or after.startswith(key)
                ):
                    yield from self._scan_folder(key[:-1], prefix, after)
            elif key > after and key.startswith(prefix) and (entry := self.head(key)) is not None:
                yield entry

    def _prune(self, folder: str) -> bool:
        """Removes the folder an object lay in when it is empty; never one that `_synced` relies on."""
        with self._lock:
            return folder != self._root and folder not in self._synced and _remove_if_empty(folder)

    def _sync_name(self, key: str) -> None:
        """Makes the key's name durable: its folder, the folder above (the first may be new), and once those
        higher up."""
        if "/" not in key:
            self._sync_folder(self._root)
            return
        folder = os.path.dirname(self._path(key))
        above = os.path.dirname(folder) if folder != self._root else folder
        self._sync_folder(folder)
        self._sync_folder(above)
        while above != self._root and above not in self._synced:
            higher = os.path.dirname(above)
            self._sync_folder(higher)
            with self._lock:
                if len(self._synced) >= _SYNCED_MAX:
                    self._synced.clear()
                self._synced.add(above)
            above = higher

    def _sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._calls.fsync(fd)
        finally:
            os.close(fd)


def _first(views: Sequence[memoryview], bytes_max: int) -> list[memoryview]:
    """So many bytes of the views, in as many as one call takes."""
    taken: list[memoryview] = []
    for view in views[:VECTOR_MAX]:
        taken.append(view[:bytes_max])
        bytes_max -= len(taken[-1])
        if not bytes_max:
            break
    return taken


def _take(fd: int) -> bool:
    """Locks a file just created. False when a sweep was faster: the file is gone, or about to be."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks on this file system: then the sweep finds none either, and removes nothing
    return os.fstat(fd).st_nlink > 0


def _sweep(path: str) -> None:
    """Removes an unfinished file unless its writer lives, which its lock tells."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        pass
    finally:
        os.close(fd)


def _remove_if_empty(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True
