"""Where a log is made: on what reads as zeros, and nowhere else. What is refused is left as it is, to the
byte."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wal.block.blank import HEAD_BYTES, TAIL_BYTES, find_content, is_begun_copy, looks
from millrace.wal.block.device import identify
from millrace.wal.block.layout import BLOCK_BYTES, RING_START, DeviceHeader, align_down, choose_device_header
from millrace.wal.errors import WalForeign, WalHeaderLost
from tests.sim.disk import SimDisk, keep
from tests.wal.build import KIB, PATH, open_wal, payload, start_wal

MIB = 1024 * KIB
DISK_BYTES = 16 * MIB
BOOT = bytes(446) + bytes.fromhex("000002 00ee ffffff 01000000 ffff0100") + bytes(48) + b"\x55\xaa"
FIRST_COPY = DeviceHeader(
    cluster_id="a cluster", node_id=7, epoch=-1, epoch_start=0, capacity_bytes=1 << 31, trim=0, head=0,
    confirmed=0,
    block_bytes_max=0, window_bytes=0, filled_bytes=0, closed_end=0, sequence=1,
)  # fmt: skip

# What is on the disk, where the refusal finds it, and what it calls it.
FOREIGN: dict[str, tuple[dict[int, bytes], int, str]] = {
    "partition table": ({0: BOOT}, 510, "a partition table or boot sector"),
    "GPT of two entries": (
        {0: BOOT, 512: b"EFI PART\0\0\1\0", 1024: b"\xaf" * 256},
        512,
        "a partition table (GPT)",
    ),
    "RAID member": ({4096: b"\xfc\x4e\x2b\xa9\1\0\0\0"}, 4096, "a member of a RAID (md)"),
    "btrfs": ({65600: b"_BHRfS_M", 1 * MIB: b"precious"}, 65600, "a btrfs file system"),
    "ext": ({1080: b"\x53\xef", 8192: b"groups"}, 1080, "an ext file system"),
    "LVM": ({512: b"LABELONE"}, 512, "a physical volume (LVM)"),
    "text": ({0: b"my notes\n"}, 0, "the bytes 6d 79 20 6e 6f 74 65 73"),
    "the letter of a header, in the wrong place": ({0: b"M"}, 0, "the bytes 4d 00"),
    "text where the second header goes": ({4096: b"MRBL and more"}, 4096, "the bytes 4d 52 42 4c 20"),
    "a byte of the first megabytes": ({HEAD_BYTES - 1: b"x"}, HEAD_BYTES - 1, "the bytes 78"),
    "a copy at a power of two": ({8 * MIB + 64: b"_BHRfS_M"}, 8 * MIB + 64, "the bytes 5f 42 48"),
    "a backup at the end": ({DISK_BYTES - 512: b"EFI PART"}, DISK_BYTES - 512, "the bytes 45 46 49"),
    "labels near the end": ({DISK_BYTES - 512 * KIB: b"label"}, DISK_BYTES - 512 * KIB, "the bytes 6c 61"),
}


def written(pieces: dict[int, bytes], size_bytes: int = DISK_BYTES) -> bytes:
    image = bytearray(size_bytes)
    for place, data in pieces.items():
        image[place : place + len(data)] = data
    return bytes(image)


def disk_with(image: bytes, *, is_device: bool) -> SimDisk:
    disk = SimDisk()
    disk.add_device(PATH, len(image))
    disk.files[PATH].is_device = is_device
    disk.files[PATH].durable[:] = disk.files[PATH].visible[:] = image
    return disk


async def refusal(disk: SimDisk) -> WalForeign | WalHeaderLost:
    """What is said of it, at a start and before one; nothing of it changed."""
    before = bytes(disk.files[PATH].durable)
    with pytest.raises((WalForeign, WalHeaderLost)) as asked:
        await identify(disk, PATH)
    with pytest.raises((WalForeign, WalHeaderLost)) as refused:
        await open_wal(disk, 9)
    assert str(asked.value) == str(refused.value)
    assert disk.write_count == 0
    assert bytes(disk.files[PATH].durable) == before
    return refused.value


@pytest.mark.parametrize("is_device", [True, False], ids=["device", "file"])
@pytest.mark.parametrize("name", FOREIGN)
def test_what_holds_something_else_is_refused(name: str, is_device: bool) -> None:
    """The byte and what lies there are named, wherever formats keep what they are known by, also behind a
    page of zeros."""
    pieces, place, what = FOREIGN[name]

    async def run() -> None:
        error = await refusal(disk_with(written(pieces), is_device=is_device))
        assert isinstance(error, WalForeign)
        assert error.place == place
        assert error.what.startswith(what)

    asyncio.run(run())


@pytest.mark.parametrize("size_bytes", [5, 4096, 5000, 8191, 8192, 10_001])
def test_a_short_file_that_is_not_ours_is_not_made_longer(size_bytes: int) -> None:
    """A file too short for a header is taken for one whose making was cut only if it holds nothing."""

    async def run() -> None:
        disk = disk_with(written({3: b"x"}, size_bytes), is_device=False)
        assert isinstance(await refusal(disk), WalForeign)
        wal, _, _ = await start_wal(disk_with(bytes(size_bytes), is_device=False))
        await wal.close()

    asyncio.run(run())


async def log_of_ours(count: int) -> SimDisk:
    disk = SimDisk()
    wal, _, journal = await start_wal(disk)
    for number in range(count):
        await journal.reach(wal.append(payload(number, 2000)).end)
    await wal.close()
    return disk.restart(keep)


@pytest.mark.parametrize(
    "record_bytes", [1000, 1500 * KIB], ids=["short blocks", "blocks beyond the first look"]
)
def test_a_log_under_a_fresh_partition_table_is_still_a_log(record_bytes: int) -> None:
    """A partitioner writes the first 17 KiB and leaves the records: to clear the device would lose them."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(
            disk, capacity_bytes=8 * MIB, max_record_bytes=2 * MIB, arena_bytes=2 * MIB
        )
        for number in range(40 * 1000 // record_bytes + 2):
            await journal.reach(wal.append(bytes([number + 1]) * record_bytes).end)
        await wal.close()
        disk = disk.restart(keep)
        table = bytearray(34 * 512)
        table[510:512], table[512:520] = b"\x55\xaa", b"EFI PART"
        for image in (disk.files[PATH].durable, disk.files[PATH].visible):
            image[: len(table)] = table
        error = await refusal(disk)
        assert isinstance(error, WalHeaderLost)
        assert error.place > len(table)

    asyncio.run(run())


@pytest.mark.parametrize("count", [0, 1, 40])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("zeros", "zeros"),
        ("zeros", "flip"),
        ("flip", "zeros"),
        ("flip", "flip"),
        ("noise", "noise"),
        ("zeros", "noise"),
    ],
)
def test_a_log_that_lost_its_header_is_not_formatted(first: str, second: str, count: int) -> None:
    """Records that are there, or what is left of a copy that an owner wrote, tell a log of ours from a new
    place. It is said that it is one; but where nothing is left but zeros, nothing is lost."""

    async def run() -> None:
        disk = await log_of_ours(count)
        for image in (disk.files[PATH].durable, disk.files[PATH].visible):
            for number, harm in enumerate((first, second)):
                start = number * BLOCK_BYTES
                if harm == "flip":
                    image[start + 30] ^= 1
                else:
                    image[start : start + BLOCK_BYTES] = bytes([0xA5 if harm == "noise" else 0]) * BLOCK_BYTES
        if count == 0 and (first, second) == ("zeros", "zeros"):
            _, found, _ = await start_wal(disk, 9)
            assert found == []
            return
        error = await refusal(disk)
        if count == 0 and "noise" in (first, second):
            assert isinstance(error, WalForeign)
            return
        assert isinstance(error, WalHeaderLost)
        place = 0 if first == "flip" else BLOCK_BYTES if second == "flip" else RING_START
        assert error.place == place

    asyncio.run(run())


def test_the_beginnings_of_a_format() -> None:
    """Each part of the first copy with zeros behind it, or with a stretch of zeros in it, is what formatting
    may leave; a copy that an owner wrote, a second copy, and anything else are not."""
    copy = FIRST_COPY.encode()
    for length in range(1, 301):
        assert is_begun_copy(copy[:length].ljust(BLOCK_BYTES, b"\0")), length
    for start in range(8, 300, 7):
        assert is_begun_copy(copy[:start] + bytes(32) + copy[start + 32 :])
    for other in (
        replace(FIRST_COPY, epoch=3), replace(FIRST_COPY, sequence=2), replace(FIRST_COPY, confirmed=4096),
        replace(FIRST_COPY, closed_end=-1),
    ):  # fmt: skip
        assert not is_begun_copy(other.encode())
    for page in (
        bytes(BLOCK_BYTES),
        b"x".ljust(BLOCK_BYTES, b"\0"),
        copy[:-1] + b"x",
        b"\0" + copy[1:],
        b"",
        copy[:-1],
    ):
        assert not is_begun_copy(page)


def test_the_beginning_of_a_format_counts_where_it_is_written() -> None:
    """It is in the second copy's place that formatting begins, and all else is zeros then."""
    part = FIRST_COPY.encode()[:100].ljust(BLOCK_BYTES, b"\0")
    zeros = bytes(BLOCK_BYTES)
    assert find_content(zeros + part + zeros, 0) is None
    assert isinstance(find_content(part + zeros + zeros, 0), WalHeaderLost)
    assert isinstance(find_content(zeros + zeros + part, 0), WalHeaderLost)
    assert isinstance(find_content(zeros + zeros + part, 1 << 20), WalHeaderLost)
    assert isinstance(find_content(zeros + part + b"x", 0), WalForeign)


@given(st.integers(2, 1 << 30))
def test_what_is_looked_at(blocks: int) -> None:
    """Whole blocks in rising order; the beginning and the end, something of every part between, all of what
    is small; and little enough that a start does not wait for it, however large the place is."""
    size_bytes = blocks * BLOCK_BYTES
    seen = list(looks(size_bytes + 511))
    at = 0
    for place, length in seen:
        assert place >= at
        assert place % BLOCK_BYTES == length % BLOCK_BYTES == 0
        assert place == at or place - at <= align_down(size_bytes // 32) + BLOCK_BYTES
        at = place + length
    assert at == size_bytes
    assert seen[0][0] == 0
    covered = dict(seen)
    assert sum(covered.values()) <= HEAD_BYTES + TAIL_BYTES + 80 * BLOCK_BYTES
    assert len(seen) <= 80
    if size_bytes <= HEAD_BYTES + TAIL_BYTES:
        assert sum(covered.values()) == size_bytes


def test_a_new_log_is_no_longer_blank() -> None:
    """Once it was made, its header is what is believed, and nothing else is looked at."""

    async def run() -> None:
        disk = SimDisk()
        disk.add_device(PATH, DISK_BYTES)
        wal, _, _ = await start_wal(disk)
        await wal.close()
        data = bytes(disk.files[PATH].durable[:RING_START])
        assert choose_device_header(data[:BLOCK_BYTES], data[BLOCK_BYTES:]) is not None
        for image in (disk.files[PATH].durable, disk.files[PATH].visible):
            image[DISK_BYTES - 5 :] = b"later"
        wal, found, _ = await start_wal(disk.restart(keep), 2)
        assert found == []

    asyncio.run(run())
