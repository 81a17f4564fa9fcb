"""Whether a node and the one that leads were told of the same voters. Pure.

At kraft.version 0 each node is told a list, and majorities of two lists need not meet. The first record of an
epoch names the voters of whoever leads it: a voter that was told of others ends before it takes anything of
that log over, or votes for one of the others. Where two quorums have decided already, their logs say so.

Not here: what is done about it (kraft/driver.py). From kraft.version 1 on voters stand in the log.
"""

from __future__ import annotations

from typing import Final

from millrace.kraft.errors import VotersDiffer
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.roles import Follower
from millrace.kraft.raft.voters import STATIC

Opening = tuple[int, tuple[int, ...]]  # an epoch, and its voters as its first record has them
NO_OPENING: Final[Opening] = (-1, ())


def check_agreement(raft: Raft, opening: Opening) -> None:
    """`opening`: of the last epoch in the log. A leader that has answered in its epoch is there and has that
    list still; one of an earlier start may have another by now. Raises VotersDiffer."""
    role, known = raft.role, raft.voter_set
    if not isinstance(role, Follower) or not role.has_fetched or known.kraft_version != STATIC:
        return
    epoch, voters = opening
    if epoch == role.epoch and raft.is_voter and voters != tuple(sorted(known.ids)):
        raise VotersDiffer(role.leader, epoch, voters, known.ids)
