"""Decides ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments. Pure.

A partition has one replica, its leader; so the preferred leader always leads. A reassignment names the next
leader: it is that at once, and opens the partition when the one before has closed it, so that none is ever
under way. Not here: what becomes of partitions of brokers that are gone (leaders.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.kraft.commands.create_topics import REPLICAS_SHOWN_MAX
from millrace.kraft.commands.decision import Decision
from millrace.kraft.commands.leaders import leader_change
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker
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
)
from millrace.protocol.metadata_records import PartitionChangeRecord
from millrace.runtime.scheduling.yielding import Yielding, run_to_end

PARTITIONS_PER_CHUNK: Final = 300  # two or three milliseconds


def decide_elect_leaders(image: MetadataImage, request: ElectLeadersRequest) -> Decision:
    return run_to_end(decide_elect_leaders_yielding(image, request))


def decide_elect_leaders_yielding(image: MetadataImage, request: ElectLeadersRequest) -> Yielding[Decision]:
    """Where all are meant, those that need no election are not named. Raises KafkaError INVALID_REQUEST for
    an unknown election type."""
    if request.election_type not in (0, 1):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    response = ElectLeadersResponse()
    place = 0
    for asked in request.topic_partitions or ():
        result = ReplicaElectionResult(asked.topic, [])
        response.replica_election_results.append(result)
        for partition in asked.partitions:
            result.partition_result.append(election(image, asked.topic, partition))
            place += 1
            if place % PARTITIONS_PER_CHUNK == 0:
                yield
    return Decision(response)


def election(image: MetadataImage, topic: str, index: int) -> PartitionResult:
    if find(image, topic, index) is None:
        is_there = image.topics.by_name(topic) is not None
        text = f"No such partition as {topic}-{index}" if is_there else f"No such topic as {topic}"
        return PartitionResult(index, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), text)
    text = "Leader election not needed for topic partition."
    return PartitionResult(index, int(ErrorCode.ELECTION_NOT_NEEDED), text)


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
    for topic in request.topics:
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
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}, or partition."
            )
        if asked.replicas is None:
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
            )
        target = check_target(image, state, asked.replicas)
        if target.broker_id != state.leader:
            topic_id = image.topics.names[topic].topic_id
            return result, leader_change(topic_id, asked.partition_index, target)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
    return result, None


def check_target(image: MetadataImage, state: PartitionState, replicas: Iterable[int]) -> Broker:
    """Who is to lead. Raises KafkaError INVALID_REPLICA_ASSIGNMENT for anything but one broker that is there,
    or the one that leads."""
    target = list(replicas)
    if not target or len(set(target)) != len(target):
        text = f"The replica list {target[:REPLICAS_SHOWN_MAX]} is empty or has duplicates."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    for broker_id in target:
        if image.brokers.get(broker_id) is None:
            text = f"Replica assignment contains broker {broker_id} that is not registered."
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    if len(target) > 1:
        text = "A partition has one replica, whose broker leads it: name one."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    broker = image.brokers.by_id[target[0]]
    if not broker.is_usable and target != [state.leader]:
        text = f"Replica assignment contains broker {broker.broker_id} that is fenced, or shutting down."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    return broker


def decide_list_partition_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> Decision:
    return Decision(ListPartitionReassignmentsResponse(error_message=None))


def find(image: MetadataImage, topic: str, index: int) -> PartitionState | None:
    found = image.topics.by_name(topic)
    return None if found is None else image.topics.partition(found.topic_id, index)
