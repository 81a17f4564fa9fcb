"""From an address to a write-ahead log: the table from schemes to implementations. A third one is one folder and one line here.

    0@file:///FILE-OR-DEVICE?capacity=                      a ring in a file or on a device
    0@file:///DIR/?...   0@file:///DIR?kind=object&...      objects in a directory: a slash at the end, or `kind`, tells them
    0@s3://BUCKET?capacity=&batchInterval=&maxBytesInBatch=&maxUnflushedBytes=&maxInflightUploadCount=&readaheadDataSize=&fence=
                                                            &hedge=
    0@mem://?...                                            objects in memory, for tests alone

Not here: what the parameters mean (config.py), and reading them from the address (whoever makes the settings).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from millrace.runtime.disk import Disk
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.rand import Rand
from millrace.runtime.storeaddress import AddressError, StoreAddress
from millrace.wal.config import BlockWalSettings, ObjectWalSettings
from millrace.wal.errors import WalStoreUnfit
from millrace.wal.log import WalOwner, WriteAheadLog


@dataclass(frozen=True, slots=True)
class WalPlace:
    """Where the log is, and what an implementation may need of the world and of the settings. It takes what is its own.
    `open_store` gives a bare store, one more each time, which whoever asked for it closes."""

    address: StoreAddress
    disk: Disk
    open_store: Callable[[StoreAddress], Awaitable[ObjectStore]]
    rand: Rand
    block: BlockWalSettings
    object: ObjectWalSettings


@dataclass(frozen=True, slots=True)
class WalKind:
    open: Callable[[WalPlace, WalOwner], Awaitable[WriteAheadLog]]
    is_used: Callable[
        [WalPlace, int], Awaitable[bool]
    ]  # by a node of this id, of whatever cluster, as far as can be told unopened


async def open_wal(place: WalPlace, owner: WalOwner) -> WriteAheadLog:
    """Raises AddressError for a scheme that names none; what the implementation raises else."""
    return await _kind_of(place.address).open(place, owner)


async def is_wal_used(place: WalPlace, node_id: int) -> bool:
    """Whether there is a log at the place. Raises AddressError."""
    return await _kind_of(place.address).is_used(place, node_id)


def is_object_wal(address: StoreAddress) -> bool:
    """Whether the log is made of objects in a store. Raises AddressError for a `kind` that is none."""
    kind = address.text("kind")
    if kind not in (None, "block", "object"):
        raise AddressError(f"kind={kind} is neither block nor object, in {address}")
    if address.scheme != "file":
        return True
    return kind == "object" or (kind is None and address.target.endswith("/"))


def _kind_of(address: StoreAddress) -> WalKind:
    kind = OPENERS.get(address.scheme)
    if kind is None:
        raise AddressError(f"s3.wal.path={address}: the scheme is none of {', '.join(OPENERS)}")
    return kind


async def _open_block(place: WalPlace, owner: WalOwner) -> WriteAheadLog:
    from millrace.wal.block.log import BlockWal

    return await BlockWal.open(place.disk, place.address.target, place.block, owner)


async def _is_block_used(place: WalPlace, node_id: int) -> bool:
    from millrace.wal.block.device import is_used

    return await is_used(place.disk, place.address.target)


async def _open_objects(place: WalPlace, owner: WalOwner) -> WriteAheadLog:
    from millrace.wal.object.log import ObjectWal

    if place.address.scheme == "s3" and place.object.fence == "conditional":
        await _check_conditions(place)
    settings = place.object
    if settings.hedge == "auto" and place.address.scheme == "file":
        settings = replace(settings, hedge="off")  # a second write to the same disk is late for the same reason
    return await ObjectWal.open(await place.open_store(place.address), settings, owner, place.rand)


async def _check_conditions(place: WalPlace) -> None:
    """The fence stands on conditional puts, and there are stores that take the header and ignore it. Waits for one that does not answer."""
    from millrace.runtime.objectstore_probe import conditional_put_fault
    from millrace.runtime.objectstore_retry import RetryingObjectStore

    store = RetryingObjectStore(await place.open_store(place.address), place.rand.split("wal conditions"))
    try:
        fault = await conditional_put_fault(store, f"millrace-test-{place.rand.split('wal conditions').uuid().hex()}/")
    finally:
        await store.close()
    if fault is not None:
        raise WalStoreUnfit(
            f"the store of the WAL {place.address} {fault}, so a replaced owner could not be kept from acknowledging: "
            "add fence=reservation to s3.wal.path, or keep the WAL on a disk"
        )


async def _is_object_used(place: WalPlace, node_id: int) -> bool:
    from millrace.wal.object.log import is_used

    store = await place.open_store(place.address)
    try:
        return await is_used(store, node_id)
    finally:
        await store.close()


BLOCK = WalKind(_open_block, _is_block_used)
OBJECT = WalKind(_open_objects, _is_object_used)
FILE = WalKind(
    lambda place, owner: (OBJECT if is_object_wal(place.address) else BLOCK).open(place, owner),
    lambda place, node_id: (OBJECT if is_object_wal(place.address) else BLOCK).is_used(place, node_id),
)

OPENERS: dict[str, WalKind] = {"file": FILE, "s3": OBJECT, "mem": OBJECT}
