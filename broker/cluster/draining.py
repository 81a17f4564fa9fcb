"""Drains brokers and lets them in again: the dynamic setting `cordoned.log.dirs` of a broker, by which it is
given no partitions where nobody names it (kraft/commands/takers.py). Where it is not set, what stands in the
broker's file counts.

Kafka's tools set the same (KIP-1066); it is metadata, and so outlives restarts of brokers and controllers. As
in Kafka a broker's own settings are asked of, and changed at, that broker. Not here: which partitions go
(moves.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from millrace.broker.cluster.client import ClusterClient
from millrace.kraft.commands.takers import CORDONED
from millrace.kraft.tables.configs import ResourceType
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.runtime.errors import Unavailable

EVERY_DIRECTORY: Final = "*"
SET, DELETE = 0, 1  # AlterableConfig.config_operation
LOOK_S: Final = 2.0  # for a broker to say whether it is drained


async def set_drained(client: ClusterClient, node_id: int, *, is_drained: bool) -> None:
    """Durable on return, and in force for every decision that follows. Raises KafkaError where it is refused,
    AnswerLost where nobody knows whether it was done, Unavailable where the broker is not reached."""
    change = AlterableConfig(CORDONED, SET if is_drained else DELETE, EVERY_DIRECTORY if is_drained else None)
    resource = AlterConfigsResource(ResourceType.BROKER, str(node_id), [change])
    response = await client.change_at(node_id, IncrementalAlterConfigsRequest([resource]))
    for one in response.responses:
        if one.error_code:
            raise KafkaError(ErrorCode(one.error_code), one.error_message or "the change was refused")


async def drained_of(client: ClusterClient, node_ids: Iterable[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Those of the brokers that say so, asked side by side; and those that do not answer within `LOOK_S`, of
    whom nobody knows."""
    asked = list(node_ids)
    answers = await asyncio.gather(*(_is_drained(client, node_id) for node_id in asked))
    found = dict(zip(asked, answers, strict=True))
    drained = frozenset(node_id for node_id, answer in found.items() if answer)
    return drained, frozenset(node_id for node_id, answer in found.items() if answer is None)


async def _is_drained(client: ClusterClient, node_id: int) -> bool | None:
    """None where it does not answer, or another broker does in its place, which refuses."""
    request = DescribeConfigsRequest([DescribeConfigsResource(ResourceType.BROKER, str(node_id), [CORDONED])])
    try:
        response = await client.ask_node(node_id, request, LOOK_S)
    except Unavailable:
        return None
    assert isinstance(response, DescribeConfigsResponse)
    if any(result.error_code for result in response.results):
        return None
    return any(
        one.name == CORDONED and bool((one.value or "").strip())
        for result in response.results
        for one in result.configs
    )
