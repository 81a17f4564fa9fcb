"""Wrapper: knows for how long a block file gives no answer.

    watch = DiskWatch(path)
    disk = watched(disk, watch)
    watch.waits_s           how long what has been under way for the longest takes by now; 0 where nothing is

For who has another that may do the work, where a device hangs: what is asked of it neither succeeds nor
fails, and a cancelled caller leaves a thread behind. Opening, reading and writing block files are watched,
and looking whether there is one. Not here: what is done about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from millrace.runtime.disk import BlockFile, Disk, DiskFailed

T = TypeVar("T")


class DiskWatch:
    """One for all that is opened of a disk."""

    def __init__(self) -> None:
        self._under_way: dict[object, float] = {}  # since when, in this order

    @property
    def waits_s(self) -> float:
        return max((self._now_s() - since_s for since_s in self._under_way.values()), default=0.0)

    @contextmanager
    def operation(self) -> Iterator[None]:
        key = object()
        self._under_way[key] = self._now_s()
        try:
            yield
        finally:
            del self._under_way[key]

    def follow(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        self._under_way[future] = self._now_s()
        future.add_done_callback(lambda done: self._under_way.pop(done, None))
        return future

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


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
        with self._watch.operation():
            file = await self._disk.open_block(path, size_bytes, **words)
        return cast(BlockFile, _WatchedBlockFile(file, self._watch))

    async def list_folder(self, path: str) -> list[str]:
        with self._watch.operation():
            return await self._disk.list_folder(path)


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

    async def read_at(self, position: int, length: int) -> bytes | memoryview:
        with self._watch.operation():
            return await self._file.read_at(position, length)

    async def resize(self, size_bytes: int) -> None:
        with self._watch.operation():
            await self._file.resize(size_bytes)

    async def reserve(self, key: int, old_key: int) -> bool:
        with self._watch.operation():
            return await self._file.reserve(key, old_key)

    async def close(self) -> None:
        with self._watch.operation():
            await self._file.close()
