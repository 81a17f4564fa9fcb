"""Wrapper: tells a meter of every operation on a store: which, how it ended, bytes each way, how long.

Beneath the retry wrapper it sees attempts, above it what callers waited for. Not here: what becomes of the
numbers (metrics.py). A listing counts once for every thousand entries, as stores bill it; the time its reader
takes is not charged to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Exhausted, Unavailable
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    MultipartUpload,
    ObjectEntry,
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreDenied,
    UnfinishedUpload,
)

T = TypeVar("T")

LIST_PAGE_ENTRIES = 1000

_OUTCOMES: tuple[tuple[type[BaseException], str], ...] = (
    (ObjectMissing, "missing"),
    (PreconditionFailed, "lost"),
    (Unavailable, "unavailable"),
    (Exhausted, "full"),
    (StoreDenied, "denied"),
    (asyncio.CancelledError, "cancelled"),
)


class StoreMeter(Protocol):
    def on_operation(
        self, operation: str, outcome: str, sent_bytes: int, received_bytes: int, elapsed_ms: float
    ) -> None:
        """`operation`: put, put_if_absent, replace, get, head, list, list_uploads, delete, and the multipart_
        ones: start, part, complete, abort. `outcome`: ok, missing, lost, unavailable, full, denied,
        cancelled, error."""
        ...


class _Span:
    __slots__ = ("received_bytes",)

    def __init__(self) -> None:
        self.received_bytes = 0


class _Timer:
    """Measures on the loop's clock, which is virtual in simulation."""

    def __init__(self, meter: StoreMeter) -> None:
        self._meter = meter

    @contextmanager
    def span(self, operation: str, sent_bytes: int = 0) -> Iterator[_Span]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        span = _Span()
        outcome = "ok"
        try:
            yield span
        except BaseException as error:
            outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "error")
            raise
        finally:
            elapsed_ms = (loop.time() - started) * 1000
            self._meter.on_operation(operation, outcome, sent_bytes, span.received_bytes, elapsed_ms)


class MeteredObjectStore:
    def __init__(self, store: ObjectStore, meter: StoreMeter) -> None:
        self._store = store
        self._timer = _Timer(meter)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._timer.span("put", sum(map(len, parts))):
            await self._store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._timer.span("put_if_absent", sum(map(len, parts))):
            await self._store.put_if_absent(key, parts)

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        with self._timer.span("replace", sum(map(len, parts))):
            await self._store.replace(key, parts, before)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._timer.span("get") as span:
            data = await self._store.get_range(key, start, end)
            span.received_bytes = len(data)
            return data

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        with self._timer.span("get") as span:
            found = await self._store.get_into(key, start, end, lend)
            span.received_bytes = found[1]
            return found

    async def get(self, key: str) -> bytes:
        with self._timer.span("get") as span:
            data = await self._store.get(key)
            span.received_bytes = len(data)
            return data

    async def head(self, key: str) -> ObjectEntry | None:
        with self._timer.span("head"):
            return await self._store.head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        async for entry in self._in_pages("list", aiter(self._store.list(prefix, after))):
            yield entry

    async def delete(self, keys: Sequence[str]) -> Keys:
        with self._timer.span("delete"):
            return await self._store.delete(keys)

    async def start_multipart(self, key: str) -> MeteredMultipart:
        with self._timer.span("multipart_start"):
            return MeteredMultipart(await self._store.start_multipart(key), self._timer)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        async for upload in self._in_pages("list_uploads", aiter(self._store.list_uploads(prefix))):
            yield replace(upload, abort=partial(self._abort, upload))

    async def close(self) -> None:
        await self._store.close()

    async def _in_pages(self, operation: str, entries: AsyncIterator[T]) -> AsyncIterator[T]:
        while True:
            page: list[T] = []
            with self._timer.span(operation):
                async for entry in entries:
                    page.append(entry)
                    if len(page) == LIST_PAGE_ENTRIES:
                        break
            for entry in page:
                yield entry
            if len(page) < LIST_PAGE_ENTRIES:
                return

    async def _abort(self, upload: UnfinishedUpload) -> None:
        with self._timer.span("multipart_abort"):
            await upload.abort()


class MeteredMultipart:
    def __init__(self, upload: MultipartUpload, timer: _Timer) -> None:
        self._upload = upload
        self._timer = timer

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        return self._measure(self._upload.put_part(parts, number), sum(map(len, parts)))

    async def complete(self, *, if_absent: bool = False) -> None:
        with self._timer.span("multipart_complete"):
            await self._upload.complete(if_absent=if_absent)

    async def abort(self) -> None:
        with self._timer.span("multipart_abort"):
            await self._upload.abort()

    async def _measure(self, part: Coroutine[Any, Any, None], sent_bytes: int) -> None:
        with self._timer.span("multipart_part", sent_bytes):
            await part
