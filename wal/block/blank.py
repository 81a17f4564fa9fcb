"""Whether a file or device holds nothing, so that a log may be made there. Pure: `looks` says what to read,
`find_content` what it shows.

A place counts as blank when all that is looked at reads as zeros: its beginning and its end, where partition
tables, file systems, volume managers and RAID keep what they are known by, and single blocks all over the
rest. A name or a missing header proves nothing: a partition table leaves the second header's place empty. The
one thing that may lie there is what a power cut leaves of the first copy of a header that formatting writes:
a copy of ours, whole or with zeros in it, for a log that nobody has owned yet.

Not here: reading (device.py), what a sound header says (layout.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC_BYTES,
    DEVICE_MAGIC,
    DeviceHeader,
    align_down,
    decode_block_header,
)
from millrace.wal.errors import WalCorrupt, WalForeign, WalHeaderLost

HEAD_BYTES = 4 << 20
TAIL_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
SAMPLES = 32
SHOWN_BYTES = 8

# What a place that is not ours is called: (byte, magic, name), the surest first.
SIGNATURES = (
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
    (65600, b"_BHRfS_M", "a btrfs file system"),
    (0, b"XFSB", "an XFS file system"),
    (1080, b"\x53\xef", "an ext file system"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID (md)"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a RAID (md)"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (4086, b"SWAPSPACE2", "swap space"),
    *((sector * 512, b"LABELONE", "a physical volume (LVM)") for sector in range(4)),
    (3, b"NTFS    ", "an NTFS file system"),
    (510, b"\x55\xaa", "a partition table or boot sector"),
)


def looks(size_bytes: int) -> Iterator[tuple[int, int]]:
    """(byte, length) of each read, in whole blocks. All of what is small; of the rest the beginning, the end,
    and between them a block at each power of two, where second copies are kept, and some at even
    distances."""
    end = align_down(size_bytes)
    head_end = min(end, HEAD_BYTES)
    tail_start = max(head_end, end - TAIL_BYTES)
    for place in range(0, head_end, PIECE_BYTES):
        yield place, min(PIECE_BYTES, head_end - place)
    spots = [1 << power for power in range(HEAD_BYTES.bit_length(), end.bit_length())]
    spots += [align_down(head_end + number * (tail_start - head_end) // SAMPLES) for number in range(SAMPLES)]
    for place in sorted(dict.fromkeys(spots)):
        if head_end <= place < tail_start:
            yield place, BLOCK_BYTES
    if tail_start < end:
        yield tail_start, end - tail_start


def find_content(data: bytes, place: int) -> WalCorrupt | None:
    """What is to be told of the bytes at `place`, which is a multiple of a block; None where they are
    blank."""
    if place == 0 and is_begun_copy(data[BLOCK_BYTES : 2 * BLOCK_BYTES]):
        data = data[:BLOCK_BYTES] + bytes(BLOCK_BYTES) + data[2 * BLOCK_BYTES :]
    if data == bytes(len(data)):
        return None
    ours = _ours(data, place)  # first: what wrote over a log's header left its records
    if ours is not None:
        return ours
    if place == 0:
        for at, magic, name in SIGNATURES:
            if data[at : at + len(magic)] == magic:
                return WalForeign(at, name)
    first = len(data) - len(data.lstrip(b"\0"))
    return WalForeign(place + first, f"the bytes {data[first : first + SHOWN_BYTES].hex(' ')}")


def _ours(data: bytes, place: int) -> WalHeaderLost | None:
    view = memoryview(data)
    for at in range(0, len(data), BLOCK_BYTES):
        if data.startswith(DEVICE_MAGIC, at):
            return WalHeaderLost(place + at, "what was a header of a log")
        if data.startswith(BLOCK_MAGIC_BYTES, at) and decode_block_header(
            view[at : at + BLOCK_HEADER_BYTES], 0
        ):
            return WalHeaderLost(place + at, "a block of a log")
    return None


# The fields of a header that are a place's own; all others are the same wherever a log is made.
_OWN_FIELDS = (
    (10, 16),
    (32, 40),
    (104, 168),
    (296, 300),
)  # name's length and node, capacity, cluster id, checksum


def _expected_copy() -> bytes:
    """The first copy that formatting writes, but for the own fields."""
    return DeviceHeader(
        cluster_id="", node_id=0, epoch=-1, epoch_start=0, capacity_bytes=0, trim=0, head=0, confirmed=0,
        block_bytes_max=0,
        window_bytes=0, filled_bytes=0, closed_end=0, sequence=1,
    ).encode()  # fmt: skip


def is_begun_copy(page: bytes) -> bool:
    """Whether a page is what formatting may have left of its first copy: it begins as one, and each byte is
    that copy's or zero."""
    magic = page[: len(DEVICE_MAGIC)].rstrip(b"\0")
    if len(page) < BLOCK_BYTES or not magic or not DEVICE_MAGIC.startswith(magic):
        return False
    page_left, expected = bytearray(page), bytearray(_expected_copy())
    for start, end in _OWN_FIELDS:
        page_left[start:end] = expected[start:end] = bytes(end - start)
    return all(found in (0, due) for found, due in zip(page_left, expected, strict=True))
