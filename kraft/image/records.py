"""Metadata records as bytes: the envelope around each, and the batches they stand in. Pure.

    value    := frame version (uvarint 1) | key (uvarint) | record version (uvarint) | body
    ours     := the value of a NoOpRecord (key 20, version 0), whose tagged section holds one field: its tag
             is our
                record's key (501 and up), its bytes are our record's version (uvarint) and body
    batch    := Kafka's record batch v2, uncompressed, records without key and headers; offsets are the log's

A key of our own would do, but for Kafka's tools: its metadata shell steps over a key it does not know, then
waits for ever for the offsets it did not count. A tagged field that it does not know it keeps in peace.

The versions written are those of metadata.version 30 (4.3-IV0); any declared version is read. Not here:
control records (voter_records.py), files (log_store.py), what records do (delta.py). Kept true: what is
written can be read by this build and by Kafka's tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from millrace.kraft.errors import UnknownRecord
from millrace.protocol.batch_build import build_batch_yielding
from millrace.protocol.batches import HEADER_BYTES, BatchHeader
from millrace.protocol.compile import decoder, encoder
from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import WireError
from millrace.protocol.metadata_records import (
    METADATA_RECORDS,
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from millrace.protocol.primitives import Buffer, read_uvarint, read_varint, uvarint
from millrace.protocol.records import Record
from millrace.protocol.stream_records import STREAM_RECORDS
from millrace.runtime.scheduling.yielding import Yielding, run_to_end

FRAME_VERSION: Final = 1
RECORDS_PER_CHUNK: Final = 500  # between two pauses: two or three milliseconds
NO_KEY: Final = 0x01  # a varint -1
ALIKE_MIN: Final = 16  # records are compared where so many are left, and no more often than after so many
# Of a byte of a number whether another follows.
CONTINUES: Final = bytes(byte >> 7 for byte in range(256))
PRIVATE_KEY_MIN: Final = 501
NO_OP_PREFIX: Final = uvarint(FRAME_VERSION) + uvarint(NoOpRecord.KEY) + uvarint(0)
PRIVATE_PREFIX: Final = NO_OP_PREFIX + uvarint(1)  # with one tagged field
RECORDS_BY_KEY: Final[dict[int, Any]] = {cls.KEY: cls for cls in (*METADATA_RECORDS, *STREAM_RECORDS)}  # type: ignore[attr-defined]
WRITTEN_VERSIONS: Final[dict[type, int]] = {
    RegisterBrokerRecord: 4,
    PartitionRecord: 1,
    PartitionChangeRecord: 1,
    BrokerRegistrationChangeRecord: 3,
}  # all others: 0


@dataclass(slots=True)
class Proposal:
    """Encoded records of one command, and when it was decided."""

    values: list[bytes]
    time_ms: int

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.values))


class ValueWriter:
    """Encodes records; keeps each class's prefix and compiled encoder. Raises ValueError for what cannot be
    encoded."""

    def __init__(self) -> None:
        self._known: dict[type, tuple[bytes, Callable[[Any], bytes], bool]] = {}

    def write(self, record: Any) -> bytes:
        known = self._known.get(type(record))
        if known is None:
            known = self._known[type(record)] = self._prepare(type(record))
        prefix, encode, is_private = known
        body = encode(record)
        return prefix + uvarint(len(body) + 1) + b"\x00" + body if is_private else prefix + body

    def write_all(self, records: Iterable[Any]) -> list[bytes]:
        return [self.write(record) for record in records]

    def write_yielding(self, records: Sequence[Any]) -> Yielding[list[bytes]]:
        values: list[bytes] = []
        for start in range(0, len(records), RECORDS_PER_CHUNK):
            if start:
                yield
            values += self.write_all(records[start : start + RECORDS_PER_CHUNK])
        return values

    def _prepare(self, cls: Any) -> tuple[bytes, Callable[[Any], bytes], bool]:
        version = WRITTEN_VERSIONS.get(cls, 0)
        if cls.KEY >= PRIVATE_KEY_MIN:
            assert version == 0, cls
            return NO_OP_PREFIX + uvarint(1) + uvarint(cls.KEY), encoder(cls, 0), True
        return uvarint(FRAME_VERSION) + uvarint(cls.KEY) + uvarint(version), encoder(cls, version), False


class ValueReader:
    """Decodes record values; the inverse of ValueWriter, for every declared version."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Callable[[Buffer, int], tuple[Any, int]]] = {}

    def read(self, value: bytes) -> Any:
        """Raises UnknownRecord for a type or version that is not ours to read, WireError for bytes that are
        no record."""
        try:
            return self._read_tagged(value) if value.startswith(NO_OP_PREFIX) else self._read_plain(value)
        except IndexError:
            raise WireError(f"metadata record of {len(value)} bytes is cut off") from None

    def _read_plain(self, value: bytes) -> Any:
        frame_version, pos = read_uvarint(value, 0)
        key, pos = read_uvarint(value, pos)
        version, pos = read_uvarint(value, pos)
        if frame_version != FRAME_VERSION or key >= PRIVATE_KEY_MIN:
            raise UnknownRecord(f"{key} version {version} in frame {frame_version}")
        return self._decoder(key, version)(value, pos)[0]

    def _read_tagged(self, value: bytes) -> Any:
        """One of ours, or a NoOpRecord; tags below ours are Kafka's and say nothing to us. As this build
        writes them, a tag takes two bytes, a size one or two, and a version one: a restart reads hundreds of
        thousands of them."""
        pos = len(PRIVATE_PREFIX)
        if value.startswith(PRIVATE_PREFIX) and value[pos] > 0x7F and value[pos + 1] < 0x80:
            tag = value[pos] & 0x7F | value[pos + 1] << 7
            pos += 3 if value[pos + 2] < 0x80 else 4
            if tag >= PRIVATE_KEY_MIN and value[pos - 1] < 0x80 and value[pos] < 0x80:
                return self._decoder(tag, value[pos])(value, pos + 1)[0]
        return self._read_any_tagged(value)

    def _read_any_tagged(self, value: bytes) -> Any:
        count, pos = read_uvarint(value, len(NO_OP_PREFIX))
        for _ in range(count):
            tag, pos = read_uvarint(value, pos)
            size_bytes, pos = read_uvarint(value, pos)
            if tag >= PRIVATE_KEY_MIN:
                version, pos = read_uvarint(value, pos)
                return self._decoder(tag, version)(value, pos)[0]
            pos += size_bytes
        return NoOpRecord()

    def _decoder(self, key: int, version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
        known = self._known.get((key, version))
        if known is None:
            cls = RECORDS_BY_KEY.get(key)
            if cls is None or version not in cls.VERSIONS:
                raise UnknownRecord(f"{key} version {version}")
            known = self._known[key, version] = decoder(cls, version)
        return known


def encode_batch(proposals: Sequence[Proposal], base_offset: int, epoch: int) -> bytes:
    """As `encode_batch_yielding`, at once."""
    return run_to_end(encode_batch_yielding(proposals, base_offset, epoch))


def encode_batch_yielding(proposals: Sequence[Proposal], base_offset: int, epoch: int) -> Yielding[bytes]:
    """One batch of everything proposed, in order. A small one has no pause. All of its records have the time
    of the newest command: Kafka's controllers end at one whose timestamp delta is not 0."""
    time_ms = max(proposal.time_ms for proposal in proposals)
    records = [Record(None, value, time_ms) for proposal in proposals for value in proposal.values]
    steps = build_batch_yielding(
        records, base_offset=base_offset, leader_epoch=epoch, count_per_chunk=RECORDS_PER_CHUNK
    )
    return (yield from steps)


def decode_values(view: memoryview) -> list[bytes]:
    """The values of a batch of metadata records that is known to be intact.

    Walks the records by hand: a restart reads hundreds of thousands of them, and needs nothing of them but
    the value. Those that follow one another and are framed alike are cut out together. Raises WireError for a
    batch that is compressed, has keys, or that its records do not fill."""
    header = BatchHeader(view)
    payload = bytes(view[HEADER_BYTES : header.size_bytes])
    if header.codec:
        raise WireError(f"metadata batch at offset {header.base_offset} is compressed")
    values: list[bytes] = []
    pos = 0
    left = header.record_count
    next_look = left  # how many are left when those that follow are compared again
    try:
        while left:
            first = pos
            length, pos = read_varint(payload, pos)
            end = pos + length
            deltas = pos = pos + 1  # behind the attributes
            for _delta in range(2):  # timestamp, offset
                while payload[pos] & 0x80:
                    pos += 1
                pos += 1
            key = pos
            if payload[key] != NO_KEY:
                raise WireError(f"metadata record with a key in the batch at offset {header.base_offset}")
            length, pos = read_varint(payload, key + 1)
            if length < 0 or pos + length >= end:  # the count of headers still follows
                raise IndexError
            left -= 1
            values.append(payload[pos : pos + length])
            if ALIKE_MIN <= left <= next_look:
                alike = count_alike(payload, first, (deltas, key), pos, end, left)
                next_look = left - max(alike, ALIKE_MIN)
                left -= alike
                size = end - first
                starts = range(pos + size, pos + size * (alike + 1), size)
                values += [payload[start : start + length] for start in starts]
                end += size * alike
            pos = end
        if pos != len(payload):
            raise IndexError
    except IndexError:
        raise WireError(f"records of the batch at offset {header.base_offset} do not fill it") from None
    return values


def count_alike(
    payload: bytes, first: int, deltas: tuple[int, int], value: int, end: int, count_max: int
) -> int:
    """How many of the records behind the one of [first, end) are as long, and are framed as it is up to the
    value, which begins at `value`; but for their `deltas` (start and end of its own), whose numbers differ
    and have as many bytes. Compared column by column, a byte of each record: so a thousand are a few
    steps."""
    size = end - first
    count = min(count_max, (len(payload) - end) // size)
    for place in range(first, value):
        column = payload[place : place + size * count + 1 : size]
        if deltas[0] <= place < deltas[1]:
            column = column.translate(CONTINUES)
        count = min(count, len(column) - len(column.lstrip(column[:1])) - 1)
    return max(count, 0)


def first_batch_fault(view: Buffer, position: int, expected_offset: int) -> str | None:
    """Why no intact batch of the metadata log stands at `position`, by its header alone; None when one
    may."""
    if len(view) - position < HEADER_BYTES:
        return "cut off"
    header = BatchHeader(view, position)
    if header.magic != 2:
        return f"magic {header.magic}, not 2"
    if header.base_offset != expected_offset:
        return f"base offset {header.base_offset}, not {expected_offset}"
    if (
        header.size_bytes < HEADER_BYTES
        or header.record_count < 1
        or header.last_offset_delta != header.record_count - 1
    ):
        return f"a header of {header.size_bytes} bytes and {header.record_count} records"
    return None
