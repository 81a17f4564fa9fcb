"""Zeros ahead of the log: they never touch a record, whatever the timing, and stop at the bounds."""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.rand import Rand
from millrace.wal.block.fill import plan_fill
from millrace.wal.block.layout import Geometry
from tests.sim.disk import SimDisk, any_fate
from tests.wal.build import KIB, PATH, open_wal, payload, start_wal

MIB = 1024 * KIB
RING = 8 * MIB


def test_the_plan() -> None:
    """The next stretch begins where the zeros end, or at the log if that is further, and keeps to lap, head
    and reach."""
    geometry = Geometry(RING)
    assert plan_fill(geometry, 0, 0, RING, 2 * MIB) == (0, MIB)
    assert plan_fill(geometry, MIB, 4096, RING, 2 * MIB) == (MIB, MIB)
    assert plan_fill(geometry, 3 * MIB, 4096, RING, 2 * MIB) is None
    assert plan_fill(geometry, MIB, 5 * MIB, RING, 2 * MIB) == (5 * MIB, MIB)
    assert plan_fill(geometry, RING - 4096, RING - MIB, 2 * RING, 2 * MIB) == (RING - 4096, 4096)
    assert plan_fill(geometry, RING, 0, RING, 2 * MIB) is None
    assert plan_fill(geometry, 2 * MIB, RING + MIB, RING + 2 * MIB + 4096, 2 * MIB) == (RING + 2 * MIB, 4096)
    assert plan_fill(geometry, 2 * MIB, RING + MIB, RING + 2 * MIB, 2 * MIB) is None


@pytest.mark.parametrize("seed", range(3))
def test_records_survive_the_zeros(seed: int) -> None:
    """Appends race with zeros over several lives and power cuts; no confirmed record is ever overwritten."""

    async def run() -> None:
        rand = Rand(b"fill%d" % seed)
        disk = SimDisk(rand.split("disk"), hops=12)
        expected: list[bytes] = []
        confirmed_count = 0
        for epoch in range(1, 6):
            wal, recovered, journal = await start_wal(
                disk, epoch, capacity_bytes=4 * MIB, fill_ahead_bytes=MIB, arena_bytes=64 * KIB
            )
            assert recovered[:confirmed_count] == expected[:confirmed_count]
            expected = recovered
            ends = [0] * len(recovered)
            for _ in range(40):
                for _ in range(rand.below(4)):
                    data = payload(len(expected), rand.below(16 * KIB))
                    ends.append(wal.append(data).end)
                    expected.append(data)
                for _ in range(rand.below(6)):
                    await asyncio.sleep(0)
            if rand.below(2):
                await wal.close()
            confirmed_count = sum(end <= journal.end for end in ends)
            disk.cut()
            disk = disk.restart(any_fate(rand))
        _, records = await open_wal(disk, 9, capacity_bytes=4 * MIB)
        assert [bytes(record.payload) for record in records][:confirmed_count] == expected[:confirmed_count]

    asyncio.run(run())


def test_a_block_waits_for_zeros_in_its_place() -> None:
    """A block that must go where zeros are under way is written after them, though the device has a free
    slot."""

    async def run() -> None:
        disk = SimDisk(Rand(b"wait for zeros"), hops=0)
        wal, _, journal = await start_wal(disk, 1, capacity_bytes=4 * MIB, fill_ahead_bytes=MIB)
        disk.hops = 40
        await asyncio.sleep(0)
        (zeros,) = disk.pending()
        assert len(zeros.data) == MIB
        record = wal.append(b"x" * 100)
        for _ in range(3):
            await asyncio.sleep(0)
        assert disk.pending() == [zeros]
        await journal.reach(record.end)
        await wal.close()
        _, records = await open_wal(disk, 2, capacity_bytes=4 * MIB)
        assert [bytes(record.payload) for record in records] == [b"x" * 100]

    asyncio.run(run())


def test_closing_waits_for_zeros_on_their_way() -> None:
    """A close with zeros under way writes the last block only after them."""

    async def run() -> None:
        for turns in range(6):
            disk = SimDisk(Rand(b"closing"), hops=30)
            wal, _, _ = await start_wal(disk, 1, capacity_bytes=4 * MIB, fill_ahead_bytes=MIB)
            for _ in range(turns):
                await asyncio.sleep(0)
            wal.append(b"x" * 100)
            await wal.close()
            _, records = await open_wal(disk, 2, capacity_bytes=4 * MIB)
            assert [bytes(record.payload) for record in records] == [b"x" * 100]

    asyncio.run(run())


def test_the_whole_ring_is_filled_once() -> None:
    """Zeros stay ahead by no more than asked, end with the ring, and a later life does not begin again."""

    async def run() -> None:
        disk = SimDisk(hops=0)
        wal, _, journal = await start_wal(disk, 1, capacity_bytes=4 * MIB, fill_ahead_bytes=MIB)
        disk.files[PATH].durable[8192:] = b"\xff" * (4 * MIB - 8192)  # so that zeros can be told from nothing
        for _ in range(20):
            await asyncio.sleep(0)
        written = bytes(disk.files[PATH].durable[8192:])
        assert MIB <= written.index(b"\xff" * 4096) <= 2 * MIB + 64 * KIB
        while wal.confirmed_end < wal.capacity_bytes:
            record = wal.append(bytes(30 * KIB))
            await journal.reach(record.end)
            await wal.trim(record.end)
        await wal.close()
        before = disk.write_count
        wal, _, _ = await start_wal(disk, 2, capacity_bytes=4 * MIB, fill_ahead_bytes=MIB)
        for _ in range(20):
            await asyncio.sleep(0)
        assert disk.write_count == before + 2  # the header, twice

    asyncio.run(run())
