"""How much further to read, given how the last reads went. Pure; time arrives as an argument.

A reader that goes on where it stopped is sequential. Its first read is answered and nothing more; from the
second on, a window of data behind it is under way or at hand before it asks, at first `bytes_min` wide, or
twice what it reads at a time. As it goes on, the window is filled up again, in pieces of a GET and more, so
that a fast reader always has some under way; each time it reaches the place from which the window was last
widened (the mark), that is twice as wide, up to `bytes_max`: a slow reader holds little. When something that
was read ahead is evicted before it was used, the cache is too small for what is asked of it: the reader
starts anew, after a pause.
"""

from __future__ import annotations

from collections import OrderedDict, deque

COOLDOWN_MS = 60_000
READERS_MAX = 1024


class ReadAhead:
    """One sequential reader of one stream."""

    __slots__ = (
        "_bytes_max",
        "_bytes_min",
        "_step_bytes",
        "_stretches",
        "ahead_bytes",
        "ahead_offset",
        "is_looking",
        "mark_offset",
        "paused_until_ms",
        "window_bytes",
    )

    def __init__(self, bytes_min: int, bytes_max: int, step_bytes: int) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._step_bytes = step_bytes
        self._stretches: deque[tuple[int, int]] = (
            deque()
        )  # where each ends and its bytes, of what the reader did not pass yet
        self.ahead_bytes = 0  # theirs
        self.window_bytes = 0
        self.mark_offset = 0
        self.ahead_offset = 0  # everything below was asked for already
        self.paused_until_ms = 0
        self.is_looking = False

    def __repr__(self) -> str:
        return (
            f"readahead {self.ahead_bytes}B of {self.window_bytes}B mark {self.mark_offset} ahead "
            f"{self.ahead_offset} "
            f"paused until {self.paused_until_ms}"
        )

    def plan(self, next_offset: int, read_bytes: int, now_ms: int) -> tuple[int, int] | None:
        """After a sequential read of so many bytes that ended at `next_offset`: from which offset to read
        ahead and how many bytes, or None for not now. The caller finds out where that lies, and says so by
        `on_asked`, then by `on_looked`."""
        self._pass(next_offset)
        if self.is_looking or now_ms < self.paused_until_ms:
            return None
        start = max(next_offset, self.ahead_offset)
        if not self.window_bytes:
            self.window_bytes, self.mark_offset = (
                min(self._bytes_max, max(self._bytes_min, 2 * read_bytes)),
                start,
            )
        elif next_offset >= self.mark_offset and self.window_bytes < self._bytes_max:
            self.window_bytes, self.mark_offset = min(self._bytes_max, 2 * self.window_bytes), start
        missing_bytes = self.window_bytes - self.ahead_bytes
        if missing_bytes < min(self.window_bytes // 2, self._step_bytes):
            return None
        self.is_looking = True
        return start, missing_bytes

    def on_asked(self, end_offset: int, size_bytes: int) -> None:
        """So much more is under way, up to `end_offset`."""
        self.ahead_offset = max(self.ahead_offset, end_offset)
        self.ahead_bytes += size_bytes
        self._stretches.append((end_offset, size_bytes))

    def on_looked(self) -> None:
        """All that was planned is under way, or there is no more."""
        self.is_looking = False

    def on_evicted(self, now_ms: int) -> None:
        """A block that was read ahead for this reader went unused."""
        self._stretches.clear()
        self.ahead_bytes = self.window_bytes = self.ahead_offset = self.mark_offset = 0
        self.paused_until_ms = now_ms + COOLDOWN_MS

    def _pass(self, next_offset: int) -> None:
        while self._stretches and self._stretches[0][0] <= next_offset:
            self.ahead_bytes -= self._stretches.popleft()[1]


class Readers:
    """The sequential readers, found by stream and the offset where their next read should begin. Bounded: the
    longest unused goes."""

    def __init__(
        self, bytes_min: int, bytes_max: int, step_bytes: int, readers_max: int = READERS_MAX
    ) -> None:
        """`step_bytes`: what makes a GET worth it, where the window is wide."""
        self._bytes_min = min(bytes_min, bytes_max)
        self._bytes_max = bytes_max
        self._step_bytes = step_bytes
        self._readers_max = readers_max
        self._by_place: OrderedDict[tuple[int, int], ReadAhead] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_place)

    def on_read(
        self, stream_id: int, start: int, next_offset: int, read_bytes: int, now_ms: int
    ) -> tuple[ReadAhead, int, int] | None:
        """A read of history went from `start` to `next_offset`, over so many bytes. What to read ahead, if
        anything: for whom, from where, how much."""
        reader = self._by_place.pop((stream_id, start), None)
        is_sequential = reader is not None
        if reader is None:
            reader = ReadAhead(self._bytes_min, self._bytes_max, self._step_bytes)
        self._by_place[(stream_id, next_offset)] = reader
        if len(self._by_place) > self._readers_max:
            self._by_place.popitem(last=False)
        planned = reader.plan(next_offset, read_bytes, now_ms) if is_sequential else None
        return None if planned is None else (reader, *planned)

    def drop_stream(self, stream_id: int) -> None:
        for place in [place for place in self._by_place if place[0] == stream_id]:
            del self._by_place[place]
