"""An object store in memory that holds tens of GiB in a few MiB, for what is mostly zeros: a benchmark that
counts requests needs true sizes, and no true bytes.

Content is kept in chunks of 64 KiB: nothing for one of zeros, else compressed. It keeps the store's contract
and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import cramjam

from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import Keys, ObjectEntry, ObjectMissing, UnfinishedUpload, fill

CHUNK_BYTES = 64 << 10
ZEROS = bytes(CHUNK_BYTES)


class Sparse:
    def __init__(self, parts: Sequence[Buffer]) -> None:
        data = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        self.size_bytes = len(data)
        self._chunks = [_packed(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)]

    def read(self, start: int, end: int) -> bytes:
        first = start // CHUNK_BYTES
        chunks = (_unpacked(one) for one in self._chunks[first : -(-end // CHUNK_BYTES)])
        return b"".join(chunks)[start - first * CHUNK_BYTES : end - first * CHUNK_BYTES]


def _packed(chunk: memoryview) -> bytes | None:
    content = bytes(chunk)  # views are compared byte by byte
    return None if content == ZEROS else bytes(cramjam.lz4.compress_block(content))


def _unpacked(chunk: bytes | None) -> bytes:
    return ZEROS if chunk is None else bytes(cramjam.lz4.decompress_block(chunk))


class SparseObjectStore:
    def __init__(self) -> None:
        self.objects: dict[str, Sequence[Sparse]] = {}

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await asyncio.sleep(0)
        self.objects[key] = [Sparse(parts)]

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        assert key not in self.objects
        await self.put(key, parts)

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        assert await self.get(key) == before
        await self.put(key, parts)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await asyncio.sleep(0)
        pieces, at = [], 0
        for part in self._found(key):
            low, high = max(start, at), min(end, at + part.size_bytes)
            if low < high:
                pieces.append(part.read(low - at, high - at))
            at += part.size_bytes
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def get_into(self, key: str, start: int, end: int, lend: Any) -> tuple[Sequence[memoryview], int]:
        return fill(lend(), await self.get_range(key, start, end))

    async def get(self, key: str) -> bytes:
        return await self.get_range(key, 0, sum(part.size_bytes for part in self._found(key)))

    async def head(self, key: str) -> ObjectEntry | None:
        found = self.objects.get(key)
        return None if found is None else ObjectEntry(key, sum(part.size_bytes for part in found), 0)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        for key in sorted(key for key in self.objects if key.startswith(prefix) and key > after):
            if (entry := await self.head(key)) is not None:
                yield entry

    async def delete(self, keys: Sequence[str]) -> Keys:
        for key in keys:
            self.objects.pop(key, None)
        return []

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        """What was begun and never completed is nowhere."""
        nothing: tuple[UnfinishedUpload, ...] = ()
        for upload in nothing:
            yield upload

    async def start_multipart(self, key: str) -> SparseMultipart:
        await asyncio.sleep(0)
        return SparseMultipart(self, key)

    async def close(self) -> None:
        self.objects.clear()

    def _found(self, key: str) -> Sequence[Sparse]:
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key]


class SparseMultipart:
    def __init__(self, store: SparseObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: dict[int, Sparse | None] = {}  # None: under way

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        number = len(self._parts) if number is None else number
        self._parts.setdefault(number, None)
        return self._take(number, parts)

    async def complete(self, *, if_absent: bool = False) -> None:
        await asyncio.sleep(0)
        done = [part for part in self._parts.values() if part is not None]
        assert len(done) == len(self._parts)
        assert all(part.size_bytes >= 5 << 20 for part in done[:-1]), "the stores' least part"
        self._store.objects[self._key] = done

    async def abort(self) -> None:
        self._parts.clear()

    async def _take(self, number: int, parts: Sequence[Buffer]) -> None:
        await asyncio.sleep(0)
        self._parts[number] = Sparse(parts)
