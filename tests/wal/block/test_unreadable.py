"""Blocks that the device cannot read (EIO): one is no worse than one that rotted, and what was never needed
does not matter."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.disk import DiskFailed
from millrace.wal.block import reading
from millrace.wal.block.device import identify
from millrace.wal.block.layout import BLOCK_BYTES, RING_START
from millrace.wal.errors import WalCorrupt
from tests.sim.disk import SimDisk, keep
from tests.wal.block.test_corruption import COUNT, bytes_of, extents, log_of_blocks
from tests.wal.build import KIB, PATH, Journal, open_wal, payload, start_wal

POLICIES = ("refuse", "skip", "truncate")


@pytest.mark.parametrize("copy", [0, BLOCK_BYTES])
def test_one_copy_of_the_header_is_enough(copy: int) -> None:
    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=True)
        disk.lose_block(PATH, copy)
        assert await identify(disk, PATH)
        _, records = await open_wal(disk, 2)
        assert [bytes(record.payload) for record in records] == bytes_of(sent)
        assert not disk.files[PATH].lost, "a start writes both copies"

    asyncio.run(run())


@pytest.mark.parametrize("is_rotten", [False, True], ids=["both unreadable", "one unreadable, one rotten"])
@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_sound_copy_the_disk_is_blamed_and_nothing_written(policy: str, is_rotten: bool) -> None:
    """What cannot be read may be there still: a log is not made over it."""

    async def run() -> None:
        disk, _ = await log_of_blocks(is_closed=True)
        before = bytes(disk.files[PATH].durable)
        disk.lose_block(PATH, 0)
        if is_rotten:
            disk.flip(PATH, BLOCK_BYTES + 20)
            before = bytes(disk.files[PATH].durable)
        else:
            disk.lose_block(PATH, BLOCK_BYTES)
        with pytest.raises(DiskFailed):
            await open_wal(disk, 2, corruption=policy)
        assert bytes(disk.files[PATH].durable) == before

    asyncio.run(run())


@pytest.mark.parametrize("copy", [0, BLOCK_BYTES])
def test_a_running_log_bears_the_loss_of_a_copy(copy: int) -> None:
    """A trim looks whether the header is still its own: the other copy tells."""

    async def run() -> None:
        wal, _, journal = await start_wal(disk := SimDisk())
        disk.lose_block(PATH, copy)
        for number in range(3):
            record = wal.append(payload(number, 1000))
            await journal.reach(record.end)
            await wal.trim(record.end)
        await wal.close()
        assert journal.failures == []
        _, records = await open_wal(disk, 2)
        assert records == []

    asyncio.run(run())


def test_without_either_it_ends() -> None:
    """Nobody can say whether a newer owner has come, whose header it would write over."""

    async def run() -> None:
        wal, _, journal = await start_wal(disk := SimDisk())
        record = wal.append(payload(1))
        await journal.reach(record.end)
        for copy in (0, BLOCK_BYTES):
            disk.lose_block(PATH, copy)
        with pytest.raises(DiskFailed):
            await wal.trim(record.end)
        assert [type(error) for error in journal.failures] == [DiskFailed]
        await wal.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "cut"])
@pytest.mark.parametrize("number", [0, 5, COUNT - 2, COUNT - 1])
def test_each_policy_on_one_block(number: int, is_closed: bool) -> None:
    """As for one that rotted; and of the last one, which rot makes a torn write of, it is told, for it may
    have been durable."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=is_closed)
        start = sent[number][0] - sent[number][0] % BLOCK_BYTES
        disk.lose_block(PATH, RING_START + start)
        with pytest.raises(
            WalCorrupt, match=rf"the device cannot read it.*byte {RING_START + start}"
        ) as refused:
            await open_wal(disk.restart(keep), 2)
        assert refused.value.position == start
        wal, records = await open_wal(disk.restart(keep), 2, corruption="skip")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:number] + sent[number + 1 :])
        assert extents(wal) == [(start, start + BLOCK_BYTES, RING_START + start, 0)]
        wal, records = await open_wal(disk.restart(keep), 2, corruption="truncate")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:number])
        assert extents(wal) == [(start, COUNT * BLOCK_BYTES, RING_START + start, COUNT - number - 1)]

    asyncio.run(run())


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_the_log_goes_on_over_the_place(policy: str) -> None:
    async def run() -> None:
        disk, _ = await log_of_blocks(is_closed=False)
        disk.lose_block(PATH, RING_START + (COUNT - 1) * BLOCK_BYTES)
        wal, _ = await open_wal(disk, 2, corruption=policy)
        await wal.reset()
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        for number in range(2):
            await journal.reach(wal.append(payload(number)).end)
        await wal.close()
        assert not disk.files[PATH].lost
        _, records = await open_wal(disk, 3)
        assert [bytes(record.payload) for record in records] == [payload(0), payload(1)]

    asyncio.run(run())


def test_a_block_in_the_midst_of_a_large_one() -> None:
    """Its header is sound, and what it holds is not there: it may have been durable, though nothing says
    so."""

    async def run() -> None:
        wal, _, journal = await start_wal(disk := SimDisk())
        sent = [payload(number, 30 * KIB) for number in range(2)]
        for data in sent:
            last = wal.append(data)
            await journal.reach(last.end)
        disk = disk.restart(keep)
        disk.lose_block(PATH, RING_START + last.position + 5 * BLOCK_BYTES)
        with pytest.raises(WalCorrupt, match="the device cannot read it, and the log may have gone on there"):
            await open_wal(disk.restart(keep), 2)
        skipping, records = await open_wal(disk.restart(keep), 2, corruption="skip")
        assert [bytes(record.payload) for record in records] == sent[:1]
        assert len(skipping.damages) == 1

    asyncio.run(run())


@pytest.mark.parametrize("policy", POLICIES)
def test_free_blocks_do_not_matter(policy: str) -> None:
    """Behind the block that the log would go on with, wherever a block ends the log."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=False)
        for block in (COUNT + 1, COUNT + 3, 40, 61):
            disk.lose_block(PATH, RING_START + block * BLOCK_BYTES)
        wal, records = await open_wal(disk, 2, corruption=policy)
        assert [bytes(record.payload) for record in records] == bytes_of(sent)
        assert wal.damages == []
        wal.start(lambda end: None, lambda error: None)

    asyncio.run(run())


@pytest.mark.parametrize("policy", POLICIES)
def test_the_ring_s_first_block_does_not_matter_where_the_lap_has_room(policy: str) -> None:
    """The log would go on there only if a block had been too long for the rest of the lap."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=False, trimmed=4)
        disk.lose_block(PATH, RING_START)
        wal, records = await open_wal(disk, 2, corruption=policy)
        assert [bytes(record.payload) for record in records] == bytes_of(sent[4:])
        assert wal.damages == []

    asyncio.run(run())


@pytest.mark.parametrize("policy", POLICIES)
def test_nor_does_what_lies_behind_a_log_that_was_closed(policy: str) -> None:
    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=True)
        disk.lose_block(PATH, RING_START + COUNT * BLOCK_BYTES)
        wal, records = await open_wal(disk, 2, corruption=policy)
        assert [bytes(record.payload) for record in records] == bytes_of(sent)
        assert wal.damages == []

    asyncio.run(run())


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_nor_is_it_told_as_a_part_of_what_was_lost(policy: str) -> None:
    """Damage before the end of a log that was closed ends there, however much was read with it: who compares
    it with what metadata says that the log held would take an older copy for the log."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=True)
        last = sent[-1][0] - sent[-1][0] % BLOCK_BYTES
        disk.flip(PATH, RING_START + last + 500)
        for block in (COUNT, COUNT + 2):
            disk.lose_block(PATH, RING_START + block * BLOCK_BYTES)
        wal, records = await open_wal(disk, 2, corruption=policy)
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:-1])
        assert extents(wal) == [(last, COUNT * BLOCK_BYTES, RING_START + last, 0)]

    asyncio.run(run())


def test_the_rest_of_a_lap_that_was_skipped_may_be_unreadable() -> None:
    """The block that follows in the next lap says where the one before it ended."""

    async def run() -> None:
        wal, _, journal = await start_wal(disk := SimDisk())
        sent: list[tuple[int, bytes]] = []
        ring_bytes = wal.capacity_bytes
        while not sent or sent[-1][0] < ring_bytes:
            data = payload(len(sent), 30 * KIB)
            record = wal.append(data)
            await journal.reach(record.end)
            sent.append((record.position, data))
            if len(sent) > 4:
                await wal.trim(sent[-3][0])
        skipped = (sent[-2][0] + 30 * KIB) // BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES
        assert skipped < ring_bytes
        disk = disk.restart(keep)
        disk.lose_block(PATH, RING_START + skipped)
        wal, records = await open_wal(disk, 2)
        assert [bytes(record.payload) for record in records] == [data for _, data in sent[-len(records) :]]
        assert records[-1].position == sent[-1][0]
        assert wal.damages == []

    asyncio.run(run())


@pytest.mark.parametrize("count", [1, 3])
def test_a_block_that_was_begun_where_nobody_can_say_whether_it_was_durable(count: int) -> None:
    """It rotted, and all that was written behind it cannot be read: that is no end of the log to go on from
    in silence."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=False)
        starts = [position - position % BLOCK_BYTES for position, _ in sent]
        number = COUNT - 1 - count
        disk.flip(PATH, RING_START + starts[number] + 500)
        for start in starts[number + 1 :]:
            disk.lose_block(PATH, RING_START + start)
        with pytest.raises(WalCorrupt, match="the device cannot read what may say that it was durable"):
            await open_wal(disk.restart(keep), 2)
        for policy in ("skip", "truncate"):
            wal, records = await open_wal(disk.restart(keep), 2, corruption=policy)
            assert [bytes(record.payload) for record in records] == bytes_of(sent[:number])
            assert extents(wal) == [(starts[number], COUNT * BLOCK_BYTES, RING_START + starts[number], 0)]

    asyncio.run(run())


def test_each_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each damage the scan comes back to what it has read; a failing disk takes seconds to answer, and
    the bound counts places."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=False)
        monkeypatch.setattr(reading, "UNREADABLE_BYTES_MAX", 4 * BLOCK_BYTES)
        for number in (1, 3, 5, 7):
            disk.lose_block(PATH, RING_START + number * BLOCK_BYTES)
        wal, records = await open_wal(disk, 2, corruption="skip")
        assert [bytes(record.payload) for record in records] == bytes_of([*sent[:8:2], *sent[8:]])
        assert len(wal.damages) == 4
        assert disk.hits["unreadable"] == 1 + 4, "all at once, and each by itself"

    asyncio.run(run())


def test_a_ring_that_cannot_be_read_is_a_device_that_fails() -> None:
    """A quarter of a small one is enough: a device that is away for a moment does not empty its log."""

    async def run() -> None:
        disk, _ = await log_of_blocks(is_closed=False)
        for at in range(RING_START, len(disk.files[PATH].durable), BLOCK_BYTES):
            disk.lose_block(PATH, at)
        with pytest.raises(DiskFailed):
            await open_wal(disk, 2, corruption="truncate")

    asyncio.run(run())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_device_that_fails_is_no_bad_sector(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the device's own error ends the start under every policy, and nothing is changed."""

    async def run() -> None:
        disk, _ = await log_of_blocks(is_closed=False)
        monkeypatch.setattr(reading, "UNREADABLE_BYTES_MAX", 4 * BLOCK_BYTES)
        for block in range(5, 10):
            disk.lose_block(PATH, RING_START + block * BLOCK_BYTES)
        before = bytes(disk.files[PATH].durable)
        with pytest.raises(DiskFailed):
            await open_wal(disk, 2, corruption=policy)
        assert bytes(disk.files[PATH].durable) == before

    asyncio.run(run())
