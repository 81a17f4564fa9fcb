"""Decides the life of objects: prepare, commit an upload, expire what was never committed, forget what was
deleted. Pure.

Kept true: for every stream, what is committed, or owed by an earlier owner, is continuous; a commit sent
twice changes nothing the second time; what an object holds of streams that are gone, or of what is committed
already, is passed over.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from millrace.kraft.commands.decision import Decision, check_broker, check_incarnation, check_writer
from millrace.kraft.commands.owed_ranges import committed_part
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import Objects, ObjectState, StoredObject
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.kraft.tables.packing import pack_ranges
from millrace.kraft.tables.stream_set_groups import Purpose
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.commit_upload import CommitUploadRequest, CommitUploadResponse
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest, PrepareObjectsResponse
from millrace.protocol.messages.remove_objects import RemoveObjectsRequest, RemoveObjectsResponse
from millrace.protocol.stream_records import (
    CommitObjectRecord,
    MoveNodeWalRecord,
    PendingDeletionRecord,
    PrepareObjectsRecord,
    RemoveObjectsRecord,
)
from millrace.s3stream.ids import NO_OBJECT, ObjectKind, token_text

OF_CONTROLLER: Final = -1  # in the place of a broker's id: the active controller's own, which is no broker
PREPARED_COUNT_MAX: Final = 10_000  # in one request
TTL_MS_MAX: Final = 30 * 86_400_000
EXPIRED_COUNT_MAX: Final = 1_000  # in one record


def decide_prepare_objects(image: MetadataImage, request: PrepareObjectsRequest, now_ms: int) -> Decision:
    """Raises KafkaError where the broker or the writer is not the one registered, INVALID_REQUEST where count
    or time to live is out of bounds."""
    check_broker(image, request.node_id, request.broker_epoch)
    check_writer(image, request.node_id, request.writer)
    count, ttl_ms = request.object_count, request.ttl_ms
    if not 0 < count <= PREPARED_COUNT_MAX or not 0 < ttl_ms <= TTL_MS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{count} objects for {ttl_ms} ms")
    first = image.objects.next_id
    record = PrepareObjectsRecord(first, count, request.node_id, now_ms + ttl_ms, request.writer)
    return Decision(PrepareObjectsResponse(first_object_id=first), [record])


def decide_commit_upload(image: MetadataImage, request: CommitUploadRequest, now_ms: int) -> Decision:
    """Asked again, it answers as before and changes nothing. Raises KafkaError where the broker is stale, an
    id is not prepared, or a range does not continue a stream that the node has open."""
    check_broker(image, request.node_id, request.broker_epoch)
    token = check_incarnation(image, request.node_id, request.incarnation)
    if is_committed(image, uploaded_ids(request), request.node_id, token):
        return Decision(CommitUploadResponse())
    plan = RangePlan(image, request.node_id)
    records = []
    if request.object_id != NO_OBJECT:
        ranges = [(range.stream_id, range.start_offset, range.end_offset) for range in request.ranges]
        packed = plan.take(ranges)
        record = committed(
            request, request.object_id, ObjectKind.STREAM_SET, request.size_bytes, now_ms, packed
        )
        home = next_place(image.objects, request.node_id, Purpose.UPLOADS, request.object_id)
        record.group_id, record.group_slot = home
        records.append(record)
    elif request.ranges:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "ranges without a stream-set object")
    for made in request.stream_objects:
        packed = plan.take([(made.stream_id, made.start_offset, made.end_offset)])
        records.append(committed(request, made.object_id, ObjectKind.STREAM, made.size_bytes, now_ms, packed))
    return Decision(CommitUploadResponse(), [*records, *moved_wal(image, request)])


def moved_wal(image: MetadataImage, request: CommitUploadRequest) -> list[MoveNodeWalRecord]:
    """How far the log is committed that the data came from; nothing for one that is not registered."""
    wal = image.wals.get(request.node_id, request.wal_id)
    if wal is None or request.wal_end <= wal.position:
        return []
    return [MoveNodeWalRecord(request.node_id, request.wal_id, request.wal_end)]


def committed(
    request: CommitUploadRequest,
    object_id: int,
    kind: ObjectKind,
    size_bytes: int,
    now_ms: int,
    packed: bytes,
) -> CommitObjectRecord:
    return CommitObjectRecord(object_id, kind, size_bytes, object_id, now_ms, request.node_id, ranges=packed)


def next_place(
    objects: Objects, node_id: int, purpose: Purpose, object_id: int, sources: Container[int] = ()
) -> tuple[int, int]:
    """On which group the node's next object goes, and where: on one of its own when there is none open, or
    sources lie there."""
    group_id = objects.open_groups.get((node_id, purpose))
    if group_id is None:
        return object_id, 0
    members = objects.groups[group_id].members
    return (object_id, 0) if any(one in sources for one in members) else (group_id, len(members))


def uploaded_ids(request: CommitUploadRequest) -> list[int]:
    """Raises KafkaError INVALID_REQUEST where there are none, or one is named twice."""
    ids = [] if request.object_id == NO_OBJECT else [request.object_id]
    ids += [made.object_id for made in request.stream_objects]
    if not ids or len(set(ids)) != len(ids):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"objects {ids}")
    return ids


def is_committed(image: MetadataImage, ids: Iterable[int], node_id: int, writer: int) -> bool:
    """True: this very upload was committed before. False: all its objects are prepared. Anything else is
    refused.

    One that was committed and has been emptied since is marked for deletion by now; the retry of its commit
    is a success all the same.
    """
    stored = {object_id: image.objects.get(object_id) for object_id in ids}
    if all(is_settled(found) for found in stored.values()):
        return True
    for object_id, found in stored.items():
        if found is None or found.state is not ObjectState.PREPARED:
            state = "unknown" if found is None else found.state.name.lower()
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"object {object_id} is {state}, not prepared")
        if found.node_id != node_id:
            text = f"object {object_id} was prepared by node {found.node_id}"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        if found.writer != writer:
            text = (
                f"object {object_id} was prepared for incarnation {token_text(found.writer)}, not "
                f"{token_text(writer)}"
            )
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return False


def is_settled(found: StoredObject | None) -> bool:
    return found is not None and (found.state is ObjectState.COMMITTED or found.was_committed)


class RangePlan:
    """Takes ranges one after another, as if each was committed before the next is looked at."""

    def __init__(self, image: MetadataImage, node_id: int) -> None:
        self._image = image
        self._node_id = node_id
        self._ends: dict[int, int] = {}
        self._owed: dict[int, OwedRange] = {}  # as the ranges taken so far leave it

    def take(self, ranges: list[tuple[int, int, int]]) -> bytes:
        """What of an object's ranges counts, packed by stream and start."""
        taken = [self._clipped(*asked) for asked in sorted(ranges)]
        return pack_ranges(kept for kept in taken if kept is not None)

    def _clipped(self, stream_id: int, start: int, end: int) -> tuple[int, int, int] | None:
        if not 0 <= start < end:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"range [{start}, {end}) of stream {stream_id}")
        stream = self._image.streams.get(stream_id)
        if stream is None:
            return None
        owed = self._owed.get(stream_id) or self._image.streams.owed.by(stream_id, self._node_id)
        if owed is not None and owed.start < end and owed.start < owed.end:
            taken_start, taken_end = committed_part(owed, start, end)
            self._owed[stream_id] = owed._replace(start=end)
            return stream_id, taken_start, taken_end
        committed_end = self._ends.get(stream_id, stream.end)
        if end <= committed_end:
            return None
        if not stream.is_open or stream.node_id != self._node_id:
            text = f"stream {stream_id} is not open at node {self._node_id}"
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, text)
        # A trim beyond the committed end lifted it: what lies below is wanted no more, and the range may
        # begin there.
        is_lifted = stream.start == stream.end == committed_end
        if start != committed_end and not (is_lifted and start < committed_end):
            text = f"range [{start}, {end}) of stream {stream_id}, whose committed end is {committed_end}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        self._ends[stream_id] = end
        return stream_id, committed_end, end


def decide_expire_objects(image: MetadataImage, passed_ms: int, now_ms: int) -> list[PendingDeletionRecord]:
    """Marks for deletion prepared objects whose deadline lies at or before `passed_ms`, so many at a time;
    they are marked for deletion since now."""
    expired = image.objects.prepared_before(passed_ms, EXPIRED_COUNT_MAX)
    return [PendingDeletionRecord(list(expired), now_ms)] if expired else []


def decide_remove_objects(image: MetadataImage, request: RemoveObjectsRequest) -> Decision:
    """Ids that are unknown count as removed. Raises KafkaError INVALID_RECORD_STATE for an object that is not
    pending deletion."""
    if request.node_id != OF_CONTROLLER:
        check_broker(image, request.node_id, request.broker_epoch)
    gone = []
    for object_id in dict.fromkeys(request.object_ids):
        found = image.objects.get(object_id)
        if found is not None and found.state is not ObjectState.PENDING_DELETION:
            text = f"object {object_id} is {found.state.name.lower()}, not pending deletion"
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, text)
        if found is not None:
            gone.append(object_id)
    return Decision(RemoveObjectsResponse(), [RemoveObjectsRecord(gone)] if gone else [])
