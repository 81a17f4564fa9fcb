"""What a restore reads of write-ahead logs (WALs) where it runs: its node's own, and other nodes' that are
seen from there. Nothing is written, and no lock is taken.

Not here: what is made of it (broker/restore).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from millrace.broker.cli.wal import Walk, file_of, walk_of
from millrace.broker.identity.log_place import place_of_log
from millrace.broker.identity.unknown_streams import WalStream
from millrace.broker.restore.other_logs import SeenLog
from millrace.runtime.disk.peek import PeekFile
from millrace.runtime.errors import MillraceError, in_words
from millrace.s3stream.ids import StreamId
from millrace.wal.opening import identify_wal, kind_of

if TYPE_CHECKING:
    from millrace.broker.config import BrokerSettings
    from millrace.kraft.tables.wals import NodeWal
    from millrace.runtime.objectstore.address import StoreAddress
    from millrace.wal.kind import WalPlace

REACH_S: Final = 10.0  # for another node's log to answer


def streams_in(address: StoreAddress) -> list[WalStream]:
    """What a WAL in a file or on a device holds, by streams, of each in the order of the log. A log of
    objects is not read: metadata in the bucket knows its streams. Raises what reading the file does."""
    path = file_of(address)
    found: list[WalStream] = []
    last: dict[int, int] = {}  # by stream, the place of what was found of it last
    if path is None:
        return []
    with PeekFile(path) as file:
        for record in walk_of(file).records():
            if record.stream is None or record.start is None or record.count is None or record.epoch is None:
                continue
            end, place = record.start + record.count, last.get(record.stream, -1)
            if place >= 0 and (found[place].epoch, found[place].end) == (record.epoch, record.start):
                found[place] = found[place]._replace(end=end)
            else:
                last[record.stream] = len(found)
                found.append(WalStream(StreamId(record.stream), record.epoch, record.start, end))
    return found


async def begin_of(place: WalPlace, cluster_id: str, node_id: int) -> int | None:
    """The position below which the WAL was trimmed; None where it does not say."""
    path, inspect = file_of(place.address), kind_of(place.address).inspect
    if inspect is not None:
        facts = (await inspect(place, cluster_id, node_id, False)).facts
        return None if facts["faults"] else max(facts["head"], facts["trim"])
    if path is None:
        return None
    with PeekFile(path) as file:
        walk = walk_of(file)
        return max(walk.header.head, walk.header.trim) if isinstance(walk, Walk) else None


async def look_at_log(own: WalPlace, settings: BrokerSettings, wal: NodeWal) -> SeenLog:
    """Another node's log, as it is seen from here; why it is not, whatever that is."""
    try:
        place = replace(place_of_log(own, wal, settings), rand=own.rand.split(f"WAL of node {wal.node_id}"))
        async with asyncio.timeout(REACH_S):
            identity = await identify_wal(place, wal.node_id)
        if identity is None:
            return SeenLog("no log is there")
        if identity.wal_id not in (None, wal.wal_id):
            return SeenLog("another log is there")
        if identity.owner_epoch is not None and identity.owner_epoch < wal.owner_epoch:
            return SeenLog("an older copy of it is there")
        return SeenLog(streams=tuple(streams_in(place.address)))
    except TimeoutError:
        return SeenLog(f"no answer within {REACH_S:.0f} s")
    except (MillraceError, OSError, ValueError) as error:
        return SeenLog(in_words(error))
