"""Length-prefixed framing: chunks as they come from a socket in, whole frames out; and buffers ready for a
socket.

A frame is an int32 length and that many bytes; frames are handed out without the length. Frames that lie
whole in one chunk are views of that chunk, so whoever keeps one keeps the chunk. A frame that spans chunks is
gathered in a buffer of its own which grows as bytes arrive: a length is a promise, and nothing is allocated
for a promise. (Growing a bytearray costs what one final join costs, and half of what a zero-filled buffer of
the full size does.)

Not here: sockets, budgets (broker/network/connection.py), headers (header.py). Kept true: each byte is copied
at most once, amortised; after a WireError the splitter is of no more use.
"""

from __future__ import annotations

from struct import Struct

from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer

# Pieces up to this are joined with their neighbours; measured on loopback, views win from about 1 KiB.
JOINED_BYTES_MAX = 512

_LENGTH = Struct(">i")


class FrameSplitter:
    """Cuts one connection's bytes into frames. `bytes_max` may be changed between calls (it rises on
    authentication). A frame below `bytes_min` is refused where its length is read: nothing costs as much for
    as few bytes as frames of nothing. No more than `count_max` frames are cut at once; what is fed behind
    them is `rest`."""

    __slots__ = (
        "_bytes_min",
        "_count_max",
        "_frame",
        "_prefix",
        "bytes_max",
        "fault",
        "pending_bytes",
        "rest",
    )

    def __init__(self, bytes_max: int, bytes_min: int = 0, count_max: int = 1 << 31) -> None:
        self.bytes_max = bytes_max
        self._bytes_min = bytes_min
        self._count_max = count_max
        self.rest: Buffer = b""  # not cut yet; of what was fed, until somebody puts a copy here
        self.pending_bytes = 0  # length of the frame of which a part is here; 0 between frames
        self._prefix = b""  # fewer than 4 bytes of a length
        self._frame = bytearray()  # the part that is here
        self.fault = ""  # what is wrong with the length that is next: nothing can be cut any more

    @property
    def received_bytes(self) -> int:
        """How much of that part."""
        return len(self._frame)

    def feed(self, data: Buffer) -> list[Buffer]:
        """The frames that `data` completes, in order. Behind them may be a length out of bounds (`fault`);
        WireError where nothing is before it."""
        frames: list[Buffer] = []
        if self.rest:
            data, self.rest = b"".join((self.rest, data)), b""
        view, pos = memoryview(data), 0
        if self.pending_bytes or self._prefix:
            pos = self._gather(view, frames)
        elif len(view) > 4:  # one frame, mostly
            length = _LENGTH.unpack_from(view)[0]
            if length == len(view) - 4 and self._bytes_min <= length <= self.bytes_max:
                return [view[4:]]
        return self._cut(view, pos, frames)

    def go_on(self) -> list[Buffer]:
        """As `feed`: the next frames of `rest`."""
        view, self.rest = memoryview(self.rest), b""
        return self._cut(view, 0, [])

    def _cut(self, view: memoryview, pos: int, frames: list[Buffer]) -> list[Buffer]:
        end, count_max = len(view), self._count_max
        while end - pos >= 4:
            if len(frames) >= count_max:
                self.rest = view[pos:]
                return frames
            length = _LENGTH.unpack_from(view, pos)[0]
            if not self._is_within(length):
                if frames:
                    return frames
                raise WireError(self.fault)
            stop = pos + 4 + length
            if stop > end:
                self.pending_bytes = length
                self._frame = bytearray(view[pos + 4 :])
                return frames
            frames.append(view[pos + 4 : stop])
            pos = stop
        if pos < end:
            self._prefix = bytes(view[pos:])
        return frames

    def _gather(self, view: memoryview, frames: list[Buffer]) -> int:
        """Goes on with what the last chunk left; the position in `view` after it."""
        pos = 0
        if not self.pending_bytes:
            pos = min(4 - len(self._prefix), len(view))
            self._prefix += bytes(view[:pos])
            if len(self._prefix) < 4:
                return pos
            length = _LENGTH.unpack(self._prefix)[0]
            if not self._is_within(length):
                raise WireError(self.fault)
            self.pending_bytes = length
            self._prefix = b""
        stop = min(pos + self.pending_bytes - len(self._frame), len(view))
        self._frame += view[pos:stop]
        if len(self._frame) == self.pending_bytes:
            frames.append(memoryview(self._frame).toreadonly())
            self._frame = bytearray()
            self.pending_bytes = 0
        return stop

    def _is_within(self, length: int) -> bool:
        if self._bytes_min <= length <= self.bytes_max:
            return True
        self.fault = f"frame of {length} bytes, the bounds are {self._bytes_min} and {self.bytes_max}"
        return False


def in_own_memory(frame: Buffer) -> Buffer:
    """The frame, to be kept: one that is all of the memory that it lies in was gathered there for itself, any
    other is copied."""
    if isinstance(frame, memoryview) and len(memoryview(frame.obj)) != len(frame):
        return bytes(frame)
    return frame


def joined_small(parts: list[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: runs of small pieces become one, large ones stay as they are."""
    if len(max(parts, key=len)) <= JOINED_BYTES_MAX:
        return [b"".join(parts)]
    out: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) <= JOINED_BYTES_MAX:
            small.append(part)
            continue
        if small:
            out.append(b"".join(small))
            small = []
        out.append(part)
    if small:
        out.append(b"".join(small))
    return out
