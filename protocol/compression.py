"""The codecs of record batches by id: gzip, snappy, lz4 and zstd, each within a bound on what comes out.

    gzip     RFC 1952, several members allowed
    snappy   xerial's framing: 82 'SNAPPY' 00, version i32, compatible version i32, then (i32 length, raw
             block)*; or one raw block without framing. Both are read, the framing is written, 32 KiB of input
             a block
    lz4      the frame format; independent blocks are written, since Java's consumers refuse linked ones
    zstd     plain frames; the content size may be missing

Not here: records (records.py), or when to recompress (the partition, for topics whose compression.type is not
`producer`). Kept true: nothing larger than the given bound is built whatever a batch claims, and memory is
taken for what comes out, not for what might. Bad input is a WireError.

Any of it may run in a thread beside the interpreter's own: what is large is in the codecs, which let go of
the interpreter, and is neither zeroed nor copied outside of them.

The library is imported on first use: most of the serve path never looks inside a batch.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from millrace.protocol.batches import CODEC_MASK, HEADER_BYTES, BatchHeader, Codec, pack_batch
from millrace.protocol.codec_bounds import (
    GZIP_RATIO_MAX,
    SNAPPY_RATIO_MAX,
    XERIAL_MAGIC,
    FrameSize,
    TooManyBlocks,
    frames_size,
    lz4_frame_size,
    xerial_blocks,
    zstd_frame_size,
)
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer

# A producer whose records come to more could not have sent them uncompressed: it is the largest frame that
# Kafka takes.
RECORDS_BYTES_MAX: Final = 104_857_600

# What `compression.type` names; `producer` is no codec, and `uncompressed` its way to say none.
CODEC_BY_NAME: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

GZIP_MEMBERS_MAX: Final = 64  # each further member costs a copy of what was given with its end
LZ4_FAST_LEVEL: Final = 1
LZ4_DEFAULT_LEVEL: Final = 9  # Kafka's name for "the fast compressor"; its other levels are of the slow one
ZSTD_DEFAULT_LEVEL: Final = 3

_GZIP_WINDOW = 31  # the largest window, in gzip's wrapping
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_GZIP_INPUT_BYTES = 64 << 10  # given, and
_GZIP_OUTPUT_BYTES = 256 << 10  # taken in one call
_WALKED_BYTES_MAX = 16 << 10  # of input, to tell what may come out: the walk is Python's
_LZ4_INPUT_BYTES = 256 << 10
_HEAP_BYTES_MAX = 256 << 10

_BIG_I32 = struct.Struct(">i")
_LITTLE_U32 = struct.Struct("<I")


class RecordsTooLarge(WireError):
    """More comes out than the bound that was given."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed; `level` is the codec's own as the topic's configuration has it, None for Kafka's
    default."""
    return bytes(_compress(codec, data, level))


def decompress(codec: int, data: Buffer, bytes_max: int = RECORDS_BYTES_MAX) -> bytes:
    """What `data` was before it was compressed, as `unpack`, in memory of the interpreter's own."""
    return bytes(unpack(codec, data, bytes_max))


def unpack(codec: int, data: Buffer, bytes_max: int = RECORDS_BYTES_MAX) -> Buffer:
    """What `data` was before it was compressed; `data` itself where it was not. Raises WireError when it is
    broken, RecordsTooLarge when it comes to more than `bytes_max`. What is large goes back to the system when
    the last view of it goes."""
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        return _unpack_gzip(memoryview(data), bytes_max)
    if codec == Codec.SNAPPY:
        return _unpack_snappy(memoryview(data), bytes_max)
    if codec not in (Codec.LZ4, Codec.ZSTD):
        raise WireError(f"codec {codec}")
    import cramjam

    if codec == Codec.LZ4:
        return _unpack_frames(cramjam.lz4.decompress_into, data, lz4_frame_size, bytes_max)
    return _unpack_frames(cramjam.zstd.decompress_into, data, zstd_frame_size, bytes_max)


def unpack_into(codec: int, data: Buffer, scratch: memoryview) -> Buffer:
    """As `unpack`, for what is small and looked at at once: nothing comes to more than `scratch`, and what
    comes out may lie in it. New memory costs more than the codec does. Raises RecordsTooLarge for more than
    that, WireError for what is damaged or of an unknown codec."""
    if codec in (Codec.NONE, Codec.GZIP):
        return unpack(codec, data, len(scratch))
    if codec == Codec.SNAPPY:
        return _unpack_snappy(memoryview(data), len(scratch), scratch)
    if codec not in (Codec.LZ4, Codec.ZSTD):
        raise WireError(f"codec {codec}")
    import cramjam

    run = cramjam.lz4.decompress_into if codec == Codec.LZ4 else cramjam.zstd.decompress_into
    try:
        return scratch[: run(data, scratch)]
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise RecordsTooLarge(f"records of more than {len(scratch)} bytes") from error
        raise WireError(f"records of at most {len(scratch)} bytes: {error}") from error


def recompress(view: memoryview, codec: int, level: int | None = None) -> bytes:
    """A copy of a batch with its records under another codec; offsets, timestamps and producer fields stay.

    Kafka leaves a batch alone that has the topic's codec already, at whatever level: ask `header.codec`
    first.
    """
    header = BatchHeader(view)
    return repack(header, unpack(header.codec, view[HEADER_BYTES : header.size_bytes]), codec, level)


def repack(
    header: BatchHeader, records: Buffer, codec: int, level: int | None, bytes_max: int | None = None
) -> bytes:
    """The batch of `header` with these records under a codec. Raises RecordsTooLarge, which says how large,
    for a batch above `bytes_max`."""
    payload = _compress(codec, records, level)
    size_bytes = HEADER_BYTES + len(payload)
    if bytes_max is not None and size_bytes > bytes_max:
        raise RecordsTooLarge(f"batch of {size_bytes} bytes")
    return pack_batch(header, payload, header.attributes & ~CODEC_MASK | codec, header.max_timestamp)


def _compress(codec: int, data: Buffer, level: int | None) -> Buffer:
    if codec == Codec.NONE:
        return data
    if codec == Codec.GZIP:
        return zlib.compress(data, -1 if level is None else level, _GZIP_WINDOW)
    if codec == Codec.SNAPPY:
        return _compress_snappy(data)
    if codec == Codec.LZ4:
        return _compress_lz4(data, LZ4_DEFAULT_LEVEL if level is None else level)
    if codec == Codec.ZSTD:
        import cramjam

        return memoryview(cramjam.zstd.compress(data, level=ZSTD_DEFAULT_LEVEL if level is None else level))
    raise ValueError(f"no codec {codec}")


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_BIG_I32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int) -> memoryview:
    import cramjam

    # Below 3 the library's levels are the fast compressor, above 12 they are all the same.
    level = LZ4_FAST_LEVEL if level == LZ4_DEFAULT_LEVEL else min(max(level, 3), 12)
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    view = memoryview(data)
    for start in range(0, len(view), _LZ4_INPUT_BYTES):  # bytes are all that it takes
        compressor.compress(bytes(view[start : start + _LZ4_INPUT_BYTES]))
    return memoryview(compressor.finish())


def _memory(size_bytes: int) -> memoryview:
    """Zeroes. Of what is large only the pages that are written to take memory."""
    if size_bytes <= _HEAP_BYTES_MAX:
        return memoryview(bytearray(size_bytes))
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return memoryview(mmap.mmap(-1, size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _unpack_gzip(view: memoryview, bytes_max: int) -> memoryview:
    """What ends a member says how long it was, and is nearly always right; what is short by its word is tried
    with that much memory."""
    told_bytes = _LITTLE_U32.unpack_from(view, len(view) - 4)[0] if len(view) >= 4 else 0
    if told_bytes <= min(_HEAP_BYTES_MAX, bytes_max):
        try:
            return _unpack_members(view, told_bytes)
        except RecordsTooLarge:
            pass
    return _unpack_members(view, min(bytes_max, GZIP_RATIO_MAX * len(view)))


def _unpack_members(view: memoryview, bytes_max: int) -> memoryview:
    out = _memory(bytes_max)
    position = size_bytes = 0
    for _ in range(GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(_GZIP_WINDOW)
        rest: Buffer = b""
        while not member.eof:
            if not rest:
                rest = view[position : position + _GZIP_INPUT_BYTES]
                position += len(rest)
            try:
                part = member.decompress(rest, _GZIP_OUTPUT_BYTES)
            except zlib.error as error:
                raise WireError(f"gzip: {error}") from error
            if not part and not rest:
                raise WireError("gzip: cut off")
            if len(part) > len(out) - size_bytes:
                raise RecordsTooLarge(f"gzip: more than {bytes_max} bytes")
            out[size_bytes : size_bytes + len(part)] = part
            size_bytes += len(part)
            rest = member.unconsumed_tail
        position -= len(member.unused_data)
        if bytes(view[position : position + 2]) != b"\x1f\x8b":
            return out[
                :size_bytes
            ]  # what follows a member and starts no other is ignored, as Java ignores it
    raise WireError(f"gzip: more than {GZIP_MEMBERS_MAX} members")


def _unpack_snappy(view: memoryview, bytes_max: int, scratch: memoryview | None = None) -> memoryview:
    out = _memory(min(bytes_max, SNAPPY_RATIO_MAX * len(view))) if scratch is None else scratch
    if view[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return out[: _unpack_snappy_block(view, out, bytes_max)]
    size_bytes = 0
    for block in xerial_blocks(view):
        if len(block):
            size_bytes += _unpack_snappy_block(block, out[size_bytes:], bytes_max - size_bytes)
    return out[:size_bytes]


def _unpack_snappy_block(block: memoryview, out: memoryview, bytes_max: int) -> int:
    import cramjam

    try:
        size_bytes = int(cramjam.snappy.decompress_raw_len(block))
        if size_bytes > bytes_max:
            raise RecordsTooLarge(f"snappy: {size_bytes} bytes, more than {bytes_max}")
        if size_bytes > len(out):
            raise WireError(f"snappy: {len(block)} bytes say that they are {size_bytes}")
        return int(cramjam.snappy.decompress_raw_into(block, out[:size_bytes]))
    except cramjam.DecompressionError as error:
        raise WireError(f"snappy: {error}") from error


def _unpack_frames(
    run: Callable[[Buffer, memoryview], int],
    data: Buffer,
    frame_size: FrameSize,
    bytes_max: int,
) -> memoryview:
    """One decompression into a buffer that a short input says is large enough, or that the bound says is."""
    import cramjam

    bound = bytes_max + 1
    if len(data) <= _WALKED_BYTES_MAX:
        with suppress(TooManyBlocks):
            bound = frames_size(data, frame_size)
    out = _memory(min(bound, bytes_max))
    try:
        return out[: run(data, out)]
    except cramjam.DecompressionError as error:
        if bound > bytes_max and "write whole buffer" in str(error):
            raise RecordsTooLarge(f"records of more than {bytes_max} bytes") from error
        raise WireError(f"records of at most {len(out)} bytes: {error}") from error
