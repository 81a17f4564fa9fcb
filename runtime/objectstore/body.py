"""The bytes of one put, with the checksum they had when they were handed over, or made.

    parts (and their sum, where it is known) -> Body -> attempt, attempt, ...   each under that one sum

Whoever asks more than once makes the body before the first attempt, and hands the same one to each: the retry
wrapper, and above it the uploader and the object WAL, which ask again and send a late put twice. A store that
takes checksums is sent this one, also the second time; before a further attempt the bytes are summed again,
so that a change in memory is found where the store does not look. Not here: what a store does with the sum.
Kept true: the sum is computed once, or not at all where whoever made the bytes knows it; what no longer has
it is never handed on as though it were whole.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import BytesChanged

if TYPE_CHECKING or "crc32c._crc32c" not in sys.modules:
    from crc32c import crc32c as crc32c
else:  # a broker has loaded the compiled part alone: the package around it takes 20 ms of each start
    crc32c = sys.modules["crc32c._crc32c"].crc32c

# So much is summed in one go (0.05 ms a MiB); then others have the loop.
STEP_BYTES = 4 << 20


class Body(tuple[Buffer, ...]):
    """A sequence of buffers like any other to who does not know it."""

    _crc: int | None = None
    _was_tried = False

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self))

    async def crc(self) -> int:
        """CRC32C of the bytes as they were when this was first asked, or when they were made, where that is
        known."""
        if self._crc is None:
            crc = await self._sum()
            if self._crc is None:  # nobody else was first meanwhile
                self._crc = crc
        return self._crc

    async def begin(self, key: str) -> None:
        """Before each attempt, whoever makes it: from the second on the bytes are compared with their sum."""
        if self._was_tried:
            await self.check(key)
        await self.crc()
        self._was_tried = True

    async def check(self, key: str) -> None:
        """BytesChanged where the bytes no longer have their sum."""
        if await self._sum() != await self.crc():
            raise BytesChanged(key)

    async def _sum(self) -> int:
        value = step_bytes = 0
        for part in self:
            step_bytes += len(part)
            if step_bytes <= STEP_BYTES:
                value = crc32c(part, value)
                continue
            view = memoryview(part)
            for start in range(0, len(view), STEP_BYTES):
                await asyncio.sleep(0)
                value = crc32c(view[start : start + STEP_BYTES], value)
            step_bytes = 0
        return value


def body_of(parts: Sequence[Buffer], crc: int | None = None) -> Body:
    """Itself, where it is one already: it keeps its sum. `crc`: the CRC32C of the parts, where it is known
    from making them."""
    if isinstance(parts, Body):
        assert crc is None, "a body has its sum"
        return parts
    body = Body(parts)
    body._crc = crc
    return body
