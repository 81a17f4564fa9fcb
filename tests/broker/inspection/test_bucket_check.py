"""fsck's findings: each part of each object that can be damaged, and each way in which bucket and metadata
can differ, found and named."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.inspection.bucket_check import BucketCheck, Checked, Kind
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.commit_compaction import CommitCompactionRequest, CompactedObject
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange, UploadedStreamObject
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import StoreUnavailable
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.s3stream.ids import ObjectId, ObjectKind, Writer, token_of
from millrace.s3stream.objects.composite import LinkedRows, encode_composite
from millrace.s3stream.objects.format import BLOCK_HEADER_BYTES, FOOTER_BYTES, Entry, decode_footer
from millrace.s3stream.objects.index import ObjectIndex
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.writer import ObjectWriter
from tests.kraft.tables.build import create, open_streams, prepare, topic
from tests.kraft.test_replay import CLUSTER, Machine

Ranges = tuple[tuple[int, int, int], ...]


def object_of(*ranges: tuple[int, int, int], writer: Writer | None = None) -> bytes:
    """Blocks of two or three entries, an offset each."""
    made = ObjectWriter(240, writer)
    for stream_id, start, end in ranges:
        made.add(stream_id, [Entry(offset, 1, memoryview(b"%50d" % offset)) for offset in range(start, end)])
    return b"".join(made.finish().parts)


class Lake:
    """Metadata and a bucket that agree; tests then change one of them. Streams 0 and 1."""

    def __init__(self) -> None:
        self.machine = Machine()
        create(self.machine, topic("t", 1), topic("u", 1))
        open_streams(self.machine, "t")
        open_streams(self.machine, "u")
        self.bytes: dict[int, bytes] = {}
        self.writer: Writer | None = None
        self.incarnation = bytes(16)

    def prepare(self) -> int:
        token = 0 if self.writer is None else self.writer.token
        first: int = self.machine.do(
            PrepareObjectsRequest(1, self.machine.epoch, 1, 100_000, token)
        ).first_object_id
        return first

    def upload(self, *ranges: tuple[int, int, int], really: Ranges | None = None) -> int:
        """A stream-set object that metadata says holds `ranges`, and that really holds something else where
        given."""
        object_id = self.prepare()
        self.bytes[object_id] = object_of(*(ranges if really is None else really), writer=self.writer)
        spans = [UploadedRange(*one) for one in ranges]
        request = CommitUploadRequest(
            1, self.machine.epoch, object_id, len(self.bytes[object_id]), spans, [], self.incarnation
        )
        assert self.machine.do(request).error_code == 0
        return object_id

    def upload_own(self, stream_id: int, start: int, end: int) -> int:
        object_id = self.prepare()
        self.bytes[object_id] = object_of((stream_id, start, end), writer=self.writer)
        own = [UploadedStreamObject(object_id, len(self.bytes[object_id]), stream_id, start, end)]
        assert (
            self.machine.do(
                CommitUploadRequest(1, self.machine.epoch, -1, 0, [], own, self.incarnation)
            ).error_code
            == 0
        )
        return object_id

    def link(self, *object_ids: int) -> int:
        """A composite of objects of stream 0, which leave metadata."""
        composite = self.prepare()
        rows = []
        for object_id in object_ids:
            data = memoryview(self.bytes[object_id])
            footer = decode_footer(data[-FOOTER_BYTES:], len(data))
            index = ObjectIndex(data[footer.index_position : -FOOTER_BYTES], footer.index_position)
            rows.append(LinkedRows(ObjectId(object_id), len(data), index.encoded))
        self.bytes[composite] = encode_composite(rows)
        size = sum(len(self.bytes[object_id]) for object_id in object_ids)
        made = [
            CompactedObject(composite, ObjectKind.COMPOSITE, size, 0, rows[0].link.start, rows[-1].link.end)
        ]
        request = CommitCompactionRequest(
            1, self.machine.epoch, -1, 0, [], made, [], linked_ids=list(object_ids)
        )
        assert self.machine.do(request).error_code == 0
        return composite

    def check(self, reads_data: bool = True, store: MemoryObjectStore | None = None) -> Checked:
        store = store or MemoryObjectStore(SystemClock())

        async def main() -> Checked:
            for object_id, data in self.bytes.items():
                await store.put(object_key(CLUSTER, ObjectId(object_id)), [data])
            return await BucketCheck(store, CLUSTER, self.machine.image, reads_data=reads_data).run()

        return asyncio.run(main())

    def findings(self) -> list[tuple[Kind, int]]:
        return [(finding.kind, finding.object_id) for finding in self.check().findings]


def lake() -> Lake:
    """A shared object, one of stream 0's own, and a composite of two."""
    made = Lake()
    made.upload((0, 0, 10), (1, 0, 7))
    made.upload((1, 7, 12))
    made.upload_own(0, 10, 20)
    made.link(made.upload_own(0, 20, 30), made.upload_own(0, 30, 35))
    return made


def test_a_sound_bucket_has_no_findings() -> None:
    """Stream-set objects, stream objects, a composite and what it links: all read, nothing to say."""
    found = lake().check()
    assert found.findings == []
    assert found.is_sound
    assert (found.progress.objects, found.progress.objects_total, found.stream_count) == (6, 6, 2)
    assert found.progress.blocks == 25


def test_an_object_of_another_writer_is_found_and_named() -> None:
    """One that somebody else wrote under an id that this metadata gave, sound in itself and of the same
    size."""
    made = Lake()
    made.machine.do(BrokerRegistrationRequest(1, CLUSTER, bytes(range(1, 17))))
    made.machine.epoch = made.machine.image.brokers.by_id[1].epoch
    for name in ("t", "u"):
        open_streams(made.machine, name)
    made.incarnation = bytes(range(1, 17))
    made.writer = Writer(1, token_of(made.incarnation))
    first, second = made.upload((0, 0, 5)), made.upload_own(1, 0, 5)
    assert made.check().findings == []
    for object_id, ranges in ((first, (0, 0, 5)), (second, (1, 0, 5))):
        before = made.bytes[object_id]
        made.bytes[object_id] = object_of(ranges, writer=Writer(1, 99))
        assert len(made.bytes[object_id]) == len(before)
        found = made.check(reads_data=False).findings[0]
        assert (found.kind, found.object_id) == (Kind.DAMAGED, object_id)
        assert (
            "incarnation 0000000000000063 of node 1, and metadata names incarnation 0102030405060708"
            in found.what
        )
        made.bytes[object_id] = before


def positions(data: bytes) -> dict[str, int]:
    """A byte in each part of an object, and words that name the part."""
    index = decode_footer(memoryview(data)[-FOOTER_BYTES:], len(data)).index_position
    return {
        "block magic": 0,
        "block checksum": 13,
        "block checksum again": BLOCK_HEADER_BYTES + 60,
        "index magic": index,
        "index checksum": index + 30,
        "footer checksum": len(data) - FOOTER_BYTES + 20,
        "footer magic": len(data) - 1,
    }


@pytest.mark.parametrize("part", positions(object_of((0, 0, 1))))
@pytest.mark.parametrize("object_id", [0, 2, 3])
def test_a_flipped_byte_is_found_and_named(part: str, object_id: int) -> None:
    """In any part of a shared object, a stream's own and one that a composite links; the part is named and
    the object."""
    made = lake()
    damaged = bytearray(made.bytes[object_id])
    damaged[positions(made.bytes[object_id])[part]] ^= 1
    made.bytes[object_id] = bytes(damaged)
    found = made.check()
    first = found.findings[0]
    assert (first.kind, first.object_id, found.is_sound) == (Kind.DAMAGED, object_id, False)
    assert first.key == object_key(CLUSTER, ObjectId(object_id))
    assert part in first.what or part.split()[0] in first.what, first
    if part.startswith(("block", "entry")):
        assert len(found.findings) == 1
        assert first.end > first.start >= 0, "the offsets that are affected"


def test_no_flipped_byte_passes() -> None:
    """Every byte of an object is under some check: none of them can change without a finding that names the
    object."""
    whole = object_of((0, 0, 4), (1, 0, 1))
    for position in range(len(whole)):
        made = Lake()
        made.upload((0, 0, 4), (1, 0, 1))
        made.bytes[0] = whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :]
        findings = made.check().findings
        assert findings, position
        assert {finding.object_id for finding in findings if finding.kind is not Kind.GAP} == {0}, position


@pytest.mark.parametrize("position", [0, 20, 60, 90, -1, -30])
def test_a_damaged_composite_is_named(position: int) -> None:
    """And what it may link is then not taken for an orphan that could go."""
    made = lake()
    damaged = bytearray(made.bytes[5])
    damaged[position] ^= 1
    made.bytes[5] = bytes(damaged)
    found = made.check()
    assert (found.findings[0].kind, found.findings[0].object_id) == (Kind.DAMAGED, 5)
    assert found.links_unknown
    assert not found.is_sound


@pytest.mark.parametrize(
    ("lost", "stream_ids"), [(0, {0, 1}), (2, {0}), (5, {0})], ids=["shared", "own", "composite"]
)
def test_a_missing_object_is_named_with_what_it_held(lost: int, stream_ids: set[int]) -> None:
    """The object, and the offsets of each stream that are in no other."""
    made = lake()
    del made.bytes[lost]
    found = made.check()
    assert (found.findings[0].kind, found.findings[0].object_id) == (Kind.MISSING, lost)
    gaps = [finding for finding in found.findings if finding.kind is Kind.GAP]
    assert {gap.stream_id for gap in gaps} == stream_ids
    assert all(f"object {lost} is missing" in gap.what for gap in gaps)


def test_a_linked_object_that_is_missing_is_named() -> None:
    """Metadata does not know it; the composite that links it does, and says which offsets it held: those are
    a gap."""
    made = lake()
    del made.bytes[4]
    missing, gap = made.check().findings
    assert (missing.kind, missing.object_id) == (Kind.MISSING, 4)
    assert (gap.kind, gap.stream_id, gap.start, gap.end) == (Kind.GAP, 0, 30, 35)
    assert gap.what == "object 4, which composite 5 links, is missing"


def test_a_linked_object_of_another_stream_is_a_gap() -> None:
    """As long as it was and sound in itself, but not what the composite's rows say: its offsets are missed,
    whatever its numbers are."""
    made = lake()
    made.bytes[4] = object_of((1, 30, 35))
    [gap] = made.check().findings
    assert (gap.kind, gap.stream_id, gap.start, gap.end) == (Kind.GAP, 0, 30, 35)


def test_a_copy_of_another_object_is_told_from_one_that_cannot_be_read() -> None:
    """One of four uploads is longer than it was written, another is a copy of its neighbour: each gap has its
    own reason."""
    made = Lake()
    for start in range(0, 8, 2):
        made.upload((0, start, start + 2))
    made.bytes[0] += b"x"
    made.bytes[2] = made.bytes[1]
    told = {finding.start: finding for finding in made.check().findings if finding.kind is Kind.GAP}
    assert {start: finding.what for start, finding in told.items()} == {
        0: "object 0 is not of the size that was written",
        4: "not in object 2, which metadata names for it",
    }
    [overlap] = [finding for finding in made.check().findings if finding.kind is Kind.OVERLAP]
    assert (overlap.object_id, overlap.start, overlap.end) == (2, 2, 4)
    assert overlap.what == "object 1 has them too"


def test_blocks_that_could_not_be_read_are_named_by_their_offsets() -> None:
    """The store gives the index and not the blocks: each stream's offsets among them are told."""

    class Halting(MemoryObjectStore):
        async def get_range(self, key: str, start: int, end: int) -> bytes:
            if start == 0:
                raise StoreUnavailable(key, "503")
            return await super().get_range(key, start, end)

    made = Lake()
    made.upload((0, 0, 200), (1, 0, 100))
    found = made.check(store=Halting(SystemClock()))
    assert {finding.kind for finding in found.findings} == {Kind.UNREADABLE}
    assert [(one.stream_id, one.start, one.end) for one in found.findings] == [(0, 0, 200), (1, 0, 100)]


def test_all_bytes_are_counted() -> None:
    """What was read ends at what metadata says is stored, indexes included, so that progress arrives; a quick
    check reads those alone."""
    progress = lake().check().progress
    assert progress.bytes == progress.bytes_total > 0
    assert 0 < lake().check(reads_data=False).progress.bytes < progress.bytes_total


def test_what_goes_with_a_composite_pending_deletion_is_no_orphan() -> None:
    """The stream was trimmed beyond it: the composite is marked for deletion, what it links is on its way out
    with it."""
    made = lake()
    machine = made.machine
    trim = TrimStreamsRequest(1, machine.epoch, [StreamTrim(0, machine.image.streams.by_id[0].epoch, 35)])
    assert machine.do(trim).error_code == 0
    marked = machine.image.objects.get(5)
    assert marked is not None
    assert marked.with_links
    assert made.findings() == []
    made.bytes[5] = made.bytes[5][:-1]
    found = made.check()
    assert found.links_unknown
    assert {finding.kind for finding in found.findings} == {Kind.ORPHAN}


def test_a_cut_object_is_told_by_its_size() -> None:
    """Cut short or with bytes appended, it is not what was committed."""
    for change in (lambda data: data[:-1], lambda data: data + b"x"):
        made = lake()
        made.bytes[2] = change(made.bytes[2])
        assert (Kind.SIZE, 2) in made.findings()


def test_an_orphan_is_told_from_what_is_on_its_way() -> None:
    """Nobody knows an orphan; prepared and objects pending deletion are known; an id beyond all that were
    given means that the metadata is old."""
    made = lake()
    prepared = prepare(made.machine, 2, ttl_ms=100_000)
    made.bytes[prepared] = b"being written"
    expired = prepare(made.machine)
    made.machine.now_ms += 50_000
    made.machine.expire()
    found = made.machine.image.objects.get(expired)
    assert found is not None
    assert found.state is ObjectState.PENDING_DELETION
    made.bytes[expired] = b"to be deleted"
    assert made.findings() == []
    later = made.machine.image.objects.next_id + 1_000
    made.bytes[later] = b"later than this metadata"
    checked = made.check()
    assert [(finding.kind, finding.object_id) for finding in checked.findings] == [(Kind.NEWER, later)]
    assert checked.is_sound
    assert checked.orphans == []


def test_a_deleted_objects_file_that_stayed_is_an_orphan() -> None:
    """Its id was given, and no metadata knows it any more: it can go, and harms nobody."""
    made = lake()
    stale = made.upload_own(1, 12, 14)
    stream = next(one for one in made.machine.image.streams.by_id.values() if one.stream_id == 1)
    trim = TrimStreamsRequest(1, made.machine.epoch, [StreamTrim(1, stream.epoch, 14)])
    assert made.machine.do(trim).error_code == 0
    assert made.machine.do(RemoveObjectsRequest(1, made.machine.epoch, [stale])).error_code == 0
    checked = made.check()
    assert [(finding.kind, finding.object_id) for finding in checked.findings] == [(Kind.ORPHAN, stale)]
    assert [entry.key for entry in checked.orphans] == [object_key(CLUSTER, ObjectId(stale))]
    assert checked.is_sound


@pytest.mark.parametrize(
    ("really", "gap"),
    [
        (((0, 0, 8), (1, 0, 7)), (0, 8, 10)),
        (((0, 3, 10), (1, 0, 7)), (0, 0, 3)),
        (((0, 0, 10),), (1, 0, 7)),
    ],
)
def test_a_gap_is_named(really: Ranges, gap: tuple[int, int, int]) -> None:
    """Where metadata says that offsets are in an object whose own index does not have them."""
    made = Lake()
    made.upload((0, 0, 10), (1, 0, 7), really=really)
    made.upload((0, 10, 12))
    [found] = made.check().findings
    assert (found.kind, found.stream_id, found.start, found.end) == (Kind.GAP, *gap)


def test_an_overlap_is_named() -> None:
    """Offsets that two committed objects hold."""
    made = Lake()
    made.upload((0, 0, 10), really=((0, 0, 14),))
    made.upload((0, 10, 20))
    [found] = made.check().findings
    assert (found.kind, found.stream_id, found.start, found.end) == (Kind.OVERLAP, 0, 10, 14)


def test_a_trimmed_stream_needs_only_what_is_left() -> None:
    """An object whose stream was trimmed within it is sound; so is one whose other stream is gone."""
    made = lake()
    for stream in list(made.machine.image.streams.by_id.values()):
        trim = TrimStreamsRequest(1, made.machine.epoch, [StreamTrim(stream.stream_id, stream.epoch, 5)])
        assert made.machine.do(trim).error_code == 0
    assert made.findings() == []


def test_a_quick_check_reads_no_blocks() -> None:
    """It sees what is missing, and not what is damaged inside a block."""
    made = lake()
    made.bytes[0] = bytes([made.bytes[0][0] ^ 1]) + made.bytes[0][1:]
    assert made.check(reads_data=False).is_sound
    del made.bytes[2]
    assert not made.check(reads_data=False).is_sound


def test_a_key_that_no_object_has_is_strange_and_stays() -> None:
    """It is told, and is no orphan."""

    async def main() -> Checked:
        store = MemoryObjectStore(SystemClock())
        await store.put(f"{CLUSTER}/objects/zz/notes.txt", [b"x"])
        return await BucketCheck(store, CLUSTER, Machine().image).run()

    found = asyncio.run(main())
    assert [finding.kind for finding in found.findings] == [Kind.STRANGE]
    assert found.orphans == []
