"""What a leader knows of one replica: how far it fetched, and when it last did. Followers pull, so this is
all.

Not here: when that means a new high watermark, or a lost quorum (core.py).
"""

from __future__ import annotations

from millrace.kraft.raft.messages import Fetch
from millrace.protocol.dataclass import dataclass


@dataclass(slots=True)
class Progress:
    """Times are ticks; -1 is never."""

    end: int = -1  # everything below is durable there; -1 while it has not fetched in this epoch
    fetched_at: int = -1
    caught_up_at: int = -1  # when its fetch last asked for the leader's end
    knows_leader: bool = False  # it answered BeginEpoch, or fetched
    parked: Fetch | None = None  # waits for something to fetch
    parked_at: int = 0

    def on_fetch(self, message: Fetch, now: int, leader_end: int) -> None:
        self.end = max(self.end, message.offset)
        self.fetched_at = now
        self.knows_leader = True
        if message.offset >= leader_end:
            self.caught_up_at = now

    def park(self, message: Fetch, now: int) -> None:
        self.parked = message
        self.parked_at = now
