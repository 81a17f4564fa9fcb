"""Compaction of objects with damaged blocks: the rest is compacted, readers of the damaged range are told,
nothing is taken for nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from millrace.s3stream.block_cache import BlockCache
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.format import FOOTER_BYTES, BlockRef, decode_footer
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.read_accumulator import ReadAccumulator
from millrace.s3stream.traffic import EngineStores
from tests.s3stream.build import CLUSTER_ID, run
from tests.s3stream.compaction_build import CompactedWorld

PAUSE_S = 6 * 3600.0
COUNT, SIZE = 8, 4000  # entries of one offset; a block holds four


def payload(stream_id: int, offset: int) -> bytes:
    return b"%d:%d;" % (stream_id, offset) * (SIZE // 6)


class Fixture:
    """Four uploads of three streams, eight entries each."""

    def __init__(self) -> None:
        self.world = CompactedWorld(split_bytes=1 << 20)
        self.ids: list[ObjectId] = []
        self.end = 0

    async def upload(self, uploads: int = 4) -> None:
        for _ in range(uploads):
            offsets = range(self.end, self.end + COUNT)
            self.ids.append(
                await self.world.upload(*((s, [payload(s, n) for n in offsets]) for s in (1, 2, 3)))
            )
            self.end += COUNT

    def block(self, object_id: ObjectId, stream_id: int, offset: int) -> BlockRef:
        data = memoryview(self.world.store.objects[self.world.key(object_id)])
        footer = decode_footer(data[-FOOTER_BYTES:], len(data))
        index = ObjectIndex(data[footer.index_position : -FOOTER_BYTES], footer.index_position)
        return next(
            ref for ref in index.rows() if ref.stream_id == stream_id and ref.start <= offset < ref.end
        )

    def rot(self, object_id: ObjectId, stream_id: int, offset: int) -> BlockRef:
        """One bit of the block with that offset."""
        ref = self.block(object_id, stream_id, offset)
        data = bytearray(self.world.store.objects[self.world.key(object_id)])
        data[ref.position + 100] ^= 1
        self.world.store.objects[self.world.key(object_id)] = bytes(data)
        return ref

    async def look(self, looks: int = 1) -> None:
        """Rounds, hours between them."""
        for _ in range(looks):
            await self.world.compact()
            await asyncio.sleep(PAUSE_S)

    async def told(self, stream_id: int) -> list[int]:
        """The offsets at which a reader is told of damage; all others read as they were written."""
        found = []
        for offset in range(self.end):
            cache = BlockCache(
                EngineStores.same(self.world.store),
                self.world.catalog,
                StreamSettings(block_cache_bytes=1 << 20),
                CLUSTER_ID,
            )
            accumulator = ReadAccumulator(stream_id, offset, offset + 1, 1 << 20)
            try:
                await cache.read(accumulator)
                assert bytes(accumulator.entries[0].data) == payload(stream_id, offset)
            except ObjectCorrupt:
                found.append(offset)
            await cache.close()
        return found


def test_what_is_whole_beside_a_damaged_block_is_compacted(caplog: pytest.LogCaptureFixture) -> None:
    """A block rots in the second of four objects: two looks leave it aside, the third carries the block over.
    All else reads as before, also the entries beside it; its own readers are told; it is said once how it is,
    and the object is no longer aside."""

    async def main() -> None:
        fixture = Fixture()
        await fixture.upload()
        ref = fixture.rot(fixture.ids[1], 2, COUNT + 1)
        await fixture.look(2)
        assert fixture.ids[1] in fixture.world.catalog.live
        counts = fixture.world.work.counts
        assert counts.skipped == {"unreadable": 2}
        assert [one for one in caplog.messages if "leaves objects" in one] == [
            one for one in caplog.messages if f"[{fixture.ids[1]}]" in one
        ], "told once"
        await fixture.look()
        assert fixture.world.kinds() == "1 set"
        assert counts.damaged_blocks == 1
        assert counts.skipped == {"unreadable": 2}
        assert len(fixture.world.work.quarantined) == 0
        assert f"stream 2 [{ref.start}, {ref.end})" in next(
            one for one in caplog.messages if "damaged block" in one
        )
        assert await fixture.told(1) == await fixture.told(3) == []
        assert await fixture.told(2) == list(range(ref.start, ref.end))
        fixture.world.check_files()
        fixture.world.clean()
        fixture.world.check_files()

    caplog.set_level(logging.WARNING)
    run(main())


def test_a_block_that_was_carried_over_is_known_again() -> None:
    """The object that holds it is merged with the next ones at once, with no looks that end at it; several in
    one object take no more."""

    async def main() -> None:
        fixture = Fixture()
        await fixture.upload()
        for stream_id in (1, 3):
            fixture.rot(fixture.ids[2], stream_id, 2 * COUNT)
        await fixture.look(3)
        assert fixture.world.kinds() == "1 set"
        counts = fixture.world.work.counts
        assert (counts.damaged_blocks, counts.skipped) == (2, {"unreadable": 2})
        await fixture.upload(3)
        await fixture.look()
        assert fixture.world.kinds() == "1 set"
        assert (counts.damaged_blocks, counts.skipped) == (4, {"unreadable": 2})
        assert await fixture.told(2) == []
        assert await fixture.told(1) == await fixture.told(3) != []
        fixture.world.check_files()

    run(main())


def test_damage_on_the_way_costs_a_request() -> None:
    """A store that gives one wrong bit once: the block is read again, and nothing is quarantined; every
    stream reads as it was written."""

    async def main() -> None:
        fixture = Fixture()
        await fixture.upload()
        spoil(fixture, lambda reads: reads == 1)
        await fixture.world.compact()
        counts = fixture.world.work.counts
        assert fixture.world.kinds() == "1 set"
        assert counts.gets == len(fixture.ids) + 1
        assert (counts.damaged_blocks, counts.skipped) == (0, {})
        assert [await fixture.told(stream_id) for stream_id in (1, 2, 3)] == [[], [], []]

    run(main())


def test_damage_that_is_another_each_time_is_never_carried_over() -> None:
    """Wrong bits that differ from read to read are not what is stored: the object stays aside, however often
    it is looked at."""

    async def main() -> None:
        fixture = Fixture()
        await fixture.upload()
        get_range = fixture.world.store.get_range
        seen = spoil(fixture, lambda reads: True)
        await fixture.look(6)
        assert len(seen) >= 10
        assert fixture.ids[0] in fixture.world.catalog.live
        assert fixture.world.work.counts.damaged_blocks == 0
        fixture.world.store.get_range = get_range  # type: ignore[method-assign]
        assert await fixture.told(1) == []

    run(main())


def spoil(fixture: Fixture, is_spoilt: Callable[[int], bool]) -> list[int]:
    """Changes a byte of the first object's first block in the answers that are chosen by their number,
    another way each time."""
    key, place = fixture.world.key(fixture.ids[0]), fixture.block(fixture.ids[0], 1, 0).position + 100
    get_range, seen = fixture.world.store.get_range, list[int]()

    async def spoilt(asked: str, start: int, end: int) -> bytes:
        data = bytearray(await get_range(asked, start, end))
        if asked == key and start <= place < end:
            seen.append(start)
            if is_spoilt(len(seen)):
                data[place - start] ^= len(seen) % 200 + 1
        return bytes(data)

    fixture.world.store.get_range = spoilt  # type: ignore[method-assign]
    return seen
