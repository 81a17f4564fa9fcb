"""Uploads, compactions, trims, deletions and the cleaner against a dictionary of files: nothing that is
wanted is ever out of reach.

The model knows what each file in the store holds. After every step each wanted offset of each stream must be
in a file that is there and that metadata names for it, directly or by a composite.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.kraft.tables.objects import ObjectState
from millrace.kraft.tables.streams import StreamState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.commit_compaction import (
    CommitCompactionRequest,
    CompactedObject,
    CompactedRange,
)
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange, UploadedStreamObject
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.s3stream.ids import NO_OBJECT, ObjectId, ObjectKind, StreamId, StreamObjectInfo
from tests.kraft.check import check_image
from tests.kraft.test_replay import Machine, snapshot_of

Span = tuple[int, int, int]  # stream, start, end
SET, STREAM, COMPOSITE = ObjectKind.STREAM_SET, ObjectKind.STREAM, ObjectKind.COMPOSITE
NAMES = ("a", "b", "c")


class Bucket:
    """Files: what each holds, and what a composite links."""

    def __init__(self) -> None:
        self.spans: dict[int, list[Span]] = {}
        self.links: dict[int, list[int]] = {}

    def holds(self, object_id: int, stream_id: int, offset: int) -> bool:
        files = self.links.get(object_id, [object_id])
        return any(
            stream == stream_id and start <= offset < end
            for one in files
            for stream, start, end in self.spans.get(one, [])
        )

    def delete(self, object_id: int, with_links: bool) -> None:
        for one in self.links.pop(object_id, []) if with_links else []:
            self.spans.pop(one, None)
        self.links.pop(object_id, None)
        self.spans.pop(object_id, None)


class Story:
    def __init__(self) -> None:
        self.machine = Machine()
        self.bucket = Bucket()
        self.compactions = 0
        self.refusals = 0

    @property
    def streams(self) -> list[StreamState]:
        return list(self.machine.image.streams.by_id.values())

    def step(self, what: str, a: int, b: int, c: int) -> None:
        getattr(self, f"on_{what}")(a, b, c)
        self.machine.now_ms += 10
        self.check()

    def check(self) -> None:
        image = self.machine.image
        check_image(image)
        for stream in self.streams:
            for offset in range(stream.start, stream.end):
                named = image.objects.candidates(stream, offset, 1)
                assert 1 <= len(named) <= 4, (stream, offset, named)
                assert all(hint.start <= offset < hint.end for hint in named), (stream, offset, named)
                holding = [one for one in named if self.bucket.holds(one.object_id, stream.stream_id, offset)]
                assert holding, (stream, offset, named)

    def prepare(self, count: int) -> int:
        first: int = self.machine.do(
            PrepareObjectsRequest(1, self.machine.epoch, count, 100_000)
        ).first_object_id
        return first

    def on_open(self, a: int, b: int, c: int) -> None:
        name = NAMES[a % 3]
        self.machine.do(CreateTopicsRequest([CreatableTopic(name, 1, 1)]))
        topic = self.machine.image.topics.by_name(name)
        assert topic is not None
        self.machine.do(
            OpenPartitionStreamsRequest(1, self.machine.epoch, topic.topic_id, 0, 0, [0, 1][: 1 + b % 2])
        )

    def on_delete(self, a: int, b: int, c: int) -> None:
        self.machine.do(DeleteTopicsRequest([DeleteTopicState(NAMES[a % 3])]))

    def on_trim(self, a: int, b: int, c: int) -> None:
        if self.streams:
            stream = self.streams[a % len(self.streams)]
            start = stream.start + (stream.end - stream.start) * b // 4 + (c == 5)
            self.machine.do(
                TrimStreamsRequest(1, self.machine.epoch, [StreamTrim(stream.stream_id, 0, start)])
            )

    def on_upload(self, a: int, b: int, c: int) -> None:
        """Some streams together, one perhaps in an object of its own."""
        chosen = [stream for number, stream in enumerate(self.streams) if (a + 1) >> (number % 3) & 1]
        spans = [
            (stream.stream_id, stream.end, stream.end + 1 + (b + number) % 4)
            for number, stream in enumerate(chosen)
        ]
        own = [spans.pop()] if c % 3 == 0 and spans else []
        first = self.prepare(2)
        request = CommitUploadRequest(1, self.machine.epoch, first if spans else NO_OBJECT, 100)
        request.ranges = [UploadedRange(*span) for span in spans]
        request.stream_objects = [UploadedStreamObject(first + 1, 50, *span) for span in own]
        self.put(first, spans)
        self.put(first + 1, own)
        self.machine.do(request)

    def put(self, object_id: int, spans: list[Span]) -> None:
        if spans:
            self.bucket.spans[object_id] = spans

    def on_compact(self, a: int, b: int, c: int) -> None:
        """Some sets become one, one stream of them split off. With a stream forgotten it is refused."""
        sets = [info.object_id for info in self.machine.image.objects.stream_sets(1)]
        sources = sets[a % 3 : a % 3 + 1 + b]
        held = [span for one in sources for span in self.bucket.spans[one]]
        spans = self.wanted(held)
        trimmed_ids = {stream_id for stream_id, _, _ in held} - {stream_id for stream_id, _, _ in spans}
        is_wrong = c == 5 and len(spans) > 0
        if is_wrong:
            forgotten = spans[a % len(spans)][0]
            spans = [span for span in spans if span[0] != forgotten]
        if not sources:
            return
        own = [span for span in spans if span[0] == spans[a % len(spans)][0]] if spans and b % 2 else []
        shared = [span for span in spans if span not in own]
        first = self.prepare(1 + len(own))
        request = CommitCompactionRequest(1, self.machine.epoch, first if shared else NO_OBJECT, 700)
        request.ranges = [CompactedRange(*span) for span in shared]
        request.stream_objects = [
            CompactedObject(first + n, STREAM, 300, *span) for n, span in enumerate(own, 1)
        ]
        request.compacted_ids, request.trimmed_ids = sources, sorted(trimmed_ids)
        self.put(first, shared)
        for number, span in enumerate(own, 1):
            self.put(first + number, [span])
        self.commit(request, is_wrong)

    def on_join(self, a: int, b: int, c: int) -> None:
        """Neighbouring objects of one stream become one: copied, or linked; composites linked before are
        linked anew."""
        objects = self.neighbours(a, b)
        if not objects:
            return
        stream_id = self.bucket.spans[self.files(objects[0].object_id)[0]][0][0]
        whole = stream_id, objects[0].start, objects[-1].end
        new = self.prepare(1)
        request = CommitCompactionRequest(1, self.machine.epoch)
        if c % 2:
            request.stream_objects = [CompactedObject(new, STREAM, 300, *whole)]
            request.compacted_ids = [one.object_id for one in objects]
            self.put(new, [whole])
        else:
            self.link(request, new, objects, whole)
        self.commit(request, is_wrong=False)

    def link(
        self, request: CommitCompactionRequest, new: int, objects: list[StreamObjectInfo], whole: Span
    ) -> None:
        start = self.machine.image.streams.by_id[StreamId(whole[0])].start
        files = [file for one in objects for file in self.files(one.object_id)]
        kept = [file for file in files if self.bucket.spans[file][0][2] > start]
        low = min(self.bucket.spans[file][0][1] for file in kept)
        request.stream_objects = [CompactedObject(new, COMPOSITE, 300, whole[0], low, whole[2])]
        request.superseded_ids = [one.object_id for one in objects if one.kind is COMPOSITE]
        request.linked_ids = [one.object_id for one in objects if one.kind is STREAM]
        request.dropped_link_ids = [
            file for file in files if file not in kept and file not in request.linked_ids
        ]
        self.bucket.links[new] = kept

    def commit(self, request: CommitCompactionRequest, is_wrong: bool) -> None:
        ends = [stream.end for stream in self.streams]
        answer = self.machine.do(request)
        assert (answer.error_code == ErrorCode.INVALID_RECORD_STATE) == is_wrong, answer
        assert [stream.end for stream in self.streams] == ends
        before = self.machine.image
        assert self.machine.do(request).error_code == answer.error_code
        assert self.machine.image is before
        self.compactions += not is_wrong
        self.refusals += is_wrong

    def neighbours(self, a: int, b: int) -> list[StreamObjectInfo]:
        if not self.streams:
            return []
        objects = self.machine.image.objects.of_stream(self.streams[a % len(self.streams)])
        for first in range(len(objects)):
            last = first + 1
            while last < len(objects) and objects[last].start == objects[last - 1].end:
                last += 1
            if last - first > 1 or (b % 2 and objects):
                return objects[first:last]
        return []

    def files(self, object_id: int) -> list[int]:
        return self.bucket.links.get(object_id, [object_id])

    def wanted(self, spans: list[Span]) -> list[Span]:
        """Joined, by stream, without what was deleted or trimmed, and without what metadata has elsewhere: as
        a compactor does."""
        streams = self.machine.image.streams.by_id
        found: list[Span] = []
        for stream_id, start, end in sorted(spans):
            stream = streams.get(StreamId(stream_id))
            if stream is None or end <= stream.start:
                continue
            start = max(start, stream.start)
            if found and found[-1][0] == stream_id and found[-1][2] >= start:
                found[-1] = stream_id, found[-1][1], max(end, found[-1][2])
            else:
                found.append((stream_id, start, end))
        return found

    def on_clean(self, a: int, b: int, c: int) -> None:
        """What the cleaner does a grace later."""
        image = self.machine.image
        due = image.objects.pending_deletions_before(self.machine.now_ms, 1 + b)
        for object_id in due:
            self.bucket.delete(object_id, image.objects.by_id[ObjectId(object_id)].with_links)
        self.machine.do(RemoveObjectsRequest(1, self.machine.epoch, list(due)))

    def on_reload(self, a: int, b: int, c: int) -> None:
        assert snapshot_of(self.machine.image) == self.machine.image

    def orphans(self) -> list[int]:
        """Files that nobody will delete: in no state of metadata, and linked by no composite."""
        known = {object_id for object_id, _ in self.machine.image.objects.by_id.items()}
        linked = {file for files in self.bucket.links.values() for file in files}
        return [one for one in self.bucket.spans if one not in known and one not in linked]


SMALL = st.integers(0, 5)
STEPS = [
    "open",
    "delete",
    "trim",
    "trim",
    *["upload"] * 6,
    *["compact"] * 4,
    *["join"] * 3,
    "clean",
    "clean",
    "reload",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(STEPS), SMALL, SMALL, SMALL), min_size=10, max_size=50))
def test_what_is_wanted_stays_within_reach(steps: list[tuple[str, int, int, int]]) -> None:
    """Whatever is uploaded, compacted, linked, trimmed, deleted and cleaned in whatever order; and no file is
    forgotten."""
    story = Story()
    for number in range(3):
        story.step("open", number, 1, 0)
        story.step("upload", 5, number, number)
    for step in steps:
        story.step(*step)
    assert story.orphans() == []
    assert story.machine.replayed() == story.machine.image
    assert snapshot_of(story.machine.image) == story.machine.image


def test_the_story_is_worth_telling() -> None:
    """A fixed run compacts, links, refuses and cleans, so that the property above is not about nothing."""
    story = Story()
    seen: dict[ObjectState, int] = {}
    kinds: dict[Any, int] = {}
    for number in range(60):
        for what in (
            "open",
            "upload",
            "upload",
            "upload",
            "join",
            "compact",
            "trim" if number % 5 == 0 else "upload",
        ):
            story.step(what, number % 6, number // 2 % 6, number % 7 % 6)
        if number % 9 == 8:
            story.step("clean", 0, 5, 0)
        for _, stored in story.machine.image.objects.by_id.items():
            seen[stored.state] = seen.get(stored.state, 0) + 1
            kinds[stored.kind] = kinds.get(stored.kind, 0) + 1
    assert story.compactions > 20
    assert story.refusals > 2
    assert set(seen) >= {ObjectState.COMMITTED, ObjectState.PENDING_DELETION}
    assert set(kinds) == {SET, STREAM, COMPOSITE}
