"""Damaged images: every record that was confirmed comes back whole, or WalCorrupt names a place. Never less,
silently."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.block.layout import BLOCK_BYTES, RING_START
from millrace.wal.errors import WalCorrupt, WalHeaderLost, WalMismatch
from millrace.wal.log import WalRecord
from tests.sim.disk import Misdirect, SimDisk, keep
from tests.wal.build import KIB, PATH, open_wal, payload, start_wal


async def filled_disk(*, is_closed: bool) -> tuple[SimDisk, list[bytes], int]:
    """A log with trims and a wrapped ring; the records that must come back, and how many were trimmed."""
    disk = SimDisk(Rand(b"damage"))
    sent: list[bytes] = []
    ends: list[int] = []
    trimmed = 0
    for epoch in (1, 2):
        wal, _, journal = await start_wal(disk, epoch)
        target = wal.confirmed_end + 200 * KIB
        while wal.confirmed_end < target:
            sent.append(payload(len(sent), 200 + 1777 * len(sent) % 6000))
            record = wal.append(sent[-1])
            ends.append(record.end)
            await journal.reach(record.end)
            if wal.room_bytes < 20 * KIB:
                await wal.trim(ends[-20])
                trimmed = len(sent) - 19
        if is_closed or epoch == 1:
            await wal.close()
    return disk, sent, trimmed


async def outcome(disk: SimDisk) -> list[bytes] | WalCorrupt:
    try:
        _, records = await open_wal(disk.restart(keep), 9)
    except WalCorrupt as error:
        return error
    return [bytes(record.payload) for record in records]


@pytest.mark.parametrize("seed", range(4))
def test_random_flips_in_a_closed_log(seed: int) -> None:
    """After an orderly close any flipped bit leaves all records as they were, or is reported. Old trims may
    come back."""

    async def run() -> None:
        rand = Rand(b"flip%d" % seed)
        disk, sent, trimmed = await filled_disk(is_closed=True)
        reported = 0
        for _ in range(60):
            place = rand.below(len(disk.files[PATH].durable))
            mask = 1 << rand.below(8)
            disk.flip(PATH, place, mask)
            found = await outcome(disk)
            disk.flip(PATH, place, mask)
            if isinstance(found, WalCorrupt):
                reported += 1
            else:
                assert found == sent[len(sent) - len(found) :]
                assert len(found) >= len(sent) - trimmed
        assert reported > 5

    asyncio.run(run())


@pytest.mark.parametrize("how", ["unreadable", "rotten"])
@pytest.mark.parametrize("copy", [0, BLOCK_BYTES])
def test_either_copy_of_the_header_may_be_lost_at_any_time(copy: int, how: str) -> None:
    """After each trim, also once all that it freed was written over: everything since then comes back from
    the other copy alone."""

    async def run() -> None:
        wal, _, journal = await start_wal(disk := SimDisk())
        sent: list[WalRecord] = []
        trimmed = losses = 0
        while wal.confirmed_end < 3 * wal.capacity_bytes:
            sent.append(wal.append(payload(len(sent), 3000)))
            await journal.reach(sent[-1].end)
            if wal.room_bytes < 20 * KIB:
                trimmed = len(sent) - len(sent) % 7
                await wal.trim(sent[trimmed - 1].end)
            if len(sent) % 5 and wal.room_bytes > 30 * KIB:
                continue
            losses += 1
            left = disk.restart(keep)
            if how == "rotten":
                left.flip(PATH, copy + 50)
            else:
                left.lose_block(PATH, copy)
            _, records = await open_wal(left, 9)
            assert [record.position for record in records] == [record.position for record in sent[trimmed:]]
        assert losses > 50

    asyncio.run(run())


def test_random_flips_in_a_log_that_was_cut() -> None:
    """Without a close, only records of the last writes can be taken for the tail; everything before is
    reported."""

    async def run() -> None:
        rand = Rand(b"flips")
        disk, sent, trimmed = await filled_disk(is_closed=False)
        for _ in range(150):
            place = rand.below(len(disk.files[PATH].durable))
            disk.flip(PATH, place)
            found = await outcome(disk)
            disk.flip(PATH, place)
            if not isinstance(found, WalCorrupt):
                first = next(index for index in range(trimmed + 1) if sent[index : index + 1] == found[:1])
                assert found == sent[first : first + len(found)]
                assert first + len(found) >= len(sent) - 2

    asyncio.run(run())


def test_everything_behind_a_block_is_gone() -> None:
    """With the image zeroed from any block on, the loss of a confirmed record is always reported after a
    close."""

    async def run() -> None:
        disk, sent, trimmed = await filled_disk(is_closed=True)
        image = bytes(disk.files[PATH].durable)
        live = sent[trimmed:]
        for place in range(RING_START, len(image), BLOCK_BYTES):
            damaged = image[:place] + bytes(len(image) - place)
            disk.files[PATH].durable[:] = disk.files[PATH].visible[:] = damaged
            found = await outcome(disk)
            assert isinstance(found, WalCorrupt) or found == live

    asyncio.run(run())


def test_a_file_that_was_cut_short_is_refused() -> None:
    """A file smaller than its header says is refused with both sizes, at any length that still holds a
    header."""

    async def run() -> None:
        disk, _, _ = await filled_disk(is_closed=True)
        image = bytes(disk.files[PATH].durable)
        for length in range(RING_START, len(image), 8 * BLOCK_BYTES):
            shorter = disk.restart(keep)
            shorter.files[PATH].durable = bytearray(image[:length])
            shorter.files[PATH].visible = bytearray(image[:length])
            with pytest.raises(WalMismatch) as mismatch:
                await open_wal(shorter, 9)
            assert (mismatch.value.expected, mismatch.value.found) == (len(image), length)

    asyncio.run(run())


def test_either_copy_of_the_header_may_rot() -> None:
    """With one copy unreadable the other serves, also right after a new owner came: its epoch stands in
    both."""

    async def run() -> None:
        disk = SimDisk()
        for epoch in range(1, 6):
            wal, recovered, journal = await start_wal(disk, epoch)
            assert recovered == [payload(number) for number in range(epoch - 1)]
            record = wal.append(payload(epoch - 1))
            await journal.reach(record.end)
            for copy in (0, 1):
                rotten = disk.restart(keep)
                rotten.flip(PATH, copy * BLOCK_BYTES + 30)
                _, records = await open_wal(rotten, 20)
                assert [bytes(record.payload) for record in records] == [
                    payload(number) for number in range(epoch)
                ]
            disk = disk.restart(keep)

    asyncio.run(run())


def test_both_copies_unreadable_is_damage() -> None:
    """A log whose two header copies are both unreadable is not formatted anew."""

    async def run() -> None:
        disk, _, _ = await filled_disk(is_closed=True)
        disk.flip(PATH, 10)
        disk.flip(PATH, BLOCK_BYTES + 10)
        assert isinstance(await outcome(disk), WalHeaderLost)

    asyncio.run(run())


def test_a_misdirected_write_is_noticed() -> None:
    """A write that lands elsewhere and reports success: what is missing, or overwritten, is reported after a
    close."""

    async def run() -> None:
        for number in range(6, 27, 3):
            for delta in (-BLOCK_BYTES, BLOCK_BYTES, 5 * BLOCK_BYTES):
                disk = SimDisk()
                disk.at_write(number, Misdirect(delta))
                wal, _, journal = await start_wal(disk, 1)
                sent = [payload(index, 5000) for index in range(24)]
                for data in sent:
                    await journal.reach(wal.append(data).end)
                await wal.close()
                assert disk.hits["misdirect"] == 1
                assert isinstance(await outcome(disk), WalCorrupt)

    asyncio.run(run())


def test_damage_is_found_before_anything_is_changed() -> None:
    """An owner that meets damage leaves the device as it was, so that it can be looked at, and opened
    again."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk, 1)
        records = [wal.append(payload(index, 3000)) for index in range(10)]
        await journal.reach(records[-1].end)
        await wal.close()
        disk.flip(PATH, RING_START + 100)
        before = bytes(disk.files[PATH].durable)
        for _ in range(2):
            with pytest.raises(WalCorrupt):
                await open_wal(disk, 2)
            assert bytes(disk.files[PATH].durable) == before
            disk = disk.restart(keep)

    asyncio.run(run())


def test_padding_is_zeros() -> None:
    """Between the last record of a block and the next block nothing of older memory reaches the device."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk, 1)
        for number in range(60):
            length = 4000 if number < 40 else 10
            record = wal.append(b"\xaa" * length)
            await journal.reach(record.end)
            await wal.trim(record.end)
            block_end = 2 * BLOCK_BYTES + (wal.confirmed_end - 1) % wal.capacity_bytes + 1
            start = block_end - (wal.confirmed_end - record.end)
            assert not any(disk.files[PATH].durable[start:block_end])
            del record

    asyncio.run(run())
