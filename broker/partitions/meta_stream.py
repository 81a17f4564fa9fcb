"""The partition's small states, kept in a stream: a log of keys and values that re-appends what lives and
trims.

A key is a kind and a number (0 where a kind has one value). What `put` is given lives from that moment on:
the table here is of what was submitted, not of what is confirmed, so that a value written again on the way
can never be older than one in flight. The stream's offsets count entries.

Values of *far* kinds are in memory only until they are durable; after that the table has their place in the
stream, and `read_far` fetches them.

    entry    8 B  magic "MRMV" | version u8 | flags u8 | count u16
    value   13 B  kind u8 | number i64 | length i32 (-1: the key is gone), then `length` bytes

Once what was written is several times what lives, all that lives is written again and the stream is trimmed
to where that begins. Puts go on meanwhile; they come behind it. Far values are read and put again one after
the other, before the trim.

Not here: what the values mean (state.py, segments.py, ...). A kind that is not known here is kept and written
again.

Invariants
  * Read from its start, later values winning, the stream gives what lives; whatever its length was when a
    crash came.
  * Its length stays below `REWRITE_RATIO` times what lives, plus `REWRITE_BYTES_MIN` and what is in flight.
  * Callbacks of `put` come in the order of the calls, each when its values are durable.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from millrace.runtime.errors import Closed, Corrupt, Fenced, MillraceError, in_words
from millrace.s3stream.errors import OffsetTrimmed
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.stream import Append, Stream

log = logging.getLogger(__name__)

MAGIC = b"MRMV"
VERSION = 1
REWRITE_RATIO = 4
REWRITE_BYTES_MIN = 64 << 10
ENTRY_BYTES_MAX = 256 << 10
VALUES_PER_ENTRY_MAX = 0xFFFF
FETCH_BYTES = 1 << 20
CLOSED_LOOK_S = 5.0  # how often whoever waits for a value looks whether the stream closed
# What an entry costs in WAL and cache beyond its bytes; a guess that errs upwards.
ENTRY_OVERHEAD_BYTES = 1024

_HEAD = struct.Struct(">4sBBH")
_VALUE = struct.Struct(">Bqi")

Key = tuple[int, int]
Spawn = Callable[[Coroutine[Any, Any, None]], object]


class Room(Protocol):
    """What is asked of the stream engine besides the stream itself (s3stream/storage.py)."""

    @property
    def room_bytes(self) -> int: ...

    @property
    def entry_bytes_max(self) -> int: ...

    def has_room(self, needed_bytes: int) -> bool: ...

    def wait_for_room(self, needed_bytes: int) -> asyncio.Future[None]: ...


class MetaCorrupt(Corrupt):
    """An entry of a meta stream is none: `offset` in the stream, and why."""

    def __init__(self, stream_id: int, offset: int, why: str) -> None:
        super().__init__(stream_id, offset, why)
        self.stream_id = stream_id
        self.offset = offset
        self.why = why


class _Far:
    """A value in the stream: in the entry at `offset` (-1: not appended yet), and here while that is not
    durable."""

    __slots__ = ("data", "offset", "size_bytes")

    def __init__(self, offset: int, size_bytes: int, data: bytes | None) -> None:
        self.offset = offset
        self.size_bytes = size_bytes
        self.data = data


class MetaStream:
    """`spawn` runs a coroutine in the background; what it may raise is the engine's to answer for.
    `far_kinds`: by kind, what `load` makes of a value for `digests`; it may raise Corrupt."""

    def __init__(
        self,
        stream: Stream,
        room: Room,
        spawn: Spawn,
        far_kinds: Mapping[int, Callable[[memoryview], Any]] | None = None,
    ) -> None:
        self.stream = stream
        self._room = room
        self._spawn = spawn
        self._far_kinds = far_kinds or {}
        self._far: dict[Key, _Far] = {}
        self.digests: dict[Key, Any] = {}  # of far values, as loaded; whoever opens the stream takes them
        self._rewrite_from_bytes = 0  # not before so much is written: a far value could not be read
        self._live: dict[Key, bytes] = {}
        self._live_bytes = 0
        self._written_bytes = 0  # in the stream, from its start on
        self._unwritten: dict[Key, None] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._is_waiting = False
        self._is_rewriting = False

    def __repr__(self) -> str:
        keys_count = len(self._live) + len(self._far)
        return (
            f"meta stream {self.stream.stream_id}: {keys_count} keys, {self._live_bytes} of "
            f"{self._written_bytes} bytes live"
        )

    @property
    def live_bytes(self) -> int:
        return self._live_bytes

    @property
    def written_bytes(self) -> int:
        return self._written_bytes

    def get(self, key: Key) -> bytes | None:
        return self._live.get(key)

    def of_kind(self, kind: int) -> dict[int, bytes]:
        """Values of one kind by number, ascending."""
        return {number: self._live[found, number] for found, number in sorted(self._live) if found == kind}

    async def load(self) -> None:
        """Reads the stream to its end. Once, before anything is put."""
        stream = self.stream
        offset = stream.start
        while offset < stream.confirmed_end:
            entries = await stream.fetch(offset, stream.confirmed_end, FETCH_BYTES)
            for entry in entries:
                self._fold(entry)
                offset = entry.end
            if not entries:
                break  # the rest was given up with a write-ahead log: what was put before holds

    def put(self, values: Mapping[Key, bytes | None], on_done: Callable[[], None] | None = None) -> None:
        """Sets values (None removes the key), all of them or, after a crash, none; never waits. `on_done` is
        called once they are durable. Where room has to be waited for, what is put meanwhile goes into the
        same entry."""
        for key, value in values.items():
            self._set(key, value)
            self._unwritten[key] = None
        if on_done is not None:
            self._callbacks.append(on_done)
        self._flush()

    async def put_durably(self, values: Mapping[Key, bytes | None]) -> None:
        """As `put`; durable on return. Raises Closed when the stream closes before."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.put(values, lambda: None if done.done() else done.set_result(None))
        while not done.done():
            await asyncio.wait([done], timeout=CLOSED_LOOK_S)
            if self.stream.is_closed and not done.done():
                raise Closed(f"{self!r} closed")

    async def read_far(self, key: Key) -> bytes | None:
        """The value of a key of a far kind; None when there is none any more. Raises what the stream's reads
        raise."""
        while (far := self._far.get(key)) is not None:
            if far.data is not None:
                return far.data
            offset = far.offset
            try:
                entries = await self.stream.fetch(offset, offset + 1, FETCH_BYTES)
            except OffsetTrimmed:
                if far.offset == offset and self._far.get(key) is far:
                    raise
                continue  # written again meanwhile
            for entry in entries:
                value = dict(decode_values(entry.data)).get(key)
                if value is not None:
                    return value
            if self._far.get(key) is far and far.offset == offset:
                raise MetaCorrupt(self.stream.stream_id, offset, f"no value of kind {key[0]} number {key[1]}")
        return None

    def _set(self, key: Key, value: bytes | None) -> None:
        if key[0] in self._far_kinds:
            self._set_far(key, -1, 0 if value is None else len(value), value)
            return
        before = self._live.pop(key, None)
        if before is not None:
            self._live_bytes -= _VALUE.size + len(before)
        if value is not None:
            self._live[key] = value
            self._live_bytes += _VALUE.size + len(value)

    def _set_far(self, key: Key, offset: int, size_bytes: int, data: bytes | None) -> None:
        """Without data and offset: the key is gone."""
        before = self._far.pop(key, None)
        if before is not None:
            self._live_bytes -= _VALUE.size + before.size_bytes
        if data is not None or offset >= 0:
            self._far[key] = _Far(offset, size_bytes, data)
            self._live_bytes += _VALUE.size + size_bytes

    def _flush(self, granted_bytes: int = 0) -> None:
        """Writes what is unwritten, when there is room; else comes back with it, and writes what lives by
        then."""
        if self._is_waiting or not (self._unwritten or self._callbacks):
            return
        entry = self._encode(list(self._unwritten))
        needed = len(entry) + ENTRY_OVERHEAD_BYTES
        if needed > granted_bytes + self._room.room_bytes:
            self._is_waiting = True
            room = self._room.wait_for_room(needed)
            room.add_done_callback(lambda room: self._on_room(room, needed))
            return
        callbacks, self._callbacks = self._callbacks, []
        placed = self._place_far()
        if placed:
            callbacks.insert(0, partial(_drop_data, placed))
        self._unwritten = {}
        self._append(entry, callbacks)
        bound_bytes = max(self._rewrite_from_bytes, REWRITE_BYTES_MIN + REWRITE_RATIO * self._live_bytes)
        if self._written_bytes > bound_bytes and not self._is_rewriting:
            self._rewrite()

    def _place_far(self) -> list[_Far]:
        """Far values that are in the entry that is appended now."""
        if not self._far_kinds:
            return []
        placed = [far for key in self._unwritten if (far := self._far.get(key)) is not None]
        for far in placed:
            far.offset = self.stream.next_offset
        return placed

    def _on_room(self, room: asyncio.Future[None], granted_bytes: int) -> None:
        self._is_waiting = False
        if not room.cancelled() and room.exception() is None and not self.stream.is_closed:
            self._flush(granted_bytes)

    def _append(self, entry: bytes, callbacks: list[Callable[[], None]]) -> None:
        self._written_bytes += len(entry)

        def on_done(append: Append) -> None:
            for callback in callbacks:
                callback()

        self.stream.append(1, (entry,), on_done if callbacks else None)

    def _rewrite(self) -> None:
        """Writes all that lives behind what was written, in several entries: a crash between them leaves
        values as they were."""
        entries = self._split()
        needed_bytes = sum(map(len, entries)) + ENTRY_OVERHEAD_BYTES * len(entries)
        if needed_bytes > self._room.room_bytes or max(map(len, entries)) > self._room.entry_bytes_max:
            return  # the next put tries again
        self._is_rewriting = True
        freed_bytes = self._written_bytes
        start = self.stream.next_offset
        for entry in entries[:-1]:
            self._append(entry, [])
        self._append(entries[-1], [lambda: self._start_trim(start, freed_bytes)])

    def rewrite(self) -> None:
        """Begins to write all that lives behind what was written, and to trim the stream to it, unless that
        is under way, or there is no room."""
        if not self._is_rewriting and self._live:
            self._rewrite()

    async def gather(self) -> None:
        """Writes all that lives once more; durable on return, and what lies before it is not to be read any
        more: who opens the stream next reads nothing else. Nothing is done where values are in the stream
        alone, or where there is no room. Nothing may be put meanwhile. Raises Closed."""
        entries = self._split() if self._live else []
        needed_bytes = sum(map(len, entries)) + ENTRY_OVERHEAD_BYTES * len(entries)
        is_busy = self._is_rewriting or self._is_waiting or bool(self._far)
        if is_busy or not entries or needed_bytes > self._room.room_bytes:
            return
        if max(map(len, entries)) > self._room.entry_bytes_max:
            return
        start = self.stream.next_offset
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def note() -> None:
            if not done.done():
                done.set_result(None)

        for entry in entries[:-1]:
            self._append(entry, [])
        self._append(entries[-1], [note])
        while not done.done():
            await asyncio.wait([done], timeout=CLOSED_LOOK_S)
            if self.stream.is_closed and not done.done():
                raise Closed(f"{self!r} closed")
        self.stream.start = max(self.stream.start, start)

    def _start_trim(self, start: int, freed_bytes: int) -> None:
        self._spawn(self._trim(start, freed_bytes))

    async def _trim(self, start: int, freed_bytes: int) -> None:
        try:
            if await self._carry_far(start):
                await self.stream.trim(start)
                self._written_bytes -= freed_bytes
        finally:
            self._is_rewriting = False

    async def _carry_far(self, start: int) -> bool:
        """Far values that lie below `start` are put again; durable on return. False: one could not be read,
        and nothing is to be trimmed."""
        try:
            for key in [key for key, far in self._far.items() if 0 <= far.offset < start]:
                far = self._far.get(key)
                value = await self.read_far(key)
                # What is put while it was read is newer.
                if (
                    far is not None
                    and value is not None
                    and self._far.get(key) is far
                    and 0 <= far.offset < start
                ):
                    await self.put_durably({key: value})
        except (Closed, Fenced):
            return False
        except MillraceError as error:
            self._rewrite_from_bytes = 2 * self._written_bytes
            log.warning(
                "%r is not shortened: a value in it cannot be read (%s); tried again when it is twice as "
                "long",
                self,
                in_words(error),
            )
            return False
        return True

    def _split(self) -> list[bytes]:
        """All that lives, in entries of a bounded size (one large value may exceed it)."""
        groups: list[list[Key]] = [[]]
        size = 0
        for key, value in self._live.items():
            if groups[-1] and (
                size + len(value) > ENTRY_BYTES_MAX or len(groups[-1]) == VALUES_PER_ENTRY_MAX
            ):
                groups.append([])
                size = 0
            groups[-1].append(key)
            size += _VALUE.size + len(value)
        return [self._encode(keys) for keys in groups]

    def _encode(self, keys: Sequence[Key]) -> bytes:
        """One entry with the keys' values as they are now: all of it survives a crash, or nothing."""
        assert len(keys) <= VALUES_PER_ENTRY_MAX, len(keys)
        parts = [_HEAD.pack(MAGIC, VERSION, 0, len(keys))]
        for key in keys:
            far = self._far.get(key)
            value = self._live.get(key) if far is None else far.data
            if value is None:
                parts.append(_VALUE.pack(*key, -1))
            else:
                parts += (_VALUE.pack(*key, len(value)), value)
        return b"".join(parts)

    def _fold(self, entry: Entry) -> None:
        self._written_bytes += len(entry.data)
        try:
            for key, value in decode_values(entry.data):
                digest = self._far_kinds.get(key[0])
                if digest is None:
                    self._set(key, value)
                    continue
                self.digests.pop(key, None)
                self._set_far(key, -1 if value is None else entry.base_offset, len(value or b""), None)
                if value is not None:
                    self.digests[key] = digest(memoryview(value))
        except Corrupt as error:
            raise MetaCorrupt(self.stream.stream_id, entry.base_offset, str(error)) from None


def _drop_data(placed: Sequence[_Far]) -> None:
    """They are durable: the stream has them."""
    for far in placed:
        far.data = None


def decode_values(data: memoryview) -> list[tuple[Key, bytes | None]]:
    """The values of one entry. Raises Corrupt for bytes that are none."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"an entry of {len(data)} bytes")
    magic, version, flags, count = _HEAD.unpack_from(data, 0)
    if magic != MAGIC or version != VERSION or flags:
        raise Corrupt(f"magic {magic!r}, version {version}, flags {flags}")
    position = _HEAD.size
    values: list[tuple[Key, bytes | None]] = []
    for _ in range(count):
        if position + _VALUE.size > len(data):
            raise Corrupt(f"{len(values)} of {count} values")
        kind, number, length = _VALUE.unpack_from(data, position)
        position += _VALUE.size
        value = None if length < 0 else bytes(data[position : position + length])
        if value is not None:
            position += length
        if position > len(data):
            raise Corrupt(f"a value of {length} bytes is cut off")
        values.append(((kind, number), value))
    if position != len(data):
        raise Corrupt(f"{len(data) - position} bytes too many")
    return values
