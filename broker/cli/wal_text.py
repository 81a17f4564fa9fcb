"""The records of a log as `millrace wal` tells of them, wherever the log lies: one a line, and counted by
stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from typing import Any

from millrace.protocol.dataclass import dataclass
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.objects.format import decode_entry
from millrace.wal.log import WalRecord


@dataclass(slots=True)
class StreamPart:
    """What the log holds of one stream. `gaps` are offsets that are missing between records of it: [start,
    end)."""

    stream: int
    records: int = 0
    bytes: int = 0
    start: int = 0
    end: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def add(self, start: int, count: int, size_bytes: int) -> None:
        if not self.records:
            self.start = self.end = start
        if start > self.end:
            self.gaps.append((self.end, start))
        self.records += 1
        self.bytes += size_bytes
        self.end = max(self.end, start + count)


@dataclass(slots=True)
class Found:
    """One line of `show`. The stream's fields are None for a record that is no entry of a stream."""

    position: int
    end: int
    bytes: int
    stream: int | None = None
    epoch: int | None = None
    start: int | None = None
    count: int | None = None


def describe(record: WalRecord) -> Found:
    found = Found(record.position, record.end, len(record.payload))
    try:
        entry, _, _ = decode_entry(record.payload, 0)
    except ObjectCorrupt:
        return found
    found.stream, found.epoch = entry.stream_id, entry.epoch
    found.start, found.count = entry.base_offset, entry.count
    return found


class Contents:
    """What records there are, by stream."""

    def __init__(self) -> None:
        self._streams: dict[int, StreamPart] = {}
        self._records = self._others = 0

    def add(self, found: Found) -> None:
        self._records += 1
        if found.stream is None or found.start is None or found.count is None:
            self._others += 1
            return
        part = self._streams.setdefault(found.stream, StreamPart(found.stream))
        part.add(found.start, found.count, found.bytes)

    def as_dict(self) -> dict[str, Any]:
        return {
            "records": self._records,
            "records_of_no_stream": self._others,
            "streams": [asdict(self._streams[stream]) for stream in sorted(self._streams)],
        }


def record_line(found: Found, *, is_json: bool) -> str:
    if is_json:
        return json.dumps(asdict(found))
    if found.stream is None or found.start is None or found.count is None:
        return f"{found.position:>16}  {found.bytes:>9} bytes  of no stream"
    offsets = f"[{found.start}, {found.start + found.count})"
    return (
        f"{found.position:>16}  {found.bytes:>9} bytes  stream {found.stream} epoch {found.epoch} {offsets}"
    )


def part_lines(found: Mapping[str, Any], *, is_list: bool) -> Iterator[str]:
    for part in found["streams"]:
        if is_list:
            yield (
                f"stream {part['stream']}: [{part['start']}, {part['end']}), {part['records']} records, "
                f"{part['bytes']} bytes"
            )
        for start, end in part["gaps"]:
            yield f"stream {part['stream']} lacks [{start}, {end})"
    if is_list and found["records_of_no_stream"]:
        yield f"{found['records_of_no_stream']} records are of no stream"


def advice(found: Mapping[str, Any]) -> str:
    if any(part["gaps"] for part in found["streams"]):
        return (
            "a start with wal.corruption=skip is refused unless what the streams lack is in objects; "
            "wal.corruption=truncate gives up all from "
            "the first damage on"
        )
    return (
        "no stream shows a gap: a start with wal.corruption=skip gives up what is damaged alone, if it "
        "was the last of its stream"
    )
