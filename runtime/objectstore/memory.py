"""The object store in memory: for tests and `0@mem://` alone. Nothing survives the process.

It keeps the contract and no more; latency and faults are tests/sim/objectstore.py's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from millrace.runtime.clock import Clock
from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    ObjectEntry,
    ObjectMissing,
    PreconditionFailed,
    UnfinishedUpload,
    fill,
)


class MemoryObjectStore:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, int]] = {}  # key -> content, wall time of the put in ms
        self.uploads: dict[MemoryMultipart, UnfinishedUpload] = {}  # neither completed nor aborted
        self._is_closed = False

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._turn()
        self._objects[key] = (b"".join(parts), self._clock.wall_ms())

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        """Raises PreconditionFailed where other bytes are under the key."""
        await self._turn()
        content = b"".join(parts)
        if self._objects.setdefault(key, (content, self._clock.wall_ms()))[0] != content:
            raise PreconditionFailed(key)

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        """Raises PreconditionFailed where the object is neither `before` nor the new one."""
        await self._turn()
        content = b"".join(parts)
        found = self._objects.get(key)
        if found is None or found[0] not in (before, content):
            raise PreconditionFailed(key)
        self._objects[key] = (content, self._clock.wall_ms())

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        assert 0 <= start < end, (start, end)
        return (await self.get(key))[start:end]

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return fill(lend(), await self.get_range(key, start, end))

    async def get(self, key: str) -> bytes:
        """Raises ObjectMissing where there is none."""
        await self._turn()
        found = self._objects.get(key)
        if found is None:
            raise ObjectMissing(key)
        return found[0]

    async def head(self, key: str) -> ObjectEntry | None:
        await self._turn()
        return self._entry(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        await self._turn()
        for key in sorted(key for key in self._objects if key.startswith(prefix) and key > after):
            if (entry := self._entry(key)) is not None:
                yield entry

    async def delete(self, keys: Sequence[str]) -> Keys:
        await self._turn()
        for key in keys:
            self._objects.pop(key, None)
        return []

    async def start_multipart(self, key: str) -> MemoryMultipart:
        await self._turn()
        upload = MemoryMultipart(self, key)
        self.uploads[upload] = UnfinishedUpload(key, self._clock.wall_ms(), upload.abort)
        return upload

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        await self._turn()
        for upload in [upload for upload in self.uploads.values() if upload.key.startswith(prefix)]:
            yield upload

    async def close(self) -> None:
        self._is_closed = True

    def _entry(self, key: str) -> ObjectEntry | None:
        found = self._objects.get(key)
        return None if found is None else ObjectEntry(key, len(found[0]), found[1])

    async def _turn(self) -> None:
        """Every verb gives way once, so that no caller comes to rely on an answer in the same iteration of
        the loop."""
        if self._is_closed:
            raise Closed("object store")
        await asyncio.sleep(0)


class MemoryMultipart:
    def __init__(self, store: MemoryObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: dict[int, bytes | None] = {}  # None: under way
        self._is_aborted = False

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        number = len(self._parts) if number is None else number
        self._parts.setdefault(number, None)
        return self._take(number, parts)

    async def complete(self, *, if_absent: bool = False) -> None:
        """Raises ObjectMissing after an abort, PreconditionFailed (`if_absent`) where the key exists."""
        contents = [part for part in self._parts.values() if part is not None]
        assert len(contents) == len(self._parts), "complete before every part was written"
        if self._is_aborted:
            raise ObjectMissing(self._key)
        if if_absent and await self._store.head(self._key) is not None:
            raise PreconditionFailed(self._key)
        await self._store.put(self._key, contents)
        self._store.uploads.pop(self, None)

    async def abort(self) -> None:
        if self._store.uploads.pop(self, None) is not None:
            self._is_aborted = True

    async def _take(self, number: int, parts: Sequence[Buffer]) -> None:
        await asyncio.sleep(0)
        if self._is_aborted:
            raise ObjectMissing(self._key)
        self._parts[number] = b"".join(parts)
