"""A log that is fenced by claims: who may open it, what an owner does that was replaced or stood still, and
what is decided where the claim is damaged, cannot be read, or is an older one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from millrace.runtime.disk import DiskFailed, DiskLocked
from millrace.runtime.disk.opening import DirectRefused
from millrace.runtime.errors import Unavailable
from millrace.wal.block.claim import CLAIM_BYTES, Claim, decode_claim
from millrace.wal.block.device import identify
from millrace.wal.block.fence import FRESH_S, LOOK_S, SETTLE_S, UNKNOWN_S
from millrace.wal.block.layout import BLOCK_BYTES, CLAIM_PLACE, choose_device_header
from millrace.wal.block.log import BlockWal
from millrace.wal.errors import (
    WalClaimLost,
    WalClaimsWantDirect,
    WalFenced,
    WalForeign,
    WalMismatch,
    WalOutdated,
)
from millrace.wal.log import WalRecord
from tests.sim.disk import SimBlockFile, SimDisk
from tests.sim.loop import SimLoop, run_simulation
from tests.wal.build import KIB, PATH, Journal, owner, payload, small_settings

WAL_ID = bytes(range(16))
CLAIM = Claim(7, 9, bytes(range(16, 32)), WAL_ID)


async def open_wal(
    disk: SimDisk, epoch: int, *, committed_end: int = -1, **changes: Any
) -> tuple[BlockWal, list[WalRecord]]:
    """Opened and recovered, not started."""
    settings = small_settings(**{"fencing": "claim", **changes})
    who = replace(owner(epoch), new_wal_id=WAL_ID, committed_end=committed_end)
    wal = await BlockWal.open(disk, PATH, settings, who, incarnation=bytes([epoch]) * 16)
    return wal, [record async for record in wal.recover()]


async def start_wal(disk: SimDisk, epoch: int, **changes: Any) -> tuple[BlockWal, list[bytes], Journal]:
    wal, records = await open_wal(disk, epoch, **changes)
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    return wal, [bytes(record.payload) for record in records], journal


def virtually(scene: Callable[[SimLoop], Awaitable[None]]) -> None:
    async def run(loop: SimLoop) -> None:
        await scene(loop)

    run_simulation(run)


def test_a_claim_is_told_from_all_that_is_none() -> None:
    """It comes back as it was, lies in one sector, and no single bit of it may change."""
    block = CLAIM.encode()
    assert (decode_claim(block), len(block), CLAIM_BYTES <= 512) == (CLAIM, BLOCK_BYTES, True)
    assert decode_claim(bytes(BLOCK_BYTES)) is None
    assert decode_claim(b"") is None
    for bit in range(CLAIM_BYTES * 8):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_claim(bytes(damaged)) is None, bit


def test_a_replaced_owner_acknowledges_nothing() -> None:
    """Nothing keeps another from the log, though the first one's process has it open and locked. What it
    appends from then on it never confirms, and of what it had confirmed nothing is missing."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        old, _, told = await start_wal(disk, 1)
        await told.reach(old.append(payload(1)).end)
        confirmed = told.end
        new, found, journal = await start_wal(disk, 2)
        assert found == [payload(1)]
        await told.reach(old.append(payload(2)).end)
        assert (told.end, [type(error) for error in told.failures]) == (confirmed, [WalFenced])
        assert [str(error) for error in told.failures] == [
            "the WAL was taken in epoch 2, not before our own, 1"
        ]
        await old.close()
        await journal.reach(new.append(payload(3)).end)
        await new.close()
        assert (await start_wal(disk, 3))[1] == [payload(1), payload(3)]

    virtually(scene)


def test_an_owner_that_writes_nothing_learns_of_it_too() -> None:
    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        _, _, told = await start_wal(disk, 1)
        await open_wal(disk, 2)
        await asyncio.sleep(LOOK_S + 0.1)
        assert [type(error) for error in told.failures] == [WalFenced]

    virtually(scene)


def test_an_owner_that_stood_still_looks_before_it_writes() -> None:
    """So that its block does not land over one of the next owner's: nothing is written, but for within the
    time that a look holds."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        old, _, told = await start_wal(disk, 1)
        await told.reach(old.append(payload(1)).end)
        new, _, journal = await start_wal(disk, 2)
        await journal.reach(new.append(payload(3)).end)
        image = bytes(disk.files[PATH].durable)
        assert SETTLE_S > FRESH_S
        await told.reach(old.append(payload(2)).end)
        assert [type(error) for error in told.failures] == [WalFenced]
        assert bytes(disk.files[PATH].durable) == image

    virtually(scene)


def test_the_same_node_takes_its_own_log_after_a_crash() -> None:
    """Its last claim is an older one's, like any other. It waits for what its earlier process had under way;
    not where that closed the log."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        old, _, told = await start_wal(disk, 1)
        await told.reach(old.append(payload(1)).end)
        disk = disk.restart(power_was_cut=False)
        began = loop.time()
        wal, found, _ = await start_wal(disk, 2)
        assert found == [payload(1)]
        assert SETTLE_S <= loop.time() - began < SETTLE_S + 0.1
        await wal.close()
        began = loop.time()
        _, found, _ = await start_wal(disk, 3)
        assert (found, loop.time() - began < 0.1) == ([payload(1)], True)

    virtually(scene)


def test_of_one_epoch_the_second_is_refused() -> None:
    """A node that was cloned with its epoch: told apart by the incarnation, the place is left untouched."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _, told = await start_wal(disk, 5)
        for epoch in (5, 4):
            with pytest.raises(WalFenced):
                await open_wal(disk, epoch)
        await told.reach(wal.append(payload(1)).end)
        assert told.failures == []

    virtually(scene)


@pytest.mark.parametrize("fault", ["rotten", "unreadable"])
def test_while_the_claim_tells_nothing_nothing_is_acknowledged(
    fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is known again in time: what was written meanwhile is acknowledged then."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _, told = await start_wal(disk, 1)
        await told.reach(wal.append(payload(1)).end)
        harm(disk, fault)
        ends = [wal.append(payload(number)).end for number in (2, 3)]
        await asyncio.sleep(UNKNOWN_S / 2)
        assert (told.end < ends[0], told.failures) == (True, [])
        assert caplog.text.count("the WAL acknowledges nothing until its claim can be read") == 1
        mend(disk, fault)
        await told.reach(ends[1])
        assert (told.end >= ends[1], told.failures) == (True, [])

    virtually(scene)


@pytest.mark.parametrize(("fault", "error"), [("rotten", WalClaimLost), ("unreadable", DiskFailed)])
def test_a_claim_that_stays_unknown_ends_the_log(fault: str, error: type[Exception]) -> None:
    """After a bound. The next opening writes a claim of its own over it, and recovers all that was
    acknowledged."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _, told = await start_wal(disk, 1)
        await told.reach(wal.append(payload(1)).end)
        confirmed, began = told.end, loop.time()
        harm(disk, fault)
        await told.reach(wal.append(payload(2)).end)
        assert (told.end, [type(one) for one in told.failures]) == (confirmed, [error])
        assert UNKNOWN_S <= loop.time() - began < UNKNOWN_S + LOOK_S + 1
        await wal.close()
        _, found, journal = await start_wal(disk.restart(power_was_cut=False), 2)
        assert found[0] == payload(1)
        assert journal.failures == []

    virtually(scene)


def test_a_look_for_which_the_system_gives_no_thread_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a write behind a pause, and that of an owner which writes nothing: it says nothing of the
    claim."""

    async def no_thread(*_: Any) -> bytes:
        raise Unavailable("the system gives this process no thread")

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _, told = await start_wal(disk, 1)
        await told.reach(wal.append(payload(1)).end)
        await asyncio.sleep(2 * FRESH_S)
        with monkeypatch.context() as system:
            system.setattr(SimBlockFile, "read_at", no_thread)
            end = wal.append(payload(2)).end
            await asyncio.sleep(UNKNOWN_S / 2)
            assert (told.end < end, told.failures) == (True, [])
        await told.reach(end)
        assert (told.end >= end, told.failures) == (True, [])

    virtually(scene)


def harm(disk: SimDisk, fault: str) -> None:
    if fault == "rotten":
        disk.flip(PATH, CLAIM_PLACE + 20)
    else:
        disk.lose_block(PATH, CLAIM_PLACE)


def mend(disk: SimDisk, fault: str) -> None:
    if fault == "rotten":
        disk.flip(PATH, CLAIM_PLACE + 20)
    else:
        assert disk.find_block(PATH, CLAIM_PLACE)


def test_a_volume_that_went_back_under_its_owner_is_no_more_its_own() -> None:
    """An older copy holds an older claim: its owner acknowledges nothing. Whoever opens it is told by what
    metadata has, and not by the claim."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _, told = await start_wal(disk, 1)
        await told.reach(wal.append(payload(1)).end)
        await wal.close()
        older = bytes(disk.files[PATH].durable)
        wal, _, told = await start_wal(disk, 2)
        await told.reach(wal.append(payload(2, 9000)).end)
        committed = confirmed = told.end
        file = disk.files[PATH]
        file.durable[:], file.visible[:] = older, older
        await told.reach(wal.append(payload(3)).end)
        assert (told.end, [type(error) for error in told.failures]) == (confirmed, [WalFenced])
        assert str(told.failures[0]) == "the WAL was claimed in epoch 1, and we opened it in 2"
        file.durable[:], file.visible[:] = older, older
        with pytest.raises(WalOutdated):
            await open_wal(disk.restart(power_was_cut=False), 3, committed_end=committed)

    virtually(scene)


def test_a_copy_is_another_log_to_its_claims() -> None:
    """Each of two copies has a place of its own: claims keep nobody from the other one. That is what epochs
    in metadata and claims in the bucket are for."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _, told = await start_wal(disk, 1)
        copy = disk.restart(power_was_cut=False)
        other, _, journal = await start_wal(copy, 2)
        await told.reach(wal.append(payload(1)).end)
        await journal.reach(other.append(payload(2)).end)
        assert (told.failures, journal.failures) == ([], [])

    virtually(scene)


def header_version(disk: SimDisk) -> int:
    data = bytes(disk.files[PATH].durable)
    assert choose_device_header(data[:BLOCK_BYTES], data[BLOCK_BYTES : 2 * BLOCK_BYTES]) is not None
    return data[9]


def test_a_log_that_its_lock_fenced_turns_to_claims_when_it_is_empty() -> None:
    """At a reset, and for good: also an owner that is told nothing of claims looks then, but it waits for the
    lock. Killed at any write on the way it is one or the other."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _, told = await start_wal(disk, 1, fencing="auto")
        await told.reach(wal.append(payload(1)).end)
        with pytest.raises(DiskLocked):
            await open_wal(disk, 2)
        await wal.close()
        wal, records = await open_wal(disk, 2)
        assert ([bytes(record.payload) for record in records], header_version(disk)) == ([payload(1)], 2)
        before = disk.write_count
        await wal.reset()
        assert header_version(disk) == 3
        journal = Journal()
        wal.start(journal.on_confirmed, journal.on_failed)
        for number in range(40):
            await journal.reach(wal.append(payload(number, 9000)).end)
            await wal.trim(journal.end)
        await journal.reach(wal.append(payload(50)).end)
        assert await identify(disk, PATH, small_settings(fencing="claim")) is not None
        with pytest.raises(DiskLocked):
            await open_wal(disk, 3, fencing="auto")
        _, found, _ = await start_wal(disk, 3)
        assert found == [payload(50)]
        assert disk.write_count > before

    virtually(scene)


def test_a_power_cut_while_it_turns_leaves_one_or_the_other() -> None:
    async def scene(loop: SimLoop) -> None:
        versions = []
        for count in range(1, 9):
            disk = SimDisk()
            wal, _, told = await start_wal(disk, 1, fencing="lock")
            await told.reach(wal.append(payload(1, 30 * KIB)).end)
            await wal.close()
            wal, _ = await open_wal(disk, 2)
            await wal.trim(wal.confirmed_end)
            start = disk.write_count
            turning = asyncio.ensure_future(wal.reset())
            while disk.write_count < start + count and not turning.done():  # noqa: ASYNC110
                await asyncio.sleep(0)
            disk.cut()
            after = disk.restart()
            wal, found, told = await start_wal(after, 3)
            versions.append(header_version(after))
            assert found == []
            await told.reach(wal.append(payload(2)).end)
            turning.cancel()
        assert {2, 3} == set(versions)

    virtually(scene)


def test_a_first_start_that_is_killed_behind_its_claim() -> None:
    """A claim alone is no log, and nothing of another's: the next start goes on with it. A start that knows
    of no claims leaves the place alone."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        disk.add_device(PATH, 256 * KIB)
        disk.files[PATH].put(CLAIM_PLACE, Claim(1, 1, bytes([1]) * 16, WAL_ID).encode())
        assert await identify(disk, PATH, small_settings(fencing="claim")) is None
        with pytest.raises(WalForeign):
            await open_wal(disk, 2, fencing="auto")
        _, found, told = await start_wal(disk, 2)
        assert (found, told.failures) == ([], [])

    virtually(scene)


def test_what_claims_cannot_be_had_on_is_refused() -> None:
    """The page cache does not show what another machine wrote; and a log of millrace.version 0 has no
    identity to claim."""

    async def scene(loop: SimLoop) -> None:
        with pytest.raises(DirectRefused):
            await open_wal(SimDisk(is_direct=False), 1)
        with pytest.raises(WalMismatch, match="fencing"):
            await BlockWal.open(SimDisk(), PATH, small_settings(fencing="claim"), owner(1))

    virtually(scene)


def test_a_log_that_has_claims_is_opened_nowhere_without_direct_io() -> None:
    """Whatever its address says, so that to say no claims does not help; it is left as it was."""

    async def scene(loop: SimLoop) -> None:
        disk = SimDisk()
        wal, _ = await open_wal(disk, 1)
        await wal.close()
        image = bytes(disk.files[PATH].durable)
        other = SimDisk(is_direct=False)
        other.files = disk.files
        for fencing in ("auto", "lock", "claim"):
            with pytest.raises(WalClaimsWantDirect, match="it keeps them"):
                await BlockWal.open(other, PATH, small_settings(fencing=fencing), owner(2))
        assert bytes(disk.files[PATH].durable) == image

    virtually(scene)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fencing": "claims"}, ["WAL fencing is 'claims'; it must be auto, reservation, lock or claim"]),
        (
            {"fencing": "claim", "reservation": "require"},
            ["WAL fencing=claim contradicts reservation=require"],
        ),
        (
            {"fencing": "claim", "direct": "never"},
            ["WAL fencing=claim reads past the page cache, which wal.direct.io=never forbids"],
        ),
        ({"fencing": "reservation", "reservation": "require"}, []),
        ({"fencing": "lock", "reservation": "never"}, []),
    ],
)
def test_settings_that_contradict_each_other_are_told(changes: dict[str, Any], words: list[str]) -> None:
    assert small_settings(**changes).problems() == words
