"""The writer on a file whose writes complete when the test says so: order, window, slots, bars, failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from millrace.runtime.disk import DiskFailed
from millrace.wal.block.batcher import Batcher
from millrace.wal.block.layout import BLOCK_BYTES, Geometry, decode_block_header
from millrace.wal.block.writer import BlockWriter


class HeldFile:
    """Takes writes and keeps them until told; the edge of the disk, by hand."""

    size_bytes = 1 << 20
    is_direct = True
    is_new = False
    keeper = None

    def __init__(self) -> None:
        self.writes: list[tuple[int, memoryview, asyncio.Future[None]]] = []

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writes.append((position, buffer, future))
        return future

    async def finish(self, *indexes: int) -> None:
        for index in indexes:
            self.writes[index][2].set_result(None)
        await asyncio.sleep(0)

    async def fail(self, index: int) -> None:
        self.writes[index][2].set_exception(DiskFailed("held", "EIO"))
        await asyncio.sleep(0)

    async def read_at(self, position: int, length: int) -> bytes:
        raise NotImplementedError

    async def resize(self, size_bytes: int) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Bench:
    """A writer, its file, and what it told."""

    def __init__(self, *, writes_in_flight: int = 3, window_bytes: int = 1 << 20) -> None:
        self.file = HeldFile()
        self.told: list[int | str] = []
        self.batcher = Batcher(1, 0)
        self.batcher.use_arena(memoryview(bytearray(64 * BLOCK_BYTES)))
        self.writer = BlockWriter(
            self.file,
            Geometry(32 * BLOCK_BYTES),
            0,
            writes_in_flight=writes_in_flight,
            writes_at_first=writes_in_flight,
            window_bytes=window_bytes,
            block_bytes_allowed=4 * BLOCK_BYTES,
            on_group=lambda: self.told.append(self.writer.confirmed // BLOCK_BYTES),
            on_failed=lambda error: self.told.append(type(error).__name__),
        )

    def put(self, pages: int = 1, at_page: int = -1) -> None:
        """`at_page` skips to a place further on, as at the end of a lap."""
        self.batcher.open_block(
            self.batcher.tail if at_page < 0 else at_page * BLOCK_BYTES, pages * BLOCK_BYTES
        )
        length = (pages - 1) * BLOCK_BYTES + 100
        self.batcher.add((bytes(length),), length)
        self.writer.put(self.batcher.close_block())


def drive(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(test())


def test_confirmed_in_order_whatever_completes_first() -> None:
    """The end moves only over a run of completed writes, and one completion may confirm several."""

    async def run() -> None:
        bench = Bench()
        for _ in range(3):
            bench.put()
        await bench.file.finish(2)
        assert bench.told == []
        await bench.file.finish(0)
        assert bench.told == [1]
        await bench.file.finish(1)
        assert bench.told == [1, 3]
        assert bench.writer.is_idle

    drive(run)


def test_two_completions_of_one_turn_are_one_group() -> None:
    """Writes that complete in the same iteration of the loop are told once."""

    async def run() -> None:
        bench = Bench()
        for _ in range(3):
            bench.put()
        await bench.file.finish(0, 1, 2)
        assert bench.told == [3]

    drive(run)


def test_a_block_is_stamped_when_its_write_begins() -> None:
    """A block that waited carries what was confirmed by then, not when it was closed."""

    async def run() -> None:
        bench = Bench(writes_in_flight=1)
        for _ in range(3):
            bench.put()
        for index in range(3):
            assert len(bench.file.writes) == index + 1
            header = decode_block_header(bench.file.writes[index][1], 0)
            assert header is not None
            assert header.confirmed == index * BLOCK_BYTES
            await bench.file.finish(index)

    drive(run)


def test_the_window_holds_blocks_back() -> None:
    """Nothing begins beyond the window, but for a block that is alone."""

    async def run() -> None:
        bench = Bench(writes_in_flight=9, window_bytes=3 * BLOCK_BYTES)
        for pages in (1, 1, 1, 1, 4):
            bench.put(pages)
        assert len(bench.file.writes) == 3
        assert not bench.writer.has_free_slot
        await bench.file.finish(1)
        assert len(bench.file.writes) == 3
        await bench.file.finish(0)
        assert len(bench.file.writes) == 4
        await bench.file.finish(2)
        assert len(bench.file.writes) == 4
        await bench.file.finish(3)
        assert len(bench.file.writes) == 5
        await bench.file.finish(4)
        assert bench.told == [2, 3, 4, 8]

    drive(run)


def test_undeclared_sizes_wait() -> None:
    """A block larger than the header speaks of, and all behind it, wait until it is allowed."""

    async def run() -> None:
        bench = Bench()
        bench.put(5)
        bench.put(1)
        assert bench.file.writes == []
        bench.writer.allow(8 * BLOCK_BYTES)
        assert [len(view) // BLOCK_BYTES for _, view, _ in bench.file.writes] == [5, 1]

    drive(run)


def test_a_bar_holds_where_it_touches() -> None:
    """Blocks that touch the barred stretch wait, in this lap or the next, and go when it is lifted."""

    async def run() -> None:
        bench = Bench()
        bench.writer.bar(BLOCK_BYTES, 2 * BLOCK_BYTES)
        bench.put()
        bench.put()
        assert len(bench.file.writes) == 1
        bench.writer.unbar()
        assert len(bench.file.writes) == 2
        await bench.file.finish(0, 1)
        bench.writer.bar(BLOCK_BYTES, 2 * BLOCK_BYTES)
        bench.put(at_page=33)
        assert len(bench.file.writes) == 2
        bench.writer.unbar()
        assert bench.file.writes[2][0] == 2 * BLOCK_BYTES + BLOCK_BYTES

    drive(run)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_nothing_is_confirmed_after_a_failure(failing: int) -> None:
    """The first failure is told once; writes that complete after it confirm nothing, and nothing more
    begins."""

    async def run() -> None:
        bench = Bench()
        for _ in range(5):
            bench.put()
        await bench.file.fail(failing)
        others = [index for index in range(3) if index != failing]
        await bench.file.finish(others[0])
        await bench.file.fail(others[1])
        assert bench.told == ["DiskFailed"]
        assert len(bench.file.writes) == 3
        assert bench.writer.confirmed == 0

    drive(run)
