"""The block WAL against its contract, on the simulated disk: order, laps, room, trims, owners, failures."""

from __future__ import annotations

import asyncio
import errno

import pytest

from millrace.runtime.disk import DiskFailed, DiskFull, DiskLocked
from millrace.runtime.rand import Rand
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalClosed, WalFenced, WalForeign, WalFull, WalMismatch
from millrace.wal.log import WalOwner
from tests.patience import PATIENCE_S
from tests.sim.disk import Fail, SimDisk, drop
from tests.wal.build import KIB, PATH, open_wal, owner, payload, small_settings, start_wal


def test_records_come_back_in_order_after_a_close() -> None:
    """What was appended, in parts of several kinds, is recovered whole and in order by the next owner."""

    async def run() -> None:
        disk = SimDisk()
        wal, recovered, journal = await start_wal(disk, 1)
        assert recovered == []
        sent = [payload(number, 10 + 977 * number % 9000) for number in range(60)]
        records = []
        for data in sent:
            if wal.room_bytes < len(data):
                break
            records.append(wal.append(data[:3], bytearray(data[3:7]), memoryview(data)[7:]))
            assert bytes(records[-1].payload) == data
            assert records[-1].payload.readonly
        await wal.close()
        assert journal.end >= records[-1].end
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == sent[: len(records)]

    asyncio.run(run())


def test_nothing_is_confirmed_before_it_is_durable() -> None:
    """Whatever is confirmed survives the loss of every write that is not durable yet, at every turn of the
    loop."""

    async def run() -> None:
        disk = SimDisk(Rand(b"turns"), hops=6)
        wal, _, journal = await start_wal(disk)
        sent = []
        for number in range(40):
            record = wal.append(payload(number, 3000))
            sent.append((record.end, bytes(record.payload)))
            await asyncio.sleep(0)
            told, survivor = journal.end, disk.restart(drop)
            _, records = await open_wal(survivor, 2)
            confirmed = [data for end, data in sent if end <= told]
            assert [bytes(record.payload) for record in records][: len(confirmed)] == confirmed

    asyncio.run(run())


def test_positions_grow_and_do_not_overlap() -> None:
    """Positions only grow, across blocks, laps and owners."""

    async def run() -> None:
        disk = SimDisk()
        last = 0
        for epoch in range(1, 4):
            wal, _, journal = await start_wal(disk, epoch)
            for number in range(50):
                record = wal.append(payload(number, 9000))
                assert record.position >= last
                assert record.end - record.position >= 9000
                last = record.end
                await journal.reach(record.end)
                await wal.trim(record.end)
            await wal.close()
        assert last > 5 * wal.capacity_bytes

    asyncio.run(run())


def test_many_laps_keep_exactly_what_was_not_trimmed() -> None:
    """Over dozens of laps with records of every size, no record crosses the ring's end and none is lost or
    repeated."""

    async def run() -> None:
        disk, rand = SimDisk(), Rand(b"laps")
        live: list[tuple[int, bytes]] = []
        number = 0
        for epoch in range(1, 12):
            wal, recovered, journal = await start_wal(disk, epoch)
            assert recovered == [data for _, data in live]
            for _ in range(30):
                for _ in range(1 + rand.below(6)):
                    data = payload(number, 8 + rand.below(40 * KIB if rand.below(5) == 0 else 2000))
                    number += 1
                    if wal.room_bytes < len(data):
                        break
                    record = wal.append(data)
                    live.append((record.end, data))
                await journal.reach(live[-1][0])
                if rand.below(2) or wal.room_bytes < 60 * KIB:
                    keep = rand.below(4)
                    await wal.trim(live[-1 - min(keep, len(live) - 1)][0])
                    live = live[len(live) - min(keep, len(live) - 1) :] if keep and len(live) > 1 else []
            await wal.close()
        assert wal.confirmed_end > 20 * wal.capacity_bytes

    asyncio.run(run())


def test_room_is_never_a_promise_that_breaks() -> None:
    """Whatever fits `room_bytes` is taken, in records of any sizes from 64 bytes up, from any place in the
    ring."""

    async def run() -> None:
        disk, rand = SimDisk(hops=0), Rand(b"room")
        wal, _, journal = await start_wal(disk)
        number = 0
        for _ in range(300):
            room = wal.room_bytes
            small = rand.below(2)
            last = None
            while room >= 64 and rand.below(50):
                length = min(room, wal.max_record_bytes, 64 + rand.below(20 if small else 39 * KIB))
                last = wal.append(payload(number, length))
                room -= length
                number += 1
            if last is not None:
                await journal.reach(last.end)
                await wal.trim(last.end)
        assert wal.confirmed_end > 20 * wal.capacity_bytes

    asyncio.run(run())


def test_full_takes_nothing_and_a_trim_gives_room_again() -> None:
    """WalFull leaves the log as it was; after a trim the same append succeeds; the first records are still
    whole."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        records = []
        while wal.used_bytes < wal.capacity_bytes - 16 * KIB:
            records.append(wal.append(payload(len(records), 5000)))
        with pytest.raises(WalFull) as full:
            wal.append(payload(0, 17 * KIB))
        assert full.value.needed_bytes == 17 * KIB
        used = wal.used_bytes
        with pytest.raises(WalFull):
            wal.append(payload(0, 17 * KIB))
        assert wal.used_bytes == used <= wal.capacity_bytes
        await journal.reach(records[-1].end)
        await wal.trim(records[9].end)
        assert wal.used_bytes < used
        records.append(wal.append(payload(len(records), 5000)))
        await wal.close()
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == [payload(number, 5000) for number in range(10, len(records))]

    asyncio.run(run())


def test_a_record_beyond_the_maximum_is_refused() -> None:
    """A payload that no trim could ever make room for is a ValueError, not WalFull; one of the maximum size
    is taken."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        with pytest.raises(ValueError, match="takes"):
            wal.append(bytes(wal.max_record_bytes + 1))
        record = wal.append(bytes(wal.max_record_bytes))
        await journal.reach(record.end)
        await wal.close()
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == [bytes(wal.max_record_bytes)]

    asyncio.run(run())


def test_an_empty_payload_is_a_record() -> None:
    """A payload of no bytes has a place and comes back."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, _ = await start_wal(disk)
        wal.append()
        wal.append(b"", b"x")
        await wal.close()
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == [b"", b"x"]

    asyncio.run(run())


def test_one_turn_of_the_loop_is_one_write() -> None:
    """Appends of one loop iteration share a block; those made while it is written share the next."""

    async def run() -> None:
        disk = SimDisk(latency_s=0.05)
        wal, _, journal = await start_wal(disk, eager_bytes=1 << 30)
        before = disk.write_count
        for number in range(20):
            wal.append(payload(number))
        await asyncio.sleep(0)
        assert disk.write_count == before + 1
        for number in range(20):
            last = wal.append(payload(number))
            await asyncio.sleep(0)
        await journal.reach(last.end)
        assert disk.write_count <= before + 3
        assert len(journal.ends) == disk.write_count - before

    asyncio.run(run())


def test_no_more_writes_in_flight_than_allowed() -> None:
    """Writes under way never exceed the setting, whatever is appended, and all are confirmed in the end."""

    async def run() -> None:
        disk = SimDisk(Rand(b"flight"), hops=9)
        wal, _, journal = await start_wal(disk, writes_in_flight=3, eager_bytes=0)
        most = 0
        for number in range(40):
            last = wal.append(payload(number, 2000))
            await asyncio.sleep(0)
            most = max(most, len(disk.pending()))
        await journal.reach(last.end)
        assert most == 3

    asyncio.run(run())


def test_trims_share_header_writes() -> None:
    """A hundred trims asked for at once cost two header writes, and each returns only when it is durable."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        records = [wal.append(payload(number)) for number in range(100)]
        await journal.reach(records[-1].end)
        before = disk.write_count
        await asyncio.gather(*(wal.trim(record.end) for record in records))
        assert disk.write_count - before <= 2
        _, live = await open_wal(disk.restart(drop), 2)
        assert live == []

    asyncio.run(run())


def test_a_lower_trim_does_not_undo_a_higher_one() -> None:
    """Trims asked for together in falling order end at the highest."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        records = [wal.append(payload(number)) for number in range(10)]
        await journal.reach(records[-1].end)
        await asyncio.gather(*(wal.trim(record.end) for record in reversed(records)))
        await wal.close()
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == []

    asyncio.run(run())


def test_a_close_waits_for_a_trim_under_way() -> None:
    """A close while a header is written waits for it: both are durable, and the log knows that it was closed
    in order."""

    async def run() -> None:
        disk = SimDisk(hops=9)
        wal, _, journal = await start_wal(disk)
        records = [wal.append(payload(number)) for number in range(10)]
        await journal.reach(records[-1].end)
        trimming = asyncio.create_task(wal.trim(records[4].end))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await wal.close()
        await trimming
        assert disk.pending() == []
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == [payload(number) for number in range(5, 10)]

    asyncio.run(run())


def test_a_trim_gives_memory_back() -> None:
    """After a burst whose records are let go, each trim halves what the pool keeps and nobody needs."""

    async def run() -> None:
        disk = SimDisk(hops=0)
        wal, _, journal = await start_wal(disk, capacity_bytes=2048 * KIB)
        records = [wal.append(payload(number, 8000)) for number in range(150)]
        await journal.reach(records[-1].end)
        end = records[-1].end
        assert wal._pool.kept_bytes >= 15 * 64 * KIB
        records.clear()
        for number in range(6):
            await wal.trim(end)
            record = wal.append(payload(number))
            await journal.reach(record.end)
            end = record.end
        assert wal._pool.kept_bytes <= 4 * 64 * KIB

    asyncio.run(run())


def test_a_trim_inside_a_block_is_exact() -> None:
    """Records that share a block are trimmed one by one: the next owner gets exactly the rest."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        records = [wal.append(payload(number)) for number in range(10)]
        await journal.reach(records[-1].end)
        await wal.trim(records[6].end)
        await wal.close()
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == [payload(number) for number in range(7, 10)]

    asyncio.run(run())


def test_a_cancelled_trim_still_happens() -> None:
    """Giving up the wait for a trim does not disturb the others who wait for the same header write."""

    async def run() -> None:
        disk = SimDisk(hops=8)
        wal, _, journal = await start_wal(disk)
        record = wal.append(payload(1))
        await journal.reach(record.end)
        impatient = asyncio.create_task(wal.trim(record.end))
        patient = asyncio.create_task(wal.trim(record.end))
        await asyncio.sleep(0)
        impatient.cancel()
        await patient
        assert wal.used_bytes == 0

    asyncio.run(run())


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_a_close_that_is_cancelled_gives_the_file_back(*, is_trimmed: bool) -> None:
    """While it waits for records or for a header that are under way: the next owner has what was appended, as
    after a crash, and finds the log free."""

    async def run() -> None:
        disk = SimDisk(hops=8)
        wal, _, journal = await start_wal(disk, 1)
        record = wal.append(payload(1))
        if is_trimmed:
            await journal.reach(record.end)
            trimming = asyncio.create_task(wal.trim(record.end))
            await asyncio.sleep(0)
        closing = asyncio.create_task(wal.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        if is_trimmed:
            await asyncio.wait([trimming])
            assert trimming.cancelled() or trimming.exception() is None
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == [payload(1)] or is_trimmed  # a trim that is on its way may be lost

    asyncio.run(run())


def test_reset_forgets_everything() -> None:
    """After recover and reset nothing is left for the next owner, even if this one never wrote."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, _ = await start_wal(disk, 1)
        wal.append(payload(1, 9000))
        await wal.close()
        wal, records = await open_wal(disk, 2)
        assert len(records) == 1
        await wal.reset()
        assert wal.used_bytes == 0
        _, records = await open_wal(disk.restart(drop), 3)
        assert records == []

    asyncio.run(run())


def test_an_epoch_that_is_not_higher_is_fenced() -> None:
    """An owner with the epoch of the last one, or a lower one, is refused and changes nothing."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, _ = await start_wal(disk, 5)
        await wal.close()
        for epoch in (4, 5):
            with pytest.raises(WalFenced) as fenced:
                await BlockWal.open(disk, PATH, small_settings(), owner(epoch))
            assert (fenced.value.own_epoch, fenced.value.found_epoch) == (epoch, 5)
        await open_wal(disk, 6)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("foreign", "field"), [(WalOwner("other", 1, 9), "cluster"), (WalOwner("cluster", 2, 9), "node")]
)
def test_another_owner_is_refused(foreign: WalOwner, field: str) -> None:
    """A log of another cluster or node is refused with what was expected and what was found, and left
    untouched."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, _ = await start_wal(disk, 1)
        wal.append(payload(1))
        await wal.close()
        with pytest.raises(WalMismatch) as mismatch:
            await BlockWal.open(disk, PATH, small_settings(), foreign)
        assert mismatch.value.field == field
        _, recovered, _ = await start_wal(disk, 2)
        assert recovered == [payload(1)]

    asyncio.run(run())


def test_two_logs_on_one_file_are_refused() -> None:
    """While one log has the file, another cannot open it."""

    async def run() -> None:
        disk = SimDisk()
        await start_wal(disk, 1)
        with pytest.raises(DiskLocked):
            await start_wal(disk, 2)

    asyncio.run(run())


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_is_the_last_word(code: int) -> None:
    """After a failed write `on_failed` is called once, nothing more is confirmed, and appends and trims are
    refused."""

    async def run() -> None:
        disk = SimDisk(Rand(b"fail"), hops=5)
        wal, _, journal = await start_wal(disk, eager_bytes=0)
        await journal.reach(wal.append(payload(20)).end)
        disk.at_write(disk.write_count + 3, Fail(code))
        for number in range(20):
            wal.append(payload(number, 3000))
            await asyncio.sleep(0)
            if journal.failures:
                break
        await journal.reach(1 << 62)
        with pytest.raises(WalClosed):
            wal.append(payload(0))
        assert len(journal.failures) == 1
        assert isinstance(journal.failures[0], DiskFull if code == errno.ENOSPC else DiskFailed)
        confirmed = journal.end
        await asyncio.sleep(0.01)
        assert journal.end == confirmed == wal.confirmed_end
        with pytest.raises(WalClosed):
            await wal.trim(confirmed)
        await wal.close()
        assert len(journal.failures) == 1

    asyncio.run(run())


def test_a_failed_header_write_is_terminal_too() -> None:
    """A trim whose header write fails raises, and the log takes no more."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        record = wal.append(payload(1))
        await journal.reach(record.end)
        disk.at_write(disk.write_count + 1, Fail())
        with pytest.raises(DiskFailed):
            await wal.trim(record.end)
        assert len(journal.failures) == 1
        with pytest.raises(WalClosed):
            wal.append(payload(2))
        await wal.close()

    asyncio.run(run())


def test_an_error_in_the_listener_is_a_failure() -> None:
    """If the one who is told of a confirmation raises, the log stops: that confirmation can never be told
    again."""

    async def run() -> None:
        disk = SimDisk()
        wal, _ = await open_wal(disk)
        failures: list[BaseException] = []

        def on_confirmed(end: int) -> None:
            raise RuntimeError("listener")

        wal.start(on_confirmed, failures.append)
        wal.append(payload(1))
        await wal.close()
        assert [str(error) for error in failures] == ["listener"]
        with pytest.raises(WalClosed):
            wal.append(payload(2))

    asyncio.run(run())


@pytest.mark.parametrize("is_first", [True, False])
def test_a_block_that_could_not_be_begun_holds_up_nobody(is_first: bool) -> None:
    """An error before its write begins, be it of the first or of one that followed a confirmation: told once,
    and who waits is let go."""

    async def run() -> None:
        wal, _, journal = await start_wal(SimDisk())
        writer, left = wal._writer, 0 if is_first else 1
        begin = writer._file.write_at

        def break_down(position: int, buffer: memoryview) -> asyncio.Future[None]:
            nonlocal left
            left -= 1
            if left < 0:
                raise ValueError("cannot be begun")
            return begin(position, buffer)

        writer._file.write_at = break_down  # type: ignore[method-assign]
        first = wal.append(payload(1))
        await asyncio.sleep(0)
        if not is_first:
            wal.append(payload(2))
        async with asyncio.timeout(PATIENCE_S):
            await journal.reach(1 << 40)
        assert [type(error) for error in journal.failures] == [ValueError]
        assert (journal.end < first.end) == is_first
        with pytest.raises(WalClosed):
            wal.append(payload(3))
        await wal.close()

    asyncio.run(run())


def test_closed_refuses_and_close_is_idempotent() -> None:
    """After close, appends and trims are refused; a second close does nothing."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk)
        record = wal.append(payload(1))
        closing = asyncio.create_task(wal.close())
        await asyncio.sleep(0)
        with pytest.raises(WalClosed):
            wal.append(payload(2))
        await closing
        assert journal.end >= record.end
        await wal.close()
        with pytest.raises(WalClosed):
            await wal.trim(record.end)

    asyncio.run(run())


def test_capacity_changes_only_when_empty() -> None:
    """A changed capacity waits while records are there, and takes effect at the reset, growing and shrinking
    the file."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, _ = await start_wal(disk, 1)
        wal.append(payload(1, 9000))
        await wal.close()
        for epoch, capacity_bytes in ((2, 512 * KIB), (4, 300 * KIB)):
            wal, recovered, _ = await start_wal(disk, epoch, capacity_bytes=capacity_bytes)
            assert recovered == [payload(1, 9000)]
            assert wal.capacity_bytes != capacity_bytes - 8 * KIB
            await wal.close()
            wal, _ = await open_wal(disk, epoch + 1, capacity_bytes=capacity_bytes)
            await wal.reset()
            assert wal.capacity_bytes == capacity_bytes - 8 * KIB
            assert len(disk.files[PATH].durable) == capacity_bytes
            wal.start(lambda end: None, lambda error: None)
            wal.append(payload(1, 9000))
            await wal.close()

    asyncio.run(run())


def test_a_device_keeps_its_size() -> None:
    """On a raw device the log uses what it is told to and no more; a capacity beyond the device is
    refused."""

    async def run() -> None:
        disk = SimDisk()
        disk.add_device(PATH, 300 * KIB)
        with pytest.raises(WalMismatch) as mismatch:
            await open_wal(disk, 1, capacity_bytes=512 * KIB)
        assert mismatch.value.field == "capacity"
        wal, _, _ = await start_wal(disk, 1)
        assert wal.capacity_bytes == 248 * KIB
        wal.append(payload(1))
        await wal.close()
        assert len(disk.files[PATH].durable) == 300 * KIB

    asyncio.run(run())


def test_a_foreign_device_is_not_formatted() -> None:
    """A device that holds something else is refused, not overwritten."""

    async def run() -> None:
        disk = SimDisk()
        disk.add_device(PATH, 300 * KIB)
        disk.files[PATH].visible[:] = disk.files[PATH].durable[:] = b"\xeb" * (300 * KIB)
        with pytest.raises(WalForeign):
            await open_wal(disk, 1)
        assert bytes(disk.files[PATH].durable) == b"\xeb" * (300 * KIB)

    asyncio.run(run())


def test_no_room_on_the_disk_is_known_at_open() -> None:
    """A file that the disk has no room for is refused at open, and not left behind."""

    async def run() -> None:
        disk = SimDisk(capacity_bytes=100 * KIB)
        with pytest.raises(DiskFull):
            await open_wal(disk)
        assert PATH not in disk.files

    asyncio.run(run())


def test_memory_is_reused_only_when_no_record_is_held() -> None:
    """Payload views stay what they were for as long as they are held; memory nobody holds is used again."""

    async def run() -> None:
        disk = SimDisk(hops=0)
        wal, _, journal = await start_wal(disk)
        held = []
        for number in range(400):
            record = wal.append(payload(number, 3000))
            if number % 40 == 0:
                held.append((number, record.payload))
            await journal.reach(record.end)
            await wal.trim(record.end)
            del record
        for number, view in held:
            assert bytes(view) == payload(number, 3000)
        assert wal._pool.reused_count > 5

    asyncio.run(run())
