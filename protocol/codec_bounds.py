"""How many bytes compressed records may come to, told without unpacking them: by the sizes that frames state,
else by the codec's best ratio.

    gzip     1032 to 1: 258 bytes from two bits. What a member's end states is not used: others may precede it
    snappy   64 bytes from three; each raw block states its length, and xerial's framing has many
    lz4      255 to 1, no block above its frame's block size; a frame may state its content
    zstd     128 KiB from the four bytes of a run-length block; a frame may state its content

Frames are walked by their block headers, for BLOCKS_WALKED_MAX blocks at most: a sender's stream of smaller
ones than any codec makes is judged by the ratio. Not here: the unpacking itself (compression.py). Pure. Bad
input is a WireError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from millrace.protocol.batches import Codec
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer

GZIP_RATIO_MAX: Final = 1032
SNAPPY_RATIO_MAX: Final = 22
LZ4_RATIO_MAX: Final = 255
ZSTD_RATIO_MAX: Final = 32 * 1024
BLOCKS_WALKED_MAX: Final = 2048  # about two milliseconds

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 16

_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_MAGIC = 0xFD2FB528
_LZ4_MAGIC = 0x184D2204
_SKIPPABLE_MAGIC = 0x184D2A50  # and the 15 after it, in lz4 and zstd alike
_RATIOS = {
    Codec.NONE: 1,
    Codec.GZIP: GZIP_RATIO_MAX,
    Codec.SNAPPY: SNAPPY_RATIO_MAX,
    Codec.LZ4: LZ4_RATIO_MAX,
    Codec.ZSTD: ZSTD_RATIO_MAX,
}

_BIG_I32 = struct.Struct(">i")
_LITTLE_U16 = struct.Struct("<H")
_LITTLE_U32 = struct.Struct("<I")
_LITTLE_U64 = struct.Struct("<Q")
_ZSTD_CONTENT_SIZES = (None, _LITTLE_U16, _LITTLE_U32, _LITTLE_U64)

FrameSize = Callable[[memoryview, int, int], tuple[int, int, int]]


class TooManyBlocks(WireError):
    """More blocks than are walked."""


def unpacked_bytes_max(codec: int, data: Buffer) -> int:
    """The most that `data` may come to. Raises WireError where its frames are not well formed."""
    view = memoryview(data)
    bound = _RATIOS[Codec(codec)] * len(view)
    try:
        if codec == Codec.SNAPPY:
            return min(bound, _snappy_size(view))
        if codec == Codec.LZ4:
            return min(bound, frames_size(view, lz4_frame_size))
        if codec == Codec.ZSTD:
            return min(bound, frames_size(view, zstd_frame_size))
    except TooManyBlocks:
        pass
    return bound


def frames_size(data: Buffer, frame_size: FrameSize) -> int:
    """How many bytes may come out of the frames in `data` at most. Raises TooManyBlocks, or WireError for
    what is cut off."""
    view, position, bound, left = memoryview(data), 0, 0, BLOCKS_WALKED_MAX
    try:
        while position < len(view):
            left -= 1
            if left < 0:
                raise TooManyBlocks(f"more than {BLOCKS_WALKED_MAX} blocks")
            if _LITTLE_U32.unpack_from(view, position)[0] & 0xFFFF_FFF0 == _SKIPPABLE_MAGIC:
                position += 8 + _LITTLE_U32.unpack_from(view, position + 4)[0]
                continue
            out, position, left = frame_size(view, position, left)
            bound += out
    except (struct.error, IndexError) as error:
        raise WireError("compressed records cut off") from error
    if position > len(view):
        raise WireError("compressed records cut off")
    return bound


def lz4_frame_size(view: memoryview, position: int, left: int) -> tuple[int, int, int]:
    """The most that the lz4 frame at `position` may hold, where it ends, and how many blocks of `left` may
    still be walked. Raises WireError for another format, TooManyBlocks beyond `left`, IndexError or
    struct.error at a cut."""
    if _LITTLE_U32.unpack_from(view, position)[0] != _LZ4_MAGIC:
        raise WireError("lz4: no frame")
    flags, block_code = view[position + 4], view[position + 5] >> 4 & 7
    if flags >> 6 != 1 or block_code < 4:
        raise WireError(f"lz4: flags {flags:#04x}, block size {block_code}")
    block_bytes_max = 1 << (2 * block_code + 8)  # 64 KiB, 256 KiB, 1 MiB, 4 MiB
    stated = _LITTLE_U64.unpack_from(view, position + 6)[0] if flags & 0x08 else None
    trailer = 4 if flags & 0x10 else 0
    position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    bound = 0
    while size := _LITTLE_U32.unpack_from(view, position)[0]:
        left -= 1
        if left < 0:
            raise TooManyBlocks(f"lz4: more than {BLOCKS_WALKED_MAX} blocks")
        length = size & 0x7FFF_FFFF
        bound += length if size >> 31 else min(block_bytes_max, length * LZ4_RATIO_MAX)
        position += 4 + length + trailer
    return bound if stated is None else min(bound, stated), position + (8 if flags & 0x04 else 4), left


def zstd_frame_size(view: memoryview, position: int, left: int) -> tuple[int, int, int]:
    """As `lz4_frame_size`, of a zstd frame. Raises what that one does."""
    if _LITTLE_U32.unpack_from(view, position)[0] != _ZSTD_MAGIC:
        raise WireError("zstd: no frame")
    flags = view[position + 4]
    is_single = flags & 0x20
    position += 5 + (0 if is_single else 1) + (0, 1, 2, 4)[flags & 3]
    stated, position = _zstd_content_size(view, position, flags)
    bound, is_last = 0, 0
    while not is_last:
        left -= 1
        if left < 0:
            raise TooManyBlocks(f"zstd: more than {BLOCKS_WALKED_MAX} blocks")
        block = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        is_last, kind, length = block & 1, block >> 1 & 3, block >> 3
        bound += _ZSTD_BLOCK_BYTES_MAX if kind == 2 else length
        position += 3 + (1 if kind == 1 else length)
    return bound if stated is None else min(bound, stated), position + (4 if flags & 0x04 else 0), left


def _zstd_content_size(view: memoryview, position: int, flags: int) -> tuple[int | None, int]:
    number = _ZSTD_CONTENT_SIZES[flags >> 6]
    if number is None:
        return (view[position], position + 1) if flags & 0x20 else (None, position)
    stated: int = number.unpack_from(view, position)[0]
    return stated + (256 if number.size == 2 else 0), position + number.size


def _snappy_size(view: memoryview) -> int:
    """The sum of what raw blocks state."""
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _stated_by_block(view)
    size_bytes = 0
    for number, block in enumerate(xerial_blocks(view)):
        if number >= BLOCKS_WALKED_MAX:
            raise TooManyBlocks(f"snappy: more than {BLOCKS_WALKED_MAX} blocks")
        if len(block):
            size_bytes += _stated_by_block(block)
    return size_bytes


def xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """The raw blocks of xerial's framing, as views; an empty one for each of its headers: one at the start,
    and one where streams were joined. Raises WireError where one is cut off or empty."""
    position = 0
    while position < len(view):
        if view[position : position + len(XERIAL_MAGIC)] == XERIAL_MAGIC:
            position += XERIAL_HEADER_BYTES
            yield view[:0]
            continue
        if len(view) - position < 4:
            raise WireError("snappy: cut off")
        length = _BIG_I32.unpack_from(view, position)[0]
        position += 4
        if not 0 < length <= len(view) - position:
            raise WireError(f"snappy: block of {length} bytes in {len(view) - position}")
        yield view[position : position + length]
        position += length


def _stated_by_block(block: memoryview) -> int:
    """The varint at the head of a raw block: five bytes at most."""
    stated = 0
    for number, byte in enumerate(block[:5]):
        stated |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return stated
    raise WireError("snappy: block without a length")
