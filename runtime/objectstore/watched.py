"""Wrapper: knows whether a store answers, and puts its name on what it says.

    store -> unanswered -> unanswered: "the WAL's store does not answer (get, attempt 2): KEY: SlowDown: 503"
        -> answered: ""

For who has to say what a start waits for, where those who ask again do so deep within a log, and for who has
to say whose store refused. Beneath what repeats, so that it sees every attempt. Not here: repeating, logs. A
refusal is an answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Unavailable
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    MultipartUpload,
    ObjectEntry,
    ObjectStore,
    SaidByStore,
    UnfinishedUpload,
)

T = TypeVar("T")
WAL_STORE = "the WAL's store"


class StoreWatch:
    """One for all that is opened of a store. `reason`: why it does not answer, "" while it does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reason = ""
        self._attempts = 0

    @contextmanager
    def attempt(self, operation: str) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            self._attempts += 1
            self.reason = f"{self.name} does not answer ({operation}, attempt {self._attempts}): {error}"
            self._put_name(error)
            raise
        except Exception as error:
            self._on_answer()
            self._put_name(error)
            raise
        self._on_answer()

    def _on_answer(self) -> None:
        self._attempts, self.reason = 0, ""

    def _put_name(self, error: Exception) -> None:
        if isinstance(error, SaidByStore):
            error.store = self.name


class WatchedObjectStore:
    def __init__(self, store: ObjectStore, watch: StoreWatch) -> None:
        self._store = store
        self._watch = watch

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._watch.attempt("put"):
            await self._store.put(key, parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        with self._watch.attempt("put_if_absent"):
            await self._store.put_if_absent(key, parts)

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        with self._watch.attempt("replace"):
            await self._store.replace(key, parts, before)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._watch.attempt("get"):
            return await self._store.get_range(key, start, end)

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        with self._watch.attempt("get"):
            return await self._store.get_into(key, start, end, lend)

    async def get(self, key: str) -> bytes:
        with self._watch.attempt("get"):
            return await self._store.get(key)

    async def head(self, key: str) -> ObjectEntry | None:
        with self._watch.attempt("head"):
            return await self._store.head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        async for entry in self._each("list", self._store.list(prefix, after)):
            yield entry

    async def delete(self, keys: Sequence[str]) -> Keys:
        with self._watch.attempt("delete"):
            return await self._store.delete(keys)

    async def start_multipart(self, key: str) -> MultipartUpload:
        """Its parts are not watched."""
        with self._watch.attempt("multipart_start"):
            return await self._store.start_multipart(key)

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        async for upload in self._each("list_uploads", self._store.list_uploads(prefix)):
            yield upload

    async def _each(self, operation: str, listed: AsyncIterator[T]) -> AsyncIterator[T]:
        while True:
            with self._watch.attempt(operation):
                one = await anext(listed, None)
            if one is None:
                return
            yield one

    async def close(self) -> None:
        await self._store.close()
