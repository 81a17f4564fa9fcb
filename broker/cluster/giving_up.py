"""Gives up what only the write-ahead log of a broker that is gone holds: an unclean election (KIP-460) for
each partition that waits for it. Not here: which ones wait (view.py), what the controller refuses
(kraft/commands/partitions.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.broker.cluster.client import ClusterClient
from millrace.broker.cluster.view import Partition
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class GivenUp:
    """One partition: `is_done`, and which records are given up, or why none are."""

    partition: Partition
    is_done: bool
    text: str


async def give_up(client: ClusterClient, partitions: Sequence[Partition]) -> list[GivenUp]:
    """Raises KafkaError where all is refused, AnswerLost where nobody knows whether it was done,
    Unavailable."""
    if not partitions:
        return []
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    asked = [TopicPartitions(topic, indexes) for topic, indexes in topics.items()]
    response = await client.change(ElectLeadersRequest(UNCLEAN, asked))
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), "the election was refused")
    return [
        GivenUp((topic.topic, one.partition_id), not one.error_code, one.error_message or "")
        for topic in response.replica_election_results
        for one in topic.partition_result
    ]
