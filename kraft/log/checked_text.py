"""Small text files that end with their own checksum: lines of `name=value`, then `crc32c=1a2b3c4d` of all
before it. Pure.

Kept true: what a crash or rot left of such a file is none; nothing is read in part.
"""

from __future__ import annotations

import re
from functools import cached_property

from millrace.protocol.crc32c import crc32c


def sealed(head: bytes) -> bytes:
    """The file of these lines, their ends included."""
    return head + b"crc32c=%08x\n" % crc32c(head)


class CheckedText:
    """Files of one form: `head` is the pattern of the lines before the checksum, a group a value."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(b"(" + self._head + rb")crc32c=([0-9a-f]{8})\n")

    def values(self, data: bytes) -> tuple[bytes, ...] | None:
        """None for what `sealed` did not make."""
        found = self._pattern.fullmatch(data)
        if found is None:
            return None
        head, *values, checksum = found.groups()
        return tuple(values) if crc32c(head) == int(checksum, 16) else None
