"""Majorities, and what the core knows of its log."""

from __future__ import annotations

import pytest

from millrace.kraft.raft.log_view import Entry, LogView
from millrace.kraft.raft.quorum import VoteResult, count_votes, majority, majority_end


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority(voters: int, needed: int) -> None:
    """More than half."""
    assert majority(voters) == needed


@pytest.mark.parametrize(
    ("votes", "result"),
    [
        ({}, VoteResult.OPEN),
        ({1: True}, VoteResult.OPEN),
        ({1: True, 2: True}, VoteResult.WON),
        ({1: True, 2: False}, VoteResult.OPEN),
        ({2: False, 3: False}, VoteResult.LOST),
        ({1: True, 9: True}, VoteResult.OPEN),  # 9 is no voter
    ],
)
def test_votes_of_three(votes: dict[int, bool], result: VoteResult) -> None:
    """Won by a majority, lost when none is possible any more."""
    assert count_votes((1, 2, 3), votes) is result


@pytest.mark.parametrize(
    ("ends", "end"),
    [([5], 5), ([5, 9], 5), ([1, 5, 9], 5), ([9, 9, 1], 9), ([1, 2, 3, 4], 2), ([-1, -1, 7], -1)],
)
def test_the_committed_end_is_the_majoritys(ends: list[int], end: int) -> None:
    """What at least a majority holds."""
    assert majority_end(ends) == end


def view(
    *epochs: tuple[int, int], end: int, start: int = 0, snapshot: tuple[int, int] | None = None
) -> LogView:
    return LogView(start, end, end, list(epochs), snapshot)


@pytest.mark.parametrize(
    ("log", "asked", "answer"),
    [
        (view(end=0), (0, 0), None),
        (view((1, 0), end=5), (0, 0), None),
        (view((1, 0), end=5), (5, 1), None),
        (view((1, 0), end=5), (3, 1), None),
        (view((1, 0), end=5), (7, 1), (1, 5)),  # longer than ours
        (view((1, 0), (3, 5), end=9), (7, 1), (1, 5)),  # went on in an epoch that ended
        (view((1, 0), (3, 5), end=9), (7, 2), (1, 5)),  # an epoch we never had
        (view((1, 0), (3, 5), end=9), (7, 4), (3, 9)),
        (view((3, 5), end=9, start=5, snapshot=(5, 1)), (3, 1), "snapshot"),  # below the start
        (view((3, 5), end=9, start=5, snapshot=(5, 1)), (5, 1), None),  # just after the snapshot
        (view((3, 5), end=9, start=5, snapshot=(5, 1)), (6, 2), "snapshot"),  # older than all we know
        (view(end=5, start=5, snapshot=(5, 1)), (5, 1), None),
        (view((2, 1), end=5), (4, 1), (0, 1)),  # older than the first, and the log is whole
    ],
)
def test_what_a_fetch_is_told(log: LogView, asked: tuple[int, int], answer: object) -> None:
    """A prefix goes on; else where the logs part, or that a snapshot is needed."""
    assert log.check_fetch(*asked) == answer


def test_truncation_forgets_epochs() -> None:
    """What is cut is forgotten, with the epochs that began there."""
    log = LogView()
    for entry in (Entry(0, 2, 1), Entry(2, 1, 3), Entry(3, 4, 5)):
        log.append(entry)
    log.on_persisted(3)
    log.truncate(2)
    assert (log.end, log.stable_end, log.epochs, log.unstable, log.last_epoch) == (2, 2, [(1, 0)], [], 1)


def test_a_trimmed_log_keeps_the_epoch_it_begins_in() -> None:
    """The epoch of the record before the start stays known."""
    log = view((1, 0), (2, 4), (3, 8), end=10)
    log.on_snapshot(8, 2)
    log.trim_start(6)
    assert log.epochs == [(2, 4), (3, 8)]
    log.trim_start(8)
    assert log.epochs == [(2, 4), (3, 8)]
    assert log.check_fetch(8, 2) is None
