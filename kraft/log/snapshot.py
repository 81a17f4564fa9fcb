"""Snapshots: an image as records, in Kafka's checkpoint files, and back.

    control batch SnapshotHeader, voters | batches of metadata records, offsets from 0 | SnapshotFooter

The image is immutable, so it is written in chunks while the broker goes on: each chunk is some milliseconds
of work. The file gets its name when it is whole and durable. Not here: when to write one (node.py), what it
makes superfluous (log_store.py). Kept true: loading gives an image equal to the one written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from millrace.kraft.errors import LogCorrupt, SnapshotCorrupt, UnknownRecord
from millrace.kraft.image.bulk import RecordFolder
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.image.records import (
    Proposal,
    ValueWriter,
    decode_values,
    encode_batch,
)
from millrace.kraft.image.voter_records import (
    change_of,
    control_types,
    encode_snapshot_footer,
    encode_snapshot_header,
)
from millrace.kraft.log.log_store import ReadableFile, SnapshotId, read_batches
from millrace.kraft.raft.voters import VotersChange, VoterSet
from millrace.kraft.tables.brokers import registration_record
from millrace.kraft.tables.features import METADATA_VERSION
from millrace.kraft.tables.objects import ObjectState, StoredObject
from millrace.kraft.tables.owed_ranges import owed_range_record
from millrace.kraft.tables.packing import pack_holders
from millrace.kraft.tables.streams import stream_record
from millrace.kraft.tables.topics import PartitionState, Topic
from millrace.kraft.tables.wals import wal_record
from millrace.protocol.batches import BatchHeader
from millrace.protocol.errors import WireError
from millrace.protocol.metadata_records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from millrace.protocol.records import ControlType
from millrace.protocol.stream_records import (
    CommittedObjectRecord,
    NextIdsRecord,
    NodeClaimRecord,
    PendingDeletionRecord,
    PrepareObjectsRecord,
    StreamHoldersRecord,
    StreamSetGroupRecord,
)
from millrace.runtime.disk import Disk

CHUNK_RECORDS: Final = 500  # some 5 ms of encoding
CHUNK_BYTES: Final = 256 << 10
RUN_MAX: Final = 1_000  # objects in one record


def image_records(image: MetadataImage) -> Iterator[Any]:
    """The records that make `image` out of nothing, metadata.version first."""
    for name in sorted(image.features.levels, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name, image.features.level(name))
    for broker in image.brokers:
        yield registration_record(broker)
    for topic in image.topics:
        yield from topic_records(topic)
    for (resource_type, resource), values in image.configs.by_resource.items():
        for name, value in values.items():
            yield ConfigRecord(resource_type, resource, name, value)
    if image.producer_ids:
        yield ProducerIdsRecord(-1, -1, image.producer_ids)
    yield NextIdsRecord(image.streams.next_id, image.objects.next_id)
    for stream in image.streams.by_id.values():
        yield stream_record(stream)
    for owed in image.streams.owed:
        yield owed_range_record(owed)
    yield from object_records(image)
    for wal in image.wals:
        yield wal_record(wal)
    for node_id, claim in image.claims:
        yield NodeClaimRecord(node_id, claim.number, claim.incarnation)
    for failover in image.failovers:
        yield failover.record()


def topic_records(topic: Topic) -> Iterator[Any]:
    yield TopicRecord(topic.name, topic.topic_id)
    for index, state in enumerate(topic.partitions):
        yield partition_record(topic.topic_id, index, state)


def partition_record(topic_id: bytes, index: int, state: PartitionState) -> PartitionRecord:
    return PartitionRecord(
        index,
        topic_id,
        list(state.replicas),
        list(state.isr),
        list(state.removing),
        list(state.adding),
        state.leader,
        state.recovery_state,
        state.leader_epoch,
        state.partition_epoch,
        list(state.directories),
    )


def object_records(image: MetadataImage) -> Iterator[Any]:
    """Objects by id, alike ones that follow one another in one record; then who names them."""
    run: list[int] = []
    shared: StoredObject | None = None
    for object_id, stored in image.objects.by_id.items():
        is_next = not run or object_id == run[-1] + 1 or stored.state is ObjectState.PENDING_DELETION
        if run and (stored != shared or not is_next or len(run) >= RUN_MAX):
            yield run_record(run, shared)
            run = []
        if stored.state is ObjectState.COMMITTED:
            yield committed_record(object_id, stored)
        else:
            run.append(object_id)
            shared = stored
    if run:
        yield run_record(run, shared)
    open_groups = frozenset(image.objects.open_groups.values())
    for group_id, group in image.objects.groups.items():
        yield StreamSetGroupRecord(
            group_id, group.node_id, group.purpose, group_id in open_groups, list(group.members)
        )
    for stream_id, ranges in image.objects.ranges.items():
        packed = pack_holders(ranges.all(image.streams.by_id[stream_id].end))
        yield StreamHoldersRecord(stream_id, packed)


def committed_record(object_id: int, stored: StoredObject) -> CommittedObjectRecord:
    return CommittedObjectRecord(
        object_id,
        stored.kind,
        stored.size_bytes,
        stored.time_ms,
        stored.node_id,
        stored.stream_id,
        stored.start,
        stored.end,
        stored.order_id,
        stored.group_id,
        stored.slot,
        stored.writer,
    )


def run_record(run: list[int], shared: StoredObject | None) -> PrepareObjectsRecord | PendingDeletionRecord:
    assert shared is not None
    if shared.state is ObjectState.PREPARED:
        return PrepareObjectsRecord(run[0], len(run), shared.node_id, shared.time_ms, shared.writer)
    return PendingDeletionRecord(run, shared.time_ms, shared.was_committed, shared.with_links)


def chunks(image: MetadataImage, writer: ValueWriter) -> Iterator[list[bytes]]:
    """The image's records, encoded, a bounded amount of work at a time."""
    values: list[bytes] = []
    size_bytes = 0
    for record in image_records(image):
        values.append(writer.write(record))
        size_bytes += len(values[-1])
        if len(values) >= CHUNK_RECORDS or size_bytes >= CHUNK_BYTES:
            yield values
            values, size_bytes = [], 0
    if values:
        yield values


NO_VOTERS: Final = VoterSet()  # of a snapshot at kraft.version 0


class LoadedSnapshot(NamedTuple):
    """`voters`: in force where the snapshot ends; None where it names none (kraft.version 0). `time_ms`: when
    it was made, by the clock of who made it."""

    image: MetadataImage
    voters: VoterSet | None
    time_ms: int = 0


async def snapshot_parts(
    image: MetadataImage, time_ms: int, voters: VoterSet = NO_VOTERS
) -> AsyncIterator[bytes]:
    """The file's bytes, a bounded amount of work at a time between turns of others."""
    header = encode_snapshot_header(time_ms, image.epoch, time_ms, voters)
    yield header
    offset = BatchHeader(header).record_count
    for values in chunks(image, ValueWriter()):
        yield encode_batch([Proposal(values, time_ms)], offset, image.epoch)
        offset += len(values)
        await asyncio.sleep(0)
    yield encode_snapshot_footer(offset, image.epoch, time_ms)


async def write_snapshot(
    disk: Disk, folder: str, image: MetadataImage, time_ms: int, voters: VoterSet = NO_VOTERS
) -> SnapshotId:
    """Durable under its name on return. Cancelled, it leaves at most a file that the next start removes;
    failed, nothing."""
    snapshot = SnapshotId(image.offset, image.epoch)
    path = f"{folder}/{snapshot.name}"
    async with part_of(disk, path) as part:
        await write_pieces(disk, part, snapshot_parts(image, time_ms, voters))
    return snapshot


@asynccontextmanager
async def part_of(disk: Disk, path: str) -> AsyncIterator[str]:
    """Where the file is made that has its name afterwards, durably; where that fails nothing is left of it,
    which would keep the room of a full disk."""
    part = f"{path}.part"
    await disk.remove(part)
    try:
        yield part
        await disk.rename(part, path)
    except Exception:
        await disk.remove(part)
        raise


async def write_pieces(disk: Disk, path: str, pieces: AsyncIterator[bytes]) -> None:
    """Durable on return."""
    file = await disk.open_log(path)
    try:
        async for piece in pieces:
            await file.append([piece])
        await file.sync()
    finally:
        await file.close()


async def receive_snapshot(
    disk: Disk, folder: str, snapshot: SnapshotId, pieces: AsyncIterator[bytes]
) -> LoadedSnapshot:
    """Takes a snapshot that comes from elsewhere, and gives what is in it. Durable under its name on return;
    nothing is there under that name when it is not whole. Raises SnapshotCorrupt, UnknownRecord, and what
    `pieces` raises."""
    async with part_of(disk, f"{folder}/{snapshot.name}") as part:
        await write_pieces(disk, part, pieces)
        return await load_snapshot_file(disk, part, snapshot)


async def load_snapshot(disk: Disk, folder: str, snapshot: SnapshotId) -> LoadedSnapshot:
    """Raises SnapshotCorrupt for a file that is not whole, UnknownRecord for one that a later build wrote."""
    return await load_snapshot_file(disk, f"{folder}/{snapshot.name}", snapshot)


async def load_snapshot_file(disk: Disk, path: str, snapshot: SnapshotId) -> LoadedSnapshot:
    """The same of a file of another name."""
    file = await disk.open_log(path)
    try:
        return await fold_snapshot(file, path, snapshot)
    finally:
        await file.close()


async def fold_snapshot(file: ReadableFile, path: str, snapshot: SnapshotId) -> LoadedSnapshot:
    """The same of an open file, or of bytes. Raises SnapshotCorrupt where it is damaged or unfinished,
    UnknownRecord where a later version wrote it."""
    delta = MetadataDelta(EMPTY_IMAGE)
    folder = RecordFolder()
    kinds: list[int] = []
    changes: list[VotersChange] = []
    time_ms = 0
    try:
        async for header, view in read_batches(file, path, 0, torn_from=None):
            time_ms = max(time_ms, header.max_timestamp)
            if header.is_control:
                kinds += control_types(view)
                change = change_of(view)
                changes += [change] if change is not None else []
            elif kinds != [ControlType.SNAPSHOT_HEADER]:
                raise SnapshotCorrupt(path, "records outside of header and footer")
            else:
                folder.fold(delta, decode_values(view))
    except (LogCorrupt, WireError, AssertionError) as error:
        raise SnapshotCorrupt(path, str(error) or repr(error)) from error
    except UnknownRecord as error:
        raise UnknownRecord(f"{error.what} in {path}") from error
    if kinds != [ControlType.SNAPSHOT_HEADER, ControlType.SNAPSHOT_FOOTER]:
        raise SnapshotCorrupt(path, "no footer: it was never finished, or lost its end")
    voters = None
    for change in changes:
        voters = change.on(voters or NO_VOTERS)
    return LoadedSnapshot(delta.done(snapshot.end, snapshot.epoch), voters, time_ms)
