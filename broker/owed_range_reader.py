"""OwedRangeReader: asks other brokers for what their write-ahead logs owe of streams that this one has open.

    metadata names who owes the offset ─► that broker is asked, over its connection (kraft/peers/ways.py)
        it answers                      entries, whose checksums, stream, epoch and order are compared
        it owes nothing of it           it has uploaded it: metadata says so in a moment
        it does not answer              it is asked again, with growing pauses, for a few seconds
    metadata names nobody any more      who reads looks at metadata anew

Whoever waits is woken by the image. Bounded: so many reads at a time of each broker, each of a megabyte or
one entry. Not here: what is read is kept nowhere (s3stream/owed_reads.py). Kept true: nothing is given that
its owner did not append under the epoch that metadata names; a read ends within `patience_s`, however many
there are; none waits for a broker that it does not ask.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.peers.table import PeerTable
from millrace.kraft.peers.ways import Ways
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import WireError
from millrace.protocol.messages.read_owed_range import ReadOwedRangeRequest, ReadOwedRangeResponse
from millrace.runtime.errors import Unavailable, in_words
from millrace.s3stream.errors import ObjectCorrupt, RangeOwed
from millrace.s3stream.ids import StreamId, StreamRange
from millrace.s3stream.objects.format import Entry, decode_entry

log = logging.getLogger(__name__)
READS_AT_ONCE: Final = 16  # of one broker
READ_BYTES_MAX: Final = 1 << 20
ANSWER_S: Final = 2.0
PATIENCE_S: Final = 8.0  # less than a Fetch waits for the store
AGAIN_S, AGAIN_MAX_S = 0.1, 1.0
PURPOSE: Final = "owed ranges"
LISTENER: Final = "PLAINTEXT"  # of the other broker, where it has one of that name; else its first
ASSUMED: Final = {530: (0, 0)}  # nobody is shown it: millrace.version says that it is served


class OwedRangeReader:
    """`image`: the newest. `on_image` is to be told of each. `peers`: connections of this node."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        peers: PeerTable,
        node_id: int,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._image = image
        self._ways: Ways[int] = peers.ways(PURPOSE, self._place_of, f"broker {node_id}", ASSUMED)
        self._turns: dict[int, asyncio.Semaphore] = {}
        self._changed: dict[StreamId, asyncio.Future[None]] = {}  # of those that somebody reads
        self._is_closed = False

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._changed:
            for stream_id in (*delta.streams_changed, *delta.streams_removed):
                changed = self._changed.pop(StreamId(stream_id), None)
                if changed is not None:
                    changed.set_result(None)

    async def read(self, wanted: StreamRange, max_bytes: int) -> Sequence[Entry]:
        """As OwedReader. Raises RangeOwed."""
        loop = asyncio.get_running_loop()
        deadline, pause_s, why = loop.time() + self._patience_s, AGAIN_S, ""
        while True:
            owed = self._owed(wanted)
            if owed is None:
                return []
            asking = loop.create_task(
                self._ask_in_turn(owed, wanted, max_bytes), name="read of an owed range"
            )
            try:
                await self._while_owed(asking, wanted, deadline)
                if asking.done():
                    return asking.result()
                why = why or f"broker {owed.node_id} has not answered"
            except (Unavailable, WireError, ObjectCorrupt) as error:
                why = in_words(error)
            finally:
                asking.cancel()
            if self._owed(wanted) is None:
                continue
            left_s = deadline - loop.time()
            if left_s <= 0 or self._is_closed:
                raise RangeOwed(wanted.stream_id, owed.start, owed.end, why)
            await asyncio.wait([self._change_of(wanted.stream_id)], timeout=min(pause_s, left_s))
            pause_s = min(2 * pause_s, AGAIN_MAX_S)

    async def close(self) -> None:
        """Connections end; reads that wait are given up."""
        self._is_closed = True
        self._ways.close()
        changed, self._changed = self._changed, {}
        for one in changed.values():
            one.set_result(None)

    def _owed(self, wanted: StreamRange) -> OwedRange | None:
        return self._image().streams.owed.at(wanted.stream_id, wanted.start)

    def _change_of(self, stream_id: StreamId) -> asyncio.Future[None]:
        """Done with the next image in which the stream is another."""
        return self._changed.setdefault(stream_id, asyncio.get_running_loop().create_future())

    async def _while_owed(
        self, asking: asyncio.Task[list[Entry]], wanted: StreamRange, until_s: float
    ) -> None:
        """Returns when it is done, or has no point any more: it is late, nothing is owed there, or this
        closes."""
        while not asking.done() and not self._is_closed and self._owed(wanted) is not None:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            either: list[asyncio.Future[Any]] = [asking, self._change_of(wanted.stream_id)]
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def _ask_in_turn(self, owed: OwedRange, wanted: StreamRange, max_bytes: int) -> list[Entry]:
        async with self._turns.setdefault(owed.node_id, asyncio.Semaphore(READS_AT_ONCE)):
            return await self._ask(owed, wanted, max_bytes)

    async def _ask(self, owed: OwedRange, wanted: StreamRange, max_bytes: int) -> list[Entry]:
        """Raises Unavailable, WireError, and ObjectCorrupt for entries that are not what was asked for; its
        connection is closed then."""
        connection = await self._ways.connected(owed.node_id)
        wanted_bytes = max(1, min(max_bytes, READ_BYTES_MAX))
        request = ReadOwedRangeRequest(owed.stream_id, owed.epoch, owed.wal_id, wanted.start, wanted_bytes)
        response: ReadOwedRangeResponse = await connection.ask(request, ANSWER_S)
        if response.error_code:
            code = ErrorCode(response.error_code).name
            raise Unavailable(f"broker {owed.node_id}: {response.error_message or code}")
        try:
            return checked_entries(memoryview(response.entries), owed, wanted)
        except ObjectCorrupt as error:
            log.error("broker %d gave of stream %d: %s", owed.node_id, owed.stream_id, error.reason)
            connection.close()
            raise

    def _place_of(self, node_id: int) -> tuple[str, int]:
        """Raises Unavailable."""
        broker = self._image().brokers.get(node_id)
        if broker is None or broker.is_fenced or not broker.endpoints:
            raise Unavailable(f"broker {node_id} is not there")
        place = broker.endpoint(LISTENER) or broker.endpoints[0]
        return place.host, place.port


def checked_entries(data: memoryview, owed: OwedRange, wanted: StreamRange) -> list[Entry]:
    """At least one entry, of which the first holds the offset that was asked for. Raises ObjectCorrupt where
    they are not, or are not what the broker owes."""
    entries: list[Entry] = []
    position = 0
    while position < len(data):
        header, payload, end = decode_entry(data, position)
        follows = entries[-1].end if entries else wanted.start
        is_next = header.base_offset == follows or (not entries and header.base_offset < follows < header.end)
        if (header.stream_id, header.epoch) != (owed.stream_id, owed.epoch) or not is_next:
            raise ObjectCorrupt(
                f"an entry of stream {header.stream_id} at epoch {header.epoch} from offset "
                f"{header.base_offset} on, where {follows} at epoch {owed.epoch} was expected",
                position,
            )
        entries.append(Entry(header.base_offset, header.count, payload, header.epoch, header.crc))
        position = end
    if not entries or entries[-1].end > owed.end:
        raise ObjectCorrupt("no entry, or some beyond what is owed")
    return entries
