"""The metered wrapper: every operation is told once, with its outcome, bytes and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, PreconditionFailed
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.objectstore.metered import MeteredObjectStore
from tests.runtime.objectstore.contract import ObjectStoreContract, keys_of, uploads_of


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_operation(
        self, operation: str, outcome: str, sent_bytes: int, received_bytes: int, elapsed_ms: float
    ) -> None:
        assert 0 <= elapsed_ms < 10_000
        self.lines.append(f"{operation} {outcome} {sent_bytes} {received_bytes}")


class TestMeteredObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = MeteredObjectStore(MemoryObjectStore(SystemClock()), Notes())
        yield store
        await store.close()


def test_each_operation_is_told_once() -> None:
    """Verbs, outcomes and bytes as they happened, failures and multipart included."""

    async def main() -> list[str]:
        notes = Notes()
        store = MeteredObjectStore(MemoryObjectStore(SystemClock()), notes)
        await store.put("a", [b"123", b"45"])
        await store.put_if_absent("b", [b"1"])
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("b", [b"22"])
        await store.get_range("a", 1, 3)
        await store.get("a")
        with pytest.raises(ObjectMissing):
            await store.get("none")
        await store.head("none")
        await keys_of(store)
        await store.delete(["a", "b"])
        upload = await store.start_multipart("c")
        await upload.put_part([b"xyz"])
        await upload.complete()
        await upload.abort()
        await store.start_multipart("d")
        for left in await uploads_of(store):
            await left.abort()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await store.put("a", [b"x"])
        return notes.lines

    assert asyncio.run(main()) == [
        "put ok 5 0",
        "put_if_absent ok 1 0",
        "put_if_absent lost 2 0",
        "get ok 0 2",
        "get ok 0 5",
        "get missing 0 0",
        "head ok 0 0",
        "list ok 0 0",
        "delete ok 0 0",
        "multipart_start ok 0 0",
        "multipart_part ok 3 0",
        "multipart_complete ok 0 0",
        "multipart_abort ok 0 0",
        "multipart_start ok 0 0",
        "list_uploads ok 0 0",
        "multipart_abort ok 0 0",
        "put cancelled 1 0",
    ]


def test_a_long_listing_counts_by_the_thousand() -> None:
    """2,500 entries are three requests; a listing that its reader abandons counts what was asked for."""

    async def main() -> tuple[int, int]:
        notes = Notes()
        memory = MemoryObjectStore(SystemClock())
        for number in range(2500):
            await memory.put(f"{number:04d}", [b"x"])
        store = MeteredObjectStore(memory, notes)
        assert len(await keys_of(store)) == 2500
        whole = len(notes.lines)
        async for _ in store.list(""):
            break
        return whole, len(notes.lines) - whole

    assert asyncio.run(main()) == (3, 1)
