"""RingReads: some reads are under way while records are looked at."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.disk import DiskFailed
from millrace.wal.block.layout import BLOCK_BYTES, Geometry
from millrace.wal.block.reading import RingReads
from millrace.wal.block.recovery import FIRST_READ_BYTES, READS_AHEAD, RecoveryScan
from tests.wal.block.test_recovery import header

RING = Geometry(64 * BLOCK_BYTES, 0)


class HeldFile:
    """Answers when it is told to; `broken` places fail."""

    def __init__(self) -> None:
        self.asked: dict[int, asyncio.Future[bytes]] = {}
        self.broken: list[int] = []

    def read_at(self, position: int, length: int) -> asyncio.Future[bytes]:
        self.asked[position] = asyncio.get_running_loop().create_future()
        if position in self.broken:
            self.asked[position].set_exception(DiskFailed("wal", "a bad sector"))
        elif length == BLOCK_BYTES:
            self.asked[position].set_result(bytes(length))
        return self.asked[position]


def place(number: int, count: int = 2) -> tuple[int, int]:
    return number * BLOCK_BYTES, count * BLOCK_BYTES


def test_several_are_under_way_and_each_is_asked_for_once() -> None:
    async def main() -> None:
        file = HeldFile()
        reads = RingReads(file, RING)  # type: ignore[arg-type]
        reads.begin([place(0), place(2), place(4)])
        reads.begin([place(2), place(4), place(6)])
        await asyncio.sleep(0)
        assert list(file.asked) == [n * BLOCK_BYTES for n in (0, 2, 4, 6)]
        file.asked[0].set_result(b"first")
        assert await reads.take(place(0)) == (b"first", ())
        file.asked[2 * BLOCK_BYTES].set_result(b"second")
        assert await reads.take(place(2)) == (b"second", ())
        reads.drop()
        await asyncio.sleep(0)
        assert all(read.done() for read in file.asked.values())

    asyncio.run(main())


def test_what_was_begun_in_vain_is_dropped() -> None:
    """The walk went on elsewhere."""

    async def main() -> None:
        file = HeldFile()
        reads = RingReads(file, RING)  # type: ignore[arg-type]
        reads.begin([place(0), place(2)])
        await asyncio.sleep(0)
        taken = asyncio.ensure_future(reads.take(place(9)))
        await asyncio.sleep(0)
        assert file.asked[0].cancelled()
        assert file.asked[2 * BLOCK_BYTES].cancelled()
        file.asked[9 * BLOCK_BYTES].set_result(b"there")
        assert await taken == (b"there", ())

    asyncio.run(main())


def test_a_read_that_failed_ahead_is_met_where_it_is_wanted() -> None:
    async def main() -> None:
        file = HeldFile()
        file.broken = [2 * BLOCK_BYTES]
        reads = RingReads(file, RING)  # type: ignore[arg-type]
        reads.begin([place(0), place(2)])
        await asyncio.sleep(0)
        file.asked[0].set_result(b"first")
        assert await reads.take(place(0)) == (b"first", ())
        data, unreadable = await reads.take(place(2))
        assert (len(data), unreadable) == (2 * BLOCK_BYTES, [2 * BLOCK_BYTES])

    asyncio.run(main())


@pytest.mark.parametrize(("position", "count"), [(0, READS_AHEAD), (15, 1)])
def test_what_follows_ends_where_the_ring_ends(position: int, count: int) -> None:
    scan = RecoveryScan(header(), BLOCK_BYTES)
    assert len(list(scan.following(position * BLOCK_BYTES))) == count


def test_one_read_is_ahead_while_reads_grow() -> None:
    """An empty log opens at once: what lies behind its first read is not asked for."""
    scan = RecoveryScan(header(), 2 * FIRST_READ_BYTES)
    assert len(list(scan.following(0))) == 1
