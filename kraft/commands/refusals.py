"""How a command is refused: the reply that says so in the place where a client of that request looks for it.
Pure.

Most replies have one error for all; those of several topics or resources name each with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millrace.protocol.apis import api_of
from millrace.protocol.errors import KafkaError


def refuse(request: Any, error: KafkaError) -> Any:
    special = SPECIAL.get(type(request).__name__)
    return special(request, error) if special is not None else refuse_whole(request, error)


def refuse_whole(request: Any, error: KafkaError) -> Any:
    response = api_of(request).response_type
    if "error_message" in response.__dataclass_fields__:
        return response(error_code=error.code, error_message=error.message)
    return response(error_code=error.code)


def refuse_create_topics(request: Any, error: KafkaError) -> Any:
    from millrace.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse

    results = [
        CreatableTopicResult(t.name, error_code=error.code, error_message=error.message)
        for t in request.topics
    ]
    return CreateTopicsResponse(topics=results)


def refuse_create_partitions(request: Any, error: KafkaError) -> Any:
    from millrace.protocol.messages.create_partitions import (
        CreatePartitionsResponse,
        CreatePartitionsTopicResult,
    )

    results = [CreatePartitionsTopicResult(topic.name, error.code, error.message) for topic in request.topics]
    return CreatePartitionsResponse(results=results)


def refuse_delete_topics(request: Any, error: KafkaError) -> Any:
    from millrace.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse

    named = [(state.name, state.topic_id) for state in request.topics]
    named += [(name, bytes(16)) for name in request.topic_names]
    return DeleteTopicsResponse(
        responses=[DeletableTopicResult(*one, error.code, error.message) for one in named]
    )


def refuse_alter_configs(request: Any, error: KafkaError) -> Any:
    from millrace.protocol.messages.alter_configs import AlterConfigsResourceResponse, AlterConfigsResponse

    said = error.code, error.message
    resources = request.resources
    return AlterConfigsResponse(
        responses=[AlterConfigsResourceResponse(*said, r.resource_type, r.resource_name) for r in resources]
    )


def refuse_incremental(request: Any, error: KafkaError) -> Any:
    from millrace.protocol.messages.incremental_alter_configs import (
        AlterConfigsResourceResponse,
        IncrementalAlterConfigsResponse,
    )

    said = error.code, error.message
    resources = request.resources
    return IncrementalAlterConfigsResponse(
        responses=[AlterConfigsResourceResponse(*said, r.resource_type, r.resource_name) for r in resources]
    )


def refuse_elect_leaders(request: Any, error: KafkaError) -> Any:
    from millrace.protocol.messages.elect_leaders import (
        ElectLeadersResponse,
        PartitionResult,
        ReplicaElectionResult,
    )

    said = error.code, error.message
    results = [
        ReplicaElectionResult(asked.topic, [PartitionResult(index, *said) for index in asked.partitions])
        for asked in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)


def refuse_reassignments(request: Any, error: KafkaError) -> Any:
    from millrace.protocol.messages import alter_partition_reassignments as alter

    said = error.code, error.message
    responses = [
        alter.ReassignableTopicResponse(
            topic.name,
            [alter.ReassignablePartitionResponse(one.partition_index, *said) for one in topic.partitions],
        )
        for topic in request.topics
    ]
    return alter.AlterPartitionReassignmentsResponse(
        error_code=error.code, error_message=error.message, responses=responses
    )


SPECIAL: Final[dict[str, Callable[[Any, KafkaError], Any]]] = {
    "AlterConfigsRequest": refuse_alter_configs,
    "AlterPartitionReassignmentsRequest": refuse_reassignments,
    "CreatePartitionsRequest": refuse_create_partitions,
    "CreateTopicsRequest": refuse_create_topics,
    "DeleteTopicsRequest": refuse_delete_topics,
    "ElectLeadersRequest": refuse_elect_leaders,
    "IncrementalAlterConfigsRequest": refuse_incremental,
}
