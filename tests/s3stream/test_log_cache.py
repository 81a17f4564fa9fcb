"""The log cache: a transcript of its states, and the rules that a transcript shows badly."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.s3stream.errors import OffsetGap
from millrace.s3stream.log_cache import (
    COPY_BELOW_BYTES,
    COPY_OVERHEAD_BYTES,
    DENSITY_WINDOW_BYTES,
    RUN_OVERHEAD_BYTES,
    VIEW_OVERHEAD_BYTES,
    LogCache,
)
from millrace.s3stream.objects.format import INT32_MAX, Entry
from tests.s3stream.build import shown

TRANSCRIPT = Path(__file__).parent.parent / "transcripts" / "log_cache.txt"


class Dialogue:
    """Runs one command of the transcript and tells what to print."""

    def __init__(self) -> None:
        self.cache = LogCache(20_000)
        self.wal_end = 0

    def say(self, command: str) -> str:
        verb, *words = command.split()
        numbers = [int(word) for word in words]
        try:
            told = getattr(self, verb)(*numbers)
        except (AssertionError, OffsetGap) as error:
            return f"refused: {error}"
        return told if told is not None else repr(self.cache)

    def put(self, stream_id: int, base: int, count: int, size: int) -> None:
        self.cache.put(stream_id, Entry(base, count, memoryview(bytes(size))), self.wal_end + size)
        self.wal_end += size

    def read(self, stream_id: int, start: int, end: int, max_bytes: int) -> str:
        return shown(self.cache.read(stream_id, start, end, max_bytes)).replace("\0", "")

    def seal(self) -> str | None:
        return None if self.cache.seal() else "nothing to seal"

    def free(self, number: int) -> None:
        self.cache.free(next(block for block in self.cache.blocks if block.number == number))

    def evict(self, *bound: int) -> None:
        self.cache.evict(*bound)

    def drop(self, stream_id: int) -> None:
        self.cache.drop(stream_id)

    def pass_wal(self) -> None:
        self.wal_end += 1000
        self.cache.pass_wal(self.wal_end)


def test_transcript() -> None:
    """Every command leaves the state that was reviewed. REWRITE=1 writes the transcript anew, for review as a
    diff."""
    dialogue = Dialogue()
    lines: list[str] = []
    for line in TRANSCRIPT.read_text().splitlines():
        if line.startswith("> "):
            lines += [line, *(f"  {told}" for told in dialogue.say(line[2:]).splitlines())]
        elif not line.startswith("  "):
            lines.append(line)
    if os.environ.get("REWRITE"):
        TRANSCRIPT.write_text("\n".join(lines) + "\n")
    assert TRANSCRIPT.read_text().splitlines() == lines


def entry(base: int, size: int = 10, count: int = 1) -> Entry:
    return Entry(base, count, memoryview(bytes(size)))


def test_a_streams_offsets_never_close_the_block_that_all_share() -> None:
    """Entries that count two thousand million offsets each go on in one run of one block, and each is found
    by its offset."""
    cache = LogCache(1 << 20)
    for number in range(5):
        cache.put(1, entry(number * INT32_MAX, count=INT32_MAX), 10 * number + 10)
    cache.put(2, entry(0), 60)
    assert not cache.take_sealed()
    run = cache.active.runs[1]
    assert (run.start, run.end, len(run), cache.active.wal_end) == (0, 5 * INT32_MAX, 5, 60)
    for number in range(5):
        found = cache.read(1, number * INT32_MAX + 7, number * INT32_MAX + 8, 1000)
        assert found is not None
        assert [one.base_offset for one in found] == [number * INT32_MAX]


def test_entries_come_in_the_order_of_the_wal() -> None:
    """What lies further back may not come later: a block's end is where the WAL is trimmed, and what came
    after its upload would go with it."""
    cache = LogCache(1 << 20)
    cache.put(1, Entry(0, 1, memoryview(b"late")), 200)
    with pytest.raises(AssertionError, match="a record that ends at 100 after one at 200"):
        cache.put(2, Entry(0, 1, memoryview(b"early")), 100)


def test_streams_of_a_block_are_bounded() -> None:
    """One stream more than a block may hold begins the next block."""
    cache = LogCache(1 << 20, streams_per_block=2)
    for stream_id in (1, 2, 1, 3):
        cache.put(stream_id, entry(cache.end_of(stream_id) or 0), 10)
    assert [sorted(block.runs) for block in cache.take_sealed()] == [[1, 2]]
    assert sorted(cache.active.runs) == [3]


def test_lookup_in_many_blocks_and_entries() -> None:
    """Every offset of a stream is found, wherever block borders lie."""
    cache = LogCache(1 << 20)
    base = 0
    for number in range(200):
        cache.put(1, entry(base, count=1 + number % 3), number + 1)
        base += 1 + number % 3
        if number % 7 == 0:
            cache.seal()
    for offset in range(base):
        found = cache.read(1, offset, base, 0)
        assert found is not None
        assert len(found) == 1
        assert found[0].base_offset <= offset < found[0].end


@pytest.mark.parametrize(
    ("size", "is_copied"), [(1, True), (COPY_BELOW_BYTES - 1, True), (COPY_BELOW_BYTES, False), (5000, False)]
)
def test_small_entries_are_copied(size: int, is_copied: bool) -> None:
    """A small entry does not pin the WAL's memory; a large one is a view of it, and is charged with the arena
    it pins, once."""
    cache = LogCache(1 << 30)
    make_dense(cache)
    arena = bytes(1 << 20)
    before = cache.size_bytes
    cache.put(2, Entry(0, 1, memoryview(arena)[:size]), cache.active.wal_end + size)
    found = cache.read(2, 0, 1, 0)
    assert found is not None
    assert (found[0].data.obj is not arena) == is_copied
    charge_bytes = COPY_OVERHEAD_BYTES + size if is_copied else VIEW_OVERHEAD_BYTES + len(arena)
    assert cache.size_bytes - before == RUN_OVERHEAD_BYTES + charge_bytes
    if not is_copied:
        before = cache.size_bytes
        cache.put(2, Entry(1, 1, memoryview(arena)[size : 2 * size]), cache.active.wal_end + size)
        assert cache.size_bytes - before == VIEW_OVERHEAD_BYTES


def test_what_was_put_is_what_is_read() -> None:
    """Offsets, bytes, the owner's epoch and the checksum, if there was one; a new epoch has a run of its own,
    in a block of its own."""
    cache = LogCache(1 << 20)
    put = [
        Entry(0, 3, memoryview(b"a"), 7, 0xFFFF_FFFF),
        Entry(3, 1, memoryview(b""), 7, None),
        Entry(4, 2**31 - 10, memoryview(b"bc"), 7, 0),
        Entry(2**31 - 6, 5, memoryview(b"d"), 8, 5),
    ]
    for number, one in enumerate(put):
        cache.put(1, replace(one), number)
    assert cache.read(1, 0, 2**32, 100) == put
    assert [[(run.epoch, len(run)) for run in block.runs.values()] for block in cache.blocks] == [
        [(7, 3)],
        [(8, 1)],
    ]


def test_the_collector_walks_no_small_entry() -> None:
    """A cache of a million small entries is no pause of the broker."""
    cache = LogCache(1 << 30)
    for number in range(100):
        cache.put(1, entry(number), number)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(100, 10_000):
        cache.put(1, entry(number), number)
    gc.collect()
    assert len(gc.get_objects()) - before < 1000, "one for each entry, or nearly"


def test_large_entries_are_copied_while_they_are_few() -> None:
    """One large entry among many small ones would pin an arena full of what nobody reads: it is copied, until
    large ones prevail."""
    cache = LogCache(1 << 30)
    arena = bytes(1 << 20)
    make_dense(cache)
    wal_end = cache.active.wal_end + 4 * DENSITY_WINDOW_BYTES  # padding, a WAL block for each small record
    cache.put(2, entry(0), wal_end)
    cache.put(2, Entry(1, 1, memoryview(arena)[:5000]), wal_end + 5000)
    found = cache.read(2, 1, 2, 0)
    assert found is not None
    assert found[0].data.obj is not arena


def test_an_arena_that_is_large_beside_the_cache_is_not_pinned() -> None:
    """With a small cache the arenas of the WAL would fill it: entries are copied whatever their size."""
    cache = LogCache(1 << 20)
    make_dense(cache)
    arena = bytes(1 << 20)
    cache.put(2, Entry(0, 1, memoryview(arena)[:5000]), cache.active.wal_end + 5000)
    found = cache.read(2, 0, 1, 0)
    assert found is not None
    assert found[0].data.obj is not arena


def make_dense(cache: LogCache) -> None:
    """Large entries are all that the WAL writes."""
    wal_end = 0
    for number in range(3):
        wal_end += DENSITY_WINDOW_BYTES
        cache.put(1, Entry(number, 1, memoryview(bytes(DENSITY_WINDOW_BYTES))), wal_end)


def test_more_is_kept_once_readers_come_for_it() -> None:
    """Uploaded blocks beyond the first bound are dropped; a reader who comes too late for one doubles it, up
    to the whole cache."""
    cache = LogCache(100_000, kept_bytes=10_000)

    def write_uploaded(first: int, count: int) -> list[int]:
        """Blocks of 5,000 bytes and a bit, uploaded at once; the starts of those that are left."""
        for base in range(first, first + count):
            cache.put(1, entry(base, 4000), (base + 1) * 5000)
            block = cache.seal()
            assert block is not None
            cache.free(block)
            cache.evict()
        return [block.runs[1].start for block in cache.blocks if block.runs]

    assert write_uploaded(0, 10) == [9]
    assert cache.read(1, 0, 1, 0) is None
    assert write_uploaded(10, 10) == [17, 18, 19]
    assert cache.read(1, 0, 1, 0) is None
    assert write_uploaded(20, 10) == [27, 28, 29]
    for missed in (24, 25, 26, 23, 22):
        assert cache.read(1, missed, 30, 0) is None
    assert len(write_uploaded(30, 40)) == 100_000 // (4000 + COPY_OVERHEAD_BYTES + RUN_OVERHEAD_BYTES)
    assert cache.size_bytes <= 100_000
