"""What a leader knows of one replica: how far it fetched, and when it last did. Followers pull, so this is
all.

Not here: when that means a new high watermark, or a lost quorum (core.py).
"""

from __future__ import annotations

from millrace.kraft.raft.messages import Fetch
from millrace.kraft.raft.voters import NO_DIRECTORY, Replica, VoterSet
from millrace.protocol.dataclass import dataclass


@dataclass(slots=True)
class Progress:
    """Times are ticks; -1 is never."""

    end: int = -1  # everything below is durable there; -1 while none of it was seen to be, in this epoch
    fetched_at: int = -1
    caught_up_at: int = -1  # when its fetch last asked for the leader's end
    knows_leader: bool = False  # it answered BeginEpoch, or fetched
    parked: Fetch | None = None  # waits for something to fetch
    parked_at: int = 0
    directory_id: bytes = NO_DIRECTORY  # that it fetched with last

    def on_fetch(self, message: Fetch, now: int, leader_end: int) -> None:
        # Less than before where its log was put back to an older state, or where this comes late.
        self.end = message.offset
        self.fetched_at = now
        self.knows_leader = True
        self.directory_id = message.directory_id
        if message.offset >= leader_end:
            self.caught_up_at = now

    def on_refused(self, now: int) -> None:
        """A fetch that says that its log is no part of the leader's: nothing that it had counts."""
        self.end = -1
        self.fetched_at = now
        self.knows_leader = True

    def park(self, message: Fetch, now: int) -> None:
        self.parked = message
        self.parked_at = now


def assigned(
    voter_set: VoterSet, voters: dict[int, Progress], observers: dict[Replica, Progress]
) -> tuple[dict[int, Progress], dict[Replica, Progress]]:
    """What is known of replicas, when `voter_set` takes the place of the set before it: who becomes a voter
    takes what is known of it along, and so does who is none any more."""
    known = {(node_id, progress.directory_id): progress for node_id, progress in voters.items()}
    known |= observers
    now: dict[int, Progress] = {}
    for voter in voter_set.voters:
        own = [key for key in known if voter.node_id == key[0] and voter.is_at(key[1])]
        now[voter.node_id] = known.pop(own[0]) if own else Progress()
    return now, {key: progress for key, progress in known.items() if progress.fetched_at >= 0}
