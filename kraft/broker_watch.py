"""BrokerWatch: what the controller that leads does about brokers of its own accord.

    look()      fences those whose sessions are over, or who are cut off from the store while others are not;
                called several times a session
    settle      whenever brokers or failovers have changed, a session is over, or a broker that ends has
                closed enough of what went from it: partitions of brokers that are gone, or want to end, go to
                others; write-ahead logs of those that are gone are given to others to recover. One at a time

A broker says with its heartbeats that it does not reach the store. Where it has said so for CUT_OFF_S, and
another reaches its write-ahead log (commands/cut_off.py), it is taken for one that is gone, until it says
that it is well. Where brokers have no sessions, which is a quorum of one broker, nobody is fenced for
silence: the one broker fences all others as it registers, and what they led and logged is settled as that of
any that are gone. Not here: when a session is over (sessions.py), what is decided (commands/brokers.py,
commands/leaders.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from millrace.kraft.commands.brokers import decide_fence_brokers
from millrace.kraft.commands.cut_off import rescuer_of
from millrace.kraft.commands.decision import Decision
from millrace.kraft.commands.failovers import untried
from millrace.kraft.commands.leaders import Settled, decide_settle, decide_settle_yielding
from millrace.kraft.commands.refusals import refuse_whole
from millrace.kraft.commands.spreading import KnownLoads
from millrace.kraft.commands.table import Command
from millrace.kraft.hand_over import HandOver
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.last_loads import LastLoads
from millrace.kraft.sessions import Sessions
from millrace.kraft.tables.failovers import NOBODY, Failover, Failovers
from millrace.protocol.messages.report_load import ReportLoadRequest
from millrace.runtime.errors import Exhausted, in_words

log = logging.getLogger(__name__)
# Of the one in trouble, and that the other is well: within it all that are cut off together have said so, and
# all that reach the store again, for they notice both within seconds of one another.
CUT_OFF_S: Final = 10.0
AGAIN_S: Final = 5.0  # before the one broker settles again what a full disk refused
NO_SESSIONS: Final[frozenset[int]] = frozenset()
# Asked for when they are decided, which may be later: a command that names thousands goes first.
Ids = Callable[[], Collection[int]]
FENCE: Final = Command(lambda context, gone: fencing_of(context.image, gone()), refuse_whole)
SETTLE: Final = Command(
    lambda context, see: decide_settle(context.image, *see()),
    refuse_whole,
    steps=lambda context, see: decide_settle_yielding(context.image, *see()),
)


class Seen(NamedTuple):
    """What SETTLE is decided on beside the image: who has a session, how many partitions of each broker
    that ends are not closed yet; and what partitions move."""

    alive: Container[int]
    between: Mapping[int, int]
    loads: KnownLoads


class Deciding(Protocol):
    """The controller, as it is used here."""

    @property
    def head(self) -> MetadataImage:
        """Committed and pending."""
        ...

    @property
    def is_active(self) -> bool:
        """It takes commands, and decides each in its turn."""
        ...

    def take(self, command: Command, request: Any) -> asyncio.Future[Any]:
        """As `Controller.submit`."""
        ...


class BrokerWatch:
    def __init__(self, controller: Deciding, session_ms: int | None) -> None:
        self._controller = controller
        self.sessions = None if session_ms is None else Sessions(session_ms / 1000)
        self._is_settle_owed = False  # one was refused, and this controller leads still
        self._is_settling = False
        self._is_settle_next = False  # somebody asked meanwhile
        self._turns = HandOver()
        self.loads = LastLoads()
        self._seen = EMPTY_IMAGE  # brokers and failovers as they were looked at last
        self._streams = EMPTY_IMAGE.streams  # as they were looked at last for a turn

    @property
    def hear(self) -> Callable[[int, int, bool], bool] | None:
        """To be told of heartbeats: broker, epoch, and whether the broker is well. Whether it has a session
        then."""
        return None if self.sessions is None else self._on_heartbeat

    def take_load(self, report: ReportLoadRequest) -> None:
        """What a broker moves, which says to whom its partitions go when it is gone."""
        self.loads.take(report, self._controller.head, asyncio.get_running_loop().time())

    def is_alive(self, broker_id: int) -> bool:
        """It has a session, as of the last look."""
        return self.sessions is not None and broker_id in self.sessions.alive()

    def on_leading(self, silent_id: int = -1, silent_s: float = 0.0) -> None:
        """`silent_id`: the node that led before, and has said nothing for so long; -1 where none went
        silent."""
        if self.sessions is not None:
            known = [broker.broker_id for broker in self._controller.head.brokers]
            self.sessions.begin(known, asyncio.get_running_loop().time(), silent_id, silent_s)
            self._turns.clear()
        self._seen = EMPTY_IMAGE
        self.loads.clear()
        self.on_head()

    def on_head(self) -> None:
        """Called after each decision: what is to be done about it is done in a step of the loop of its
        own."""
        head, seen = self._controller.head, self._seen
        if head.brokers is not seen.brokers or head.failovers is not seen.failovers:
            if self.sessions is None and not _has_gone(head):
                return
            _say_failovers(seen.failovers, head)
            self._seen = head
            asyncio.get_running_loop().call_soon(self._settle)
        elif self._turns.is_waiting and head.streams is not self._streams:
            self._streams = head.streams
            if self._is_turn_due():
                asyncio.get_running_loop().call_soon(self._settle)

    def _is_turn_due(self) -> bool:
        is_free = not self._is_settling
        return is_free and self._turns.is_due(self._controller.head, asyncio.get_running_loop().time())

    def look(self) -> asyncio.Future[Any] | None:
        """Brokers whose sessions are over are fenced, and gone; None when none is, or nobody asks here. Not
        to be called again before it is done: where it was refused, as on a full disk, the next look fences
        them."""
        if self.sessions is None or not self._controller.is_active:
            return None
        self._cut_off()
        gone = self.sessions.look(asyncio.get_running_loop().time())
        if not gone:
            if self._is_settle_owed or (self._turns.is_waiting and self._is_turn_due()):
                self._settle()
            return None
        fenced = self._controller.take(FENCE, partial(self.sessions.still_gone, gone))
        fenced.add_done_callback(lambda done: self._on_fenced(gone, done))
        self._seen = self._controller.head
        asyncio.get_running_loop().call_soon(self._settle)
        return fenced

    def _on_fenced(self, gone: Iterable[int], done: asyncio.Future[list[int]]) -> None:
        assert self.sessions is not None
        if done.cancelled() or done.exception() is not None:
            return
        for broker_id in done.result():
            if not self.sessions.is_cut_off(broker_id):  # which is said already
                log.warning("broker %d is fenced: no heartbeat within its session", broker_id)
        for broker_id in gone:
            self.sessions.forget(broker_id)

    def _cut_off(self) -> None:
        assert self.sessions is not None
        now_s, head = asyncio.get_running_loop().time(), self._controller.head
        for broker_id in self.sessions.in_trouble(now_s - CUT_OFF_S):
            rescuer = rescuer_of(head, broker_id, self.sessions.well(now_s - CUT_OFF_S))
            if rescuer is not None:
                log.warning(
                    "broker %d says that it does not reach the store of its write-ahead log, and broker %d, "
                    "whose log lies there too, does: it is fenced, and others are to lead what it leads",
                    broker_id,
                    rescuer,
                )
                self.sessions.cut_off(broker_id, now_s)

    def on_arrival(self, broker_id: int, broker_epoch: int) -> None:
        """A heartbeat has come. It is decided in its turn, behind commands that may take longer than a
        session; that the broker is there holds from now on."""
        broker = self._controller.head.brokers.get(broker_id)
        if self.sessions is not None and broker is not None and broker.epoch == broker_epoch:
            self.sessions.prolong(broker_id, asyncio.get_running_loop().time())

    def _on_heartbeat(self, broker_id: int, broker_epoch: int, is_well: bool) -> bool:
        assert self.sessions is not None
        return self.sessions.hear(broker_id, asyncio.get_running_loop().time(), is_well=is_well)

    def _settle(self) -> None:
        """One at a time: the next is decided on what became of it."""
        if self._is_settling:
            self._is_settle_next = True
            return
        self._is_settle_owed, self._is_settling = False, True
        settled = self._controller.take(SETTLE, self._seen_now)
        settled.add_done_callback(self._on_settled)

    def _seen_now(self) -> Seen:
        alive = NO_SESSIONS if self.sessions is None else self.sessions.alive()
        loads = self.loads.known(self._controller.head, asyncio.get_running_loop().time())
        return Seen(alive, self._turns.between(), loads)

    def _on_settled(self, done: asyncio.Future[Settled]) -> None:
        self._is_settling, is_next = False, self._is_settle_next
        self._is_settle_next = False
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._is_settle_owed = True
            if self.sessions is None and isinstance(error, Exhausted):  # there are no looks that would
                asyncio.get_running_loop().call_later(AGAIN_S, self._settle)
            log.info("partitions of brokers that are gone wait for a later look: %s", in_words(error))
            return
        settled = done.result()
        self._turns.begin(settled.turns, asyncio.get_running_loop().time())
        if settled.moved_count:
            log.warning(
                "%d partitions of brokers that are gone, or end, are led by others now", settled.moved_count
            )
        if is_next or (self._turns.is_waiting and self._is_turn_due()):
            asyncio.get_running_loop().call_soon(self._settle)


def _has_gone(head: MetadataImage) -> bool:
    """Brokers are gone, and there is one that can take what they led. The one broker of a quorum without
    others is not there before it is registered, and its start is spared a look at all partitions."""
    is_taken = any(broker.is_usable for broker in head.brokers)
    return is_taken and any(broker.is_fenced for broker in head.brokers)


def fencing_of(image: MetadataImage, gone: Iterable[int]) -> Decision:
    """The response: whom it fences."""
    records = decide_fence_brokers(image, gone)
    return Decision([record.broker_id for record in records], list(records))


def _say_failovers(before: Failovers, head: MetadataImage) -> None:
    after = head.failovers
    for failover in after:
        if failover == before.get(failover.node_id):
            continue
        if failover.by_node != NOBODY:
            log.warning(
                "broker %d: broker %d is to recover its write-ahead log", failover.node_id, failover.by_node
            )
        elif _is_to_be_asked(failover, head):
            log.warning(
                "broker %d: its write-ahead log is not recovered yet: %s", failover.node_id, failover.reason
            )
        else:
            log.error(
                "broker %d: its partitions wait for it, for nobody can recover its write-ahead log: %s",
                failover.node_id,
                failover.reason or "no other broker is there",
            )
    for failover in before:
        if after.get(failover.node_id) is None:
            log.warning("broker %d: there is nothing to recover any more", failover.node_id)


def _is_to_be_asked(failover: Failover, head: MetadataImage) -> bool:
    """Whether there is a broker left that has not said that it cannot recover the log."""
    return bool(failover.reason) and untried(head, failover) is not None
