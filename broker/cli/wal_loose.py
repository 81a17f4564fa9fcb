"""A block log without its header, looked at: each block says itself where it belongs and what it holds, and
its records prove themselves.

What only the header said is not known: whose log it is, where it begins and ends, which records were
forgotten since they are in objects, and which blocks are void. So everything sound is told, older laps and
all, and the capacity is taken from the size of the file. No start goes on from here. Memory grows with the
number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millrace.broker.cli.wal_text import Contents, Found, describe, part_lines
from millrace.runtime.disk.peek import PeekFile
from millrace.wal.block.claim import decode_claim
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_MAGIC_BYTES,
    CLAIM_PLACE,
    RING_START,
    BlockHeader,
    Geometry,
    align_down,
    align_up,
    decode_block_header,
)
from millrace.wal.block.recovery import block_records

READ_BYTES = 4 << 20


def _is_claimed(file: PeekFile) -> bool:
    """Whether the ring began behind a claim."""
    return decode_claim(file.read_around(CLAIM_PLACE, BLOCK_BYTES)[0]) is not None


class LooseWalk:
    """Finds the blocks when it is made; `records` walks them by position. `torn` and `strays` are complete
    when it is over: places of blocks that are not whole, and of those that lie elsewhere than the capacity
    would have them."""

    def __init__(self, file: PeekFile) -> None:
        self._file = file
        self.capacity_bytes = align_down(file.size_bytes)
        self._geometry = Geometry.of(self.capacity_bytes, is_claimed=_is_claimed(file))
        self._blocks = sorted((header.position, place) for place, header in self._headers())
        self.epochs: dict[int, None] = {}
        self.torn: list[int] = []
        self.strays: list[int] = []

    @property
    def block_count(self) -> int:
        return len(self._blocks)

    @property
    def extent(self) -> tuple[int, int]:
        """Positions of the first block and the last."""
        return self._blocks[0][0], self._blocks[-1][0]

    def _headers(self) -> Iterator[tuple[int, BlockHeader]]:
        for start in range(RING_START, self.capacity_bytes, READ_BYTES):
            data = memoryview(self._file.read_around(start, min(READ_BYTES, self.capacity_bytes - start))[0])
            for at in range(0, len(data), BLOCK_BYTES):
                if data[at : at + 4] == BLOCK_MAGIC_BYTES:
                    header = decode_block_header(data, at)
                    if header is not None:
                        yield start + at, header

    def records(self) -> Iterator[Found]:
        for position, place in self._blocks:
            header = decode_block_header(memoryview(self._file.read_at(place, BLOCK_BYTES)), 0)
            assert header is not None, "it was sound a moment ago"
            self.epochs[header.epoch] = None
            if place != self._geometry.physical(position):
                self.strays.append(place)
            is_inside = place + header.length <= self.capacity_bytes
            data = self._file.read_around(place, align_up(header.length))[0] if is_inside else b""
            records = block_records(memoryview(data), header) if is_inside else None
            if records is None:
                self.torn.append(place)
            else:
                yield from map(describe, records)

    def remark(self) -> str:
        """What is to be known of all that is shown."""
        return (
            "neither copy of the header can be read (bytes 0 and 4096): these are all sound blocks, by their "
            "own word, among them what was "
            f"forgotten or void; a capacity of {self.capacity_bytes} bytes is assumed, from the size of the "
            "file"
        )


def loose_contents(walk: LooseWalk) -> dict[str, Any]:
    counted = Contents()
    for found in walk.records():
        counted.add(found)
    start, end = walk.extent
    return {
        "header": None,
        "assumed_capacity_bytes": walk.capacity_bytes,
        "blocks": walk.block_count,
        "torn_blocks": walk.torn,
        "stray_blocks": walk.strays,
        "epochs": sorted(walk.epochs),
        "first_block": start,
        "last_block": end,
        **counted.as_dict(),
        "remark": walk.remark(),
        "is_sound": False,
    }


def loose_lines(action: str, found: Mapping[str, Any]) -> Iterator[str]:
    yield found["remark"]
    epochs = found["epochs"]
    yield (
        f"{found['blocks']} blocks, of epochs {epochs[0]} to {epochs[-1]}, the first at position "
        f"{found['first_block']}, the last at "
        f"{found['last_block']}; {found['records']} records"
    )
    if found["torn_blocks"]:
        yield (
            f"{len(found['torn_blocks'])} blocks are not whole, the first at byte "
            f"{found['torn_blocks'][0]}: torn, damaged, or written over in part"
        )
    if found["stray_blocks"]:
        yield (
            f"{len(found['stray_blocks'])} blocks lie elsewhere than this capacity would have them, the "
            f"first at byte {found['stray_blocks'][0]}: "
            "it was another"
        )
    yield from part_lines(found, is_list=action == "list")
    if action == "verify":
        yield (
            "NOT sound: no start can use it, whatever wal.corruption says: put the whole file or device back "
            "from a copy; or keep it aside, give "
            "another (s3.wal.path), and start once with wal.lost.accept=true, which gives up the records "
            "that only it held"
        )
