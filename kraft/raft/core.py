"""Raft as Kafka does it, as a function: messages, ticks and what became durable go in, a Ready comes out.

The caller's loop:

    raft.start()
    on a message, a tick, a proposal:  raft.step(message) | raft.tick() | raft.propose(payload, count)
    then ready = raft.ready(), and in this order:
        persist ready.state                          (a vote not remembered is a vote given twice)
        cut the log at ready.truncate_to             (a follower whose log diverged)
        append ready.entries, sync
        raft.on_persisted(entries); raft.ready() again   (a quorum of one commits here)
        send ready.messages, if raft.may_send        (a fetch says that all below its offset is durable)
        apply what is committed, up to ready.commit_end

Persisting may take its time: messages may be stepped, and a later Ready taken, meanwhile. What is said to be
durable then counts as far as the log still has those very entries.

Followers pull: a Fetch is the acknowledgement of everything below its offset. Pre-vote: one asks in one's own
epoch before raising it. A leader whose majority no longer fetches resigns. It serves only what is durable at
itself, so that what the disk would not take can be dropped unseen.

Who votes stands in the log, and is in force as soon as it does (KIP-853): one change at a time, of one voter,
by a leader that has committed in its epoch. A voter is an id and a directory: a node of the id with another
directory is an observer, and whoever asks it as the voter is told so.

Not here: bytes, clocks, sockets, chance (`random_below` is handed in), what the payloads mean. Kept true: one
leader an epoch (a vote is durable before it is sent, and one an epoch); the high watermark never falls;
nothing of an earlier epoch is committed before the leader's own LeaderChange is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millrace.kraft.config import RaftSettings
from millrace.kraft.errors import NotLeader
from millrace.kraft.raft.log_view import Entry, LogView
from millrace.kraft.raft.messages import (
    NOBODY,
    BeginEpoch,
    BeginEpochReply,
    EndEpoch,
    Fetch,
    FetchReply,
    Message,
    Reply,
    Vote,
    VoteReply,
)
from millrace.kraft.raft.progress import Progress, assigned
from millrace.kraft.raft.quorum import VoteResult, count_votes, majority, majority_end
from millrace.kraft.raft.ready import LeaderChange, QuorumState, Ready
from millrace.kraft.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
    leader_in,
    voted_in,
)
from millrace.kraft.raft.voters import BEFORE_LOG, NO_DIRECTORY, STATIC, VotersChange, VoterSet


class Raft:
    def __init__(
        self, settings: RaftSettings, state: QuorumState, log: LogView, random_below: Callable[[int], int]
    ) -> None:
        self.node_id = settings.node_id
        self.directory_id = settings.directory_id
        self.log = log
        log.voters.static = VoterSet.static(settings.voters)
        self.high_watermark = log.snapshot[0] if log.snapshot else 0
        self.now = 0  # ticks
        self.settings = settings
        self._random_below = random_below
        self._saved = state
        self._voted_directory = state.voted_directory  # of whom it voted for in this epoch, if for anybody
        self._given = log.end  # entries below were given to the caller
        self._messages: list[Message] = []
        self._truncate_to: int | None = None
        self._snapshot: tuple[int, int] | None = None
        # the snapshot that the leader named last, and the log that it is to take the place of
        self._wanted: tuple[tuple[int, int], int, int] | None = None
        self.least = (NOBODY, 0)  # epoch and end: a shorter log is nobody's who is elected here
        self._stands_from = 0  # ticks: it gave way, and others may stand before it
        # the last epoch whose leader said that it leads no more, and for how long that is believed
        self._ended, self._ended_until = NOBODY, 0
        # Whom it followed last, and when that said anything last (ticks); nobody once it gave way in order.
        self.heard = (NOBODY, 0)
        self.role: Role
        if state.leader == self.node_id:
            self.role = Resigned(state.epoch, self._election_due())
        elif state.leader != NOBODY:
            self.role = Follower(state.epoch, state.leader, self._election_due(), state.voted)
        else:
            self.role = Unattached(state.epoch, self._election_due(), state.voted)

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def leader(self) -> int:
        return leader_in(self.role, self.node_id)

    @property
    def is_leader(self) -> bool:
        return isinstance(self.role, Leader)

    @property
    def commit_end(self) -> int:
        """What is committed, and durable here: may be applied."""
        return min(self.high_watermark, self.log.stable_end)

    @property
    def is_alone(self) -> bool:
        """This node is the whole quorum."""
        return self.voter_set.is_only(self.node_id, self.directory_id)

    @property
    def is_voter(self) -> bool:
        return self.voter_set.has(self.node_id, self.directory_id)

    @property
    def may_stand(self) -> bool:
        """A voter, or one that is removed and does not know that to be committed: who alone holds the record
        that removes it must be able to lead, for nobody whose log is shorter can."""
        known = self.log.voters.since(self.high_watermark)
        return self.is_voter or any(one.has(self.node_id, self.directory_id) for one in known)

    @property
    def voter_set(self) -> VoterSet:
        """In force, committed or not."""
        return self.log.voters.last

    @property
    def voters(self) -> tuple[int, ...]:
        return self.voter_set.ids

    @property
    def may_change_voters(self) -> bool:
        """It leads and has committed in its epoch, and the voters in force are committed."""
        role, end = self.role, self.high_watermark
        return isinstance(role, Leader) and role.start < end and self.log.voters.last_offset < end

    # Inputs.

    def require(self, epoch: int, end: int) -> None:
        """Metadata is known to be committed up to there: with a shorter log this node does not stand, and
        elects nobody. To be said before `start`."""
        self.least = epoch, end

    def expect_committed(self, end: int) -> None:
        """All below `end` is committed: what is there had this node alone for a quorum. To be said before
        `start`."""
        self.high_watermark = max(self.high_watermark, min(end, self.log.stable_end))

    def start(self) -> None:
        """A quorum of one elects itself at once, but where it lacks what is required; a follower goes on
        fetching."""
        if self.is_alone and self.log.reaches(self.least):
            self._become_candidate()
        elif isinstance(self.role, Follower):
            self._send_fetch(self.role)

    def propose(self, payload: Any, count: int) -> Entry:
        """Takes `count` records into the log, in order; their offsets are final unless the entry is dropped.
        Raises NotLeader where another leads, or nobody."""
        if not isinstance(self.role, Leader):
            raise NotLeader(self.leader)
        entry = Entry(self.log.end, count, self.epoch, payload)
        self.log.append(entry)
        return entry

    def change_voters(self, change: VotersChange) -> Entry:
        """Takes another voter set into the log: it is in force from here on, and this node leads until it is
        committed even where it has no place in it. To be asked while `may_change_voters`; the sets may differ
        by one voter. Raises NotLeader."""
        role = self.role
        if not isinstance(role, Leader):
            raise NotLeader(self.leader)
        before, after = self.voter_set, change.on(self.voter_set)
        assert self.may_change_voters, (self.log.voters.last_offset, self.high_watermark)
        assert after.voters, "nobody would be left to decide"
        assert after.is_next_to(before), (before, after)
        count = sum(part is not None for part in (change.kraft_version, change.voters))
        entry = Entry(self.log.end, count, self.epoch, change, is_control=True, change=change)
        self.log.append(entry)
        self._assign(role)
        return entry

    def drop_unstable(self) -> None:
        """The disk has no room for what was proposed or fetched: nobody has heard that it is here, so it
        never was. Who leads and cannot write the epoch's own record leads no more."""
        if self.is_opening_epoch:
            self.resign()
        self.log.truncate(self.log.stable_end)
        self._given = self.log.end
        if isinstance(self.role, Leader):
            self._assign(self.role)

    @property
    def is_opening_epoch(self) -> bool:
        """It leads, and the epoch's own record is not durable here."""
        return isinstance(self.role, Leader) and self.role.start >= self.log.stable_end

    def may_send(self, message: Message) -> bool:
        """Whether what the message says of our log is durable: it is once the entries of its Ready are, and
        is not where they were dropped."""
        if isinstance(message, Fetch):
            return message.offset <= self.log.stable_end
        return not isinstance(message, Vote) or message.end <= self.log.stable_end

    def on_persisted(self, entries: Sequence[Entry]) -> None:
        """These entries of a Ready are durable, and all that were given before them; told in the order of
        writing."""
        end = self.log.end_of_given(entries)
        if end <= self.log.stable_end:
            return  # a new leader's log has taken their place meanwhile
        self.log.on_persisted(end)
        if isinstance(self.role, Leader):
            if self.is_voter:
                self.role.voters[self.node_id].on_fetch(self._own_fetch(), self.now, end)
            self._advance(self.role)

    def wants_snapshot(self, end: int, epoch: int) -> bool:
        """Whether the snapshot that was asked for still has to take the log's place, whatever later one the
        leader has by now: a log that has moved since may have been acknowledged to another leader, who says
        anew what it lacks."""
        if self._wanted is None:
            return False
        latest, *place = self._wanted
        return latest >= (end, epoch) and place == [self.log.end, self.log.last_epoch]

    def on_snapshot_asked(self, replica_id: int, directory_id: bytes = NO_DIRECTORY) -> None:
        """A piece of our snapshot was given to a replica, which asks for nothing else until it has all: a
        voter is as alive as if it had fetched."""
        if isinstance(self.role, Leader) and self.voter_set.has(replica_id, directory_id):
            self.role.voters[replica_id].fetched_at = self.now

    def on_snapshot_piece(self, leader: int) -> None:
        """The leader gave a piece of its snapshot: it is alive."""
        if isinstance(self.role, Follower) and self.role.leader == leader:
            self.role.due = self.now + self.settings.fetch_ticks
            self.heard = leader, self.now

    def on_fetch_lost(self) -> None:
        """A fetch was not answered, and will not be: the connection broke, or who was asked leads no more, or
        knows of nobody who does. An observer asks the voters with the next tick, until it gives the leader
        up; a voter is told who leads."""
        if isinstance(self.role, Follower) and not self.is_voter:
            self.role.fetching_since = self.now - self._fetch_retry_ticks()

    def on_snapshot_fetched(self, end: int, epoch: int, voters: VoterSet | None = None) -> None:
        """The leader's snapshot took the place of the log, durably; it names `voters`, or none."""
        self.log.restart_at(end, epoch, voters)
        self._given, self._truncate_to, self._snapshot = end, None, None
        self.high_watermark = max(self.high_watermark, end)
        if isinstance(self.role, Follower):
            self._send_fetch(self.role)

    def take_fetches(self) -> list[Message]:
        """Of the messages to come those that need nothing persisted before them, for a caller that is long at
        a snapshot: a leader that does not hear of it would count it as gone."""
        if self._state() != self._saved:
            return []
        found: list[Message] = [
            one for one in self._messages if isinstance(one, Fetch) and self.may_send(one)
        ]
        self._messages = [one for one in self._messages if not isinstance(one, Fetch)]
        return found

    def resign(self) -> None:
        """Steps down and tells the others, those first who are furthest. A quorum of one has nobody to
        tell."""
        role = self.role
        if not isinstance(role, Leader):
            return
        others = [voter for voter in self.voters if voter != self.node_id]
        others.sort(key=lambda voter: (-role.voters[voter].end, voter))
        directories = tuple(map(self.voter_set.directory_of, others))
        self._step_down(Resigned(self.epoch, self._election_due()))
        for voter in others:
            self._send(EndEpoch(self.node_id, voter, self.epoch, tuple(others), directories))

    def give_way(self, ticks: int) -> None:
        """Of a leader that cannot do its work, where another may: resigns, and does not stand of its own
        accord for so many ticks."""
        if isinstance(self.role, Leader):
            self._stands_from = self.now + ticks
            self.resign()

    def tick(self) -> bool:
        """Whether `ready` may have anything to tell: at rest most ticks change nothing."""
        self.now += 1
        role = self.role
        if isinstance(role, Leader):
            self._tick_leader(role)
        elif self.now >= role.due:
            self._on_due(role)
        elif isinstance(role, Follower) and self.now - role.fetching_since >= self._fetch_retry_ticks():
            if self.is_voter:
                self._send_fetch(role)
            else:
                self._ask_for_leader()
                role.fetching_since = self.now
        elif isinstance(role, Prospective | Candidate):
            self._resend_votes(role)
        return bool(self._messages) or self.role is not role

    def step(self, message: Message) -> None:
        assert message.target == self.node_id, message
        if message.source == self.heard[0]:
            self.heard = message.source, self.now
        if isinstance(message, Vote):
            self._on_vote(message)
        elif isinstance(message, Fetch):
            self._on_fetch(message)
        elif isinstance(message, BeginEpoch):
            self._on_begin_epoch(message)
        elif isinstance(message, EndEpoch):
            self._on_end_epoch(message)
        else:
            assert isinstance(message, Reply), message
            self._on_reply(message)

    # Output.

    def ready(self) -> Ready:
        """Everything there is to do since the last call."""
        state = self._state()
        ready = Ready(
            state if state != self._saved else None,
            self._truncate_to,
            self._snapshot,
            [entry for entry in self.log.unstable if entry.base >= self._given],
            self._messages,
            self.commit_end,
        )
        self._saved, self._truncate_to, self._snapshot = state, None, None
        self._given, self._messages = self.log.end, []
        return ready

    def _state(self) -> QuorumState:
        role, version = self.role, self.voter_set.kraft_version
        if isinstance(role, Leader | Resigned):
            voted, leader = self.node_id, self.node_id
        else:
            voted, leader = voted_in(role, self.node_id), leader_in(role, self.node_id)
        directory = self.directory_id if voted == self.node_id else self._voted_directory
        is_remembered = voted != NOBODY and version != STATIC
        return QuorumState(role.epoch, leader, voted, directory if is_remembered else NO_DIRECTORY, version)

    # Elections.

    def _on_due(self, role: Unattached | Follower | Prospective | Candidate | Resigned) -> None:
        if self.may_stand and self.log.reaches(self.least) and self.now >= self._stands_from:
            self._become_prospective()
        else:
            self.role = Unattached(role.epoch, self._election_due(), voted_in(role, self.node_id))
            self._ask_for_leader()

    def _ask_for_leader(self) -> None:
        """Of an observer, whom a new leader does not know: any voter answers a fetch with who leads. And of a
        voter that may not stand."""
        others = [*(voter for voter in self.voters if voter != self.node_id), *self.settings.bootstrap]
        if others:
            self._send(self._fetch_message(others[self._random_below(len(others))]))

    def _step_down(self, role: Unattached | Follower | Resigned) -> None:
        """Takes the role; a leader's parked fetches are told that it is none."""
        before, self.role = self.role, role
        for progress in self._parked(before) if isinstance(before, Leader) else ():
            message, progress.parked = progress.parked, None
            if message is not None:
                self._send_reply(message, FetchReply(self.node_id, message.source, self.epoch, self.leader))

    def _become_unattached(self, epoch: int, voted: int = NOBODY) -> None:
        self._step_down(Unattached(epoch, self._election_due(), voted))

    def _become_follower(self, epoch: int, leader: int) -> None:
        voted = voted_in(self.role, self.node_id) if epoch == self.epoch else NOBODY
        assert not (isinstance(self.role, Leader) and epoch == self.epoch), (self.role, leader)
        role = Follower(epoch, leader, self.now + self.settings.fetch_ticks, voted)
        self.heard = leader, self.now
        self._step_down(role)
        self._send_fetch(role)

    def _become_prospective(self) -> None:
        voted = voted_in(self.role, self.node_id)
        leader = leader_in(self.role, self.node_id)
        self.role = Prospective(self.epoch, self._election_due(), voted, leader)
        self.role.votes[self.node_id] = True
        self._ask_votes(self.role)

    def _become_candidate(self) -> None:
        self.role = Candidate(self.epoch + 1, self._election_due())
        self.role.votes[self.node_id] = True
        self._ask_votes(self.role)

    def _become_leader(self, granted_by: tuple[int, ...]) -> None:
        epoch = self.epoch
        progress = {voter: Progress() for voter in self.voters}
        if self.is_voter:
            progress[self.node_id].on_fetch(self._own_fetch(), self.now, self.log.end)
        self.role = Leader(epoch, self.log.end, self.now, granted_by, progress)
        self.log.append(self._opening(epoch, granted_by))
        self._announce(self.role)

    def _opening(self, epoch: int, granted_by: tuple[int, ...]) -> Entry:
        """The epoch's own record; behind it the voters that a directory was formatted with, for those whose
        directory was not."""
        known = self.voter_set
        if known.kraft_version == STATIC:
            change = LeaderChange(self.node_id, known.ids, granted_by)
            return Entry(self.log.end, 1, epoch, change, is_control=True)
        is_first = self.log.voters.last_offset == BEFORE_LOG
        change = LeaderChange(self.node_id, known.ids, granted_by, known, is_first)
        if not is_first:
            return Entry(self.log.end, 1, epoch, change, is_control=True)
        first = VotersChange(known.kraft_version, known.voters)
        return Entry(self.log.end, 3, epoch, change, is_control=True, change=first)

    def _assign(self, role: Leader) -> None:
        """Another voter set is in force."""
        role.voters, role.observers = assigned(self.voter_set, role.voters, role.observers)

    def _ask_votes(self, role: Prospective | Candidate) -> None:
        self._count(role)
        if self.role is role:
            self._resend_votes(role, at_once=True)

    def _resend_votes(self, role: Prospective | Candidate, at_once: bool = False) -> None:
        if not at_once and (role.due - self.now) % self.settings.retry_ticks:
            return
        asked = role.epoch, self.log.last_epoch, self.log.end, isinstance(role, Prospective)
        for voter in self.voter_set.voters:
            if voter.node_id not in role.votes:
                keys = self.directory_id, voter.directory_id
                self._send(Vote(self.node_id, voter.node_id, *asked, *keys))

    def _count(self, role: Prospective | Candidate) -> None:
        result = count_votes(self.voters, role.votes)
        if result is VoteResult.WON and isinstance(role, Prospective):
            self._become_candidate()
        elif result is VoteResult.WON:
            self._become_leader(tuple(voter for voter in self.voters if role.votes.get(voter)))
        elif result is VoteResult.LOST and isinstance(role, Prospective):
            if role.leader == NOBODY or self._is_ended(role.epoch):
                self._become_unattached(role.epoch, role.voted)
            else:
                self._become_follower(role.epoch, role.leader)
        elif result is VoteResult.LOST:
            role.due = min(role.due, self.now + 1 + self._random_below(self.settings.backoff_ticks_max))

    def _on_vote(self, message: Vote) -> None:
        if message.epoch > self.epoch:
            self._become_unattached(message.epoch)
        is_meant = self._is_meant(message.target_directory)
        is_granted = is_meant and message.epoch == self.epoch and self._would_grant(message)
        if is_granted and not message.is_pre_vote:
            self._become_unattached(self.epoch, message.source)
            self._voted_directory = message.directory_id
        answer = self.epoch, self.leader, is_granted, message.is_pre_vote, not is_meant
        self._send_reply(message, VoteReply(self.node_id, message.source, *answer))

    def _is_meant(self, target_directory: bytes) -> bool:
        return target_directory in (NO_DIRECTORY, self.directory_id)

    def _would_grant(self, message: Vote) -> bool:
        """In the same epoch. A candidate's log must hold all that ours does; who knows a live leader helps
        nobody."""
        role = self.role
        if (message.last_epoch, message.end) < max((self.log.last_epoch, self.log.end), self.least):
            return False
        if message.is_pre_vote:
            return not isinstance(role, Leader) and not (isinstance(role, Follower) and role.has_fetched)
        if isinstance(role, Unattached | Prospective):
            if role.voted == message.source:
                return self._voted_directory in (NO_DIRECTORY, message.directory_id)
            return role.voted == NOBODY and self.leader == NOBODY
        return False

    def _on_begin_epoch(self, message: BeginEpoch) -> None:
        self._observe(message.epoch, message.source, message.source)
        answer = self.epoch, self.leader, not self._is_meant(message.target_directory)
        self._send_reply(message, BeginEpochReply(self.node_id, message.source, *answer))

    def _on_end_epoch(self, message: EndEpoch) -> None:
        """The further back in the leader's list, the later one stands, so that the first usually wins
        alone. What the leader had sent before may come later, by another connection: it is no sign of life
        any more. For a while: a leader that others still follow then is one that never said so."""
        self._observe(message.epoch, message.source, message.source)
        role = self.role
        if message.epoch != self.epoch or self.leader not in (NOBODY, message.source):
            return
        self._ended, self._ended_until = self.epoch, self.now + self.settings.fetch_ticks
        self.heard = (NOBODY, 0)
        if not isinstance(role, Follower) or not self.may_stand:
            return
        place = (
            message.preferred.index(self.node_id) if self.node_id in message.preferred else len(self.voters)
        )
        role.has_fetched = False
        role.due = self.now + place * self.settings.retry_ticks
        if place == 0:
            self._on_due(role)

    def _on_reply(self, message: Reply) -> None:
        before = self.role
        self._observe(message.epoch, message.leader, message.source)
        role = self.role
        if message.epoch != role.epoch:
            return
        if isinstance(message, VoteReply) and isinstance(role, Prospective | Candidate):
            if message.is_pre_vote == isinstance(role, Prospective) and message.source not in role.votes:
                role.votes[message.source] = message.is_granted
                self._count(role)
        elif isinstance(message, BeginEpochReply) and isinstance(role, Leader):
            if message.source in role.voters and not message.is_wrong_key:
                role.voters[message.source].knows_leader = True
        elif isinstance(message, FetchReply) and isinstance(role, Follower):
            if message.leader != role.leader:
                self.on_fetch_lost()
            elif message.source == role.leader:
                self._on_fetch_reply(role, message)
            elif role is before:
                self._send_fetch(role)  # whom we asked who leads names the one we know

    def _observe(self, epoch: int, leader: int, source: int) -> None:
        """Follows what a message says of epochs and leaders. A lower epoch is told of ours by the reply it
        gets."""
        if epoch < self.epoch:
            return
        is_known = leader not in (NOBODY, self.node_id) and not self._is_ended(epoch)
        is_missed = self.leader == NOBODY and not isinstance(self.role, Resigned)
        is_alive = isinstance(self.role, Prospective) and leader == source
        if is_known and (epoch > self.epoch or is_missed or is_alive):
            self._become_follower(epoch, leader)
        elif epoch > self.epoch:
            self._become_unattached(epoch)

    def _is_ended(self, epoch: int) -> bool:
        return epoch == self._ended and self.now < self._ended_until

    # Replication: the leader's side.

    def _tick_leader(self, role: Leader) -> None:
        self._answer_parked(role, only_due=True)
        horizon = self.now - self.settings.fetch_ticks * 3 // 2
        alive = sum(
            voter == self.node_id or max(p.fetched_at, role.since) > horizon
            for voter, p in role.voters.items()
        )
        if alive < majority(len(self.voters)):
            self.resign()
        elif (self.now - role.since) % self.settings.retry_ticks == 0:
            self._announce(role)
            last = self.now - self.settings.observer_ticks
            role.observers = {who: one for who, one in role.observers.items() if one.fetched_at > last}

    def _announce(self, role: Leader) -> None:
        for voter, progress in role.voters.items():
            if voter != self.node_id and not progress.knows_leader:
                directory = self.voter_set.directory_of(voter)
                self._send(BeginEpoch(self.node_id, voter, role.epoch, directory))

    def _on_fetch(self, message: Fetch) -> None:
        if message.epoch > self.epoch:
            self._become_unattached(message.epoch)
        role = self.role
        if not isinstance(role, Leader) or message.epoch < self.epoch:
            self._send_reply(message, FetchReply(self.node_id, message.source, self.epoch, self.leader))
            return
        progress = self._progress_of(role, message)
        if (answer := self.log.check_fetch(message.offset, message.last_epoch)) is not None:
            progress.on_refused(self.now)
            self._refuse_fetch(message, answer)
            return
        progress.on_fetch(message, self.now, self.log.stable_end)
        progress.park(message, self.now)
        self._advance(role)
        if message.offset < self.log.stable_end or message.high_watermark < self.high_watermark:
            self._answer(progress)

    def _progress_of(self, role: Leader, message: Fetch) -> Progress:
        if self.voter_set.has(message.source, message.directory_id):
            return role.voters[message.source]
        key = message.source, message.directory_id
        return role.observers.setdefault(key, Progress(directory_id=message.directory_id))

    def _refuse_fetch(self, message: Fetch, answer: tuple[int, int] | str) -> None:
        asked = message.offset, message.last_epoch
        reply = FetchReply(self.node_id, message.source, self.epoch, self.node_id, *asked)
        reply.high_watermark = self.high_watermark
        if isinstance(answer, tuple):
            reply.diverging = answer
        else:
            reply.snapshot = self.log.snapshot
        self._send_reply(message, reply)

    def _advance(self, role: Leader) -> None:
        """Raises the high watermark to what a majority holds, once that includes the epoch's first record."""
        end = majority_end(progress.end for progress in role.voters.values())
        if end > self.high_watermark and end > role.start:
            self.high_watermark = end
            self._answer_parked(role, only_due=False)
            if self.log.voters.last_offset < end and not self.is_voter:
                self.resign()
        elif self.log.stable_end > min(
            (p.parked.offset for p in self._parked(role) if p.parked), default=self.log.end
        ):
            self._answer_parked(role, only_due=False)

    def _parked(self, role: Leader) -> list[Progress]:
        return [p for p in (*role.voters.values(), *role.observers.values()) if p.parked is not None]

    def _answer_parked(self, role: Leader, only_due: bool) -> None:
        for progress in self._parked(role):
            if not only_due or self.now - progress.parked_at >= self.settings.park_ticks:
                self._answer(progress)

    def _answer(self, progress: Progress) -> None:
        message, progress.parked = progress.parked, None
        if message is not None:
            end = max(self.log.stable_end, message.offset)
            answer = message.offset, message.last_epoch, end, self.high_watermark
            reply = FetchReply(self.node_id, message.source, self.epoch, self.node_id, *answer)
            self._send_reply(message, reply)

    # Replication: the follower's side.

    def _on_fetch_reply(self, role: Follower, message: FetchReply) -> None:
        if self.denies_committed(message):
            return
        if not self._is_ended(self.epoch):
            role.due = self.now + self.settings.fetch_ticks
            role.has_fetched = True
        if (message.offset, message.last_epoch) != self.log.place:
            return  # late, or twice: it says nothing of the log as it is now
        if message.snapshot is not None:
            self._snapshot = message.snapshot
            self._wanted = message.snapshot, self.log.end, self.log.last_epoch
            return
        if message.diverging is not None:
            self._truncate(self.log.agreed_end(*message.diverging))  # the rest is not committed by this
        else:
            for entry in message.entries:
                self.log.append(entry)
            self.high_watermark = max(self.high_watermark, min(message.high_watermark, self.log.end))
            role.has_caught_up |= self.log.has_epoch_to(message.high_watermark, role.epoch)
        self._send_fetch(role)

    def denies_committed(self, message: FetchReply) -> bool:
        """By its answer whoever leads has another past than what is committed here: it is of another quorum,
        or was put back. Nothing of ours is given up for it."""
        if message.diverging is None or (message.offset, message.last_epoch) != self.log.place:
            return False
        return self.log.agreed_end(*message.diverging) < min(self.high_watermark, self.log.end)

    def _truncate(self, cut: int) -> None:
        assert cut >= min(self.high_watermark, self.log.end), (cut, self.high_watermark)
        if cut < self.log.end:
            self.log.truncate(cut)
            self._truncate_to = cut if self._truncate_to is None else min(cut, self._truncate_to)
            self._given = min(self._given, cut)

    def _send_fetch(self, role: Follower) -> None:
        role.fetching_since = self.now
        self._send(self._fetch_message(role.leader))

    def _fetch_message(self, target: int) -> Fetch:
        place = *self.log.place, self.high_watermark
        return Fetch(self.node_id, target, self.epoch, *place, self.directory_id)

    def _own_fetch(self) -> Fetch:
        end = self.log.stable_end
        return Fetch(self.node_id, self.node_id, self.epoch, end, directory_id=self.directory_id)

    def _fetch_retry_ticks(self) -> int:
        return self.settings.park_ticks + self.settings.retry_ticks

    def _election_due(self) -> int:
        """When to stand; an observer asks for the leader then."""
        if not self.may_stand:
            return self.now + self.settings.retry_ticks
        ticks = self.settings.election_ticks
        return self.now + ticks + self._random_below(ticks)

    def _send_reply(self, message: Message, reply: Reply) -> None:
        reply.request_id = message.request_id
        self._send(reply)

    def _send(self, message: Message) -> None:
        self._messages.append(message)
