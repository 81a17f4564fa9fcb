"""What a cluster's metadata looks like in the bucket: keys, and the frame around each snapshot and piece of
the log. Pure.

    {cluster}/metadata/log/{end}-{epoch}-{base}          a piece: the committed batches of [base, end), the
                                                         last of `epoch`
    {cluster}/metadata/snapshots/{end}-{epoch}           a snapshot of everything below `end`
    {cluster}/metadata/newest                            which snapshot is the newest: a hint, which only
                                                         moves up

Names sort by the offset where they end, so that what lies behind an offset is one short listing. They hold no
node's id and no path: any node may write on, any may restore. docs/formats/metadata_bucket.md draws the
bytes. Not here: requests (reader.py, writer.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

from millrace.kraft.log.log_store import SnapshotId
from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import Corrupt, in_words

Buffer = bytes | bytearray | memoryview
MAGIC: Final = b"MILLMETA"
VERSION: Final = 1
HEADER: Final = Struct(">8sHHqqiqQ")  # magic, version, kind, base, end, epoch, time ms, payload bytes
SUM: Final = Struct(">I")
FRAME_BYTES: Final = HEADER.size + SUM.size
PIECE_NAME: Final = re.compile(r"(\d{20})-(\d{10})-(\d{20})")
SNAPSHOT_NAME: Final = re.compile(r"(\d{20})-(\d{10})")


class Kind(IntEnum):
    """Stored: never renumber."""

    PIECE = 1
    SNAPSHOT = 2


class BackupCorrupt(Corrupt):
    """An object under metadata/ is not what was put there. Arguments: key, why."""

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


@dataclass(frozen=True, slots=True, order=True)
class PieceName:
    """Committed batches of [base, end); `epoch` is that of the last."""

    end: int
    epoch: int
    base: int


@dataclass(frozen=True, slots=True)
class Framed:
    """A snapshot or piece, taken out of its frame. `time_ms`: when its newest record was decided on, or its
    snapshot made, and no later than the time that was confirmed when it was put."""

    kind: Kind
    base: int
    end: int
    epoch: int
    time_ms: int
    payload: memoryview


def log_prefix(cluster_id: str) -> str:
    return f"{cluster_id}/metadata/log/"


def snapshots_prefix(cluster_id: str) -> str:
    return f"{cluster_id}/metadata/snapshots/"


def newest_key(cluster_id: str) -> str:
    return f"{cluster_id}/metadata/newest"


def piece_key(cluster_id: str, name: PieceName) -> str:
    return f"{log_prefix(cluster_id)}{name.end:020}-{name.epoch:010}-{name.base:020}"


def pieces_after(cluster_id: str, end: int) -> str:
    """Keys of pieces that end above `end` sort behind this one, and no others do."""
    return f"{log_prefix(cluster_id)}{end:020}-~"


def snapshot_key(cluster_id: str, snapshot: SnapshotId) -> str:
    return f"{snapshots_prefix(cluster_id)}{snapshot.end:020}-{snapshot.epoch:010}"


def parse_piece_key(cluster_id: str, key: str) -> PieceName | None:
    """None for a key that `piece_key` does not make."""
    found = PIECE_NAME.fullmatch(key.removeprefix(log_prefix(cluster_id)))
    return PieceName(int(found[1]), int(found[2]), int(found[3])) if found else None


def parse_snapshot_key(cluster_id: str, key: str) -> SnapshotId | None:
    found = SNAPSHOT_NAME.fullmatch(key.removeprefix(snapshots_prefix(cluster_id)))
    return SnapshotId(int(found[1]), int(found[2])) if found else None


def frame(
    kind: Kind, base: int, end: int, epoch: int, time_ms: int, payload: Sequence[Buffer]
) -> list[Buffer]:
    """The payload behind its header: equal arguments give equal bytes, so that a put can be repeated."""
    header = HEADER.pack(MAGIC, VERSION, kind, base, end, epoch, time_ms, sum(map(len, payload)))
    total = crc32c(header)
    for part in payload:
        total = crc32c(part, total)
    return [header, SUM.pack(total), *payload]


def unframe(key: str, data: bytes) -> Framed:
    """Raises BackupCorrupt for what is not whole, not ours, or of a later build."""
    if len(data) < FRAME_BYTES:
        raise BackupCorrupt(key, f"{len(data)} bytes are no metadata object")
    magic, version, kind, base, end, epoch, time_ms, payload_bytes = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise BackupCorrupt(key, "its first bytes are not those of a metadata object")
    if version != VERSION:
        raise BackupCorrupt(key, f"version {version} is of a later build of millrace")
    view = memoryview(data)[FRAME_BYTES:]
    if len(view) != payload_bytes:
        raise BackupCorrupt(key, f"{len(view)} bytes of {payload_bytes}")
    (total,) = SUM.unpack_from(data, HEADER.size)
    if crc32c(view, crc32c(data[: HEADER.size])) != total:
        raise BackupCorrupt(key, "a wrong checksum")
    if kind not in (Kind.PIECE, Kind.SNAPSHOT) or not 0 <= base <= end:
        raise BackupCorrupt(key, f"kind {kind} of offsets {base} to {end}")
    return Framed(Kind(kind), base, end, epoch, time_ms, view)


def encode_newest(snapshot: SnapshotId) -> bytes:
    return json.dumps({"version": 1, "end": snapshot.end, "epoch": snapshot.epoch}).encode()


def decode_newest(key: str, data: bytes) -> SnapshotId:
    """Raises BackupCorrupt where the object names no snapshot."""
    try:
        found = json.loads(data)
        return SnapshotId(int(found["end"]), int(found["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BackupCorrupt(key, f"it names no snapshot: {in_words(error)}") from error
