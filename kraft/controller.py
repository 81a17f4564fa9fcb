"""The controller: commands become records and a reply; the reply is released when the records are committed.

A command is decided at once, in order of arrival, on the image that holds everything committed and everything
pending, so that two commands that follow each other see each other. One that names thousands of topics or
partitions is decided, encoded and applied in steps between which others have the loop (folding.py); commands
that come meanwhile stand in line behind it, so that nobody sees the half of it: first those that take no
steps, which are the nodes' own. A heartbeat that changes nothing, of a broker of which nothing is pending,
waits for none of it, nor for a commit: a controller that is slow at one thing has heard who lives. A
compaction of thousands of streams is decided in steps beside others, and takes its place in the order when it
is decided.
What is proposed while a group is being written shares one delta, and is published as one (applier.py). Images
are immutable: giving up what is pending is going back to the last that stands. Readers (the publisher) see
committed images only.

Not here: deciding (tables/), durability (driver.py). Kept true: a reply says nothing that is not committed,
read-only replies included; images are published in log order, before the replies they answer; a command that
is refused leaves no trace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from millrace.kraft.broker_watch import BrokerWatch
from millrace.kraft.commands.decision import (
    BrokerConfigCheck,
    ConfigRules,
    Context,
    CreationRules,
    Decision,
    OtherConfigCheck,
)
from millrace.kraft.commands.folding import Folded, fold_yielding
from millrace.kraft.commands.table import COMMANDS, Command
from millrace.kraft.config import ControllerSettings
from millrace.kraft.driver import Driver
from millrace.kraft.errors import NotLeader, TooManyCommands
from millrace.kraft.image.delta import MetadataDelta, apply_records
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.image.records import Proposal, ValueWriter
from millrace.kraft.tables.features import METADATA_VERSION, bootstrap_records
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.runtime.clock import Clock
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yielding import Yielding

log = logging.getLogger(__name__)
PENDING_MAX: Final = 10_000  # commands that wait for their commit; the next one is refused
# commands that are decided in one iteration of the loop when the one they stood behind is done
QUEUED_PER_CHUNK: Final = 20
LONG_TRIES_MAX: Final = 5  # decisions in steps that others outran; the next is made at once
FULL = "The disk of the metadata log is full at controller {}: only deletions are taken until there is room."


@dataclass(slots=True)
class Pending:
    """A decided command. Without records of its own it waits for those it may have seen."""

    end: int
    records: list[Any]
    response: Any
    reply: asyncio.Future[Any]


@dataclass(slots=True)
class Group:
    """Commands that are committed together: decided between two of the driver's groups."""

    base: MetadataImage
    delta: MetadataDelta
    image: MetadataImage
    commands: list[Pending]


class Controller:
    """One a node, active while the node leads. `describe_quorum` answers for the quorum."""

    def __init__(
        self,
        clock: Clock,
        rand: Rand,
        driver: Driver,
        publisher: MetadataPublisher,
        settings: ControllerSettings,
        describe_quorum: Callable[[Any, int], Decision],
        cluster_id: str,
        check_broker_config: BrokerConfigCheck,
        check_other_config: OtherConfigCheck,
    ) -> None:
        lookup = ConfigLookup(settings.node_id, settings.static_configs)
        self._clock = clock
        self._driver = driver
        self._publisher = publisher
        self._describe_quorum = describe_quorum
        self._cluster_id = cluster_id
        self._creation = CreationRules(
            settings.partitions_default, settings.topic_partitions_max, lookup, rand.split("topic ids").uuid
        )
        self._configs = ConfigRules(
            lookup,
            check_broker_config,
            check_other_config,
            lambda node_id: driver.raft.voter_set.get(node_id) is not None,
        )
        self._writer = ValueWriter()
        self._groups: deque[Group] = deque()
        self._is_open = False  # the last group takes more commands
        self._pending_count = 0
        self._deciding: dict[asyncio.Task[None], None] = {}
        # one command in steps: the head is its own until it is done
        self._stepping: asyncio.Task[None] | None = None
        # Behind it: those that take no steps, and after them those that may.
        self._queued: deque[Callable[[], None]] = deque()
        self._queued_wide: deque[Callable[[], None]] = deque()
        self._head = publisher.image
        self._epoch = -1  # that this node leads; -1: none
        self._end: Exception | None = None  # why nothing is taken any more
        self.active: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wall_start_ms = 0  # when it began to lead; and by the loop's clock
        self._loop_start_s = 0.0
        self._wall_jump_max_ms = settings.wall_jump_max_ms
        self._tick_s = settings.ticks.ms / 1000
        self.watch = BrokerWatch(self, settings.session_ms)

    @property
    def image(self) -> MetadataImage:
        """The committed one."""
        return self._publisher.image

    @property
    def head(self) -> MetadataImage:
        """Committed and pending."""
        return self._head

    @property
    def is_active(self) -> bool:
        """Commands are decided here."""
        return self._why_not_now() is None

    @property
    def is_free(self) -> bool:
        """It takes commands, and decides the next one at once."""
        return self._why_not_now() is None and not self._is_busy

    def submit(self, request: Any) -> asyncio.Future[Any]:
        """Decides now; the future has the reply once it is committed, or NotLeader, ProposalDropped,
        LogFull."""
        if self._is_busy and isinstance(request, BrokerHeartbeatRequest):
            self.watch.on_arrival(request.broker_id, request.broker_epoch)
        return self.take(COMMANDS[type(request)], request)

    def take(self, command: Command, request: Any) -> asyncio.Future[Any]:
        """As `submit`, of a command that may be the controller's own."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if command.may_pass and self._answered_past(command, request, reply):
            return reply
        reason = self._why_not()
        if reason is not None:
            reply.set_exception(reason)
        elif command.long is not None and command.long.is_long(request):
            task = asyncio.get_running_loop().create_task(
                self._decide_long(command, request, reply), name="decision"
            )
            self._deciding[task] = None
            task.add_done_callback(self._deciding.pop)
        else:
            self._decide_or_queue(command, request, reply)
        return reply

    def _decide_or_queue(self, command: Command, request: Any, reply: asyncio.Future[Any]) -> None:
        if self._is_busy:
            queue = self._queued if command.steps is None else self._queued_wide
            queue.append(partial(self._decide_late, command, request, reply))
        else:
            self._decide(command, request, reply)

    def _answered_past(self, command: Command, request: Any, reply: asyncio.Future[Any]) -> bool:
        """Where that is possible: what is refused, or has records, is decided in its turn."""
        if self._why_not_now() is not None:
            return False
        try:
            decision = command.decide(self._context(), request)
        except KafkaError:
            return False
        if decision.is_of_committed:
            reply.set_result(decision.response)
        return decision.is_of_committed

    def expire(self) -> asyncio.Future[Any] | None:
        """Marks for deletion prepared objects past their deadline; None when there is none, or nobody asks
        here."""
        passed_ms = self._passed_ms()
        if not self.is_free or not self._head.objects.prepared_before(passed_ms, 1):
            return None
        from millrace.kraft.commands.objects import decide_expire_objects

        records = decide_expire_objects(self._head, passed_ms, self._clock.wall_ms())
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._propose(Decision(len(records[0].object_ids), list(records)), reply)
        return reply

    # Called by the driver.

    def on_leading(self, epoch: int) -> None:
        self._epoch = epoch
        self._wall_start_ms, self._loop_start_s = self._clock.wall_ms(), asyncio.get_running_loop().time()
        self._head = self._publisher.image
        if not self._head.features.level(METADATA_VERSION):
            self._propose(Decision(None, list(bootstrap_records())), self.active)
        elif not self.active.done():
            self.active.set_result(None)
        raft = self._driver.raft
        silent_id, heard_at = raft.heard
        self.watch.on_leading(silent_id, (raft.now - heard_at) * self._tick_s)

    def on_writing(self) -> None:
        self._is_open = False

    def outcome_on(self, image: MetadataImage) -> Group | None:
        return next((group for group in self._groups if group.base is image), None)

    def on_applied(self, end: int) -> None:
        while self._groups and self._groups[0].image.offset <= end:
            group = self._groups.popleft()
            self._is_open = self._is_open and bool(self._groups)
            self._pending_count -= len(group.commands)
            for command in group.commands:
                if not command.reply.done():
                    command.reply.set_result(command.response)
        if self._epoch >= 0 and not self._groups:
            self._head = self._publisher.image  # also where a record of the quorum's own was the last

    def on_dropped(self, end: int, error: Exception) -> None:
        """Goes back to the last image that stands. A full disk leaves the leadership as it is; with the
        leadership nobody is told but those who asked: who waits for one to begin here goes on waiting."""
        is_deposed = self._driver.leading_epoch < 0
        if is_deposed:
            self._epoch = -1
        self._is_open = False
        while self._groups and self._groups[-1].image.offset > end:
            group = self._groups.pop()
            kept = [command for command in group.commands if command.end <= end]
            self._pending_count -= len(group.commands) - len(kept)
            for command in group.commands[len(kept) :]:
                if not command.reply.done() and not (is_deposed and command.reply is self.active):
                    command.reply.set_exception(error)
            if kept:
                self._groups.append(remade(group, kept, end))
        self._head = self._groups[-1].image if self._groups else self._publisher.image

    def end(self, error: Exception) -> None:
        """From now on every command is refused with `error`: the log failed, or is closed."""
        self._end = error
        if not self.active.done():
            self.active.set_exception(error)
            self.active.exception()  # whoever waits is told; one of several nodes may have nobody who does

    # Deciding.

    def _why_not(self) -> Exception | None:
        """Why no command is taken now."""
        reason = self._why_not_now()
        if reason is not None:
            return reason
        waiting_count = self._pending_count + len(self._queued) + len(self._queued_wide)
        return TooManyCommands(waiting_count) if waiting_count >= PENDING_MAX else None

    def _why_not_now(self) -> Exception | None:
        """Why one that was taken is not decided any more."""
        if self._end is not None:
            return self._end
        if self._epoch < 0 or self._epoch != self._driver.raft.epoch or not self._driver.raft.is_leader:
            return NotLeader(self._driver.raft.leader)
        return None

    async def _decide_long(self, command: Command, request: Any, reply: asyncio.Future[Any]) -> None:
        """In steps between which others run, on the image that is there in its turn: when one of them has
        changed what was looked at, from the beginning, and after a few times at once."""
        try:
            for _ in range(LONG_TRIES_MAX):
                head = self._head
                decision = await self._decided_yielding(command, request, head)
                if decision is not None and await self._in_turn(
                    partial(self._propose_decided, head, decision, reply)
                ):
                    return
                if reply.done():
                    return
            reason = self._why_not()
            if reason is not None:
                reply.set_exception(reason)
            else:
                self._decide_or_queue(command, request, reply)
        except KafkaError as error:
            if not reply.done():
                self._answer(command.refuse(request, error), reply)
        except Exception as error:
            if not reply.done():
                reply.set_exception(error)

    async def _decided_yielding(self, command: Command, request: Any, head: MetadataImage) -> Decision | None:
        """On `head`; None once it has gone."""
        assert command.long is not None
        steps = command.long.decide(self._context(), request)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            await asyncio.sleep(0)
            if not self._is_still(head):
                return None

    def _is_still(self, head: MetadataImage) -> bool:
        """Decisions about objects come out the same as on `head`."""
        return self._head is head or is_same_for_objects(self._head, head)

    def _propose_decided(self, head: MetadataImage, decision: Decision, reply: asyncio.Future[Any]) -> bool:
        """False where it was outrun: nothing is decided then."""
        if reply.done():
            return True
        reason = self._why_not_now()
        if reason is not None:
            reply.set_exception(reason)
        elif not self._is_still(head):
            return False
        else:
            self._propose(decision, reply)
        return True

    async def _in_turn(self, call: Callable[[], bool]) -> bool:
        """Calls it when what comes meanwhile no longer stands behind a command in steps."""
        if not self._is_busy:
            return call()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if done.done():  # cancelled
                return
            try:
                found = call()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(found)

        self._queued.append(run)
        return await done

    @property
    def _is_busy(self) -> bool:
        """A command is decided in steps, or others still stand behind one."""
        return self._stepping is not None or bool(self._queued or self._queued_wide)

    def _decide(self, command: Command, request: Any, reply: asyncio.Future[Any]) -> None:
        """At once, but for a command that names much: what comes next stands behind it until it is done."""
        with self._refusing(command, request, reply):
            steps = fold_yielding(command, self._context(), request, self._writer)
            try:
                next(steps)
            except StopIteration as end:
                self._take(command, end.value, reply)
                return
            work = self._decide_yielding(command, request, reply, steps)
            self._stepping = asyncio.get_running_loop().create_task(work, name="decision in steps")

    @contextmanager
    def _refusing(self, command: Command, request: Any, reply: asyncio.Future[Any]) -> Iterator[None]:
        """Answers with the refusal that a decision raises."""
        try:
            yield
        except KafkaError as error:
            self._answer(command.refuse(request, error), reply)
        except ValueError as error:  # a value that no record can carry
            refusal = KafkaError(ErrorCode.INVALID_REQUEST, str(error))
            self._answer(command.refuse(request, refusal), reply)

    async def _decide_yielding(
        self, command: Command, request: Any, reply: asyncio.Future[Any], steps: Yielding[Decision | Folded]
    ) -> None:
        head, epoch = self._head, self._epoch
        try:
            with self._refusing(command, request, reply):
                while True:
                    await asyncio.sleep(0)
                    if self._end is not None or self._head is not head or self._epoch != epoch:
                        reason = self._why_not_now()
                        if reason is not None:
                            raise reason
                        head, epoch = (
                            self._head,
                            self._epoch,
                        )  # what was pending before it was given up: once more
                        steps = fold_yielding(command, self._context(), request, self._writer)
                    try:
                        next(steps)
                    except StopIteration as end:
                        self._take(command, end.value, reply)
                        return
        except Exception as error:
            if not reply.done():
                reply.set_exception(error)
        finally:
            self._stepping = None
            self._advance_queue()

    def _decide_late(self, command: Command, request: Any, reply: asyncio.Future[Any]) -> None:
        reason = self._why_not_now()
        try:
            if reason is not None:
                raise reason
            self._decide(command, request, reply)
        except Exception as error:
            if not reply.done():
                reply.set_exception(error)

    def _advance_queue(self) -> None:
        """Those who stood behind a command in steps, some an iteration of the loop, until one of them takes
        steps itself."""
        for _ in range(QUEUED_PER_CHUNK):
            queue = self._queued or self._queued_wide
            if self._stepping is not None or not queue:
                return
            queue.popleft()()
        asyncio.get_running_loop().call_soon(self._advance_queue)

    def _take(self, command: Command, found: Decision | Folded, reply: asyncio.Future[Any]) -> None:
        decision = found.decision if isinstance(found, Folded) else found
        if decision.records and command.is_growing and not self._driver.reserve.is_held:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, FULL.format(self._driver.raft.node_id))
        if isinstance(found, Folded):
            self._propose_folded(found, reply)
        else:
            self._propose(decision, reply)

    def _propose_folded(self, folded: Folded, reply: asyncio.Future[Any]) -> None:
        """A group of its own: cutting back one that others joined would apply all of it again at once."""
        end = self._driver.next_offset + len(folded.values)
        image = folded.delta.done(end, self._epoch)
        self._groups.append(Group(self._head, folded.delta, image, []))
        self._is_open = False
        self._head = image
        entry = self._driver.propose(Proposal(folded.values, self._clock.wall_ms()))
        assert entry.end == end, (entry, end)
        decision = folded.decision
        self._groups[-1].commands.append(Pending(end, decision.records, decision.response, reply))
        self._pending_count += 1
        self.watch.on_head()

    def _propose(self, decision: Decision, reply: asyncio.Future[Any]) -> None:
        if not decision.records:
            self._answer(decision.response, reply)
            return
        values = self._writer.write_all(decision.records)
        if not self._is_open:
            self._groups.append(Group(self._head, MetadataDelta(self._head), self._head, []))
            self._is_open = True
        group = self._groups[-1]
        self._apply(group, decision)
        end = self._driver.next_offset + len(values)
        self._head = group.image = group.delta.done(end, self._epoch)
        entry = self._driver.propose(Proposal(values, self._clock.wall_ms()))
        assert entry.end == end, (entry, end)
        group.commands.append(Pending(end, decision.records, decision.response, reply))
        self._pending_count += 1
        self.watch.on_head()

    def _apply(self, group: Group, decision: Decision) -> None:
        """Into the group's delta, or not at all: what is left behind by a record that cannot be applied is
        made anew."""
        try:
            if decision.objects is not None:
                group.delta.adopt(decision.objects)
            else:
                group.delta.apply_all(decision.records)
        except BaseException:
            self._groups.pop()
            self._is_open = False
            if group.commands:
                self._groups.append(remade(group, group.commands, group.image.offset))
            raise

    def _answer(self, response: Any, reply: asyncio.Future[Any]) -> None:
        """Without records. What it was decided on may be pending, so it waits for that."""
        if not self._groups:
            if not reply.done():
                reply.set_result(response)
            return
        group = self._groups[-1]
        group.commands.append(Pending(group.image.offset, [], response, reply))
        self._pending_count += 1

    def _context(self) -> Context:
        return Context(
            self._head,
            self._clock.wall_ms(),
            self._driver.next_offset,
            self._cluster_id,
            self._creation,
            self._configs,
            self._describe_quorum,
            self.watch.hear,
            self.watch.is_alive,
            self.watch.sessions is None,
            self._publisher.image,
        )

    def _passed_ms(self) -> int:
        """Up to when deadlines have passed: wall time that follows no jump ahead, since a clock that is set
        passes none."""
        elapsed_ms = int((asyncio.get_running_loop().time() - self._loop_start_s) * 1000)
        return min(self._clock.wall_ms(), self._wall_start_ms + elapsed_ms + self._wall_jump_max_ms)


def is_same_for_objects(one: MetadataImage, other: MetadataImage) -> bool:
    """Decisions about objects come out the same on both."""
    return one.objects is other.objects and one.streams is other.streams and one.brokers is other.brokers


def remade(group: Group, kept: list[Pending], end: int) -> Group:
    """A group cut back to the commands that were written before the disk was full."""
    records = [record for command in kept for record in command.records]
    delta, image = apply_records(group.base, records, end, group.image.epoch)
    return Group(group.base, delta, image, kept)
