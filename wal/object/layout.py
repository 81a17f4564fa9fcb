"""The bytes and names of an object WAL: the header every object begins with, and keys by epoch and slot.
Pure.

    {cluster id}/wal/{node id}/{epoch, 20 digits}/{slot, 20 digits}

    object    | header, 200 bytes | record | record | ...                     nothing behind the last record
    mark      | header |                                                      no records: carries a trim, or a
                                                                              closing
    seal      | header | 8 or 16 zeros |                                      a newer owner's, where an older
                                                                              one would write next

Each owner writes to the slots of its own epoch, 0, 1, 2, ... without a gap. A *position* counts bytes of the
endless log, headers included: an object begins where the one before it in the log ends, whoever wrote that.
Seals take no room in it. A seal's size is one that no other object can have, so that a listing alone tells
seals from records. Numbers are big-endian. docs/formats/object_wal.md draws every field and says what
recovery believes.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.wal.errors import WalCorrupt, WalMismatch
from millrace.wal.identity import NO_MARK, MetadataMark

VERSION = 1  # of a header that names no metadata
VERSION_METADATA = 2  # of one that does; in a cluster of millrace.version 1 or above
MAGIC = b"MROBJWAL"
# magic, version, kind, fence, node, epoch, token, log epoch, slot, position, body, records, confirmed slot,
# trim, head (epoch, slot, position), link (epoch, slot end), cluster
_HEADER = struct.Struct(">8sHBBiq8sqqqqQqqqqqqq64s")
# As before up to the position; body, records, slots before it that are not confirmed, quorum epoch, metadata
# offset; then as before from the trim on
_HEADER_METADATA = struct.Struct(">8sHBBiq8sqqqIIIiqqqqqqq64s")
assert _HEADER_METADATA.size == _HEADER.size, (
    "positions count headers, and a listing tells seals by their size"
)
_CRC = struct.Struct(">I")
CLUSTER_ID_BYTES_MAX = 64
HEADER_BYTES = 200
assert _HEADER.size + _CRC.size == HEADER_BYTES - 4
_PADDING = bytes(4)

SEAL_BYTES = HEADER_BYTES + 8
SEAL_OF_CLOSED_BYTES = HEADER_BYTES + 16  # below the least that a record takes
NUMBER_DIGITS = 20
NO_EPOCH = -1


class Kind(IntEnum):
    RECORDS = 1  # or none: a mark
    CLOSING = 2  # the last object of an owner that closed in order: it will never write again
    SEAL = 3
    ROOT = 4  # names the first owner
    CLAIM = 5  # an owner's word that it has come, in stores without conditional writes


class FenceKind(IntEnum):
    CONDITIONAL = 1
    RESERVATION = 2


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One slot of one epoch."""

    epoch: int
    slot: int


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an owner knew when a write began. True for ever: these things only grow."""

    confirmed_slot: int  # of its own epoch, all below were durable and its own
    trim: int  # a position
    head: Place  # the first object that holds something above the trim, or this one
    head_position: int
    # the highest committed metadata offset that it knew; without one the header is of version 1
    mark: MetadataMark = NO_MARK


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    kind: Kind
    fence: FenceKind
    cluster_id: str
    node_id: int
    epoch: int  # the writer's
    token: bytes  # the writer's own 8 bytes: no two openings share them
    place: Place  # where it was written; a seal's epoch is not its writer's
    position: int
    body_bytes: int
    record_count: int
    stamp: Stamp
    link: (
        Place | None
    )  # the epoch before the writer's in the log, and how many of its slots count; None when there is none

    @property
    def end(self) -> int:
        return self.position + HEADER_BYTES + self.body_bytes

    def encode(self) -> bytes:
        stamp, link = self.stamp, self.link or Place(NO_EPOCH, 0)
        if stamp.mark == NO_MARK:
            form, version = _HEADER, VERSION
            middle: tuple[int, ...] = self.body_bytes, self.record_count, stamp.confirmed_slot
        else:
            form, version = _HEADER_METADATA, VERSION_METADATA
            pending_count = self.place.slot - stamp.confirmed_slot
            middle = self.body_bytes, self.record_count, pending_count, stamp.mark.epoch, stamp.mark.offset
        body = form.pack(
            MAGIC, version, self.kind, self.fence, self.node_id, self.epoch, self.token, self.place.epoch,
            self.place.slot,
            self.position, *middle, stamp.trim, stamp.head.epoch, stamp.head.slot, stamp.head_position,
            link.epoch, link.slot,
            encode_cluster_id(self.cluster_id),
        )  # fmt: skip
        return body + _CRC.pack(crc32c(body)) + _PADDING


def encode_cluster_id(cluster_id: str) -> bytes:
    """Raises WalMismatch for an id that has no room in the layout."""
    encoded = cluster_id.encode()
    if len(encoded) > CLUSTER_ID_BYTES_MAX:
        raise WalMismatch("cluster", f"an id of at most {CLUSTER_ID_BYTES_MAX} bytes", cluster_id)
    return encoded


def decode_header(data: bytes | memoryview, position: int) -> ObjectHeader:
    """Raises WalCorrupt, naming `position`, where the header is due; WalMismatch for a version that is not
    ours."""
    if len(data) < HEADER_BYTES or bytes(data[:8]) != MAGIC:
        raise WalCorrupt(position, "the object has no header")
    if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(bytes(data[: _HEADER.size])):
        raise WalCorrupt(position, "the object's header does not pass its checksum")
    version = int.from_bytes(data[8:10], "big")
    if version not in (VERSION, VERSION_METADATA):
        raise WalMismatch("version", VERSION_METADATA, version)
    form = _HEADER if version == VERSION else _HEADER_METADATA
    (
        _, _, kind, fence, node_id, epoch, token, log_epoch, slot, stored_position, body_bytes, record_count,
        *middle,
        trim, head_epoch, head_slot, head_position, link_epoch, link_slot, cluster_id,
    ) = form.unpack_from(data)  # fmt: skip
    mark = NO_MARK if version == VERSION else MetadataMark(middle[2], middle[1])
    confirmed_slot = middle[0] if version == VERSION else slot - middle[0]
    try:
        stamp = Stamp(confirmed_slot, trim, Place(head_epoch, head_slot), head_position, mark)
        link = None if link_epoch == NO_EPOCH else Place(link_epoch, link_slot)
        return ObjectHeader(
            Kind(kind), FenceKind(fence), cluster_id.rstrip(b"\0").decode(), node_id, epoch, token,
            Place(log_epoch, slot), stored_position, body_bytes, record_count, stamp, link,
        )  # fmt: skip
    except ValueError as error:
        raise WalCorrupt(position, f"the object's header is of no known kind: {error}") from None


def seal_bytes(header: ObjectHeader, *, is_of_closed: bool) -> bytes:
    size_bytes = SEAL_OF_CLOSED_BYTES if is_of_closed else SEAL_BYTES
    return header.encode() + bytes(size_bytes - HEADER_BYTES)


def is_seal_size(size_bytes: int) -> bool:
    return size_bytes in (SEAL_BYTES, SEAL_OF_CLOSED_BYTES)


def log_prefix(cluster_id: str, node_id: int) -> str:
    return f"{cluster_id}/wal/{node_id}/"


def object_key(prefix: str, place: Place) -> str:
    assert place.epoch >= 0, place
    assert place.slot >= 0, place
    return f"{prefix}{place.epoch:0{NUMBER_DIGITS}}/{place.slot:0{NUMBER_DIGITS}}"


def parse_key(prefix: str, key: str) -> Place | None:
    """None for a key that `object_key` would not have made."""
    epoch, _, slot = key[len(prefix) :].partition("/")
    if not (epoch.isdecimal() and slot.isdecimal()):
        return None
    place = Place(int(epoch), int(slot))
    return place if object_key(prefix, place) == key else None


def root_key(node_id: int) -> str:
    """Stands outside the cluster's own keys, so that another cluster that is given the same place is told."""
    return f"millrace-wal-{node_id}"


def claim_key(prefix: str, epoch: int) -> str:
    return f"{prefix}{epoch:0{NUMBER_DIGITS}}/claim"


def parse_claim(prefix: str, key: str) -> int | None:
    """The epoch of a claim; None for any other key."""
    epoch = parse_epoch(prefix, key)
    return epoch if epoch is not None and claim_key(prefix, epoch) == key else None


def parse_epoch(prefix: str, key: str) -> int | None:
    """The epoch that a key belongs to."""
    epoch = key[len(prefix) :].partition("/")[0]
    return int(epoch) if epoch.isdecimal() and len(epoch) == NUMBER_DIGITS else None


def end_of_epoch(prefix: str, epoch: int) -> str:
    """Above every key of the epoch and of those before, below every later one's."""
    return f"{prefix}{epoch:0{NUMBER_DIGITS}}/~"
