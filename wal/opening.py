"""From an address to a write-ahead log: the table from schemes to kinds. A third one is one folder and one
line here.

    0@file:///FILE-OR-DEVICE?capacity=&fencing=             a ring in a file or on a device
    0@file:///DIR/?...   0@file:///DIR?kind=object&...      objects in a directory: a slash at the end, or
                                                            `kind`, tells them
    0@s3://BUCKET?capacity=&batchInterval=&maxBytesInBatch=&maxUnflushedBytes=&maxInflightUploadCount=&readaheadDataSize=&fence=
                                                            &hedge=
    0@mem://?...                                            objects in memory, for tests alone

Not here: what a kind is (kind.py), what the parameters mean (each kind's `read_settings`, config.py).
"""

from __future__ import annotations

from collections.abc import Callable

from millrace.runtime.objectstore.address import AddressError, StoreAddress
from millrace.wal.block.kind import BLOCK
from millrace.wal.identity import WalIdentity
from millrace.wal.kind import WalKind, WalPlace
from millrace.wal.log import WalOwner, WriteAheadLog
from millrace.wal.object.kind import OBJECT


async def open_wal(place: WalPlace, owner: WalOwner) -> WriteAheadLog:
    """Raises AddressError for a scheme that names none; what the implementation raises else."""
    return await kind_of(place.address).open(place, owner)


async def identify_wal(place: WalPlace, node_id: int) -> WalIdentity | None:
    """What the log at the place says of itself, of whatever cluster it is; None where there is no log.
    Changes nothing. Raises AddressError."""
    return await kind_of(place.address).identify(place, node_id)


async def check_room(place: WalPlace, beside_bytes: int = 0) -> None:
    """Whether a new log finds room at the place, and leaves so much beside it: raises DiskFull. Makes
    nothing."""
    check = kind_of(place.address).check_room
    if check is not None:
        await check(place, beside_bytes)


def kind_of(address: StoreAddress) -> WalKind:
    """Raises AddressError for a scheme that names none, and for a `kind` that is none."""
    choose = OPENERS.get(address.scheme)
    if choose is None:
        raise AddressError(f"s3.wal.path={address}: the scheme is none of {', '.join(OPENERS)}")
    return choose(address)


def _of_directory(address: StoreAddress) -> WalKind:
    kind = address.text("kind")
    if kind not in (None, "block", "object"):
        raise AddressError(f"kind={kind} is neither block nor object, in {address}")
    return OBJECT if kind == "object" or (kind is None and address.target.endswith("/")) else BLOCK


def _of_store(address: StoreAddress) -> WalKind:
    if address.text("kind") not in (None, "object"):
        raise AddressError(
            f"kind={address.text('kind')} is not object, the one kind of log that a store holds, in {address}"
        )
    return OBJECT


OPENERS: dict[str, Callable[[StoreAddress], WalKind]] = {
    "file": _of_directory,
    "s3": _of_store,
    "mem": _of_store,
}
