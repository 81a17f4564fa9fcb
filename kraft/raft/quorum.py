"""Arithmetic of majorities. Not here: who votes for whom (core.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum


class VoteResult(Enum):
    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority(voter_count: int) -> int:
    """How many of `voter_count` decide."""
    return voter_count // 2 + 1


def count_votes(voters: Sequence[int], votes: Mapping[int, bool]) -> VoteResult:
    """Lost as soon as those who have not refused are no majority."""
    granted = sum(votes.get(voter) is True for voter in voters)
    refused = sum(votes.get(voter) is False for voter in voters)
    if granted >= majority(len(voters)):
        return VoteResult.WON
    return VoteResult.LOST if len(voters) - refused < majority(len(voters)) else VoteResult.OPEN


def majority_end(ends: Iterable[int]) -> int:
    """The highest offset below which a majority of these voters holds everything."""
    ordered = sorted(ends, reverse=True)
    return ordered[majority(len(ordered)) - 1]
