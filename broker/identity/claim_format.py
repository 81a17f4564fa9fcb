"""Claims of ownership as the bucket keeps them: keys by series and number, and the bytes of one. Pure.

    {cluster}/owners/{series}/{number, 20 digits}        series: a node id, or `metadata`: the metadata log's
                                                         writer

    claim   76 B  "MROC" | version u8 | kind u8 | cluster length u16 | crc u32 | series i32 | number i64 |
                  incarnation 16 B |
                  incarnation before 16 B | metadata offset i64 | metadata epoch i32 | wall time i64
                  then the cluster's id. crc: the 8 bytes before it, then what follows it

docs/formats/bucket.md draws it. Numbers of a series begin at 1, have no gap while nobody was killed between
its record and its claim, and are put once, never changed, never deleted: a process that was halted for a long
time looks for the one that follows its own. Not here: who may put one (claims.py).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Corrupt

CLAIM_MAGIC: Final = b"MROC"
CLAIM_VERSION: Final = 1
_HEAD = struct.Struct(">4sBBH")
_BODY = struct.Struct(">iq16s16sqiq")
_CRC = struct.Struct(">I")
CLAIM_HEADER_BYTES: Final = _HEAD.size + _CRC.size + _BODY.size
CLAIM_BYTES_MAX: Final = CLAIM_HEADER_BYTES + 255
NOBODY: Final = bytes(16)


class ClaimKind(IntEnum):
    """Stored in the bucket: never renumber."""

    CLAIMED = 1  # its incarnation is at work, or was killed
    RELEASED = 2  # its incarnation ended in order, and put this as its last


class ClaimCorrupt(Corrupt):
    """An object under a claim's key is none that can be read. `is_later`: it names a later version of the
    format."""

    def __init__(self, key: str, reason: str, *, is_later: bool = False) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason
        self.is_later = is_later

    def __str__(self) -> str:
        return f"the claim {self.key} cannot be read: {self.reason}"


@dataclass(frozen=True, slots=True)
class OwnerClaim:
    """One claim. `metadata_end`: the committed metadata log ended there when it was made, under the quorum
    epoch `metadata_epoch`."""

    kind: ClaimKind
    cluster_id: str
    series: int
    number: int
    incarnation: bytes
    before: bytes  # the incarnation whose claim or release was the newest then; NOBODY: there was none
    metadata_end: int
    metadata_epoch: int
    wall_ms: int

    @property
    def key(self) -> str:
        return claim_key(self.cluster_id, self.series, self.number)

    @property
    def is_standing(self) -> bool:
        """Whoever made it did not end in order: it may be at work."""
        return self.kind is ClaimKind.CLAIMED


def series_name(series: int) -> str:
    return "metadata" if series == METADATA_SERIES else str(series)


def owners_prefix(cluster_id: str) -> str:
    return f"{cluster_id}/owners/"


def series_prefix(cluster_id: str, series: int) -> str:
    return f"{owners_prefix(cluster_id)}{series_name(series)}/"


def claim_key(cluster_id: str, series: int, number: int) -> str:
    return f"{series_prefix(cluster_id, series)}{number:020}"


def encode_claim(claim: OwnerClaim) -> bytes:
    cluster = claim.cluster_id.encode()
    assert len(cluster) <= CLAIM_BYTES_MAX - CLAIM_HEADER_BYTES, claim.cluster_id
    head = _HEAD.pack(CLAIM_MAGIC, CLAIM_VERSION, claim.kind, len(cluster))
    ends = claim.metadata_end, claim.metadata_epoch, claim.wall_ms
    body = _BODY.pack(claim.series, claim.number, claim.incarnation, claim.before, *ends) + cluster
    return head + _CRC.pack(crc32c(body, crc32c(head))) + body


def decode_claim(data: bytes, key: str) -> OwnerClaim:
    """Raises ClaimCorrupt, also for a claim of another key."""
    if len(data) < CLAIM_HEADER_BYTES:
        raise ClaimCorrupt(key, f"{len(data)} bytes are too few")
    magic, version, kind, length = _HEAD.unpack_from(data)
    if magic != CLAIM_MAGIC:
        raise ClaimCorrupt(key, "its magic is missing")
    if version != CLAIM_VERSION:
        reason = f"its version {version} is unknown: start the millrace that wrote it, or a later one"
        raise ClaimCorrupt(key, reason, is_later=True)
    body = data[_HEAD.size + _CRC.size :]
    if crc32c(body, crc32c(data[: _HEAD.size])) != _CRC.unpack_from(data, _HEAD.size)[0]:
        raise ClaimCorrupt(key, "its checksum differs")
    if len(data) != CLAIM_HEADER_BYTES + length or kind not in tuple(ClaimKind):
        raise ClaimCorrupt(key, f"{len(data)} bytes of kind {kind} with a cluster's id of {length}")
    series, number, incarnation, before, end, epoch, wall_ms = _BODY.unpack_from(body)
    cluster = body[_BODY.size :].decode(errors="replace")
    claim = OwnerClaim(ClaimKind(kind), cluster, series, number, incarnation, before, end, epoch, wall_ms)
    if claim.key != key:
        raise ClaimCorrupt(key, f"it is the claim {claim.key}")
    return claim
