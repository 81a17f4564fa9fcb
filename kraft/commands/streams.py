"""Decides what owners ask of streams: open (made when missing), close, trim, and which are open. Pure.

Fences, in order: the broker's epoch (its newest incarnation), the partition's leader and leader epoch, the
stream's owner and epoch. Kept true: a stream has one owner at a time, and a new one only after the old one
closed it, or sealed it (owed_ranges.py); none that owes some of it itself.
"""

from __future__ import annotations

from millrace.kraft.commands.decision import Decision, check_broker
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.streams import StreamState, stream_record
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.close_streams import ClosedStream, CloseStreamsRequest, CloseStreamsResponse
from millrace.protocol.messages.get_opening_streams import (
    GetOpeningStreamsRequest,
    GetOpeningStreamsResponse,
    OpeningStream,
    OwedStream,
)
from millrace.protocol.messages.open_partition_streams import (
    OpenedPartitionStream,
    OpenPartitionStreamsRequest,
    OpenPartitionStreamsResponse,
)
from millrace.protocol.messages.trim_streams import TrimmedStream, TrimStreamsRequest, TrimStreamsResponse
from millrace.protocol.stream_records import TrimStreamRecord
from millrace.s3stream.ids import StreamId, StreamRole


def decide_open_partition_streams(image: MetadataImage, request: OpenPartitionStreamsRequest) -> Decision:
    check_broker(image, request.node_id, request.broker_epoch)
    check_leader(image, request)
    known = {
        stream.role: stream
        for stream in image.streams.of_partition(request.topic_id, request.partition_index)
    }
    next_id = image.streams.next_id
    decision = Decision(OpenPartitionStreamsResponse())
    for role in dict.fromkeys(request.roles):
        stream = known.get(check_role(role))
        if stream is None:
            stream = new_stream(next_id, request, StreamRole(role))
            next_id = StreamId(next_id + 1)
            decision.records.append(stream_record(stream))
        elif not (
            stream.is_open and (stream.node_id, stream.epoch) == (request.node_id, request.leader_epoch)
        ):
            stream = taken(stream, request)
            check_nothing_owed(image, stream)
            decision.records.append(stream_record(stream))
        opened = OpenedPartitionStream(role, stream.stream_id, stream.epoch, stream.start, stream.end)
        decision.response.streams.append(opened)
    return decision


def new_stream(stream_id: StreamId, request: OpenPartitionStreamsRequest, role: StreamRole) -> StreamState:
    partition = request.topic_id, request.partition_index
    return StreamState(stream_id, *partition, role, request.leader_epoch, request.node_id, True, 0, 0)


def taken(stream: StreamState, request: OpenPartitionStreamsRequest) -> StreamState:
    """The stream opened by the one who asks. Another owner's open stream must be closed, or recovered, first.
    Raises KafkaError FENCED_LEADER_EPOCH where the stream has a later epoch, LEADER_NOT_AVAILABLE where
    another node has it open."""
    if stream.epoch > request.leader_epoch:
        text = f"stream {stream.stream_id} is at epoch {stream.epoch}"
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, text)
    if stream.is_open and stream.node_id != request.node_id:
        text = f"stream {stream.stream_id} is still open at node {stream.node_id}"
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)
    return stream._replace(epoch=request.leader_epoch, node_id=request.node_id, is_open=True)


def check_nothing_owed(image: MetadataImage, stream: StreamState) -> None:
    """Its new owner owes none of it: what a node has of a stream that is not uploaded continues, and so does
    its write-ahead log. Raises KafkaError LEADER_NOT_AVAILABLE."""
    owed = image.streams.owed.by(stream.stream_id, stream.node_id)
    if owed is not None:
        text = (
            f"node {owed.node_id} has not uploaded [{owed.start}, {owed.end}) of stream {owed.stream_id} yet"
        )
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)


def check_leader(image: MetadataImage, request: OpenPartitionStreamsRequest) -> None:
    """Raises KafkaError for an unknown partition, another leader epoch, or another node's partition."""
    topic = image.topics.by_id(request.topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    if not 0 <= request.partition_index < len(topic.partitions):
        text = f"{topic.name} has no partition {request.partition_index}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    partition = topic.partitions[request.partition_index]
    if request.leader_epoch != partition.leader_epoch:
        is_old = request.leader_epoch < partition.leader_epoch
        code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise KafkaError(code, f"leader epoch is {partition.leader_epoch}")
    if partition.leader != request.node_id:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"node {partition.leader} leads")


def check_role(role: int) -> StreamRole:
    """Raises KafkaError INVALID_REQUEST for an unknown role."""
    try:
        return StreamRole(role)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"no stream role {role}") from None


def decide_get_opening_streams(image: MetadataImage, request: GetOpeningStreamsRequest) -> Decision:
    check_broker(image, request.node_id, request.broker_epoch)
    streams = [
        OpeningStream(s.stream_id, s.epoch, s.start, s.end) for s in image.streams.open_on(request.node_id)
    ]
    owed = [
        OwedStream(one.stream_id, one.epoch, one.start, one.end)
        for one in image.streams.owed.of_node(request.node_id)
    ]
    return Decision(GetOpeningStreamsResponse(streams=streams, owed=owed))


def decide_close_streams(image: MetadataImage, request: CloseStreamsRequest) -> Decision:
    """A stream that the same owner has closed before is closed: no error."""
    check_broker(image, request.node_id, request.broker_epoch)
    decision = Decision(CloseStreamsResponse())
    for asked in {asked.stream_id: asked for asked in request.streams}.values():
        stream = image.streams.get(asked.stream_id)
        code = refusal(stream, request.node_id, asked.epoch)
        if stream is not None and not code and stream.is_open:
            decision.records.append(stream_record(stream._replace(is_open=False)))
        decision.response.streams.append(ClosedStream(asked.stream_id, code))
    return decision


def decide_trim_streams(image: MetadataImage, request: TrimStreamsRequest, now_ms: int) -> Decision:
    check_broker(image, request.node_id, request.broker_epoch)
    decision = Decision(TrimStreamsResponse())
    for asked in {asked.stream_id: asked for asked in request.streams}.values():
        stream = image.streams.get(asked.stream_id)
        code = refusal(stream, request.node_id, asked.epoch)
        if stream is not None and not code and not stream.is_open:
            code = ErrorCode.FENCED_LEADER_EPOCH
        if stream is not None and not code and asked.start_offset > stream.start:
            decision.records.append(TrimStreamRecord(asked.stream_id, asked.start_offset, now_ms))
        decision.response.streams.append(TrimmedStream(asked.stream_id, code))
    return decision


def refusal(stream: StreamState | None, node_id: int, epoch: int) -> int:
    """Why the one who asks is not the stream's owner, as an error code; 0 when it is."""
    if stream is None:
        return int(ErrorCode.RESOURCE_NOT_FOUND)
    is_owner = stream.node_id == node_id and stream.epoch == epoch
    return int(ErrorCode.NONE if is_owner else ErrorCode.FENCED_LEADER_EPOCH)
