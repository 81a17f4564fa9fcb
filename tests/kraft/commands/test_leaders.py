"""What becomes of partitions and write-ahead logs of brokers that are gone, or want to end; and
reassignments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.broker.identity.unknown_streams import NAMED_MAX, range_text
from millrace.broker.quorum.others_end import ending
from millrace.kraft.commands.brokers import decide_fence_brokers, decide_register_broker
from millrace.kraft.commands.failovers import REASON_CHARS_MAX, waiting_nodes
from millrace.kraft.commands.leaders import Settled, decide_settle
from millrace.kraft.commands.wals import UNSEEN_IDS
from millrace.kraft.tables.failovers import NOBODY, Failover
from millrace.kraft.tables.wals import NodeWal, WalState, wal_record
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.begin_failover import BeginFailoverRequest, BeginFailoverResponse
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.close_streams import CloseStreamsRequest, StreamClose
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.protocol.messages.end_failover import EndFailoverRequest
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.register_node_wal import RegisterNodeWalRequest
from millrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from millrace.protocol.metadata_records import BrokerRegistrationChangeRecord, FeatureLevelRecord
from millrace.s3stream.ids import StreamId, StreamRange
from tests.kraft.check import check_image
from tests.kraft.tables.build import create, topic, topic_id
from tests.kraft.test_replay import CLUSTER, Machine, snapshot_of

NONE, REFUSED = ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE


class Cluster(Machine):
    """Brokers 1 to `count`, all there; topic `t` with two partitions a broker, all of them open."""

    def __init__(self, count: int = 3, level: int = 2) -> None:
        super().__init__()
        self.commit([FeatureLevelRecord("millrace.version", level)])
        self.epochs = {1: self.epoch}
        self.gone: list[int] = []
        self.opened: dict[int, tuple[int, int]] = {}  # stream and epoch by partition
        for broker_id in range(2, count + 1):
            self.register(broker_id)
        create(self, topic("t", partitions=2 * count))
        for index in range(2 * count):
            self.open(index)

    def register(self, broker_id: int, incarnation: int = 0) -> ErrorCode:
        request = BrokerRegistrationRequest(broker_id, CLUSTER, incarnation.to_bytes(16, "big"))
        response = self.do(request)
        if not response.error_code:
            self.epochs[broker_id] = response.broker_epoch
            self.gone = [one for one in self.gone if one != broker_id]
        return ErrorCode(response.error_code)

    def leader(self, index: int) -> int:
        state = self.image.topics.partition(topic_id(self, "t"), index)
        assert state is not None
        assert state.replicas == state.isr == (state.leader,)
        return state.leader

    def led(self) -> dict[int, list[int]]:
        """Partitions by leader."""
        found: dict[int, list[int]] = {}
        for index in range(self.image.topics.partition_count):
            found.setdefault(self.leader(index), []).append(index)
        return found

    def open(self, index: int) -> ErrorCode:
        leader, state = self.leader(index), self.image.topics.partition(topic_id(self, "t"), index)
        assert state is not None
        response = self.do(
            OpenPartitionStreamsRequest(
                leader, self.epochs[leader], topic_id(self, "t"), index, state.leader_epoch, [0]
            )
        )
        if not response.error_code:
            self.opened[index] = response.streams[0].stream_id, response.streams[0].epoch
        return ErrorCode(response.error_code)

    def close(self, broker_id: int, epoch: int | None = None) -> None:
        """All streams that are open at the broker."""
        streams = [StreamClose(s.stream_id, s.epoch) for s in self.image.streams.open_on(broker_id)]
        epoch = self.epochs[broker_id] if epoch is None else epoch
        response = self.do(CloseStreamsRequest(broker_id, epoch, streams))
        assert {stream.error_code for stream in response.streams} == {0}, response

    def fence(self, broker_id: int) -> None:
        """Its session is over."""
        self.commit(list(decide_fence_brokers(self.image, [broker_id])))
        self.gone.append(broker_id)

    @property
    def alive(self) -> list[int]:
        return [broker_id for broker_id in self.epochs if broker_id not in self.gone]

    def settle(self) -> int:
        """How many partitions go to others."""
        decision = decide_settle(self.image, self.alive)
        self.commit(decision.records)
        check_image(self.image)
        again = decide_settle(self.image, self.alive)
        assert not again.records, "what is settled is settled"
        settled: Settled = decision.response
        return settled.moved_count

    def begin(self, broker_id: int, node_id: int, incarnation: int = 77) -> BeginFailoverResponse:
        response: BeginFailoverResponse = self.do(
            BeginFailoverRequest(broker_id, self.epochs[broker_id], node_id, incarnation.to_bytes(16, "big"))
        )
        return response

    def end(self, broker_id: int, node_id: int, why: str = "") -> ErrorCode:
        request = EndFailoverRequest(broker_id, self.epochs[broker_id], node_id, not why, why)
        return ErrorCode(self.do(request).error_code)

    def beat(self, broker_id: int, *, want_shut_down: bool = False) -> BrokerHeartbeatResponse:
        self.gone = [one for one in self.gone if one != broker_id]
        response: BrokerHeartbeatResponse = self.do(
            BrokerHeartbeatRequest(
                broker_id, self.epochs[broker_id], self.image.offset, want_shut_down=want_shut_down
            )
        )
        return response

    def elect(self, kind: int, indexes: list[int] | None) -> dict[int, tuple[ErrorCode, str]]:
        asked = None if indexes is None else [TopicPartitions("t", indexes)]
        response = self.do(ElectLeadersRequest(kind, asked))
        check_image(self.image)
        return {
            one.partition_id: (ErrorCode(one.error_code), one.error_message or "")
            for topic in response.replica_election_results
            for one in topic.partition_result
        }

    def failover(self, node_id: int) -> Failover | None:
        assert snapshot_of(self.image) == self.image
        return self.image.failovers.get(node_id)


def test_a_broker_that_is_gone_is_recovered_by_another_and_its_partitions_go_to_all() -> None:
    cluster = Cluster()
    before = cluster.led()
    cluster.fence(3)
    assert cluster.settle() == 0
    assert cluster.failover(3) == Failover(3, 1, (), "")
    assert cluster.led() == before, "they wait for what is in the log"
    began = cluster.begin(1, 3)
    assert cluster.image.brokers.by_id[3].epoch == began.node_epoch > cluster.epochs[3]
    assert cluster.image.brokers.by_id[3].is_fenced
    assert cluster.end(1, 3) is REFUSED, "streams are open"
    cluster.close(3, began.node_epoch)
    assert cluster.end(1, 3) is NONE
    assert cluster.failover(3) is None
    assert cluster.settle() == 2
    assert {broker_id: len(indexes) for broker_id, indexes in cluster.led().items()} == {1: 3, 2: 3}
    assert [cluster.open(index) for index in before[3]] == [NONE, NONE]
    assert cluster.end(1, 3) is NONE, "asked again"


def test_several_that_are_gone_are_shared_out() -> None:
    """Those gone at once, and one more beside recoveries that are under way."""
    cluster = Cluster(6)
    for node_id in (3, 4, 5):
        cluster.fence(node_id)
    cluster.settle()
    assert [(one.node_id, one.by_node) for one in cluster.image.failovers] == [(3, 1), (4, 2), (5, 6)]
    cluster.begin(1, 3)
    cluster.fence(6)
    cluster.settle()
    by_node = {one.node_id: one.by_node for one in cluster.image.failovers}
    assert by_node == {3: 1, 4: 2, 5: 1, 6: 2}, "two each"


def test_nothing_is_taken_from_who_is_recovered_by_another() -> None:
    cluster = Cluster()
    cluster.fence(3)
    cluster.settle()
    began = cluster.begin(1, 3)
    assert cluster.begin(1, 3) == began, "asked again"
    refused = cluster.do(CloseStreamsRequest(3, cluster.epochs[3], []))
    assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert cluster.beat(3).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert cluster.begin(2, 3).error_code == REFUSED, "another is at work"


def test_who_fails_while_it_recovers_is_followed_by_another() -> None:
    cluster = Cluster()
    cluster.fence(3)
    cluster.settle()
    first = cluster.begin(1, 3)
    cluster.fence(1)
    cluster.settle()
    assert [*cluster.image.failovers] == [Failover(1, 2, (), ""), Failover(3, 2, (), "")]
    assert cluster.begin(1, 3).error_code == REFUSED, "it is fenced"
    second = cluster.begin(2, 3, incarnation=78)
    assert second.node_epoch > first.node_epoch
    assert cluster.end(1, 3) is REFUSED


def test_why_a_log_cannot_be_recovered_is_told_to_its_end() -> None:
    """What can be done about it stands behind the streams that are named."""
    cluster = Cluster()
    cluster.fence(3)
    cluster.settle()
    cluster.begin(1, 3)
    last = 2**40
    lost = [StreamRange(StreamId(last + number), last, last + 1) for number in range(NAMED_MAX)]
    named = ", ".join(range_text(one, 1000) for one in lost)
    why = f"it holds records of streams: {named}; start broker 1000 with wal.lost.accept=true"
    assert cluster.end(1, 3, why) is NONE
    failover = cluster.failover(3)
    assert failover is not None
    assert failover.reason == why
    cluster.begin(1, 3, incarnation=78)
    cluster.end(1, 3, why * 10)
    failover = cluster.failover(3)
    assert failover is not None
    assert failover.reason == (why * 10)[:REASON_CHARS_MAX]


def test_who_ends_while_it_recovers_is_followed_by_another() -> None:
    """It has given that up before it says so, and leads on for as long as it hands over; nor is it waited for
    by the broker that comes back."""
    cluster = Cluster()
    cluster.fence(3)
    cluster.settle()
    first = cluster.begin(1, 3)
    cluster.beat(1, want_shut_down=True)
    cluster.settle()
    assert cluster.failover(3) == Failover(3, 2, (), "")
    assert cluster.begin(2, 3, incarnation=78).node_epoch > first.node_epoch
    assert cluster.end(1, 3) is REFUSED
    cluster.beat(2, want_shut_down=True)
    assert cluster.register(3, incarnation=9) is NONE


def test_who_cannot_reach_the_log_is_not_asked_again_before_it_starts_anew() -> None:
    cluster = Cluster()
    cluster.fence(3)
    cluster.settle()
    assert cluster.end(1, 3, "no such file") is NONE
    cluster.settle()
    assert cluster.failover(3) == Failover(3, 2, (cluster.epochs[1],), "no such file")
    assert cluster.end(2, 3, "no such device") is NONE
    cluster.settle()
    failover = cluster.failover(3)
    assert failover == Failover(3, NOBODY, (cluster.epochs[1], cluster.epochs[2]), "no such device")
    assert len(cluster.led()[3]) == 2, "they wait"
    cluster.register(1, incarnation=5)
    cluster.settle()
    assert cluster.failover(3) == Failover(3, 1, failover.unable, "no such device")


def test_who_can_reach_the_log_at_last_may_begin_by_itself() -> None:
    cluster = Cluster(2)
    cluster.fence(2)
    cluster.settle()
    cluster.end(1, 2, "not yet")
    assert cluster.begin(1, 2).error_code == NONE
    failover = cluster.failover(2)
    assert failover is not None
    assert failover.by_node == 1
    cluster.settle()
    assert cluster.failover(2) == failover


def test_a_broker_does_not_register_while_another_recovers_its_log() -> None:
    """It asks again once that has ended, well or not, or is gone itself."""
    cluster = Cluster()
    cluster.fence(3)
    cluster.settle()
    taken = ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert cluster.register(3, incarnation=9) is taken, "broker 1 is asked to, and may begin now"
    began = cluster.begin(1, 3)
    assert cluster.register(3, incarnation=9) is taken
    assert cluster.image.brokers.by_id[3].epoch == began.node_epoch
    assert cluster.settle() == 0, "one that was refused has no session"
    cluster.close(3, began.node_epoch)
    assert cluster.end(1, 3) is NONE
    assert cluster.register(3, incarnation=9) is NONE
    assert cluster.register(3, incarnation=9) is NONE, "asked again"


def test_a_broker_that_comes_back_recovers_its_own_log() -> None:
    """Started anew where nobody is at work, or only silent for a while: the failover is over, and the
    partitions stay its own."""
    cluster = Cluster()
    cluster.fence(3)
    cluster.settle()
    cluster.begin(1, 3)
    cluster.fence(1)
    assert cluster.register(3, incarnation=9) is NONE
    assert cluster.failover(3) is None
    assert not cluster.beat(1).is_fenced
    assert cluster.begin(1, 3).error_code == REFUSED
    cluster.fence(2)
    cluster.settle()
    assert cluster.failover(2) is not None
    assert not cluster.beat(2).is_fenced
    assert cluster.settle() == 0
    assert not cluster.image.failovers
    assert len(cluster.led()) == 3


def test_a_broker_that_starts_is_left_alone() -> None:
    """Killed and started again within its session: it is fenced until it serves, and recovers its own log."""
    cluster = Cluster()
    cluster.commit([BrokerRegistrationChangeRecord(3, cluster.epochs[3], fenced=1)])
    assert cluster.settle() == 0
    cluster.close(3)
    assert cluster.settle() == 0
    assert len(cluster.led()[3]) == 2


def test_partitions_of_a_broker_that_left_nothing_open_go_at_once() -> None:
    cluster = Cluster()
    cluster.close(3)
    cluster.fence(3)
    assert cluster.settle() == 2
    assert sorted(cluster.led()) == [1, 2]


def test_where_nobody_else_is_there_partitions_stay_until_somebody_is() -> None:
    cluster = Cluster(2)
    for broker_id in (1, 2):
        cluster.close(broker_id)
        cluster.fence(broker_id)
    assert cluster.settle() == 0
    cluster.register(2, incarnation=3)
    cluster.beat(2)
    assert cluster.settle() == 2
    assert sorted(cluster.led()) == [2]


def test_before_the_level_of_failovers_partitions_wait_for_their_broker() -> None:
    """A node of the release before could not read the record."""
    cluster = Cluster(level=1)
    cluster.fence(3)
    assert cluster.settle() == 0
    cluster.commit([FeatureLevelRecord("millrace.version", 2)])
    cluster.settle()
    assert cluster.failover(3) == Failover(3, 1, (), "")


def test_a_broker_that_shuts_down_hands_over_first() -> None:
    cluster = Cluster()
    first = cluster.beat(3, want_shut_down=True)
    assert (first.should_shut_down, first.is_fenced) == (False, False)
    assert cluster.settle() == 2
    moved = [index for index in range(6) if index not in (0, 1, 3, 4)]
    assert cluster.open(moved[0]) is ErrorCode.LEADER_NOT_AVAILABLE, "not closed yet"
    assert not cluster.beat(3, want_shut_down=True).should_shut_down
    assert ending(cluster.image, own_id=1) == [3]
    cluster.close(3)
    assert ending(cluster.image, own_id=1) == []
    assert cluster.open(moved[0]) is NONE
    last = cluster.beat(3, want_shut_down=True)
    assert (last.should_shut_down, last.is_fenced) == (True, True)
    assert cluster.beat(3, want_shut_down=True).should_shut_down, "asked again"


def test_one_that_fails_while_it_shuts_down_is_recovered() -> None:
    """Its partitions are led by others already, which wait for what is in its log."""
    cluster = Cluster()
    cluster.beat(3, want_shut_down=True)
    cluster.settle()
    cluster.fence(3)
    cluster.settle()
    assert cluster.failover(3) == Failover(3, 1, (), "")


def test_the_last_broker_may_shut_down_at_once() -> None:
    """And controllers that end wait until it has closed its streams."""
    cluster = Cluster(1)
    assert cluster.beat(1, want_shut_down=True).should_shut_down
    assert ending(cluster.image, own_id=7) == [1]
    assert ending(cluster.image, own_id=1) == []
    cluster.close(1)
    assert ending(cluster.image, own_id=7) == []


def test_a_broker_whose_log_is_needed_is_not_unregistered() -> None:
    cluster = Cluster()
    cluster.fence(3)
    assert cluster.do(UnregisterBrokerRequest(3)).error_code == ErrorCode.INVALID_REQUEST
    cluster.close(3)
    assert cluster.do(UnregisterBrokerRequest(3)).error_code == NONE
    assert cluster.settle() == 2


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([2], NONE),
        ([1], NONE),
        ([3], ErrorCode.INVALID_REPLICA_ASSIGNMENT),  # fenced
        ([1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_reassignment_names_the_next_leader(replicas: list[int], code: ErrorCode) -> None:
    """Which opens the partition when the one before has closed it."""
    cluster = Cluster()
    cluster.fence(3)
    (index, *_) = cluster.led()[1]
    asked = [ReassignableTopic("t", [ReassignablePartition(index, replicas)] * 2)]
    response = cluster.do(AlterPartitionReassignmentsRequest(topics=asked))
    assert [ErrorCode(one.error_code) for one in response.responses[0].partitions] == [code] * 2
    state = cluster.image.topics.partition(topic_id(cluster, "t"), index)
    assert state is not None
    is_moved = code is NONE and replicas == [2]
    assert (cluster.leader(index), state.leader_epoch) == ((2, 1) if is_moved else (1, 0))
    if is_moved:
        assert cluster.open(index) is ErrorCode.LEADER_NOT_AVAILABLE
        cluster.close(1)
        assert cluster.open(index) is NONE


class Elections(Cluster):
    """Broker 3 of three is gone, and its log is nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.led()
        self.fence(3)
        self.settle()
        for broker_id in (1, 2):
            self.end(broker_id, 3, "not here")
            self.settle()


def test_an_unclean_election_gives_up_a_log_that_nobody_can_recover() -> None:
    """Streams end where they are committed, in a new leader epoch; one that comes back has none open."""
    cluster = Elections()
    assert cluster.failover(3) == Failover(3, NOBODY, (cluster.epochs[1], cluster.epochs[2]), "not here")
    first, second = cluster.before[3]
    other = cluster.before[1][0]
    epoch = cluster.opened[first][1]
    preferred = cluster.elect(0, [first, other])
    assert preferred[first][0] is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert preferred[other][0] is ErrorCode.ELECTION_NOT_NEEDED
    elected = cluster.elect(1, [first, other, first, 99])
    assert elected[other][0] is ErrorCode.ELECTION_NOT_NEEDED
    assert elected[99][0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.leader(first) in (1, 2)
    assert cluster.open(first) is NONE
    assert cluster.opened[first][1] > epoch
    assert [one.partition for one in cluster.image.streams.open_on(3)] == [second]
    assert cluster.failover(3) is not None, "there is more in its log"
    assert cluster.elect(1, None) == {
        second: (NONE, "records from offset 0 on that only the log of broker 3 holds are given up")
    }
    cluster.settle()
    assert cluster.failover(3) is None
    assert cluster.elect(1, None) == {}
    cluster.register(3, 9)
    assert not list(cluster.image.streams.open_on(3))


def test_no_election_gives_up_a_log_that_is_recovered_or_may_be() -> None:
    unavailable = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster = Cluster()
    (first, *_), count = cluster.led()[3], len(cluster.image.streams)
    cluster.fence(3)
    elect = ElectLeadersRequest(1, [TopicPartitions("t", [first])])

    def told() -> tuple[ErrorCode, str]:
        ((one,),) = [topic.partition_result for topic in cluster.do(elect).replica_election_results]
        return ErrorCode(one.error_code), one.error_message or ""

    assert told()[0] is unavailable, "its session is over, and nothing is decided yet"
    cluster.settle()
    assert told() == (unavailable, "Broker 1 recovers the write-ahead log of broker 3: wait for it.")
    assert not cluster.beat(3).is_fenced, "only silent for a while"
    cluster.settle()
    assert told()[0] is ErrorCode.ELECTION_NOT_NEEDED, "it is back, and recovers its own log"
    assert len(list(cluster.image.streams.open_on(3))) == 2
    assert len(cluster.image.streams) == count


def test_no_election_gives_up_a_log_that_somebody_is_about_to_be_asked_for() -> None:
    """Who was asked said that it cannot, or is gone, or a broker has just come: who is asked next is decided
    a moment later, and nobody else has looked at the log yet."""
    unavailable = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster = Cluster()
    (first, *_) = cluster.led()[3]
    cluster.fence(3)
    cluster.settle()
    assert cluster.end(1, 3, "not here") is NONE
    told = unavailable, "Broker 2 is asked next for the write-ahead log of broker 3: wait for it."
    assert cluster.elect(1, [first])[first] == told
    assert len(waiting_nodes(cluster.image)) == 0
    cluster.settle()
    cluster.fence(2)
    cluster.register(1, 9)
    told = unavailable, "Broker 1 is asked next for the write-ahead log of broker 3: wait for it."
    assert cluster.elect(1, [first])[first] == told
    cluster.settle()
    assert cluster.end(1, 3, "not here") is NONE
    assert len(waiting_nodes(cluster.image)) == 1
    assert cluster.elect(1, [first])[first][0] is NONE, "all that are there have looked"


def test_a_partition_that_was_moved_and_not_closed_is_given_up_too() -> None:
    """Its new leader cannot open it: the streams are open at the one that is gone."""
    cluster = Elections()
    (first, _) = cluster.before[3]
    moved = ReassignablePartition(first, [2])
    cluster.do(AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", [moved])]))
    assert (cluster.leader(first), cluster.open(first)) == (2, ErrorCode.LEADER_NOT_AVAILABLE)
    assert cluster.elect(1, [first])[first][0] is NONE
    assert (cluster.leader(first), cluster.open(first)) == (2, NONE)


def test_a_broker_that_is_its_own_quorum_fences_all_others_as_it_registers() -> None:
    """Once; in a cluster of several nobody is fenced by a registration. What they led with nothing open it
    leads, and what they logged it is to recover."""
    cluster = Cluster()
    cluster.close(3)
    request = BrokerRegistrationRequest(1, CLUSTER, b"\1" * 16)
    offset = cluster.image.offset
    assert len(decide_register_broker(cluster.image, request, CLUSTER, offset).records) == 1
    for count in (3, 1):
        decision = decide_register_broker(cluster.image, request, CLUSTER, offset, is_alone=True)
        assert len(decision.records) == count
        cluster.commit(decision.records)
    cluster.epochs = {1: offset}
    cluster.gone = [1, 2, 3]  # none has a session
    assert cluster.settle() == 2
    failover = cluster.failover(2)
    assert failover is not None
    assert failover.by_node == 1
    assert cluster.failover(3) is None


def test_a_broker_that_goes_on_without_others_takes_their_logs_for_later_ones() -> None:
    """A majority that is gone may have committed what is not known here: streams from the next id on may be
    in the others' logs, and ids above all that is known are given. Once, for a log that nobody was at."""
    cluster = Cluster(level=3)
    for node_id in (1, 2):
        made = RegisterNodeWalRequest(
            node_id, cluster.epochs[node_id], bytes([node_id]) * 16, "block", "x", 0
        )
        assert cluster.do(made).error_code == 0
    image, request = cluster.image, BrokerRegistrationRequest(1, CLUSTER, b"\1" * 16)
    decision = decide_register_broker(image, request, CLUSTER, image.offset, is_alone=True)
    cluster.commit(decision.records)
    check_image(cluster.image)
    own, other = (cluster.image.wals.last_written(node_id) for node_id in (1, 2))
    assert own is not None
    assert other is not None
    assert (own.state, other.state) == (WalState.ACTIVE, WalState.RECOVERING)
    assert other.unknown_from == image.streams.next_id
    now = cluster.image
    lifted = (now.streams.next_id, now.objects.next_id, now.producer_ids)
    assert lifted == tuple(
        UNSEEN_IDS + first for first in (image.streams.next_id, image.objects.next_id, image.producer_ids)
    )
    again = decide_register_broker(now, request, CLUSTER, now.offset, is_alone=True)
    assert len(again.records) == 1


def test_a_log_that_may_hold_what_nobody_knows_is_looked_at() -> None:
    """Though its broker left nothing open that is known. Its partitions go at once: what is not known can be
    given to none of them. Nobody is asked any more once it was looked at, or its broker is forgotten."""
    cluster = Cluster(level=3)
    wals = [
        NodeWal(3, bytes([number]) * 16, "block", "x", 1, b"i" * 16, 0, state, unknown)
        for number, state, unknown in ((1, WalState.RECOVERING, 9), (2, WalState.GIVEN_UP, 9))
    ]
    cluster.commit([wal_record(wal) for wal in wals])
    cluster.close(3)
    cluster.fence(3)
    assert cluster.settle() == 2
    assert cluster.failover(3) == Failover(3, 1, (), "")
    cluster.begin(1, 3)
    assert cluster.end(1, 3, "it holds what nobody knows") is NONE
    cluster.settle()
    assert cluster.image.failovers.get(3) is not None
    for now in (  # it was looked at; another one is written since
        replace(wals[0], state=WalState.ACTIVE, unknown_from=None),
        replace(wals[0], wal_id=bytes([3]) * 16, state=WalState.ACTIVE, unknown_from=None),
    ):
        looked = Cluster(level=3)
        looked.commit([wal_record(wal) for wal in (*wals, now)])
        looked.close(3)
        looked.fence(3)
        looked.settle()
        assert looked.failover(3) is None
