"""Decides ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments. Pure.

A partition has one replica, its leader; so the preferred leader always leads. An unclean election (KIP-460)
gives a partition to another broker whose leader is gone and whose write-ahead log nobody can recover: what
only that log holds is given up. Of one that has its leader it gives up what logs of earlier owners that are
gone owe of it, which keeps nobody from leading. A
reassignment names the next leader: it is that at once, and opens the partition when the one before has closed
it. One is told as under way that waits for the log of a broker that is gone (moves.py); to cancel it gives
the partition back to that one. Not here: what becomes of partitions of brokers that are gone (leaders.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from millrace.kraft.commands.decision import Decision
from millrace.kraft.commands.failovers import is_at_work, untried
from millrace.kraft.commands.leaders import leader_change
from millrace.kraft.commands.moves import Key, holder_of, move_of, partitions_in_logs_of
from millrace.kraft.commands.owed_ranges import is_of_data, lost_record, owed_of_partition
from millrace.kraft.commands.takers import LOOKED_PER_CHUNK, count_led, takers_of
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.kraft.tables.streams import StreamState, stream_record
from millrace.kraft.tables.topics import PartitionState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages import alter_partition_reassignments as alter
from millrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from millrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from millrace.protocol.metadata_records import PartitionChangeRecord
from millrace.runtime.scheduling.yielding import Yielding, run_to_end
from millrace.s3stream.ids import StreamRole

PREFERRED, UNCLEAN = 0, 1  # ElectLeadersRequest.election_type
PARTITIONS_PER_CHUNK: Final = 300  # two or three milliseconds


def decide_elect_leaders(image: MetadataImage, request: ElectLeadersRequest) -> Decision:
    return run_to_end(decide_elect_leaders_yielding(image, request))


def decide_elect_leaders_yielding(image: MetadataImage, request: ElectLeadersRequest) -> Yielding[Decision]:
    """Where all are meant, those that need no election are not named. An unclean one that is done says from
    which offset on records are given up. Raises KafkaError INVALID_REQUEST for an unknown election type."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    is_unclean = request.election_type == UNCLEAN
    load, _ = (yield from count_led(image, takers_of(image))) if is_unclean else ({}, [])
    response, election = ElectLeadersResponse(), Election(image, is_unclean, load)
    if request.topic_partitions is None:
        asked: Iterable[tuple[str, Sequence[int]]] = (
            (topic.name, range(len(topic.partitions))) for topic in image.topics
        )
    else:
        asked = ((one.topic, one.partitions) for one in request.topic_partitions)
    place = 0
    for topics_count, (topic, indexes) in enumerate(asked, 1):
        result = ReplicaElectionResult(topic, [])
        if topics_count % LOOKED_PER_CHUNK == 0:
            yield
        for index in indexes:
            answer = election.of(topic, index)
            if request.topic_partitions is not None or answer.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                result.partition_result.append(answer)
            place += 1
            if place % PARTITIONS_PER_CHUNK == 0:
                yield
        if result.partition_result or request.topic_partitions is not None:
            response.replica_election_results.append(result)
    return Decision(response, election.records)


class Election:
    """The elections of one request, and the records that make them so. `load`: partitions by broker that may
    lead."""

    def __init__(self, image: MetadataImage, is_unclean: bool, load: dict[int, int]) -> None:
        self._image = image
        self._is_unclean = is_unclean
        self._load = load
        self._elected: set[tuple[bytes, int]] = set()
        self.records: list[Any] = []

    def of(self, topic: str, index: int) -> PartitionResult:
        state = find(self._image, topic, index)
        if state is None:
            is_there = self._image.topics.by_name(topic) is not None
            text = f"No such partition as {topic}-{index}" if is_there else f"No such topic as {topic}"
            return PartitionResult(index, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), text)
        topic_id = self._image.topics.names[topic].topic_id
        streams = [one for one in self._image.streams.of_partition(topic_id, index) if one.is_open]
        # One node has them, but on restored metadata, which may have each where its log goes on.
        holders = dict.fromkeys(one.node_id for one in streams) or {state.leader: None}
        gone = [one for one in holders if not self._is_there(one)]
        is_led = self._is_there(state.leader) and not gone
        owed = [
            one
            for one in owed_of_partition(self._image, topic_id, index)
            if self._is_unclean and not self._is_there(one.node_id) and (is_led or one.node_id in holders)
        ]
        if (is_led and not owed) or (topic_id, index) in self._elected:
            text = "Leader election not needed for topic partition."
            return PartitionResult(index, int(ErrorCode.ELECTION_NOT_NEEDED), text)
        if not self._is_unclean:
            text = "The preferred leader was not available."
            return PartitionResult(index, int(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), text)
        waited = [] if is_led else gone or list(holders)
        for broker_id in dict.fromkeys([*waited, *(one.node_id for one in owed)]):
            why_not = self._why_not(broker_id)
            if why_not:
                return PartitionResult(index, int(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE), why_not)
        self._elected.add((topic_id, index))
        texts = [self._lose(one) for one in owed]
        if not is_led:
            texts.append(self._give(state, topic_id, index, [one for one in streams if one.node_id in gone]))
        elif owed:  # consumers that check epochs look at what they were told
            self.records.append(PartitionChangeRecord(index, topic_id, leader=state.leader))
        return PartitionResult(index, 0, "; ".join(filter(None, texts)) or None)

    def _is_there(self, broker_id: int) -> bool:
        broker = self._image.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    def _why_not(self, holder: int) -> str:
        """Why what the log of this broker holds is not given up; "" where it may be."""
        failover = self._image.failovers.get(holder)
        if failover is None:
            return f"Broker {holder} starts, or its partitions go to others in a moment: nothing is given up."
        if is_at_work(self._image, failover):
            return f"Broker {failover.by_node} recovers the write-ahead log of broker {holder}: wait for it."
        following = untried(self._image, failover)
        if following is not None:
            who = f"Broker {following.broker_id} is asked next for the write-ahead log of broker {holder}"
            return f"{who}: wait for it."
        return "" if self._load else "No broker is there to lead."

    def _lose(self, owed: OwedRange) -> str:
        """What an earlier owner of the partition owes is given up, whoever leads it."""
        self.records.append(lost_record(owed))
        if not is_of_data(self._image, owed):
            return ""
        return (
            f"records from offset {owed.start} to {owed.end - 1} that only the log of broker "
            f"{owed.node_id} holds are given up"
        )

    def _give(
        self, state: PartitionState, topic_id: bytes, index: int, streams: Sequence[StreamState]
    ) -> str:
        """`streams`: open at brokers that are gone. They are closed where they are committed; who leads
        fewest opens them, or who was to."""
        self.records += [stream_record(stream._replace(is_open=False)) for stream in streams]
        if not self._is_there(state.leader):
            least = min(self._load, key=lambda broker_id: (self._load[broker_id], broker_id))
            self._load[least] += 1
            self.records.append(leader_change(topic_id, index, self._image.brokers.by_id[least]))
        data = self._image.streams.of_role(topic_id, index, StreamRole.DATA)
        if data is not None and data not in streams:
            return ""  # it is closed, or in the log of one that is there
        end = 0 if data is None else data.end
        gone = streams[0].node_id if streams else state.leader
        return f"records from offset {end} on that only the log of broker {gone} holds are given up"


def decide_alter_partition_reassignments(
    image: MetadataImage, request: alter.AlterPartitionReassignmentsRequest
) -> Decision:
    return run_to_end(decide_alter_partition_reassignments_yielding(image, request))


def decide_alter_partition_reassignments_yielding(
    image: MetadataImage, request: alter.AlterPartitionReassignmentsRequest
) -> Yielding[Decision]:
    response = alter.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    moved: dict[tuple[str, int], PartitionChangeRecord] = {}
    place = 0
    for topics_count, topic in enumerate(request.topics, 1):
        if topics_count % LOOKED_PER_CHUNK == 0:
            yield
        result = alter.ReassignableTopicResponse(topic.name, [])
        response.responses.append(result)
        for asked in topic.partitions:
            answer, record = reassignment(image, topic.name, asked)
            result.partitions.append(answer)
            if record is not None and (topic.name, asked.partition_index) not in moved:
                moved[topic.name, asked.partition_index] = record
            place += 1
            if place % PARTITIONS_PER_CHUNK == 0:
                yield
    return Decision(response, list(moved.values()))


def reassignment(
    image: MetadataImage, topic: str, asked: alter.ReassignablePartition
) -> tuple[alter.ReassignablePartitionResponse, PartitionChangeRecord | None]:
    """The answer, and what changes. What is refused has its error in the answer; none is raised."""
    result = alter.ReassignablePartitionResponse(asked.partition_index, 0, None)
    try:
        state = find(image, topic, asked.partition_index)
        if state is None:
            is_there = image.topics.by_name(topic) is not None
            named = f"partition {topic}:{asked.partition_index}" if is_there else f"a topic named {topic}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find {named}.")
        topic_id = image.topics.names[topic].topic_id
        if asked.replicas is None:
            former = check_cancelled(image, state, topic_id, asked.partition_index)
            return result, leader_change(topic_id, asked.partition_index, former)
        target = check_target(image, state, asked.replicas)
        if target.broker_id != state.leader:
            return result, leader_change(topic_id, asked.partition_index, target)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message or None
    return result, None


def check_cancelled(image: MetadataImage, state: PartitionState, topic_id: bytes, index: int) -> Broker:
    """Who led before, and is to lead again once it is back, or its log is recovered. Raises KafkaError
    NO_REASSIGNMENT_IN_PROGRESS where nothing is under way, INVALID_REPLICA_ASSIGNMENT where the next one
    leads: what that has taken would be lost."""
    move = move_of(image, topic_id, index, state)
    if move is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    holder = holder_of(image, topic_id, index)
    if holder is None:
        who = ", ".join(map(str, move.former))
        text = f"Broker {move.target} leads: back at broker {who} what it took would be lost."
        if not move.is_led:
            text = f"No one broker has all of it: the logs of brokers {who} hold parts."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return image.brokers.by_id[holder]


def check_target(image: MetadataImage, state: PartitionState, replicas: Iterable[int]) -> Broker:
    """Who is to lead. Raises KafkaError INVALID_REPLICA_ASSIGNMENT for anything but one broker that is there,
    or the one that leads."""
    target = list(replicas)
    why_not = fault_of(image, sorted(target))
    if why_not:
        text = f"The manual partition assignment includes {why_not}."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if len(target) > 1:
        text = "A partition has one replica, whose broker leads it: name one."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    broker = image.brokers.by_id[target[0]]
    if not broker.is_usable and target != [state.leader]:
        text = f"Replica assignment contains broker {broker.broker_id} that is fenced, or shutting down."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return broker


def fault_of(image: MetadataImage, ordered: Sequence[int]) -> str:
    """Why these ids, in ascending order, are no brokers' that a partition could have, in Kafka's words; ""
    where they are. Ends at the first fault, however many are named."""
    if not ordered:
        return "an empty replica list"
    before: int | None = None
    for broker_id in ordered:
        if image.brokers.get(broker_id) is None:
            return f"broker {broker_id}, but no such broker is registered"
        if broker_id == before:
            return f"the broker {broker_id} more than once"
        before = broker_id
    return ""


def decide_list_partition_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> Decision:
    return run_to_end(decide_list_partition_reassignments_yielding(image, request))


def decide_list_partition_reassignments_yielding(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> Yielding[Decision]:
    """What there is no such partition of is not named, as what is not under way."""
    response = ListPartitionReassignmentsResponse(error_message=None)
    if request.topics is None:
        gone = [failover.node_id for failover in image.failovers]
        keys = yield from partitions_in_logs_of(image, gone)
    else:
        keys = []
        for topic in request.topics:
            known = image.topics.by_name(topic.name)
            if known is not None:
                keys += [(known.topic_id, index) for index in topic.partition_indexes]
    by_topic: dict[bytes, OngoingTopicReassignment] = {}
    for number, key in enumerate(dict.fromkeys(keys), 1):
        if number % PARTITIONS_PER_CHUNK == 0:
            yield
        found = _under_way(image, key)
        if found is not None:
            name = image.topics.by_id(key[0]).name  # type: ignore[union-attr]
            by_topic.setdefault(key[0], OngoingTopicReassignment(name, [])).partitions.append(found)
    response.topics = list(by_topic.values())
    return Decision(response)


def _under_way(image: MetadataImage, key: Key) -> OngoingPartitionReassignment | None:
    state = image.topics.partition(*key)
    move = None if state is None else move_of(image, *key, state)
    if move is None:
        return None
    added = [] if move.is_led else [move.target]
    return OngoingPartitionReassignment(key[1], [move.target, *move.former], added, [*move.former])


def find(image: MetadataImage, topic: str, index: int) -> PartitionState | None:
    found = image.topics.by_name(topic)
    return None if found is None else image.topics.partition(found.topic_id, index)
