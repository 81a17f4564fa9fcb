"""The invariants of DESIGN 6, one small class each, over what clients know and what is found when all is
quiet.

`check(history, found)` gives findings, one line each; empty when the invariant holds. A checker counts what
it looked at (`count`), so that a run tells whether it looked at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.kraft.tables.streams import StreamState
from millrace.s3stream.ids import ObjectId, ObjectKind
from millrace.s3stream.objects.keys import object_key, objects_prefix, parse_object_key
from tests.sim.contents import first_gap, linked_ids
from tests.sim.history import History, Log, Place, shown


@dataclass(slots=True)
class FoundLog:
    log_start: int
    high_watermark: int
    records: list[tuple[int, bytes]]  # (offset, value), in the order they came
    times: list[int] = field(default_factory=list)  # of the records
    lookups: list[tuple[int, int]] = field(default_factory=list)  # time asked for -> offset told, -1: none
    ends_of_epochs: dict[int, int] = field(default_factory=dict)  # of leader epochs that were asked for


@dataclass
class Found:
    """What is there: read by a client (`is_read`), or, where the node was stopped, its metadata and the
    bucket."""

    is_read: bool = False
    logs: dict[Place, FoundLog] = field(default_factory=dict)
    topics: dict[str, bytes] = field(default_factory=dict)  # name -> id
    commits: dict[tuple[str, str, int], int] = field(default_factory=dict)
    image: MetadataImage | None = None
    replayed: MetadataImage | None = None
    cluster_id: str = ""
    objects: dict[str, int] = field(default_factory=dict)  # key -> bytes
    contents: dict[str, bytes] = field(default_factory=dict)  # of the same keys
    orphans: dict[int, None] = field(default_factory=dict)  # objects that restored metadata does not know
    expired_ms: int = 0  # deadlines up to here have passed, and the node has had time to see it


class Checker(Protocol):
    count: int

    def check(self, history: History, found: Found) -> list[str]: ...


class AcknowledgedIsThere:
    """Invariant 1: at its offset, with its bytes, unless a deletion was asked for."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines: list[str] = []
        for place, log in history.logs.items() if found.is_read else ():
            there = found.logs.get(place)
            if there is None:
                lines += (
                    [f"lost-log: {shown(place)}"] if must_exist(history, place) and log.acknowledged else []
                )
                continue
            self.count += len(log.acknowledged)
            records = dict(there.records)
            values = {value for _, value in there.records}
            start = lawful_start(log, there)
            for offset, value in log.acknowledged.items():
                if offset >= start and records.get(offset) != value:
                    lines.append(f"lost-write: {shown(place)} {offset} {value[:24]!r}")
            if not start:
                lines += [f"lost-write: {shown(place)} {v[:24]!r}" for v in log.confirmed if v not in values]
        return lines


class ShownStays:
    """Invariant 13: what a reader saw is there for good, and means the same."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for place, there in found.logs.items():
            log = history.log(place)
            records = dict(there.records)
            self.count += len(log.shown)
            start = lawful_start(log, there)
            lines += [
                f"shown-and-gone: {shown(place)} {offset} {value[:24]!r}"
                for offset, value in log.shown.items()
                if offset >= start and records.get(offset) != value
            ]
            if there.high_watermark < log.high_watermark:
                lines.append(f"watermark-fell: {shown(place)} {log.high_watermark} to {there.high_watermark}")
        return lines


class OnceInOrder:
    """Invariant 8: offsets without gap, each record once, each producer's in the order of sending, and none
    that nobody sent."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for place, there in found.logs.items():
            self.count += len(there.records)
            offsets = [offset for offset, _ in there.records]
            log = history.log(place)
            wanted = [one for one in range(there.log_start, there.high_watermark) if not log.is_lost(one)]
            if offsets != wanted:
                lines.append(
                    f"gap: {shown(place)} [{there.log_start}, {there.high_watermark}) reads {runs(offsets)}"
                )
            at: dict[bytes, int] = {}
            for offset, value in there.records:
                if value in at and not (history.log(place).is_cut and value.startswith(b"crowd/")):
                    # (of the crowd's, whose states are in the log, a repeat may be a second record once
                    # states were given up)
                    lines.append(f"duplicate: {shown(place)} {value[:24]!r} at {at[value]} and {offset}")
                at[value] = offset
            known = 0
            for producer, values in history.log(place).sent.items():
                places = [at[value] for value in values if value in at]
                known += len(places)
                if places != sorted(places):
                    lines.append(f"disorder: {shown(place)} {producer}: {places}")
            if known != len(at):
                lines.append(f"invented: {shown(place)} holds {len(at) - known} records that nobody sent")
        return lines


class CorruptIsNowhere:
    """Invariant 15: a request with a wrong byte failed, and left nothing."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for place, there in found.logs.items():
            corrupted = dict.fromkeys(history.corrupted.get(place, ()))
            self.count += len(corrupted)
            lines += [
                f"corrupt-taken: {shown(place)} {offset}"
                for offset, value in there.records
                if value in corrupted
            ]
        return lines


class LogStartHolds:
    """A log start that was promised holds, and none rises beyond what was asked."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for place, there in found.logs.items():
            log = history.log(place)
            self.count += log.start_promised > 0 or log.is_ageing
            if there.log_start < max(log.start_promised, log.log_start):
                lines.append(
                    f"deleted-is-back: {shown(place)} starts at {there.log_start}, not {log.start_promised}"
                )
            if there.log_start > max(log.start_asked, log.log_start) and not log.is_ageing:
                lines.append(
                    f"log-start-rose: {shown(place)} to {there.log_start}, {log.start_asked} was asked"
                )
        return lines


class TimesAreFound:
    """The first record of a time or later is found, whatever of the time index survived."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for place, there in found.logs.items():
            for asked, told in there.lookups:
                self.count += 1
                later = [
                    offset
                    for (offset, _), time in zip(there.records, there.times, strict=True)
                    if time >= asked
                ]
                if told != min(later, default=-1):
                    lines.append(
                        f"wrong-time: {shown(place)} {asked} is at {told}, not {min(later, default=-1)}"
                    )
        return lines


class EpochsEnd:
    """Where an operator gave up records, a consumer that read in the leader epoch of then is told that it
    ended where they began."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for place, there in found.logs.items():
            for epoch, told in there.ends_of_epochs.items():
                self.count += 1
                end = history.log(place).ends_of_epochs[epoch]
                if told > max(end, there.log_start):
                    lines.append(
                        f"epoch-goes-on: {shown(place)} epoch {epoch} ends at {told}, and lost records from "
                        f"{end} on"
                    )
        return lines


class FollowersNotice:
    """Invariant 13: a consumer that checks leader epochs is told where what it read was given up, and goes on
    past no other records."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for place, there in found.logs.items():
            read, records = history.followed.get(place, {}), dict(there.records)
            self.count += len(read)
            start = lawful_start(history.log(place), there)
            lines += [
                (
                    f"followed-unaware: {shown(place)} {offset} was read as {value[:24]!r}, is "
                    f"{records.get(offset, b'')[:24]!r}"
                )
                for offset, value in read.items()
                if offset >= start and records.get(offset) != value
            ]
        return lines


class ProducerIdsAreNew:
    """No producer id is given twice."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        self.count += len(history.producer_ids)
        twice = sorted({one for one in history.producer_ids if history.producer_ids.count(one) > 1})
        return [f"producer-id-again: {twice}"] if twice else []


class TopicsHold:
    """Invariant 10, as clients see it: made topics exist under their id, deleted ones are gone for good."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        ids = {topic_id: name for name, topic_id in found.topics.items()}
        for story in history.topics.values() if found.is_read else ():
            self.count += 1
            if story.is_gone and story.topic_id in ids:
                lines.append(f"topic-is-back: {story.name} {story.topic_id.hex()}")
            if not story.is_deletion_asked and ids.get(story.topic_id) != story.name:
                lines.append(f"lost-topic: {story.name} {story.topic_id.hex()}")
        return lines


class CommitsHold:
    """Invariant 11: a committed group offset is never lost."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines = []
        for key, commits in history.commits.items():
            self.count += commits.promised > 0
            if key in found.commits and found.commits[key] not in commits.allowed():
                lines.append(f"lost-commit: {key} is {found.commits[key]}, not among {commits.allowed()[:9]}")
        return lines


class ObjectsMatch:
    """Invariant 6: what metadata has committed is in the bucket, whole; what is in the bucket is in metadata;
    what is prepared has a deadline that metadata goes by."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        if found.image is None:
            return []
        lines = []
        sizes = {}
        linked = frozenset(one for content in found.contents.values() for one in linked_ids(content))
        for key, size_bytes in found.objects.items():
            if key.startswith(objects_prefix(found.cluster_id)):
                object_id = parse_object_key(found.cluster_id, key)
                if object_id is not None and object_id in found.image.objects.by_id:
                    # linked or not: a composite that was put need not be committed
                    sizes[object_id] = size_bytes
                elif object_id is None or (object_id not in linked and object_id not in found.orphans):
                    lines.append(f"orphan-object: {key}")
        for object_id, stored in found.image.objects.by_id.items():
            if stored.state is ObjectState.PREPARED:
                self.count += 1
                is_known = (stored.time_ms, object_id) in found.image.objects.deadlines
                if not is_known or stored.time_ms <= found.expired_ms:
                    lines.append(
                        f"prepared-for-ever: {object_id} until {stored.time_ms}, it is {found.expired_ms}"
                    )
            if stored.state is ObjectState.COMMITTED:
                self.count += 1
                if stored.kind is ObjectKind.COMPOSITE:  # whose size is that of what it links
                    links = linked_ids(found.contents.get(object_key(found.cluster_id, object_id), b""))
                    gone = [
                        one
                        for one in links
                        if object_key(found.cluster_id, ObjectId(one)) not in found.objects
                    ]
                    if gone or not links:
                        lines.append(
                            f"missing-object: composite {object_id} links {links}, of which {gone} are gone"
                        )
                elif sizes.get(object_id) != stored.size_bytes:
                    lines.append(
                        f"missing-object: {object_id} {stored.size_bytes} bytes, found {sizes.get(object_id)}"
                    )
        return lines


class RangesJoin:
    """Invariant 3, with an empty WAL: every stream's [start, end) is in committed objects, without gap, by
    these objects' own indexes."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        lines: list[str] = []
        for stream in found.image.streams.by_id.values() if found.image is not None else ():
            lines += self._check_stream(stream, found)
        return lines

    def _check_stream(self, stream: StreamState, found: Found) -> list[str]:
        assert found.image is not None
        ranges = found.image.objects.ranges.get(stream.stream_id)
        lines = []
        at = stream.start
        for start, end, holder in ranges.all(stream.end) if ranges is not None else ():
            self.count += 1
            keys = [object_key(found.cluster_id, one) for one in found.image.objects.held_by(holder)]
            gap = first_gap(
                [found.contents[key] for key in keys if key in found.contents],
                stream.stream_id,
                max(start, at),
                end,
            )
            if gap is not None:
                lines.append(
                    f"range-gap: stream {stream.stream_id} offset {gap} of [{start}, {end}) is not in {keys}"
                )
            at = end
        if at != stream.end:
            lines.append(f"range-gap: stream {stream.stream_id} ends at {at}, not {stream.end}")
        return lines


class ReplayEqualsLive:
    """Invariant 9: the metadata log, read again from the disk, gives the image that the node had."""

    count = 0

    def check(self, history: History, found: Found) -> list[str]:
        if found.image is None or found.replayed is None:
            return []
        self.count += 1
        if found.image == found.replayed:
            return []
        fields = [
            name
            for name in found.image.__slots__
            if getattr(found.image, name) != getattr(found.replayed, name)
        ]
        return [f"replay-differs: at {found.image.offset} and {found.replayed.offset}: {', '.join(fields)}"]


def all_checkers() -> list[Checker]:
    return [
        AcknowledgedIsThere(),
        ShownStays(),
        OnceInOrder(),
        CorruptIsNowhere(),
        LogStartHolds(),
        TimesAreFound(),
        EpochsEnd(),
        FollowersNotice(),
        ProducerIdsAreNew(),
        TopicsHold(),
        CommitsHold(),
        ObjectsMatch(),
        RangesJoin(),
        ReplayEqualsLive(),
    ]


def must_exist(history: History, place: Place) -> bool:
    story = history.topics.get(place[0])
    return story is not None and not story.is_deletion_asked


def lawful_start(log: Log, there: FoundLog) -> int:
    """Below it nothing need be there: what is found, as far as it was allowed to rise."""
    return there.log_start if log.is_ageing else min(there.log_start, max(log.start_asked, log.log_start))


def runs(offsets: list[int]) -> str:
    """Continuous stretches, for people."""
    found: list[list[int]] = []
    for offset in offsets:
        if found and offset == found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([offset, offset + 1])
    return " ".join(f"[{start}, {end})" for start, end in found)
