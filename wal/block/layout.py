"""The bytes of a block WAL: the device header in two copies, the ring's geometry, the header of a block.
Pure.

    file      | header copy 0 | header copy 1 | ring ...                                       |
              0             4096            8192                                       capacity

    claimed   | header copy 0 | header copy 1 | claim | ring ...                               |
              0             4096            8192    12288                              capacity

    block     | block header, 64 bytes | record | record | ... | zeros up to a multiple of 4096 |

A *position* is endless; its place in the file is the ring's start + position mod ring_bytes. Blocks start at
multiples of 4096 and never cross the ring's end. Each names the end of the one before it: its own position,
or, where the rest of a lap was too short for it, the place at which that rest began. Numbers are big-endian.
docs/formats/block_wal.md draws every field and says what recovery believes.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk.lock_keeper import ID_BYTES, UNTOLD, LockKeeper
from millrace.wal.errors import WalMismatch
from millrace.wal.identity import NO_MARK, NO_WAL_ID, WAL_ID_BYTES, MetadataMark

BLOCK_BYTES = 4096
RING_START = 2 * BLOCK_BYTES
VERSION = 1  # of a block header, and of a device header without an identity
VERSION_IDENTITY = 2  # of a device header with one
VERSION_CLAIMED = 3  # of one with an identity, whose log is fenced by claims (claim.py)
CLAIM_PLACE = RING_START  # in a log that is fenced by claims, whose ring begins behind it

DEVICE_MAGIC = b"MRBLKWAL"
_DEVICE = struct.Struct(">8sHHi11q64s16q")
_IDENTITY = struct.Struct(
    f">{WAL_ID_BYTES}sqq"
)  # behind `_DEVICE`: WAL id, committed metadata offset, its quorum epoch
_REIGN_FIELDS_START = 16  # among the fields of `_DEVICE`
REIGNS_MAX = 8
_CRC = struct.Struct(">I")
_HOLDER = struct.Struct(f">4x{ID_BYTES}s{ID_BYTES}s16s")  # behind the identity's sum; its own follows it
CLUSTER_ID_BYTES_MAX = 64

BLOCK_MAGIC = 0x4D52424B
BLOCK_MAGIC_BYTES = BLOCK_MAGIC.to_bytes(4, "big")
_BLOCK = struct.Struct(">IHHqqqqII12x")
BLOCK_HEADER_BYTES = _BLOCK.size + _CRC.size
assert BLOCK_HEADER_BYTES == 64
_HELD_BYTES = _DEVICE.size + _IDENTITY.size + _CRC.size
assert _HELD_BYTES + _HOLDER.size + _CRC.size < 512, (
    "one sector, so that a copy is written whole or not at all"
)


def align_up(position: int) -> int:
    return (position + BLOCK_BYTES - 1) & -BLOCK_BYTES


def align_down(position: int) -> int:
    return position & -BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where positions lie in a ring of this many bytes, which begins at byte `start`."""

    ring_bytes: int
    start: int = RING_START

    @staticmethod
    def of(capacity_bytes: int, *, is_claimed: bool = False) -> Geometry:
        start = CLAIM_PLACE + BLOCK_BYTES if is_claimed else RING_START
        return Geometry(align_down(capacity_bytes - start), start)

    def physical(self, position: int) -> int:
        return self.start + position % self.ring_bytes

    def lap_end(self, position: int) -> int:
        """The first position after the lap that `position` lies in."""
        return position - position % self.ring_bytes + self.ring_bytes


@dataclass(frozen=True, slots=True)
class Reign:
    """Where an owner began to write. What it accepted ends where the next one began."""

    epoch: int
    start: int


_NO_REIGN = Reign(-1, 0)


@dataclass(frozen=True, slots=True)
class DeviceHeader:
    cluster_id: str
    node_id: int
    epoch: int  # the last owner that recovered the log to its end
    # where that owner began: below it lies what it accepted, at or above it only its own blocks count
    epoch_start: int
    capacity_bytes: int
    trim: int  # records that end at or below it are forgotten
    head: int  # where recovery begins: the end of the last block that is wholly forgotten
    confirmed: int  # a position known to be durable when this copy was written
    block_bytes_max: int  # no block of this epoch is larger
    window_bytes: (
        int  # writes under way never reach further than this beyond what is confirmed, but for a single one
    )
    filled_bytes: int  # this much of the ring was written at least once
    closed_end: int  # the end of the log when it was closed in order; -1 while it is in use
    sequence: int  # grows with each write of a copy; the higher of two sound copies holds
    # owners before this one whose blocks may be needed still, oldest first, REIGNS_MAX at most
    earlier: tuple[Reign, ...] = ()
    wal_id: bytes = NO_WAL_ID  # drawn at format; without one the copy is written in version 1
    # the highest committed metadata offset that the owner knew when it wrote this copy
    mark: MetadataMark = NO_MARK
    # it is fenced by claims: whoever owns it reads the claim after each write. Only with a `wal_id`
    is_claimed: bool = False
    # where the lock of its owner is kept, if a lock alone fences it and that can be told. Only with a
    # `wal_id`
    holder: LockKeeper | None = None

    @property
    def geometry(self) -> Geometry:
        return Geometry.of(self.capacity_bytes, is_claimed=self.is_claimed)

    def reign_at(self, position: int) -> Reign | None:
        """The owner whose block may lie there. None: one that was before all who are known."""
        if position >= self.epoch_start:
            return Reign(self.epoch, self.epoch_start)
        return next((reign for reign in reversed(self.earlier) if reign.start <= position), None)

    def earlier_than(self, start: int) -> tuple[Reign, ...]:
        """`earlier` for an owner that begins at `start`: those who wrote between `head` and there. Beyond the
        bound the oldest go."""
        reigns = [
            reign for reign in (*self.earlier, Reign(self.epoch, self.epoch_start)) if reign.start < start
        ]
        ends = [*(reign.start for reign in reigns), start][1:]
        return tuple(reign for reign, end in zip(reigns, ends, strict=True) if end > self.head)[-REIGNS_MAX:]

    def encode(self) -> bytes:
        """One copy: 4096 bytes."""
        name = self.cluster_id.encode()
        assert len(name) <= CLUSTER_ID_BYTES_MAX, self.cluster_id
        has_identity = self.wal_id != NO_WAL_ID
        assert has_identity or not self.is_claimed, "a log without an identity has no claims"
        version = VERSION_CLAIMED if self.is_claimed else VERSION_IDENTITY if has_identity else VERSION
        body = _DEVICE.pack(
            DEVICE_MAGIC, version, len(name), self.node_id, self.epoch, self.epoch_start, self.capacity_bytes,
            self.trim, self.head, self.confirmed, self.block_bytes_max, self.window_bytes, self.filled_bytes,
            self.closed_end,
            self.sequence, name, *self._reign_fields(),
        )  # fmt: skip
        if has_identity:
            body += _IDENTITY.pack(self.wal_id, *self.mark)
        body += _CRC.pack(crc32c(body))
        if has_identity and self.holder is not None:
            body += _HOLDER.pack(self.holder.machine, self.holder.boot, self.holder.file)
            body += _CRC.pack(crc32c(body))
        return body.ljust(BLOCK_BYTES, b"\0")

    def _reign_fields(self) -> list[int]:
        assert len(self.earlier) <= REIGNS_MAX, self.earlier
        slots = [*self.earlier, *[_NO_REIGN] * (REIGNS_MAX - len(self.earlier))]
        return [value for reign in slots for value in (reign.epoch, reign.start)]


def decode_device_header(copy: bytes) -> DeviceHeader | None:
    """None when the copy is torn or is no header at all. Raises WalMismatch for a sound one of a later
    version."""
    if copy[:8] != DEVICE_MAGIC:
        return None
    fields = _DEVICE.unpack_from(copy)
    has_identity = fields[1] >= VERSION_IDENTITY
    body_bytes = _DEVICE.size + (_IDENTITY.size if has_identity else 0)
    if _CRC.unpack_from(copy, body_bytes)[0] != crc32c(copy[:body_bytes]):
        return None
    if fields[1] > VERSION_CLAIMED:
        raise WalMismatch("version", VERSION_CLAIMED, fields[1])
    name = fields[15][: fields[2]].decode()
    header = replace(DeviceHeader(name, *fields[3:15]), earlier=_reigns_of(fields[_REIGN_FIELDS_START:]))
    if not has_identity:
        return header
    wal_id, *mark = _IDENTITY.unpack_from(copy, _DEVICE.size)
    is_claimed, holder = fields[1] == VERSION_CLAIMED, _holder_of(copy)
    return replace(header, wal_id=wal_id, mark=MetadataMark(*mark), is_claimed=is_claimed, holder=holder)


def _holder_of(copy: bytes) -> LockKeeper | None:
    """None in a copy that names none, as those of builds that know of no holders: zeros stand there. UNTOLD
    where something else does that is damaged, or is not this header's: its sum begins with the copy's first
    byte."""
    body_bytes = _HELD_BYTES + _HOLDER.size
    if not any(copy[_HELD_BYTES : body_bytes + _CRC.size]):
        return None
    if _CRC.unpack_from(copy, body_bytes)[0] != crc32c(copy[:body_bytes]):
        return UNTOLD
    return LockKeeper(*_HOLDER.unpack_from(copy, _HELD_BYTES))


def _reigns_of(values: tuple[int, ...]) -> tuple[Reign, ...]:
    pairs = zip(values[::2], values[1::2], strict=True)
    return tuple(Reign(epoch, start) for epoch, start in pairs if epoch >= 0)


def choose_device_header(first: bytes, second: bytes) -> DeviceHeader | None:
    """The header that holds, or None where neither copy can be read: a log may be made there if nothing else
    lies there (blank.py)."""
    found = [
        header for header in (decode_device_header(first), decode_device_header(second)) if header is not None
    ]
    return max(found, key=lambda header: header.sequence, default=None)


@dataclass(frozen=True, slots=True)
class BlockHeader:
    epoch: int
    position: int
    previous_end: int  # where the block before it ended; differs from `position` only across the end of a lap
    confirmed: int  # everything below this was durable when the block was written
    length: int  # header and records, without the padding
    record_count: int

    @property
    def end(self) -> int:
        return align_up(self.position + self.length)


def encode_block_header(header: BlockHeader) -> bytes:
    body = _BLOCK.pack(
        BLOCK_MAGIC, VERSION, 0, header.epoch, header.position, header.previous_end, header.confirmed,
        header.length, header.record_count,
    )  # fmt: skip
    return body + _CRC.pack(crc32c(body))


def decode_block_header(data: memoryview, at: int) -> BlockHeader | None:
    """None when no sound block header lies there."""
    if at + BLOCK_HEADER_BYTES > len(data) or data[at : at + 4] != BLOCK_MAGIC_BYTES:
        return None
    if _CRC.unpack_from(data, at + _BLOCK.size)[0] != crc32c(data[at : at + _BLOCK.size]):
        return None
    _, version, _, epoch, position, previous_end, confirmed, length, count = _BLOCK.unpack_from(data, at)
    if version != VERSION or length < BLOCK_HEADER_BYTES:
        return None
    return BlockHeader(epoch, position, previous_end, confirmed, length, count)
