"""How read-ahead grows with sequential reads, and backs off."""

from __future__ import annotations

from millrace.s3stream.readahead import COOLDOWN_MS, ReadAhead, Readers

KIB = 1024


def test_growth_of_a_sequential_reader() -> None:
    """Nothing for the first read; then twice as much each time the reader reaches the place where the last stretch began."""
    readers = Readers(512, 4096)
    said = []
    offset = 0
    for _ in range(12):
        planned = readers.on_read(7, offset, offset + 100, now_ms=0)
        offset += 100
        if planned is None:
            said.append(f"{offset}: nothing")
            continue
        reader, start, size_bytes = planned
        said.append(f"{offset}: {size_bytes}B from {start}")
        reader.on_loaded(start + size_bytes // 4)  # four bytes an offset
    assert said == [
        "100: nothing",
        "200: 512B from 200",
        "300: 1024B from 328",
        "400: 2048B from 584",
        "500: nothing",
        "600: 4096B from 1096",
        "700: nothing",
        "800: nothing",
        "900: nothing",
        "1000: nothing",
        "1100: 4096B from 2120",
        "1200: nothing",
    ]


def test_one_stretch_at_a_time() -> None:
    """While a stretch is being read nothing else is planned; afterwards the reader goes on from its end."""
    reader = ReadAhead(512, 4096)
    assert reader.plan(100, 0) == (100, 512)
    reader.is_loading = True
    assert reader.plan(200, 0) is None
    reader.on_loaded(600)
    assert reader.plan(200, 0) == (600, 1024)


def test_unused_blocks_that_are_evicted_pause_it() -> None:
    """The cache is too small for what is read ahead: the reader starts anew, small, after a pause."""
    reader = ReadAhead(512, 4096)
    reader.plan(100, 0)
    reader.on_loaded(600)
    reader.plan(200, 0)
    reader.on_evicted(1000)
    assert reader.plan(300, 1000 + COOLDOWN_MS - 1) is None
    assert reader.plan(400, 1000 + COOLDOWN_MS) == (400, 512)


def test_readers_are_told_apart_and_bounded() -> None:
    """Two readers of one stream at different places are two; jumps are no sequence; the longest unused reader is forgotten."""
    readers = Readers(512, 4096, readers_max=2)
    readers.on_read(1, 0, 10, 0)
    readers.on_read(1, 500, 510, 0)
    first = readers.on_read(1, 10, 20, 0)
    second = readers.on_read(1, 510, 520, 0)
    assert first is not None
    assert second is not None
    assert first[0] is not second[0]
    assert readers.on_read(1, 900, 910, 0) is None
    assert len(readers) == 2
    assert readers.on_read(1, 20, 30, 0) is None, "forgotten: it is new again"
    readers.drop_stream(1)
    assert len(readers) == 0


def test_a_small_cache_bounds_the_first_stretch() -> None:
    """The bound wins over the least stretch."""
    readers = Readers(512 * KIB, 4 * KIB)
    readers.on_read(1, 0, 10, 0)
    planned = readers.on_read(1, 10, 20, 0)
    assert planned is not None
    assert planned[1:] == (20, 4 * KIB)
