"""Voter sets as values, and what a log remembers of them."""

from __future__ import annotations

import pytest

from millrace.kraft.raft.log_view import Entry, LogView
from millrace.kraft.raft.voters import BEFORE_LOG, DYNAMIC, NO_DIRECTORY, Voter, VotersChange, VoterSet

A, B = b"a" * 16, b"b" * 16


def dynamic(*voters: tuple[int, bytes]) -> VoterSet:
    return VoterSet(tuple(Voter(*one) for one in voters), DYNAMIC)


def test_a_voter_is_an_id_and_a_directory() -> None:
    """Known by its id alone it is one with any directory."""
    assert dynamic((1, A)).has(1, A)
    assert not dynamic((1, A)).has(1, B)
    assert not dynamic((1, A)).has(1, NO_DIRECTORY)
    assert not dynamic((1, A)).has(2, A)
    assert VoterSet.static((1,)).has(1, A)
    assert VoterSet.static((1,)).is_only(1, NO_DIRECTORY)
    assert not VoterSet.static((1, 2)).is_only(1, A)


@pytest.mark.parametrize(
    ("before", "after", "is_next"),
    [
        (dynamic((1, A)), dynamic((1, A)), True),
        (dynamic((1, A)), dynamic((1, A), (2, A)), True),
        (dynamic((1, A), (2, A)), dynamic((2, A)), True),
        (dynamic((1, A), (2, A)), dynamic((1, A), (2, B)), False),  # one goes, and one comes
        (dynamic((1, A)), dynamic((1, A), (2, A), (3, A)), False),
        (VoterSet.static((1, 2)), dynamic((1, A), (2, B)), True),
        (VoterSet.static((1, 2)), dynamic((1, A), (2, B), (3, A)), True),
        (VoterSet.static((1, 2)), dynamic((1, A), (3, B)), False),
    ],
)
def test_sets_that_follow_one_another_differ_by_one(before: VoterSet, after: VoterSet, is_next: bool) -> None:
    """From an id alone to an id with a directory is no difference."""
    assert before.is_next_to(after) is is_next


def test_a_set_changes_by_one_voter_in_the_order_of_ids() -> None:
    """Who has the id already is replaced."""
    known = dynamic((1, A), (3, A)).with_voter(Voter(2, B))
    assert known.ids == (1, 2, 3)
    assert known.with_voter(Voter(2, A)).directory_of(2) == A
    assert known.without(1).ids == (2, 3)
    assert known.kraft_version == DYNAMIC


def entry(log: LogView, *ids: int) -> Entry:
    change = None if not ids else VotersChange(DYNAMIC, tuple(Voter(one, A) for one in ids))
    return Entry(log.end, 1, 1, change=change)


def made_log() -> LogView:
    """[0: 1] [1] [2: 1,2] [3] [4: 1,2,3]"""
    log = LogView()
    log.voters.static = VoterSet.static((9,))
    for ids in ((1,), (), (1, 2), (), (1, 2, 3)):
        log.append(entry(log, *ids))
    return log


def test_the_history_says_who_votes_where_the_log_ends() -> None:
    """A set stands from its record on, and goes with it."""
    log = made_log()
    assert [log.voters.at(end).ids for end in range(6)] == [(9,), (1,), (1,), (1, 2), (1, 2), (1, 2, 3)]
    assert [known.ids for known in log.voters.since(3)] == [(1, 2), (1, 2, 3)]
    log.truncate(4)
    assert (log.voters.last.ids, log.voters.last_offset) == ((1, 2), 2)
    log.truncate(2)
    assert (log.voters.last.ids, log.voters.last_offset) == ((1,), 0)
    log.truncate(0)
    assert (log.voters.last.ids, log.voters.last_offset) == ((9,), BEFORE_LOG)


def test_a_log_that_is_trimmed_keeps_the_set_that_stands_there() -> None:
    """And one that a snapshot takes the place of has the snapshot's, or none."""
    log = made_log()
    log.on_persisted(5)
    log.on_snapshot(4, 1)
    log.trim_start(4)
    assert [log.voters.at(end).ids for end in (4, 5)] == [(1, 2), (1, 2, 3)]
    assert len(log.voters.changes) == 2
    log.restart_at(9, 2, dynamic((4, A)))
    assert (log.voters.last.ids, log.voters.last_offset) == ((4,), 8)
    log.restart_at(12, 2)
    assert (log.voters.last.ids, log.voters.last_offset) == ((9,), BEFORE_LOG)


def test_what_a_directory_was_formatted_with_is_in_no_log() -> None:
    """It stands before the first record."""
    log = LogView()
    log.restart_at(0, 0, dynamic((4, A)))
    assert (log.voters.last.ids, log.voters.last_offset) == ((4,), BEFORE_LOG)


def test_a_record_that_names_only_one_of_both_leaves_the_other() -> None:
    """Kafka writes them in one batch, and may not have to."""
    before = dynamic((1, A))
    assert VotersChange(kraft_version=DYNAMIC).on(VoterSet.static((1,))).ids == (1,)
    assert VotersChange(voters=(Voter(2, B),)).on(before) == dynamic((2, B))
