"""The block WAL as a kind: a ring in a file or on a device. Not here: the ring (log.py), which is imported when one is opened."""

from __future__ import annotations

from millrace.wal.config import BlockWalSettings
from millrace.wal.identity import WalIdentity
from millrace.wal.kind import WalKind, WalPlace, WalWords
from millrace.wal.log import WalOwner, WriteAheadLog

ARENAS_AHEAD = 2


def read_settings(words: WalWords) -> BlockWalSettings:
    default = BlockWalSettings()
    return BlockWalSettings(
        capacity_bytes=words.number("capacity", default.capacity_bytes, "a number of bytes, KiB, MiB or GiB"),
        iops=words.number("iops", default.iops),
        writes_in_flight=words.number("iodepth", default.writes_in_flight),
        direct=words.direct,
        reservation=words.text("reservation", default.reservation),
        corruption=words.corruption,
        arenas_ahead=ARENAS_AHEAD,
    )


async def _open(place: WalPlace, owner: WalOwner) -> WriteAheadLog:
    from millrace.wal.block.log import BlockWal

    return await BlockWal.open(place.disk, place.address.target, place.settings, owner)


async def _identify(place: WalPlace, node_id: int) -> WalIdentity | None:
    from millrace.wal.block.device import identify

    return await identify(place.disk, place.address.target)


BLOCK = WalKind(
    read_settings,
    _open,
    _identify,
    name="block",
    name_of=lambda address: address.target,
    mend="mend the device",
    verify="millrace wal verify",
    file_of=lambda address: address.target,
)
