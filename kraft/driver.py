"""Carries out what the raft core says: persist, then send, then tell what is committed. One loop, one group at a time.

What is proposed while a group is being written waits and makes the next group: one batch, one sync, however many commands.
Not here: decisions of the quorum (raft.py), meaning of records (controller.py), the network: `send` is given messages and
whoever runs it calls `step`. Kept true: nothing is sent or called committed before it is durable; groups are written in
order, never two at once; an error that is not a full disk ends the loop and is told to `on_failed`, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from millrace.kraft.config import ControllerSettings
from millrace.kraft.errors import LogFull, ProposalDropped
from millrace.kraft.log_store import LogStore
from millrace.kraft.log_view import Entry
from millrace.kraft.messages import Message
from millrace.kraft.raft import Raft
from millrace.kraft.ready import LeaderChange
from millrace.kraft.records import Proposal, encode_batch, encode_leader_change
from millrace.kraft.reserve import Reserve
from millrace.kraft.roles import Leader
from millrace.runtime.clock import Clock
from millrace.runtime.disk import DiskFull

log = logging.getLogger(__name__)


class StateMachine(Protocol):
    """Who is told of commits; plain calls from the loop, which raise nothing."""

    def on_leading(self, epoch: int, end: int) -> None:
        """This node leads: all below `end`, the epoch's own record included, is committed, and proposals are taken."""
        ...

    def on_writing(self) -> None:
        """What was proposed so far is being written; what is proposed from now on makes another group."""
        ...

    def on_committed(self, end: int) -> None: ...

    def on_dropped(self, end: int, error: Exception) -> None:
        """What was proposed at or above `end` is given up: leadership went, or the disk had no room."""
        ...

    def end(self, error: Exception) -> None:
        """The log failed: nothing will ever be committed again."""
        ...


class Driver:
    def __init__(
        self,
        clock: Clock,
        raft: Raft,
        store: LogStore,
        reserve: Reserve,
        settings: ControllerSettings,
        send: Callable[[Message], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.raft = raft
        self.reserve = reserve
        self._clock = clock
        self._store = store
        self._settings = settings
        self._send = send
        self._on_failed = on_failed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._machine: StateMachine | None = None
        self._leading = -1  # the epoch that the machine was told of
        self._is_closing = False
        self.on_group: Callable[[], None] | None = None  # between groups, with everything durable

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
        """Takes records into the log, in order of the calls. Raises NotLeader. The machine hears of the commit."""
        entry = self.raft.propose(proposal, len(proposal.values))
        self._wake.set()
        return entry

    def step(self, message: Message) -> None:
        self.raft.step(message)
        self._wake.set()

    def tick(self) -> None:
        self.raft.tick()
        self._wake.set()

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
            log.critical("the metadata log failed: %r", error)
            machine = self._machine_or_fail()
            machine.on_dropped(self.raft.commit_end, error)
            machine.end(error)
            self._on_failed(error)

    async def _turn(self) -> bool:
        """Carries out one Ready; tells whether there may be another."""
        ready = self.raft.ready()
        if ready.entries:
            self._machine_or_fail().on_writing()
        is_work = bool(ready.state or ready.entries or ready.messages or ready.truncate_to is not None)
        if ready.state is not None:
            await self._store.save_state(ready.state)
        if ready.truncate_to is not None:
            await self._store.truncate(ready.truncate_to)
        for group in groups(ready.entries, self._settings.group_bytes_max):
            if not await self._persist(group):
                break
            self._tell(self.raft.commit_end)
        for message in ready.messages:
            self._send(message)
        self._tell(ready.commit_end)
        if is_work and self.on_group is not None and not self.raft.log.unstable:
            self.on_group()
        return is_work

    def _tell(self, commit_end: int) -> None:
        """Tells the machine what is news to it."""
        role, machine = self.raft.role, self._machine_or_fail()
        if isinstance(role, Leader):
            if commit_end <= role.start:
                return
            if self._leading != role.epoch:
                self._leading = role.epoch
                machine.on_leading(role.epoch, role.start + 1)
            machine.on_committed(commit_end)
        elif self._leading >= 0:
            self._leading = -1
            machine.on_dropped(commit_end, ProposalDropped(self.raft.leader))

    async def _persist(self, group: Sequence[Entry]) -> bool:
        """Makes a group durable. False when there was no room for it, and nothing of it, or proposed after it, remains."""
        batch, end = self._encode(group), group[-1].end
        while True:
            try:
                await self._store.append(batch, end)
                self.raft.on_persisted(end)
                return True
            except DiskFull as error:
                if await self.reserve.give_up():
                    continue
                if any(entry.is_control for entry in self.raft.log.unstable):
                    raise
                log.error("no room for %d bytes of metadata: %r", len(batch), error)
                self.raft.drop_unstable()
                self._machine_or_fail().on_dropped(self.raft.log.end, LogFull(self.reserve.path))
                return False

    def _encode(self, group: Sequence[Entry]) -> bytes:
        first = group[0]
        if isinstance(first.payload, LeaderChange):
            return encode_leader_change(first.payload, first.base, first.epoch, self._clock.wall_ms())
        if isinstance(first.payload, bytes):
            return first.payload
        return encode_batch([entry.payload for entry in group], first.base, first.epoch)

    def _machine_or_fail(self) -> StateMachine:
        assert self._machine is not None, "not started"
        return self._machine


def groups(entries: Sequence[Entry], bytes_max: int) -> list[list[Entry]]:
    """Entries that may share a batch: proposals of one epoch, so many bytes. A control record, or a leader's batch, stands alone."""
    found: list[list[Entry]] = []
    size_bytes = 0
    for entry in entries:
        is_proposal = isinstance(entry.payload, Proposal)
        more_bytes = entry.payload.size_bytes if isinstance(entry.payload, Proposal) else bytes_max
        last = found[-1][-1] if found else None
        may_join = last is not None and isinstance(last.payload, Proposal) and last.epoch == entry.epoch
        if is_proposal and may_join and size_bytes + more_bytes <= bytes_max:
            found[-1].append(entry)
            size_bytes += more_bytes
        else:
            found.append([entry])
            size_bytes = more_bytes
    return found
