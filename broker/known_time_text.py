"""The small files that keep a time (known_time.py), as docs/formats/newest_time.md draws them. Pure.

    version=1
    wall.ms=1700000000000
    crc32c=1a2b3c4d          of the two lines above, with their ends

Kept true: what a crash or rot left of a file is no time; nothing is read in part.
"""

from __future__ import annotations

import datetime
import re

from millrace.protocol.crc32c import crc32c

TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999
_FILE = re.compile(rb"(version=1\nwall\.ms=(\d{1,15})\n)crc32c=([0-9a-f]{8})\n")


def encode_time(wall_ms: int) -> bytes:
    head = b"version=1\nwall.ms=%d\n" % max(0, min(wall_ms, TIME_MS_MAX))
    return head + b"crc32c=%08x\n" % crc32c(head)


def decode_time(data: bytes) -> int | None:
    """None for what `encode_time` did not make."""
    found = _FILE.fullmatch(data)
    if found is None or crc32c(found[1]) != int(found[3], 16):
        return None
    wall_ms = int(found[2])
    return wall_ms if wall_ms <= TIME_MS_MAX else None


def shown(wall_ms: int) -> str:
    """For people, in UTC."""
    moment = datetime.datetime.fromtimestamp(max(0, min(wall_ms, TIME_MS_MAX)) / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
