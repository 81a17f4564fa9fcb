"""Decides commits of compaction: new objects take the place of committed ones. Pure.

The decision applies the record it is about to write to a copy of the tables and looks at what is left of the
sources: what of theirs is wanted (of a stream that exists, at or above its start) and in no new object is
refused, whatever the one who asks believes. What was trimmed or deleted meanwhile is wanted no more and
passed over. A commit may have thousands of ranges: it is decided in steps, and what the record makes of the
tables comes with the decision, so that it need not be applied once more.

Kept true: no stream's end moves; a commit sent twice changes nothing the second time, by its new objects, or,
when it has none, by its sources; an object is a source only while it is committed, and for one node: the one
that wrote it, or its heir while that one is gone (heirs.py); if it is of one stream, that stream's owner.
"""

from __future__ import annotations

from millrace.kraft.commands.decision import Decision, check_broker, check_incarnation
from millrace.kraft.commands.heirs import Compactors
from millrace.kraft.commands.objects import is_settled, next_place
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.objects import ObjectState, StoredObject
from millrace.kraft.tables.objects_edit import ObjectsEdit
from millrace.kraft.tables.packing import pack_ranges
from millrace.kraft.tables.stream_set_groups import Purpose
from millrace.kraft.tables.streams import StreamsEdit
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.commit_compaction import (
    CommitCompactionRequest,
    CommitCompactionResponse,
    CompactedObject,
)
from millrace.protocol.stream_records import CompactObjectsRecord, MadeObject
from millrace.runtime.scheduling.yielding import Yielding, run_to_end
from millrace.s3stream.ids import NO_OBJECT, ObjectKind, StreamId, token_text

Spans = list[tuple[int, int, int]]  # (stream, start, end)


# Commits of more ranges and objects than this are decided in steps.
LONG_COUNT = 64


def is_long(request: CommitCompactionRequest) -> bool:
    gone = len(request.compacted_ids) + len(request.superseded_ids) + len(request.linked_ids)
    return len(request.ranges) + len(request.stream_objects) + len(request.trimmed_ids) + gone > LONG_COUNT


def decide_commit_compaction(image: MetadataImage, request: CommitCompactionRequest, now_ms: int) -> Decision:
    return run_to_end(decide_yielding(image, request, now_ms))


def decide_yielding(
    image: MetadataImage, request: CommitCompactionRequest, now_ms: int
) -> Yielding[Decision]:
    check_broker(image, request.node_id, request.broker_epoch)
    token = check_incarnation(image, request.node_id, request.incarnation)
    made_ids = [] if request.object_id == NO_OBJECT else [request.object_id]
    made_ids += [made.object_id for made in request.stream_objects]
    source_ids = list(dict.fromkeys((*request.compacted_ids, *request.superseded_ids, *request.linked_ids)))
    check_ids(request, made_ids, source_ids)
    if is_done(image, made_ids, source_ids):
        return Decision(CommitCompactionResponse())
    compactors = Compactors(image)
    found = {
        object_id: committed_source(image, object_id, request.node_id, compactors) for object_id in source_ids
    }
    sources = {object_id: source for object_id, source in found.items() if source is not None}
    if not sources or any(one not in sources for one in (*request.superseded_ids, *request.linked_ids)):
        refuse(f"of objects {source_ids[:9]} those that would be linked, or all, hold nothing any more")
    check_roles(image, request, sources)
    for number, object_id in enumerate(made_ids):
        check_prepared(image, object_id, request.node_id, token)
        if not (number + 1) % LONG_COUNT:
            yield
    record = yield from compaction_record(image, request, sources, now_ms)
    edit = ObjectsEdit(image.objects)
    left = yield from edit.compact(record, request.trimmed_ids, StreamsEdit(image.streams))
    if left:
        refuse(f"something that is wanted would be in no object: of {left}")
    return Decision(CommitCompactionResponse(), [record], edit.done())


def refuse(why: str) -> None:
    """Raises KafkaError INVALID_RECORD_STATE: the compaction is to be planned anew."""
    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, why)


def check_ids(request: CommitCompactionRequest, made_ids: list[int], source_ids: list[int]) -> None:
    """Each id is named in one place, though in that one it may be repeated. Else raises KafkaError
    INVALID_REQUEST."""
    parts = (request.compacted_ids, request.superseded_ids, request.linked_ids, request.dropped_link_ids)
    named = [*made_ids, *(object_id for part in parts for object_id in dict.fromkeys(part))]
    if len(set(named)) != len(named) or any(object_id < 0 for object_id in named):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"objects {named[:20]}: one twice, or none")
    if not source_ids:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no object is compacted")
    if request.ranges and request.object_id == NO_OBJECT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "ranges without a stream-set object")


def is_done(image: MetadataImage, made_ids: list[int], source_ids: list[int]) -> bool:
    """This very commit was made before. One without new objects does nothing but end its sources: it is done
    when none is committed."""
    if made_ids:
        return all(is_settled(image.objects.get(object_id)) for object_id in made_ids)
    found = [image.objects.get(object_id) for object_id in source_ids]
    return all(one is None or one.state is ObjectState.PENDING_DELETION for one in found)


def committed_source(
    image: MetadataImage, object_id: int, node_id: int, compactors: Compactors
) -> StoredObject | None:
    """None for one that was emptied since the plan was made: what it held is wanted no more, or another
    compaction has it. Only what the sources still hold changes hands, so passing it over harms nothing.
    Raises KafkaError INVALID_RECORD_STATE for one that is not committed, or another node's."""
    found = image.objects.get(object_id)
    if found is not None and found.was_committed:
        return None
    if found is None or found.state is not ObjectState.COMMITTED:
        state = "unknown" if found is None else found.state.name.lower()
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f"object {object_id} is {state}, not committed")
    if found.kind is ObjectKind.STREAM_SET:
        owner = compactors.of(found.node_id)
    else:
        owner = image.streams.by_id[StreamId(found.stream_id)].node_id
    if owner != node_id:
        refuse(f"object {object_id} is node {owner}'s to compact")
    return found


def check_prepared(image: MetadataImage, object_id: int, node_id: int, writer: int) -> None:
    found = image.objects.get(object_id)
    if found is None or found.state is not ObjectState.PREPARED or found.node_id != node_id:
        state = "unknown" if found is None else f"{found.state.name.lower()} by node {found.node_id}"
        refuse(f"object {object_id} is {state}, not prepared")
    elif found.writer != writer:
        whose = f"incarnation {token_text(found.writer)}, not {token_text(writer)}"
        refuse(f"object {object_id} was prepared for {whose}")


def check_roles(
    image: MetadataImage, request: CommitCompactionRequest, sources: dict[int, StoredObject]
) -> None:
    """Only a composite is superseded; only a stream object is linked, whole, by a composite of this
    commit."""
    composites = [made for made in request.stream_objects if made.kind == ObjectKind.COMPOSITE]
    for object_id in request.superseded_ids:
        found = sources.get(object_id)
        if found is not None and found.kind is not ObjectKind.COMPOSITE:
            refuse(f"object {object_id} is superseded and no composite")
    for object_id in request.linked_ids:
        found = sources.get(object_id)
        if found is not None and not is_linked(image, found, composites):
            refuse(f"object {object_id} is linked by no composite")
    for object_id in request.dropped_link_ids:
        is_known = image.objects.get(object_id) is not None or object_id >= image.objects.next_id
        if is_known or not request.superseded_ids:
            refuse(f"object {object_id} is dropped and was no composite's")


def is_linked(image: MetadataImage, found: StoredObject, composites: list[CompactedObject]) -> bool:
    if found.kind is not ObjectKind.STREAM:
        return False
    start = max(found.start, image.streams.by_id[StreamId(found.stream_id)].start)
    return any(
        one.stream_id == found.stream_id and one.start_offset <= start and found.end <= one.end_offset
        for one in composites
    )


def compaction_record(
    image: MetadataImage, request: CommitCompactionRequest, sources: dict[int, StoredObject], now_ms: int
) -> Yielding[CompactObjectsRecord]:
    """Order and age of the new objects are the least among the sources: what they hold is as old. Raises
    KafkaError INVALID_REQUEST for a kind or a range that cannot be."""
    sets = [source for source in sources.values() if source.kind is ObjectKind.STREAM_SET]
    order_id = min((source.order_id for source in sets), default=request.object_id)
    data_ms = min(source.time_ms for source in sources.values())
    made = []
    if request.object_id != NO_OBJECT:
        packed = packed_spans([(one.stream_id, one.start_offset, one.end_offset) for one in request.ranges])
        home = next_place(image.objects, request.node_id, Purpose.COMPACTION, request.object_id, sources)
        made.append(
            MadeObject(
                request.object_id, ObjectKind.STREAM_SET, request.size_bytes, order_id, data_ms, *home, packed
            )
        )
    for number, one in enumerate(request.stream_objects):
        if not number % LONG_COUNT:
            yield
        if one.kind not in (ObjectKind.STREAM, ObjectKind.COMPOSITE):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"object {one.object_id} of kind {one.kind}")
        packed = packed_spans([(one.stream_id, one.start_offset, one.end_offset)])
        made.append(MadeObject(one.object_id, one.kind, one.size_bytes, 0, data_ms, ranges=packed))
    return CompactObjectsRecord(
        request.node_id,
        now_ms,
        made,
        [object_id for object_id in dict.fromkeys(request.compacted_ids) if object_id in sources],
        [object_id for object_id in dict.fromkeys(request.superseded_ids) if object_id in sources],
        [object_id for object_id in dict.fromkeys(request.linked_ids) if object_id in sources],
        list(dict.fromkeys(request.dropped_link_ids)),
    )


def packed_spans(spans: Spans) -> bytes:
    """Raises KafkaError INVALID_REQUEST for a range that is empty or below 0."""
    for stream_id, start, end in spans:
        if not 0 <= start < end:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"range [{start}, {end}) of stream {stream_id}")
    return pack_ranges(sorted(spans))
