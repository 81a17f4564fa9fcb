"""Wrapper: knows for how long a block file gives no answer.

    watch = DiskWatch()
    disk = watched(disk, watch)
    watch.waits_s           how long what has been under way for the longest takes by now; 0 where nothing is
    watch.is_waiting        whether anything is, also what nobody waits for any more

For who has another that may do the work, where a device hangs: what is asked of it neither succeeds nor
fails. Opening, reading and writing block files are watched, and looking whether there is one. A cancelled
caller leaves a thread behind, so what was asked for goes on, and is watched, without him: a file that is
opened so is closed, and one that he was closing is, once the device answers. Not here: what is done about a
device that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar, cast

from millrace.runtime.disk import BlockFile, Disk, DiskFailed

T = TypeVar("T")


class DiskWatch:
    """One for all that is opened of a disk."""

    def __init__(self) -> None:
        self._under_way: dict[asyncio.Future[Any], float] = {}  # since when, in this order

    @property
    def waits_s(self) -> float:
        return max((self._now_s() - since_s for since_s in self._under_way.values()), default=0.0)

    @property
    def is_waiting(self) -> bool:
        return bool(self._under_way)

    async def answered(self) -> None:
        """Returns when nothing is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def follow(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        self._under_way[future] = self._now_s()
        future.add_done_callback(lambda done: self._under_way.pop(done, None))
        return future

    def begin(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Goes on where whoever waits for what is given is cancelled."""
        return asyncio.shield(self._begun(work))

    async def open(self, opening: Awaitable[BlockFile]) -> BlockFile:
        begun = self._begun(opening)
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            begun.add_done_callback(self._close_unseen)
            raise

    def _close_unseen(self, opened: asyncio.Future[BlockFile]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self.begin(opened.result().close())

    def _begun(self, work: Awaitable[T]) -> asyncio.Future[T]:
        task = asyncio.get_running_loop().create_task(_done(work), name="call for a watched disk")
        return self.follow(task)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


async def _done(work: Awaitable[T]) -> T:
    return await work


def watched(disk: Disk, watch: DiskWatch) -> Disk:
    return cast(Disk, _WatchedDisk(disk, watch))


class _WatchedDisk:
    """All else is the disk's own."""

    def __init__(self, disk: Disk, watch: DiskWatch) -> None:
        self._disk = disk
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def open_block(self, path: str, size_bytes: int, **words: Any) -> BlockFile:
        file = await self._watch.open(self._disk.open_block(path, size_bytes, **words))
        return cast(BlockFile, _WatchedBlockFile(file, self._watch))

    async def list_folder(self, path: str) -> list[str]:
        return await self._watch.begin(self._disk.list_folder(path))


class _WatchedBlockFile:
    """All else is the file's own."""

    def __init__(self, file: BlockFile, watch: DiskWatch) -> None:
        self._file = file
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        return self._watch.follow(self._file.write_at(position, buffer))

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        return self._watch.follow(self._file.write_then_read(position, buffer, read_position, into))

    def read_at(self, position: int, length: int) -> Awaitable[bytes | memoryview]:
        return self._watch.begin(self._file.read_at(position, length))

    async def resize(self, size_bytes: int) -> None:
        await self._watch.begin(self._file.resize(size_bytes))

    async def reserve(self, key: int, old_key: int) -> bool:
        return await self._watch.begin(self._file.reserve(key, old_key))

    async def close(self) -> None:
        await self._watch.begin(self._file.close())
