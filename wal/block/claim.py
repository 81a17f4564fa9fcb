"""The claim of a block WAL: who may acknowledge. Its bytes, and what a look at its place says. Pure.

    claim     | magic, version, node, epoch, incarnation, WAL id, CRC32C |   60 bytes at the beginning of a
              0                                                          60  block of its own; zeros behind

Whoever opens the log writes its claim there, once, and never again; an owner only reads it. So the place is a
register: the claim that was written last stands, and its writer alone may acknowledge. It lies in one sector,
which a device writes whole or not at all. What is no sound claim says nothing: it may have been another's.

Not here: reading and writing it, and why that is enough (fence.py).
"""

from __future__ import annotations

import struct
from typing import Final

from millrace.protocol.crc32c import crc32c
from millrace.protocol.dataclass import dataclass
from millrace.wal.block.layout import BLOCK_BYTES
from millrace.wal.identity import WAL_ID_BYTES

CLAIM_MAGIC: Final = b"MRCLAIM1"
VERSION: Final = 1
INCARNATION_BYTES: Final = 16
_CLAIM = struct.Struct(f">8sHHiq{INCARNATION_BYTES}s{WAL_ID_BYTES}s")
_CRC = struct.Struct(">I")
CLAIM_BYTES: Final = _CLAIM.size + _CRC.size
assert CLAIM_BYTES <= 512, "one sector, so that a claim is written whole or not at all"


@dataclass(frozen=True, slots=True)
class Claim:
    node_id: int
    epoch: int
    incarnation: bytes  # drawn at each opening: two openings in one epoch differ
    wal_id: bytes

    def encode(self) -> bytes:
        """The whole block: 4096 bytes."""
        assert len(self.incarnation) == INCARNATION_BYTES, self.incarnation
        body = _CLAIM.pack(
            CLAIM_MAGIC, VERSION, 0, self.node_id, self.epoch, self.incarnation, self.wal_id
        )  # fmt: skip
        return (body + _CRC.pack(crc32c(body))).ljust(BLOCK_BYTES, b"\0")


def decode_claim(block: bytes | memoryview) -> Claim | None:
    """None where no sound claim of a version that is known begins the block."""
    body = bytes(block[: _CLAIM.size])
    if len(block) < CLAIM_BYTES or _CRC.unpack_from(block, _CLAIM.size)[0] != crc32c(body):
        return None
    magic, version, _, node_id, epoch, incarnation, wal_id = _CLAIM.unpack(body)
    return Claim(node_id, epoch, incarnation, wal_id) if (magic, version) == (CLAIM_MAGIC, VERSION) else None
