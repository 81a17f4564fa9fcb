"""What a restore makes of the metadata that a bucket gave: everything that grows is lifted above what may
have been given since. Pure.

The image that was read is committed and older than the one that was lost. What the lost one may have given
out beyond what the bucket and the logs show is bounded by how long it may have gone on unseen:

    offsets (broker epochs too)     RECORDS_PER_MS of the time unseen: a controller writes no record a
                                    microsecond
    ids                             IDS_PER_RECORD for each: a record gives no more of objects or producers,
                                    and one stream
    quorum epochs                   a start raises them once, and claims name the epoch: EPOCHS_LIFT starts
                                    that died before their claim
    leader epochs                   a start raises them once, where a loss was accepted: one for each number
                                    of the node's claims that is not known; and one a second of the time
                                    unseen: of two restores of one old copy the later one's are higher than
                                    whatever the first one's log came to, and consumers that read that notice

Write-ahead logs are listed as to be recovered: they know newer metadata, and may. Brokers are fenced: none of
them runs with the restored metadata before it has registered anew, and those that never do are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any, Final

from millrace.kraft.commands.brokers import decide_fence_brokers
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.snapshot import partition_record
from millrace.kraft.tables.owed_ranges import OwedRange, owed_range_record
from millrace.kraft.tables.streams import StreamState, stream_record
from millrace.kraft.tables.wals import NodeWal, WalState, wal_record
from millrace.protocol.dataclass import dataclass
from millrace.protocol.metadata_records import ProducerIdsRecord
from millrace.protocol.stream_records import NextIdsRecord, NodeClaimRecord
from millrace.s3stream.ids import ObjectId, StreamId, StreamRole

RECORDS_PER_MS: Final = 1_000
IDS_PER_RECORD: Final = 10_000
# What the clocks differ by, and the last that was committed while the bucket's newest was being put.
UNSEEN_MS_MIN: Final = 60_000
IDS_LIFT_MIN: Final = IDS_PER_RECORD * RECORDS_PER_MS * UNSEEN_MS_MIN
# At a tenth of RECORDS_PER_MS, which no controller keeps up, a hundred days. A cluster that was idle for
# years is not lifted by years: ids stay below 2**53, which some clients hold them in, and epochs below the 48
# bits that a device is reserved with.
UNSEEN_MS_MAX: Final = 10 * 86_400_000
EPOCHS_LIFT: Final = 100
LEADER_EPOCHS_LIFT: Final = 1_000  # and operators may move leaders, by commands that leave no claim
LEADER_UNSEEN_S_MAX: Final = 10_000_000  # four months: of 31 bits


@dataclass(slots=True)
class Seen:
    """The highest that the bucket and the write-ahead logs show of each."""

    offset: int = 0  # of the metadata log, or a broker's epoch
    epoch: int = 0
    object_id: int = -1
    claims: list[tuple[int, int, bytes]] = field(
        default_factory=list
    )  # (series, number, incarnation) of the newest
    unseen_ms: int = 0  # since the newest metadata that was read
    unseen_starts: int = 0  # numbers of the node's claims that metadata does not know
    later_log: NodeWal | None = None  # of this node, which the bucket does not know yet
    # streams that go on in a WAL, and are not open there in metadata: whose log it is, and under which epoch
    # they are there
    reopened: dict[StreamId, tuple[int, int]] = field(default_factory=dict)
    # of these what lies before, in other WALs: in the order of each stream's offsets, from its end on
    owed: list[OwedRange] = field(default_factory=list)

    @property
    def leader_epochs_lift(self) -> int:
        return (
            LEADER_EPOCHS_LIFT + self.unseen_starts + max(0, min(self.unseen_ms // 1000, LEADER_UNSEEN_S_MAX))
        )

    @property
    def records_lift(self) -> int:
        return RECORDS_PER_MS * (UNSEEN_MS_MIN + max(0, min(self.unseen_ms, UNSEEN_MS_MAX)))

    def note(self, offset: int, epoch: int = 0) -> None:
        self.offset, self.epoch = max(self.offset, offset), max(self.epoch, epoch)


def lifted(image: MetadataImage, seen: Seen) -> MetadataImage:
    """The image of the restored log, which begins where it ends."""
    delta = MetadataDelta(image)
    delta.apply_all(lift_records(image, seen))
    offset = max(image.offset, seen.offset) + seen.records_lift
    return delta.done(offset, max(image.epoch, seen.epoch) + EPOCHS_LIFT)


def unknown_from(image: MetadataImage, node_id: int) -> int:
    """The first id of a stream that the node may have made since, by its WAL. Where metadata was restored
    before, and the node has not started since, it is still the one of then: ids of the image are lifted
    ones."""
    restored = [wal for wal in image.wals.of_node(node_id) if wal.state is WalState.RECOVERING]
    known = [wal.unknown_from for wal in restored if wal.unknown_from is not None]
    return image.streams.next_id if not restored else min(known, default=0)


def lift_records(image: MetadataImage, seen: Seen) -> Iterable[Any]:
    for topic in image.topics:
        for index, state in enumerate(topic.partitions):
            higher = state._replace(leader_epoch=state.leader_epoch + seen.leader_epochs_lift)
            yield partition_record(topic.topic_id, index, higher)
    ids_lift = IDS_PER_RECORD * seen.records_lift
    next_object_id = max(image.objects.next_id, seen.object_id + 1) + ids_lift
    yield NextIdsRecord(image.streams.next_id + ids_lift, next_object_id)
    yield ProducerIdsRecord(-1, -1, image.producer_ids + ids_lift)
    yield from decide_fence_brokers(image, [broker.broker_id for broker in image.brokers])
    for wal in image.wals:
        if wal.state is WalState.ACTIVE:
            first = unknown_from(image, wal.node_id)
            yield wal_record(replace(wal, state=WalState.RECOVERING, unknown_from=first))
    if seen.later_log is not None:
        first = unknown_from(image, seen.later_log.node_id)
        yield wal_record(replace(seen.later_log, unknown_from=first))
    yield from went_on_records(image, seen)
    for series, number, incarnation in seen.claims:
        yield NodeClaimRecord(series, number, incarnation)


def went_on_records(image: MetadataImage, seen: Seen) -> Iterable[Any]:
    """What became of streams since, as the logs tell."""
    ends: dict[StreamId, int] = {}
    for owed in seen.owed:
        yield owed_range_record(owed)
        ends[owed.stream_id] = owed.end
    for stream_id, (node_id, epoch) in seen.reopened.items():
        stream = image.streams.by_id[stream_id]
        end = ends.get(stream_id, stream.end)
        yield stream_record(stream._replace(epoch=epoch, node_id=node_id, is_open=True, end=end))


def went_on(image: MetadataImage, seen: Seen) -> MetadataImage:
    """The image with that, and nothing lifted."""
    delta = MetadataDelta(image)
    delta.apply_all(went_on_records(image, seen))
    return delta.done(image.offset, image.epoch)


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets of a partition that cannot be had; `end` None: from `start` on, as far as anything was
    acknowledged."""

    topic: str
    partition: int
    start: int
    end: int | None
    why: str

    def __str__(self) -> str:
        offsets = (
            f"offsets [{self.start}, {self.end})" if self.end is not None else f"offsets from {self.start} on"
        )
        return f"{self.topic}-{self.partition}: {offsets}: {self.why}"


def missing_objects(image: MetadataImage, present: frozenset[int]) -> list[ObjectId]:
    """Committed objects whose files are not in the bucket."""
    objects = image.objects
    going = frozenset(object_id for _, object_id in objects.pending_deletions)
    prepared = frozenset(object_id for _, object_id in objects.deadlines)
    return [
        object_id
        for object_id in objects.by_id
        if object_id not in present and object_id not in going and object_id not in prepared
    ]


def ranges_without(image: MetadataImage, missing: Sequence[ObjectId]) -> list[MissingRange]:
    """Of the data of partitions: what those objects held, or may have held beside others."""
    gone = frozenset(missing)
    found: list[MissingRange] = []
    if not gone:
        return found
    for stream_id, ranges in image.objects.ranges.items():
        stream = image.streams.by_id[stream_id]
        topic = image.topics.by_id(stream.topic_id)
        if stream.role is not StreamRole.DATA or topic is None:
            continue
        for start, end, holder in ranges.all(stream.end):
            lost = [object_id for object_id in image.objects.held_by(holder) if object_id in gone]
            if lost:
                why = f"object {lost[0]} is not in the bucket"
                found.append(MissingRange(topic.name, stream.partition, max(start, stream.start), end, why))
    return found


def ranges_in_wal(image: MetadataImage, node_id: int, why: str) -> list[MissingRange]:
    """Of partitions that the node had open, or of which it owed a range: what was acknowledged and not
    committed was in its write-ahead log alone."""
    found = ranges_behind(image, image.streams.open_on(node_id), why)
    for owed in image.streams.owed.of_node(node_id):
        stream = image.streams.by_id[owed.stream_id]
        topic = image.topics.by_id(stream.topic_id)
        if stream.role is StreamRole.DATA and topic is not None:
            start = max(owed.start, stream.start)
            found.append(MissingRange(topic.name, stream.partition, start, owed.end, why))
    return found


def ranges_behind(image: MetadataImage, streams: Iterable[StreamState], why: str) -> list[MissingRange]:
    """Of the data of partitions: all behind what is committed."""
    found = []
    for stream in streams:
        topic = image.topics.by_id(stream.topic_id)
        if stream.role is StreamRole.DATA and topic is not None:
            found.append(MissingRange(topic.name, stream.partition, stream.end, None, why))
    return found
