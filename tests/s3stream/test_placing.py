"""Objects under keys that nobody else may have: own lost answers are told, another's object stays as it is,
and is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import MultipartUpload, ObjectMissing, PreconditionFailed, StoreConflict
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.ids import Writer
from millrace.s3stream.objects.composite import LinkedRows, encode_composite
from millrace.s3stream.objects.format import BlockRef, Entry, StreamId, encode_row
from millrace.s3stream.objects.placing import ObjectForeign, complete_object, put_object
from millrace.s3stream.objects.writer import ObjectWriter
from millrace.s3stream.ownership import UNOWNED

OWN, OTHER = Writer(1, 77), Writer(1, 99)


class Owned:
    writer = OWN
    is_conditional = True

    async def verify(self, since_s: float) -> None:
        return


def content(writer: Writer | None, fill: bytes = b"x") -> bytes:
    made = ObjectWriter(writer=writer)
    made.add(1, [Entry(0, 1, memoryview(fill * 100))])
    return b"".join(made.finish().parts)


def composite(writer: Writer | None) -> bytes:
    row = encode_row(BlockRef(StreamId(1), 0, 5, 1, 0, 100))
    return encode_composite([LinkedRows(5, 300, memoryview(row))], writer)  # type: ignore[arg-type]


def run(scenario: Callable[[MemoryObjectStore], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(MemoryObjectStore(SystemClock()))

    asyncio.run(main())


async def uploaded(store: MemoryObjectStore, data: bytes) -> MultipartUpload:
    upload = await store.start_multipart("k")
    await upload.put_part([data])
    return upload


@pytest.mark.parametrize("make", [content, composite])
def test_another_s_object_is_named_and_stays(make: Callable[[Writer | None], bytes]) -> None:
    """Of the same size or not, whole or in parts: nothing is overwritten, and the error says who wrote it."""

    async def scenario(store: MemoryObjectStore) -> None:
        for theirs, name in ((make(OTHER), "0000000000000063 of node 1"), (make(None), "not named in it")):
            await store.put("k", [theirs])
            with pytest.raises(ObjectForeign, match=name):
                await put_object(store, Owned(), "k", [make(OWN)])
            with pytest.raises(ObjectForeign, match=name):
                await complete_object(store, Owned(), "k", await uploaded(store, make(OWN)), len(make(OWN)))
            assert await store.get("k") == theirs
            longer = bytes(1000) + make(OWN)
            with pytest.raises(ObjectForeign, match=name):
                await complete_object(store, Owned(), "k", await uploaded(store, longer), len(longer))
        await store.put("k", [b"junk"])
        with pytest.raises(ObjectForeign):
            await put_object(store, Owned(), "k", [make(OWN)])

    run(scenario)


def test_a_lost_answer_of_ours_is_a_success() -> None:
    """The object that an earlier attempt left is told by its bytes, or by size and token where it came in
    parts."""

    async def scenario(store: MemoryObjectStore) -> None:
        own = content(OWN)
        for _ in range(2):
            await put_object(store, Owned(), "k", [own])
        await complete_object(store, Owned(), "k", await uploaded(store, own), len(own))
        gone = await uploaded(store, own)
        await gone.abort()  # as it is gone once it was completed
        await complete_object(store, Owned(), "k", gone, len(own))
        with pytest.raises(ObjectForeign):
            await complete_object(store, Owned(), "k", await uploaded(store, own), len(own) + 1)
        await store.delete(["k"])
        with pytest.raises(ObjectMissing):
            await complete_object(store, Owned(), "k", gone, len(own))
        assert await store.head("k") is None

    run(scenario)


def test_own_object_that_changed_is_called_corrupt() -> None:
    """A put's answer was lost and the object rotted before the next attempt: the footer still names this
    process, and nobody else is blamed."""

    async def scenario(store: MemoryObjectStore) -> None:
        rotten = bytearray(content(OWN))
        rotten[50] ^= 1
        await store.put("k", [bytes(rotten)])
        with pytest.raises(
            ObjectForeign, match=r"written by this process, .*corrupt.*start the node again"
        ) as raised:
            await put_object(store, Owned(), "k", [content(OWN)])
        assert "another process" not in str(raised.value)
        assert await store.get("k") == bytes(rotten)

    run(scenario)


class Contradicting(MemoryObjectStore):
    """Answers that an object is there, and has none."""

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        raise PreconditionFailed(key)


def test_a_refused_condition_with_nothing_there_is_no_other_process() -> None:
    """The store contradicts itself: it is asked again, and nobody is blamed."""

    async def scenario(store: MemoryObjectStore) -> None:
        with pytest.raises(StoreConflict):
            await put_object(Contradicting(SystemClock()), Owned(), "k", [content(OWN)])

    run(scenario)


def test_without_the_condition_puts_are_plain() -> None:
    """At millrace.version 0, and on stores that lack it: as ever."""

    async def scenario(store: MemoryObjectStore) -> None:
        await store.put("k", [content(OTHER)])
        await put_object(store, UNOWNED, "k", [content(None)])
        assert await store.get("k") == content(None)
        await complete_object(store, UNOWNED, "k", await uploaded(store, content(None, b"y")), 1)
        assert await store.get("k") == content(None, b"y")

    run(scenario)
