"""Checkers that watch while a run goes on: each is told what passes an edge and says at once what must not be.

`Probes` stands at the edges (disk writes, deletions in the bucket, committed metadata images, answers to clients) and passes what it sees
on; `tick` is called every few milliseconds while a broker serves. A probe counts what it looked at. Checks of what is found when all is
quiet are in checkers.py; README.md says which invariant is whose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millrace.kraft.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId, StreamRole
from millrace.s3stream.objects.format import decode_entry
from millrace.s3stream.objects.keys import object_key, parse_object_key
from millrace.s3stream.storage import Storage
from millrace.wal.block.layout import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    RING_START,
    BlockHeader,
    DeviceHeader,
    Geometry,
    decode_block_header,
    decode_device_header,
)
from millrace.wal.object.layout import HEADER_BYTES as OBJECT_HEADER_BYTES
from millrace.wal.object.layout import MAGIC as OBJECT_WAL_MAGIC
from millrace.wal.object.layout import Kind, decode_header
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim.contents import is_composite, linked_ids
from tests.sim.history import History, Place, shown
from tests.sim.node import SimNode
from tests.sim.settings import WAL_FILE
from tests.sim.weather import blocks_from

RECENT_WRITES = 96


class Probe:
    """What each may override; `watch` is how it sees the node."""

    def __init__(self, node: SimNode, history: History) -> None:
        self.node = node
        self.history = history
        self.count = 0

    def find(self, kind: str, text: str) -> None:
        self.history.find(kind, text)

    def on_start(self) -> None: ...

    def on_write(self, position: int, data: bytes) -> None: ...

    def on_durable(self, position: int, data: bytes) -> None: ...

    def on_image(self, image: MetadataImage) -> None: ...

    def on_put(self, key: str, content: bytes) -> None: ...

    def on_delete(self, key: str) -> None: ...

    def on_told(self, place: Place, offset: int, values: list[bytes]) -> None: ...

    def on_watermark(self, place: Place, high_watermark: int) -> None: ...

    def tick(self, storage: Storage) -> None: ...


class ToldIsDurable(Probe):
    """Invariants 1 and 13: what is acknowledged, the first time or as a repeat, is on the disk or in an object by then."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._recent: deque[bytes] = deque(maxlen=RECENT_WRITES)

    def on_durable(self, position: int, data: bytes) -> None:
        if position >= RING_START:
            self._recent.appendleft(data)

    def on_put(self, key: str, content: bytes) -> None:
        if "/wal/" in key:
            self._recent.appendleft(content)

    def on_told(self, place: Place, offset: int, values: list[bytes]) -> None:
        self.count += 1
        story, log = self.history.topics.get(place[0]), self.history.log(place)
        is_kept = not log.is_ageing and story is not None and not story.is_doomed
        if is_kept and not (0 <= offset < log.start_asked) and not self._is_durable(values[-1]):
            self.find("ack-before-durable", f"{shown(place)} {offset} {values[-1][:24]!r}")

    def _is_durable(self, value: bytes) -> bool:
        if any(value in data for data in self._recent):
            return True
        wal, bucket = self.node.disk.files.get(WAL_FILE), self.node.world.bucket
        return (wal is not None and value in wal.durable) or any(value in data for data, _ in bucket.objects.values())


class ShownIsDurable(Probe):
    """Invariants 8 and 13: a high watermark that anybody is told lies at or below what is on the disk or committed by then."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._ends: dict[int, int] = {}  # of streams, in the log

    def on_durable(self, position: int, data: bytes) -> None:
        view = memoryview(data)
        block = decode_block_header(view, 0) if position >= RING_START else None
        if block is not None:
            self._note(_entries(view, BLOCK_HEADER_BYTES, block.record_count))

    def on_put(self, key: str, content: bytes) -> None:
        if "/wal/" in key and content[:8] == OBJECT_WAL_MAGIC:
            count = decode_header(content, 0).record_count
            self._note(_entries(memoryview(content), OBJECT_HEADER_BYTES, count))

    def _note(self, entries: Iterable[tuple[int, int, int]]) -> None:
        for _, stream_id, end in entries:
            self._ends[stream_id] = max(end, self._ends.get(stream_id, 0))

    def on_watermark(self, place: Place, high_watermark: int) -> None:
        image = self.node.image
        streams = image.streams.of_partition(*place) if image is not None else []
        for stream in streams:
            if stream.role is StreamRole.DATA:
                self.count += 1
                end = max(self._ends.get(stream.stream_id, 0), stream.end)
                if high_watermark > end:
                    self.find("shown-before-durable", f"{shown(place)} to {high_watermark}, durable is {end}")


class TrimmedIsCommitted(Probe):
    """Invariant 2: each record that the log's header lets go is committed, or nobody's any more; no block is written over what it keeps."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._header: DeviceHeader | None = None
        self._slots_counted: dict[int, int] = {}
        self._slots_put: dict[tuple[int, int], None] = {}

    def on_start(self) -> None:
        self._header = None
        file = self.node.disk.files.get(WAL_FILE)
        if file is not None:
            copies = [decode_device_header(bytes(file.durable[at : at + BLOCK_BYTES])) for at in (0, BLOCK_BYTES)]
            self._header = max((one for one in copies if one is not None), key=lambda one: one.sequence, default=None)

    def on_write(self, position: int, data: bytes) -> None:
        header = self._header
        block = decode_block_header(memoryview(data), 0) if position >= RING_START else None
        if header is not None and block is not None:
            self.count += 1
            if block.end > header.head + Geometry.of(header.capacity_bytes).ring_bytes:
                self.find(
                    "kept-is-overwritten", f"[{block.position}, {block.end}) though the log begins at {header.head}"
                )

    def on_durable(self, position: int, data: bytes) -> None:
        if position >= RING_START:
            return
        before, after = self._header, decode_device_header(data)
        if after is None or (before is not None and after.sequence <= before.sequence):
            return
        self._header = after
        if before is not None and after.trim > before.trim:
            self._check(before, after)

    def on_put(self, key: str, content: bytes) -> None:
        if "/wal/" not in key or content[:8] != OBJECT_WAL_MAGIC:
            return
        header = decode_header(content, 0)
        if header.kind is not Kind.SEAL:
            self._slots_put[header.place.epoch, header.place.slot] = None
        if header.link is not None:
            self._slots_counted[header.link.epoch] = header.link.slot  # of that epoch: what lies behind is void

    def on_delete(self, key: str) -> None:
        """An object of a log of objects goes: the same for its records. (Seals and marks have none.)"""
        image, content = self.node.image, self.node.world.bucket.objects[key][0]
        if image is None or "/wal/" not in key or content[:8] != OBJECT_WAL_MAGIC:
            return
        if self.node.rotten_object is not None and self.node.rotten_object[2][0] == content:
            return
        header = decode_header(content, 0)
        epoch, slot = header.place.epoch, header.place.slot
        is_behind_a_hole = any((epoch, before) not in self._slots_put for before in range(slot))
        is_void = is_behind_a_hole or slot >= self._slots_counted.get(epoch, 1 << 62)
        if header.kind is not Kind.RECORDS or is_void:
            return
        for _, stream_id, entry_end in _entries(memoryview(content), OBJECT_HEADER_BYTES, header.record_count):
            self.count += 1
            stream = image.streams.get(stream_id)
            if stream is not None and entry_end > stream.end:
                self.find("trimmed-too-early", f"{key}: stream {stream_id} to {entry_end}, committed {stream.end}")

    def _check(self, before: DeviceHeader, after: DeviceHeader) -> None:
        image, ring = self.node.image, self.node.disk.files[WAL_FILE].durable
        geometry = Geometry.of(before.capacity_bytes)
        if image is None or self.node.rotten is not None:
            return
        for block in blocks_from(ring, geometry, before.head):
            if block.position >= after.trim:
                break
            for end, stream_id, entry_end in entries_of(ring, geometry, block):
                if not before.trim < end <= after.trim:
                    continue
                self.count += 1
                stream = image.streams.get(stream_id)
                if stream is not None and entry_end > stream.end:
                    self.find(
                        "trimmed-too-early",
                        f"WAL to {after.trim}: stream {stream_id} to {entry_end}, committed {stream.end}",
                    )


def entries_of(ring: bytearray, geometry: Geometry, block: BlockHeader) -> Iterable[tuple[int, int, int]]:
    """(end in the log, stream, end in the stream) of each of its records; none of a block that is torn."""
    start = geometry.physical(block.position)
    view = memoryview(bytes(ring[start : start + block.length]))
    for end, stream_id, entry_end in _entries(view, BLOCK_HEADER_BYTES, block.record_count):
        yield block.position + end, stream_id, entry_end


def _entries(view: memoryview, at: int, count: int) -> Iterable[tuple[int, int, int]]:
    try:
        for _ in range(count):
            header, _, at = decode_entry(view, at + RECORD_HEADER_BYTES)
            yield at, header.stream_id, header.end
    except ObjectCorrupt:
        return


class EpochsLead(Probe):
    """Invariant 4: a log's epoch is in both copies of its header before its first block, and above every earlier one."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._epoch = -1  # of the blocks of this life
        self._epochs_before = -1

    def on_start(self) -> None:
        self._epochs_before = max(self._epochs_before, self._epoch)
        self._epoch = -1

    def on_write(self, position: int, data: bytes) -> None:
        block = decode_block_header(memoryview(data), 0) if position >= RING_START else None
        if block is None or block.epoch == self._epoch:
            return
        self.count += 1
        self._epoch = block.epoch
        if block.epoch <= self._epochs_before:
            self.find("epoch-again", f"a block of epoch {block.epoch} after one of {self._epochs_before}")
        durable = self.node.disk.files[WAL_FILE].durable
        for at in (0, BLOCK_BYTES):
            header = decode_device_header(bytes(durable[at : at + BLOCK_BYTES]))
            if header is None or header.epoch != block.epoch:
                self.find(
                    "epoch-not-raised", f"a block of epoch {block.epoch}, the header has {header and header.epoch}"
                )


class MetadataGrows(Probe):
    """Invariants 4 and 10: offsets of images, epochs, starts and ends of streams only grow, through every restart; an image that was shown is
    found again."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._last: MetadataImage | None = None
        self._streams: dict[int, tuple[int, int, int]] = {}
        self._is_first = False

    def on_start(self) -> None:
        self._is_first = True

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
    """Invariants 5, 6, 7: an object is in the bucket when it is committed, goes from prepared to committed to doomed and never back, is deleted
    only a grace after it was doomed, and forgotten only once it is deleted."""

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._states: dict[int, ObjectState] = {}
        self._doomed_at: dict[int, tuple[int, int]] = {}  # when, and in which life
        self._last: object = None

    def on_image(self, image: MetadataImage) -> None:
        if image.objects is self._last:
            return
        self._last = image.objects
        states = {int(object_id): stored for object_id, stored in image.objects.by_id.items()}
        bucket, cluster_id = self.node.world.bucket.objects, self.node.cluster_id
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
            if stored.state is ObjectState.DOOMED:
                self._doomed_at.setdefault(object_id, (self.node.world.loop.now_us, self.node.life_count))
        gone = [ObjectId(object_id) for object_id in self._states if object_id not in states]
        left = [object_id for object_id in gone if object_key(cluster_id, object_id) in bucket]
        linked = _linked(content for content, _ in bucket.values()) if left else frozenset()
        for object_id in left:
            if linked is not None and object_id not in linked:
                self.find("forgotten-object", f"{object_id} is in the bucket, and in metadata no more")
        self._states = {object_id: stored.state for object_id, stored in states.items()}

    def on_delete(self, key: str) -> None:
        object_id = parse_object_key(self.node.cluster_id, key)
        if object_id is None:
            return
        self.count += 1
        state = self._states.get(object_id)
        if state in (ObjectState.PREPARED, ObjectState.COMMITTED):
            self.find("deleted-alive", f"object {object_id} is {state.name} and deleted")
        at_us, life = self._doomed_at.get(object_id, (0, 0))
        passed_ms = (self.node.world.loop.now_us - at_us) // 1000
        # A process that began later has the wall clock's word alone.
        is_misled = life != self.node.life_count and self.node.world.clock.stepped_ms
        if passed_ms < 0.9 * self.node.settings.object_grace_ms and not is_misled:
            self.find("deleted-early", f"object {object_id}, {passed_ms} ms after it was doomed")


def _linked(contents: Iterable[bytes]) -> frozenset[int] | None:
    """What composites link; None while one of them is rotten."""
    try:
        return frozenset(one for content in contents for one in linked_ids(content))
    except ObjectCorrupt:
        return None


class CacheHolds(Probe):
    """Invariant 2: the log cache is the log's order: blocks join, streams continue through them, what is free is the old end."""

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


class BoundsHold(Probe):
    """Invariant 12: log, caches and queues keep to their bounds, and what is charged is what is held."""

    def tick(self, storage: Storage) -> None:
        self.count += 1
        settings, cache, wal = self.node.settings.streams, storage.log_cache, storage._wal
        slack_bytes = self.node.settings.block_wal.max_record_bytes
        figures = (
            ("log cache", cache.held_bytes, settings.log_cache_bytes + slack_bytes),
            ("free in log cache", cache.free_bytes, settings.log_cache_bytes + slack_bytes),
            ("block cache", storage.block_cache.size_bytes, settings.block_cache_bytes + slack_bytes),
            ("WAL", wal.used_bytes, wal.capacity_bytes),
            ("uploads", storage.uploader.pending_count, len(cache.blocks)),
        )
        for name, value, bound in figures:
            if not 0 <= value <= bound:
                self.find("beyond-bound", f"{name}: {value} of {bound}")
        charged_bytes = sum(block.size_bytes for block in cache.blocks)
        if charged_bytes != cache.size_bytes:
            self.find("wrong-charge", f"log cache says {cache.size_bytes}, its blocks {charged_bytes}")


PROBES: tuple[type[Probe], ...] = (
    ToldIsDurable,
    ShownIsDurable,
    TrimmedIsCommitted,
    EpochsLead,
    MetadataGrows,
    ObjectsLive,
    CacheHolds,
    BoundsHold,
)


class Probes:
    """All of them, at the edges of one node."""

    def __init__(self, node: SimNode, history: History) -> None:
        self.all = [probe(node, history) for probe in PROBES]
        self._node = node
        history.on_told = self._on_told
        history.on_watermark = self._on_watermark
        node.on_image = self._on_image
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
