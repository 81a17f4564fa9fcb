"""What docs/formats/metadata_log.md says of records is enough to find every object, and to tell what is alive
from what is pending deletion.

A stranger who knows the page reads the bytes that commands made, from the beginning and from a snapshot, and
comes to the image that the code has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.records import ValueWriter, decode_values
from millrace.kraft.log.snapshot import image_records
from millrace.s3stream.ids import ObjectId
from tests.kraft.test_objects_model import Story
from tests.pages import PageReader, page

STREAM_SET, COMPOSITE = 0, 2
Holder = tuple[int, int]  # object or group, and places there; no places: an object of the stream alone
Fields = dict[str, Any]
HEADINGS = {
    int(match[2]): match[1] for match in re.finditer(r"^(### (\d+) \w+)$", page("metadata_log.md"), re.M)
}


class Stranger:
    def __init__(self) -> None:
        self.streams: dict[int, tuple[int, int]] = {}
        self.ranges: dict[int, list[tuple[int, Holder]]] = {}
        self.groups: dict[int, list[int]] = {}
        self.objects: dict[int, tuple[str, Fields]] = {}

    def read(self, value: bytes) -> None:
        reader = PageReader(value)
        frame, key, version, count = (reader.uvarint() for _ in range(4))
        if (frame, key, version) != (1, 20, 0) or not count:
            return
        key, _, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
        assert version == 0
        apply: Callable[[Fields], None] = getattr(self, f"on_{key}")
        apply(reader.structure(HEADINGS[key]))

    def on_501(self, record: Fields) -> None:
        self.streams[record["stream_id"]] = record["start_offset"], record["end_offset"]

    def on_502(self, record: Fields) -> None:
        for stream_id in record["stream_ids"]:
            del self.streams[stream_id]
            self.ranges.pop(stream_id, None)
        self.mark_unnamed()

    def on_503(self, record: Fields) -> None:
        stream_id, start = record["stream_id"], record["start_offset"]
        self.drop_below(stream_id, start)
        self.streams[stream_id] = start, max(start, self.streams[stream_id][1])
        self.mark_unnamed()

    def on_504(self, record: Fields) -> None:
        for number in range(record["object_count"]):
            self.objects[record["first_object_id"] + number] = "prepared", record

    def on_505(self, record: Fields) -> None:
        holder = self.commit(record)
        for stream_id, start, end in unpack_ranges(record["ranges"]):
            if stream_id not in self.streams or end <= self.streams[stream_id][0]:
                continue
            assert start == self.streams[stream_id][1]
            ranges = self.ranges.setdefault(stream_id, [])
            if ranges and ranges[-1][1][0] == holder[0]:
                ranges[-1] = ranges[-1][0], (holder[0], ranges[-1][1][1] | holder[1])
            else:
                ranges.append((start, holder))
            self.streams[stream_id] = self.streams[stream_id][0], end
        self.mark_unnamed()

    def on_506(self, record: Fields) -> None:
        for object_id in record["object_ids"]:
            self.mark(object_id, with_links=record["with_links"])

    def on_507(self, record: Fields) -> None:
        for object_id in record["object_ids"]:
            self.forget(object_id)

    def on_508(self, record: Fields) -> None:
        pass

    def on_509(self, record: Fields) -> None:
        sources = {*record["replaced_ids"], *record["superseded_ids"], *record["linked_ids"]}
        parts: dict[int, list[tuple[int, int, Holder]]] = {}
        for made in record["made"]:
            holder = self.commit(made)
            for stream_id, start, end in unpack_ranges(made["ranges"]):
                if stream_id in self.streams and end > self.streams[stream_id][0]:
                    parts.setdefault(stream_id, []).append((start, end, holder))
        for stream_id, wanted in parts.items():
            self.replace(stream_id, sorted(wanted), sources)
        for object_id in (*record["replaced_ids"], *record["dropped_link_ids"]):
            kind = self.objects.get(object_id, ("", {"kind": -1}))[1]["kind"]
            self.mark(object_id, with_links=kind == COMPOSITE)
        for object_id in record["superseded_ids"]:
            self.mark(object_id, with_links=False)
        for object_id in record["linked_ids"]:
            self.forget(object_id)
        self.mark_unnamed()

    def on_510(self, record: Fields) -> None:
        self.objects[record["object_id"]] = "committed", record

    def on_511(self, record: Fields) -> None:
        self.groups[record["group_id"]] = list(record["members"])

    def on_512(self, record: Fields) -> None:
        reader = PageReader(record["holders"])
        start, held_by = reader.uvarint(), 0
        ranges = self.ranges[record["stream_id"]] = []
        while reader.at < len(reader.data):
            word, length = reader.uvarint(), reader.uvarint()
            zigzag = word >> 4
            held_by += zigzag >> 1 if not zigzag & 1 else -(zigzag + 1 >> 1)
            ranges.append((start, (held_by, word & 15)))
            start += length
        assert start == self.streams[record["stream_id"]][1], "the last ends at the stream's end"

    # "What the records do together".

    def commit(self, record: Fields) -> Holder:
        object_id = record["object_id"]
        assert self.objects[object_id][0] == "prepared"
        self.objects[object_id] = "committed", record
        if record["kind"] != STREAM_SET:
            return object_id, 0
        members = self.groups.setdefault(record["group_id"], [])
        assert record["group_slot"] == len(members) < 4
        members.append(object_id)
        return record["group_id"], 1 << record["group_slot"]

    def pieces(self, stream_id: int) -> Iterator[tuple[int, int, Holder]]:
        ranges = self.ranges.get(stream_id, [])
        ends = [*(start for start, _ in ranges[1:]), self.streams[stream_id][1]]
        for (start, holder), end in zip(ranges, ends, strict=False):
            yield start, end, holder

    def drop_below(self, stream_id: int, offset: int) -> None:
        self.ranges[stream_id] = [
            (start, holder) for start, end, holder in self.pieces(stream_id) if end > offset
        ]

    def replace(self, stream_id: int, parts: list[tuple[int, int, Holder]], sources: set[int]) -> None:
        found: list[tuple[int, Holder]] = []

        def add(start: int, holder: Holder) -> None:
            if found and found[-1][1][0] == holder[0]:
                found[-1] = found[-1][0], (holder[0], found[-1][1][1] | holder[1])
            else:
                found.append((start, holder))

        for low, high, holder in self.pieces(stream_id):
            cuts = [
                (max(low, start), min(high, end), made)
                for start, end, made in parts
                if start < high and end > low
            ]
            if not cuts or not sources & {*self.named(holder)}:
                add(low, holder)
                continue
            rest, at = self.without(holder, sources), low
            for start, end, made in cuts:
                if at < start:
                    add(at, rest)
                add(start, made)
                at = end
            if at < high:
                add(at, rest)
        self.ranges[stream_id] = found
        self.drop_below(stream_id, self.streams[stream_id][0])

    def without(self, holder: Holder, sources: set[int]) -> Holder:
        left = [one for one in self.named(holder) if one not in sources]
        members = self.groups.get(holder[0], [])
        return (holder[0], sum(1 << members.index(one) for one in left)) if left and holder[1] else holder

    def named(self, holder: Holder) -> list[int]:
        if not holder[1]:
            return [holder[0]]
        members = self.groups.get(holder[0], [])
        return [one for place, one in enumerate(members) if holder[1] >> place & 1 and one >= 0]

    def mark_unnamed(self) -> None:
        named = {one for ranges in self.ranges.values() for _, holder in ranges for one in self.named(holder)}
        for object_id, (state, record) in list(self.objects.items()):
            if state == "committed" and object_id not in named:
                self.mark(object_id, with_links=record["kind"] == COMPOSITE)

    def mark(self, object_id: int, *, with_links: bool) -> None:
        self.forget(object_id)
        self.objects[object_id] = "pending_deletion", {"with_links": with_links}

    def forget(self, object_id: int) -> None:
        state, record = self.objects.pop(object_id, ("", {}))
        if state == "committed" and record["kind"] == STREAM_SET:
            members = self.groups[record["group_id"]]
            members[record["group_slot"]] = -1
            if all(one < 0 for one in members):
                del self.groups[record["group_id"]]


def unpack_ranges(packed: bytes) -> Iterator[tuple[int, int, int]]:
    reader, stream_id = PageReader(packed), 0
    while reader.at < len(packed):
        stream_id += reader.uvarint()
        start = reader.uvarint()
        yield stream_id, start, start + reader.uvarint()


def compare(stranger: Stranger, image: MetadataImage) -> None:
    streams = {stream.stream_id: (stream.start, stream.end) for stream in image.streams.by_id.values()}
    assert stranger.streams == streams
    for stream_id, (start, end) in streams.items():
        state = image.streams.by_id[stream_id]
        for offset in range(start, end):
            found = next(holder for low, high, holder in stranger.pieces(stream_id) if low <= offset < high)
            named = [hint.object_id for hint in image.objects.candidates(state, offset, 1)]
            assert stranger.named(found) == named, (stream_id, offset)
    states = {object_id: stored.state.name.lower() for object_id, stored in image.objects.by_id.items()}
    assert {object_id: state for object_id, (state, _) in stranger.objects.items()} == states
    for object_id, (state, record) in stranger.objects.items():
        stored = image.objects.by_id[ObjectId(object_id)]
        if state == "pending_deletion":
            assert record["with_links"] == stored.with_links, object_id
        if state == "committed":
            assert (record["kind"], record["size_bytes"]) == (stored.kind, stored.size_bytes)


def test_a_stranger_finds_what_the_page_says() -> None:
    """Uploads, compactions, links, trims, deletions and cleaning, read twice: every record so far, and a
    snapshot with what followed it."""
    story = Story()
    from_start, from_snapshot = Stranger(), Stranger()
    seen: dict[int, int] = {}
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
        if number % 17 == 16:
            story.step("delete", number, 0, 0)
        values = [value for batch in story.machine.batches for value in decode_values(memoryview(batch))]
        story.machine.batches.clear()
        for value in values:
            from_start.read(value)
            if number > 25:
                from_snapshot.read(value)
        if number == 25:
            for value in ValueWriter().write_all(image_records(story.machine.image)):
                from_snapshot.read(value)
        for _, (state, _) in from_start.objects.items():
            seen[len(state)] = seen.get(len(state), 0) + 1
        compare(from_start, story.machine.image)
        if number >= 25:
            compare(from_snapshot, story.machine.image)
    assert len(seen) == 3, "prepared, committed and ones pending deletion were there"
