"""Messages of the quorum as Kafka's requests and responses, and back. Pure.

    Vote (key 52), BeginQuorumEpoch (53), EndQuorumEpoch (54), Fetch (1) of the metadata log
    KIP-595 (the protocol), KIP-853 (ids of directories), KIP-996 (pre-vote)

A member asks with `request_of` and understands the answer with `reply_of`; who is asked understands with
`message_of` and answers with `response_of`. Each request is for one topic and one partition, as Kafka's are.

Not here: connections (peers.py), who answers (service.py), snapshots (snapshots.py). Kept true: whatever a
peer sends, the core is given nothing that it could not have got from a sound one: other clusters' requests,
requests for other partitions or other nodes and damaged batches are refused here.
"""

from __future__ import annotations

from typing import Any, Final

from millrace.kraft.commands.voters import EVERY_ADDRESS
from millrace.kraft.errors import UnknownRecord
from millrace.kraft.image.voter_records import change_of
from millrace.kraft.raft.log_view import Entry
from millrace.kraft.raft.messages import (
    NOBODY,
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    Fetch,
    FetchReply,
    Message,
    Reply,
    Vote,
    VoteReply,
)
from millrace.kraft.raft.voters import NO_DIRECTORY, Endpoint, VotersChange
from millrace.protocol.batches import HEADER_BYTES, BatchHeader, is_intact
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.messages import begin_quorum_epoch as begin
from millrace.protocol.messages import end_quorum_epoch as end
from millrace.protocol.messages import fetch, vote
from millrace.protocol.primitives import Buffer

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"
PARTITION: Final = 0
FETCH_BYTES_MAX: Final = 8 << 20
# That anybody may say. An epoch that is followed by none would be the last for good: nobody could be elected.
EPOCH_MAX: Final = (1 << 31) - (1 << 16)
WITH_TOPIC_ID: Final = 13  # of Fetch: topics are named by id from here on
WITH_PRE_VOTE: Final = 2  # of Vote
WITH_STATE: Final = 15  # of Fetch: the replica says who it is in a structure of its own
# What a member says where it cannot answer for the log; the leader that it knows stands beside it.
OF_EPOCHS: Final = frozenset(
    {ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER}
)


Place = tuple[str, int]  # host and port


@dataclass(frozen=True, slots=True)
class Member:
    """Who speaks. `max_wait_ms`: how long a leader may keep a fetch that finds nothing. `endpoints`: where it
    is reached, the one that others of the quorum use first."""

    cluster_id: str
    node_id: int
    directory_id: bytes
    max_wait_ms: int = 500
    endpoints: tuple[Endpoint, ...] = ()


def request_of(message: Message, member: Member) -> Any:
    """The request that carries `message`, in the newest version of its API."""
    match message:
        case Vote():
            asked = vote.VoteRequestPartitionData(
                PARTITION,
                message.epoch,
                message.source,
                message.directory_id,
                message.target_directory,
                last_offset_epoch=message.last_epoch,
                last_offset=message.end,
                pre_vote=message.is_pre_vote,
            )
            topics = [vote.VoteRequestTopicData(TOPIC, [asked])]
            return vote.VoteRequest(member.cluster_id, message.target, topics)
        case BeginEpoch():
            begun = begin.BeginQuorumEpochRequestPartitionData(
                PARTITION, message.target_directory, message.source, message.epoch
            )
            begun_topics = [begin.BeginQuorumEpochRequestTopicData(TOPIC, [begun])]
            places = [begin.LeaderEndpoint(*endpoint) for endpoint in member.endpoints]
            return begin.BeginQuorumEpochRequest(member.cluster_id, message.target, begun_topics, places)
        case EndEpoch():
            directories = message.directories or (NO_DIRECTORY,) * len(message.preferred)
            candidates = [end.ReplicaInfo(*one) for one in zip(message.preferred, directories, strict=True)]
            ended = end.EndQuorumEpochRequestPartitionData(
                PARTITION, message.source, message.epoch, list(message.preferred), candidates
            )
            ended_topics = [end.EndQuorumEpochRequestTopicData(TOPIC, [ended])]
            ended_places = [end.LeaderEndpoint(*endpoint) for endpoint in member.endpoints]
            return end.EndQuorumEpochRequest(member.cluster_id, ended_topics, ended_places)
        case Fetch():
            return fetch_request_of(message, member)
    raise AssertionError(f"not a request: {message}")


def fetch_request_of(message: Fetch, member: Member) -> fetch.FetchRequest:
    asked = fetch.FetchPartition(
        PARTITION,
        message.epoch,
        message.offset,
        message.last_epoch,
        partition_max_bytes=FETCH_BYTES_MAX,
        replica_directory_id=message.directory_id,
        high_watermark=message.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=member.cluster_id,
        replica_id=-1,
        replica_state=fetch.ReplicaState(message.source),
        max_wait_ms=member.max_wait_ms,
        max_bytes=FETCH_BYTES_MAX,
        topics=[fetch.FetchTopic(topic_id=TOPIC_ID, partitions=[asked])],
    )


def for_version(request: Any, version: int) -> Any:
    """The request as an older peer takes it. Raises WireError for what that version cannot say."""
    if isinstance(request, vote.VoteRequest) and version < WITH_PRE_VOTE:
        if request.topics[0].partitions[0].pre_vote:
            raise WireError(f"Vote v{version} knows no pre-vote")
    elif isinstance(request, fetch.FetchRequest):
        if version < WITH_TOPIC_ID:
            request.topics[0].topic = TOPIC
        if version < WITH_STATE:
            request.replica_id = request.replica_state.replica_id
            request.replica_state = fetch.NOT_A_REPLICA
    return request


def message_of(request: Any, member: Member) -> Message:
    """What a peer says. Raises KafkaError with the code that the whole request is refused with:
    INCONSISTENT_CLUSTER_ID, INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION."""
    check_cluster(request.cluster_id, member)
    match request:
        case vote.VoteRequest():
            asked = only(request.topics, "topic_name", "partition_index")
            check_voter(request.voter_id, member)
            return Vote(
                replica(asked.replica_id, member),
                member.node_id,
                epoch(asked.replica_epoch),
                asked.last_offset_epoch,
                asked.last_offset,
                asked.pre_vote,
                asked.replica_directory_id,
                asked.voter_directory_id,
            )
        case begin.BeginQuorumEpochRequest():
            begun = only(request.topics, "topic_name", "partition_index")
            check_voter(request.voter_id, member)
            leader = replica(begun.leader_id, member)
            return BeginEpoch(leader, member.node_id, epoch(begun.leader_epoch), begun.voter_directory_id)
        case end.EndQuorumEpochRequest():
            ended = only(request.topics, "topic_name", "partition_index")
            candidates = [info.candidate_id for info in ended.preferred_candidates]
            preferred = tuple(candidates or ended.preferred_successors)
            return EndEpoch(
                replica(ended.leader_id, member), member.node_id, epoch(ended.leader_epoch), preferred
            )
        case fetch.FetchRequest():
            return fetch_message_of(request, member)
    raise AssertionError(f"not a request of the quorum: {request}")


def fetch_message_of(request: fetch.FetchRequest, member: Member) -> Fetch:
    """Raises KafkaError, as `message_of`."""
    for topic in request.topics:
        if topic.topic_id == TOPIC_ID:
            topic.topic = TOPIC
    asked = only(request.topics, "topic", "partition")
    replica_id = max(request.replica_id, request.replica_state.replica_id)
    if asked.fetch_offset < 0 or asked.last_fetched_epoch < 0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"offset {asked.fetch_offset}, epoch {asked.last_fetched_epoch}"
        )
    return Fetch(
        replica(replica_id, member),
        member.node_id,
        epoch(asked.current_leader_epoch),
        asked.fetch_offset,
        asked.last_fetched_epoch,
        asked.high_watermark,
        asked.replica_directory_id,
    )


def response_of(request: Any, message: Message, reply: Reply) -> Any:
    """The answer to `request`, which was understood as `message`."""
    if isinstance(reply, FetchReply):
        return fetch_response_of(request, message, reply)
    code = int(ErrorCode.FENCED_LEADER_EPOCH if reply.epoch > message.epoch else ErrorCode.NONE)
    if isinstance(reply, VoteReply | BeginEpochReply) and reply.is_wrong_key:
        code = int(ErrorCode.INVALID_VOTER_KEY)
    answer = PARTITION, code, reply.leader, reply.epoch
    match reply:
        case VoteReply():
            granted = vote.VoteResponsePartitionData(*answer, reply.is_granted)
            return vote.VoteResponse(topics=[vote.VoteResponseTopicData(TOPIC, [granted])])
        case BeginEpochReply():
            begun = begin.BeginQuorumEpochResponsePartitionData(*answer)
            return begin.BeginQuorumEpochResponse(
                topics=[begin.BeginQuorumEpochResponseTopicData(TOPIC, [begun])]
            )
    ended = end.EndQuorumEpochResponsePartitionData(*answer)
    return end.EndQuorumEpochResponse(topics=[end.EndQuorumEpochResponseTopicData(TOPIC, [ended])])


def fetch_response_of(
    request: fetch.FetchRequest, message: Message, reply: FetchReply
) -> fetch.FetchResponse:
    part = fetch.PartitionData(
        PARTITION,
        int(fetch_code(message, reply)),
        reply.high_watermark,
        log_start_offset=0,
        current_leader=fetch.LeaderIdAndEpoch(reply.leader, reply.epoch),
    )
    if reply.diverging is not None:
        part.diverging_epoch = fetch.EpochEndOffset(*reply.diverging)
    if reply.snapshot is not None:
        part.snapshot_id = fetch.SnapshotId(*reply.snapshot)
    part.records = tuple(entry.payload for entry in reply.entries)
    asked = request.topics[0]
    return fetch.FetchResponse(responses=[fetch.FetchableTopicResponse(asked.topic, asked.topic_id, [part])])


def fetch_code(message: Message, reply: FetchReply) -> ErrorCode:
    if reply.leader == reply.source:
        return ErrorCode.NONE
    if reply.epoch != message.epoch:
        is_behind = message.epoch < reply.epoch
        return ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


def refusal_of(request: Any, code: int) -> Any:
    """The answer to a request that is refused as a whole."""
    match request:
        case vote.VoteRequest():
            return vote.VoteResponse(code)
        case begin.BeginQuorumEpochRequest():
            return begin.BeginQuorumEpochResponse(code)
        case end.EndQuorumEpochRequest():
            return end.EndQuorumEpochResponse(code)
    return fetch.FetchResponse(error_code=code)


def reply_of(message: Message, response: Any) -> Reply | None:
    """What the peer answers to `message`; None where it has nothing to tell (an epoch's end is told, not
    asked). Raises KafkaError with what the peer refuses it with, WireError for an answer that is none."""
    if response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
        text = "it is of another cluster: give all of them the same cluster.id"
        raise KafkaError(response.error_code, text)
    if response.error_code:
        raise KafkaError(response.error_code, f"{type(response).__name__} of {message.target}")
    reply = _reply_of(message, response)
    if reply is not None and reply.epoch > EPOCH_MAX:
        raise WireError(f"node {message.target} says that this is epoch {reply.epoch}")
    return reply


def _reply_of(message: Message, response: Any) -> Reply | None:
    if isinstance(response, fetch.FetchResponse):
        assert isinstance(message, Fetch)
        return fetch_reply_of(message, response)
    answer = answered(response.topics)
    peer = message.target, message.source, answer.leader_epoch, answer.leader_id
    if isinstance(response, vote.VoteResponse):
        assert isinstance(message, Vote)
        is_wrong_key = answer.error_code == ErrorCode.INVALID_VOTER_KEY
        return VoteReply(*peer, answer.vote_granted, message.is_pre_vote, is_wrong_key)
    if answer.error_code == ErrorCode.INVALID_VOTER_KEY:
        raise KafkaError(answer.error_code, f"node {message.target} has another directory than the voter")
    return BeginEpochReply(*peer) if isinstance(message, BeginEpoch) else None


def places_in(response: Any) -> dict[int, Place]:
    """Where nodes are, as a peer says beside its answer."""
    told = response.node_endpoints
    return {one.node_id: (one.host, one.port) for one in told if one.host not in EVERY_ADDRESS}


def leader_answering(response: Any) -> int:
    """Who leads, where the answer to a fetch is the leader's own; else NOBODY."""
    if not isinstance(response, fetch.FetchResponse) or response.error_code or len(response.responses) != 1:
        return NOBODY
    parts = response.responses[0].partitions
    is_own = len(parts) == 1 and not parts[0].error_code
    return parts[0].current_leader.leader_id if is_own else NOBODY


def leader_place(request: begin.BeginQuorumEpochRequest, listener: str) -> Place | None:
    """Where a leader that makes itself known is reached; by its listener of this name where it has one. None
    where it does not say, as an earlier release does not that listens on every address."""
    told = [one for one in request.leader_endpoints if one.host not in EVERY_ADDRESS]
    named = sorted(told, key=lambda one: one.name != listener)
    return (named[0].host, named[0].port) if named else None


def name_leader(response: Any, leader_id: int, place: Place | None) -> Any:
    """The same response, which says where the leader is."""
    if place is not None and leader_id >= 0:
        kind = fetch.NodeEndpoint if isinstance(response, fetch.FetchResponse) else vote.NodeEndpoint
        response.node_endpoints = [kind(leader_id, *place)]
    return response


def fetch_reply_of(message: Fetch, response: fetch.FetchResponse) -> FetchReply:
    """Raises WireError for batches that do not follow, for what would take back what is committed, and for an
    answer without an epoch."""
    part = answered(response.responses)
    leader = part.current_leader
    if leader.leader_epoch < 0:
        raise WireError("a fetch is answered without an epoch")
    reply = FetchReply(
        message.target,
        message.source,
        leader.leader_epoch,
        leader.leader_id,
        message.offset,
        message.last_epoch,
        message.offset,
        part.high_watermark,
    )
    if part.error_code:
        reply.leader = leader.leader_id if leader.leader_id != message.target else NOBODY
    elif part.diverging_epoch.end_offset >= 0:
        reply.diverging = part.diverging_epoch.epoch, part.diverging_epoch.end_offset
        check_committed(message, part.diverging_epoch.end_offset)
    elif part.snapshot_id.end_offset >= 0:
        reply.snapshot = part.snapshot_id.end_offset, part.snapshot_id.epoch
        check_committed(message, part.snapshot_id.end_offset)
    else:
        reply.entries = entries_of(part.records or b"", message, reply.epoch)
        reply.end = reply.entries[-1].end if reply.entries else message.offset
    return reply


def check_committed(message: Fetch, end: int) -> None:
    """Raises WireError where a log that ends at `end` cannot hold what is committed here."""
    if end < message.high_watermark:
        committed = f"{message.high_watermark} is committed here"
        raise WireError(
            f"a log that ends at {end}, and {committed}: who leads knows another past, and nothing of it is "
            "taken. It is of another quorum, or its log directory (log.dirs) was put back to an older state: "
            "stop such controllers, and start them with the newest directory that they had, or an empty one"
        )


def entries_of(records: Buffer, message: Fetch, epoch_max: int) -> list[Entry]:
    """The whole batches of an answer. One that is cut off at the end is left out: a peer may answer with so
    many bytes. Raises WireError where they do not follow the log that was asked for, or are damaged."""
    view, position = memoryview(records), 0
    offset, last_epoch = message.offset, message.last_epoch
    entries: list[Entry] = []
    while len(view) - position >= HEADER_BYTES:
        header = BatchHeader(view, position)
        batch = view[position : position + header.size_bytes] if header.size_bytes > 0 else view[:0]
        if header.magic == 2 and HEADER_BYTES <= header.size_bytes > len(batch):
            break
        if not is_intact(batch, header):
            raise WireError(f"the batch at offset {offset} is damaged")
        is_next = header.base_offset == offset and header.last_offset_delta >= 0
        if not is_next or not last_epoch <= header.leader_epoch <= epoch_max:
            raise WireError(
                f"a batch of offset {header.base_offset}, epoch {header.leader_epoch} follows offset "
                f"{offset}, epoch {last_epoch}"
            )
        count = header.last_offset_delta + 1
        change = voters_change(batch) if header.is_control else None
        entries.append(Entry(offset, count, header.leader_epoch, bytes(batch), header.is_control, change))
        position += header.size_bytes
        offset, last_epoch = offset + count, header.leader_epoch
    return entries


def voters_change(batch: memoryview) -> VotersChange | None:
    """Raises WireError."""
    try:
        return change_of(batch)
    except UnknownRecord as error:
        raise WireError(str(error)) from error


def only(topics: list[Any], name: str, index: str) -> Any:
    """The one partition that a request is about. Raises KafkaError INVALID_REQUEST,
    UNKNOWN_TOPIC_OR_PARTITION."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the metadata log has one partition")
    found = topics[0].partitions[0]
    if getattr(topics[0], name) != TOPIC or getattr(found, index) != PARTITION:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"only {TOPIC}-{PARTITION} is here")
    return found


def answered(topics: list[Any]) -> Any:
    """The one partition that is answered. Raises WireError where it is not one."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise WireError("an answer about another number of partitions than the one that was asked for")
    return topics[0].partitions[0]


def check_cluster(cluster_id: str | None, member: Member) -> None:
    """Raises KafkaError INCONSISTENT_CLUSTER_ID where another cluster's node asks."""
    if cluster_id is not None and cluster_id != member.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"cluster {cluster_id} asks, and this is {member.cluster_id}"
        )


def check_voter(voter_id: int, member: Member) -> None:
    """Raises KafkaError INVALID_VOTER_KEY where another node is meant."""
    if voter_id not in (-1, member.node_id):
        raise KafkaError(
            ErrorCode.INVALID_VOTER_KEY, f"voter {voter_id} is asked, and this is {member.node_id}"
        )


def replica(node_id: int, member: Member) -> int:
    """Who asks. Raises KafkaError INVALID_REQUEST where that is nobody, or this node itself."""
    if node_id < 0 or node_id == member.node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"node {node_id} asks node {member.node_id}")
    return node_id


def epoch(number: int) -> int:
    """The asker's. Raises KafkaError INVALID_REQUEST where it is none, or one of the last that there are."""
    if not 0 <= number <= EPOCH_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"epoch {number}")
    return number
