"""The watched wrapper: whether a store answers is known to who shares the watch, and what it says bears its
name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import (
    ObjectEntry,
    ObjectMissing,
    ObjectStore,
    StoreDenied,
    StoreUnavailable,
)
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.objectstore.watched import StoreWatch, WatchedObjectStore
from tests.runtime.objectstore.contract import ObjectStoreContract, keys_of


class TestWatchedObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = WatchedObjectStore(MemoryObjectStore(SystemClock()), StoreWatch("it"))
        yield store
        await store.close()


class Refusing(MemoryObjectStore):
    """Raises what it is told to."""

    error: Exception | None = None

    async def head(self, key: str) -> ObjectEntry | None:
        if self.error is not None:
            raise self.error
        return await super().head(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        if self.error is not None:
            raise self.error
        async for entry in super().list(prefix, after):
            yield entry


def test_the_reason_lasts_until_an_answer() -> None:
    """Counted over operations, and over the stores that share the watch; a refusal is an answer, and so is
    that there is none."""

    async def main() -> None:
        bare, watch = Refusing(SystemClock()), StoreWatch("the store")
        store, other = (
            WatchedObjectStore(bare, watch),
            WatchedObjectStore(MemoryObjectStore(SystemClock()), watch),
        )
        bare.error = StoreUnavailable("a", "SlowDown", 503)
        with pytest.raises(StoreUnavailable) as caught:
            await store.head("a")
        assert caught.value.store == "the store"
        assert watch.reason == "the store does not answer (head, attempt 1): a: SlowDown: 503"
        with pytest.raises(StoreUnavailable):
            await keys_of(store)
        assert watch.reason == "the store does not answer (list, attempt 2): a: SlowDown: 503"
        with pytest.raises(ObjectMissing) as missing:
            await other.get("none")
        assert (watch.reason, missing.value.store) == ("", "the store")
        with pytest.raises(StoreUnavailable):
            await store.head("a")
        assert "attempt 1" in watch.reason
        bare.error = StoreDenied("a", "AccessDenied", 403)
        with pytest.raises(StoreDenied) as denied:
            await store.head("a")
        assert (watch.reason, denied.value.store) == ("", "the store")

    asyncio.run(main())
