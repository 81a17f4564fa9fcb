"""The object reader: how many requests it makes, what it verifies, and what it finds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

import pytest

from millrace.runtime.buffer_pool import BufferPool, buffer_size
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import Lend, ObjectMissing, StoreUnavailable, fill
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.objects.format import BlockRef, Entry
from millrace.s3stream.objects.reader import ObjectReader, tail_guess_bytes
from millrace.s3stream.objects.writer import ObjectWriter

KEY = "cluster/objects/10000000/1"
MIB = 1 << 20


class CountedStore(MemoryObjectStore):
    """Notes the ranges asked for."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.ranges: list[tuple[int, int]] = []

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.ranges.append((start, end))
        return await super().get_range(key, start, end)


def build(streams: dict[int, int], entry_bytes: int = 100, block_bytes_max: int = 1 << 20) -> bytes:
    """An object with so many entries of two offsets each per stream, from offset 100 on."""
    writer = ObjectWriter(block_bytes_max)
    for stream_id, count in streams.items():
        writer.add(
            stream_id,
            [Entry(100 + 2 * n, 2, memoryview(bytes([n % 251]) * entry_bytes)) for n in range(count)],
        )
    return b"".join(writer.finish().parts)


def run(data: bytes, test: Callable[[ObjectReader, CountedStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = CountedStore()
        await store.put(KEY, [data])
        await test(ObjectReader(store, KEY, len(data)), store)

    asyncio.run(main())


async def read(
    reader: ObjectReader, stream_id: int, start: int, end: int, max_bytes: int = 1 << 40
) -> list[Entry]:
    refs = await reader.find(stream_id, start, end, max_bytes)
    return list(chain.from_iterable(await reader.read_blocks(refs)))


def test_index_in_one_request_and_blocks_in_another() -> None:
    """Footer and index come with one GET from the end; blocks side by side with one more, whatever their
    number."""
    data = build({1: 500, 2: 500}, entry_bytes=5000, block_bytes_max=1 << 16)

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        entries = await read(reader, 2, 100, 1100)
        assert [entry.base_offset for entry in entries] == list(range(100, 1100, 2))
        assert all(bytes(entry.data) == bytes([n % 251]) * 5000 for n, entry in enumerate(entries))
        refs = await reader.find(2, 100, 1100, 1 << 40)
        assert store.ranges == [
            (len(data) - tail_guess_bytes(len(data)), len(data)),
            (refs[0].position, refs[-1].position + refs[-1].size_bytes),
        ]

    run(data, test)


def test_a_small_object_is_one_request() -> None:
    """An object within the first guess arrives whole, and its blocks are read from what came."""

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        assert len(await read(reader, 1, 100, 200)) == 50
        assert len(await read(reader, 2, 150, 160)) > 0
        assert len(store.ranges) == 1

    run(build({1: 50, 2: 50}), test)


def test_an_index_larger_than_the_guess_takes_two() -> None:
    """Thousands of streams: the footer says where the index begins, and exactly that is fetched."""
    data = build(dict.fromkeys(range(2000), 1), entry_bytes=40)

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        index = await reader.index()
        assert index.count == 2000
        assert store.ranges[1:] == [(index.blocks_end, index.blocks_end + index.size_bytes)]

    run(data, test)


def test_the_index_is_loaded_once() -> None:
    """Those who ask at once share the load, and a kept index saves a new reader its request."""
    data = build({1: 500}, entry_bytes=1000)

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        await asyncio.gather(*(reader.find(1, 100, 101, 1) for _ in range(5)))
        assert len(store.ranges) == 1
        again = ObjectReader(store, KEY, len(data), await reader.index())
        assert await again.find(1, 100, 101, 1) == await reader.find(1, 100, 101, 1)
        assert len(store.ranges) == 1

    run(data, test)


def test_blocks_apart_are_separate_requests_in_the_order_asked() -> None:
    """Blocks that are not neighbours cost a GET each; the answers keep the order of the question."""

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        refs = await reader.find(1, 100, 10_000, 1 << 40)
        asked = [refs[4], refs[5], refs[0], refs[2]]
        blocks = await reader.read_blocks(asked)
        assert [block[0].base_offset for block in blocks] == [ref.start for ref in asked]
        assert len(store.ranges) == 1 + 3
        assert await reader.read_block(refs[2]) == blocks[3]
        assert await reader.read_blocks([]) == []

    run(build({1: 500}, entry_bytes=1000, block_bytes_max=10_000), test)


def test_a_block_pins_no_more_than_itself() -> None:
    """Of blocks that came with one GET each keeps its own bytes alone, so that a cache may drop its
    neighbour."""

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        refs = await reader.find(1, 100, 10_000, 1 << 40)
        for ref, block in zip(refs[:3], await reader.read_blocks(refs[:3]), strict=True):
            assert all(len(entry.data.obj) == ref.size_bytes for entry in block)

    run(build({1: 500}, entry_bytes=1000, block_bytes_max=10_000), test)


def test_a_block_of_a_small_object_pins_no_more_than_itself() -> None:
    """An object that came whole with its index gives a block its own bytes too: the object may be dropped
    before the block."""

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        [ref] = await reader.find(1, 100, 10_000, 1 << 40)
        data = await reader.read_span([ref])
        assert len(store.ranges) == 1
        assert len(data.obj) == ref.size_bytes < reader.size_bytes

    run(build({1: 5}, entry_bytes=100), test)


def test_damage_that_came_with_a_small_object_is_not_kept() -> None:
    """A block of an object that came whole was damaged on its way: the next read asks the store, and gets
    what is stored."""
    data = build({1: 50})

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        await store.put(KEY, [data[:70] + bytes([data[70] ^ 1]) + data[71:]])
        with pytest.raises(ObjectCorrupt, match="checksum differs"):
            await read(reader, 1, 100, 200)
        await store.put(KEY, [data])
        assert len(await read(reader, 1, 100, 200)) == 50
        assert len(store.ranges) == 2

    run(data, test)


def test_a_budget_is_met_by_whole_blocks() -> None:
    """Enough blocks to use the budget up, not counting one that begins before the start; at least one."""

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        blocks = await reader.find(1, 100, 10_000, 1 << 40)
        assert await reader.find(1, 100, 10_000, 0) == blocks[:1]
        assert await reader.find(1, 100, 10_000, blocks[0].size_bytes) == blocks[:1]
        assert await reader.find(1, 100, 10_000, blocks[0].size_bytes + 1) == blocks[:2]
        assert await reader.find(1, 101, 10_000, 1) == blocks[:2]
        assert await reader.find(1, 101, 10_000, 0) == blocks[:1]

    run(build({1: 500}, entry_bytes=1000, block_bytes_max=10_000), test)


def test_what_is_not_there_is_not_found() -> None:
    """Other streams, offsets before and after: nothing, without an error."""

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        for stream_id, start in ((0, 100), (2, 100), (4, 100), (1, 99), (1, 200), (3, 0), (3, 10**18)):
            assert await reader.find(stream_id, start, start + 10, 1000) == []

    run(build({1: 50, 3: 50}), test)


async def read_everything(reader: ObjectReader) -> None:
    index = await reader.index()
    for ref in index.rows():
        await reader.read_block(ref)


def test_no_flipped_bit_goes_unnoticed() -> None:
    """Whatever byte of an object rots, reading it all is ObjectCorrupt with the key, never other bytes."""
    data = build({1: 3, 2: 2}, entry_bytes=10, block_bytes_max=130)

    async def main() -> None:
        for place in range(len(data)):
            store = CountedStore()
            await store.put(KEY, [data[:place], bytes([data[place] ^ 0x10]), data[place + 1 :]])
            with pytest.raises(ObjectCorrupt) as caught:
                await read_everything(ObjectReader(store, KEY, len(data)))
            assert caught.value.key == KEY

    asyncio.run(main())


@pytest.mark.parametrize("size_bytes", [0, 10, 48, 500, 39_999])
def test_an_object_cut_short_is_corrupt(size_bytes: int) -> None:
    """Metadata knows the size; an object that ends before it is corruption, with its key."""
    data = build({1: 400}, entry_bytes=100)

    async def main() -> None:
        store = CountedStore()
        await store.put(KEY, [data[:size_bytes]])
        with pytest.raises(ObjectCorrupt, match="the store gave") as caught:
            await read_everything(ObjectReader(store, KEY, len(data)))
        assert caught.value.key == KEY
        with pytest.raises(ObjectCorrupt) as caught:
            await read_everything(ObjectReader(store, KEY, max(size_bytes, 1)))
        assert caught.value.key == KEY

    asyncio.run(main())


def test_the_position_of_rot_is_told() -> None:
    """The error names where in the object the block lies, for the operator's tools."""
    data = bytearray(build({1: 500}, entry_bytes=1000, block_bytes_max=10_000))

    async def test(reader: ObjectReader, store: CountedStore) -> None:
        refs: list[BlockRef] = await reader.find(1, 100, 10_000, 1 << 40)
        bad = refs[3]
        data[bad.position + 5000] ^= 1
        await store.put(KEY, [data])
        assert await reader.read_block(refs[2])
        with pytest.raises(ObjectCorrupt) as caught:
            await reader.read_blocks(refs)
        assert caught.value.position == bad.position

    run(bytes(data), test)


def test_a_missing_object_is_told_as_the_store_tells_it() -> None:
    """The caller asks metadata again when an object was deleted under it: ObjectMissing passes through."""

    async def main() -> None:
        with pytest.raises(ObjectMissing):
            await ObjectReader(CountedStore(), KEY, 1000).index()

    asyncio.run(main())


class TwoAttempts(MemoryObjectStore):
    """Asks for memory twice, as a hedged or repeated GET does; what is asked first is answered, the second
    goes on writing."""

    def __init__(self, winner: int | None) -> None:
        super().__init__(SystemClock())
        self.winner = winner
        self.lent: list[Sequence[memoryview]] = []

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        self.lent = [lend(), lend()]
        if self.winner is None:
            raise StoreUnavailable(key, "away")
        for view in self.lent[1 - self.winner]:
            view[:] = b"x" * len(view)
        return fill(self.lent[self.winner], await self.get_range(key, start, end))


@pytest.mark.parametrize("winner", [0, 1])
def test_each_attempt_has_memory_of_its_own(winner: int) -> None:
    """Whichever attempt is answered, its buffers are given; the other's are let go, and lent to nobody while
    it may still write."""

    async def scenario() -> None:
        store, pool = TwoAttempts(winner), BufferPool(64 * MIB)
        content = build({1: 8}, entry_bytes=100_000, block_bytes_max=250_000)
        await store.put("k", [content])
        reader = ObjectReader(store, "k", len(content))
        refs = await reader.find(1, 100, 1 << 40, 1 << 40)
        wanted = [refs[0], refs[1], refs[3]]  # a gap that nobody asked for
        buffers = await reader.read_apart(wanted, pool)
        assert [len(buffer.view) for buffer in buffers] == [ref.size_bytes for ref in wanted]
        for ref, buffer in zip(wanted, buffers, strict=True):
            assert buffer.view == content[ref.position : ref.position + ref.size_bytes]
        one_attempt = sum(buffer_size(ref.size_bytes) for ref in wanted)
        assert (pool.used_bytes, pool.released_bytes) == (2 * one_attempt, one_attempt)
        store.lent.clear()
        assert (pool.used_bytes, pool.released_bytes) == (one_attempt, 0)

    asyncio.run(scenario())


def test_a_failed_read_keeps_no_memory() -> None:
    """When the store does not answer, or gives less than there should be, all that was lent comes back."""

    async def scenario() -> None:
        store, pool = TwoAttempts(None), BufferPool(64 * MIB)
        content = build({1: 8}, entry_bytes=100_000, block_bytes_max=250_000)
        await store.put("k", [content])
        reader = ObjectReader(store, "k", len(content))
        refs = await reader.find(1, 100, 1 << 40, 1 << 40)
        with pytest.raises(StoreUnavailable):
            await reader.read_apart(refs, pool)
        store.lent.clear()
        store.winner = 0
        await store.put("k", [content[: refs[-1].position + 5]])
        with pytest.raises(ObjectCorrupt, match="the store gave"):
            await reader.read_apart(refs, pool)
        store.lent.clear()
        assert (pool.used_bytes, pool.released_bytes) == (0, 0)

    asyncio.run(scenario())
