"""Ranges that a write-ahead log owes, as operators are shown them: whose they are, that they are no damage,
and what is missing where such a log is."""

from __future__ import annotations

from millrace.broker.cli.streams import held_values
from millrace.broker.identity.ownership import left_in_wal
from millrace.broker.inspection.bucket_check_ranges import Contents, faults_of
from millrace.broker.inspection.inventory import KnownStream, known_streams
from millrace.broker.restore.plan import ranges_in_wal
from millrace.protocol.messages.accept_wal_loss import AcceptWalLossRequest
from millrace.s3stream.ids import ObjectId, StreamRange
from tests.kraft.tables.test_owed_ranges import Movers, moved_twice


def known(machine: Movers) -> KnownStream:
    (stream,) = known_streams(machine.image)
    return stream


def test_each_range_names_the_node_that_owes_it() -> None:
    """Neighbours that two nodes owe are told apart; given up, nobody is named."""
    machine = moved_twice()
    places = [(one.start, one.end, one.place) for one in known(machine).held]
    assert places == [(0, 10, "0"), (10, 20, "owed by node 1"), (20, 25, "owed by node 2")]
    machine.do(AcceptWalLossRequest(1, machine.epochs[1]))
    assert [one.place for one in known(machine).held] == ["0", "given up", "owed by node 2"]
    assert [held_values(one) for one in known(machine).held] == [
        {"start": 0, "end": 10, "objects": [0]},
        {"start": 10, "end": 20, "objects": [], "owed_by": None},
        {"start": 20, "end": 25, "objects": [], "owed_by": 2},
    ]


def test_what_is_owed_is_no_damage() -> None:
    """A check of the bucket finds fault with objects alone."""
    machine = moved_twice()
    stream = known(machine)
    whole = Contents({ObjectId(0): [(machine.stream_id, 0, 10)]})
    assert list(faults_of(stream, whole)) == []
    lacking = Contents({ObjectId(0): [(machine.stream_id, 0, 7)]})
    assert [(fault.start, fault.end) for fault in faults_of(stream, lacking)] == [(7, 10)]


def test_a_log_that_is_missing_lacks_what_it_owes() -> None:
    """Beside all behind the committed ends of the streams that its node had open."""
    machine = moved_twice()
    told = [(one.start, one.end) for one in ranges_in_wal(machine.image, 1, "it is gone")]
    assert told == [(10, 20)]
    assert [(one.start, one.end) for one in ranges_in_wal(machine.image, 3, "it is gone")] == [(25, None)]


def test_a_node_that_was_replaced_tells_what_it_owes() -> None:
    """What is committed is left out, as of streams that it has open."""
    machine = moved_twice()
    machine.upload(1, (10, 12))
    stream = machine.stream_id
    assert machine.image.streams.uncommitted_from(StreamRange(stream, 8, 20)) == 12
    assert machine.image.streams.uncommitted_from(StreamRange(stream, 25, 30)) == 25
    words = left_in_wal([StreamRange(stream, 8, 20)], 100, machine.image, "/wal", 1)
    assert "8 " in words or "8 records" in words
