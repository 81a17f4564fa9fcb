"""Live probes of the write-ahead log, of blocks or of objects: what is told is durable and its owner's, what
is trimmed is committed, epochs lead.

Each counts by the kind of log that a run has, so that a hunt which met one kind alone is told so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

from millrace.kraft.bucket.layout import parse_piece_key, parse_snapshot_key
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import StreamId, StreamRole
from millrace.s3stream.objects.format import decode_entry
from millrace.s3stream.objects.keys import parse_object_key
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
from millrace.wal.config import ObjectWalSettings
from millrace.wal.object.layout import HEADER_BYTES as OBJECT_HEADER_BYTES
from millrace.wal.object.layout import MAGIC as OBJECT_WAL_MAGIC
from millrace.wal.object.layout import FenceKind, Kind, ObjectHeader, decode_header, root_key
from millrace.wal.object.layout import Place as Slot
from millrace.wal.record import RECORD_HEADER_BYTES
from tests.sim.history import History, Place, shown
from tests.sim.node import SimNode
from tests.sim.probe import Probe
from tests.sim.salvage import blocks_from
from tests.sim.settings import WAL_FILE
from tests.sim.strange import wal_objects

RECENT_WRITES = 96
LOG_OF_BLOCKS, LOG_OF_OBJECTS = "log of blocks", "log of objects"


class LogProbe(Probe):
    """Of either kind of log, counted apart; a run has one of them."""

    kinds: tuple[str, ...] = (LOG_OF_BLOCKS, LOG_OF_OBJECTS)

    def looked_at(self) -> dict[str, int]:
        own = (
            LOG_OF_OBJECTS
            if isinstance(self.node.settings.wal_settings, ObjectWalSettings)
            else LOG_OF_BLOCKS
        )
        return {f"{type(self).__name__}, {kind}": self.count if kind == own else 0 for kind in self.kinds}


class ToldIsDurable(LogProbe):
    """Invariants 1 and 13: what is acknowledged, the first time or as a repeat, is on the disk or in an
    object by then."""

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
        is_kept = not log.is_ageing and story is not None and not story.is_deletion_asked
        if is_kept and not (0 <= offset < log.start_asked) and not self._is_durable(values[-1]):
            self.find("ack-before-durable", f"{shown(place)} {offset} {values[-1][:24]!r}")

    def _is_durable(self, value: bytes) -> bool:
        if any(value in data for data in self._recent):
            return True
        wal, bucket = self.node.disk.files.get(WAL_FILE), self.node.world.bucket
        return (wal is not None and value in wal.durable) or any(
            value in data for _, data in bucket.sound_contents()
        )


class ShownIsDurable(LogProbe):
    """Invariants 8 and 13: a high watermark that anybody is told lies at or below what is on the disk or
    committed by then."""

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


class OwnerAcknowledges(LogProbe):
    """Invariant 1: what is acknowledged lies in the log where it counts: its owner, by what the log itself
    said then, wrote it, and nothing that the owner wrote before it is missing. Else it is in an object by
    then.

    A log of blocks says who owns it in its header; a log of objects by its slots (`ObjectSlots`). What was no
    owner's when it became durable never counts, whoever comes later.
    """

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._recent: deque[Piece] = deque(maxlen=RECENT_WRITES)
        self._under_way: deque[Piece] = deque()  # blocks of this life, in order of writing
        self._header: DeviceHeader | None = None
        self._logs = ObjectLogs()

    def on_start(self) -> None:
        self._under_way.clear()
        self._header = device_header(self.node)

    def on_restored(self) -> None:
        self.on_start()  # the log may be gone, too

    def on_wal_copied(self) -> None:
        self._logs.remember(self.node)

    def on_other_wal(self) -> None:
        self._logs.choose(self.node)
        self.on_start()

    def on_write(self, position: int, data: bytes) -> None:
        block = decode_block_header(memoryview(data), 0) if position >= RING_START else None
        if block is not None:
            self._under_way.append(Piece(data, Slot(block.epoch, block.position)))

    def on_durable(self, position: int, data: bytes) -> None:
        if position < RING_START:
            after = decode_device_header(data)
            if after is not None and (self._header is None or after.sequence > self._header.sequence):
                self._header = after
            return
        block = decode_block_header(memoryview(data), 0)
        if block is None:
            return
        owner = self._header.epoch if self._header is not None else -1
        for piece in self._under_way:
            if piece.place == Slot(block.epoch, block.position):
                piece.is_durable, piece.is_owned = True, block.epoch == owner
                self._recent.appendleft(piece)
        while self._under_way and self._under_way[0].is_durable:
            self._under_way.popleft().is_joined = True

    def on_put(self, key: str, content: bytes) -> None:
        header = header_of_log(key, content)
        if header is None:
            return
        if header.kind in (Kind.RECORDS, Kind.CLOSING):
            self._recent.appendleft(
                Piece(content, header.place, is_owned=not self._logs.now.is_overtaken(header))
            )
        self._logs.on_put(header)

    def on_told(self, place: Place, offset: int, values: list[bytes]) -> None:
        pieces = [piece for piece in self._recent if values[-1] in piece.data]
        self.count += bool(pieces)
        if pieces and not any(self._counts(piece) for piece in pieces) and not self._is_committed(values[-1]):
            self.find(
                "acknowledged-in-vain", f"{shown(place)} {offset} {values[-1][:24]!r}, written to {pieces[0]}"
            )

    def _counts(self, piece: Piece) -> bool:
        if isinstance(self.node.settings.wal_settings, ObjectWalSettings):
            return self._logs.now.counts(piece.place) and (
                piece.is_owned or self._logs.now.is_counted(piece.place)
            )
        return piece.is_owned and piece.is_joined

    def _is_committed(self, value: bytes) -> bool:
        contents = self.node.world.bucket.sound_contents()
        return any(value in data for key, data in contents if "/wal/" not in key)


@dataclass(eq=False)
class Piece:
    """A block, by its epoch and position, or an object of the log, by its epoch and slot."""

    data: bytes
    place: Slot
    is_durable: bool = False
    is_owned: bool = False  # when it became durable
    is_joined: bool = False  # all that the same life wrote before is durable, too

    def __str__(self) -> str:
        return f"{self.place}: owned {self.is_owned}, joined {self.is_joined}"


class ObjectSlots:
    """What the objects of a log, as they came into effect, say of who owned it up to where."""

    def __init__(self) -> None:
        self.root_epoch = -1
        self.claims: dict[int, None] = {}
        self.seals: dict[Slot, int] = {}  # by whom
        self.put: dict[Slot, None] = {}  # records, marks and closings
        self.links: dict[int, Slot | None] = {}  # by epoch
        self._ends: dict[int, int] = {}  # by epoch: all slots below were put
        self._counted: dict[int, int] = {}  # by epoch: what lies behind is void, says a later owner
        # by epoch: what had come without a hole when somebody claimed the log
        self._joined: dict[int, int] = {}

    def on_put(self, header: ObjectHeader) -> None:
        if header.kind is Kind.ROOT:
            self.root_epoch = header.epoch if self.root_epoch < 0 else self.root_epoch
        elif header.kind is Kind.CLAIM:
            self._on_claim(header.epoch)
        elif header.kind is Kind.SEAL:
            self.seals.setdefault(header.place, header.epoch)
        else:
            self._on_records(header)

    def _on_claim(self, claimed: int) -> None:
        """What older owners put from now on is acknowledged to nobody: a hole that is filled later stays one,
        until the claimant says what counts."""
        for epoch in (*self.claims, *self._ends):
            if epoch < claimed:
                self._joined.setdefault(epoch, self.end(epoch))
        self.claims[claimed] = None

    def _on_records(self, header: ObjectHeader) -> None:
        epoch = header.place.epoch
        self.put[header.place] = None
        end = self._ends.get(epoch, 0)
        while Slot(epoch, end) in self.put:
            end += 1
        self._ends[epoch] = end
        self.links.setdefault(epoch, header.link)
        if header.link is not None:
            self._counted.setdefault(header.link.epoch, header.link.slot)

    def end(self, epoch: int) -> int:
        """All of its slots below were put."""
        return self._ends.get(epoch, 0)

    def counts(self, place: Slot) -> bool:
        """Nothing before it is missing, nor was when another claimed the log, and no later owner began before
        it."""
        end = self.end(place.epoch)
        return place.slot < min(end, self._counted.get(place.epoch, self._joined.get(place.epoch, end)))

    def is_counted(self, place: Slot) -> bool:
        """A later owner has taken it over."""
        return place.slot < self._counted.get(place.epoch, 0)

    def is_overtaken(self, header: ObjectHeader) -> bool:
        """Somebody has come whose listing may lack what is put now."""
        return header.fence is FenceKind.RESERVATION and any(epoch > header.epoch for epoch in self.claims)

    def is_taken(self, header: ObjectHeader) -> bool:
        """Its writer said that the log is its own before it wrote: by a claim, or by the seal at the end of a
        chain of seals."""
        if header.fence is FenceKind.RESERVATION:
            return header.epoch in self.claims
        owner, at = self.root_epoch, Slot(self.root_epoch, 0)
        if header.link is not None:
            owner, at = header.link.epoch, header.link
        while (
            at in self.seals and owner != header.epoch
        ):  # its own first slot may be sealed while its second is on the way
            owner = self.seals[at]
            at = Slot(owner, 0)
        return owner == header.epoch


class ObjectLogs:
    """Each log of objects that the node ever had, by the token of its root; `now` is the one that it has."""

    def __init__(self) -> None:
        self.now = ObjectSlots()
        self._all: dict[bytes, ObjectSlots] = {}
        self._copies: dict[tuple[str, ...], ObjectSlots] = {}  # as they were, by the keys that the copy has

    def on_put(self, header: ObjectHeader) -> None:
        if header.kind is Kind.ROOT:
            self._all.setdefault(header.token, self.now)
        self.now.on_put(header)

    def remember(self, node: SimNode) -> None:
        """The one that is in the bucket, which is copied as it is now."""
        self._copies[wal_keys(node)] = deepcopy(self.now)

    def choose(self, node: SimNode) -> None:
        """By what is in the bucket."""
        copy = self._copies.get(wal_keys(node))
        if copy is not None:
            self.now = deepcopy(copy)
            return
        key = root_key(node.node_id)
        found = node.world.bucket.objects.get(key)
        header = None if found is None else header_of_log(key, found[0])
        self.now = ObjectSlots() if header is None else self._all.get(header.token, ObjectSlots())


def wal_keys(node: SimNode) -> tuple[str, ...]:
    return tuple(sorted(wal_objects(node)))


def header_of_log(key: str, content: bytes) -> ObjectHeader | None:
    """Of an object of a log; None for what belongs to none."""
    return decode_header(content, 0) if content[:8] == OBJECT_WAL_MAGIC else None


def device_header(node: SimNode) -> DeviceHeader | None:
    """The newer of those that are durable."""
    file = node.disk.files.get(WAL_FILE)
    if file is None:
        return None
    copies = [decode_device_header(bytes(file.durable[at : at + BLOCK_BYTES])) for at in (0, BLOCK_BYTES)]
    return max((one for one in copies if one is not None), key=lambda one: one.sequence, default=None)


class TrimmedIsCommitted(LogProbe):
    """Invariant 2: each record that the log's header lets go is committed, or nobody's any more; no block is
    written over what it keeps."""

    finding = "trimmed-too-early"

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._header: DeviceHeader | None = None
        self._logs = ObjectLogs()

    def on_start(self) -> None:
        self._header = device_header(self.node)

    def on_restored(self) -> None:
        self.on_start()  # the log may be gone, too

    def on_wal_copied(self) -> None:
        self._logs.remember(self.node)

    def on_other_wal(self) -> None:
        self._logs.choose(self.node)
        self.on_start()

    def on_write(self, position: int, data: bytes) -> None:
        header = self._header
        block = decode_block_header(memoryview(data), 0) if position >= RING_START else None
        if header is not None and block is not None:
            self.count += 1
            if block.end > header.head + Geometry.of(header.capacity_bytes).ring_bytes:
                self.find(
                    "kept-is-overwritten",
                    f"[{block.position}, {block.end}) though the log begins at {header.head}",
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
        header = header_of_log(key, content)
        if header is not None:
            self._logs.on_put(header)

    def on_delete(self, key: str) -> None:
        """An object of a log of objects goes: the same for its records. (Seals and marks have none.)"""
        image, content = self.image, self.node.world.bucket.objects[key][0]
        if self.node.rotten_object is not None and self.node.rotten_object[2][0] == content:
            return
        header = header_of_log(key, content)
        if (
            image is None
            or header is None
            or header.kind is not Kind.RECORDS
            or not self._logs.now.counts(header.place)
        ):
            return
        for _, stream_id, entry_end in _entries(
            memoryview(content), OBJECT_HEADER_BYTES, header.record_count
        ):
            self._judge(image, stream_id, entry_end, key)

    @property
    def image(self) -> MetadataImage | None:
        """By which a record is judged."""
        return self.node.image

    def _judge(self, image: MetadataImage, stream_id: StreamId | int, entry_end: int, where: str) -> None:
        self.count += 1
        if (stream_id, entry_end) in self.node.given_up:
            return
        stream = image.streams.get(stream_id)
        if stream is not None and entry_end > stream.end:
            self.find(self.finding, f"{where}: stream {stream_id} to {entry_end}, committed {stream.end}")

    def _check(self, before: DeviceHeader, after: DeviceHeader) -> None:
        image, ring = self.image, self.node.disk.files[WAL_FILE].durable
        geometry = Geometry.of(before.capacity_bytes)
        if image is None or self.node.rotten is not None:
            return
        for block in blocks_from(ring, geometry, before.head):
            if block.position >= after.trim:
                break
            for end, stream_id, entry_end in entries_of(ring, geometry, block):
                if not before.trim < end <= after.trim:
                    continue
                self._judge(image, stream_id, entry_end, f"WAL to {after.trim}")


class MetadataIsSaved(TrimmedIsCommitted):
    """Invariant 2, for whoever has the bucket alone: what the log lets go is committed in the bucket's
    metadata, and no object is deleted that this metadata still names as committed."""

    finding = "trimmed-before-saved"

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._images: deque[MetadataImage] = deque()  # from the one that the bucket has, on
        self._saved_end = 0

    def on_start(self) -> None:
        super().on_start()
        if self.node.cloned is not None:
            # Whoever it was copied from committed and saved what this one never published: nothing is judged
            # until it saves.
            self._images.clear()

    @property
    def image(self) -> MetadataImage | None:
        while len(self._images) > 1 and self._images[1].offset <= self._saved_end:
            self._images.popleft()
        return self._images[0] if self._images and self._images[0].offset <= self._saved_end else None

    def on_image(self, image: MetadataImage) -> None:
        self._images.append(image)

    def on_put(self, key: str, content: bytes) -> None:
        super().on_put(key, content)
        cluster_id = self.node.cluster_id
        piece, snapshot = parse_piece_key(cluster_id, key), parse_snapshot_key(cluster_id, key)
        if piece is not None and piece.base <= self._saved_end:
            self._saved_end = max(self._saved_end, piece.end)
        elif snapshot is not None:
            self._saved_end = max(self._saved_end, snapshot.end)

    def on_delete(self, key: str) -> None:
        super().on_delete(key)
        object_id, image = parse_object_key(self.node.cluster_id, key), self.image
        stored = None if object_id is None or image is None else image.objects.get(object_id)
        if stored is not None and stored.state is ObjectState.COMMITTED:
            self.find("deleted-before-saved", f"{key} is deleted, and committed in the bucket's metadata")

    def _judge(self, image: MetadataImage, stream_id: StreamId | int, entry_end: int, where: str) -> None:
        known = self.node.image
        if (stream_id, entry_end) in self.node.given_up:
            return
        if (
            known is not None
            and known.streams.get(stream_id) is not None
            and image.streams.get(stream_id) is None
        ):
            self.find(self.finding, f"{where}: stream {stream_id} is not in the bucket's metadata")
        super()._judge(image, stream_id, entry_end, where)


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


class EpochsLead(LogProbe):
    """Invariant 4: a log's epoch is in both copies of its header before its first block, and above every
    earlier one."""

    kinds = (LOG_OF_BLOCKS,)

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
                    "epoch-not-raised",
                    f"a block of epoch {block.epoch}, the header has {header and header.epoch}",
                )


class SlotsLead(LogProbe):
    """Invariant 4, of a log of objects: an epoch's first object comes after the word that took the log, a
    seal or a claim; a slot that is sealed is nobody else's; what a later owner took over was there; and no
    stream is closed while something may yet land where the log seemed to end.
    """

    kinds = (LOG_OF_OBJECTS,)

    def __init__(self, node: SimNode, history: History) -> None:
        super().__init__(node, history)
        self._logs = ObjectLogs()
        self._tokens: dict[int, bytes] = {}  # by epoch
        self._sealed: dict[str, ObjectHeader] = {}  # keys that hold a seal now
        self._open: frozenset[int] = frozenset()

    def on_wal_copied(self) -> None:
        self._logs.remember(self.node)

    def on_other_wal(self) -> None:
        self._logs.choose(self.node)
        self._sealed.clear()

    def on_put(self, key: str, content: bytes) -> None:
        header = header_of_log(key, content)
        if header is None:
            return
        if self._tokens.setdefault(header.epoch, header.token) != header.token:
            self.find("epoch-again", f"{key}: two owners of epoch {header.epoch}")
        if header.kind is Kind.SEAL:
            self._check_seal(key, header)
        elif header.kind in (Kind.RECORDS, Kind.CLOSING):
            self._check_records(key, header)
        self._logs.on_put(header)

    def _check_seal(self, key: str, header: ObjectHeader) -> None:
        if header.epoch <= header.place.epoch:
            self.find("epoch-again", f"{key} is sealed by epoch {header.epoch}")
        self._sealed.setdefault(key, header)

    def _check_records(self, key: str, header: ObjectHeader) -> None:
        if key in self._sealed:
            self.find("seal-overwritten", f"{key}, which epoch {self._sealed[key].epoch} had sealed")
        if header.place.epoch in self._logs.now.links:
            if self._logs.now.links[header.place.epoch] != header.link:
                self.find(
                    "link-changed", f"{key}: {header.link}, not {self._logs.now.links[header.place.epoch]}"
                )
            return
        self.count += 1
        if not self._logs.now.is_taken(header):
            self.find("epoch-not-taken", f"{key} is the first of its epoch, which was not announced")
        link = header.link
        if link is None:
            return
        end = self._logs.now.end(link.epoch)
        if self.node.given_up:
            return  # a log that was truncated goes on before its end
        if link.epoch >= header.epoch:
            self.find("epoch-again", f"{key} follows epoch {link.epoch}")
        if end < link.slot or (header.fence is FenceKind.CONDITIONAL and end > link.slot):
            self.find(
                "wrong-link", f"{key} counts {link.slot} slots of epoch {link.epoch}, which wrote {end}"
            )

    def on_delete(self, key: str) -> None:
        self._sealed.pop(key, None)

    def on_image(self, image: MetadataImage) -> None:
        was_open, streams = self._open, image.streams.by_id
        self._open = frozenset(one.stream_id for one in streams.values() if one.is_open)
        closed = [
            stream_id
            for stream_id in sorted(was_open - self._open)
            if streams.get(StreamId(stream_id)) is not None
        ]
        newest = max(self._logs.now.claims, default=-1)
        if closed and newest >= 0 and newest not in self._logs.now.links:
            self.find(
                "closed-unsettled", f"streams {closed}: epoch {newest} has the log, and has written nothing"
            )
