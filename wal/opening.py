"""From an address to a write-ahead log: the table from schemes to implementations. A third one is one folder and one line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millrace.runtime.disk import Disk
from millrace.runtime.storeaddress import AddressError, StoreAddress
from millrace.wal.config import BlockWalSettings
from millrace.wal.log import WalOwner, WriteAheadLog

Opener = Callable[[Disk, StoreAddress, BlockWalSettings, WalOwner], Awaitable[WriteAheadLog]]


async def open_wal(disk: Disk, address: StoreAddress, settings: BlockWalSettings, owner: WalOwner) -> WriteAheadLog:
    """Raises AddressError for a scheme that names none; what the implementation raises else."""
    opener = OPENERS.get(address.scheme)
    if opener is None:
        raise AddressError(f"s3.wal.path={address}: the scheme is none of {', '.join(OPENERS)}")
    return await opener(disk, address, settings, owner)


async def _open_block(disk: Disk, address: StoreAddress, settings: BlockWalSettings, owner: WalOwner) -> WriteAheadLog:
    from millrace.wal.block.log import BlockWal

    return await BlockWal.open(disk, address.target, settings, owner)


OPENERS: dict[str, Opener] = {"file": _open_block}
