"""A second owner on a device that the first still sees: what the first can no longer do, and what is left of
its writes.

Two simulated machines share one device; with persistent reservations behind the real ioctl code, or without
any.
"""

from __future__ import annotations

import asyncio

import pytest

from millrace.runtime.disk import DiskLocked, DiskTaken
from millrace.runtime.disk.opening import disk_error
from millrace.runtime.disk.reserve import DeviceReservation
from millrace.wal.block.device import reservation_key
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalClosed, WalFenced, WalMismatch
from millrace.wal.log import WalOwner
from tests.runtime.disk.scsi import SharedDevice
from tests.sim.disk import SimBlockFile, SimDisk
from tests.wal.build import KIB, PATH, Journal, open_wal, payload, small_settings, start_wal


class SharedFile(SimBlockFile):
    def __init__(self, machine: Machine, path: str, is_direct: bool) -> None:
        super().__init__(machine, path, is_direct)
        self._machine = machine
        self._reservation = DeviceReservation(3, path, machine.device.nexus(machine.name))

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        """Refused as it comes, or aborted on its way: it may then have landed, and ends as one refused."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(done: asyncio.Future[None] | None = None) -> None:
            error = self._machine.device.write_error(self._machine.name)
            if error is not None:
                ended.set_exception(disk_error(error, PATH))
            elif done is not None:
                ended.set_result(done.result())

        end()
        if not ended.done():
            super().write_at(position, buffer).add_done_callback(end)
        return ended

    async def reserve(self, key: int, old_key: int) -> bool:
        return self._machine.has_reservations and self._reservation.take(key, old_key)

    async def close(self) -> None:
        self._reservation.release()
        await super().close()


class Machine(SimDisk):
    """One of those that see the device. Their locks are their own."""

    def __init__(
        self, name: str, device: SharedDevice, other: Machine | None = None, *, reserves: bool = True
    ) -> None:
        super().__init__()
        self.name = name
        self.device = device
        self.has_reservations = reserves
        if other is None:
            self.add_device(PATH, 256 * KIB)
        else:
            self.files = other.files

    async def open_block(
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> SimBlockFile:
        await super().open_block(path, size_bytes, direct=direct)
        return SharedFile(self, path, True)


def two(*, reserves: bool) -> tuple[Machine, Machine]:
    device = SharedDevice()
    first = Machine("first", device, reserves=reserves)
    return first, Machine("second", device, first, reserves=reserves)


def test_a_replaced_owner_cannot_acknowledge() -> None:
    """The second machine reserves the device and recovers all that was confirmed. The first, which knows
    nothing of it, appends: its write fails, nothing is confirmed, it takes no more, and the second's log
    holds none of it. The failure says that it was replaced, and not that the device is broken."""

    async def run() -> None:
        first, second = two(reserves=True)
        old, _, told = await start_wal(first, 1)
        await told.reach(old.append(payload(1)).end)
        new, records = await open_wal(second, 2)
        assert [bytes(record.payload) for record in records] == [payload(1)]
        confirmed = told.end
        await told.reach(old.append(payload(2)).end)
        assert told.end == confirmed
        assert [type(failure) for failure in told.failures] == [DiskTaken]
        with pytest.raises(WalClosed):
            old.append(payload(3))
        await old.close()
        journal = Journal()
        new.start(journal.on_confirmed, journal.on_failed)
        await journal.reach(new.append(payload(4)).end)
        await new.close()
        _, recovered, _ = await start_wal(first, 3)
        assert recovered == [payload(1), payload(4)]

    asyncio.run(run())


def test_a_write_that_is_aborted_on_its_way_acknowledges_nothing() -> None:
    """Begun before the second machine took the device, and not ended: preempting aborts it."""

    async def run() -> None:
        first, second = two(reserves=True)
        old, _, told = await start_wal(first, 1)
        await told.reach(old.append(payload(1)).end)
        confirmed = told.end
        first.latency_s = 0.1
        late = old.append(payload(2))
        await asyncio.sleep(0.01)
        await open_wal(second, 2)
        assert first.device.aborted == ["first"]
        await told.reach(late.end)
        assert (told.end, [type(failure) for failure in told.failures]) == (confirmed, [DiskTaken])

    asyncio.run(run())


def test_without_reservations_the_old_owners_blocks_are_void() -> None:
    """Nothing keeps the first machine's block out; it lies where the second would write, and is of an epoch
    that counts no more. Its next header finds the second's: it ends, and has not written over it."""

    async def run() -> None:
        first, second = two(reserves=False)
        old, _, told = await start_wal(first, 1)
        kept = old.append(payload(1))
        await told.reach(kept.end)
        new, _ = await open_wal(second, 2)
        late = old.append(payload(2))
        await told.reach(late.end)
        with pytest.raises(WalFenced):
            await old.trim(kept.end)
        assert [type(failure) for failure in told.failures] == [WalFenced]
        with pytest.raises(WalClosed):
            old.append(payload(3))
        await old.close()
        await new.close()
        _, recovered, _ = await start_wal(second, 3)
        assert recovered == [payload(1)]

    asyncio.run(run())


def test_a_place_that_keeps_nobody_out_is_refused_where_that_is_asked_for() -> None:
    """`reservation=require` opens a device that has reservations, and neither one that has none nor a
    file."""

    async def run() -> None:
        first, _ = two(reserves=True)
        await open_wal(first, 1, reservation="require")
        assert first.device.keys == {"first": reservation_key(1)}
        for disk in (two(reserves=False)[0], SimDisk()):
            with pytest.raises(WalMismatch, match="reservation"):
                await open_wal(disk, 1, reservation="require")

    asyncio.run(run())


def test_who_is_refused_takes_nothing() -> None:
    """An owner of an older epoch, or another cluster's, leaves the device with its holder."""

    async def run() -> None:
        first, second = two(reserves=True)
        old, _, told = await start_wal(first, 5)
        for owner in (WalOwner("cluster", 1, 4), WalOwner("other", 1, 9), WalOwner("cluster", 2, 9)):
            with pytest.raises((WalFenced, WalMismatch)):
                await BlockWal.open(second, PATH, small_settings(), owner)
        await told.reach(old.append(payload(1)).end)
        assert told.failures == []

    asyncio.run(run())


def test_two_that_open_at_once_do_not_both_get_it() -> None:
    """Between one machine's look at the header and its reservation another became the owner: the first sees
    it, and leaves."""

    async def run() -> None:
        first, second = two(reserves=True)
        await (await open_wal(first, 1))[0].close()

        class Overtaken(Machine):
            async def open_block(
                self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
            ) -> SimBlockFile:
                file = await super().open_block(path, size_bytes, direct=direct)
                plain = file.reserve

                async def reserve(key: int, old_key: int) -> bool:
                    await open_wal(second, 2)
                    return await plain(key, reservation_key(2))

                file.reserve = reserve  # type: ignore[method-assign]
                return file

        late = Overtaken("late", first.device, first)
        with pytest.raises(DiskLocked, match="at the same time"):
            await open_wal(late, 3)

    asyncio.run(run())


def test_a_header_that_rots_under_its_owner_is_written_anew() -> None:
    """Both copies damaged while the log is open: the next header write makes one whole, and nothing is
    lost."""

    async def run() -> None:
        disk = SimDisk()
        wal, _, journal = await start_wal(disk, 1)
        first = wal.append(payload(1))
        await journal.reach(wal.append(payload(2)).end)
        for place in (20, 4096 + 20):
            disk.flip(PATH, place)
        await wal.trim(first.end)
        await wal.close()
        _, records = await open_wal(disk, 2)
        assert [bytes(record.payload) for record in records] == [payload(2)]

    asyncio.run(run())


def test_a_dead_nodes_log_is_recovered_and_discarded_by_another() -> None:
    """Failover: with the dead node's id and a higher epoch another node recovers its log, keeps what it needs
    elsewhere, resets and closes it without ever appending. The node that comes back finds an empty log, and
    may take it with a higher epoch alone."""

    async def run() -> None:
        first, second = two(reserves=True)
        old, _, told = await start_wal(first, 1)
        sent = [payload(number, 2000) for number in range(20)]
        for data in sent:
            record = old.append(data)
        await told.reach(record.end)
        taken, records = await open_wal(second, 7)
        assert [bytes(found.payload) for found in records] == sent
        await taken.reset()
        await taken.close()
        assert (first.device.keys, first.device.holder) == ({}, "")
        with pytest.raises(WalFenced):
            await open_wal(first.restart(power_was_cut=False), 2)
        back = Machine("first", first.device, second)
        again, recovered, journal = await start_wal(back, 8)
        assert recovered == []
        await journal.reach(again.append(payload(1)).end)

    asyncio.run(run())
