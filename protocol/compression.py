"""The codecs of record batches by id: gzip, snappy, lz4 and zstd, each within a bound on what comes out.

    gzip     RFC 1952, several members allowed
    snappy   xerial's framing: 82 'SNAPPY' 00, version i32, compatible version i32, then (i32 length, raw block)*;
             or one raw block without framing. Both are read, the framing is written, 32 KiB of input a block
    lz4      the frame format; independent blocks are written, since Java's consumers refuse linked ones
    zstd     plain frames; the content size may be missing

Not here: records (records.py), or when to recompress (the partition, for topics whose compression.type is not
`producer`). Kept true: nothing larger than the given bound is built whatever a batch claims, and memory is taken for
what comes out, not for what might. Bad input is a WireError.

Any of it may run in a thread beside the interpreter's own: what is large is in the codecs, which let go of the interpreter, and is
neither zeroed nor copied outside of them.

The library is imported on first use: most of the serve path never looks inside a batch.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from typing import Final

from millrace.protocol.batches import CODEC_MASK, HEADER_BYTES, BatchHeader, Codec, pack_batch
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer

# A producer whose records come to more could not have sent them uncompressed: it is the largest frame that Kafka takes.
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
GZIP_RATIO_MAX: Final = 1032  # 258 bytes from two bits
SNAPPY_RATIO_MAX: Final = 22  # 64 bytes from three
LZ4_FAST_LEVEL: Final = 1
LZ4_DEFAULT_LEVEL: Final = 9  # Kafka's name for "the fast compressor"; its other levels are of the slow one
ZSTD_DEFAULT_LEVEL: Final = 3

_GZIP_WINDOW = 31  # the largest window, in gzip's wrapping
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_GZIP_INPUT_BYTES = 64 << 10  # given, and
_GZIP_OUTPUT_BYTES = 256 << 10  # taken in one call
_WALKED_BYTES_MAX = 16 << 10  # of input, to tell what may come out: the walk is Python's
_LZ4_INPUT_BYTES = 256 << 10
_HEAP_BYTES_MAX = 256 << 10
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_MAGIC = 0xFD2FB528
_LZ4_MAGIC = 0x184D2204
_SKIPPABLE_MAGIC = 0x184D2A50  # and the 15 after it, in lz4 and zstd alike

_BIG_I32 = struct.Struct(">i")
_LITTLE_U32 = struct.Struct("<I")


class RecordsTooLarge(WireError):
    """More comes out than the bound that was given."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` compressed; `level` is the codec's own as the topic's configuration has it, None for Kafka's default."""
    return bytes(_compress(codec, data, level))


def decompress(codec: int, data: Buffer, bytes_max: int = RECORDS_BYTES_MAX) -> bytes:
    """What `data` was before it was compressed, as `unpack`, in memory of the interpreter's own."""
    return bytes(unpack(codec, data, bytes_max))


def unpack(codec: int, data: Buffer, bytes_max: int = RECORDS_BYTES_MAX) -> Buffer:
    """What `data` was before it was compressed; `data` itself where it was not. Raises WireError when it is broken, RecordsTooLarge when it
    comes to more than `bytes_max`. What is large goes back to the system when the last view of it goes."""
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
        return _unpack_frames(cramjam.lz4.decompress_into, data, _lz4_frame_size, bytes_max)
    return _unpack_frames(cramjam.zstd.decompress_into, data, _zstd_frame_size, bytes_max)


def recompress(view: memoryview, codec: int, level: int | None = None) -> bytes:
    """A copy of a batch with its records under another codec; offsets, timestamps and producer fields stay.

    Kafka leaves a batch alone that has the topic's codec already, at whatever level: ask `header.codec` first.
    """
    header = BatchHeader(view)
    return repack(header, unpack(header.codec, view[HEADER_BYTES : header.size_bytes]), codec, level)


def repack(header: BatchHeader, records: Buffer, codec: int, level: int | None, bytes_max: int | None = None) -> bytes:
    """The batch of `header` with these records under a codec. Raises RecordsTooLarge, which says how large, for a batch above `bytes_max`."""
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
    """What ends a member says how long it was, and is nearly always right; what is short by its word is tried with that much memory."""
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
            return out[:size_bytes]  # what follows a member and starts no other is ignored, as Java ignores it
    raise WireError(f"gzip: more than {GZIP_MEMBERS_MAX} members")


def _unpack_snappy(view: memoryview, bytes_max: int) -> memoryview:
    out = _memory(min(bytes_max, SNAPPY_RATIO_MAX * len(view)))
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return out[: _unpack_snappy_block(view, out, bytes_max)]
    position = size_bytes = 0
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # at the start, and where streams were joined
            continue
        if len(view) - position < 4:
            raise WireError("snappy: cut off")
        length = _BIG_I32.unpack_from(view, position)[0]
        position += 4
        if not 0 < length <= len(view) - position:
            raise WireError(f"snappy: block of {length} bytes in {len(view) - position}")
        size_bytes += _unpack_snappy_block(view[position : position + length], out[size_bytes:], bytes_max - size_bytes)
        position += length
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
    frame_size: Callable[[memoryview, int], tuple[int, int]],
    bytes_max: int,
) -> memoryview:
    """One decompression into a buffer that a short input says is large enough, or that the bound says is."""
    import cramjam

    bound = _walk(data, frame_size) if len(data) <= _WALKED_BYTES_MAX else bytes_max + 1
    out = _memory(min(bound, bytes_max))
    try:
        return out[: run(data, out)]
    except cramjam.DecompressionError as error:
        if bound > bytes_max and "write whole buffer" in str(error):
            raise RecordsTooLarge(f"records of more than {bytes_max} bytes") from error
        raise WireError(f"records of at most {len(out)} bytes: {error}") from error


def _walk(data: Buffer, frame_size: Callable[[memoryview, int], tuple[int, int]]) -> int:
    """How many bytes may come out of the frames in `data` at most, by their block headers."""
    view, position, bound = memoryview(data), 0, 0
    try:
        while position < len(view):
            if _LITTLE_U32.unpack_from(view, position)[0] & 0xFFFF_FFF0 == _SKIPPABLE_MAGIC:
                position += 8 + _LITTLE_U32.unpack_from(view, position + 4)[0]
                continue
            out, position = frame_size(view, position)
            bound += out
    except (struct.error, IndexError) as error:
        raise WireError("compressed records cut off") from error
    return bound


def _lz4_frame_size(view: memoryview, position: int) -> tuple[int, int]:
    """The most that the lz4 frame at `position` may hold, and where it ends."""
    if _LITTLE_U32.unpack_from(view, position)[0] != _LZ4_MAGIC:
        raise WireError("lz4: no frame")
    flags, block_code = view[position + 4], view[position + 5] >> 4 & 7
    if flags >> 6 != 1 or block_code < 4:
        raise WireError(f"lz4: flags {flags:#04x}, block size {block_code}")
    block_bytes_max = 1 << (2 * block_code + 8)  # 64 KiB, 256 KiB, 1 MiB, 4 MiB
    trailer = 4 if flags & 0x10 else 0
    position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    bound = 0
    while size := _LITTLE_U32.unpack_from(view, position)[0]:
        length = size & 0x7FFF_FFFF
        bound += length if size >> 31 else min(block_bytes_max, length * 255)
        position += 4 + length + trailer
    return bound, position + (8 if flags & 0x04 else 4)


def _zstd_frame_size(view: memoryview, position: int) -> tuple[int, int]:
    """The most that the zstd frame at `position` may hold, and where it ends."""
    if _LITTLE_U32.unpack_from(view, position)[0] != _ZSTD_MAGIC:
        raise WireError("zstd: no frame")
    flags = view[position + 4]
    is_single = flags & 0x20
    content_size_bytes = (1 if is_single else 0, 2, 4, 8)[flags >> 6]
    position += 5 + (0 if is_single else 1) + (0, 1, 2, 4)[flags & 3] + content_size_bytes
    bound, is_last = 0, 0
    while not is_last:
        block = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        is_last, kind, length = block & 1, block >> 1 & 3, block >> 3
        bound += _ZSTD_BLOCK_BYTES_MAX if kind == 2 else length
        position += 3 + (1 if kind == 1 else length)
    return bound, position + (4 if flags & 0x04 else 0)
