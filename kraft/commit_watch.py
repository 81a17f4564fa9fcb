"""CommitWatch: whether what a leader decides is committed, said in its log where it is not for long.

Followers whose disks are full go on asking, so that the leader neither resigns nor commits anything, and
whoever sent a command waits in vain. Not here: what a leader does whose own disk is full (driver.py). Time is
counted in ticks of the core.
"""

from __future__ import annotations

import logging
from typing import Final

from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.roles import Leader

log = logging.getLogger(__name__)
PATIENCE_FETCHES: Final = 5  # fetch time-outs: ten seconds by default


class CommitWatch:
    def __init__(self) -> None:
        self._committed = -1
        self._since = 0  # ticks: when that came to be, or there was nothing to commit
        self._is_said = False

    def look(self, raft: Raft) -> None:
        """To be called with each tick."""
        role, end = raft.role, raft.log.stable_end
        is_waiting = isinstance(role, Leader) and end > raft.high_watermark == self._committed
        if not isinstance(role, Leader) or not is_waiting:
            if self._is_said and isinstance(role, Leader):
                log.warning("what controller %d decides is committed again", raft.node_id)
            self._committed, self._since, self._is_said = raft.high_watermark, raft.now, False
        elif not self._is_said and raft.now - self._since > PATIENCE_FETCHES * raft.settings.fetch_ticks:
            self._is_said = True
            asked_since = raft.now - raft.settings.fetch_ticks * 3 // 2  # others are gone
            behind = [
                str(voter)
                for voter, known in role.voters.items()
                if known.end < end and known.fetched_at > asked_since
            ]
            log.warning(
                "controller %d leads, and nothing that it decides is committed: controller %s asks for it "
                "and does not take it, as where its disk is full; its own log says why. Commands wait "
                "until a majority of the voters has it",
                raft.node_id,
                " and ".join(behind),
            )
