"""From an offset to an object's blocks: whose index is asked, how often, and what an object that is gone or
damaged does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from millrace.runtime.buffer_pool import BufferPool
from millrace.runtime.objectstore import ObjectMissing, StoreDenied, StoreUnavailable
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.errors import ObjectCorrupt, OffsetGap
from millrace.s3stream.finder import FoundBlocks, ObjectFinder
from millrace.s3stream.ids import ObjectHint, ObjectId, ObjectKind, StreamId, Writer
from millrace.s3stream.objects.composite import LinkedRows, encode_composite
from millrace.s3stream.objects.format import INT64_MAX, Entry
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.reader import ObjectReader
from millrace.s3stream.objects.writer import ObjectWriter
from tests.kraft.build import HandClock
from tests.patience import PATIENCE_S

CLUSTER = "cluster"
SET, STREAM, COMPOSITE = ObjectKind.STREAM_SET, ObjectKind.STREAM, ObjectKind.COMPOSITE
Spans = dict[int, tuple[int, int]]  # by stream: start, end


class Store(MemoryObjectStore):
    """`asked` are the keys of GETs; `refused` says which are answered with an error."""

    def __init__(self) -> None:
        super().__init__(HandClock())
        self.asked: list[str] = []
        self.refused: dict[str, Exception] = {}

    async def get(self, key: str) -> bytes:
        self.asked.append(key)
        if key in self.refused:
            raise self.refused[key]
        return await super().get(key)


class Bucket:
    """A store and what metadata says of it: `names` are (ids, start, end) of ranges of stream 1."""

    def __init__(self, index_bytes_max: int = 1 << 20) -> None:
        self.store = Store()
        self.names: list[tuple[Sequence[int], int, int]] = []
        self.kinds: dict[int, ObjectKind] = {}
        self.sizes: dict[int, int] = {}
        self.writers: dict[int, int] = {}  # tokens that metadata names
        self.finder = ObjectFinder(self.store, self, CLUSTER, index_bytes_max)  # type: ignore[arg-type]

    def candidates(self, stream_id: StreamId, offset: int, limit: int) -> Sequence[ObjectHint]:
        found: list[ObjectHint] = []
        for ids, start, end in self.names:
            if end > offset and (found or start <= offset):
                found += [self._hint(one, start, end) for one in ids]
        return found

    def _hint(self, one: int, start: int, end: int) -> ObjectHint:
        return ObjectHint(
            ObjectId(one), self.kinds[one], self.sizes[one], start, end, self.writers.get(one, 0)
        )

    async def put(
        self, object_id: int, spans: Spans, kind: ObjectKind = SET, writer: Writer | None = None
    ) -> None:
        made = ObjectWriter(writer=writer)
        for stream_id, (start, end) in sorted(spans.items()):
            made.add(StreamId(stream_id), [Entry(at, 1, memoryview(b"x" * 50)) for at in range(start, end)])
        parts = made.finish()
        await self.store.put(self.key(object_id), parts.parts)
        self.kinds[object_id], self.sizes[object_id] = kind, parts.size_bytes

    async def link(self, object_id: int, *linked: int, writer: Writer | None = None) -> None:
        rows = []
        for one in linked:
            reader = ObjectReader(self.store, self.key(one), self.sizes[one])
            encoded = (await reader.index()).encoded
            rows.append(LinkedRows(ObjectId(one), self.sizes[one], encoded, self.writers.get(one, 0)))
        await self.store.put(self.key(object_id), [encode_composite(rows, writer)])
        self.kinds[object_id], self.sizes[object_id] = COMPOSITE, sum(self.sizes[one] for one in linked)

    def key(self, object_id: int) -> str:
        return object_key(CLUSTER, ObjectId(object_id))

    async def find(self, offset: int) -> FoundBlocks:
        return await self.finder.find(1, offset, INT64_MAX, 1 << 20)

    async def found_at(self, offset: int) -> int:
        """Which object has it; the blocks hold it."""
        found = await self.find(offset)
        assert found.refs[0].start <= offset < found.refs[0].end
        return found.object_id

    def asked(self) -> list[str]:
        asked, self.store.asked = self.store.asked, []
        return asked


def run(scenario: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(main())


async def group(index_bytes_max: int = 1 << 20) -> Bucket:
    """Four sets on a group with stream 1's offsets 0 to 40; the third has none of it."""
    bucket = Bucket(index_bytes_max)
    await bucket.put(10, {1: (0, 10), 2: (0, 5)})
    await bucket.put(11, {1: (10, 25)})
    await bucket.put(12, {2: (5, 9)})
    await bucket.put(13, {1: (25, 40)})
    bucket.names = [((10, 11, 12, 13), 0, 40)]
    return bucket


def test_one_round_of_gets_finds_what_lies_in_a_group() -> None:
    """Four indexes at once the first time, none after: whatever lies there is then at hand."""

    async def scenario() -> None:
        bucket = await group()
        assert await bucket.found_at(12) == 11
        assert sorted(bucket.asked()) == [bucket.key(one) for one in (10, 11, 12, 13)]
        assert [await bucket.found_at(offset) for offset in (0, 9, 10, 24, 25, 39)] == [
            10,
            10,
            11,
            11,
            13,
            13,
        ]
        assert bucket.asked() == []
        assert bucket.finder.index_gets == 4

    run(scenario)


def test_an_object_of_its_own_is_one_get() -> None:
    """Metadata names it alone; what follows it is not looked at."""

    async def scenario() -> None:
        bucket = await group()
        await bucket.put(14, {1: (40, 90)}, STREAM)
        bucket.names.append(((14,), 40, 90))
        assert await bucket.found_at(77) == 14
        assert bucket.asked() == [bucket.key(14)]

    run(scenario)


def test_a_composite_leads_to_what_it_links_with_one_get() -> None:
    """Its rows are the linked objects': their own indexes are not read."""

    async def scenario() -> None:
        bucket = Bucket()
        await bucket.put(1, {1: (0, 10)}, STREAM)
        await bucket.put(2, {1: (10, 30)}, STREAM)
        await bucket.link(3, 1, 2)
        bucket.names = [((3,), 0, 30)]
        bucket.asked()
        assert await bucket.found_at(12) == 2
        assert bucket.asked() == [bucket.key(3)]
        found = await bucket.find(3)
        assert (found.object_id, bucket.asked()) == (1, [])
        entries = await found.reader.read_block(found.refs[0])
        assert [entry.base_offset for entry in entries][:1] == [0]
        assert bucket.asked() == [bucket.key(1)]

    run(scenario)


def test_an_object_is_read_for_its_writer_alone() -> None:
    """Metadata names the writer of each object: one that another wrote under its id is refused with both
    named, whatever kind it is, and does not keep others of its group from being read. Where metadata names
    nobody, anybody's is read."""

    async def scenario() -> None:
        bucket = Bucket()
        await bucket.put(10, {1: (0, 10)}, writer=Writer(3, 77))
        await bucket.put(11, {1: (10, 25)}, writer=Writer(3, 99))
        await bucket.put(12, {1: (25, 30)}, STREAM, Writer(3, 99))
        await bucket.put(13, {1: (30, 35)}, STREAM)
        await bucket.link(14, 13, writer=Writer(3, 99))
        bucket.names = [((10, 11), 0, 25), ((12,), 25, 30), ((14,), 30, 35)]
        assert [await bucket.found_at(offset) for offset in (0, 12, 25, 30)] == [10, 11, 12, 13]
        bucket.finder.drop_all()
        bucket.writers = {10: 77, 11: 77, 12: 77, 14: 77}
        assert await bucket.found_at(0) == 10
        for offset, object_id in ((12, 11), (25, 12), (30, 14)):
            said = f"{bucket.key(object_id)} .*incarnation 0{{14}}63 of node 3, .* incarnation 0{{14}}4d"
            with pytest.raises(ObjectCorrupt, match=said):
                await bucket.find(offset)

    run(scenario)


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_linked_object_of_another_is_refused(is_apart: bool) -> None:
    """It lies under the linked object's id and has the same layout: who reads it looks at its footer once,
    beside the first bytes, and gives none of them out."""

    async def scenario() -> None:
        bucket = Bucket()
        ours, theirs = Writer(3, 77), Writer(3, 99)
        await bucket.put(13, {1: (30, 35)}, STREAM, ours)
        bucket.writers = {13: 77, 14: 77}
        await bucket.link(14, 13, writer=ours)
        bucket.names = [((14,), 30, 35)]

        async def read() -> object:
            found = await bucket.find(30)
            if is_apart:
                return await found.reader.read_apart(found.refs, BufferPool(1 << 20))
            return await found.reader.read_blocks(found.refs)

        bucket.asked()
        await read()
        assert bucket.asked() == [bucket.key(14), bucket.key(13), bucket.key(13)], "data, and the footer"
        await read()
        assert bucket.asked() == [bucket.key(13)], "the footer was seen"
        await bucket.put(13, {1: (30, 35)}, STREAM, theirs)
        bucket.finder.drop_all()
        for _ in range(2):
            with pytest.raises(ObjectCorrupt, match=f"{bucket.key(13)} .*incarnation 0{{14}}63 of node 3"):
                await read()

    run(scenario)


def test_those_who_look_at_one_time_share_the_indexes() -> None:
    """Ten readers of one group load four indexes."""

    async def scenario() -> None:
        bucket = await group()
        found = await asyncio.gather(*(bucket.found_at(offset) for offset in range(0, 40, 4)))
        assert found == [10, 10, 10, 11, 11, 11, 11, 13, 13, 13]
        assert len(bucket.asked()) == 4

    run(scenario)


def test_an_object_that_cannot_be_read_fails_only_who_needs_it() -> None:
    """Gone or damaged, the others of its group are read; who needs it is told which it was."""

    async def scenario() -> None:
        bucket = await group()
        await bucket.store.delete([bucket.key(11)])
        content = bytearray(await bucket.store.get(bucket.key(13)))
        content[-50] ^= 1
        await bucket.store.put(bucket.key(13), [bytes(content)])
        assert await bucket.found_at(3) == 10
        with pytest.raises(ObjectMissing):
            await bucket.find(12)
        bucket.names = [((10, 12, 13), 0, 40)]
        with pytest.raises(ObjectCorrupt):
            await bucket.find(30)

    run(scenario)


@pytest.mark.parametrize("error", [StoreDenied, StoreUnavailable])
def test_nor_does_one_that_the_store_does_not_give(error: type[Exception]) -> None:
    """It was archived, say; or its GET alone was late. Who finds nothing in the others is told that, before
    anything else."""

    async def scenario() -> None:
        bucket = await group()
        await bucket.store.delete([bucket.key(12)])

        bucket.store.refused[bucket.key(11)] = error("no")
        assert await bucket.found_at(3) == 10
        with pytest.raises(error):
            await bucket.find(12)

    run(scenario)


def test_what_compaction_replaced_is_found_when_metadata_says_so() -> None:
    """Indexes of the old objects are kept and harm nothing; the new one is asked for once."""

    async def scenario() -> None:
        bucket = await group()
        assert await bucket.found_at(12) == 11
        await bucket.put(20, {1: (0, 40)}, STREAM)
        bucket.names = [((20,), 0, 40)]
        await bucket.store.delete([bucket.key(one) for one in (10, 11, 12, 13)])
        bucket.asked()
        assert await bucket.found_at(12) == 20
        assert bucket.asked() == [bucket.key(20)]

    run(scenario)


def test_metadata_that_lags_is_told_apart() -> None:
    """No object named: ObjectMissing, asking again may help; named, and none has it: OffsetGap."""

    async def scenario() -> None:
        bucket = await group()
        with pytest.raises(ObjectMissing):
            await bucket.find(40)
        bucket.names = [((10, 12), 0, 40)]
        with pytest.raises(OffsetGap):
            await bucket.find(30)

    run(scenario)


def test_indexes_are_kept_within_their_bound() -> None:
    """Reading on over many groups keeps the newest; the oldest is asked for again."""

    async def scenario() -> None:
        bucket = Bucket(index_bytes_max=40 << 10)
        for number in range(30):
            await bucket.put(number, {1: (10 * number, 10 * number + 10)}, STREAM)
            bucket.names.append(((number,), 10 * number, 10 * number + 10))
        for number in range(30):
            assert await bucket.found_at(10 * number) == number
            assert bucket.finder.size_bytes <= 40 << 10
        bucket.asked()
        assert await bucket.found_at(295) == 29
        assert bucket.asked() == []
        assert await bucket.found_at(5) == 0
        assert bucket.asked() == [bucket.key(0)]

    run(scenario)


def test_where_a_stream_goes_on_behind_damage() -> None:
    """With the block that cannot be read, else with the next block that an index tells of, else with the
    objects that metadata names: never above what could be read, so that nothing readable is given up for
    another's sake."""

    async def scenario() -> None:
        bucket = await group()
        assert [await bucket.finder.resume_after(1, offset) for offset in (0, 9, 10, 39)] == [10, 10, 25, 40]
        for gone, goes_on in (((11,), 25), ((11, 13), 40), ((10, 11), 25)):
            bucket = await group()
            await bucket.store.delete([bucket.key(one) for one in gone])
            assert await bucket.finder.resume_after(1, 12) == goes_on, gone
        bucket = await group()
        await bucket.put(14, {1: (40, 60)}, STREAM)
        bucket.names.append(((14,), 40, 60))
        await bucket.store.delete([bucket.key(14)])
        assert await bucket.finder.resume_after(1, 45) == 60
        with pytest.raises(ObjectMissing):
            await bucket.finder.resume_after(1, 60)

    run(scenario)


def test_where_a_composite_goes_on_behind_damage() -> None:
    """Behind the block of the linked object; behind all that it links when it is gone itself."""

    async def scenario() -> None:
        bucket = Bucket()
        await bucket.put(20, {1: (0, 10)}, STREAM)
        await bucket.put(21, {1: (10, 30)}, STREAM)
        await bucket.link(22, 20, 21)
        bucket.names = [((22,), 0, 30)]
        await bucket.store.delete([bucket.key(20)])
        assert [await bucket.finder.resume_after(1, offset) for offset in (3, 10)] == [10, 30]
        bucket.finder.drop_all()
        await bucket.store.delete([bucket.key(22)])
        assert await bucket.finder.resume_after(1, 3) == 30

    run(scenario)


@pytest.mark.parametrize("error", [StoreDenied, StoreUnavailable])
def test_where_a_stream_goes_on_is_not_known_without_an_index(error: type[Exception]) -> None:
    """An index that the store does not give now may tell of what is asked for: nothing is concluded."""

    async def scenario() -> None:
        bucket = await group()
        await bucket.store.delete([bucket.key(10)])
        bucket.store.refused = {bucket.key(11): error("not now")}
        with pytest.raises(error):
            await bucket.finder.resume_after(1, 3)

    run(scenario)
