"""Checkers that watch while a run goes on: each is told what passes an edge and says at once what must not
be.

`Probes` stands at the edges (disk writes, deletions in the bucket, committed metadata images, answers to
clients) and passes what it sees on; `tick` is called every few milliseconds while a broker serves. A probe
counts what it looked at. Those of the log are in log_probes.py, those of bounds in bounds.py; checks of what
is found when all is quiet in checkers.py. README.md says which invariant is whose.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.keys import object_key, parse_object_key
from millrace.s3stream.storage import Storage
from tests.sim.bounds import BoundsHold, CompactionHolds, LinesHold, RequestsHold
from tests.sim.contents import is_composite, linked_ids
from tests.sim.history import History, Place
from tests.sim.log_probes import (
    EpochsLead,
    MetadataIsSaved,
    OwnerAcknowledges,
    ShownIsDurable,
    SlotsLead,
    ToldIsDurable,
    TrimmedIsCommitted,
)
from tests.sim.node import SimNode
from tests.sim.probe import Probe
from tests.sim.settings import WAL_FILE


class MetadataGrows(Probe):
    """Invariants 4 and 10: offsets of images, epochs, starts and ends of streams only grow, through every
    restart; an image that was shown is found again."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._last: MetadataImage | None = None
        self._streams: dict[int, tuple[int, int, int]] = {}
        self._is_first = False

    def on_start(self) -> None:
        self._is_first = True

    def on_restored(self) -> None:
        """Offsets and epochs go on above; streams are as the bucket had them."""
        self._streams.clear()

    def on_image(self, image: MetadataImage) -> None:
        self.count += 1
        last, self._last = self._last, image
        if last is not None and image.offset < last.offset:
            self.find("metadata-lost", f"offset {image.offset} after {last.offset} was shown")
        if last is not None and self._is_first and image.offset == last.offset and image != last:
            self.find("metadata-differs", f"at offset {image.offset}, after a restart")
        self._is_first = False
        if last is not None and last.streams is image.streams:
            return
        for stream in image.streams.by_id.values():
            now = stream.epoch, stream.start, stream.end
            before = self._streams.get(stream.stream_id, now)
            if min(a - b for a, b in zip(now, before, strict=True)) < 0:
                self.find("stream-fell", f"{stream.stream_id}: (epoch, start, end) {before} to {now}")
            self._streams[stream.stream_id] = now


class ObjectsLive(Probe):
    """Invariants 5, 6, 7: an object is prepared for so long and no longer, is in the bucket when it is
    committed, goes from prepared to committed to pending deletion and never back, is deleted only a grace
    after it was marked for deletion, and forgotten only once it is deleted."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._states: dict[int, ObjectState] = {}
        self._marked_at: dict[int, tuple[int, int]] = {}  # when, and in which life
        self._last: object = None
        self._shown_us = 0  # when the last image was
        self._shown_life = 0

    def on_restored(self) -> None:
        self._states.clear()

    def on_image(self, image: MetadataImage) -> None:
        if image.objects is not self._last:
            self._last = image.objects
            self._look(image)
        self._shown_us, self._shown_life = self.node.world.loop.now_us, self.node.life_count

    def _look(self, image: MetadataImage) -> None:
        states = {int(object_id): stored for object_id, stored in image.objects.by_id.items()}
        bucket, cluster_id = self.node.world.bucket.objects, self.node.cluster_id
        latest_ms = self._latest_deadline_ms()
        for object_id, stored in states.items():
            before = self._states.get(object_id)
            if before == stored.state:
                continue
            self.count += 1
            if before is not None and stored.state < before:
                self.find("object-back", f"{object_id} from {before.name} to {stored.state.name}")
            if stored.state is ObjectState.COMMITTED:
                content = bucket.get(object_key(cluster_id, object_id))  # type: ignore[arg-type]
                # (the size of a composite is that of what it links)
                if content is None or (len(content[0]) != stored.size_bytes and not is_composite(content[0])):
                    self.find(
                        "commit-before-put",
                        f"object {object_id} of {stored.size_bytes} bytes is committed and not there",
                    )
            if stored.state is ObjectState.PREPARED and stored.time_ms > latest_ms:
                self.find(
                    "prepared-too-long", f"object {object_id} until {stored.time_ms}, not {latest_ms} at most"
                )
            if stored.state is ObjectState.PENDING_DELETION:
                self._marked_at.setdefault(object_id, self._marked_since(stored.time_ms))
        gone = [ObjectId(object_id) for object_id in self._states if object_id not in states]
        left = [object_id for object_id in gone if object_key(cluster_id, object_id) in bucket]
        linked = _linked(content for content, _ in bucket.values()) if left else frozenset()
        for object_id in left:
            if linked is not None and object_id not in linked:
                self.find("forgotten-object", f"{object_id} is in the bucket, and in metadata no more")
        self._states = {object_id: stored.state for object_id, stored in states.items()}

    def _marked_since(self, time_ms: int) -> tuple[int, int]:
        """Now; or, of what a process committed and did not live to show, when it says, if that was since the
        last image."""
        now_us, life = self.node.world.loop.now_us, self.node.life_count
        if life == self._shown_life:
            return now_us, life
        passed_us = max(0, self.node.world.clock.wall_ms() - time_ms) * 1000
        return max(self._shown_us, now_us - passed_us), life

    def _latest_deadline_ms(self) -> int:
        """Of what is prepared by now. Where the clock was set back a node goes on from the time that it
        knows, which the bucket may have told, too."""
        world, settings = self.node.world, self.node.settings
        ttl_ms = max(settings.streams.prepare_ttl_ms, settings.compaction.prepare_ttl_ms)
        return max(world.clock.highest_ms(), world.true_clock.wall_ms()) + ttl_ms

    def on_delete(self, key: str) -> None:
        object_id = parse_object_key(self.node.cluster_id, key)
        if object_id is None:
            return
        self.count += 1
        state = self._states.get(object_id)
        if state in (ObjectState.PREPARED, ObjectState.COMMITTED):
            self.find("deleted-alive", f"object {object_id} is {state.name} and deleted")
        at_us, life = self._marked_at.get(object_id, (0, 0))
        passed_ms = (self.node.world.loop.now_us - at_us) // 1000
        # A process that began later has the wall clock's word alone.
        is_misled = life != self.node.life_count and self.node.world.clock.stepped_ms
        if passed_ms < 0.9 * self.node.settings.object_grace_ms and not is_misled:
            self.find("deleted-early", f"object {object_id}, {passed_ms} ms after it was marked for deletion")


def _linked(contents: Iterable[bytes]) -> frozenset[int] | None:
    """What composites link; None while one of them is rotten."""
    try:
        return frozenset(one for content in contents for one in linked_ids(content))
    except ObjectCorrupt:
        return None


class CacheHolds(Probe):
    """Invariant 2: the log cache is the log's order: blocks join, streams continue through them, what is free
    is the old end."""

    def tick(self, storage: Storage) -> None:
        self.count += 1
        ends: dict[int, int] = {}
        wal_end, is_free = -1, True
        for block in storage.log_cache.blocks:
            if block.wal_start < wal_end or (
                block.wal_start > wal_end and not is_free
            ):  # what is recovered is free, and ends anywhere
                self.find("cache-order", f"{block!r} does not begin at {wal_end}")
            if block.is_free and not is_free:
                self.find("cache-order", f"{block!r} is free, one before is not")
            wal_end, is_free = block.wal_end, block.is_free
            for run in block.runs.values():
                if ends.get(run.stream_id, run.start) != run.start:
                    self.find("cache-gap", f"stream {run.stream_id} to {ends[run.stream_id]}, then {run!r}")
                ends[run.stream_id] = run.end


PROBES: tuple[type[Probe], ...] = (
    ToldIsDurable,
    OwnerAcknowledges,
    ShownIsDurable,
    TrimmedIsCommitted,
    MetadataIsSaved,
    EpochsLead,
    SlotsLead,
    MetadataGrows,
    ObjectsLive,
    CacheHolds,
    BoundsHold,
    RequestsHold,
    CompactionHolds,
    LinesHold,
)


class Probes:
    """All of them, at the edges of one node."""

    def __init__(self, node: SimNode, history: History) -> None:
        self.all = [probe(node, history) for probe in PROBES]
        self._node = node
        history.on_told = self._on_told
        history.on_watermark = self._on_watermark
        node.on_image = self._on_image
        node.on_restored = self._on_restored
        node.on_other_wal = self._on_other_wal
        node.on_wal_copied = self._on_wal_copied
        node.on_start = self._on_start
        node.disk.on_write = self._on_write
        node.disk.on_durable = self._on_durable
        node.world.bucket.on_put = self._on_put
        node.world.bucket.on_delete = self._on_delete

    def tick(self) -> None:
        broker = self._node.broker
        if self._node.is_ready and broker is not None and broker.storage is not None:
            for probe in self.all:
                probe.tick(broker.storage)

    def _on_told(self, place: Place, offset: int, values: list[bytes]) -> None:
        for probe in self.all:
            probe.on_told(place, offset, values)

    def _on_watermark(self, place: Place, high_watermark: int) -> None:
        for probe in self.all:
            probe.on_watermark(place, high_watermark)

    def _on_image(self, image: MetadataImage) -> None:
        self._node.image = image
        for probe in self.all:
            probe.on_image(image)

    def _on_restored(self) -> None:
        for probe in self.all:
            probe.on_restored()

    def _on_other_wal(self) -> None:
        for probe in self.all:
            probe.on_other_wal()

    def _on_wal_copied(self) -> None:
        for probe in self.all:
            probe.on_wal_copied()

    def _on_start(self) -> None:
        for probe in self.all:
            probe.on_start()

    def _on_write(self, path: str, position: int, data: bytes) -> None:
        if path == WAL_FILE:
            for probe in self.all:
                probe.on_write(position, data)

    def _on_durable(self, path: str, position: int, data: bytes) -> None:
        if path == WAL_FILE:
            for probe in self.all:
                probe.on_durable(position, data)

    def _on_put(self, key: str, content: bytes) -> None:
        for probe in self.all:
            probe.on_put(key, content)

    def _on_delete(self, key: str) -> None:
        for probe in self.all:
            probe.on_delete(key)
