"""Decides DescribeQuorum: leader, voters and observers of the metadata log, as the leader's core knows them.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.kraft.commands.decision import Decision
from millrace.kraft.config import ControllerSettings
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.progress import Progress
from millrace.kraft.raft.roles import Leader
from millrace.kraft.raft.voters import NO_DIRECTORY, Replica
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.ids import uuid_bytes
from millrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)

TOPIC: Final = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class QuorumView:
    """What is asked: the core, and what the core does not know. `tick_ms` makes its ticks times."""

    raft: Raft
    settings: ControllerSettings
    directory_id: str
    tick_ms: int

    def decide(self, request: DescribeQuorumRequest, now_ms: int) -> Decision:
        """As in Kafka, a request that names anything beside the log's one partition has all refused."""
        named = [
            (topic.topic_name, [one.partition_index for one in topic.partitions]) for topic in request.topics
        ]
        is_known = named == [(TOPIC, [0])]
        response = DescribeQuorumResponse()
        for topic, indexes in named:
            partitions = [self._partition(now_ms) if is_known else _unknown(index) for index in indexes]
            response.topics.append(DescribeQuorumResponseTopicData(topic, partitions))
        own_id, known = self.settings.node_id, self.settings.voter_endpoints
        nodes = {voter: [Listener(*endpoint)] for voter, endpoint in known.items()}
        for voter in self.raft.voter_set.voters:
            if voter.endpoints:
                nodes[voter.node_id] = [Listener(*endpoint) for endpoint in voter.endpoints]
        nodes[own_id] = [Listener(*endpoint) for endpoint in self.settings.endpoints]
        response.nodes = [Node(node_id, listeners) for node_id, listeners in sorted(nodes.items())]
        return Decision(response)

    def _partition(self, now_ms: int) -> DescribeQuorumResponsePartitionData:
        role = self.raft.role
        if not isinstance(role, Leader):
            return DescribeQuorumResponsePartitionData(
                0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER), "Not the leader."
            )
        return DescribeQuorumResponsePartitionData(
            0,
            0,
            "",
            self.raft.node_id,
            role.epoch,
            self.raft.high_watermark,
            self._replicas(self._voters(role), now_ms),
            self._replicas(role.observers, now_ms),
        )

    def _voters(self, role: Leader) -> dict[Replica, Progress]:
        """With the directory that each votes with; at kraft.version 0 none but that of a quorum of one, who
        is its own."""
        known = self.raft.voter_set
        return {(voter, known.directory_of(voter)): progress for voter, progress in role.voters.items()}

    def _replicas(self, replicas: Mapping[Replica, Progress], now_ms: int) -> list[ReplicaState]:
        return [self._replica(key, replicas[key], now_ms) for key in sorted(replicas)]

    def _replica(self, key: Replica, progress: Progress, now_ms: int) -> ReplicaState:
        replica_id, directory = key
        if replica_id == self.raft.node_id and directory in (NO_DIRECTORY, self.raft.directory_id):
            is_alone = len(self.raft.voter_set.ids) == 1
            told = uuid_bytes(self.directory_id) if is_alone else directory
            return ReplicaState(replica_id, told, self.raft.log.end, now_ms, now_ms)

        def time_of(tick: int) -> int:
            return -1 if tick < 0 else now_ms - (self.raft.now - tick) * self.tick_ms

        times = time_of(progress.fetched_at), time_of(progress.caught_up_at)
        return ReplicaState(replica_id, directory, progress.end, *times)


def _unknown(index: int) -> DescribeQuorumResponsePartitionData:
    text = "This server does not host this topic-partition."
    return DescribeQuorumResponsePartitionData(index, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), text)
