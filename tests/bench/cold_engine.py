"""The engine's own way of reading history, without a broker around it, and a store that is as far away as one
in life. For cold_load.py.

The streams and objects that an engine needs to be told of are found in the bucket itself: each object's index
says what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from millrace.broker.stores import stack_stores
from millrace.runtime.objectstore import Keys, Lend, MultipartUpload, ObjectEntry, ObjectStore
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.config import StreamSettings, TrafficSettings
from millrace.s3stream.ids import ObjectHint, ObjectId, ObjectKind, OpenedStream, StreamId
from millrace.s3stream.objects.reader import ObjectReader
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Stream
from tests.s3stream.build import CatalogStream, MemoryCatalog, MemoryWal

T = TypeVar("T")
MIB = 1 << 20
# A store in the same region: so long to the first byte, so many bytes a second on one connection, and in all.
FIRST_BYTE_S = 0.02
CONNECTION_BYTES_S = 90_000_000
LINE_BYTES_S = 1_000_000_000


class FarStore:
    """The store behind it, with the delay of a request and the bandwidth of a connection and a line. Time is
    the loop's: nothing is spent."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._line_free_at = 0.0
        self._at_once = 0
        self.most_at_once = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._travel(self._store.get_range(key, start, end), end - start)

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return await self._travel(self._store.get_into(key, start, end, lend), end - start)

    async def get(self, key: str) -> bytes:
        return await self._travel(self._store.get(key), 0)

    async def _travel(self, call: Awaitable[T], size_bytes: int) -> T:
        loop = asyncio.get_running_loop()
        self._at_once += (
            size_bytes >= MIB
        )  # those for data; indexes are small, and many are asked for at once
        self.most_at_once = max(self.most_at_once, self._at_once)
        first_byte = loop.time() + FIRST_BYTE_S
        self._line_free_at = max(self._line_free_at, first_byte) + size_bytes / LINE_BYTES_S
        last_byte = max(first_byte + size_bytes / CONNECTION_BYTES_S, self._line_free_at)
        try:
            answer = await call
            await asyncio.sleep(max(0.0, last_byte - loop.time()))
        finally:
            self._at_once -= size_bytes >= MIB
        return answer

    async def put(self, key: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        await self._store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        await self._store.put_if_absent(key, parts)

    async def head(self, key: str) -> ObjectEntry | None:
        return await self._store.head(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        return self._store.list(prefix, after)

    async def delete(self, keys: Sequence[str]) -> Keys:
        return await self._store.delete(keys)

    async def start_multipart(self, key: str) -> MultipartUpload:
        return await self._store.start_multipart(key)

    async def close(self) -> None:
        await self._store.close()


class NoMeter:
    def on_operation(
        self, operation: str, outcome: str, sent_bytes: int, received_bytes: int, elapsed_ms: float
    ) -> None:
        pass


async def large_objects(store: ObjectStore) -> list[ObjectEntry]:
    return [entry async for entry in store.list("") if entry.size_bytes >= MIB]


async def open_largest_stream(
    store: ObjectStore, cache_bytes: int, yield_queue: YieldQueue
) -> tuple[Storage, Stream]:
    """An engine on the bucket of a broker, and the stream that has most of it, from its first object to where
    a gap would begin."""
    found: dict[StreamId, list[ObjectHint]] = {}
    keys: dict[ObjectId, str] = {}
    for entry in await large_objects(store):
        object_id = ObjectId(int(entry.key.rpartition("/")[2]))
        keys[object_id] = entry.key
        for span in (await ObjectReader(store, entry.key, entry.size_bytes).index()).ranges():
            hint = ObjectHint(object_id, ObjectKind.STREAM, entry.size_bytes, span.start, span.end)
            found.setdefault(span.stream_id, []).append(hint)
    stream_id, hints = max(found.items(), key=lambda item: sum(hint.size_bytes for hint in item[1]))
    catalog = MemoryCatalog()
    known = catalog.streams[stream_id] = CatalogStream(0)
    for hint in sorted(hints, key=lambda hint: hint.start):
        if not known.objects or hint.start == known.end:
            known.objects.append(hint)
            known.end = hint.end
    stores = stack_stores(store, NoMeter(), Rand(b"bench"), TrafficSettings(), lambda *_: None, yield_queue)
    cluster_id = next(iter(keys.values())).partition("/objects/")[0]
    engine = Storage(
        MemoryWal(),
        stores.engine,
        catalog,
        catalog,
        StreamSettings(block_cache_bytes=cache_bytes),
        cluster_id,
        _fail,
    )
    start = known.objects[0].start
    return engine, engine.open_stream(OpenedStream(stream_id, 0, start, known.end))


async def read_stream(stream: Stream, fetch_bytes: int, add: Callable[[int, int], bool]) -> None:
    """Over and over, as a consumer that takes all it is given at once; `add` is told of bytes and the offset
    where they began."""
    offset, goes_on = stream.start, True
    while goes_on:
        entries = await stream.fetch(offset, stream.confirmed_end, fetch_bytes)
        goes_on = add(sum(len(entry.data) for entry in entries), offset)
        offset = entries[-1].end
        if offset >= stream.confirmed_end:
            offset = stream.start


def _fail(error: BaseException) -> None:
    raise error
