"""The block WAL as a kind: a ring in a file or on a device. Not here: the ring (log.py), which is imported
when one is opened."""

from __future__ import annotations

from millrace.wal.block.layout import align_up
from millrace.wal.config import BlockWalSettings
from millrace.wal.identity import WalIdentity
from millrace.wal.kind import WalKind, WalPlace, WalWords
from millrace.wal.log import WalOwner, WriteAheadLog

ARENAS_AHEAD = 2


def read_settings(words: WalWords) -> BlockWalSettings:
    default = BlockWalSettings()
    return BlockWalSettings(
        capacity_bytes=words.number("capacity", default.capacity_bytes, "a number of bytes, KiB, MiB or GiB"),
        is_capacity_given=bool(words.text("capacity", "")),
        iops=words.number("iops", default.iops),
        writes_in_flight=words.number("iodepth", default.writes_in_flight),
        direct=words.direct,
        reservation=words.text("reservation", default.reservation),
        fencing=words.text("fencing", default.fencing),
        corruption=words.corruption,
        arenas_ahead=ARENAS_AHEAD,
    )


async def _open(place: WalPlace, owner: WalOwner) -> WriteAheadLog:
    from millrace.wal.block.capacity import settle_capacity
    from millrace.wal.block.log import BlockWal

    settled = await settle_capacity(place.disk, place.address.target, place.settings)
    settled.note(place.address.target)
    if settled.free_bytes is not None:
        await place.disk.make_folder(
            place.address.target.rpartition("/")[0] or "/"
        )  # it may have gone with the disk of the one before
    incarnation = place.rand.split(f"claim of epoch {owner.epoch}").uuid()
    return await BlockWal.open(
        place.disk, place.address.target, settled.settings, owner, incarnation=incarnation
    )


async def _check_room(place: WalPlace, beside_bytes: int) -> None:
    from millrace.wal.block.capacity import settle_capacity

    await settle_capacity(place.disk, place.address.target, place.settings, beside_bytes)


async def _identify(place: WalPlace, node_id: int) -> WalIdentity | None:
    from millrace.wal.block.device import identify

    return await identify(place.disk, place.address.target, place.settings)


BLOCK = WalKind(
    read_settings,
    _open,
    _identify,
    name="block",
    name_of=lambda address: address.target,
    mend="mend the device",
    verify="millrace wal verify",
    check_room=_check_room,
    file_of=lambda address: address.target,
    begin_after=align_up,
)
