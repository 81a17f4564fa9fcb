"""How read-ahead grows with sequential reads, and backs off."""

from __future__ import annotations

from millrace.s3stream.readahead import COOLDOWN_MS, ReadAhead, Readers

KIB = 1024


def test_the_window_of_a_sequential_reader() -> None:
    """Nothing for the first read; then the window is filled up again once half of it, or a step, is missing,
    and is twice as wide each time the reader reaches the place from which it was last widened."""
    readers = Readers(512, 4096, 1024)
    said = []
    offset = 0
    for _ in range(16):
        planned = readers.on_read(7, offset, offset + 100, 100, now_ms=0)
        offset += 100
        if planned is None:
            said.append(f"{offset}: nothing")
            continue
        reader, start, size_bytes = planned
        said.append(f"{offset}: {size_bytes}B from {start}")
        while size_bytes > 0:  # blocks of 64 offsets, four bytes each
            start, size_bytes = start + 64, size_bytes - 256
            reader.on_asked(start, 256)
        reader.on_looked()
        assert reader.window_bytes <= reader.ahead_bytes < reader.window_bytes + 256
    assert said == [
        "100: nothing",
        "200: 512B from 200",
        "300: 768B from 328",
        "400: 1536B from 520",
        "500: nothing",
        "600: 2816B from 904",
        "700: nothing",
        "800: nothing",
        "900: 1024B from 1608",
        "1000: nothing",
        "1100: 1024B from 1864",
        "1200: nothing",
        "1300: nothing",
        "1400: 1024B from 2120",
        "1500: nothing",
        "1600: nothing",
    ]


def test_a_reader_of_much_begins_with_a_wide_window() -> None:
    """Twice what it reads at a time, within the bound: it need not grow through reads that are each larger
    than the window."""
    for read_bytes, expected in ((100, 512), (1000, 2000), (9000, 4096)):
        reader = ReadAhead(512, 4096, 1024)
        assert reader.plan(100, read_bytes, 0) == (100, expected)


def test_one_look_at_a_time() -> None:
    """While it is looked up where a stretch lies nothing else is planned; afterwards the reader goes on from
    its end."""
    reader = ReadAhead(512, 4096, 1024)
    assert reader.plan(100, 100, 0) == (100, 512)
    assert reader.plan(200, 100, 0) is None
    reader.on_asked(600, 512)
    reader.on_looked()
    assert reader.plan(200, 100, 0) == (600, 512)


def test_a_reader_that_overtakes_its_window() -> None:
    """Read-ahead goes on from where the reader is, not from where it was expected; what it passed is not
    counted any more."""
    reader = ReadAhead(512, 4096, 1024)
    reader.plan(100, 100, 0)
    reader.on_asked(228, 512)
    reader.on_looked()
    assert reader.plan(1000, 100, 0) == (1000, 1024)


def test_unused_blocks_that_are_evicted_pause_it() -> None:
    """The cache is too small for what is read ahead: the reader starts anew, small, after a pause."""
    reader = ReadAhead(512, 4096, 1024)
    reader.plan(100, 100, 0)
    reader.on_asked(600, 512)
    reader.on_looked()
    reader.plan(200, 100, 0)
    reader.on_looked()
    reader.on_evicted(1000)
    assert reader.plan(300, 100, 1000 + COOLDOWN_MS - 1) is None
    assert reader.plan(400, 100, 1000 + COOLDOWN_MS) == (400, 512)


def test_readers_are_told_apart_and_bounded() -> None:
    """Two readers of one stream at different places are two; jumps are no sequence; the longest unused reader
    is forgotten."""
    readers = Readers(512, 4096, 1024, readers_max=2)
    readers.on_read(1, 0, 10, 10, 0)
    readers.on_read(1, 500, 510, 10, 0)
    first = readers.on_read(1, 10, 20, 10, 0)
    second = readers.on_read(1, 510, 520, 10, 0)
    assert first is not None
    assert second is not None
    assert first[0] is not second[0]
    assert readers.on_read(1, 900, 910, 10, 0) is None
    assert len(readers) == 2
    assert readers.on_read(1, 20, 30, 10, 0) is None, "forgotten: it is new again"
    readers.drop_stream(1)
    assert len(readers) == 0


def test_a_small_cache_bounds_the_first_window() -> None:
    """The bound wins over the least window."""
    readers = Readers(512 * KIB, 4 * KIB, 4 * KIB)
    readers.on_read(1, 0, 10, 10, 0)
    planned = readers.on_read(1, 10, 20, 10, 0)
    assert planned is not None
    assert planned[1:] == (20, 4 * KIB)
