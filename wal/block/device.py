"""The device under a block WAL: opens it, formats a new one, keeps its header.

The header has two copies, written in turn, so that one is always whole. What holds for as long as an owner
lives (its epoch and where it began) is written to both before its first block. Deciding which records count
is recovery's work; which space is free is the log's.

A replaced owner cannot acknowledge, since it acknowledges after its write, and its write fails:

  * On a device with persistent reservations the new owner reserves it before it reads the log. That aborts
    the old one's writes under way and refuses all later ones; a failed write is the last thing an owner does.
  * On one machine the lock of the open file keeps a second owner out until the first one's process, and its
    writes, have ended.
  * Where neither holds (a volume attached to two machines that has no reservations) the old owner's blocks
    are void, by their epoch, but it could still acknowledge them: `reservation=require` refuses such a place.
    Before an owner writes its header it looks whether the header is still its own, so that it ends there at
    the latest and never writes over the new owner's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from millrace.runtime.disk import BlockFile, Disk, DiskFailed, DiskLocked
from millrace.runtime.disk.aligned import Arena
from millrace.wal.block.blank import find_content, looks
from millrace.wal.block.layout import BLOCK_BYTES, RING_START, DeviceHeader, align_down, choose_device_header
from millrace.wal.config import BlockWalSettings
from millrace.wal.errors import WalCorrupt, WalFenced, WalHeaderLost, WalMismatch
from millrace.wal.identity import NO_WAL_ID, WalIdentity
from millrace.wal.log import WalOwner


class BlockDevice:
    """`header` is the last one that is durable."""

    def __init__(self, file: BlockFile, header: DeviceHeader, is_reserved: bool) -> None:
        self.file = file
        self.header = header
        self.is_reserved = is_reserved  # the device itself keeps others out
        self._arena = Arena(BLOCK_BYTES)

    @staticmethod
    async def open(disk: Disk, path: str, settings: BlockWalSettings, owner: WalOwner) -> BlockDevice:
        """Formats what is blank. Raises WalMismatch, WalFenced, WalForeign, WalHeaderLost; DiskFull,
        DiskFailed, DiskLocked. A refused device is left untouched."""
        capacity_bytes = align_down(settings.capacity_bytes)
        file = await disk.open_block(path, capacity_bytes, direct=settings.direct)
        try:
            header = await read_header(file)
            _check(header, owner, file.size_bytes)
            if header is None and not file.is_new:
                await _check_blank(disk, path, file)
            is_reserved = await _reserve(file, path, header, owner, settings)
            if header is None:
                return await BlockDevice._format(file, capacity_bytes, owner, is_reserved)
            if header.wal_id == NO_WAL_ID:
                header = dataclasses.replace(
                    header, wal_id=owner.new_wal_id
                )  # durable with the owner's first header
            return BlockDevice(file, header, is_reserved)
        except BaseException:
            await file.close()
            raise

    @staticmethod
    async def _format(
        file: BlockFile, capacity_bytes: int, owner: WalOwner, is_reserved: bool
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
            wal_id=owner.new_wal_id,
        )  # fmt: skip
        device = BlockDevice(file, header, is_reserved)
        await device.write_both()
        return device

    async def write(self, **changes: Any) -> None:
        """Durable on return. One at a time: the caller sees to that. Raises WalFenced when a later owner's
        header is there."""
        if not self.is_reserved:
            await self._check_still_ours()
        header = dataclasses.replace(self.header, sequence=self.header.sequence + 1, **changes)
        self._arena.view[:] = header.encode()
        await self.file.write_at(header.sequence % 2 * BLOCK_BYTES, self._arena.view)
        self.header = header

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

    async def cut_off(self) -> None:
        """Gives back what a file has beyond the capacity."""
        if self.file.size_bytes > self.header.capacity_bytes:
            await self.file.resize(self.header.capacity_bytes)


async def identify(disk: Disk, path: str) -> WalIdentity | None:
    """What the log there says of itself, of whatever owner it is. None where a file or device is blank, or
    not there at all. Raises DiskLocked where another process has it open, WalForeign and WalHeaderLost for
    what is neither."""
    file = await open_present(disk, path)
    if file is None:
        return None
    try:
        header = await read_header(file)
        if header is not None:
            return WalIdentity(header.wal_id, header.epoch, header.mark, header.cluster_id, header.node_id)
        await _check_blank(disk, path, file)
        return None
    finally:
        await file.close()


async def open_present(disk: Disk, path: str) -> BlockFile | None:
    """To look at; None where nothing lies. Whoever asked closes it."""
    folder, _, name = path.rpartition("/")
    if name not in await disk.list_folder(folder or "/" if path.startswith("/") else folder or "."):
        return None
    return await disk.open_block(path, 0)


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
            copies.append(await file.read_at(at, BLOCK_BYTES))
        except DiskFailed as error:
            copies.append(bytes(BLOCK_BYTES))
            failure = error
    header = choose_device_header(copies[0], copies[1])
    if header is None and failure is not None:
        raise failure
    return header


async def _check_blank(disk: Disk, path: str, file: BlockFile) -> None:
    """Raises WalForeign or WalHeaderLost for a place without a header that holds anything else. A file that
    is too short for a header is one whose making a power cut met, or not ours: it is read whole."""
    if file.size_bytes < RING_START:
        data = await disk.read_file(path) or b""
        content = find_content(data, 0)
        if content is not None:
            raise content
        return
    foreign: WalCorrupt | None = None
    for place, length in looks(file.size_bytes):
        content = find_content(await file.read_at(place, length), place)
        if isinstance(content, WalHeaderLost):
            raise content  # whatever was written over its beginning
        foreign = foreign or content
    if foreign is not None:
        raise foreign


async def _reserve(
    file: BlockFile, path: str, header: DeviceHeader | None, owner: WalOwner, settings: BlockWalSettings
) -> bool:
    """Takes the device from its last owner, and sees that no other has come between."""
    if settings.reservation == "never":
        return False
    old_epoch = -1 if header is None else header.epoch
    if not await file.reserve(reservation_key(owner.epoch), reservation_key(old_epoch)):
        if settings.reservation == "require":
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
