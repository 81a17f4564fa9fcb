"""The walk over a batch's unpacked records that judges each: what Kafka's LogValidator asks of them.

Kafka's rules: as many records as the header counts fill the bytes exactly; each is as long as its length
says, its numbers are no longer than their kind may be, its headers have keys. And one of our own: offset
deltas are 0, 1, 2 and so on. Kafka lets other deltas pass where a batch is not compressed, and its consumers
then miss records or meet them twice. A record of no key, or of a time outside the bounds given, is no fault:
its index is told.

`walk` is compiled (_record_walk.c) where a C compiler was there when this was installed, about ten
nanoseconds a record; otherwise Python's own, a hundred times that, which `YieldingWalk` cuts into steps for
whoever shares a loop. The compiled one lets go of the interpreter for large inputs. Not here: the values of
records (records.py), unpacking (compression.py), what is made of an answer (broker/partitions/validation.py).
Pure; never raises for what the bytes say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from enum import IntEnum
from typing import Final

from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer, read_varint, read_varlong

try:
    from millrace.protocol import _record_walk
except ImportError:  # no compiler was there, or another Python's
    _compiled = None
else:
    _compiled = _record_walk

INDEXES_MAX: Final = 100  # of records without a key, and of those out of time: more are not told
RECORDS_PER_CHUNK: Final = 1024  # about a millisecond
NO_TIMESTAMP: Final = -1
_COMPILED_VERSION: Final = 1


class Fault(IntEnum):
    """Why records cannot be read; the numbers are the compiled walk's."""

    SOUND = 0
    CUT_OFF = 1
    WRONG_SIZE = 2
    BAD_NUMBER = 3
    WRONG_DELTA = 4
    BAD_HEADERS = 5
    BYTES_LEFT = 6


FAULT_TEXTS: Final = {
    Fault.CUT_OFF: "is longer than what is left of the batch",
    Fault.WRONG_SIZE: "is not as long as its length says",
    Fault.BAD_NUMBER: "holds a number that is cut off or too long",
    Fault.WRONG_DELTA: "has another offset delta than its place",
    Fault.BAD_HEADERS: "has headers that cannot be read",
    Fault.BYTES_LEFT: "would be the next, and the header counts no more",
}

Walked = int | tuple[int, int, list[int], list[int]]
"""The largest timestamp (-1 where no record has one) of records without a blemish. Else a `Fault`, the index
of the record it was met at, and the indexes of the first records without a key and of those out of time."""

Walk = Callable[[Buffer, int, int, int, int, bool], Walked]


def walk_in_python(
    records: Buffer, count: int, base_timestamp: int, earliest: int, latest: int, needs_keys: bool
) -> Walked:
    """`count` records. Times are the base's plus each record's delta, in 64 bits; `earliest` to `latest` are
    in time, and so is -1."""
    steps = YieldingWalk(records, count, base_timestamp, earliest, latest, needs_keys)
    for _ in steps:
        pass
    return steps.walked


@dataclass(slots=True)
class YieldingWalk:
    """The walk in Python; iterating takes it RECORDS_PER_CHUNK further, and `walked` is the answer at the
    end."""

    records: Buffer
    count: int
    base_timestamp: int
    earliest: int
    latest: int
    needs_keys: bool
    _max_timestamp: int = NO_TIMESTAMP
    _index: int = 0
    _fault: Fault = Fault.SOUND
    _keyless: list[int] = field(default_factory=list)
    _untimely: list[int] = field(default_factory=list)

    @property
    def walked(self) -> Walked:
        if self._fault or self._keyless or self._untimely:
            return int(self._fault), self._index, self._keyless, self._untimely
        return self._max_timestamp

    def __iter__(self) -> Iterator[None]:
        view, position, size = memoryview(self.records), 0, len(self.records)
        while self._index < self.count:
            length, position = self._length(view, position, size)
            if self._fault:
                return
            record = bytes(view[position : position + length])
            self._fault = self._look(record)
            if self._fault:
                return
            position += length
            self._index += 1
            if not self._index % RECORDS_PER_CHUNK:
                yield
        if position != size:
            self._fault = Fault.BYTES_LEFT

    def _length(self, view: memoryview, position: int, size: int) -> tuple[int, int]:
        try:
            length, after = read_varint(view, position)
        except (IndexError, WireError):
            self._fault = Fault.BAD_NUMBER
            return 0, position
        if length < 0:
            self._fault = Fault.WRONG_SIZE
        elif length > size - after:
            self._fault = Fault.CUT_OFF
        return length, after

    def _look(self, record: bytes) -> Fault:
        """A record without its length."""
        if not record:
            return Fault.WRONG_SIZE
        try:
            time_delta, position = read_varlong(record, 1)
            offset_delta, position = read_varint(record, position)
            key_length, position = read_varint(record, position)
            if offset_delta != self._index:
                return Fault.WRONG_DELTA
            position += max(key_length, 0)
            if position > len(record):
                return Fault.WRONG_SIZE
            value_length, position = read_varint(record, position)
            position += max(value_length, 0)
            if position > len(record):
                return Fault.WRONG_SIZE
            count, position = read_varint(record, position)
        except (IndexError, WireError):
            return Fault.BAD_NUMBER
        if count:
            position = _after_headers(record, position, count)
        if position != len(record):
            return Fault.BAD_HEADERS if position < 0 else Fault.WRONG_SIZE
        self._note(_in_64_bits(self.base_timestamp + time_delta), key_length < 0)
        return Fault.SOUND

    def _note(self, time: int, is_keyless: bool) -> None:
        if self.needs_keys and is_keyless:
            if len(self._keyless) < INDEXES_MAX:
                self._keyless.append(self._index)
        elif (
            not self.earliest <= time <= self.latest
            and time != NO_TIMESTAMP
            and len(self._untimely) < INDEXES_MAX
        ):
            self._untimely.append(self._index)
        self._max_timestamp = max(self._max_timestamp, time)


def _after_headers(record: bytes, position: int, count: int) -> int:
    """Where the headers end; -1 where they cannot be read."""
    size = len(record)
    if not 0 <= count <= (size - position) // 2:
        return -1
    try:
        for _ in range(count):
            length, position = read_varint(record, position)
            position += length
            if length < 0 or position > size:
                return -1
            length, position = read_varint(record, position)
            position += max(length, 0)
            if position > size:
                return -1
    except (IndexError, WireError):
        return -1
    return position


def _in_64_bits(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


IS_COMPILED: Final = _compiled is not None and _compiled.VERSION == _COMPILED_VERSION
walk: Walk = _compiled.walk if IS_COMPILED and _compiled is not None else walk_in_python
