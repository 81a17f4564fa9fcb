"""What a controller's disk holds, read from its bytes without the product's code: batches, vote, snapshots.

`StoredLog` follows one disk after the other: what was read of a segment before is not read again while its
last batch stands where it stood.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.sim.disk import SimDisk

FOLDER = "/data/__cluster_metadata-0"
STATE_FILE = f"{FOLDER}/quorum-state"
SNAPSHOT = re.compile(r".*/(\d{20})-(\d{10})\.checkpoint")
SEGMENT = re.compile(r".*/(\d{20})\.log")
HEADER = struct.Struct(">qiibIhi")  # base offset, length, leader epoch, magic, crc, attributes, offset delta
PREFIX_BYTES = 12


@dataclass(frozen=True, slots=True)
class Batch:
    base: int
    end: int
    epoch: int
    crc: int
    size_bytes: int


def parse(data: bytes | bytearray, at: int = 0) -> Iterator[tuple[int, Batch]]:
    """Whole batches with the byte that each ends at; ends before what is none."""
    while at + HEADER.size <= len(data):
        base, length, epoch, magic, crc, _, delta = HEADER.unpack_from(data, at)
        end = at + PREFIX_BYTES + length
        if magic != 2 or length <= 0 or end > len(data):
            return
        yield end, Batch(base, base + delta + 1, epoch, crc, end - at)
        at = end


@dataclass
class Segment:
    base: int
    end_bytes: int = 0
    last: bytes = b""  # the last batch's header
    last_at: int = 0
    batches: list[Batch] = field(default_factory=list)
    by_end: dict[int, Batch] = field(default_factory=dict)

    def follow(self, data: bytearray) -> None:
        is_same = (
            len(data) >= self.end_bytes and data[self.last_at : self.last_at + len(self.last)] == self.last
        )
        if not is_same:
            self.end_bytes, self.last, self.last_at = 0, b"", 0
            self.batches.clear()
            self.by_end.clear()
        for end, batch in parse(data, self.end_bytes):
            self.last_at, self.end_bytes = self.end_bytes, end
            self.batches.append(batch)
            self.by_end[batch.end] = batch
        self.last = bytes(data[self.last_at : min(self.end_bytes, self.last_at + HEADER.size)])


class StoredLog:
    """Of one node, as far as it is durable."""

    def __init__(self) -> None:
        self._segments: dict[str, Segment] = {}

    def follow(self, disk: SimDisk) -> list[Segment]:
        """The segments in their order."""
        found: dict[str, Segment] = {}
        for path, file in disk.files.items():
            name = SEGMENT.fullmatch(path)
            if name is not None:
                segment = self._segments.get(path) or Segment(int(name[1]))
                segment.follow(file.durable)
                found[path] = segment
        self._segments = found
        return sorted(found.values(), key=lambda segment: segment.base)

    def gap(self, disk: SimDisk, start: int) -> str | None:
        """Where what is there does not join, from the segment on that holds `start`."""
        end = -1
        segments = self.follow(disk)
        first = max((segment.base for segment in segments if segment.base <= start), default=0)
        for segment in segments:
            if segment.base < first:
                continue
            if end not in (-1, segment.base):
                return f"a segment from {segment.base} follows what ends at {end}"
            end = segment.base
            for batch in segment.batches:
                if batch.base != end:
                    return f"a batch from {batch.base} follows what ends at {end}"
                end = batch.end
        return None

    def ending_at(self, disk: SimDisk, end: int) -> Batch | None:
        return next(
            (batch for segment in self.follow(disk) if (batch := segment.by_end.get(end)) is not None), None
        )

    def within(self, disk: SimDisk, start: int, end: int) -> list[Batch]:
        return [
            batch
            for segment in self.follow(disk)
            if segment.batches and segment.batches[-1].end > start
            for batch in segment.batches
            if batch.base >= start and batch.end <= end
        ]

    def end(self, disk: SimDisk) -> int:
        segments = self.follow(disk)
        last = segments[-1] if segments else None
        return 0 if last is None else last.batches[-1].end if last.batches else last.base


def snapshots(disk: SimDisk) -> list[tuple[int, int, str]]:
    """(end, epoch, path) of those that have their names, the oldest first."""
    found = [(name, path) for path in disk.files if (name := SNAPSHOT.fullmatch(path)) is not None]
    return sorted((int(name[1]), int(name[2]), path) for name, path in found)


def vote(disk: SimDisk) -> tuple[int, int]:
    """The epoch and whom the node has voted for in it, as they are durable."""
    file = disk.files.get(STATE_FILE)
    if file is None:
        return 0, -1
    found: dict[str, Any] = json.loads(bytes(file.durable))
    return int(found["leaderEpoch"]), int(found["votedId"])
