"""How many bytes of metadata a GiB of stored data costs, before and after compaction: `python -m
tests.bench.metadata_bytes`.

A node with 1,000 partitions of three streams (data, time index, partition state) stores 32 GiB at a steady
rate: every upload is 500 MiB of which each data stream has its share, while a time index and a partition's
state are in every eighth. The controller's own commands are decided, applied and encoded; no data is written.
Then compaction: sixteen uploads become an object for each data stream and one set for the rest; then a
composite for each stream links its objects. Shown are, of what is there at that moment:

    image      bytes of Python's heap that the tables of objects, groups and ranges take
    snapshot   bytes of their records
    log        bytes of records written on the way there, which the next snapshot makes superfluous

Targets are for the default size; exit code 1 when one is MISSED.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import tracemalloc
from dataclasses import dataclass, replace

from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.records import ValueReader, ValueWriter
from millrace.kraft.log.snapshot import object_records
from millrace.kraft.tables.objects import NO_OBJECTS, ObjectState
from millrace.kraft.tables.stream_set_groups import Purpose
from millrace.protocol.messages.commit_compaction import (
    CommitCompactionRequest,
    CompactedObject,
    CompactedRange,
)
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest
from millrace.s3stream.ids import NO_OBJECT, ObjectKind, StreamRole
from tests.bench.report import Row, exit_code, table
from tests.kraft.test_replay import Machine

UPLOAD_BYTES = 500 << 20
RARE_EVERY = 8  # uploads between two of a time index or a partition's state
SETS_A_ROUND = 16
# what one range of one upload takes when it stands with the object and with the stream
EXACT_RANGE_BYTES = 48
GIB = 1 << 30
IMAGE_PPM_MAX = 100.0  # of what is stored
RECORDS_A_GIB_MAX = 16_384  # bytes, of a snapshot, and of the log between two stages
ROLES = (StreamRole.META, StreamRole.DATA, StreamRole.TIME)


@dataclass(frozen=True)
class Stage:
    """What is there at one moment; `log_bytes` since the one before."""

    name: str
    stored_bytes: int
    exact_bytes: int
    objects: int
    image_bytes: int
    snapshot_bytes: int
    log_bytes: int


class Node:
    def __init__(self, partitions: int) -> None:
        self.machine = Machine()
        self.stored_bytes = 0
        self.range_count = 0
        self.log_bytes = 0
        self.machine.do(CreateTopicsRequest([CreatableTopic("t", partitions, 1)]))
        (topic,) = self.machine.image.topics
        for index in range(partitions):
            self.ask(
                OpenPartitionStreamsRequest(1, self.machine.epoch, topic.topic_id, index, 0, list(ROLES))
            )
        streams = self.machine.image.streams.by_id.values()
        self.roles = {stream.stream_id: stream.role for stream in streams}
        self.log_bytes = 0

    def ask(self, request: object) -> object:
        answer = self.machine.do(request)
        assert getattr(answer, "error_code", 0) == 0, answer
        self.log_bytes += sum(map(len, self.machine.batches))
        self.machine.batches.clear()
        return answer

    def prepare(self, count: int) -> int:
        first: int = self.ask(PrepareObjectsRequest(1, self.machine.epoch, count, 86_400_000)).first_object_id  # type: ignore[attr-defined]
        return first

    def upload(self, number: int) -> None:
        """A data stream's offsets are records of a KiB, another's bytes."""
        share = UPLOAD_BYTES // len(self.roles) * 3 >> 10
        ranges = []
        for stream_id, stream in self.machine.image.streams.by_id.items():
            is_data = stream.role is StreamRole.DATA
            if is_data or (number + stream_id) % RARE_EVERY == 0:
                ranges.append(UploadedRange(stream_id, stream.end, stream.end + (share if is_data else 400)))
        request = CommitUploadRequest(1, self.machine.epoch, self.prepare(1), UPLOAD_BYTES, ranges)
        self.ask(request)
        self.stored_bytes += UPLOAD_BYTES
        self.range_count += len(ranges)

    def compact_sets(self) -> None:
        """Uploads on their groups, some at a time, as they came."""
        image = self.machine.image
        groups = image.objects.groups.items()
        grouped = {one for _, group in groups if group.purpose == Purpose.UPLOADS for one in group.members}
        sources = [info.object_id for info in image.objects.stream_sets(1) if info.object_id in grouped]
        starts = dict.fromkeys(self.roles, 0)
        for first in range(0, len(sources), SETS_A_ROUND):
            round_ = sources[first : first + SETS_A_ROUND]
            ends = {stream_id: self.held_end(stream_id, round_[-1]) for stream_id in self.roles}
            spans = [(one, starts[one], ends[one]) for one in self.roles if ends[one] > starts[one]]
            own = [span for span in spans if self.roles[span[0]] is StreamRole.DATA]
            shared = [span for span in spans if self.roles[span[0]] is not StreamRole.DATA]
            made = self.prepare(1 + len(own))
            request = CommitCompactionRequest(
                1, self.machine.epoch, made, 4 << 20, compacted_ids=list(round_)
            )
            request.ranges = [CompactedRange(*span) for span in shared]
            request.stream_objects = [
                CompactedObject(made + n, ObjectKind.STREAM, 8 << 20, *span) for n, span in enumerate(own, 1)
            ]
            self.ask(request)
            starts |= ends

    def held_end(self, stream_id: int, last_source: int) -> int:
        """Where the range ends that names the group of the last source; the stream's end when it is in none
        behind."""
        image = self.machine.image
        stream = image.streams.by_id[stream_id]  # type: ignore[index]
        end = 0
        for _, range_end, holder in image.objects.ranges[stream.stream_id].all(stream.end):
            if min(image.objects.held_by(holder)) <= last_source:
                end = range_end
        return end

    def link_streams(self) -> None:
        for stream in list(self.machine.image.streams.by_id.values()):
            objects = self.machine.image.objects.of_stream(stream)
            if len(objects) > 1:
                made = CompactedObject(
                    self.prepare(1),
                    ObjectKind.COMPOSITE,
                    1,
                    stream.stream_id,
                    objects[0].start,
                    objects[-1].end,
                )
                linked: list[int] = [one.object_id for one in objects]
                request = CommitCompactionRequest(1, self.machine.epoch, NO_OBJECT, linked_ids=linked)
                request.stream_objects = [made]
                self.ask(request)

    def clean(self) -> None:
        pending: list[int] = [
            one
            for one, found in self.machine.image.objects.by_id.items()
            if found.state is ObjectState.PENDING_DELETION
        ]
        self.ask(RemoveObjectsRequest(1, self.machine.epoch, pending))

    def stage(self, name: str) -> Stage:
        log_bytes, self.log_bytes = self.log_bytes, 0
        values = snapshot_values(self.machine.image)
        return Stage(
            name,
            self.stored_bytes,
            self.range_count * EXACT_RANGE_BYTES,
            self.machine.image.objects.committed_count,
            heap_bytes(self.machine.image, values),
            sum(map(len, values)),
            log_bytes,
        )


def snapshot_values(image: MetadataImage) -> list[bytes]:
    return ValueWriter().write_all(object_records(image))


def heap_bytes(image: MetadataImage, values: list[bytes]) -> int:
    """Of the tables made anew from their records, beside streams and topics that are there."""
    bare = replace(image, objects=NO_OBJECTS)
    reader = ValueReader()
    gc.collect()
    tracemalloc.start()
    _, made = apply_records(bare, map(reader.read, values), image.offset, 1)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.objects == image.objects
    return used


def stages(partitions: int, gib: int) -> list[Stage]:
    print(f"storing {gib} GiB over {partitions} partitions", flush=True)
    node = Node(partitions)
    for number in range(gib * GIB // UPLOAD_BYTES):
        node.upload(number)
    found = [node.stage("uploaded")]
    node.compact_sets()
    node.clean()
    found.append(node.stage("sets compacted"))
    node.link_streams()
    node.clean()
    found.append(node.stage("streams linked"))
    return found


def measure(partitions: int, gib: int) -> list[Row]:
    rows = []
    for half, whole in zip(stages(partitions, gib // 2), stages(partitions, gib), strict=True):
        gained = (whole.stored_bytes - half.stored_bytes) / GIB
        exact = (whole.exact_bytes - half.exact_bytes) / gained
        grows = (whole.image_bytes - half.image_bytes) / gained
        stored = whole.stored_bytes / GIB
        rows += [
            objects_row(whole, partitions),
            Row(
                f"{whole.name}: image, B a GiB",
                f"{whole.image_bytes / stored:,.0f}",
                f"{whole.image_bytes / whole.stored_bytes * 1e6:.0f} ppm of what is stored",
                f"{IMAGE_PPM_MAX:.0f} ppm",
                whole.image_bytes / whole.stored_bytes * 1e6 < IMAGE_PPM_MAX,
            ),
            Row(
                f"{whole.name}: image, B each GiB more",
                f"{grows:,.0f}",
                f"exact ranges of uploads {exact:,.0f}",
                "below these",
                grows < exact,
            ),
            records_row(f"{whole.name}: snapshot, B a GiB", whole.snapshot_bytes / stored),
            records_row(f"{whole.name}: log, B a GiB", whole.log_bytes / stored),
        ]
    return rows


def objects_row(stage: Stage, partitions: int) -> Row:
    """Every upload is one; then a round of compaction makes one for each data stream and one for the rest;
    then a stream has one; some are left."""
    uploads = stage.stored_bytes / UPLOAD_BYTES
    rounds = math.ceil(uploads / SETS_A_ROUND)
    allowed = {
        "uploaded": uploads,
        "sets compacted": rounds * (partitions + 1),
        "streams linked": partitions * 1.05,
    }
    figures = [count / (stage.stored_bytes / GIB) for count in (stage.objects, allowed[stage.name])]
    return Row(
        f"{stage.name}: objects a GiB",
        f"{figures[0]:.1f}",
        "",
        f"{figures[1]:.1f}",
        stage.objects <= allowed[stage.name],
    )


def records_row(what: str, bytes_a_gib: float) -> Row:
    return Row(what, f"{bytes_a_gib:,.0f}", "", f"{RECORDS_A_GIB_MAX:,}", bytes_a_gib < RECORDS_A_GIB_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Bytes of metadata a GiB stored. Target: what exact ranges would take."
    )
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--gib", type=int, default=32)
    options = parser.parse_args()
    rows = measure(options.partitions, options.gib)
    print(table(rows))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
