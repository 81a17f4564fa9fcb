"""A log that a lock alone fences, and whose lock another kernel keeps: which node may take it, and which
not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from millrace.runtime.disk import DiskLocked
from millrace.runtime.disk.lock_keeper import LockKeeper
from millrace.wal.block.device import identify, read_header
from millrace.wal.block.layout import BLOCK_BYTES
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import WalHeldElsewhere
from tests.sim.disk import SimDisk
from tests.wal.block.test_takeover import Machine, two
from tests.wal.build import PATH, owner, payload, small_settings, start_wal

WAL_ID = bytes(range(16))
HOLDER_AT = 336
FIRST = LockKeeper(b"first".ljust(16), b"boot 1".ljust(16), b"file".ljust(16))
SECOND = LockKeeper(b"second".ljust(16), b"boot 2".ljust(16), b"file".ljust(16))


def beside(disk: SimDisk, keeper: LockKeeper | None) -> SimDisk:
    """Another machine that sees the same files, and not the locks."""
    other = SimDisk()
    other.files, other.keeper = disk.files, keeper
    return other


def machine(keeper: LockKeeper | None = FIRST) -> SimDisk:
    disk = SimDisk()
    disk.keeper = keeper
    return disk


async def take(disk: SimDisk, epoch: int, *, is_heir: bool = True, **changes: Any) -> list[bytes]:
    """Opened by another node in the name of its own, recovered, emptied and closed, as a failover does."""
    who = replace(owner(epoch), new_wal_id=WAL_ID, is_heir=is_heir)
    incarnation = bytes([epoch]) * 16
    wal = await BlockWal.open(disk, PATH, small_settings(**changes), who, incarnation=incarnation)
    try:
        found = [bytes(record.payload) async for record in wal.recover()]
        await wal.reset()
        return found
    finally:
        await wal.close()


async def written(disk: SimDisk, **changes: Any) -> BlockWal:
    """By its own node, which has it open."""
    wal, _, told = await start_wal(disk, 1, WAL_ID, **changes)
    await told.reach(wal.append(payload(1)).end)
    return wal


def test_another_machine_does_not_take_what_a_lock_alone_holds() -> None:
    """Whoever is to take it is told so at a look, and at the opening; nothing is changed by either, and the
    owner, which was alive, goes on."""

    async def run() -> None:
        first = machine()
        old, _, told = await start_wal(first, 1, WAL_ID)
        await told.reach(old.append(payload(1)).end)
        second, image = beside(first, SECOND), bytes(first.files[PATH].durable)
        seen = await identify(second, PATH)
        assert seen is not None
        assert seen.is_held_elsewhere
        with pytest.raises(WalHeldElsewhere, match="another machine"):
            await take(second, 2)
        assert bytes(first.files[PATH].durable) == image
        await told.reach(old.append(payload(2)).end)
        assert told.failures == []
        await old.close()
        assert await take(beside(first, FIRST), 3) == [payload(1), payload(2)]

    asyncio.run(run())


def test_its_own_node_takes_it_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    """It was started there by somebody who can know that it runs nowhere else, and who is told so."""

    async def run() -> None:
        first = machine()
        await written(first)
        assert await take(beside(first, SECOND), 2, is_heir=False) == [payload(1)]
        assert await take(beside(first, SECOND), 3) == []

    asyncio.run(run())
    assert [record.message for record in caplog.records if "no process of this node" in record.message]
    assert len(caplog.records) == 1, "said once, for then it is held here"


@pytest.mark.parametrize(
    "taker",
    [FIRST, replace(FIRST, boot=b"boot 3".ljust(16), file=b"numbered anew".ljust(16))],
    ids=["the same boot", "the machine started anew"],
)
def test_another_node_of_the_same_machine_takes_it(taker: LockKeeper) -> None:
    async def run() -> None:
        first = machine()
        await written(first)
        seen = await identify(beside(first, taker), PATH)
        assert seen is not None
        assert not seen.is_held_elsewhere
        assert await take(beside(first, taker), 2) == [payload(1)]

    asyncio.run(run())


def test_on_the_same_machine_the_lock_is_waited_for() -> None:
    async def run() -> None:
        first = machine()
        old = await written(first)
        with pytest.raises(DiskLocked):
            await take(first, 2)
        await old.close()
        assert await take(first, 3) == [payload(1)]

    asyncio.run(run())


@pytest.mark.parametrize("keeper", [None, replace(FIRST, file=b"other".ljust(16))], ids=["untold", "mount"])
def test_a_lock_that_cannot_be_compared_tells_nothing(keeper: LockKeeper | None) -> None:
    """Of a kernel that does not say which it is, and of another mount of the same file."""

    async def run() -> None:
        first = machine()
        await written(first)
        with pytest.raises(WalHeldElsewhere):
            await take(beside(first, keeper), 2)

    asyncio.run(run())


def test_a_holder_that_rotted_is_not_nobody() -> None:
    """In both copies, which hold otherwise: only the log's own node takes it, which names itself anew."""

    async def run() -> None:
        first = machine()
        await written(first)
        second = beside(first, SECOND)
        for copy in (0, BLOCK_BYTES):
            first.flip(PATH, copy + HOLDER_AT)
        for taker in (second, beside(first, FIRST)):
            with pytest.raises(WalHeldElsewhere):
                await take(taker, 2)
        assert await take(second, 2, is_heir=False) == [payload(1)]
        assert await take(second, 3) == []

    asyncio.run(run())


def test_a_log_of_a_build_before_is_taken_as_it_was_then() -> None:
    """Its header names nobody, whatever wrote it: a log of one machine stays one that others there recover.
    The next opening names who holds it, and a taking is one."""

    async def run() -> None:
        before = machine(None)
        await written(before)
        second = beside(before, SECOND)
        assert await take(second, 2) == [payload(1)]
        with pytest.raises(WalHeldElsewhere):
            await take(beside(before, FIRST), 3)

    asyncio.run(run())


def test_an_operator_may_say_that_all_machines_see_the_lock() -> None:
    """Of a file, with `fencing=lock`: each kernel locks names of devices by itself."""

    async def run() -> None:
        first = machine()
        await written(first, fencing="lock")
        second = beside(first, SECOND)
        assert await take(second, 2, fencing="lock") == [payload(1)]
        device, _ = two(reserves=False)
        device.keeper = FIRST
        await written(device, fencing="lock")
        other = Machine("other", device.device, device, reserves=False)
        other.keeper = SECOND
        with pytest.raises(WalHeldElsewhere):
            await take(other, 2, fencing="lock")

    asyncio.run(run())


def test_what_a_reservation_or_a_claim_fences_names_nobody() -> None:
    """Any machine takes those; a log that turns to claims stops to name one."""

    async def run() -> None:
        one, other = two(reserves=True)
        one.keeper, other.keeper = FIRST, SECOND
        await written(one)
        assert await take(other, 2) == [payload(1)]
        first = machine()
        await (await written(first)).close()
        assert await take(first, 2, is_heir=False, fencing="claim") == [payload(1)]
        file = await first.open_block(PATH, 0)
        header = await read_header(file)
        await file.close()
        assert header is not None
        assert (header.is_claimed, header.holder) == (True, None)
        assert await take(beside(first, SECOND), 3, fencing="claim") == []

    asyncio.run(run())


def test_a_log_that_has_not_turned_to_claims_yet_is_not_taken_from_another_machine() -> None:
    """Its address says that it has claims, and its owner has looked at none."""

    async def run() -> None:
        first = machine()
        await written(first)
        with pytest.raises(WalHeldElsewhere):
            await take(beside(first, SECOND), 2, fencing="claim")

    asyncio.run(run())
