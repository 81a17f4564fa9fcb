"""RecordFolder: the records of a batch folded into a delta, those of tables that grow with the partitions
many at a time. Pure.

    values of a batch -> runs of records of one kind -> columns, or states that are known -> the delta

A start reads seven records a partition, and a hundred thousand partitions are usual: each of them as an
object of its own, decoded field by field, took 35 us a partition. So of a run of StreamRecords, which have a
fixed length, the columns are unpacked at once; of PartitionRecords and StreamHoldersRecords all but the name
is looked up among those that were met before, for a cluster's partitions have few different states. What is
found equal is one object, which the image then shares.

Not here: what a record does (delta.py, tables/), the envelope of one record (records.py). Kept true: the
delta is the one that `apply` of each record in its turn makes; what is not as this build writes it is read
record by record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter, le
from typing import Any, Final, TypeVar, cast

from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.records import (
    FRAME_VERSION,
    PRIVATE_PREFIX,
    WRITTEN_VERSIONS,
    ValueReader,
)
from millrace.kraft.tables.objects_edit import unpacked_ranges
from millrace.kraft.tables.ranges import StreamRanges
from millrace.kraft.tables.streams import OPEN, ROLES, StreamState
from millrace.kraft.tables.topics import PartitionRow, PartitionState, partition_state
from millrace.protocol.metadata_records import PartitionRecord
from millrace.protocol.primitives import uvarint
from millrace.protocol.stream_records import StreamHoldersRecord, StreamRecord
from millrace.s3stream.ids import StreamId

RUN_MIN: Final = 16  # shorter runs are folded record by record
KNOWN_MAX: Final = 1_024  # states, and ranges, that are kept to be found again
KNOWN_BYTES_MAX: Final = 128  # of what a longer record says nothing is kept

LEAD_BYTES: Final = 6  # what tells the kinds apart
STREAM_LEAD: Final = PRIVATE_PREFIX + uvarint(StreamRecord.KEY)
HOLDERS_LEAD: Final = PRIVATE_PREFIX + uvarint(StreamHoldersRecord.KEY)
PARTITION_LEAD: Final = (
    uvarint(FRAME_VERSION) + uvarint(PartitionRecord.KEY) + uvarint(WRITTEN_VERSIONS[PartitionRecord])
)
assert len(STREAM_LEAD) == len(HOLDERS_LEAD) == LEAD_BYTES
# Behind the lead: size and version, then the fields in their order, and no tags.
STREAM_ROW: Final = struct.Struct(f">{LEAD_BYTES}xBBq16sibqibqqB")
STREAM_SIZE: Final = STREAM_ROW.size - LEAD_BYTES - 1  # counts the version
PARTITION_HEAD: Final = struct.Struct(f">{len(PARTITION_LEAD)}xi16s")
HOLDERS_HEAD: Final = struct.Struct(f">{LEAD_BYTES}xBBq")
ONE_BYTE_MAX: Final = 0x7F  # a size up to it takes one

T = TypeVar("T")
Run = Sequence[bytes]
# As StreamState(*columns), without a call in Python for each of them.
make_stream = cast("Callable[[tuple[Any, ...]], StreamState]", partial(tuple.__new__, StreamState))
lead_of = cast("Callable[[bytes], bytes]", itemgetter(slice(LEAD_BYTES)))


class RecordFolder:
    """For one reader of a log or snapshot, batch after batch."""

    def __init__(self) -> None:
        self._reader = ValueReader()
        self._states: dict[bytes, PartitionState] = {}  # by what of a record is behind its head
        self._ranges: dict[bytes, StreamRanges] = {}

    def fold(self, delta: MetadataDelta, values: Run) -> None:
        """Raises UnknownRecord for a record of a later build, WireError for bytes that are no record; what is
        before it in the batch may be applied then."""
        for lead, alike in groupby(values, lead_of):
            run = list(alike)
            if len(run) < RUN_MIN or not self._fold_run(delta, lead, run):
                delta.apply_all(map(self._reader.read, run))

    def _fold_run(self, delta: MetadataDelta, lead: bytes, run: Run) -> bool:
        """False, and nothing is applied, for what has to be read record by record."""
        if lead == STREAM_LEAD:
            return fold_streams(delta, run)
        if lead == HOLDERS_LEAD:
            return self._fold_holders(delta, run)
        if lead.startswith(PARTITION_LEAD):
            return self._fold_partitions(delta, run)
        return False

    def _fold_partitions(self, delta: MetadataDelta, run: Run) -> bool:
        head_bytes, known = PARTITION_HEAD.size, self._states
        if min(map(len, run)) <= head_bytes:
            return False
        rows: list[PartitionRow] = []
        for value in run:
            index, topic_id = PARTITION_HEAD.unpack_from(value)
            rest = value[head_bytes:]
            state = known.get(rest)
            if state is None:
                state = partition_state(self._reader.read(value))
                keep(known, rest, state)
            rows.append((topic_id, index, state))
        delta.put_partitions(rows)
        return True

    def _fold_holders(self, delta: MetadataDelta, run: Run) -> bool:
        head_bytes, known = HOLDERS_HEAD.size, self._ranges
        if min(map(len, run)) <= head_bytes:
            return False
        rows: list[tuple[StreamId, StreamRanges]] = []
        for value in run:
            size, version, stream_id = HOLDERS_HEAD.unpack_from(value)
            if size > ONE_BYTE_MAX or version:
                return False
            rest = value[head_bytes:]
            ranges = known.get(rest)
            if ranges is None:
                ranges = unpacked_ranges(self._reader.read(value).holders)
                keep(known, rest, ranges)
            rows.append((stream_id, ranges))
        delta.put_ranges(rows)
        return True


def fold_streams(delta: MetadataDelta, run: Run) -> bool:
    """As `RecordFolder._fold_run`."""
    if set(map(len, run)) != {STREAM_ROW.size}:
        return False
    columns = tuple(zip(*STREAM_ROW.iter_unpack(b"".join(run)), strict=True))
    sizes, versions, ids, topic_ids, indexes, roles, epochs, nodes, states, starts, ends, tags = columns
    if set(sizes) != {STREAM_SIZE} or any(versions) or any(tags):
        return False
    assert all(map(le, starts, ends)), "a stream ends before its start"
    shared = {topic_id: topic_id for topic_id in topic_ids}
    streams = zip(
        ids,
        map(shared.__getitem__, topic_ids),
        indexes,
        map(ROLES.__getitem__, roles),
        epochs,
        nodes,
        map(OPEN.__eq__, states),
        starts,
        ends,
        strict=True,
    )
    delta.put_streams(list(map(make_stream, streams)))
    return True


def keep(known: dict[bytes, T], said: bytes, found: T) -> None:
    """To be found by the records that say the same."""
    if len(said) > KNOWN_BYTES_MAX:
        return
    if len(known) >= KNOWN_MAX:
        known.clear()
    known[said] = found
