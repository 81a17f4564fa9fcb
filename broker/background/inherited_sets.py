"""What compaction of this broker works on: its own stream-set objects, and those of brokers that are gone and
whose heir it is (kraft/commands/heirs.py).

    a broker is gone, and this one is its heir     its sets are this one's to compact after
                                                   CompactionSettings.inherit_after_ms of that
    it is back, or another is its heir             they are not, at once
    a commit with such a set in it is refused      all of them wait anew: the controller knows better

A broker that is started again within that time finds its sets as it left them. Merged, its sets become this
broker's own: what was inherited is inherited once. Not here: what is compacted (s3stream/compaction); whose a
set is, which the controller judges at each commit (kraft/commands/compaction.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from millrace.broker.controller_client import ControllerClient
from millrace.kraft.commands.heirs import Compactors
from millrace.kraft.image.image import MetadataImage
from millrace.s3stream.errors import CompactionRefused
from millrace.s3stream.ids import (
    CompactionCommit,
    ObjectId,
    StreamBounds,
    StreamId,
    StreamObjectInfo,
    StreamSetInfo,
)

log = logging.getLogger(__name__)


class InheritingCatalog:
    """A CompactionCatalog. `on_due` is called when sets of another broker become this one's to compact. Times
    are the loop's."""

    def __init__(
        self, client: ControllerClient, node_id: int, after_ms: int, on_due: Callable[[], None]
    ) -> None:
        self._client = client
        self._node_id = node_id
        self._after_s = after_ms / 1000
        self._on_due = on_due
        self._image: MetadataImage | None = None
        self._since_s: dict[int, float] = {}  # by broker that is gone: since when this one is its heir
        self._taken: set[int] = set()  # of these, whose time has come
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def on_image(self, image: MetadataImage) -> None:
        """To be told of each."""
        before, self._image = self._image, image
        if before is not None and before.brokers is image.brokers:
            return
        compactors, now_s = Compactors(image), asyncio.get_running_loop().time()
        nodes = dict.fromkeys((*image.objects.nodes_with_sets(), *image.brokers.by_id))
        gone = [one for one in nodes if one != self._node_id and compactors.of(one) == self._node_id]
        self._since_s = {one: self._since_s.get(one, now_s) for one in gone}
        self._taken.intersection_update(gone)
        self._look()

    def close(self) -> None:
        """Nobody is told any more."""
        self._is_closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Takes on whose time has come, and comes back for the next."""
        self._stop_timer()
        loop = asyncio.get_running_loop()
        due = {one: since_s + self._after_s for one, since_s in self._since_s.items()}
        come = [one for one, due_s in due.items() if due_s <= loop.time() and one not in self._taken]
        self._taken.update(come)
        for one in come:
            log.info("compaction: takes on the stream-set objects of broker %d, which is gone", one)
        waiting = [due_s for one, due_s in due.items() if one not in self._taken]
        if waiting and not self._is_closed:
            self._timer = loop.call_at(min(waiting), self._look)
        if come:
            self._on_due()

    def stream_set_objects(self) -> Sequence[StreamSetInfo]:
        """As CompactionCatalog. Raises nothing."""
        own = self._client.stream_set_objects()
        if not self._taken or self._image is None:
            return own
        objects = self._image.objects
        inherited = [one for node_id in sorted(self._taken) for one in objects.stream_sets(node_id)]
        return sorted((*own, *inherited), key=lambda one: (one.order_id, one.object_id))

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        """As CompactionCatalog: raises CompactionRefused."""
        is_inherited = self._is_inherited(commit)
        try:
            await self._client.commit_compaction(commit)
        except CompactionRefused:
            if is_inherited:
                now_s = asyncio.get_running_loop().time()
                self._since_s = dict.fromkeys(self._since_s, now_s)
                self._taken.clear()
                self._look()
            raise

    def _is_inherited(self, commit: CompactionCommit) -> bool:
        """Whether one of its sources is a set of another broker."""
        if not self._taken or self._image is None:
            return False
        found = map(self._image.objects.get, commit.compacted_ids)
        return any(one is not None and one.node_id in self._taken for one in found)

    async def prepare(self, count: int, ttl_ms: int) -> ObjectId:
        return await self._client.prepare(count, ttl_ms)

    def stream_objects(self, stream_id: StreamId) -> Sequence[StreamObjectInfo]:
        return self._client.stream_objects(stream_id)

    def open_streams(self) -> Sequence[StreamId]:
        return self._client.open_streams()

    def stream_bounds(self, stream_ids: Sequence[StreamId]) -> Mapping[StreamId, StreamBounds]:
        return self._client.stream_bounds(stream_ids)
