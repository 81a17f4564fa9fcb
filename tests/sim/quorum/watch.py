"""What must hold of a quorum at every moment, over what crosses its edges: messages, disks, images.

    two-leaders, led-again        one leader an epoch, and in one life
    vote-not-durable, voted-twice a vote is durable before it is told, one an epoch, over restarts
    acknowledged-before-durable   a fetch says that all below it is durable
    watermark-fell                in a life
    watermark-beyond-majority     what is called committed lies durably at a majority of voters
    old-epoch-committed           nothing of an earlier epoch before the leader's own record
    lacks-committed               who is elected has all that was committed in epochs before; votes that come
                                  late make a leader of an epoch that is over
    committed-changed             a committed batch is the same bytes, everywhere and for ever
    cut-below-watermark           a log is cut above what is committed alone
    log-gap                       offsets on the disk are continuous
    unequal-image                 equal offset, equal image
    leads-alone                   a leader whose majority does not fetch resigns
    helped-against-a-leader       who hears a leader grants no pre-vote
    later-epoch-sent              what a leader gives is of its epoch or earlier ones

What is durable is read from the disks' bytes (stored.py). Not here: what clients were told (history.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.node import ControllerNode
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.messages import Fetch, FetchReply, Message, Vote, VoteReply
from millrace.kraft.raft.quorum import majority
from millrace.kraft.raft.roles import Follower, Leader, Resigned
from millrace.kraft.raft.voters import STATIC, Voter, VoterSet
from millrace.runtime.rand import Rand
from tests.sim.disk import SimDisk
from tests.sim.loop import SimLoop
from tests.sim.quorum.digest import Digests
from tests.sim.quorum.history import History
from tests.sim.quorum.replica import Replica
from tests.sim.quorum.stored import Batch, StoredLog, parse, snapshots, vote
from tests.sim.quorum.voters import check_sets, directory_on

# Ticks that a leader may go on without a majority: by its settings, and for what waits on its disk.
ALONE_TICKS_MAX = 30 + 6


@dataclass
class Seen:
    """Of one replica's process."""

    life: int = -1
    watermark: int = 0
    commit_end: int = 0
    image: MetadataImage | None = None
    led_epoch: int = -1
    # as a leader: when each voter's fetch of this epoch last reached it
    heard_ticks: dict[int, int] = field(default_factory=dict)


class Watch:
    def __init__(
        self, loop: SimLoop, history: History, replicas: Mapping[int, Replica], voters: Sequence[int]
    ) -> None:
        self.counts: Counter[str] = Counter()  # of what was looked at
        self.hits: Counter[str] = Counter()
        self.leaders: dict[int, tuple[int, int]] = {}  # epoch -> node, life
        self.committed: dict[int, Batch] = {}  # by base
        self.committed_end = 0
        self._ends: dict[int, int] = {}  # as each epoch has committed
        # (voter, epoch, its disk) -> candidate
        self._votes: dict[tuple[int, int, int], int] = {}
        self._digests: dict[int, tuple[str, str]] = {}  # offset -> digest, and whose image it was
        self._logs = {node_id: StoredLog() for node_id in replicas}
        self._digesters = {node_id: Digests() for node_id in replicas}
        self._lost: dict[tuple[int, bytes], tuple[StoredLog, SimDisk]] = {}  # by directory
        self._seen = {node_id: Seen() for node_id in replicas}
        self._loop = loop
        self._history = history
        self._replicas = replicas
        self._voters = voters

    def _find(self, kind: str, text: str) -> None:
        self._history.find(kind, text)

    def _sets(self, replica: Replica, watermark: int) -> list[VoterSet]:
        """Those whose majority may have committed what this replica says to be: the leader's by now, its own,
        or those before another record of voters that stands above."""
        raft = replica.raft
        if raft is None or raft.voter_set.kraft_version == STATIC:
            return [VoterSet.static(self._voters)]
        leader = self._replicas.get(raft.leader)
        leading = leader.raft if leader is not None and leader.raft is not None else raft
        found = [raft.log.voters.at(watermark), raft.log.voters.last, leading.log.voters.last]
        return list(dict.fromkeys(found))

    def on_disk_lost(self, node_id: int) -> None:
        """Nothing of what it had said binds the new one; what it had acknowledged was durable when it did.
        Told while the disk is there."""
        disk = self._replicas[node_id].disk
        self._lost[node_id, directory_on(disk)] = self._logs[node_id], disk
        self._logs[node_id], self._seen[node_id] = StoredLog(), Seen()
        self._digesters[node_id] = Digests()

    # Messages.

    def on_send(self, message: Message) -> None:
        replica = self._replicas[message.source]
        if isinstance(message, VoteReply) and message.is_granted and not message.is_pre_vote:
            self._on_vote(replica, message.epoch, message.target)
        elif isinstance(message, Vote) and not message.is_pre_vote:
            self._on_vote(replica, message.epoch, message.source)
        elif isinstance(message, Fetch) and message.offset:
            self._on_acknowledged(replica, message)
        elif isinstance(message, VoteReply) and not message.is_granted:
            self.hits["votes refused"] += 1
        elif isinstance(message, FetchReply):
            self.counts["replies"] += 1
            self.hits["logs diverged"] += message.diverging is not None
            if any(entry.epoch > message.epoch for entry in message.entries):
                self._find("later-epoch-sent", repr(message))

    def _on_vote(self, replica: Replica, epoch: int, candidate: int) -> None:
        self.counts["votes"] += 1
        durable_epoch, voted = vote(replica.disk)
        if durable_epoch < epoch or (durable_epoch == epoch and voted != candidate):
            text = f"{replica} for {candidate} in {epoch}; durable: {voted} in {durable_epoch}"
            self._find("vote-not-durable", text)
        key = replica.node_id, epoch, replica.disk_count
        other = self._votes.setdefault(key, candidate)
        if other != candidate:
            self._find("voted-twice", f"{replica} in {epoch}: for {other} and {candidate}")

    def _on_acknowledged(self, replica: Replica, message: Fetch) -> None:
        self.counts["acknowledgements"] += 1
        batch = self._logs[replica.node_id].ending_at(replica.disk, message.offset)
        if batch is not None and batch.epoch == message.last_epoch:
            return
        if any(end >= message.offset for end, _, _ in snapshots(replica.disk)):
            return  # a snapshot has taken the place of the log that this was said of
        self._find("acknowledged-before-durable", f"{message!r}: there is {batch}")

    def before_step(self, replica: Replica, message: Message) -> bool:
        """Whether the replica, as it is, may not grant what this message asks for."""
        raft = replica.raft
        if isinstance(message, Fetch) and raft is not None and message.epoch == raft.epoch:
            self._seen[replica.node_id].heard_ticks[message.source] = raft.now
        is_pre_vote = isinstance(message, Vote) and message.is_pre_vote
        if not is_pre_vote or raft is None or message.epoch > raft.epoch:
            return False
        return isinstance(raft.role, Leader) or (isinstance(raft.role, Follower) and raft.role.has_fetched)

    def after_step(self, replica: Replica, message: Message, may_not_grant: bool) -> None:
        raft = replica.raft
        if may_not_grant and raft is not None:
            self.counts["pre-votes to who hears a leader"] += 1
            reply = raft._messages[-1]
            if isinstance(reply, VoteReply) and reply.is_granted:
                self._find("helped-against-a-leader", f"{raft.role!r}: {message!r}")

    # Processes.

    def look(self, replica: Replica) -> None:
        raft = replica.raft
        if raft is None or replica.node is None:
            return
        seen = self._seen[replica.node_id]
        if seen.life != replica.life_count:
            seen = self._seen[replica.node_id] = Seen(replica.life_count, image=seen.image)
        if isinstance(raft.role, Resigned) and seen.led_epoch == raft.epoch:
            seen.led_epoch = -1
            self.hits["resigned without a majority"] += 1
        if isinstance(raft.role, Leader):
            self._on_leader(replica, raft, raft.role, seen)
        if raft.high_watermark != seen.watermark:
            self._on_watermark(replica, raft, seen)
        if raft.commit_end > seen.commit_end:
            self._on_commit(replica, replica.node, raft, seen)
        image = replica.node.publisher.image
        if image is not seen.image:
            self.on_image(replica, image)

    def _on_leader(self, replica: Replica, raft: Raft, role: Leader, seen: Seen) -> None:
        if seen.led_epoch != role.epoch:
            if vote(replica.disk)[0] < role.epoch:
                return  # by its own vote alone, which is not durable: a process killed now has led nobody
            seen.led_epoch = role.epoch
            seen.heard_ticks = {}
            self.counts["leaders"] += 1
            who = replica.node_id, replica.life_count
            other = self.leaders.setdefault(role.epoch, who)
            if other[0] != who[0]:
                self._find("two-leaders", f"of {role.epoch}: {other[0]} and {who[0]}")
            elif other != who:
                self._find("led-again", f"{replica} leads {role.epoch} in another life")
            committed_end = max((end for at, end in self._ends.items() if at < role.epoch), default=0)
            if role.start < committed_end:
                text = f"{replica} leads {role.epoch} from {role.start}, committed: {committed_end}"
                self._find("lacks-committed", text)
        if raft.voter_set.kraft_version != STATIC:
            check_sets(self._history, replica, raft)
            return  # who has just become a voter fetched as an observer
        heard = [raft.now - max(role.since, seen.heard_ticks.get(voter, 0)) for voter in self._voters]
        alive = sum(
            voter == replica.node_id or ago <= ALONE_TICKS_MAX
            for voter, ago in zip(self._voters, heard, strict=True)
        )
        if alive < majority(len(self._voters)):
            self._find("leads-alone", f"{replica} in {role.epoch}, who fetched ticks ago: {heard}")

    def _on_watermark(self, replica: Replica, raft: Raft, seen: Seen) -> None:
        watermark = raft.high_watermark
        if watermark < seen.watermark:
            self._find("watermark-fell", f"{replica}: {seen.watermark}, then {watermark}")
        seen.watermark = watermark
        role = raft.role
        is_in_snapshot = any(end >= watermark for end, _, _ in snapshots(replica.disk))  # of another life
        if isinstance(role, Leader) and self.committed_end < watermark <= role.start and not is_in_snapshot:
            self._find("old-epoch-committed", f"{replica}: {watermark}, its epoch begins at {role.start}")
        if watermark <= self.committed_end:
            return
        self.counts["watermarks"] += 1
        self.committed_end = self._ends[raft.epoch] = watermark
        own = self._logs[replica.node_id].ending_at(replica.disk, watermark)
        sets = self._sets(replica, watermark)
        held = [[one.node_id for one in known.voters if self._holds(one, watermark, own)] for known in sets]
        if all(len(holders) < majority(len(known.voters)) for holders, known in zip(held, sets, strict=True)):
            self._find("watermark-beyond-majority", f"{replica}: {watermark} of {sets}, durable at {held}")

    def _holds(self, voter: Voter, end: int, batch: Batch | None) -> bool:
        log, disk = self._logs[voter.node_id], self._replicas[voter.node_id].disk
        if not voter.is_at(directory_on(disk)):
            log, disk = self._lost.get((voter.node_id, voter.directory_id), (StoredLog(), SimDisk(Rand(b""))))
        found = log.ending_at(disk, end)
        if found is not None:
            return batch is None or found == batch
        return any(known[0] >= end for known in snapshots(disk))

    def _on_commit(self, replica: Replica, node: ControllerNode, raft: Raft, seen: Seen) -> None:
        start, seen.commit_end = seen.commit_end, raft.commit_end
        if gap := self._logs[replica.node_id].gap(replica.disk, max(raft.log.start, node.log.start)):
            self._find("log-gap", f"{replica}: {gap}")
        for batch in self._logs[replica.node_id].within(replica.disk, start, raft.commit_end):
            self.counts["committed batches"] += 1
            known = self.committed.setdefault(batch.base, batch)
            if known != batch:
                self._find("committed-changed", f"{replica}: {batch}, before: {known}")

    def on_image(self, replica: Replica, image: MetadataImage) -> None:
        self._seen[replica.node_id].image = image
        self.counts["images"] += 1
        digest = self._digesters[replica.node_id].of(image)
        whose = f"{replica}.{replica.life_count}"
        known = self._digests.setdefault(image.offset, (digest, whose))
        if known[0] != digest:
            self._find("unequal-image", f"at {image.offset}: of {whose} and of {known[1]}")
        self._history.on_image(replica, image)

    def on_cut(self, replica: Replica, end_bytes: int, path: str) -> None:
        """The log is about to be cut there."""
        raft = replica.raft
        if raft is None:
            return
        self.counts["logs cut"] += 1
        base = int(path.rpartition("/")[2][:20])
        data = replica.disk.files[path].visible
        end = max([base, *(batch.end for at, batch in parse(data) if at <= end_bytes)])
        if end < min(raft.high_watermark, self._logs[replica.node_id].end(replica.disk)):
            self._find("cut-below-watermark", f"{replica} at {end}, committed: {raft.high_watermark}")

    def end_of(self, node_id: int, disk: SimDisk) -> int:
        return self._logs[node_id].end(disk)
