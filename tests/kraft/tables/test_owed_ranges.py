"""Ranges that an earlier owner's write-ahead log owes: sealed, committed in any order of owners, trimmed,
deleted, compacted around, given up; and who may do what meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.kraft.commands.brokers import decide_fence_brokers
from millrace.kraft.commands.leaders import decide_settle
from millrace.kraft.tables.owed_ranges import OWED_RANGES_MAX, OwedRange, owed_range_record
from millrace.kraft.tables.streams import stream_record
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.accept_wal_loss import AcceptWalLossRequest
from millrace.protocol.messages.begin_failover import BeginFailoverRequest
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.commit_compaction import CommitCompactionRequest, CompactedRange
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange, UploadedStreamObject
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.protocol.messages.end_failover import EndFailoverRequest
from millrace.protocol.messages.get_opening_streams import GetOpeningStreamsRequest
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.messages.register_node_wal import RegisterNodeWalRequest
from millrace.protocol.messages.seal_streams import SealStreamsRequest, StreamSeal
from millrace.protocol.messages.trim_streams import StreamTrim, TrimStreamsRequest
from millrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from millrace.protocol.metadata_records import FeatureLevelRecord, PartitionChangeRecord
from millrace.s3stream.ids import LOST_RANGE, NO_OBJECT, OWED_RANGE, StreamId
from tests.kraft.check import check_image, holding
from tests.kraft.tables.build import create, topic, topic_id
from tests.kraft.test_replay import CLUSTER, Machine, snapshot_of

LEVEL = 3
META, DATA = 0, 1


class Movers(Machine):
    """Brokers 1 to 3; topic `t` with one partition, whose data stream moves between them."""

    def __init__(self, level: int = LEVEL, roles: tuple[int, ...] = (DATA,)) -> None:
        super().__init__()
        self.commit([FeatureLevelRecord("millrace.version", level)])
        self.epochs = {1: self.epoch}
        self.roles = list(roles)
        for broker_id in (2, 3):
            self.register(broker_id)
        create(self, topic("t", partitions=1))
        self.owner = 1
        self.move(1)
        self.stream_id = StreamId(self.image.streams.of_partition(topic_id(self, "t"), 0)[0].stream_id)

    def register(self, broker_id: int, incarnation: int = 0) -> None:
        request = BrokerRegistrationRequest(broker_id, CLUSTER, incarnation.to_bytes(16, "big"))
        self.epochs[broker_id] = self.do(request).broker_epoch

    @property
    def stream(self) -> Any:
        return self.image.streams.by_id[self.stream_id]

    @property
    def state(self) -> Any:
        return self.image.topics.partition(topic_id(self, "t"), 0)

    @property
    def owed(self) -> list[tuple[int, int, int]]:
        return [(one.node_id, one.start, one.end) for one in self.image.streams.owed]

    def move(self, target: int) -> ErrorCode:
        """The partition is the target's, who opens it if it may."""
        change = PartitionChangeRecord(0, topic_id(self, "t"), leader=target, isr=[target], replicas=[target])
        self.commit([change])
        request = OpenPartitionStreamsRequest(
            target, self.epochs[target], topic_id(self, "t"), 0, self.state.leader_epoch, self.roles
        )
        response = self.do(request)
        if not response.error_code:
            self.owner = target
        return ErrorCode(response.error_code)

    def seal(
        self, end: int, node_id: int | None = None, epoch: int | None = None, start: int = 0
    ) -> ErrorCode:
        node_id = self.stream.node_id if node_id is None else node_id
        seal = StreamSeal(self.stream_id, self.stream.epoch if epoch is None else epoch, start, end)
        response = self.do(SealStreamsRequest(node_id, self.epochs[node_id], [seal]))
        return ErrorCode(response.error_code or response.streams[0].error_code)

    def prepare(self, node_id: int) -> int:
        answer = self.do(PrepareObjectsRequest(node_id, self.epochs[node_id], 1, 100_000))
        assert answer.error_code == 0, answer
        first: int = answer.first_object_id
        return first

    def upload(self, node_id: int, *spans: tuple[int, int], is_own: bool = False) -> tuple[ErrorCode, int]:
        object_id = self.prepare(node_id)
        request = CommitUploadRequest(node_id, self.epochs[node_id], NO_OBJECT if is_own else object_id, 10)
        if is_own:
            request.stream_objects = [UploadedStreamObject(object_id, 10, self.stream_id, *spans[0])]
        else:
            request.ranges = [UploadedRange(self.stream_id, *span) for span in spans]
        return ErrorCode(self.do(request).error_code), object_id

    def trim(self, start: int) -> ErrorCode:
        request = TrimStreamsRequest(
            self.owner, self.epochs[self.owner], [StreamTrim(self.stream_id, self.stream.epoch, start)]
        )
        return ErrorCode(self.do(request).streams[0].error_code)

    def checked(self) -> None:
        check_image(self.image)
        assert snapshot_of(self.image) == self.image
        assert self.replayed() == self.image

    def fence(self, broker_id: int) -> None:
        self.commit(list(decide_fence_brokers(self.image, [broker_id])))

    def settle(self, *gone: int) -> None:
        alive = [broker_id for broker_id in self.epochs if broker_id not in gone]
        self.commit(decide_settle(self.image, alive).records)


def moved_twice() -> Movers:
    """[0, 10) is in object 0, [10, 20) owed by broker 1, [20, 25) by broker 2; broker 3 leads."""
    machine = Movers()
    assert machine.upload(1, (0, 10)) == (ErrorCode.NONE, 0)
    assert machine.seal(20) is ErrorCode.NONE
    assert machine.move(2) is ErrorCode.NONE
    assert machine.stream.start == 0
    assert machine.stream.end == 20
    assert machine.seal(25) is ErrorCode.NONE
    assert machine.move(3) is ErrorCode.NONE
    assert machine.owed == [(1, 10, 20), (2, 20, 25)]
    machine.checked()
    return machine


def held(machine: Movers, end: int) -> list[list[int]]:
    return [holding(machine.image, machine.stream_id, offset) for offset in range(end)]


def test_a_stream_is_sealed_at_its_true_end() -> None:
    """What is not committed is owed, by node, stream epoch and offsets; the next owner begins behind it in a
    later epoch; the earlier one is fenced but for what it owes. Sealed again, nothing changes."""
    machine = Movers()
    assert machine.upload(1, (0, 10)) == (ErrorCode.NONE, 0)
    machine.do(RegisterNodeWalRequest(1, machine.epoch, b"w" * 16, "block", "file", 0))
    assert machine.seal(9) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert machine.seal(20) is ErrorCode.NONE
    owed = OwedRange(machine.stream_id, 10, 20, 1, 1, b"w" * 16)
    assert list(machine.image.streams.owed) == [owed]
    assert (machine.stream.is_open, machine.stream.end) == (False, 20)
    before = machine.image
    assert machine.seal(20) is ErrorCode.NONE
    assert machine.image is before
    assert machine.move(2) is ErrorCode.NONE
    assert (machine.stream.node_id, machine.stream.epoch, machine.stream.end) == (2, 2, 20)
    assert machine.seal(30, node_id=1, epoch=1) is ErrorCode.FENCED_LEADER_EPOCH
    assert machine.upload(1, (20, 21))[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    assert held(machine, 20) == [[0]] * 10 + [[OWED_RANGE]] * 10
    machine.checked()


def test_a_seal_whose_answer_was_lost_is_answered_again() -> None:
    """Though the next owner has the stream by now, or the one after: what was owed is owed, and who owes it
    learns that. Another end, or another epoch, is none of its seals."""
    machine = moved_twice()
    before = machine.image
    assert machine.seal(20, node_id=1, epoch=1) is ErrorCode.NONE
    assert machine.seal(25, node_id=2, epoch=2) is ErrorCode.NONE
    assert machine.seal(19, node_id=1, epoch=1) is ErrorCode.FENCED_LEADER_EPOCH
    assert machine.seal(20, node_id=1, epoch=2) is ErrorCode.FENCED_LEADER_EPOCH
    assert machine.upload(1, (10, 13))[0] is ErrorCode.NONE
    assert machine.seal(20, node_id=1, epoch=1) is ErrorCode.NONE
    assert machine.owed == [(1, 13, 20), (2, 20, 25)]
    assert machine.upload(1, (13, 20))[0] is ErrorCode.NONE
    assert machine.seal(20, node_id=1, epoch=1) is ErrorCode.FENCED_LEADER_EPOCH, "nothing of it is owed"
    assert before.streams.by_id == machine.image.streams.by_id
    machine.checked()


def test_a_stream_with_nothing_owed_is_closed() -> None:
    """Sealed at its committed end it is as after a close."""
    machine = Movers()
    machine.upload(1, (0, 10))
    assert machine.seal(10) is ErrorCode.NONE
    assert (machine.stream.is_open, machine.owed) == (False, [])
    machine.checked()


def test_a_stream_is_trimmed_as_it_is_sealed() -> None:
    """Into what is owed, too: the next owner begins to read there, and its node commits from its own
    start."""
    machine = Movers()
    machine.upload(1, (0, 10))
    assert machine.seal(20, start=21) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert machine.seal(20, start=15) is ErrorCode.NONE
    assert machine.move(2) is ErrorCode.NONE
    assert (machine.stream.start, machine.stream.end, machine.owed) == (15, 20, [(1, 10, 20)])
    assert not machine.image.objects.committed_count, "nothing of the first object is wanted"
    machine.checked()
    assert machine.upload(1, (10, 20))[0] is ErrorCode.NONE
    machine.checked()
    assert machine.seal(20, start=20) is ErrorCode.NONE
    assert machine.owed == []
    machine.checked()


def test_sealing_is_refused_below_the_level() -> None:
    """Nodes of the release before do not know such ranges: all stays open."""
    machine = Movers(level=2)
    before = machine.image
    assert machine.seal(20) is ErrorCode.UNSUPPORTED_VERSION
    assert machine.image is before


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
@pytest.mark.parametrize("is_own", [False, True])
def test_owners_commit_in_any_order(order: tuple[int, ...], is_own: bool) -> None:
    """Each commits its own range, later owners before earlier ones or after; then all is in objects, each
    where it was uploaded."""
    machine = moved_twice()
    spans = {1: (10, 20), 2: (20, 25), 3: (25, 28)}
    objects = {}
    for node_id in order:
        code, objects[node_id] = machine.upload(node_id, spans[node_id], is_own=is_own)
        assert code is ErrorCode.NONE
        machine.checked()
    assert machine.owed == []
    named = [[0]] * 10 + [[objects[1]]] * 10 + [[objects[2]]] * 5 + [[objects[3]]] * 3
    found = held(machine, 28)
    assert all(set(one) <= set(holders) for one, holders in zip(named, found, strict=True)), found
    assert machine.stream.end == 28


def test_a_range_is_committed_from_its_start_on() -> None:
    """Piece by piece in order; no hole, nothing beyond its end, and by its node alone. Asked again, a commit
    changes nothing."""
    machine = moved_twice()
    assert machine.upload(1, (12, 20))[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    assert machine.upload(1, (10, 21))[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    assert machine.upload(3, (10, 12))[0] is ErrorCode.NONE, "it is passed over"
    assert machine.owed[0] == (1, 10, 20)
    object_id = machine.prepare(1)
    request = CommitUploadRequest(1, machine.epochs[1], object_id, 10)
    request.ranges = [UploadedRange(machine.stream_id, 10, 13)]
    assert machine.do(request).error_code == 0
    before = machine.image
    assert machine.do(request).error_code == 0
    assert machine.image is before
    assert machine.owed[0] == (1, 13, 20)
    assert machine.upload(1, (13, 17), (17, 20))[0] is ErrorCode.NONE
    assert machine.owed == [(2, 20, 25)]
    machine.checked()


def test_a_node_is_not_given_what_it_owes() -> None:
    """Until it has committed it; then it opens behind what others wrote."""
    machine = moved_twice()
    assert machine.seal(27) is ErrorCode.NONE
    assert machine.move(1) is ErrorCode.LEADER_NOT_AVAILABLE
    assert machine.upload(1, (10, 20))[0] is ErrorCode.NONE
    assert machine.move(1) is ErrorCode.NONE
    assert machine.owed == [(2, 20, 25), (3, 25, 27)]
    assert (machine.stream.node_id, machine.stream.end) == (1, 27)
    machine.checked()


def test_so_many_ranges_are_owed_at_most() -> None:
    """At the bound an owner has to upload before it closes; that it is asked to says its code."""
    machine = Movers()
    for broker_id in range(1, OWED_RANGES_MAX + 3):
        if broker_id not in machine.epochs:
            machine.register(broker_id)
        assert machine.move(broker_id) is ErrorCode.NONE
        code = machine.seal(10 * broker_id)
        if broker_id > OWED_RANGES_MAX:
            assert code is ErrorCode.INVALID_RECORD_STATE
            break
        assert code is ErrorCode.NONE
    assert machine.stream.is_open
    assert machine.upload(machine.owner, (80, 90))[0] is ErrorCode.NONE
    assert machine.seal(90) is ErrorCode.NONE
    machine.checked()


def test_trims_go_over_what_is_owed() -> None:
    """Within a range it is owed on, whole, as its node's entries need not begin at the trim; at its end it is
    owed no more, and what its node uploads of it counts for nothing."""
    machine = moved_twice()
    assert machine.trim(15) is ErrorCode.NONE
    assert machine.owed == [(1, 10, 20), (2, 20, 25)]
    machine.checked()
    code, below = machine.upload(1, (10, 14))
    assert code is ErrorCode.NONE
    assert machine.image.objects.by_id[below].was_committed, "nothing in it is wanted"
    assert machine.owed[0] == (1, 14, 20)
    machine.checked()
    code, across = machine.upload(1, (14, 18))
    assert holding(machine.image, machine.stream_id, 15) == [across]
    machine.checked()
    assert machine.trim(20) is ErrorCode.NONE
    assert machine.owed == [(2, 20, 25)]
    assert machine.upload(1, (18, 20))[0] is ErrorCode.NONE
    machine.checked()
    assert machine.trim(25) is ErrorCode.NONE
    assert machine.owed == []
    assert machine.upload(2, (20, 25))[0] is ErrorCode.NONE
    assert machine.upload(3, (25, 26))[0] is ErrorCode.NONE
    machine.checked()


def test_a_deleted_topic_owes_nothing() -> None:
    """Its streams go with what is owed of them; a late upload of it is passed over."""
    machine = moved_twice()
    machine.do(DeleteTopicsRequest([DeleteTopicState("t")]))
    assert machine.owed == []
    assert machine.upload(1, (10, 20))[0] is ErrorCode.NONE
    assert not machine.image.streams.are_in_log_of(1)
    machine.checked()


def test_compaction_goes_around_what_is_owed() -> None:
    """A node merges its sets on both sides of a range that another owes: the range stays as it is, between
    them."""
    machine = Movers()
    _, first = machine.upload(1, (0, 10))
    machine.seal(10)
    machine.move(2)
    machine.seal(15)
    machine.move(1)
    _, second = machine.upload(1, (15, 20))
    made = machine.prepare(1)
    request = CommitCompactionRequest(1, machine.epoch, made, 20, compacted_ids=[first, second])
    request.ranges = [
        CompactedRange(machine.stream_id, 0, 10),
        CompactedRange(machine.stream_id, 15, 20),
    ]
    assert machine.do(request).error_code == 0
    assert machine.owed == [(2, 10, 15)]
    assert held(machine, 20) == [[made]] * 10 + [[OWED_RANGE]] * 5 + [[made]] * 5
    machine.checked()
    assert machine.upload(2, (10, 15))[0] is ErrorCode.NONE
    machine.checked()


def test_a_start_is_told_what_its_log_owes() -> None:
    """Beside the streams that the node has open: from where on, and to where, it has to find all of it."""
    machine = moved_twice()
    machine.upload(1, (10, 12))
    machine.register(1, incarnation=9)
    answer = machine.do(GetOpeningStreamsRequest(1, machine.epochs[1]))
    assert answer.streams == []
    found = [(one.stream_id, one.epoch, one.start_offset, one.end_offset) for one in answer.owed]
    assert found == [(machine.stream_id, 1, 12, 20)]
    answer = machine.do(GetOpeningStreamsRequest(3, machine.epochs[3]))
    assert (len(answer.streams), answer.owed) == (1, [])


def test_a_log_that_owes_is_not_done_with() -> None:
    """Its broker is not unregistered, ends only once nothing is owed, and takes no other log; gone, its log
    is recovered by another, in its name, while its partitions go to others."""
    machine = moved_twice()
    machine.do(RegisterNodeWalRequest(1, machine.epochs[1], b"w" * 16, "block", "file", 0))
    other = RegisterNodeWalRequest(1, machine.epochs[1], b"x" * 16, "block", "file", 0)
    assert machine.do(other).error_code == ErrorCode.INVALID_RECORD_STATE
    beat = BrokerHeartbeatRequest(1, machine.epochs[1], machine.image.offset, want_shut_down=True)
    machine.do(beat)
    assert not machine.do(beat).should_shut_down
    machine.fence(1)
    machine.settle(1)
    failover = machine.image.failovers.get(1)
    assert failover is not None
    refused = machine.do(UnregisterBrokerRequest(1))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "owed" in (refused.error_message or "")
    by = failover.by_node
    begun = machine.do(BeginFailoverRequest(by, machine.epochs[by], 1, b"f" * 16))
    assert begun.error_code == 0
    ended = EndFailoverRequest(by, machine.epochs[by], 1, is_recovered=True, reason="")
    assert machine.do(ended).error_code == ErrorCode.INVALID_RECORD_STATE
    machine.epochs[1] = begun.node_epoch
    assert machine.upload(1, (10, 20))[0] is ErrorCode.NONE
    assert machine.do(ended).error_code == 0
    assert machine.image.failovers.get(1) is None
    machine.checked()


def test_what_is_owed_is_given_up_by_an_unclean_election() -> None:
    """Of the log that nobody recovers, and by name; the partition's leader stays, in a later epoch; the
    offsets are nobody's, and those behind them stay as they are."""
    machine = moved_twice()
    asked = ElectLeadersRequest(1, [TopicPartitions("t", [0])])

    def elect() -> Any:
        (result,) = machine.do(asked).replica_election_results[0].partition_result
        return result

    assert elect().error_code == ErrorCode.ELECTION_NOT_NEEDED
    machine.fence(1)
    assert elect().error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "it is not looked after yet"
    machine.settle(1)
    failover = machine.image.failovers.get(1)
    assert failover is not None
    assert elect().error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "a broker recovers it"
    for by in (2, 3):
        machine.do(EndFailoverRequest(by, machine.epochs[by], 1, is_recovered=False, reason="lost"))
        machine.settle(1)
    before = machine.state.leader_epoch
    preferred = machine.do(ElectLeadersRequest(0, [TopicPartitions("t", [0])]))
    (result,) = preferred.replica_election_results[0].partition_result
    assert result.error_code == ErrorCode.ELECTION_NOT_NEEDED
    done = elect()
    assert (done.error_code, machine.state.leader, machine.state.leader_epoch) == (0, 3, before + 1)
    assert "offset 10 to 19" in done.error_message
    assert "broker 1" in done.error_message
    assert machine.owed == [(2, 20, 25)]
    assert held(machine, 25) == [[0]] * 10 + [[LOST_RANGE]] * 10 + [[OWED_RANGE]] * 5
    machine.checked()
    machine.settle(1)
    assert machine.image.failovers.get(1) is None
    machine.trim(20)
    machine.checked()


def test_who_needs_a_leader_gives_up_no_more_than_its_log() -> None:
    """The log of the one that led is lost, and an earlier owner's is away: the partition gets another leader,
    and what that one owes is owed still. Asked for once more, an election gives it up."""
    machine = moved_twice()
    asked = ElectLeadersRequest(1, [TopicPartitions("t", [0])])

    def elect() -> Any:
        (result,) = machine.do(asked).replica_election_results[0].partition_result
        return result

    for gone in (1, 3):
        machine.fence(gone)
    machine.settle(1, 3)
    for gone in (1, 3):
        machine.do(EndFailoverRequest(2, machine.epochs[2], gone, is_recovered=False, reason="away"))
    machine.settle(1, 3)
    done = elect()
    assert (done.error_code, machine.state.leader) == (0, 2)
    assert "broker 3" in done.error_message
    assert "broker 1" not in done.error_message
    assert machine.owed == [(1, 10, 20), (2, 20, 25)]
    machine.checked()
    done = elect()
    assert (done.error_code, machine.state.leader) == (0, 2)
    assert "offset 10 to 19" in done.error_message
    assert machine.owed == [(2, 20, 25)]
    machine.checked()


def test_a_log_is_given_up_beside_another_that_has_the_data() -> None:
    """As restored metadata may have it: the partition's own state is open at the broker that is gone, and it
    owes some of the data, which goes on in the log of one that is there. What that one has stays its own, and
    is not told as given up."""
    machine = Movers(roles=(META, DATA))
    meta, data = (one.stream_id for one in machine.image.streams.of_partition(topic_id(machine, "t"), 0))
    machine.commit(
        [
            owed_range_record(OwedRange(data, 0, 10, 1, 1, bytes(16))),
            stream_record(machine.image.streams.by_id[data]._replace(node_id=2, epoch=2, end=10)),
        ]
    )
    asked = ElectLeadersRequest(1, [TopicPartitions("t", [0])])
    machine.fence(1)
    machine.settle(1)
    for by in (2, 3):
        machine.do(EndFailoverRequest(by, machine.epochs[by], 1, is_recovered=False, reason="lost"))
        machine.settle(1)
    (done,) = machine.do(asked).replica_election_results[0].partition_result
    assert (done.error_code, done.error_message) == (
        0,
        "records from offset 0 to 9 that only the log of broker 1 holds are given up",
    )
    streams = machine.image.streams
    assert (streams.by_id[meta].is_open, streams.by_id[data].is_open) == (False, True)
    assert (streams.by_id[data].node_id, streams.by_id[data].end, machine.owed) == (2, 10, [])
    assert machine.state.leader in (2, 3)
    machine.checked()
    (done,) = machine.do(asked).replica_election_results[0].partition_result
    assert done.error_code == ErrorCode.ELECTION_NOT_NEEDED


def test_an_accepted_loss_gives_up_what_is_owed() -> None:
    """A node whose log is lost says so at its start: of what it owes both ends are told."""
    machine = moved_twice()
    before = machine.state.leader_epoch
    answer = machine.do(AcceptWalLossRequest(1, machine.epochs[1]))
    (lost,) = answer.partitions
    assert (lost.topic_name, lost.end_offset, lost.lost_end) == ("t", 10, 20)
    assert lost.leader_epoch == machine.state.leader_epoch == before + 1
    assert machine.owed == [(2, 20, 25)]
    machine.checked()


def test_an_accepted_loss_of_both_parts_of_a_stream_raises_its_epoch_once() -> None:
    """As restored metadata may have it: the node owes some of the stream, and has it open behind another."""
    machine = moved_twice()
    machine.commit([stream_record(machine.stream._replace(node_id=1))])
    before = machine.state.leader_epoch
    answer = machine.do(AcceptWalLossRequest(1, machine.epochs[1]))
    assert [(lost.end_offset, lost.lost_end) for lost in answer.partitions] == [(25, -1), (10, 20)]
    assert {lost.leader_epoch for lost in answer.partitions} == {machine.state.leader_epoch} == {before + 1}
    machine.checked()


STEP = st.tuples(
    st.sampled_from(
        [*["move"] * 3, *["upload"] * 5, *["late"] * 5, "trim", "trim", "lose", "compact", "delete", "meet"]
    ),
    st.integers(0, 5),
    st.integers(0, 5),
)


class Story:
    """What each offset's holder is, beside the machine: an object's id, "owed by N" or "lost"."""

    def __init__(self) -> None:
        self.machine = Movers()
        self.files: dict[int, dict[int, int]] = {}  # by object: offsets it holds, of the stream
        self.holders: dict[int, object] = {}
        self.is_deleted = False

    def step(self, what: str, a: int, b: int) -> None:
        if not self.is_deleted:
            getattr(self, f"on_{what}")(a, b)
            self.machine.now_ms += 10
            self.check()

    def check(self) -> None:
        machine = self.machine
        check_image(machine.image)
        if self.is_deleted:
            return
        for offset in range(machine.stream.start, machine.stream.end):
            expected, named = self.holders[offset], holding(machine.image, machine.stream_id, offset)
            if isinstance(expected, int):
                assert any(offset in self.files.get(one, {}) for one in named), (offset, expected, named)
            else:
                assert named == [LOST_RANGE if expected == "lost" else OWED_RANGE], (offset, expected, named)
                owed = machine.image.streams.owed.at(machine.stream_id, offset)
                assert expected == ("lost" if owed is None else f"owed by {owed.node_id}")

    def on_move(self, a: int, b: int) -> None:
        machine = self.machine
        stream, target = machine.stream, 1 + a % 3
        if stream.is_open:
            assert machine.seal(stream.end + b) is ErrorCode.NONE
            for offset in range(stream.end, stream.end + b):
                self.holders[offset] = f"owed by {stream.node_id}"
        owes = any(node_id == target for node_id, _, _ in machine.owed)
        assert machine.move(target) is (ErrorCode.LEADER_NOT_AVAILABLE if owes else ErrorCode.NONE)

    def on_upload(self, a: int, b: int) -> None:
        if self.machine.stream.is_open:
            start = self.machine.stream.end
            self.put(self.machine.stream.node_id, start, start + 1 + a, is_own=b % 3 == 0)

    def on_late(self, a: int, b: int) -> None:
        """Some of the first, or all, of what is owed by one of them."""
        owed = self.machine.owed
        if owed:
            node_id, start, end = owed[a % len(owed)]
            self.put(node_id, start, min(end, start + 1 + b), is_own=b % 2 == 0)

    def put(self, node_id: int, start: int, end: int, *, is_own: bool) -> None:
        code, object_id = self.machine.upload(node_id, (start, end), is_own=is_own)
        assert code is ErrorCode.NONE
        self.files[object_id] = dict.fromkeys(range(start, end), node_id)
        for offset in range(start, end):
            self.holders[offset] = object_id

    def on_trim(self, a: int, b: int) -> None:
        stream = self.machine.stream
        if stream.is_open:
            start = stream.start + (stream.end - stream.start) * a // 5
            assert self.machine.trim(start) is ErrorCode.NONE

    def on_lose(self, a: int, b: int) -> None:
        if b == 0:
            for node_id, _, _ in self.machine.owed[:1]:
                self.machine.do(AcceptWalLossRequest(node_id, self.machine.epochs[node_id]))
                for offset, holder in self.holders.items():
                    if holder == f"owed by {node_id}":
                        self.holders[offset] = "lost"

    def on_compact(self, a: int, b: int) -> None:
        """A node's sets become one."""
        machine, node_id = self.machine, 1 + a % 3
        sources = [one.object_id for one in machine.image.objects.stream_sets(node_id)][: 2 + b]
        if len(sources) < 2:
            return
        start = machine.stream.start
        offsets = sorted({one for source in sources for one in self.files[source] if one >= start})
        made = machine.prepare(node_id)
        request = CommitCompactionRequest(node_id, machine.epochs[node_id], made, 20)
        request.compacted_ids = list(sources)
        request.ranges = [CompactedRange(machine.stream_id, low, high) for low, high in runs(offsets)]
        if not offsets:
            return
        assert machine.do(request).error_code == 0
        self.files[made] = dict.fromkeys(offsets, node_id)
        for source in sources:
            del self.files[source]

    def on_delete(self, a: int, b: int) -> None:
        if (a, b) == (5, 5):
            self.machine.do(DeleteTopicsRequest([DeleteTopicState("t")]))
            self.is_deleted = True

    def on_meet(self, a: int, b: int) -> None:
        """One who reads the log later, or a snapshot, has the same image."""
        self.machine.checked()


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=5, max_size=40))
def test_every_offset_is_where_it_should_be(steps: list[tuple[str, int, int]]) -> None:
    """Moves, commits of all owners in any order, trims, losses, compactions: metadata names for each offset
    an object that has it, or who owes it, or that it was lost; replayed, and from a snapshot, too."""
    story = Story()
    for step in steps:
        story.step(*step)
    story.machine.checked()
