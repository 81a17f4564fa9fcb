"""Carries out what the raft core says: persist, then send, then apply what is committed. One loop, one group
at a time.

What is proposed while a group is being written waits and makes the next group: one batch, one sync, however
many commands. So do a leader's batches that come meanwhile: one sync, however many. Not here: decisions of
the quorum (kraft/raft/core.py), meaning of records (controller.py), the network: `send` is given messages and
whoever runs it calls `step`. Kept true: nothing is sent or called committed before it is durable; groups are
written in order, never two at once; an error that is not a full disk ends the loop and is told to
`on_failed`, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from millrace.kraft.commit_watch import CommitWatch
from millrace.kraft.config import ControllerSettings
from millrace.kraft.errors import LogCorrupt, LogFull, OffsetWithinBatch, ProposalDropped, SnapshotCorrupt
from millrace.kraft.image.applier import Applier, StoredBatch
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.records import Proposal, encode_batch_yielding
from millrace.kraft.image.voter_records import (
    change_of,
    encode_leader_change,
    encode_voters_change,
    leading_voters,
)
from millrace.kraft.log.log_store import SYNCED_TOGETHER_BYTES_MAX, LogStore, SnapshotId
from millrace.kraft.log.reserve import Reserve
from millrace.kraft.log.snapshot import receive_snapshot
from millrace.kraft.news import QuorumNews
from millrace.kraft.raft.agreement import NO_OPENING, check_agreement
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import Entry
from millrace.kraft.raft.messages import NOBODY, FetchReply, Message
from millrace.kraft.raft.ready import LeaderChange, QuorumState
from millrace.kraft.raft.roles import Leader
from millrace.kraft.raft.voters import VotersChange
from millrace.protocol.batches import BatchHeader
from millrace.runtime.clock import Clock
from millrace.runtime.disk import Disk, DiskFull
from millrace.runtime.errors import Unavailable, in_words
from millrace.runtime.scheduling.yield_queue import run_yielding

log = logging.getLogger(__name__)
APPLY_BYTES: Final = 1 << 20  # of the log that are read and published as one change
FETCH_BYTES: Final = 1 << 20  # of the log in one answer to a follower
GIVE_WAY_EVERY_S: Final = 600.0  # at most
NO_ROOM_EVERY_S: Final = 60.0  # is said
GIVE_WAY_ELECTIONS: Final = 4  # election time-outs in which others may stand before it


class StateMachine(Protocol):
    """Who proposes, and is told what became of it; plain calls from the loop, which raise nothing."""

    def on_leading(self, epoch: int) -> None:
        """This node leads: the epoch's own record and all before it is committed and applied, and proposals
        are taken."""
        ...

    def on_writing(self) -> None:
        """What was proposed so far is being written; what is proposed from now on makes another group."""
        ...

    def outcome_on(self, image: MetadataImage) -> Outcome | None:
        """What follows `image` in the log, if this node decided on it: it is applied instead of the records,
        once it is committed."""
        ...

    def on_applied(self, end: int) -> None:
        """All below `end` is committed, and in the published image."""
        ...

    def on_dropped(self, end: int, error: Exception) -> None:
        """What was proposed at or above `end` is given up: leadership went, or the disk had no room."""
        ...

    def end(self, error: Exception) -> None:
        """The log failed: nothing will ever be committed again."""
        ...


class Outcome(Protocol):
    """Of records that follow one another: what they changed, and the image after them."""

    @property
    def delta(self) -> MetadataDelta: ...

    @property
    def image(self) -> MetadataImage: ...


class SnapshotSource(Protocol):
    """How a snapshot of the leader's gets here; the transport implements it."""

    def fetch(self, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        """The file's bytes, in order. Raises Unavailable where the leader does not give them: it is asked
        again."""
        ...


class Driver:
    def __init__(
        self,
        clock: Clock,
        disk: Disk,
        raft: Raft,
        store: LogStore,
        applier: Applier,
        reserve: Reserve,
        settings: ControllerSettings,
        send: Callable[[Message], None],
        on_failed: Callable[[BaseException], None],
        snapshots: SnapshotSource | None = None,
    ) -> None:
        self.raft = raft
        self.applier = applier
        self.reserve = reserve
        self._clock = clock
        self._disk = disk
        self._store = store
        self._snapshots = snapshots
        self._settings = settings
        self._send = send
        self._on_failed = on_failed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._machine: StateMachine | None = None
        self.leading_epoch = -1  # the epoch that the machine was told of
        self.news = QuorumNews(applier.end)
        self.opening = NO_OPENING  # of the last epoch in the log that another opened
        self.newest_ms = 0  # the latest time of what others wrote into the log since it was opened
        self._saved_version = raft.voter_set.kraft_version  # of quorum-state
        self._is_closing = False
        self._gives_way_from_s = 0.0
        self._commits = CommitWatch()
        self._no_room_from_s = 0.0  # when it may be said again
        self._denied_by = NOBODY  # the leader that answered last, where it has another past
        self.on_group: Callable[[], None] | None = None  # between groups, with all that was given durable
        # of what is durable; ControllerNode.commit_after says more
        self.before_commit: Callable[[], Awaitable[None]] | None = None

    def start(self, machine: StateMachine) -> None:
        self._machine = machine
        self.raft.start()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="metadata log")
        self._wake.set()

    @property
    def next_offset(self) -> int:
        """Where the next record proposed will lie."""
        return self.raft.log.end

    def propose(self, proposal: Proposal) -> Entry:
        """Takes records into the log, in order of the calls. Raises NotLeader. The machine hears of the
        commit."""
        entry = self.raft.propose(proposal, len(proposal.values))
        self._wake.set()
        return entry

    def change_voters(self, change: VotersChange) -> Entry:
        """Takes another voter set into the log, where it is in force at once. As `Raft.change_voters`."""
        entry = self.raft.change_voters(change)
        self._wake.set()
        return entry

    def step(self, message: Message) -> None:
        if isinstance(message, FetchReply):
            self._say_denied(message)
        self.raft.step(message)
        self._wake.set()

    def _say_denied(self, message: FetchReply) -> None:
        """Once for as long as it stays the same leader."""
        is_denied = self.raft.denies_committed(message)
        if is_denied and self._denied_by != message.source:
            log.error(
                "controller %d answers as a leader whose log lacks metadata that is committed here, below "
                "offset %d: it is of another quorum, as where nodes of one cluster are told different lists "
                "(controller.quorum.voters), or was put back to an older state. Nothing of it is taken. If "
                "both have decided, stop all controllers, give them the same list, and go on with one of the "
                "two logs: start the nodes that have the other with an empty log directory (log.dirs)",
                message.source,
                self.raft.high_watermark,
            )
        self._denied_by = message.source if is_denied else NOBODY

    def tick(self) -> None:
        if self.raft.tick() or not self.reserve.is_held:
            self._wake.set()
        self._commits.look(self.raft)

    async def close(self) -> None:
        """Writes what was proposed, then stops. Idempotent."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while await self._turn():
                    pass
                if self._is_closing:
                    return
        except Exception as error:
            log.critical("the metadata log failed: %s", in_words(error))
            machine = self._machine_or_fail()
            machine.on_dropped(self.raft.commit_end, error)
            machine.end(error)
            self._on_failed(error)

    async def _turn(self) -> bool:
        """Carries out one Ready; tells whether there may be another."""
        ready = self.raft.ready()
        self._check(ready.entries)
        if ready.entries:
            self._machine_or_fail().on_writing()
        is_work = bool(ready.state or ready.entries or ready.messages or ready.truncate_to is not None)
        state, raised = ready.state, None
        if state is not None and ready.entries and state.kraft_version > self._saved_version:
            state, raised = state.before_raise(self._saved_version), state
        if state is not None:
            await self._save(state)
        if ready.truncate_to is not None:
            await self._store.truncate(ready.truncate_to)
        if ready.snapshot is not None:
            await self._install(SnapshotId(*ready.snapshot))
        for group in groups(ready.entries, self._settings.group_bytes_max):
            if not await self._persist(group):
                break
            await self._apply(self.raft.commit_end)
        else:
            if raised is not None:  # behind the record that names the voters: this file no longer does
                await self._save(raised)
        for message in ready.messages:
            if self.raft.may_send(message):
                self._send(await self._filled(message))
        await self._apply(self.raft.commit_end)
        self._tell()
        if not self.reserve.is_held:
            self.give_way(f"its disk is full, or nearly: {self.reserve.path} finds no room")
        if is_work and self.on_group is not None:
            self.on_group()
        return is_work

    async def _save(self, state: QuorumState) -> None:
        await self.reserve.at_need(partial(self._store.save_state, state))
        self._saved_version = state.kraft_version

    def _check(self, entries: Sequence[Entry]) -> None:
        """Before anything of them is written. Raises VotersDiffer."""
        for entry in entries:
            if isinstance(entry.payload, bytes):
                self.newest_ms = max(self.newest_ms, BatchHeader(entry.payload).max_timestamp)
            if entry.is_control and isinstance(entry.payload, bytes):
                voters = leading_voters(memoryview(entry.payload))
                self.opening = self.opening if voters is None else (entry.epoch, voters)
        check_agreement(self.raft, self.opening)

    def _tell(self) -> None:
        raft, is_active = self.raft, self.leading_epoch >= 0
        told = raft.epoch, raft.leader, self.applier.end
        self.news.tell(*told, is_active=is_active, voters=raft.voter_set)

    def resign(self) -> None:
        """Leads no more, and says so to the others; nothing where it does not lead."""
        self.raft.resign()
        self._wake.set()

    def give_way(self, why: str) -> None:
        """Of a leader of several that cannot do all of its work: another is to lead, who may. Nothing where
        it does not lead, and seldom: where no other can do more the leadership does not go round."""
        now_s = asyncio.get_running_loop().time()
        if self.leading_epoch < 0 or self.raft.is_alone or now_s < self._gives_way_from_s:
            return
        self._gives_way_from_s = now_s + GIVE_WAY_EVERY_S
        log.warning("controller %d gives the leadership to another: %s", self.raft.node_id, why)
        self.raft.give_way(GIVE_WAY_ELECTIONS * self._settings.ticks.election)
        self._wake.set()

    async def _apply(self, commit_end: int) -> None:
        """Applies what is committed, whatever the role, and tells the machine what is news to it."""
        role, machine, applier = self.raft.role, self._machine_or_fail(), self.applier
        if self.leading_epoch >= 0 and not (isinstance(role, Leader) and role.epoch == self.leading_epoch):
            self.leading_epoch = -1
            machine.on_dropped(commit_end, ProposalDropped(self.raft.leader))
        while applier.end < commit_end:
            outcome = machine.outcome_on(applier.image)
            if outcome is None:
                batches = await self._store.read(applier.end, commit_end, APPLY_BYTES)
                assert batches, (applier.end, commit_end)
                applier.apply(batches)
            elif outcome.image.offset <= commit_end:
                applier.adopt(outcome.delta, outcome.image)
            else:
                break  # a part of what was decided together is committed; it is published as one
        if (
            isinstance(role, Leader)
            and self.leading_epoch < 0
            and role is self.raft.role
            and applier.end > role.start
        ):
            self.leading_epoch = role.epoch
            machine.on_leading(role.epoch)
        machine.on_applied(applier.end)

    async def _install(self, snapshot: SnapshotId) -> None:
        """Puts a snapshot of the leader's in place of the log, durably. Where it cannot be had, the leader is
        asked again later."""
        assert self._snapshots is not None, "a quorum of one fetches no snapshot"
        try:
            pieces = self._while_open(self._snapshots.fetch(self.raft.leader, snapshot))
            found = await receive_snapshot(self._disk, self._store.folder, snapshot, pieces)
        except (Unavailable, SnapshotCorrupt, DiskFull) as error:
            log.warning(
                "the leader's snapshot at offset %d could not be installed: %s", snapshot.end, in_words(error)
            )
            return
        if not self.raft.wants_snapshot(snapshot.end, snapshot.epoch):
            return
        await self._store.restart_at(snapshot.end)
        self.newest_ms = max(self.newest_ms, found.time_ms)
        self.raft.on_snapshot_fetched(snapshot.end, snapshot.epoch, found.voters)
        if found.image.offset > self.applier.end:
            self.applier.install(found.image)

    async def _while_open(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same, with what is due to the leader sent between them: all of them may take minutes. Raises
        Unavailable once this node closes."""
        async for piece in pieces:
            if self._is_closing:
                raise Unavailable("this node closes")
            for message in self.raft.take_fetches():
                self._send(message)
            yield piece

    async def _filled(self, message: Message) -> Message:
        """The message as it is sent: the answer to a fetch is given the entries that the core says it may
        have, or the snapshot that has made them superfluous since, or holds them where they are damaged;
        nothing to who asks for a part of one."""
        if isinstance(message, FetchReply) and message.offset < message.end and not message.entries:
            try:
                batches = await self._store.read(message.offset, message.end, FETCH_BYTES)
            except OffsetWithinBatch:
                message.end = message.offset
                return message
            except LogCorrupt as error:
                snapshot = self.raft.log.snapshot
                if message.offset >= self._store.start:
                    if snapshot is None or message.offset >= snapshot[0]:
                        raise
                    log.error("node %d is given a snapshot, as the log is damaged: %s", message.target, error)
                message.end, message.snapshot = message.offset, snapshot
                return message
            message.entries = [entry_of(batch) for batch in batches]
            message.end = batches[-1].end if batches else message.offset
        return message

    async def _persist(self, group: Sequence[Entry]) -> bool:
        """Makes a group durable. False when there was no room for it, and nothing of it, or of what came
        after it, remains: a follower asks for it again later."""
        batches, end = await self._encode(group), group[-1].end
        try:
            await self.reserve.at_need(partial(self._store.append_all, batches, end))
        except DiskFull as error:
            if self.raft.is_alone and self.raft.is_opening_epoch:
                raise
            self._say_no_room(sum(map(len, batches)), error)
            self.raft.drop_unstable()
            self._machine_or_fail().on_dropped(self.raft.log.end, LogFull(self.reserve.path))
            return False
        if self.before_commit is not None and self.raft.is_alone:
            await self.before_commit()
        self.raft.on_persisted(group)
        return True

    def _say_no_room(self, size_bytes: int, error: DiskFull) -> None:
        """A follower asks for them again each second."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._no_room_from_s:
            self._no_room_from_s = now_s + NO_ROOM_EVERY_S
            log.error("no room for %d bytes of metadata: %s", size_bytes, in_words(error))

    async def _encode(self, group: Sequence[Entry]) -> list[bytes]:
        """Its batches: a leader's as they came, else one."""
        first = group[0]
        if isinstance(first.payload, LeaderChange):
            return [encode_leader_change(first.payload, first.base, first.epoch, self._clock.wall_ms())]
        if isinstance(first.payload, VotersChange):
            return [encode_voters_change(first.payload, first.base, first.epoch, self._clock.wall_ms())]
        if isinstance(first.payload, bytes):
            return [entry.payload for entry in group]
        steps = encode_batch_yielding([entry.payload for entry in group], first.base, first.epoch)
        return [await run_yielding(steps)]

    def _machine_or_fail(self) -> StateMachine:
        assert self._machine is not None, "not started"
        return self._machine


def entry_of(batch: StoredBatch) -> Entry:
    """A batch as a follower is sent it."""
    change = change_of(memoryview(batch.data)) if batch.is_control else None
    return Entry(batch.base, batch.end - batch.base, batch.epoch, batch.data, batch.is_control, change)


def groups(entries: Sequence[Entry], bytes_max: int) -> list[list[Entry]]:
    """Entries that may share a sync, so many bytes: proposals of one epoch, which share a batch; or a
    leader's batches, within what the log takes together. A control record of this node's own stands
    alone."""
    found: list[list[Entry]] = []
    size_bytes = 0
    for entry in entries:
        more_bytes = size_of(entry, bytes_max)
        last = found[-1][-1] if found else None
        bound = min(bytes_max, SYNCED_TOGETHER_BYTES_MAX) if isinstance(entry.payload, bytes) else bytes_max
        if last is not None and may_join(last, entry) and size_bytes + more_bytes <= bound:
            found[-1].append(entry)
            size_bytes += more_bytes
        else:
            found.append([entry])
            size_bytes = more_bytes
    return found


def size_of(entry: Entry, bytes_max: int) -> int:
    """`bytes_max` where nothing may join it."""
    if isinstance(entry.payload, Proposal):
        return entry.payload.size_bytes
    return len(entry.payload) if isinstance(entry.payload, bytes) else bytes_max


def may_join(last: Entry, entry: Entry) -> bool:
    if isinstance(entry.payload, bytes):
        return isinstance(last.payload, bytes)
    are_proposals = isinstance(last.payload, Proposal) and isinstance(entry.payload, Proposal)
    return are_proposals and last.epoch == entry.epoch
