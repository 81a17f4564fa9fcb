"""An image's commands without a log: see Machine in test_replay.py."""

from __future__ import annotations

from typing import Any

from millrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from tests.kraft.test_replay import Machine


def topic(
    name: str,
    partitions: int = -1,
    factor: int = -1,
    assignments: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> CreatableTopic:
    """Underscores in config names are dots."""
    return CreatableTopic(
        name,
        partitions,
        factor,
        [CreatableReplicaAssignment(index, brokers) for index, brokers in (assignments or {}).items()],
        [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()],
    )


def create(
    machine: Machine, *topics: CreatableTopic, validate_only: bool = False
) -> list[CreatableTopicResult]:
    results: list[CreatableTopicResult] = machine.do(
        CreateTopicsRequest(list(topics), validate_only=validate_only)
    ).topics
    return results


def topic_id(machine: Machine, name: str) -> bytes:
    found = machine.image.topics.by_name(name)
    assert found is not None
    return found.topic_id


def open_streams(machine: Machine, name: str, partition: int = 0, *roles: int) -> list[int]:
    request = OpenPartitionStreamsRequest(
        1, machine.epoch, topic_id(machine, name), partition, 0, list(roles or (1,))
    )
    response: Any = machine.do(request)
    assert response.error_code == 0, response
    return [stream.stream_id for stream in response.streams]


def prepare(machine: Machine, count: int = 1, ttl_ms: int = 1_000) -> int:
    response: Any = machine.do(PrepareObjectsRequest(1, machine.epoch, count, ttl_ms))
    assert response.error_code == 0, response
    first: int = response.first_object_id
    return first
