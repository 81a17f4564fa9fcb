"""Who compacts the stream-set objects of a broker that is gone, and what the controller takes of whom."""

from __future__ import annotations

from collections import Counter

from millrace.kraft.commands.heirs import compactor_of
from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.commit_compaction import CommitCompactionRequest, CompactedRange
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.protocol.metadata_records import RegisterBrokerRecord, UnregisterBrokerRecord
from millrace.s3stream.ids import StreamId
from tests.kraft.tables.test_compaction import check, with_sets
from tests.kraft.tables.test_objects import state
from tests.kraft.test_replay import CLUSTER, Machine


def brokers(*ids: int, fenced: tuple[int, ...] = (), ending: tuple[int, ...] = ()) -> MetadataImage:
    records = [
        RegisterBrokerRecord(
            broker_id=one, broker_epoch=one, fenced=one in fenced, in_controlled_shutdown=one in ending
        )
        for one in ids
    ]
    return apply_records(EMPTY_IMAGE, records, len(records), 1)[1]


def test_a_broker_that_is_there_compacts_its_own() -> None:
    """Also while it ends: it is there until it is fenced."""
    image = brokers(1, 2, 3, fenced=(3,), ending=(2,))
    assert [compactor_of(image, one) for one in (1, 2)] == [1, 2]


def test_the_heir_is_one_that_may_be_given_partitions() -> None:
    """Of a broker that is fenced, or was unregistered; where nobody is there it waits for itself."""
    image = brokers(1, 2, 3, 4, fenced=(3,), ending=(2,))
    assert {compactor_of(image, one) for one in (3, 77)} <= {1, 4}
    assert compactor_of(brokers(1, 2, fenced=(1, 2)), 1) == 1
    assert compactor_of(EMPTY_IMAGE, 9) == 9


def test_who_goes_moves_what_it_had_and_nothing_else() -> None:
    """Of 200 brokers that are gone each of four heirs has some; one of the heirs goes and the others keep
    theirs."""
    gone = range(100, 300)
    before = {one: compactor_of(brokers(1, 2, 3, 4), one) for one in gone}
    after = {one: compactor_of(brokers(1, 2, 3, 4, fenced=(2,)), one) for one in gone}
    assert min(Counter(before.values()).values()) >= 20
    assert len(Counter(before.values())) == 4
    assert {one for one in gone if before[one] != after[one]} == {one for one in gone if before[one] == 2}


def test_an_unregistered_broker_comes_back_under_its_id() -> None:
    image = brokers(1, 2)
    _, gone = apply_records(image, [UnregisterBrokerRecord(2, 2)], 3, 1)
    assert (compactor_of(gone, 2), compactor_of(image, 2)) == (1, 2)


def gone_and_two() -> tuple[Machine, dict[int, int]]:
    """Broker 1 wrote four sets and is fenced; 2 and 3 are there: their epochs."""
    machine = with_sets()
    epochs = {
        one: machine.do(BrokerRegistrationRequest(one, CLUSTER, one.to_bytes(16, "big"))).broker_epoch
        for one in (2, 3)
    }
    machine.do(BrokerHeartbeatRequest(1, machine.epoch, machine.image.offset, want_fence=True))
    return machine, epochs


def merged(machine: Machine, node_id: int, epoch: int) -> CommitCompactionRequest:
    """All four sets become one of this broker's."""
    first = machine.do(PrepareObjectsRequest(node_id, epoch, 1, 1_000)).first_object_id
    ranges = [CompactedRange(0, 0, 40), CompactedRange(1, 0, 20)]
    return CommitCompactionRequest(node_id, epoch, first, 900, ranges, [], [0, 1, 2, 3])


def test_the_heir_alone_compacts_the_sets_of_one_that_is_gone() -> None:
    """The other broker is refused; what the heir made is its own, in the order of data, and found by what
    reads the log or a snapshot."""
    machine, epochs = gone_and_two()
    heir = compactor_of(machine.image, 1)
    other = 5 - heir
    refused = machine.do(merged(machine, other, epochs[other]))
    assert refused.error_code == ErrorCode.INVALID_RECORD_STATE
    assert f"node {heir}'s to compact" in refused.error_message
    request = merged(machine, heir, epochs[heir])
    assert machine.do(request).error_code == 0
    assert machine.do(request).error_code == 0  # its answer was lost
    assert [state(machine, number) for number in range(4)] == [ObjectState.PENDING_DELETION] * 4
    (info,) = machine.image.objects.stream_sets(heir)
    assert (info.object_id, info.order_id) == (request.object_id, 0)
    assert machine.image.objects.nodes_with_sets() == [heir]
    assert machine.image.streams.by_id[StreamId(0)].end == 40
    check(machine)


def test_a_broker_that_is_back_has_its_sets_to_itself() -> None:
    """The heir's commit that was under way is refused whole, and so is the zombie's from before."""
    machine, epochs = gone_and_two()
    heir, stale = compactor_of(machine.image, 1), merged(machine, 1, machine.epoch)
    late = merged(machine, heir, epochs[heir])
    epoch = machine.do(BrokerRegistrationRequest(1, CLUSTER, (9).to_bytes(16, "big"))).broker_epoch
    assert machine.do(late).error_code == ErrorCode.INVALID_RECORD_STATE
    assert machine.do(stale).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert machine.do(merged(machine, 1, epoch)).error_code == 0
    check(machine)


def test_sets_of_one_that_was_unregistered_are_its_heirs() -> None:
    """It is known no more, and its objects are."""
    machine, epochs = gone_and_two()
    machine.commit([UnregisterBrokerRecord(1, machine.epoch)])
    heir = compactor_of(machine.image, 1)
    assert machine.do(merged(machine, heir, epochs[heir])).error_code == 0
    check(machine)
