"""Brokers that speak to the controllers and do not reach the store: when others are to lead what they
lead."""

from __future__ import annotations

from millrace.kraft.commands.cut_off import rescuer_of
from millrace.kraft.sessions import Sessions
from millrace.kraft.tables.wals import NodeWal, WalState, wal_record
from tests.kraft.commands.test_leaders import Cluster

PLACE = "0@s3://wal"


def with_logs(**logs: tuple[str, str]) -> Cluster:
    """Three brokers; `_2=("object", PLACE)`: the kind and address of a broker's log."""
    cluster = Cluster()
    for name, (kind, address) in logs.items():
        node_id = int(name[1:])
        wal = NodeWal(
            node_id,
            bytes([node_id]) * 16,
            kind,
            address,
            cluster.epochs[node_id],
            bytes(16),
            0,
            WalState.ACTIVE,
        )
        cluster.commit([wal_record(wal)])
    return cluster


def test_who_writes_a_log_in_the_same_place_comes_to_the_rescue() -> None:
    """Of those that are well, and there."""
    cluster = with_logs(_1=("object", PLACE), _2=("object", PLACE), _3=("object", PLACE))
    assert rescuer_of(cluster.image, 1, {2, 3}) == 2
    assert rescuer_of(cluster.image, 1, {1, 3}) == 3
    cluster.fence(3)
    assert rescuer_of(cluster.image, 1, {1, 3}) is None


def test_where_all_are_cut_off_nobody_comes() -> None:
    cluster = with_logs(_1=("object", PLACE), _2=("object", PLACE), _3=("object", PLACE))
    assert rescuer_of(cluster.image, 1, set()) is None


def test_a_log_elsewhere_is_no_proof() -> None:
    """A log in another bucket, one of blocks whose path is the same on another machine, or none."""
    cluster = with_logs(_1=("object", PLACE), _2=("object", "0@s3://other"))
    assert rescuer_of(cluster.image, 1, {2, 3}) is None
    blocks = with_logs(_1=("block", "0@file:///data/wal"), _2=("block", "0@file:///data/wal"))
    assert rescuer_of(blocks.image, 1, {2, 3}) is None


def test_who_is_fenced_already_needs_no_rescue() -> None:
    cluster = with_logs(_1=("object", PLACE), _2=("object", PLACE))
    cluster.fence(1)
    assert rescuer_of(cluster.image, 1, {2}) is None


def test_trouble_counts_from_its_beginning_and_ends_with_a_word() -> None:
    """A broker in trouble has a session like others; taken for cut off it has none, though it speaks, until
    it says that it is well."""
    sessions = Sessions(4.0)
    sessions.begin([1, 2], 0.0)
    for now_s in range(1, 12):
        assert sessions.hear(1, now_s, is_well=now_s < 3)
        assert sessions.hear(2, now_s)
        assert sessions.look(now_s) == []
    assert sessions.in_trouble(2.9) == []
    assert sessions.in_trouble(3.0) == [1]
    assert sessions.well(1.0) == {2}
    sessions.cut_off(1, 11.0)
    assert sessions.look(12.0) == [1]
    assert not sessions.hear(1, 12.0, is_well=False)
    assert sessions.in_trouble(3.0) == []
    assert sessions.alive() == {2}
    sessions.forget(1)
    assert sessions.hear(1, 13.0)
    assert sessions.alive() == {1, 2}
    assert sessions.well(12.9) == {2}, "it may be cut off again in a moment"
    assert sessions.well(13.0) == {1, 2}


def test_a_new_leader_counts_anew() -> None:
    sessions = Sessions(4.0)
    sessions.begin([1], 0.0)
    sessions.hear(1, 1.0, is_well=False)
    sessions.cut_off(1, 2.0)
    sessions.begin([1], 3.0)
    assert sessions.alive() == {1}
    assert sessions.hear(1, 4.0, is_well=False)
    assert sessions.in_trouble(3.9) == []
