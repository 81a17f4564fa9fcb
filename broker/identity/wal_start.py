"""What a start does with a write-ahead log (WAL) beside opening it: empties one that is not this node's any
more, and tells of losses.

Not here: judging (wal_binding.py), recovery (s3stream/recovery.py). Kept true: records of a WAL that metadata
does not have as this node's current one never enter a stream: their offsets may have been given to other
records since.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from millrace.broker.identity.binding import BindingRefused
from millrace.broker.identity.unknown_streams import range_text, refuse_unknown, unknown_ranges
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.restored_from import read_restored_from
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamRange, StreamRole
from millrace.s3stream.objects.format import decode_entry
from millrace.wal.identity import MetadataMark
from millrace.wal.log import WalRecord, WriteAheadLog
from millrace.wal.opening import kind_of

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.broker.controller_client import ControllerClient
    from millrace.broker.identity.wal_binding import WalBinding
    from millrace.protocol.messages.accept_wal_loss import LostPartition
    from millrace.runtime.disk import Disk
    from millrace.runtime.objectstore.address import StoreAddress
    from millrace.s3stream.recovery import Recovered

log = logging.getLogger(__name__)
LOGGED_MAX = 200


async def disown(
    binding: WalBinding, client: ControllerClient, address: StoreAddress, nobodys_id: bytes
) -> None:
    """Of an older copy whose loss is accepted, before it is opened; of any other nothing is done. On return
    metadata durably has an id that no WAL has in the place of its own. Once opened, the copy's last owner is
    as new as any; so a start that ends before it has told of the loss leaves a WAL that is not the registered
    one, and the next start is refused again, or tells."""
    if binding.is_older:
        await client.register_wal(nobodys_id, kind_of(address).name, str(address), 0, is_loss_accepted=True)


async def discard_foreign(
    wal: WriteAheadLog, path: str, image: MetadataImage, node_id: int, *, is_accepted: bool
) -> None:
    """Empties a WAL that is not the node's registered one, durably on return, and says by partition and
    offsets what it held. Raises BindingRefused when it holds records and their loss was not accepted; the WAL
    is then as it was, but for what opening it changed."""
    count, held = 0, Held()
    async with aclosing(wal.recover()) as records:
        async for record in records:
            if not is_accepted:
                raise BindingRefused(
                    f"the WAL {path} is not the one that this node wrote last, and holds records of an "
                    "earlier time, whose offsets may have been "
                    "given to others since: give the WAL that the node wrote last, or a new place "
                    "(s3.wal.path), or start once with "
                    "wal.lost.accept=true, which empties this one"
                )
            count += 1
            held.add(record)
    await wal.reset()
    if count:
        log.warning("WAL %s emptied: %d records of an earlier time given up (wal.lost.accept)", path, count)
        held.say(path, image, node_id)


def texts_of(ranges: Iterable[StreamRange], image: MetadataImage, node_id: int) -> list[str]:
    names = {bytes(topic.topic_id): topic.name for topic in image.topics}
    found = []
    for one in ranges:
        stream = image.streams.get(one.stream_id)
        if stream is None or stream.topic_id not in names:
            found.append(range_text(one, node_id))
        elif stream.role is StreamRole.DATA:
            found.append(f"{names[stream.topic_id]}-{stream.partition}: offsets [{one.start}, {one.end})")
    return sorted(found)


def say_each(texts: Sequence[str], form: str) -> None:
    """One line each, up to a bound."""
    for text in texts[:LOGGED_MAX]:
        log.warning(form, text)
    if len(texts) > LOGGED_MAX:
        log.warning("WAL loss accepted: %d more partitions likewise", len(texts) - LOGGED_MAX)


def say_behind_hole(recovered: Recovered, image: MetadataImage, node_id: int) -> None:
    texts = texts_of(recovered.behind_hole.values(), image, node_id)
    say_each(texts, "WAL loss accepted: %s, which do not continue what is known, are given up")


class Held:
    """What records of a WAL hold, stream by stream, from the first offset to the last."""

    def __init__(self) -> None:
        self._ranges: dict[int, StreamRange] = {}
        self._unreadable_count = 0

    def add(self, record: WalRecord) -> None:
        try:
            entry, _, _ = decode_entry(record.payload, 0)
        except ObjectCorrupt:
            self._unreadable_count += 1
            return
        before = self._ranges.get(entry.stream_id)
        start = entry.base_offset if before is None else min(before.start, entry.base_offset)
        end = entry.end if before is None else max(before.end, entry.end)
        self._ranges[entry.stream_id] = StreamRange(entry.stream_id, start, end)

    def texts(self, image: MetadataImage, node_id: int) -> list[str]:
        """Of partitions' records and of streams that metadata does not know; what belongs to a partition's
        state goes without saying."""
        return texts_of(self._ranges.values(), image, node_id)

    def say(self, path: str, image: MetadataImage, node_id: int) -> None:
        say_each(
            [f"WAL {path}: {text}" for text in self.texts(image, node_id)],
            "WAL loss accepted: %s of an earlier time are given up",
        )
        if self._unreadable_count:
            log.warning(
                "WAL loss accepted: WAL %s: %d records that cannot be read", path, self._unreadable_count
            )


def is_registered(image: MetadataImage, node_id: int, wal: WriteAheadLog) -> bool:
    """The log is the one in which the node's open streams are. Of another one all have to be closed first."""
    active = image.wals.active(node_id)
    return active is not None and active.wal_id == wal.wal_id


async def register_wal(
    settings: BrokerSettings,
    image: MetadataImage,
    client: ControllerClient,
    wal: WriteAheadLog,
    binding: WalBinding,
) -> None:
    """On return metadata names the WAL, and the WAL names the metadata (`image`, from before), or its next
    object does: before the first append. Whoever accepts losses for good is told of it."""
    await client.register_wal(
        wal.wal_id,
        kind_of(settings.wal).name,
        str(settings.wal),
        wal.confirmed_end,
        is_loss_accepted=binding.is_lost or wal.confirmed_end < binding.committed_end,
    )
    wal.see_metadata(MetadataMark(image.offset, image.epoch))
    await wal.mark_metadata()
    if settings.is_lost_wal_accepted:
        log.warning(
            "wal.lost.accept=true has done what it was given for, if there was anything: take it out now. "
            "While it stays, a WAL that is lost later is given up by the next start without a question"
        )


def say_given_up(partitions: Sequence[LostPartition]) -> None:
    """One line a partition, up to a bound."""
    for lost in partitions[:LOGGED_MAX]:
        log.warning(
            "WAL loss accepted: %s-%d: records from offset %d %s that were in the WAL alone are given up; "
            "leader epoch is now %d",
            lost.topic_name,
            lost.partition_index,
            lost.end_offset,
            "on" if lost.lost_end < 0 else f"to {lost.lost_end - 1}",
            lost.leader_epoch,
        )
    if len(partitions) > LOGGED_MAX:
        log.warning("WAL loss accepted: %d more partitions likewise", len(partitions) - LOGGED_MAX)


async def is_loss_restored(settings: BrokerSettings, disk: Disk) -> bool:
    """Of the first start after a restore: whether acknowledged records are missing in what was restored, as
    the restore told. Raises BindingRefused where that was not accepted."""
    log_dir = settings.controller.log_dir
    basis = await read_restored_from(disk, log_dir)
    if basis is None or not basis.is_loss_known:
        return False
    if not settings.is_lost_wal_accepted:
        raise BindingRefused(
            f"{log_dir} was restored without acknowledged records, which `millrace restore` named (with "
            "--verify it names them again): their offsets would be given to other records. Nothing is "
            "served: put back what was missing, empty the log directory and run `millrace restore` again; or "
            "start once with wal.lost.accept=true, which gives them up"
        )
    return True


async def give_up_unknown(
    settings: BrokerSettings, disk: Disk, image: MetadataImage, recovered: Recovered, binding: WalBinding
) -> None:
    """Of the first start after a restore, of this node's metadata or of its cluster's: what the WAL holds of
    streams that metadata does not know is given up by the operator's word alone; without it raises
    BindingRefused. Of a WAL that metadata does not name at all, that is all that it holds."""
    basis = await read_restored_from(disk, settings.controller.log_dir)
    wal = image.wals.last_written(settings.node_id)
    of_cluster = None if wal is None else wal.unknown_from
    next_stream_id = of_cluster if basis is None else basis.next_stream_id
    if next_stream_id is None and binding.is_unlisted:
        next_stream_id = 0
    if next_stream_id is None:
        return
    lost = unknown_ranges(recovered.unknown.values(), image, next_stream_id)
    if not settings.is_lost_wal_accepted:
        refuse_unknown(lost, settings.wal.target, settings.node_id)
    for one in lost:
        log.warning("WAL loss accepted: %s, given up", range_text(one, settings.node_id))
