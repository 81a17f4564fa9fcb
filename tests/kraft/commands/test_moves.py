"""Moves that wait for a broker that is gone: how they are told, taken back and counted."""

from __future__ import annotations

from millrace.kraft.commands.failovers import waiting_nodes
from millrace.kraft.commands.leaders import decide_settle
from millrace.kraft.commands.moves import waiting_partition_count
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.end_failover import EndFailoverRequest
from millrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from millrace.runtime.scheduling.yielding import run_to_end
from tests.kraft.check import check_image
from tests.kraft.commands.test_leaders import Cluster
from tests.kraft.tables.test_owed_ranges import Movers
from tests.kraft.test_replay import Machine, snapshot_of

NONE = ErrorCode.NONE
Told = dict[int, tuple[list[int], list[int], list[int]]]


def listed(machine: Machine, *topics: tuple[str, list[int]]) -> Told:
    """Replicas, those added and those removed, by partition of `t`; of all where no topic is named."""
    asked = [ListPartitionReassignmentsTopics(*one) for one in topics] or None
    response = machine.do(ListPartitionReassignmentsRequest(topics=asked))
    assert response.error_code == 0
    assert [topic.name for topic in response.topics] in ([], ["t"])
    named = [one.partition_index for topic in response.topics for one in topic.partitions]
    assert named == sorted(set(named))
    return {
        one.partition_index: (one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in response.topics
        for one in topic.partitions
    }


def moved(machine: Machine, index: int, replicas: list[int] | None) -> ErrorCode:
    asked = [ReassignableTopic("t", [ReassignablePartition(index, replicas)])]
    response = machine.do(AlterPartitionReassignmentsRequest(topics=asked))
    check_image(machine.image)
    assert snapshot_of(machine.image) == machine.image
    return ErrorCode(response.responses[0].partitions[0].error_code)


def waiting(machine: Machine) -> int:
    return run_to_end(waiting_partition_count(machine.image))


class Gone(Cluster):
    """Broker 3 of three is gone with all that it led, of which partition `index` was moved to broker 2
    before."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.other = (index for index in self.opened if self.leader(index) == 3)
        assert moved(self, self.index, [2]) is NONE
        self.fence(3)
        self.settle()

    def say_unable(self) -> None:
        """Whoever is asked."""
        for _ in range(2):
            failover = self.image.failovers.get(3)
            assert failover is not None
            assert self.end(failover.by_node, 3, "not here") is NONE
            self.settle()


def test_a_move_from_a_broker_that_is_gone_is_under_way() -> None:
    """Until its log is recovered; what that one leads itself is moved nowhere."""
    cluster = Gone()
    told: Told = {cluster.index: ([2, 3], [2], [3])}
    assert listed(cluster) == told
    assert listed(cluster, ("t", list(range(6))), ("no", [0])) == told
    assert listed(cluster, ("t", [cluster.index, cluster.index, 99, -1])) == told
    assert listed(cluster, ("t", [cluster.other])) == listed(cluster, ("t", [])) == {}
    by_node = cluster.image.failovers.get(3).by_node  # type: ignore[union-attr]
    epoch = cluster.begin(by_node, 3).node_epoch
    cluster.close(3, epoch)
    assert cluster.end(by_node, 3) is NONE
    assert listed(cluster) == {}
    assert cluster.open(cluster.index) is NONE


def test_a_move_between_brokers_that_are_there_is_not_told() -> None:
    """It takes milliseconds."""
    cluster = Cluster()
    index = cluster.led()[3][0]
    assert moved(cluster, index, [2]) is NONE
    assert listed(cluster) == {}
    assert moved(cluster, index, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_move_that_is_cancelled_goes_back_to_who_is_gone() -> None:
    """It waits for that one, and leads again once it is back; to cancel it twice is too late."""
    cluster = Gone()
    before = cluster.image.topics.partition(next(iter(cluster.image.topics)).topic_id, cluster.index)
    assert moved(cluster, cluster.index, None) is NONE
    after = cluster.image.topics.partition(next(iter(cluster.image.topics)).topic_id, cluster.index)
    assert before is not None
    assert after is not None
    assert (after.leader, after.replicas, after.isr) == (3, (3,), (3,))
    assert after.leader_epoch == before.leader_epoch + 1
    assert listed(cluster) == {}
    assert moved(cluster, cluster.index, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert moved(cluster, cluster.other, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert cluster.settle() == 0
    cluster.say_unable()
    assert cluster.register(3, incarnation=5) is NONE
    cluster.close(3)
    cluster.beat(3)
    assert cluster.leader(cluster.index) == 3
    assert cluster.open(cluster.index) is NONE


def test_what_is_cancelled_is_recovered_by_others_as_all_that_its_broker_led() -> None:
    cluster = Gone()
    assert moved(cluster, cluster.index, None) is NONE
    by_node = cluster.image.failovers.get(3).by_node  # type: ignore[union-attr]
    cluster.close(3, cluster.begin(by_node, 3).node_epoch)
    assert cluster.end(by_node, 3) is NONE
    assert cluster.settle() == 2
    assert cluster.open(cluster.index) is cluster.open(cluster.other) is NONE


def test_what_a_log_owes_of_a_partition_that_is_led_is_a_move_that_cannot_be_taken_back() -> None:
    """The next one leads, and nobody is added; what it took would be lost."""
    movers = Movers()
    assert movers.seal(10) is NONE
    assert movers.move(2) is NONE
    assert listed(movers) == {}, "who owes is there"
    movers.fence(1)
    movers.commit(decide_settle(movers.image, [2, 3]).records)
    assert listed(movers) == {0: ([2, 1], [], [1])}
    assert moved(movers, 0, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert movers.state.leader == 2
    for _ in range(2):
        (failover,) = movers.image.failovers
        who = failover.by_node
        assert movers.do(EndFailoverRequest(who, movers.epochs[who], 1, False, "not here")).error_code == 0
        movers.commit(decide_settle(movers.image, [2, 3]).records)
    assert waiting_nodes(movers.image) == {1}
    assert waiting(movers) == 0, "it takes writes"


def test_what_waits_is_counted_once_nobody_can_recover_it() -> None:
    """Each partition once, the one that was moved with those that are led there; and no more once they are
    given up."""
    cluster = Gone()
    assert waiting(cluster) == 0, "somebody is asked"
    cluster.say_unable()
    assert waiting(cluster) == 2
    assert cluster.elect(1, [cluster.index])[cluster.index][0] is NONE
    assert waiting(cluster) == 1
    assert cluster.elect(1, None)[cluster.other][0] is NONE
    cluster.settle()
    assert waiting(cluster) == 0
