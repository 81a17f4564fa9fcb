"""The memory store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.memory import MemoryObjectStore
from tests.runtime.objectstore.contract import ObjectStoreContract


class TestMemoryObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = MemoryObjectStore(SystemClock())
        yield store
        await store.close()
