"""The small files that keep a time (known_time.py), as docs/formats/newest_time.md draws them. Pure.

    version=1
    wall.ms=1700000000000
    crc32c=1a2b3c4d          of the two lines above, with their ends

Kept true: what a crash or rot left of a file is no time; nothing is read in part.
"""

from __future__ import annotations

import datetime

from millrace.kraft.log.checked_text import CheckedText, sealed

TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999
_FILE = CheckedText(rb"version=1\nwall\.ms=(\d{1,15})\n")


def encode_time(wall_ms: int) -> bytes:
    return sealed(b"version=1\nwall.ms=%d\n" % max(0, min(wall_ms, TIME_MS_MAX)))


def decode_time(data: bytes) -> int | None:
    """None for what `encode_time` did not make."""
    found = _FILE.values(data)
    return int(found[0]) if found is not None and int(found[0]) <= TIME_MS_MAX else None


def shown(wall_ms: int) -> str:
    """For people, in UTC."""
    moment = datetime.datetime.fromtimestamp(max(0, min(wall_ms, TIME_MS_MAX)) / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
