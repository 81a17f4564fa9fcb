"""What recovery does about a damaged record in the middle, as wal.corruption says: refuses, steps over it, or
ends the log before it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millrace.runtime.disk import DiskFailed
from millrace.runtime.rand import Rand
from millrace.wal.block.layout import BLOCK_BYTES, RING_START
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalCorrupt, WalOutdated
from tests.sim.disk import SimDisk, holes, keep
from tests.wal.block.test_damage import filled_disk
from tests.wal.build import PATH, Journal, open_wal, owner, payload, small_settings, start_wal

COUNT = 12


async def log_of_blocks(*, is_closed: bool, trimmed: int = 0) -> tuple[SimDisk, list[tuple[int, bytes]]]:
    """COUNT records, a block each, the first `trimmed` of them forgotten; (position, payload)."""
    disk = SimDisk()
    wal, _, journal = await start_wal(disk)
    sent = []
    for number in range(COUNT):
        record = wal.append(payload(number, 1000))
        sent.append((record.position, bytes(record.payload)))
        await journal.reach(record.end)
        if number + 1 == trimmed:
            await wal.trim(record.end)
    if is_closed:
        await wal.close()
    return disk.restart(keep), sent


def bytes_of(records: list[tuple[int, bytes]]) -> list[bytes]:
    return [data for _, data in records]


def extents(wal: BlockWal) -> list[tuple[int, int, int, int]]:
    """What recovery says that it gave up: positions, the first one's byte, and how many records of it are
    sound."""
    return [(damage.start, damage.end, damage.place, damage.sound_count) for damage in wal.damages]


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "cut"])
@pytest.mark.parametrize("number", [0, 5, COUNT - 2])
def test_each_policy_on_one_damaged_block(number: int, is_closed: bool) -> None:
    """Refused with its position and its byte in the file; stepped over, all but that one are there;
    truncated, all before it."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=is_closed)
        position = sent[number][0]
        start = position - position % BLOCK_BYTES
        disk.flip(PATH, RING_START + position + 500)
        with pytest.raises(WalCorrupt) as refused:
            await open_wal(disk.restart(keep), 2)
        assert refused.value.position == start
        assert f"byte {RING_START + start}" in str(refused.value)
        wal, records = await open_wal(disk.restart(keep), 2, corruption="skip")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:number] + sent[number + 1 :])
        assert extents(wal) == [(start, start + BLOCK_BYTES, RING_START + start, 0)]
        wal, records = await open_wal(disk.restart(keep), 2, corruption="truncate")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:number])
        assert extents(wal) == [(start, COUNT * BLOCK_BYTES, RING_START + start, COUNT - number - 1)]
        assert len(wal._ends) == number, "blocks that are given up are not remembered"

    asyncio.run(run())


def test_damage_at_the_end_of_a_closed_log() -> None:
    """The last block is known to have been there: refused, and both other policies end before it."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=True)
        disk.flip(PATH, RING_START + sent[-1][0])
        with pytest.raises(WalCorrupt):
            await open_wal(disk.restart(keep), 2)
        for policy in ("skip", "truncate"):
            wal, records = await open_wal(disk.restart(keep), 2, corruption=policy)
            assert [bytes(record.payload) for record in records] == bytes_of(sent[:-1])
            start = (COUNT - 1) * BLOCK_BYTES
            assert extents(wal) == [(start, COUNT * BLOCK_BYTES, RING_START + start, 0)]

    asyncio.run(run())


@pytest.mark.parametrize("what", ["unreadable", "rotten"])
def test_damage_in_a_lap_that_a_close_ended(what: str) -> None:
    """The log was closed where a lap ends: damage before it is no skipped rest of that lap."""

    async def run() -> None:
        wal, _, journal = await start_wal(disk := SimDisk())
        sent: list[tuple[int, bytes]] = []
        while wal.confirmed_end < wal.capacity_bytes:
            record = wal.append(payload(len(sent), 4000))
            sent.append((record.position, bytes(record.payload)))
            await journal.reach(record.end)
            if len(sent) == 40:
                await wal.trim(record.end)
        assert wal._batcher.tail == wal.capacity_bytes
        await wal.close()
        sent = sent[40:]
        start = sent[5][0] - sent[5][0] % BLOCK_BYTES
        spoil = disk.flip if what == "rotten" else disk.lose_block
        spoil(PATH, RING_START + start + 500)
        with pytest.raises(WalCorrupt) as refused:
            await open_wal(disk.restart(keep), 2)
        assert refused.value.position == start
        wal, records = await open_wal(disk.restart(keep), 2, corruption="skip")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:5] + sent[6:])
        wal, records = await open_wal(disk.restart(keep), 2, corruption="truncate")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:5])

    asyncio.run(run())


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "cut"])
def test_the_whole_of_what_is_given_up_is_told(is_closed: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Several places are damaged. Stepping over tells each from where it begins to where the log goes on; the
    last is followed by nothing sound, and reaches to the end of the last block that is known of. Truncating
    tells one, from the first on to the end, with what is sound in it."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=is_closed)
        starts = [position - position % BLOCK_BYTES for position, _ in sent]
        disk.flip(PATH, RING_START + starts[2] + 1)
        disk.flip(PATH, RING_START + starts[5] + 500)
        disk.flip(PATH, RING_START + starts[6] + 500)
        disk.flip(PATH, RING_START + starts[-3] + 1)
        # The headers of the last two are sound: the first says that the block before it was durable, the
        # other is the end of what is known.
        disk.flip(PATH, RING_START + starts[-2] + 500)
        disk.flip(PATH, RING_START + starts[-1] + 500)
        wal, records = await open_wal(disk.restart(keep), 2, corruption="skip")
        kept = [0, 1, 3, 4, 7, 8]
        assert [bytes(record.payload) for record in records] == [sent[number][1] for number in kept]
        assert extents(wal) == [
            (starts[2], starts[3], RING_START + starts[2], 0),
            (starts[5], starts[7], RING_START + starts[5], 0),
            (starts[-3], starts[-1] + BLOCK_BYTES, RING_START + starts[-3], 0),
        ]
        caplog.clear()
        wal, records = await open_wal(disk.restart(keep), 2, corruption="truncate")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[:2])
        assert extents(wal) == [(starts[2], starts[-1] + BLOCK_BYTES, RING_START + starts[2], len(kept) - 2)]
        assert (
            f"without positions {starts[2]} to {starts[-1] + BLOCK_BYTES}, and so without 4 records"
            in caplog.text
        )

    asyncio.run(run())


def test_what_cannot_be_read_behind_the_cut_does_not_keep_the_log_from_its_start() -> None:
    """It is given up anyway. What is known to have been there is told still."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk, capacity_bytes=8 << 20)
        for number in range(100):
            await journal.reach(wal.append(payload(number, 30_000)).end)
        await wal.close()
        disk = disk.restart(keep)
        disk.flip(PATH, RING_START + 100)
        wal = await BlockWal.open(disk, PATH, small_settings(corruption="truncate"), owner(2))
        file = wal._device.file
        read_at, reads = file.read_at, 0

        async def fails_later(position: int, length: int) -> bytes:
            nonlocal reads
            reads += 1
            if reads > 2:
                raise DiskFailed(PATH, "Input/output error")
            return await read_at(position, length)

        file.read_at = fails_later  # type: ignore[method-assign]
        assert [record async for record in wal.recover()] == []
        ((start, end, _, count),) = extents(wal)
        assert (start, end) == (0, wal._device.header.confirmed)
        assert 0 < count < 99
        file.read_at = read_at  # type: ignore[method-assign]
        await wal.reset()

    asyncio.run(run())


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_the_log_goes_on_afterwards(policy: str) -> None:
    """What is appended after such a recovery, and its reset, comes back to an owner that refuses damage; what
    was cut off never does."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=False)
        disk.flip(PATH, RING_START + sent[4][0])
        wal, _ = await open_wal(disk, 2, corruption=policy)
        await wal.reset()
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        await journal.reach(wal.append(payload(77)).end)
        await wal.close()
        _, records = await open_wal(disk, 3)
        assert [bytes(record.payload) for record in records] == [payload(77)]

    asyncio.run(run())


def test_an_owner_that_dies_after_it_stepped_over_begins_again() -> None:
    """Before its reset nothing is forgotten: the next owner under the same policy finds the same records and
    the same damage."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=False)
        disk.flip(PATH, RING_START + sent[4][0])
        first, before = await open_wal(disk, 2, corruption="skip")
        again, after = await open_wal(disk.restart(keep), 3, corruption="skip")
        assert [bytes(record.payload) for record in after] == [bytes(record.payload) for record in before]
        assert again.damages[0].start == first.damages[0].start

    asyncio.run(run())


def test_what_an_older_owner_left_behind_its_hole_stays_void() -> None:
    """Blocks of an owner that ended in a hole lie under those of the next one. Where writes over them never
    reached the device, a later start steps over the places: what shows through there was never part of the
    log."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, _ = await start_wal(disk)
        for number in range(6):
            wal.append(payload(number, 9000))
        await asyncio.sleep(0)
        disk = disk.restart(holes())
        left = bytes(disk.files[PATH].durable)
        wal, recovered, journal = await start_wal(disk, 2)
        assert recovered == []
        sent = []
        for number in range(10, 16):
            record = wal.append(payload(number, 9000))
            sent.append((record.position, bytes(record.payload)))
            await journal.reach(record.end)
        await open_wal(disk := disk.restart(keep), 3)  # it dies before its reset
        disk = disk.restart(keep)
        lost_end = RING_START + sent[3][0] // BLOCK_BYTES * BLOCK_BYTES
        assert left[RING_START + sent[1][0] :][:9000] != bytes(9000), "the older owner's block lies there"
        for image in (disk.files[PATH].durable, disk.files[PATH].visible):
            image[RING_START:lost_end] = left[RING_START:lost_end]
        _, records = await open_wal(disk, 4, corruption="skip")
        assert [bytes(record.payload) for record in records] == bytes_of(sent[3:])

    asyncio.run(run())


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_a_start_that_fails_after_damage_changes_nothing(policy: str) -> None:
    """Until the reset the device is as it was: who takes what was left of the log for too little can choose
    again."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=False)
        disk.flip(PATH, RING_START + sent[4][0])
        before = bytes(disk.files[PATH].durable)
        wal, _ = await open_wal(disk, 2, corruption=policy)
        await wal.close()
        assert bytes(disk.files[PATH].durable) == before
        with pytest.raises(WalCorrupt):
            await open_wal(disk, 2)
        disk = disk.restart(keep)
        wal, _ = await open_wal(disk, 2, corruption=policy)
        await wal.reset()
        await wal.close()
        _, records = await open_wal(disk, 3)
        assert records == []

    asyncio.run(run())


def test_what_was_forgotten_may_be_damaged_when_the_log_is_cut_there() -> None:
    """Truncated below the trim point: the trim point follows, and the log takes appends and trims again."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        records = [wal.append(payload(number, 1000)) for number in range(6)]
        await journal.reach(records[-1].end)
        await wal.trim(records[3].end)
        await wal.close()
        head = records[0].position - records[0].position % BLOCK_BYTES
        disk.flip(PATH, RING_START + head)
        wal, found = await open_wal(disk, 2, corruption="truncate")
        assert found == []
        await wal.reset()
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        for number in range(200):
            record = wal.append(payload(number, 2000))
            await journal.reach(record.end)
            await wal.trim(record.end)
        await wal.close()
        _, found = await open_wal(disk, 3)
        assert found == []

    asyncio.run(run())


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "cut"])
def test_random_damage_under_every_policy(is_closed: bool) -> None:
    """Flips anywhere in a log of several laps: stepping over loses nothing outside the places that it names,
    truncating keeps a run from the first record on; neither gives a record that was never appended, and
    neither ends in anything but a log."""

    async def run() -> None:
        rand = Rand(b"policies")
        disk, sent, _ = await filled_disk(is_closed=is_closed)
        known = {data: number for number, data in enumerate(sent)}
        skipped_some = 0
        for _ in range(40):
            damaged = disk.restart(keep)
            for _ in range(1 + rand.below(3)):
                damaged.flip(PATH, RING_START + rand.below(len(damaged.files[PATH].durable) - RING_START))
            skipping, records = await open_wal(damaged.restart(keep), 9, corruption="skip")
            numbers = [known[bytes(record.payload)] for record in records]
            assert numbers == sorted(set(numbers))
            if not skipping.damages:
                continue
            skipped_some += 1
            positions = [record.position for record in records]
            for damage in skipping.damages:
                assert not any(damage.start <= position < damage.end for position in positions)
                assert damage.start < damage.end
            cutting, kept = await open_wal(damaged.restart(keep), 9, corruption="truncate")
            count = len(kept)
            assert [known[bytes(record.payload)] for record in kept] == numbers[:count]
            assert numbers[:count] == list(range(numbers[0], numbers[0] + count)) if count else True
            (cut,) = cutting.damages
            assert cut.start == skipping.damages[0].start
            assert cut.sound_count == len(records) - count
            assert cut.end >= max([skipping.damages[-1].end, *(record.end for record in records)])
        assert skipped_some > 10

    asyncio.run(run())


async def opened(disk: SimDisk, epoch: int, committed_end: int, policy: str) -> tuple[BlockWal, list[bytes]]:
    """By an owner whose metadata says up to where the log is committed."""
    owned = replace(owner(epoch), committed_end=committed_end)
    wal = await BlockWal.open(disk, PATH, small_settings(corruption=policy), owned)
    return wal, [bytes(record.payload) async for record in wal.recover()]


@pytest.mark.parametrize(
    ("policy", "number"), [("truncate", 0), ("truncate", 5), ("truncate", COUNT - 1), ("skip", COUNT - 1)]
)
def test_a_log_that_is_cut_below_what_is_committed_is_no_older_copy(policy: str, number: int) -> None:
    """It goes on where metadata knows it to have been, through a crash at each step: a start after that,
    which gives nothing up, finds all that was appended since, and takes the log for no older copy either."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=True)
        committed_end = sent[-1][0] + 900  # the end of a record need not be that of a block
        disk.flip(PATH, RING_START + sent[number][0] + 500)
        disk = disk.restart(keep)
        wal, records = await opened(disk, 2, committed_end, policy)
        assert records == bytes_of(sent[:number])
        assert wal.has_given_up
        disk = disk.restart(keep)  # killed before the reset
        wal, records = await opened(disk, 3, committed_end, policy)
        assert records == bytes_of(sent[:number])
        await wal.reset()
        disk = disk.restart(keep)  # killed behind it
        wal, records = await opened(disk, 4, committed_end, "refuse")
        assert records == []
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        record = wal.append(payload(99, 1000))
        assert record.position >= committed_end
        await journal.reach(record.end)
        _, records = await opened(disk.restart(keep), 5, committed_end, "refuse")
        assert records == [payload(99, 1000)]

    asyncio.run(run())


@pytest.mark.parametrize("policy", ["skip", "truncate"])
def test_an_older_copy_that_is_damaged_is_older_still(policy: str) -> None:
    """No policy gives up what lies behind the end of the copy."""

    async def run() -> None:
        disk, sent = await log_of_blocks(is_closed=True)
        disk.flip(PATH, RING_START + sent[5][0] + 500)
        with pytest.raises(WalOutdated):
            await opened(disk.restart(keep), 2, COUNT * BLOCK_BYTES + 1, policy)

    asyncio.run(run())
