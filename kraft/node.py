"""ControllerNode: the quorum's parts of one node joined together, from an empty directory or what it holds.

    node = await ControllerNode.open(disk, clock, rand, settings, ...)     locked, recovered, not yet leading
    await node.start()                                                     leads, bootstrapped: takes commands
    node.channel, node.publisher, node.cluster_id
    await node.close()

Not here: any decision, what a directory holds (recovery.py). Kept true: at start, the image is what is known
to be committed (a quorum of one: all of it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from millrace.kraft.channel import ControllerChannel, LocalChannel
from millrace.kraft.commands.decision import BrokerConfigCheck, Decision, OtherConfigCheck
from millrace.kraft.config import ControllerSettings, raft_settings, static_voters
from millrace.kraft.controller import Controller
from millrace.kraft.driver import Driver, SnapshotSource
from millrace.kraft.errors import ProposalDropped
from millrace.kraft.image.applier import Applier
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.log.log_store import FOLDER, LogStore
from millrace.kraft.log.meta_properties import FILE as META_FILE
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.log.reserve import Reserve
from millrace.kraft.log.snapshot import write_snapshot
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import LogHistory
from millrace.kraft.raft.messages import Message
from millrace.kraft.recovery import Recovery, recover
from millrace.kraft.tables.configs import Values
from millrace.protocol.ids import uuid_bytes
from millrace.runtime.clock import Clock
from millrace.runtime.disk import Disk, DiskFailed, DiskFull, DiskLock
from millrace.runtime.errors import Closed, in_words
from millrace.runtime.rand import Rand
from millrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)
LOCK_FILE: Final = ".lock"
HAND_OVER_S: Final = 1.0  # for the others to have what a leader that closes has written last


def accept_broker_config(name: str, value: str | None, is_default: bool) -> None:
    """Takes every broker configuration; the broker package knows better and hands in its own check."""


def accept_other_config(resource_type: int, values: Values) -> None:
    """The same of groups and client metrics."""


async def lock_folder(disk: Disk, log_dir: str) -> tuple[DiskLock, list[str]]:
    """Makes and locks a log's directory; what it held before. Asked under the lock: what another process left
    there until then is not ours to remove. Raises DiskLocked and what making a folder raises."""
    names = await disk.list_folder(log_dir)
    await disk.make_folder(log_dir)
    lock = disk.lock(f"{log_dir}/{LOCK_FILE}")
    try:
        return lock, [name for name in await disk.list_folder(log_dir) if name != LOCK_FILE or name in names]
    except BaseException:
        lock.release()
        raise


async def remove_made(disk: Disk, log_dir: str, names_before: Sequence[str]) -> None:
    """What a start made in a log's directory that held no log before. Under the directory's lock, whose file
    goes last: from then on another process may have the directory."""
    made = [name for name in await disk.list_folder(log_dir) if name not in names_before]
    if FOLDER in made:
        for name in await disk.list_folder(f"{log_dir}/{FOLDER}"):
            await disk.remove(f"{log_dir}/{FOLDER}/{name}")
        await disk.remove_folder(f"{log_dir}/{FOLDER}")
        made.remove(FOLDER)
    for name in sorted(made, key=LOCK_FILE.__eq__):
        await disk.remove(f"{log_dir}/{name}")


def end_process(error: BaseException) -> None:
    """What a node does without being told: nothing but stay dead. An app ends its process instead."""


class ControllerNode:
    """Made by `open`."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        settings: ControllerSettings,
        meta: MetaProperties,
        lock: DiskLock,
        store: LogStore,
        recovery: Recovery,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self.cluster_id = meta.cluster_id
        self.meta = meta
        self.publisher = MetadataPublisher(recovery.image())
        self._found_ms = recovery.newest_ms
        self.disk = disk
        self.settings = settings
        self._clock = clock
        self._lock = lock
        self._store = store
        self._snapshot_size_bytes = (
            store.size_bytes - recovery.bytes
        )  # of the log when the last snapshot was made
        self._snapshot_offset = recovery.snapshot_end
        self._snapshot_task: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._on_failed = on_failed
        self._is_closed = False
        self._is_reachable = False  # others fetch from it: a quorum of one has ticks too
        self._names_before: Sequence[str] = ()  # in the log's directory, once it was locked
        self.is_new: bool  # this start made the log
        self.history_at_open: LogHistory  # before this start wrote anything
        self.epoch_at_open: int  # of its last record
        self.driver: Driver
        self.controller: Controller
        self.channel: ControllerChannel

    @classmethod
    async def open(
        cls,
        disk: Disk,
        clock: Clock,
        rand: Rand,
        settings: ControllerSettings,
        *,
        check_broker_config: BrokerConfigCheck = accept_broker_config,
        check_other_config: OtherConfigCheck = accept_other_config,
        on_failed: Callable[[BaseException], None] = end_process,
        send: Callable[[Message], None] | None = None,
        snapshots: SnapshotSource | None = None,
    ) -> ControllerNode:
        """Nothing is written but to finish what a start or an end before was at; a directory that holds
        nothing is made anew. Raises DiskLocked, LogCorrupt, SnapshotCorrupt, UnknownRecord: each names the
        file and what is wrong with it.

        `on_failed` is told once when the log fails while running: nothing can be promised any more, and the
        process ends.
        """
        lock, names_before = await lock_folder(disk, settings.log_dir)
        try:
            store = LogStore(disk, settings.log_dir, static_voters(settings), settings.segment_bytes)
            meta, recovery, state, log_view = await recover(disk, rand, settings, store)
            node = cls(disk, clock, settings, meta, lock, store, recovery, on_failed)
            node.history_at_open, node.epoch_at_open = log_view.history, log_view.last_epoch
            node._is_reachable = send is not None
            node._names_before, node.is_new = names_before, META_FILE not in names_before
            directory_id = uuid_bytes(meta.directory_id)
            own = raft_settings(settings, directory_id)
            raft = Raft(own, state, log_view, rand.split("elections").below)
            if not raft.is_alone:
                raft.expect_committed(recovery.committed_end)
            reserve = Reserve(disk, settings.log_dir, settings.reserve_bytes)
            await reserve.hold()
            applier = Applier(node.publisher)
            sending = send or refuse_message
            node.driver = Driver(
                clock, disk, raft, store, applier, reserve, settings, sending, on_failed, snapshots
            )
            node.driver.opening = recovery.opening
            node.controller = Controller(
                clock,
                rand,
                node.driver,
                node.publisher,
                settings,
                node.describe_quorum,
                meta.cluster_id,
                check_broker_config,
                check_other_config,
            )
            node.channel = LocalChannel(node.controller)
            return node
        except BaseException as error:
            # Who is cancelled waits for no disk: it may be the reason.
            if META_FILE not in names_before and isinstance(error, Exception):
                with contextlib.suppress(DiskFailed, DiskFull):
                    await remove_made(disk, settings.log_dir, names_before)
            lock.release()
            raise

    async def start(self) -> None:
        """A quorum of one leads at once, and commands are taken on return. One of several may lead later, or
        never, and so may one that lacks what is required: `controller.active` is done when it has."""
        self.driver.on_group = self._on_group
        self.driver.start(self.controller)
        self._tasks.start("object expiry", self._expire, on_escape=self._on_escape)
        raft = self.driver.raft
        is_alone = raft.is_alone and raft.log.reaches(raft.least)
        if self._is_reachable or not is_alone:
            self._tasks.start("quorum ticks", self._tick, on_escape=self._on_escape)
        may_lead = raft.is_voter or self.settings.is_dynamic
        if self.controller.watch.sessions is not None and may_lead:
            self._tasks.start("broker sessions", self._watch_sessions, on_escape=self._on_escape)
        if is_alone:
            await self.controller.active

    def commit_after(self, before_commit: Callable[[], Awaitable[None]] | None) -> None:
        """While it is a quorum of one: what is durable is committed, applied and answered when
        `before_commit` has returned, awaited a group at a time; of several voters the others say what is
        committed. What it raises ends the log, as a failure does; what was durable by then, the next start
        commits. None: from now on nothing is waited for."""
        self.driver.before_commit = before_commit

    async def close(self, *, is_discarded: bool = False) -> None:
        """Writes what is pending, and a snapshot where the next start would otherwise replay much. Who leads
        several resigns, and who waits for a majority until then is told ProposalDropped. Idempotent.
        `is_discarded`: of a log that was made by this start and that nobody knows of: it is removed, and all
        that was made with it."""
        if self._is_closed:
            return
        self._is_closed = True
        self.controller.end(Closed("the controller"))
        await self._hand_over()
        await self.driver.close()
        self.controller.on_dropped(self.publisher.image.offset, ProposalDropped(self.driver.raft.leader))
        if self._snapshot_task is not None:
            await asyncio.wait([self._snapshot_task])
        await self._tasks.stop()
        if self.publisher.image.offset - self._snapshot_offset > self.settings.snapshot_records_at_close:
            await self._snapshot(self.publisher.image)
        await self._store.close()
        if is_discarded and self.is_new:
            await remove_made(self.disk, self.settings.log_dir, self._names_before)
        self._lock.release()

    async def _hand_over(self) -> None:
        """Who leads several others resigns, once what was proposed is committed, or too late."""
        if not self.driver.news.is_active or self.driver.raft.is_alone:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                await self.driver.news.reach(self.driver.raft.log.end)
        self.driver.resign()

    async def snapshot(self) -> None:
        """Makes a snapshot of what is committed, for tools and tests; the broker makes its own by size."""
        if self._snapshot_task is None or self._snapshot_task.done():
            self._begin_snapshot()
        assert self._snapshot_task is not None
        await asyncio.wait([self._snapshot_task])

    @property
    def newest_ms(self) -> int:
        """The latest time in the log as it was found, by the clocks of then, and in what others wrote since,
        by theirs. 0: there is none."""
        return max(self._found_ms, self.driver.newest_ms)

    @property
    def log(self) -> LogStore:
        """What is durable of the log, for whoever copies it elsewhere."""
        return self._store

    def describe_quorum(self, request: Any, now_ms: int) -> Decision:
        from millrace.kraft.raft.describe_quorum import QuorumView  # asked for by people, seldom

        view = QuorumView(self.driver.raft, self.settings, self.meta.directory_id, self.settings.ticks.ms)
        return view.decide(request, now_ms)

    # Background work.

    async def _expire(self) -> None:
        """Also where the reserve is made anew once there is room."""
        while True:
            await asyncio.sleep(self.settings.expiry_interval_ms / 1000)
            try:
                await self.driver.reserve.hold_again()
            except DiskFailed as error:
                log.warning("the reserve could not be made: %s", in_words(error))
            expired = self.controller.expire()
            if expired is not None:
                await asyncio.wait([expired])
                if expired.exception() is not None:
                    log.warning("prepared objects could not be expired: %s", in_words(expired.exception()))

    async def _watch_sessions(self) -> None:
        sessions = self.controller.watch.sessions
        assert sessions is not None
        while True:
            await asyncio.sleep(sessions.wait_s(asyncio.get_running_loop().time()))
            fenced = self.controller.watch.look()
            if fenced is not None:
                await asyncio.wait([fenced])
                if fenced.exception() is not None:
                    log.warning("brokers could not be fenced: %s", in_words(fenced.exception()))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.settings.ticks.ms / 1000)
            self.driver.tick()

    def _on_group(self) -> None:
        """Between two groups: what is committed is the whole log, so a new segment can begin where the
        snapshot ends. One that was installed is the newest as one's own would be."""
        installed = self.driver.raft.log.snapshot
        if installed is not None and installed[0] > self._snapshot_offset:
            self._snapshot_offset, self._snapshot_size_bytes = installed[0], 0
        grown_bytes = self._store.size_bytes - self._snapshot_size_bytes
        grown_records = self.publisher.image.offset - self._snapshot_offset
        is_due = (
            grown_bytes >= self.settings.snapshot_bytes or grown_records >= self.settings.snapshot_records
        )
        if is_due and (self._snapshot_task is None or self._snapshot_task.done()) and not self._is_closed:
            self._begin_snapshot()

    def _begin_snapshot(self) -> None:
        self._store.roll_next()
        self._snapshot_size_bytes = self._store.size_bytes
        self._snapshot_offset = self.publisher.image.offset
        image = self.publisher.image
        self._snapshot_task = self._tasks.start(
            "metadata snapshot", lambda: self._snapshot(image), on_escape=self._on_escape
        )

    def _on_escape(self, name: str, error: BaseException) -> None:
        """Nothing in these tasks may fail but the disk, which they see to themselves."""
        log.critical("%s failed", name, exc_info=error)
        self._on_failed(error)

    async def _snapshot(self, image: MetadataImage) -> None:
        """Writes one and removes what two snapshots make superfluous: behind the first, the log is kept from
        its beginning. A disk that will not have it is tried again later; where one of the leader's has taken
        the log's place meanwhile it says nothing of the log any more."""
        try:
            time_ms, voters = self._clock.wall_ms(), self.driver.raft.log.voters.at(image.offset)
            snapshot = await write_snapshot(self.disk, self._store.folder, image, time_ms, voters)
            self._snapshot_offset = image.offset
            known = await self._store.snapshots()
            size_bytes = self._store.size_bytes
            start = await self._store.remove_before(known[1]) if len(known) > 1 else self._store.start
            self._snapshot_size_bytes -= size_bytes - self._store.size_bytes
            log_view = self.driver.raft.log
            if log_view.snapshot is None or log_view.snapshot[0] <= snapshot.end:
                log_view.on_snapshot(snapshot.end, snapshot.epoch)
                log_view.trim_start(min(start, snapshot.end))
        except (DiskFull, DiskFailed) as error:
            log.warning("no snapshot at offset %d: %s", image.offset, in_words(error))


def refuse_message(message: Message) -> None:
    raise AssertionError(f"a quorum of one sends nothing: {message}")
