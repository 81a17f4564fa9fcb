"""The simulated disk itself: what it keeps, what a power cut may take, and that its faults strike when
planned."""

from __future__ import annotations

import asyncio
import errno
from asyncio import Future
from functools import partial
from typing import Any

import pytest

from millrace.runtime.disk import DiskFailed, DiskFull
from millrace.runtime.disk.aligned import Arena
from millrace.runtime.rand import Rand
from tests.sim.disk import Cut, Fail, Misdirect, SimBlockFile, SimDisk, any_fate, drop, holes, keep, tear
from tests.sim.loop import SimLoop, run_simulation

PATH = "/d/block"


def test_a_block_write_is_durable_when_it_completes_and_not_before() -> None:
    """A cut while the write is under way may lose it; after its completion never."""

    async def run() -> None:
        disk = SimDisk(hops=5)
        file = await disk.open_block(PATH, 8192)
        view = Arena(4096).view
        view[:] = b"a" * 4096
        write = file.write_at(4096, view)
        assert disk.restart(drop).files[PATH].durable == bytes(8192)
        assert disk.restart(keep).files[PATH].durable == bytes(4096) + b"a" * 4096
        await write
        assert disk.pending() == []
        assert disk.restart(drop).files[PATH].durable == bytes(4096) + b"a" * 4096

    asyncio.run(run())


def test_a_torn_write_keeps_some_sectors() -> None:
    """Each sector is old or new, never a mixture, and both happen."""

    async def run() -> None:
        disk = SimDisk(hops=5)
        file = await disk.open_block(PATH, 8192)
        view = Arena(8192).view
        view[:] = b"a" * 8192
        file.write_at(0, view)
        data = disk.restart(tear(Rand(b"tear"))).files[PATH].durable
        sectors = [bytes(data[at : at + 512]) for at in range(0, 8192, 512)]
        assert sorted(set(sectors)) == [bytes(512), b"a" * 512]

    asyncio.run(run())


def test_holes_keep_what_was_written_behind_what_was_lost() -> None:
    """Of the writes under way the oldest is lost and the others are there."""

    async def run() -> None:
        disk = SimDisk(hops=5)
        file = await disk.open_block(PATH, 12288)
        for place, letter in enumerate((b"a", b"b", b"c")):
            view = Arena(4096).view
            view[:] = letter * 4096
            file.write_at(4096 * place, view)
        assert disk.restart(holes()).files[PATH].durable == bytes(4096) + b"b" * 4096 + b"c" * 4096

    asyncio.run(run())


def test_an_unsynced_append_may_go_a_synced_one_stays() -> None:
    """A log file's appends are visible at once and durable with the sync that was asked for after them."""

    async def run() -> None:
        disk = SimDisk()
        log = await disk.open_log("/d/log")
        await log.append([b"one"])
        await log.sync()
        await log.append([b"two"])
        assert await log.read_at(0, 10) == b"onetwo"
        assert disk.restart(drop).files["/d/log"].durable == b"one"
        assert disk.restart(keep).files["/d/log"].durable == b"onetwo"
        assert disk.restart(power_was_cut=False).files["/d/log"].visible == b"onetwo"

    asyncio.run(run())


def test_after_a_cut_nothing_completes() -> None:
    """The planned cut strikes at its write; from then on every operation waits for ever."""

    async def run() -> None:
        disk = SimDisk()
        log = await disk.open_log("/d/log")
        disk.at_write(disk.write_count + 2, Cut())
        await log.append([b"one"])
        syncing = asyncio.create_task(log.sync())
        await disk.was_cut.wait()
        reading = asyncio.create_task(disk.read_file("/d/log"))
        await asyncio.sleep(0.01)
        assert not syncing.done()
        assert not reading.done()
        assert disk.hits["cut"] == 2
        syncing.cancel()
        reading.cancel()

    asyncio.run(run())


def test_a_replaced_file_is_the_old_or_the_new() -> None:
    """A cut during write_file leaves one of the two, whole; both happen."""

    async def run() -> None:
        seen = set()
        for seed in range(20):
            disk = SimDisk(Rand(b"%d" % seed))
            await disk.write_file("/d/f", b"old")
            disk.at_write(disk.write_count + 1, Cut())
            task = asyncio.create_task(disk.write_file("/d/f", b"new!"))
            await disk.was_cut.wait()
            task.cancel()
            seen.add(await disk.restart().read_file("/d/f"))
        assert seen == {b"old", b"new!"}

    asyncio.run(run())


def test_a_kill_leaves_what_a_power_cut_may_still_take() -> None:
    """After a kill appends that were not synced, and a new file under its name, are there and not durable; a
    sync, and the next change in the folder, make them so."""

    async def killed(seed: int) -> SimDisk:
        disk = SimDisk(Rand(b"%d" % seed))
        log = await disk.open_log("/d/log")
        await log.append([b"one"])
        disk.at_write(disk.write_count + 1, Cut())
        task = asyncio.create_task(disk.write_file("/d/f", b"new"))
        await disk.was_cut.wait()
        task.cancel()
        return disk.restart(power_was_cut=False)

    async def run() -> None:
        seen = set()
        for seed in range(20):
            disk = await killed(seed)
            assert await disk.read_file("/d/log") == b"one"
            is_there = await disk.read_file("/d/f") == b"new"
            cut = disk.restart(drop)
            seen.add((is_there, await cut.read_file("/d/f"), await cut.read_file("/d/log")))
            if is_there:
                await disk.make_folder("/d/x")
            await (await disk.open_log("/d/log")).sync()
            cut = disk.restart(drop)
            assert await cut.read_file("/d/f") == (b"new" if is_there else None)
            assert await cut.read_file("/d/log") == b"one"
        assert seen == {(True, None, b""), (False, None, b"")}

    asyncio.run(run())


def test_what_a_truncation_took_does_not_come_back_with_a_sync() -> None:
    """A process is killed while it cuts its log: the next one finds it cut or not, and a sync of that one
    makes durable what it found."""

    async def run() -> None:
        seen = set()
        for seed in range(20):
            disk = SimDisk(Rand(b"%d" % seed))
            log = await disk.open_log("/d/log")
            await log.append([b"kept"])
            await log.sync()
            await log.append([b"torn"])
            disk.at_write(disk.write_count + 1, Cut())
            task = asyncio.create_task(log.truncate(6))
            await disk.was_cut.wait()
            task.cancel()
            disk = disk.restart(power_was_cut=False)
            log = await disk.open_log("/d/log")
            found = await log.read_at(0, 100)
            await log.sync()
            assert await log.read_at(0, 100) == found
            seen.add(found)
        assert seen == {b"kepttorn", b"keptto"}

    asyncio.run(run())


def test_failures_are_the_projects() -> None:
    """EIO is DiskFailed, ENOSPC and a full disk are DiskFull; a misdirected write lands elsewhere and says
    nothing."""

    async def run() -> None:
        disk = SimDisk(capacity_bytes=20_000)
        file = await disk.open_block(PATH, 12288)
        view = Arena(4096).view
        view[:] = b"a" * 4096
        for fault, error in ((Fail(), DiskFailed), (Fail(errno.ENOSPC), DiskFull)):
            disk.at_write(disk.write_count + 1, fault)
            with pytest.raises(error):
                await file.write_at(0, view)
        with pytest.raises(DiskFull):
            await disk.write_file("/d/f", bytes(10_000))
        disk.at_write(disk.write_count + 1, Misdirect())
        await file.write_at(4096, view)
        assert disk.files[PATH].durable[8192:] == b"a" * 4096
        disk.flip(PATH, 8192)
        assert disk.files[PATH].durable[8192] == ord("a") ^ 1

    asyncio.run(run())


def test_a_stray_write_is_set_right() -> None:
    """What was meant is known, whatever was written since and however the process ended: the write that went
    astray is put in its place, and what it fell on is what it would have been."""

    async def run() -> None:
        for is_cut in (False, True):
            disk = SimDisk()
            file = await disk.open_block(PATH, 16384)

            async def write(block: int, byte: bytes, file: SimBlockFile = file) -> None:
                view = Arena(4096).view
                view[:] = byte * 4096
                await file.write_at(block * 4096, view)

            await write(1, b"a")
            assert not disk.files[PATH].is_astray
            disk.at_write(disk.write_count + 1, Misdirect(4096))
            await write(0, b"b")
            await write(2, b"c")
            after = disk.restart(keep, power_was_cut=is_cut).files[PATH]
            assert after.is_astray
            assert [after.durable[at] for at in (0, 4096, 8192)] == [0, ord("b"), ord("c")]
            after.set_right()
            assert [after.visible[at] for at in (0, 4096, 8192)] == [ord("b"), ord("a"), ord("c")]
            assert not after.is_astray

    asyncio.run(run())


def test_a_changed_buffer_is_noticed() -> None:
    """Whoever changes a buffer while its write is under way breaks the contract, and the disk says so."""

    async def run() -> None:
        problems = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: problems.append(context["exception"])
        )
        disk = SimDisk()
        file = await disk.open_block(PATH, 8192)
        view = Arena(4096).view
        file.write_at(0, view)
        view[0] = 1
        await asyncio.sleep(0.01)
        assert [type(problem) for problem in problems] == [AssertionError]

    asyncio.run(run())


def note(order: list[int], number: int, _: Future[Any]) -> None:
    order.append(number)


def test_the_same_seed_is_the_same_run() -> None:
    """Order of completion and fates follow the seed alone."""

    async def history(seed: bytes) -> tuple[list[int], bytes]:
        disk = SimDisk(Rand(seed), hops=9)
        order: list[int] = []
        file = await disk.open_block(PATH, 65536)
        view = Arena(4096).view
        view[:] = b"a" * 4096
        writes = [file.write_at(number * 4096, view) for number in range(16)]
        for number, write in enumerate(writes):
            write.add_done_callback(partial(note, order, number))
        await asyncio.gather(*writes[:8])
        return list(order), bytes(disk.restart(any_fate(disk.rand)).files[PATH].durable)

    async def run() -> None:
        first = await history(b"same")
        assert first == await history(b"same")
        assert first != await history(b"other")

    asyncio.run(run())


def test_a_write_lands_though_nobody_waits_for_it() -> None:
    """As with the real drivers: whoever waited may have been cancelled."""

    async def main(loop: SimLoop) -> None:
        disk = SimDisk(hops=5)
        file = await disk.open_block(PATH, 8192)
        file.write_at(0, memoryview(bytes([7]) * 4096)).cancel()
        await file.close()
        again = await disk.open_block(PATH, 8192)
        assert await again.read_at(0, 4096) == bytes([7]) * 4096
        assert not loop.problems

    run_simulation(main)
