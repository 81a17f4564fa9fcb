"""A disk in memory with the faults of a real one: what is durable, what is merely visible, and what a power
cut leaves.

Every file has *durable* bytes and a list of *pending* writes: block writes under way, log appends that were
not synced. A power cut (`cut`, or planned with `at_write`) stops the disk: nothing completes any more, and
`was_cut` is set. `restart` gives a new disk with what survived: of each pending write nothing, all, or any
subset of its sectors, as a `Fate` says. A plain kill keeps the page cache: `restart(power_was_cut=False)`
keeps every pending write, which is still not durable, and a change of names that was under way is done or
not, and durable with the next one in its folder.

Faults are planned by the number of the write (block writes, appends, syncs, truncations and namespace changes
all count): `at_write(n, Cut() | Fail(errno) | Misdirect(delta))`. `flip` rots a byte, `lose_block` makes a
block of a block file unreadable, until it is written again. `capacity_bytes` makes the disk fill up, and may
be changed at any time. After a cut nothing is taken any more: what is asked for then was never asked for.
Completion order: with `latency_s` by `call_later`, else after up to `hops` iterations of the loop; both drawn
from the Rand. `hits` counts each fault that struck, so that a hunt can tell which it never reached.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

from millrace.runtime.disk import BLOCK_BYTES, Buffer, DiskFailed, DiskFull, DiskLocked
from millrace.runtime.disk.lock_keeper import LockKeeper
from millrace.runtime.errors import Closed, MillraceError
from millrace.runtime.rand import Rand

SECTOR_BYTES = 512


@dataclass(slots=True)
class Pending:
    """One write that is not durable yet."""

    number: int
    path: str
    position: int
    data: bytes


Fate = Callable[[Pending], list[tuple[int, bytes]]]
"""What survives of a pending write: pieces, each with its place in the file."""


def drop(pending: Pending) -> list[tuple[int, bytes]]:
    return []


def keep(pending: Pending) -> list[tuple[int, bytes]]:
    return [(pending.position, pending.data)]


def tear(rand: Rand, unit_bytes: int = SECTOR_BYTES) -> Fate:
    """Each sector (or block) of the write survives or not, by a coin of its own."""

    def fate(pending: Pending) -> list[tuple[int, bytes]]:
        pieces, at = [], 0
        while at < len(pending.data):
            end = min(len(pending.data), at + unit_bytes - (pending.position + at) % unit_bytes)
            if rand.below(2):
                pieces.append((pending.position + at, pending.data[at:end]))
            at = end
        return pieces

    return fate


def any_fate(rand: Rand) -> Fate:
    """Drawn for each write: dropped, kept, or torn by sector or by block."""

    def fate(pending: Pending) -> list[tuple[int, bytes]]:
        return (drop, keep, tear(rand), tear(rand, BLOCK_BYTES))[rand.below(4)](pending)

    return fate


def holes() -> Fate:
    """Of each file the oldest write is lost, and what was written behind it is there: what a log must not go
    on from."""
    seen: dict[str, None] = {}

    def fate(pending: Pending) -> list[tuple[int, bytes]]:
        is_first = pending.path not in seen
        seen[pending.path] = None
        return drop(pending) if is_first else keep(pending)

    return fate


@dataclass(frozen=True, slots=True)
class Cut:
    """The power goes when this write has just begun."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The write fails with this error number; what it left behind is torn."""

    code: int = errno.EIO


@dataclass(frozen=True, slots=True)
class Misdirect:
    """The write reports success and lands `delta_bytes` away."""

    delta_bytes: int = BLOCK_BYTES


Fault = Cut | Fail | Misdirect


@dataclass(slots=True)
class SimFile:
    durable: bytearray
    visible: bytearray
    pending: list[Pending] = field(default_factory=list)
    is_device: bool = False
    is_log: bool = False  # written through the page cache: durable with a sync alone
    meant: bytearray | None = None  # what would be durable, had no write gone astray; None: none did
    lost: dict[int, None] = field(default_factory=dict)  # places of blocks that cannot be read

    @property
    def is_astray(self) -> bool:
        """A write went elsewhere, and it shows."""
        return self.meant is not None and self.meant != self.durable

    def set_right(self) -> None:
        """As if no write had gone astray."""
        assert self.meant is not None
        self.durable, self.visible, self.meant = self.meant, bytearray(self.meant), None

    def put(self, position: int, data: bytes, delta_bytes: int = 0) -> None:
        """Durable, and so many bytes beside its place."""
        if delta_bytes and self.meant is None:
            self.meant = bytearray(self.durable)
        if self.meant is not None:
            patch(self.meant, position, data)
        patch(self.durable, position + delta_bytes, data)
        patch(self.visible, position + delta_bytes, data)
        for at in [
            at for at in self.lost if position + delta_bytes <= at < position + delta_bytes + len(data)
        ]:
            del self.lost[at]

    def after_kill(self) -> SimFile:
        """What the next process finds where the machine stayed up: the page cache, which a power cut may
        still take; block writes that were under way are finished by the kernel."""
        after = SimFile(
            bytearray(self.durable), bytearray(self.visible), is_device=self.is_device, is_log=self.is_log
        )
        after.meant = None if self.meant is None else bytearray(self.meant)
        after.lost = dict(self.lost)
        for pending in self.pending:
            if self.is_log:
                after.pending.append(pending)
            else:
                after.put(pending.position, pending.data)
        return after

    def settle(self, pending: Pending, delta_bytes: int = 0) -> None:
        """The write is durable now."""
        self.pending.remove(pending)
        self.put(pending.position, pending.data, delta_bytes)


def patch(target: bytearray, position: int, data: bytes) -> None:
    """Overwrites, with zeros up to `position` where the target is shorter."""
    if len(target) < position:
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


class SimDisk:
    def __init__(
        self,
        rand: Rand | None = None,
        *,
        capacity_bytes: int = 1 << 40,
        latency_s: float = 0.0,
        hops: int = 3,
        is_direct: bool = True,
    ) -> None:
        self.files: dict[str, SimFile] = {}
        self.folders: dict[str, None] = {}
        self.hits: Counter[str] = Counter()
        self.write_count = 0
        self.was_cut = asyncio.Event()
        self.capacity_bytes = capacity_bytes
        self.latency_s = latency_s
        self.hops = hops
        self.is_direct = is_direct
        self.keeper: LockKeeper | None = None  # of the locks of all files
        self.rand = rand if rand is not None else Rand(b"disk")
        self._planned: dict[int, Fault] = {}
        self._locked: dict[str, str] = {}
        self._open_blocks: dict[str, None] = {}
        self._half_done: list[Callable[[SimDisk], None]] = []  # namespace changes under way
        # done, not synced: a kill came between; what was before
        self._loose: list[dict[str, SimFile | None]] = []
        self.on_event: Callable[..., None] = lambda *words: None  # told of every write and fault
        self.on_cut: Callable[[], None] = lambda: None  # called in the instant the power goes
        # Told of every block write as it begins and as it is durable: path, place, bytes.
        self.on_write: Callable[[str, int, bytes], None] = lambda path, position, data: None
        self.on_durable: Callable[[str, int, bytes], None] = lambda path, position, data: None

    # Faults and inspection.

    def at_write(self, number: int, fault: Fault) -> None:
        """Plans a fault for the write of that number; the first write is number 1."""
        self._planned[number] = fault

    def cut(self) -> None:
        """The power goes now."""
        if self.was_cut.is_set():
            return
        self.was_cut.set()
        self.hits["cut"] += 1
        self.on_event("cut")
        self.on_cut()

    def flip(self, path: str, position: int, mask: int = 0x01) -> None:
        """Rots one byte, durable and visible."""
        self.files[path].durable[position] ^= mask
        self.files[path].visible[position] ^= mask
        self.hits["flip"] += 1

    def zero(self, path: str, start: int, end: int) -> None:
        """These bytes never came, durable and visible: a power cut kept their sector from the medium."""
        for data in (self.files[path].durable, self.files[path].visible):
            data[start:end] = bytes(end - start)

    def lose_block(self, path: str, position: int) -> None:
        """The block that holds the byte cannot be read from now on, until something is written there."""
        self.files[path].lost[position - position % BLOCK_BYTES] = None

    def find_block(self, path: str, position: int) -> bool:
        """It can be read again, and holds what it held. Whether it could not."""
        return self.files[path].lost.pop(position - position % BLOCK_BYTES, self) is None

    def pending(self) -> list[Pending]:
        """Every write that a power cut now could lose, in the order they were asked for."""
        return sorted(
            (one for file in self.files.values() for one in file.pending), key=lambda one: one.number
        )

    def used_bytes(self) -> int:
        return sum(len(file.visible) for file in self.files.values() if not file.is_device)

    def add_device(self, path: str, size_bytes: int) -> None:
        """A raw device: it has its size from the beginning, and keeps it."""
        self.files[path] = SimFile(bytearray(size_bytes), bytearray(size_bytes), is_device=True)

    def restart(self, fate: Fate | None = None, *, power_was_cut: bool = True) -> SimDisk:
        """The disk the next process finds. This one stays as it is, so that several fates can be tried on
        it."""
        fate = fate or any_fate(self.rand)
        after = SimDisk(
            self.rand,
            capacity_bytes=self.capacity_bytes,
            latency_s=self.latency_s,
            hops=self.hops,
            is_direct=self.is_direct,
        )
        after.hits = self.hits
        after.folders = dict(self.folders)
        for path, file in self.files.items():
            after.files[path] = self._survivor(file, fate) if power_was_cut else file.after_kill()
        if power_was_cut:
            for loose in reversed(self._loose):
                if not self._is_kept(fate):
                    after.undo(loose)
        else:
            after._loose = list(self._loose)
        for change in self._half_done:
            if self._is_kept(fate):
                before = dict(after.files)
                change(after)
                after._loose.append(
                    {
                        p: before.get(p)
                        for p in (before | after.files)
                        if before.get(p) is not after.files.get(p)
                    }
                )
        if power_was_cut:
            after._loose.clear()
        return after

    def _is_kept(self, fate: Fate) -> bool:
        coin = bool(self.rand.below(2))
        return fate is keep or (fate is not drop and coin)

    def undo(self, loose: dict[str, SimFile | None]) -> None:
        """A namespace change that was never synced is lost."""
        self.hits["undone"] += 1
        for path, before in loose.items():
            if before is None:
                self.files.pop(path, None)
            else:
                self.files[path] = SimFile(
                    bytearray(before.durable), bytearray(before.durable), is_log=before.is_log
                )

    def _survivor(self, file: SimFile, fate: Fate) -> SimFile:
        after = SimFile(bytearray(file.durable), bytearray(file.durable), is_device=file.is_device)
        after.meant = None if file.meant is None else bytearray(file.meant)
        after.lost = dict(file.lost)
        for pending in file.pending:
            pieces = fate(pending)
            survived = sum(len(data) for _, data in pieces)
            kind = "kept" if survived == len(pending.data) else "torn" if survived else "dropped"
            self.hits[kind] += 1
            for position, data in pieces:
                after.put(position, data)
        return after

    # What files use.

    async def never(self) -> None:
        """The power is gone, and so is whoever asks."""
        await asyncio.get_running_loop().create_future()

    def begin_write(
        self, what: str, path: str, position: int = 0, data: bytes = b""
    ) -> tuple[int, Fault | None]:
        """Counts a write and says what is to befall it."""
        self.write_count += 1
        self.on_event(self.write_count, what, path, position, len(data), crc32(data))
        fault = self._planned.pop(self.write_count, None)
        if fault is not None:
            self.hits[type(fault).__name__.lower()] += 1
        if isinstance(fault, Cut):
            self.cut()
        return self.write_count, fault

    def later(self, call: Callable[[], None]) -> None:
        """Calls after this operation's delay, unless the power went in the meantime."""
        if self.latency_s:
            delay_s = self.latency_s * (0.5 + self.rand.fraction())
            asyncio.get_running_loop().call_later(delay_s, self._hop, 0, call)
        else:
            asyncio.get_running_loop().call_soon(self._hop, self.rand.below(self.hops + 1), call)

    def _hop(self, hops_left: int, call: Callable[[], None]) -> None:
        if self.was_cut.is_set():
            return
        if hops_left:
            asyncio.get_running_loop().call_soon(self._hop, hops_left - 1, call)
        else:
            call()

    async def delay(self) -> None:
        """Waits for an operation's delay; for ever once the power is gone."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.later(lambda: None if future.done() else future.set_result(None))
        await future

    def take_space(self, path: str, more_bytes: int) -> None:
        if self.used_bytes() + more_bytes > self.capacity_bytes:
            self.hits["full"] += 1
            raise DiskFull(
                path, os.strerror(errno.ENOSPC), more_bytes, self.capacity_bytes - self.used_bytes()
            )

    async def _change(
        self, what: str, path: str, change: Callable[[SimDisk], None], *debris: tuple[str, bytes]
    ) -> None:
        """A namespace operation: atomic, durable on return; a cut while it is under way leaves it done or not
        done, and perhaps some of the `debris`: files that it uses on the way."""
        if self.was_cut.is_set():
            await self.never()
        _, fault = self.begin_write(what, path)
        steps: list[Callable[[SimDisk], None]] = [*(partial(_leave, *left) for left in debris), change]
        self._half_done += steps
        if not isinstance(fault, Fail):
            await self.delay()
        for step in steps:
            self._half_done.remove(step)
        if isinstance(fault, Fail):
            raise failure(fault, path)
        change(self)
        self._sync_folder_of(path)

    def _sync_folder_of(self, path: str) -> None:
        """Makes earlier changes of names in it durable, too."""
        folder = path.rpartition("/")[0]
        self._loose = [
            loose for loose in self._loose if all(name.rpartition("/")[0] != folder for name in loose)
        ]

    # The interface of runtime/disk.py.

    async def open_block(
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> SimBlockFile:
        is_exclusive = path not in self._open_blocks
        if not is_exclusive and not is_shared:
            raise DiskLocked(path)
        if direct == "require" and not self.is_direct:
            raise DiskFailed(path, "direct I/O was required")
        if path in self.files and (self.files[path].visible or self.files[path].is_device):
            await self.delay()
            self._sync_folder_of(path)
        else:
            self.take_space(path, size_bytes)
            change = partial(_leave, path, bytes(size_bytes))
            await self._change("create", path, change, (path, b""), (path, bytes(size_bytes // 2)))
        self._open_blocks[path] = None
        file = SimBlockFile(self, path, self.is_direct and direct != "never")
        file.is_exclusive = is_exclusive
        return file

    def close_block(self, path: str) -> None:
        self._open_blocks.pop(path, None)

    async def open_log(self, path: str) -> SimLogFile:
        if path not in self.files:
            await self._change("create", path, partial(_leave, path, b""))
        else:
            await self.delay()
            self._sync_folder_of(path)
        return SimLogFile(self, path)

    async def read_file(self, path: str) -> bytes | None:
        await self.delay()
        file = self.files.get(path)
        return None if file is None else bytes(file.visible)

    async def write_file(self, path: str, data: bytes) -> None:
        self.take_space(path, len(data))  # beside what is there, until it is replaced
        torn = (f"{path}.tmp", data[: self.rand.below(len(data) + 1)])
        await self._change("write_file", path, partial(_leave, path, data), torn)

    async def list_folder(self, path: str) -> list[str]:
        await self.delay()
        prefix = path.rstrip("/") + "/"
        below = [name[len(prefix) :] for name in [*self.files, *self.folders] if name.startswith(prefix)]
        return sorted(dict.fromkeys(name.split("/")[0] for name in below))

    async def make_folder(self, path: str) -> None:
        if path.rstrip("/") in self.folders:
            await self.delay()
        else:
            await self._change(
                "make_folder", path, lambda disk: disk.folders.__setitem__(path.rstrip("/"), None)
            )

    async def missing_folders(self, path: str) -> list[str]:
        await self.delay()
        return [] if path.rstrip("/") in self.folders else [path.rstrip("/")]

    async def remove_folder(self, path: str) -> None:
        if await self.list_folder(path):
            return

        def change(disk: SimDisk) -> None:
            disk.folders.pop(path.rstrip("/"), None)

        await self._change("remove_folder", path, change)

    async def remove(self, path: str) -> None:
        def change(disk: SimDisk) -> None:
            disk.files.pop(path, None)

        await self._change("remove", path, change)

    async def rename(self, source: str, target: str) -> None:
        if source not in self.files:
            raise DiskFailed(source, os.strerror(errno.ENOENT))

        def change(disk: SimDisk) -> None:
            disk.files[target] = disk.files.pop(source)

        await self._change("rename", source, change)

    async def reserve(self, path: str, size_bytes: int) -> None:
        had_bytes = len(self.files[path].visible) if path in self.files else 0
        self.take_space(path, max(0, size_bytes - had_bytes))
        await self._change(
            "reserve", path, partial(_leave, path, bytes(size_bytes)), (path, bytes(size_bytes // 2))
        )

    def free_bytes(self, path: str) -> int:
        return max(0, self.capacity_bytes - self.used_bytes())

    def total_bytes(self, path: str) -> int:
        return self.capacity_bytes

    def volume_of(self, path: str) -> int:
        return 0

    def lock(self, path: str) -> SimLock:
        if path in self._locked:
            raise DiskLocked(path, self._locked[path])
        self._locked[path] = "1"
        return SimLock(self._locked, path)

    def lock_holder(self, path: str) -> str:
        return self._locked.get(path, "")


def _leave(path: str, content: bytes, disk: SimDisk) -> None:
    disk.files[path] = SimFile(bytearray(content), bytearray(content))


def _shorten(path: str, size_bytes: int, disk: SimDisk) -> None:
    file = disk.files[path]
    del file.durable[size_bytes:]
    del file.visible[size_bytes:]
    kept = [(one, one.data[: max(0, size_bytes - one.position)]) for one in file.pending]
    file.pending = [Pending(one.number, one.path, one.position, data) for one, data in kept if data]


def failure(fault: Fail, path: str) -> DiskFull | DiskFailed:
    kind = DiskFull if fault.code in (errno.ENOSPC, errno.EDQUOT) else DiskFailed
    return kind(path, os.strerror(fault.code))


class SimLock:
    def __init__(self, locked: dict[str, str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.pop(self._path, None)


class SimBlockFile:
    """Each write is pending until it completes, and durable from then on."""

    def __init__(self, disk: SimDisk, path: str, is_direct: bool) -> None:
        self._disk = disk
        self._path = path
        self._file = disk.files[path]
        self.size_bytes = len(self._file.durable)
        self.is_direct = is_direct
        self.is_new = False  # so that what looks at a place that may hold something looks at each
        self.is_device = self._file.is_device
        self.is_exclusive = True
        self.keeper = disk.keeper
        self._under_way = 0
        self._is_closed = False

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        if self._is_closed:
            raise Closed(self._path)
        assert position % BLOCK_BYTES == 0, position
        assert len(buffer) % BLOCK_BYTES == 0, len(buffer)
        assert 0 < len(buffer) <= self.size_bytes - position, (position, len(buffer))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._disk.was_cut.is_set():
            return future
        content = bytes(buffer)
        self._disk.on_write(self._path, position, content)
        number, fault = self._disk.begin_write("write_at", self._path, position, content)
        pending = Pending(number, self._path, position, content)
        self._file.pending.append(pending)
        self._under_way += 1

        def complete() -> None:
            self._under_way -= 1
            assert bytes(buffer) == pending.data, "the buffer changed while its write was under way"
            if isinstance(fault, Fail):
                self._file.pending.remove(pending)
                for place, data in tear(self._disk.rand)(pending):
                    self._file.put(place, data)
                if not future.done():
                    future.set_exception(failure(fault, self._path))
                return
            self._file.settle(pending, fault.delta_bytes if isinstance(fault, Misdirect) else 0)
            self._disk.on_durable(self._path, position, content)
            if not future.done():  # whoever waited may have gone, as a failover that is taken back
                future.set_result(None)

        self._disk.later(complete)
        return future

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        future: asyncio.Future[DiskFailed | None] = asyncio.get_running_loop().create_future()
        write = self.write_at(position, buffer)

        def on_written(done: asyncio.Future[None]) -> None:
            error = done.exception()
            if error is not None:
                future.set_exception(error)
            else:
                self._disk.later(on_read)

        def on_read() -> None:
            if any(read_position <= at < read_position + len(into) for at in self._file.lost):
                self._disk.hits["unreadable"] += 1
                future.set_result(DiskFailed(self._path, os.strerror(errno.EIO)))
                return
            into[:] = self._file.visible[read_position : read_position + len(into)]
            future.set_result(None)

        write.add_done_callback(on_written)
        return future

    async def read_at(self, position: int, length: int) -> bytes:
        assert position % BLOCK_BYTES == 0, position
        assert length % BLOCK_BYTES == 0, length
        await self._disk.delay()
        assert position + length <= self.size_bytes, (position, length)
        if any(position <= at < position + length for at in self._file.lost):
            self._disk.hits["unreadable"] += 1
            raise failure(Fail(), self._path)
        return bytes(self._file.visible[position : position + length])

    async def resize(self, size_bytes: int) -> None:
        if self._file.is_device:
            return
        more_bytes = size_bytes - self.size_bytes
        self._disk.take_space(self._path, more_bytes)
        self._disk.begin_write("resize", self._path, size_bytes)
        await self._disk.delay()
        for data in (
            self._file.durable,
            self._file.visible,
            *([] if self._file.meant is None else [self._file.meant]),
        ):
            data.extend(bytes(max(0, more_bytes)))
            del data[size_bytes:]
        self.size_bytes = size_bytes

    async def reserve(self, key: int, old_key: int) -> bool:
        return False

    async def close(self) -> None:
        self._is_closed = True
        while self._under_way and not self._disk.was_cut.is_set():
            await self._disk.delay()
        if self.is_exclusive:
            self._disk.close_block(self._path)


class SimLogFile:
    """Appends are visible at once and pending until a sync."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file = disk.files[path]
        self._file.is_log = True
        self._is_failed = False

    @property
    def size_bytes(self) -> int:
        return len(self._file.visible)

    async def append(self, parts: Sequence[Buffer]) -> None:
        self._check()
        data = b"".join(parts)
        if self._disk.was_cut.is_set():
            await self._disk.never()
        number, fault = self._disk.begin_write("append", self._path, len(self._file.visible), data)
        try:
            if isinstance(fault, Fail):
                raise failure(fault, self._path)
            self._disk.take_space(self._path, len(data))
        except MillraceError:
            self._is_failed = True
            fitting = self._disk.rand.below(min(len(data), self._disk.free_bytes(self._path)) + 1)
            self._take(number, data[:fitting])
            raise
        self._take(number, data)
        await self._disk.delay()

    def _take(self, number: int, data: bytes) -> None:
        if data:
            self._file.pending.append(Pending(number, self._path, len(self._file.visible), data))
            self._file.visible += data

    async def sync(self) -> None:
        self._check()
        if self._disk.was_cut.is_set():
            await self._disk.never()
        covered = list(self._file.pending)
        _, fault = self._disk.begin_write("sync", self._path)
        if isinstance(fault, Fail):
            self._is_failed = True
            raise failure(fault, self._path)
        await self._disk.delay()
        for pending in covered:
            if pending in self._file.pending:
                self._file.settle(pending)

    async def read_at(self, position: int, length: int) -> bytes:
        await self._disk.delay()
        return bytes(self._file.visible[position : position + length])

    async def truncate(self, size_bytes: int) -> None:
        self._check()
        if self._disk.was_cut.is_set():
            await self._disk.never()
        _, fault = self._disk.begin_write("truncate", self._path, size_bytes)
        if isinstance(fault, Fail):
            self._is_failed = True
            raise failure(fault, self._path)
        change = partial(_shorten, self._path, size_bytes)
        self._disk._half_done.append(change)
        await self._disk.delay()
        self._disk._half_done.remove(change)
        for pending in list(self._file.pending):
            self._file.settle(pending)
        change(self._disk)

    async def close(self) -> None:
        await self._disk.delay()

    def _check(self) -> None:
        if self._is_failed:
            raise DiskFailed(self._path, "an earlier write failed")
