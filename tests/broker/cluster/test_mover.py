"""How partitions are moved group by group, while the cluster changes."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.cluster.mover import NotServed, move_all
from millrace.broker.cluster.moves import Move
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from millrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millrace.runtime.errors import Unavailable
from tests.kraft.build import run
from tests.patience import PATIENCE_S


class Cluster:
    """Moves at once what it has, and refuses the others with the code. Whoever takes them answers as leader
    when it is asked for the `looks`th time, but for what is deleted by then."""

    def __init__(self, missing: str, code: ErrorCode, looks: int = 1, deleted: str = "") -> None:
        self.leaders: dict[tuple[str, int], int] = {}
        self._deleted = deleted
        self._missing, self._code = missing, code
        self._looks, self._looked = looks, 0

    async def ask(self, request: AlterPartitionReassignmentsRequest) -> Any:
        response = AlterPartitionReassignmentsResponse()
        for topic in request.topics:
            code = int(self._code) if topic.name == self._missing else 0
            parts = [ReassignablePartitionResponse(one.partition_index, code) for one in topic.partitions]
            response.responses.append(ReassignableTopicResponse(topic.name, parts))
            for one in topic.partitions:
                if not code and one.replicas:
                    self.leaders[topic.name, one.partition_index] = one.replicas[0]
        return response

    async def ask_node(self, node_id: int, request: ListOffsetsRequest) -> Any:
        self._looked += 1
        if self._looked == self._looks and self._deleted:
            self._missing, self._code = self._deleted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self.leaders = {one: leader for one, leader in self.leaders.items() if one[0] != self._deleted}
        response = ListOffsetsResponse()
        for topic in request.topics:
            parts = []
            for one in topic.partitions:
                is_led = self.leaders.get((topic.name, one.partition_index)) == node_id
                is_led = is_led and self._looked >= self._looks
                is_gone = topic.name == self._missing
                not_here = (
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_gone else ErrorCode.NOT_LEADER_OR_FOLLOWER
                )
                code = 0 if is_led else int(not_here)
                parts.append(ListOffsetsPartitionResponse(one.partition_index, code))
            response.topics.append(ListOffsetsTopicResponse(topic.name, parts))
        return response


class Passing(Cluster):
    """Broker 2 serves nothing, and what it was given is told to be led by 3 in the epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__("", ErrorCode.NONE)
        self._epoch = epoch

    async def ask(self, request: AlterPartitionReassignmentsRequest | MetadataRequest) -> Any:
        if isinstance(request, AlterPartitionReassignmentsRequest):
            return await super().ask(request)
        assert request.topics is not None
        topics = [MetadataResponseTopic(0, one.name, partitions=[self._led_by_3()]) for one in request.topics]
        return MetadataResponse(topics=topics)

    def _led_by_3(self) -> MetadataResponsePartition:
        return MetadataResponsePartition(0, 0, 3, self._epoch, isr_nodes=[3])

    async def ask_node(self, node_id: int, request: ListOffsetsRequest) -> Any:
        if node_id == 2:
            raise Unavailable("it is gone")
        return await super().ask_node(node_id, request)


MOVES = [Move("a", 0, 2), Move("b", 0, 3), Move("b", 1, 2), Move("c", 0, 2)]


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_a_topic_that_is_deleted_meanwhile_keeps_no_other_from_moving(at_once: int) -> None:
    """Nor is waited for where it would have gone."""

    async def main() -> None:
        cluster, told = Cluster("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), list[int]()
        await move_all(cluster, MOVES, at_once, 0.5, told.append)  # type: ignore[arg-type]
        assert cluster.leaders == {("a", 0): 2, ("c", 0): 2}
        assert told[-1] == len(MOVES)

    run(main())


@pytest.mark.parametrize("at_once", [2, 4])
def test_nor_does_one_that_is_deleted_while_it_is_waited_for(at_once: int) -> None:
    async def main() -> None:
        cluster, told = Cluster("", ErrorCode.NONE, looks=3, deleted="b"), list[int]()
        await move_all(cluster, MOVES, at_once, 0.5, told.append)  # type: ignore[arg-type]
        assert cluster.leaders == {("a", 0): 2, ("c", 0): 2}
        assert told[-1] == len(MOVES)

    run(main())


def test_the_next_go_once_these_are_served_where_they_went() -> None:
    async def main() -> None:
        cluster, told = Cluster("", ErrorCode.NONE, looks=3), list[int]()
        await move_all(cluster, MOVES[:1], 1, 0.5, told.append)  # type: ignore[arg-type]
        assert told == [1]
        cluster = Cluster("", ErrorCode.NONE, looks=1_000)
        with pytest.raises(NotServed) as late:
            await move_all(cluster, MOVES, 2, 0.2, told.append)  # type: ignore[arg-type]
        assert late.value.moves == tuple(MOVES[:2])
        assert (list(cluster.leaders), told) == ([("a", 0), ("b", 0)], [1])

    run(main())


def test_what_went_on_to_another_broker_is_not_waited_for() -> None:
    """Its broker died, or somebody gave it away: the next go. Who leads in no later epoch than the move's may
    be the leader before, as told by a broker that does not know of the move yet."""

    async def main() -> None:
        told = list[int]()
        moves, epochs = [Move("a", 0, 2), Move("b", 0, 3)], {("a", 0): 5, ("b", 0): 5}
        passed = await move_all(Passing(7), moves, 1, PATIENCE_S, told.append, epochs=epochs)  # type: ignore[arg-type]
        assert (passed, told) == (moves[:1], [1, 2])
        with pytest.raises(NotServed):
            await move_all(Passing(6), moves, 1, 1.5, told.append, epochs=epochs)  # type: ignore[arg-type]

    run(main())


def test_what_is_refused_ends_it() -> None:
    async def main() -> None:
        cluster = Cluster("b", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        with pytest.raises(KafkaError, match="b-0"):
            await move_all(cluster, MOVES, 1, 0.5, lambda count: None)  # type: ignore[arg-type]
        assert cluster.leaders == {("a", 0): 2}

    run(main())
