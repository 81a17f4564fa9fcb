"""How much further to read, given how the last reads went. Pure; time arrives as an argument.

A reader that goes on where it stopped is sequential. Its first read is answered and nothing more; from the second on, the data behind it is
fetched before it asks, `bytes_min` at first. Each time it reaches the place where the last read-ahead began (the mark), the
next is twice as large, up to `bytes_max`: so a fast reader has one stretch in hand while the next is under way, and a slow one holds
little. When something that was read ahead is evicted before it was used, the cache is too small for what is asked of it: the
reader starts anew, after a pause.
"""

from __future__ import annotations

from collections import OrderedDict

COOLDOWN_MS = 60_000
READERS_MAX = 1024


class ReadAhead:
    """One sequential reader of one stream."""

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "ahead_offset",
        "is_loading",
        "mark_offset",
        "paused_until_ms",
        "size_bytes",
    )

    def __init__(self, bytes_min: int, bytes_max: int) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self.size_bytes = 0
        self.mark_offset = 0
        self.ahead_offset = 0  # everything below was read ahead already
        self.paused_until_ms = 0
        self.is_loading = False

    def __repr__(self) -> str:
        return f"readahead {self.size_bytes}B mark {self.mark_offset} ahead {self.ahead_offset} paused until {self.paused_until_ms}"

    def plan(self, next_offset: int, now_ms: int) -> tuple[int, int] | None:
        """After a sequential read that ended at `next_offset`: from which offset to read ahead and how many bytes, or None for
        not now. The caller sets `is_loading` while it does so and calls `on_loaded`."""
        if self.is_loading or now_ms < self.paused_until_ms:
            return None
        if self.size_bytes and next_offset < self.mark_offset:
            return None
        self.size_bytes = min(self._bytes_max, self.size_bytes * 2 if self.size_bytes else self._bytes_min)
        start = max(next_offset, self.ahead_offset)
        self.mark_offset = start
        return start, self.size_bytes

    def on_loaded(self, end_offset: int) -> None:
        """What `plan` asked for was read up to `end_offset`."""
        self.is_loading = False
        self.ahead_offset = max(self.ahead_offset, end_offset)

    def on_evicted(self, now_ms: int) -> None:
        """A block that was read ahead for this reader went unused."""
        self.size_bytes = 0
        self.ahead_offset = 0
        self.mark_offset = 0
        self.paused_until_ms = now_ms + COOLDOWN_MS


class Readers:
    """The sequential readers, found by stream and the offset where their next read should begin. Bounded: the longest unused goes."""

    def __init__(self, bytes_min: int, bytes_max: int, readers_max: int = READERS_MAX) -> None:
        self._bytes_min = min(bytes_min, bytes_max)
        self._bytes_max = bytes_max
        self._readers_max = readers_max
        self._by_place: OrderedDict[tuple[int, int], ReadAhead] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_place)

    def on_read(self, stream_id: int, start: int, next_offset: int, now_ms: int) -> tuple[ReadAhead, int, int] | None:
        """A read of history went from `start` to `next_offset`. What to read ahead, if anything: for whom, from where, how much."""
        reader = self._by_place.pop((stream_id, start), None)
        is_sequential = reader is not None
        if reader is None:
            reader = ReadAhead(self._bytes_min, self._bytes_max)
        self._by_place[(stream_id, next_offset)] = reader
        if len(self._by_place) > self._readers_max:
            self._by_place.popitem(last=False)
        planned = reader.plan(next_offset, now_ms) if is_sequential else None
        return None if planned is None else (reader, *planned)

    def drop_stream(self, stream_id: int) -> None:
        for place in [place for place in self._by_place if place[0] == stream_id]:
            del self._by_place[place]
