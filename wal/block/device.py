"""The device under a block WAL: opens it, formats a new one, keeps its header.

The header has two copies, written in turn, so that one is always whole. What holds for as long as an owner
lives (its epoch and where it began) is written to both before its first block. Deciding which records count
is recovery's work; which space is free is the log's.

A replaced owner cannot acknowledge, since it acknowledges after its write, and its write fails:

  * On a device with persistent reservations the new owner reserves it before it reads the log. That aborts
    the old one's writes under way and refuses all later ones; a failed write is the last thing an owner does.
  * On one machine the lock of the open file keeps a second owner out until the first one's process, and its
    writes, have ended.
  * Where the log is fenced by claims (fence.py) the old one's write ends well, but the look behind it finds
    the new one's claim. No lock is asked for then: a stopped process would hold it.
  * Where none of that holds (a volume attached to two machines that has no reservations) the old owner's
    blocks are void, by their epoch, but it could still acknowledge them. So the header names whose kernel
    keeps the lock, where a lock alone fences the log, and no other node takes it where another kernel does:
    WalHeldElsewhere. Its own node does, told to by an operator who starts it there. Before an owner writes
    its header it looks whether the header is still its own, so that it ends there at the latest and never
    writes over the new owner's.

A log that is fenced by claims says so in its header, for both sides have to know it; it stays one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any, Final

from millrace.runtime.disk import BlockFile, Disk, DiskFailed, DiskLocked
from millrace.runtime.disk.aligned import Arena
from millrace.runtime.disk.lock_keeper import LockKeeper
from millrace.runtime.disk.opening import DirectRefused
from millrace.wal.block.blank import find_content, looks
from millrace.wal.block.claim import Claim, decode_claim
from millrace.wal.block.fence import ClaimFence
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    CLAIM_PLACE,
    RING_START,
    DeviceHeader,
    align_down,
    choose_device_header,
)
from millrace.wal.config import BlockWalSettings
from millrace.wal.errors import (
    WalClaimsWantDirect,
    WalCorrupt,
    WalFenced,
    WalHeaderLost,
    WalHeldElsewhere,
    WalMismatch,
)
from millrace.wal.identity import NO_WAL_ID, WalIdentity
from millrace.wal.log import WalOwner

log = logging.getLogger(__name__)
UNSAID: Final = BlockWalSettings()


class BlockDevice:
    """`header` is the last one that is durable."""

    def __init__(
        self, file: BlockFile, header: DeviceHeader, is_reserved: bool, fence: ClaimFence | None = None
    ) -> None:
        self.file = file
        self.header = header
        self.is_reserved = is_reserved  # the device itself keeps others out
        self.fence = fence  # claims keep others from acknowledging
        self.late_bytes = 0  # so far behind the log's end the owner before may still have writes under way
        self._arena = Arena(BLOCK_BYTES)

    @staticmethod
    async def open(
        disk: Disk, path: str, settings: BlockWalSettings, owner: WalOwner, incarnation: bytes = b""
    ) -> BlockDevice:
        """Formats what is blank. Raises WalMismatch, WalFenced, WalForeign, WalHeaderLost, WalHeldElsewhere;
        DiskFull, DiskFailed, DiskLocked; DirectRefused for claims without direct I/O. A refused device is
        left untouched."""
        capacity_bytes, by_claims = align_down(settings.capacity_bytes), settings.is_by_claims
        file = await disk.open_block(path, capacity_bytes, direct=settings.direct, is_shared=by_claims)
        try:
            header = await read_header(file)
            _check(header, owner, file.size_bytes)
            if header is None and not file.is_new:
                await _check_blank(disk, path, file, may_be_claimed=by_claims)
            if not file.is_exclusive and (header is None or not header.is_claimed):
                raise DiskLocked(path)
            if by_claims:
                check_claims(file, path, header, owner)
            fence = None
            if by_claims if header is None else header.is_claimed:
                fence, header = await _claim(file, path, header, owner, incarnation)
            is_reserved = fence is None and await _reserve(file, path, header, owner, settings)
            if not is_reserved and is_held_elsewhere(file, header, settings):
                if owner.is_heir:
                    raise WalHeldElsewhere(path)
                log.warning(
                    "the WAL %s was opened last on another machine, or by another mount, and a lock alone "
                    "holds it, which is not seen here: no process of this node may run there, for it would "
                    "acknowledge what is lost (fencing=claim fences it)",
                    path,
                )
            if header is None:
                return await BlockDevice._format(file, capacity_bytes, owner, is_reserved, fence)
            if header.wal_id == NO_WAL_ID:
                header = dataclasses.replace(
                    header, wal_id=owner.new_wal_id
                )  # durable with the owner's first header
            device = BlockDevice(file, header, is_reserved, fence)
            if fence is not None and header.closed_end < 0:
                device.late_bytes = header.window_bytes + 2 * header.block_bytes_max + BLOCK_BYTES
            return device
        except BaseException:
            await file.close()
            raise

    @staticmethod
    async def _format(
        file: BlockFile, capacity_bytes: int, owner: WalOwner, is_reserved: bool, fence: ClaimFence | None
    ) -> BlockDevice:
        """An empty log at position 0, of an epoch below every owner's."""
        if file.size_bytes < capacity_bytes:
            await file.resize(capacity_bytes)
        if file.size_bytes < capacity_bytes:
            raise WalMismatch("capacity", capacity_bytes, file.size_bytes)
        header = DeviceHeader(
            cluster_id=owner.cluster_id, node_id=owner.node_id, epoch=-1, epoch_start=0,
            capacity_bytes=capacity_bytes,
            trim=0, head=0, confirmed=0, block_bytes_max=0, window_bytes=0, filled_bytes=0, closed_end=0,
            sequence=0,
            wal_id=owner.new_wal_id, is_claimed=fence is not None,
        )  # fmt: skip
        device = BlockDevice(file, header, is_reserved, fence)
        await device.write_both()
        return device

    async def write(self, **changes: Any) -> None:
        """Durable on return, and where claims fence the log, still ours then. One at a time: the caller sees
        to that. Raises WalFenced when a later owner's header is there, or another's claim; as `fence.look`.

        Of a replaced owner one copy at most lands behind its successor's look at the header, of a sequence
        that the successor has gone beyond in the other copy before its first block."""
        if self.fence is not None:
            await self.fence.look()
        elif not self.is_reserved:
            await self._check_still_ours()
        header = dataclasses.replace(self.header, sequence=self.header.sequence + 1, **changes)
        self._arena.view[:] = header.encode()
        await self.write_at(header.sequence % 2 * BLOCK_BYTES, self._arena.view)
        self.header = header

    @property
    def holder(self) -> LockKeeper | None:
        """What this owner's header names; None where its lock is not what fences the log."""
        return None if self.is_reserved or self.fence is not None else self.file.keeper

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        """The file's; with claims it ends when a look behind it found ours."""
        return (self.file if self.fence is None else self.fence).write_at(position, buffer)

    async def _check_still_ours(self) -> None:
        """Where both copies rotted under us nobody came: the one that is written now is whole again."""
        found = await read_header(self.file)
        if found is not None and found.epoch > self.header.epoch:
            raise WalFenced(self.header.epoch, found.epoch)

    async def write_both(self, **changes: Any) -> None:
        """As `write`, in both copies: damage to either cannot bring back the header before."""
        await self.write(**changes)
        await self.write()

    async def resize(self, capacity_bytes: int, **changes: Any) -> None:
        """For an empty log. The file is never smaller than either copy says; a device only uses more or less
        of itself. What a power cut between two steps leaves is a file that is too long: `cut_off` follows.
        Raises WalMismatch on too small a device."""
        if capacity_bytes > self.file.size_bytes:
            await self.file.resize(capacity_bytes)
        if capacity_bytes > self.file.size_bytes:
            raise WalMismatch("capacity", capacity_bytes, self.file.size_bytes)
        await self.write_both(capacity_bytes=capacity_bytes, **changes)

    async def turn_to_claims(self, owner: WalOwner, incarnation: bytes) -> None:
        """An empty log that its lock fenced is fenced by claims from here on, for good. The claim is durable
        before a header names it; until then nothing is looked for where it lies, for the log is empty."""
        fence = ClaimFence(self.file, _claim_of(owner, self.header.wal_id, incarnation))
        await fence.take()
        await fence.look()
        self.fence = fence
        await self.write_both(is_claimed=True, holder=None)

    async def cut_off(self) -> None:
        """Gives back what a file has beyond the capacity."""
        if self.file.size_bytes > self.header.capacity_bytes:
            await self.file.resize(self.header.capacity_bytes)


def is_held_elsewhere(file: BlockFile, header: DeviceHeader | None, settings: BlockWalSettings) -> bool:
    """That the lock of `file` is ours tells nothing of the log's last owner. Of a header that names no holder
    that is not known: claims or a reservation fence the log, or a build wrote it that knows of no holders.
    `fencing=lock` is an operator's word for a file: that all machines see its locks."""
    if header is None or header.holder is None or header.is_claimed:
        return False
    if settings.fencing == "lock" and not file.is_device:
        return False
    return file.keeper is None or not file.keeper.tells_of(header.holder)


async def identify(disk: Disk, path: str, settings: BlockWalSettings = UNSAID) -> WalIdentity | None:
    """What the log there says of itself, of whatever owner it is. None where a file or device is blank, or
    not there at all. Raises DiskLocked where another process has it open, but for a log that is fenced by
    claims where that is in the settings; WalForeign and WalHeaderLost for what is neither."""
    file = await open_present(disk, path, is_shared=settings.is_by_claims)
    if file is None:
        return None
    try:
        header = await read_header(file)
        if not file.is_exclusive and (header is None or not header.is_claimed):
            raise DiskLocked(path)
        if header is not None:
            is_elsewhere = is_held_elsewhere(file, header, settings)
            node = header.cluster_id, header.node_id
            return WalIdentity(header.wal_id, header.epoch, header.mark, *node, is_elsewhere)
        await _check_blank(disk, path, file, may_be_claimed=settings.is_by_claims)
        return None
    finally:
        await file.close()


async def open_present(disk: Disk, path: str, *, is_shared: bool = False) -> BlockFile | None:
    """To look at; None where nothing lies. Whoever asked closes it."""
    folder, _, name = path.rpartition("/")
    if name not in await disk.list_folder(folder or "/" if path.startswith("/") else folder or "."):
        return None
    return await disk.open_block(path, 0, is_shared=is_shared)


def reservation_key(epoch: int) -> int:
    """What an owner registers with the device: "MR" and its epoch. 0 is nobody's."""
    return 0x4D52 << 48 | epoch & (1 << 48) - 1 if epoch >= 0 else 0


async def read_header(file: BlockFile) -> DeviceHeader | None:
    """None where neither copy is sound. A copy that cannot be read is as one that rotted, as long as the
    other one is sound; else nobody knows what it said: raises DiskFailed."""
    if file.size_bytes < RING_START:
        return None
    copies, failure = [], None
    for at in (0, BLOCK_BYTES):
        try:
            copies.append(bytes(await file.read_at(at, BLOCK_BYTES)))
        except DiskFailed as error:
            copies.append(bytes(BLOCK_BYTES))
            failure = error
    header = choose_device_header(copies[0], copies[1])
    if header is None and failure is not None:
        raise failure
    return header


async def _check_blank(disk: Disk, path: str, file: BlockFile, *, may_be_claimed: bool) -> None:
    """Raises WalForeign or WalHeaderLost for a place without a header that holds anything else; but for a
    claim where that may be, whose owner ended before it wrote a header. A file that is too short for a header
    is one whose making a power cut met, or not ours: it is read whole."""
    if file.size_bytes < RING_START:
        data = await disk.read_file(path) or b""
        content = find_content(data, 0)
        if content is not None:
            raise content
        return
    foreign: WalCorrupt | None = None
    for place, length in looks(file.size_bytes):
        data = bytes(await file.read_at(place, length))
        if place == 0 and may_be_claimed and decode_claim(data[CLAIM_PLACE:][:BLOCK_BYTES]) is not None:
            data = data[:CLAIM_PLACE] + bytes(BLOCK_BYTES) + data[CLAIM_PLACE + BLOCK_BYTES :]
        content = find_content(data, place)
        if isinstance(content, WalHeaderLost):
            raise content  # whatever was written over its beginning
        foreign = foreign or content
    if foreign is not None:
        raise foreign


def check_claims(file: BlockFile, path: str, header: DeviceHeader | None, owner: WalOwner) -> None:
    """Raises DirectRefused, and WalMismatch for a log without an identity: claims are none of its format."""
    if not file.is_direct:  # the page cache does not see what another machine wrote
        raise DirectRefused(path) if header is None or not header.is_claimed else WalClaimsWantDirect(path)
    if owner.new_wal_id == NO_WAL_ID and (header is None or header.wal_id == NO_WAL_ID):
        raise WalMismatch("fencing", "an identity of millrace.version 1", "a log without one")


def _claim_of(owner: WalOwner, wal_id: bytes, incarnation: bytes) -> Claim:
    return Claim(owner.node_id, owner.epoch, incarnation, wal_id)


async def _claim(
    file: BlockFile, path: str, header: DeviceHeader | None, owner: WalOwner, incarnation: bytes
) -> tuple[ClaimFence, DeviceHeader | None]:
    """Takes the log from its last owner, who acknowledges nothing from here on, and waits until what it had
    begun has landed; with the header as it is then. A log that its owner closed has nothing under way. Raises
    WalFenced where another took it at the same time."""
    wal_id = owner.new_wal_id if header is None else header.wal_id
    check_claims(file, path, header, owner)
    fence = ClaimFence(file, _claim_of(owner, wal_id, incarnation))
    await fence.take()
    header = await read_header(file)
    if header is None or header.closed_end < 0 or header.epoch < 0:
        await fence.settle()
        header = await read_header(file)
    await fence.look()
    _check(header, owner, file.size_bytes)
    return fence, header


async def _reserve(
    file: BlockFile, path: str, header: DeviceHeader | None, owner: WalOwner, settings: BlockWalSettings
) -> bool:
    """Takes the device from its last owner, and sees that no other has come between."""
    if settings.reserves == "never":
        return False
    old_epoch = -1 if header is None else header.epoch
    if not await file.reserve(reservation_key(owner.epoch), reservation_key(old_epoch)):
        if settings.reserves == "require":
            raise WalMismatch("reservation", "one that the device enforces", "not to be had")
        return False
    again = await read_header(file)
    _check(again, owner, file.size_bytes)
    if (-1 if again is None else again.epoch) != old_epoch:
        raise DiskLocked(path, "another machine, which opened it at the same time")
    return True


def _check(header: DeviceHeader | None, owner: WalOwner, size_bytes: int) -> None:
    if header is None:
        return
    _check_owner(header, owner)
    if header.capacity_bytes > size_bytes:
        raise WalMismatch("capacity", header.capacity_bytes, size_bytes)


def _check_owner(header: DeviceHeader, owner: WalOwner) -> None:
    if header.cluster_id != owner.cluster_id:
        raise WalMismatch("cluster", owner.cluster_id, header.cluster_id)
    if header.node_id != owner.node_id:
        raise WalMismatch("node", owner.node_id, header.node_id)
    if owner.epoch <= header.epoch:
        raise WalFenced(owner.epoch, header.epoch)
