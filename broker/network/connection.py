"""One client connection: frames in, requests begun in order, replies out in request order, and when to stop
listening.

What holds a frame back, and who ends, are events of connection_machine.py; its effects are carried out here.
Not here: what a request means (dispatch.py and the handlers), who may connect and when all must end
(server.py). Kept true:

  * Requests begin in the order of their frames; replies leave in that order whatever order they finish in.
    Behind one that changes what others see (Order.BARRIER) nothing begins before it is done, nor behind one
    that waits for the members of a group (KEPT_BY_GROUPS): that takes up to half an hour, which nobody cuts
    short, and what were done behind it could not leave. What may have a large answer (AT_HEAD) begins when
    nothing ahead of it waits: its answer could not leave before, and one that waits for its turn is charged
    to nobody.
  * At most IN_FLIGHT_MAX requests of a connection are unfinished. Java clients pipeline 5, librdkafka as many
    as it likes; the depth only has to cover the WAL's latency, and beyond 64 a deeper line buys nothing but
    memory.
  * Nothing is begun while the transport is over its high-water mark (the client reads slower than we write),
    and what it then holds is charged to the memory budget until it drained; so is what waits for its turn to
    be written. Below the mark it is charged by the server's sweep.
  * What stays after a read, frames that wait and requests but Produce, is copied out of the memory that is
    received into (receiver.py).
  * A delayed operation is force completed when nobody will read the answer, and when others wait for the
    memory that its frame is charged.
  * A frame is charged to the budget before it is begun; what is here of one that is not, or waits, is charged
    too (arrival.py). Without room the connection joins the line of that part of the budget and stops reading.
    At most FRAMES_PER_CHUNK frames are begun at once, or as many as take TURN_S (loop_share.py); with what is
    left the connection stands in line with all such (frame_queue.py), addresses by turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import cast

from millrace.broker.network.arrival import Arrival
from millrace.broker.network.connection_log import describe_greeting
from millrace.broker.network.connection_machine import (
    ABORT,
    ADVANCE,
    CLOSING,
    DRAINING,
    END,
    EXECUTING,
    FRAMES_LEFT,
    FREE,
    HELD,
    NO_MEMORY,
    NOTHING,
    PAUSE_AND_YIELD,
    QUEUED,
    READING,
    RESUME,
    ROOM,
    YIELD,
    YIELDED,
    YIELDING,
    ConnectionEvent,
    ConnectionMachine,
)
from millrace.broker.network.frame_queue import Standing
from millrace.broker.network.loop_share import BRIEF_TURN_S, ITERATION_S, SMALL_TURN_BYTES, TURN_S
from millrace.broker.network.loop_turns import LoopTurns
from millrace.broker.network.memory import (
    BRIEF,
    BRIEFLY_ANSWERED,
    BULK,
    LARGE,
    SMALL_FRAME_BYTES,
    RequestBudget,
    RequestMemory,
)
from millrace.broker.network.receiver import Receiver
from millrace.broker.network.reply_writer import ReplyWriter
from millrace.broker.requests.api_traits import Answer, Order, Work, keys
from millrace.broker.requests.dispatch import Dispatcher, Exchange
from millrace.broker.requests.request import CLOSE, NO_REPLY, ConnectionInfo
from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import WireError
from millrace.protocol.frame import FrameSplitter
from millrace.protocol.header import REQUEST_HEADER_BYTES_MIN
from millrace.runtime.disk import Buffer
from millrace.runtime.net import is_peer_closed, is_window_closed, reset, unacknowledged_bytes
from millrace.runtime.net import unread_bytes as unread_of
from millrace.runtime.scheduling.yield_queue import YieldQueue

log = logging.getLogger(__name__)
IN_FLIGHT_MAX = 64
FRAMES_PER_CHUNK = 32
# A read holds twenty thousand of the smallest frames. Kept true: where no frame is cut, none is to be cut.
FRAMES_CUT_AT_ONCE = 64
# Above it a client is told from one that reads; below it what a transport holds is seen by the sweep alone.
WRITE_HIGH_BYTES = 64 << 10
WRITE_LOW_BYTES = 16 << 10
# Of a frame's rest. Less than any system takes of a connection that is not read from.
UNREAD_PLENTY_BYTES = 32 << 10
# Who has sent, or read, so much is known to do it. Consumers of small records read little.
KNOWN_BYTES, KNOWN_READ_BYTES = 1 << 20, 16 << 10
# As much of the replies of one iteration is gathered before it is written.
GATHERED_BYTES = 64 << 10
# A partition of a Fetch is 33 bytes on the wire, and some 550 in memory while it waits: asked for, watched
# and answered.
WIDE_FETCH_BYTES, WIDE_FETCH_FACTOR = 8 << 10, 16
# A Produce that waits holds about so much for each of its partitions, beside their batches.
PART_BYTES, PARTS_FREE = 1 << 10, 8
# Asked of a frame, by its API's key, before it is begun.
AT_HEAD = keys(lambda traits: traits.order is Order.HEAD)
WITH_RECORDS = keys(lambda traits: traits.work is Work.RECORDS)
KEPT_BY_GROUPS = keys(lambda traits: traits.work is Work.KEPT)
FETCHES = keys(lambda traits: traits.answer is Answer.SHARED)


@dataclass(frozen=True, slots=True)
class ConnectionParts:
    """What every connection of a server shares."""

    dispatcher: Dispatcher
    budget: RequestBudget
    receiver: Receiver
    yield_queue: YieldQueue  # for what is large: others come between
    turns: LoopTurns  # of connections with more frames than they may begin at once
    request_bytes_max: int
    on_made: Callable[[Connection], None]  # a peer connected; `abort` refuses it
    on_ended: Callable[[Connection, str], None]  # we end it, for that reason
    on_lost: Callable[[Connection], None]  # it is gone


class Connection(asyncio.BufferedProtocol):
    """`is_active` is set by every arrival and reply and cleared by the server's sweep."""

    _transport: asyncio.Transport
    _writer: ReplyWriter

    def __init__(self, parts: ConnectionParts, connection_id: int, listener: str) -> None:
        self.info = ConnectionInfo(connection_id, listener, "", 0, "")
        self.is_active = True
        self.quiet_since_s = 0.0  # the sweep's own note
        self._parts = parts
        self._dispatcher = parts.dispatcher
        self._budget = parts.budget
        self._receiver = parts.receiver
        self.get_buffer = parts.receiver.lend  # type: ignore[method-assign]  # asked before each read: no step between
        self._splitter = FrameSplitter(parts.request_bytes_max, REQUEST_HEADER_BYTES_MIN, FRAMES_CUT_AT_ONCE)
        self._frames: deque[Buffer] = deque()  # cut, not begun
        self._exchanges: deque[Exchange] = deque()  # begun, reply not sent
        self._ready: list[Buffer] = []  # replies, encoded, not yet with the transport
        self._ready_bytes = 0
        self._done_bytes = [0, 0, 0]  # charged for frames that are answered, not yet released, by part
        self._part, self._charge_bytes = BRIEF, 0  # what the frame that is begun was charged to; how much
        self._key = -1  # of the frame that is next
        self._turn_s = -1.0  # what its last turn took; it had none yet
        self._kept_bytes = 0  # of `_frames` and what is not cut yet, in memory of their own
        self.arrival = Arrival(parts.budget, self, self._unread)
        self.received_bytes = 0  # in its life
        self.pinned_bytes = 0  # charged for what waits in the transport
        self._machine = ConnectionMachine()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self._writer = ReplyWriter(self._transport, self._soon, self._on_written)
        local = transport.get_extra_info("sockname") or ("", 0)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.info.local_host, self.info.local_port = str(local[0]), int(local[1])
        self.info.peer_host, self.info.peer_port = str(peer[0]), int(peer[1])
        self._parts.on_made(self)

    @property
    def peer(self) -> str:
        return f"{self.info.peer_host}:{self.info.peer_port} on {self.info.listener}"

    @property
    def in_flight_count(self) -> int:
        return len(self._exchanges)

    @property
    def unsent_bytes(self) -> int:
        return self._writer.unsent_bytes

    @property
    def acknowledged_bytes(self) -> int:
        """Of its replies, those that its peer has told us it has, in its life. What the system holds for it
        counts as unread."""
        return self._writer.written_bytes - self._writer.unsent_bytes - unacknowledged_bytes(self._transport)

    def awaited(self) -> tuple[int, int, bool]:
        """What is missing until it holds nothing of what arrived, how far its peer has come with it, and
        whether it is ours to go on. Where we do not read, or little at a time, the peer goes on into the
        system's memory; it waits for us when it has sent plenty there, or as much as the system takes."""
        if not self._frames:
            rest_bytes = self._splitter.pending_bytes - self._splitter.received_bytes
            unread_bytes = self._unread()
            is_ours = unread_bytes >= min(rest_bytes, UNREAD_PLENTY_BYTES) or (
                unread_bytes > 0 and is_window_closed(self._transport)
            )
            return rest_bytes, self.received_bytes + unread_bytes, is_ours
        first = self._exchanges[0] if self._exchanges else None
        is_kept = first is not None and first.route.api.key in KEPT_BY_GROUPS
        if self._machine.state in (YIELDING, QUEUED) or not is_kept:
            return 0, self.received_bytes, True
        return self._kept_bytes, self.received_bytes, False

    @property
    def is_forsaken(self) -> bool:
        """Its peer has closed, which nobody told it, as it reads nothing: frames stand behind a request that
        waits for its group."""
        exchanges = self._exchanges
        return (
            self._machine.state is EXECUTING
            and bool(exchanges)
            and exchanges[0].route.api.key in KEPT_BY_GROUPS
            and is_peer_closed(self._transport)
        )

    def receive_rest(self) -> None:
        """Has the rest of its frame read where it waits for room and the system has it all, as far as that
        may be (arrival.py)."""
        splitter, memory = self._splitter, self.arrival.memory
        if memory is None or self._frames or not (self._machine.state is QUEUED and splitter.pending_bytes):
            return
        if self.arrival.is_all_here(splitter.received_bytes, splitter.pending_bytes):
            memory.forget(self)
            self._on_room()

    @property
    def frame_began_at(self) -> int:
        """Its position, of the bytes that were received, where the frame begins of which a part is here."""
        return self.received_bytes - self._splitter.received_bytes

    def _unread(self) -> int:
        return unread_of(self._transport)

    # Arrivals

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.lend(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.is_active = True
        self.received_bytes += nbytes
        if self._machine.state >= DRAINING or self._splitter.fault:
            return
        try:
            self._frames.extend(self._splitter.feed(self._receiver.view[:nbytes].toreadonly()))
        except WireError as error:
            greeting = describe_greeting(bytes(self._receiver.view[: min(4, nbytes)]))
            self.end(f"{error} ({greeting})" if greeting else str(error))
            return
        if self._machine.state <= EXECUTING:
            self._advance()
        if self._frames:
            self._keep_frames()

    def _keep_frames(self) -> None:
        """What cannot be begun yet gets memory of its own."""
        memory, frames = self._receiver.memory, self._frames
        kept_bytes = 0
        for place, frame in enumerate(frames):
            if isinstance(frame, memoryview) and frame.obj is memory:
                frames[place] = bytes(frame)
            kept_bytes += len(frame)
        if rest := self._splitter.rest:
            self._splitter.rest = bytes(rest)
            kept_bytes += len(rest)
        self._kept_bytes = kept_bytes
        self._settle_arrival()

    def _cut_more(self) -> None:
        """All that was cut is begun."""
        splitter = self._splitter
        uncut_bytes = len(splitter.rest)
        try:
            frames = [bytes(frame) for frame in splitter.go_on()]
        except WireError:
            frames = []  # `fault` says what is wrong, and ends it
        self._frames.extend(frames)
        if self._kept_bytes:
            self._kept_bytes += sum(map(len, frames)) + len(splitter.rest) - uncut_bytes

    def _advance(self, is_turn: bool = False, *, is_queued: bool = False) -> None:
        """Begins what may be begun, sends what is ready, and reads on or stops reading. `is_queued`: its turn
        among those that were queued has come."""
        frames, exchanges, machine = self._frames, self._exchanges, self._machine
        share = self._parts.turns.share
        began_s = now_s = share.now_s()
        is_any = is_left = False
        is_late, turn_s, left = False, TURN_S, FRAMES_PER_CHUNK
        if not is_queued:
            if share.spent_s >= ITERATION_S:
                is_late, turn_s = True, BRIEF_TURN_S
                left = FRAMES_PER_CHUNK if self._may_begin_late() else int(is_turn)
            elif not 0 <= self._turn_s < BRIEF_TURN_S and not self._may_begin_now():
                left = int(is_turn)
        while (
            frames
            and machine.state <= EXECUTING
            and not self._writer.is_held
            and len(exchanges) < IN_FLIGHT_MAX
        ):
            if not left:
                is_left = True
                break
            if not self._may_begin(frames[0], is_turn):
                break
            is_turn, is_any = False, True
            left -= 1
            frame = frames.popleft()
            if not frames and self._splitter.rest:
                self._cut_more()
            if self._begin(frame):
                self._collect()
                if self._ready_bytes >= GATHERED_BYTES:
                    self._write()  # here, so that a slow reader is known before more is begun for it
            now_s = share.now_s()
            if now_s - began_s >= turn_s or (is_late and frames and len(frames[0]) > SMALL_TURN_BYTES):
                left = 0
        if is_any:
            self._turn_s = took_s = now_s - began_s
            if took_s >= BRIEF_TURN_S:
                share.add(took_s)
        if is_left:
            self._take(FRAMES_LEFT)
        is_here = self._splitter.received_bytes or self.arrival.held_bytes
        if (
            is_here and machine.state < DRAINING and (self._kept_bytes or not frames)
        ):  # or they are kept first
            self._settle_arrival(is_turn)
        if self._splitter.fault and not frames:
            self.end(self._splitter.fault)
        self._send()
        self._steer()

    @property
    def _standing(self) -> Standing:
        if self._turn_s < 0:
            return Standing.NEW
        return Standing.SHORT if self._turn_s < TURN_S else Standing.LONG

    def _may_begin_now(self) -> bool:
        """Its last turn was not brief, so that it goes behind those that stand in line."""
        return self._turn_s < TURN_S and self._parts.turns.queue.is_empty

    def _may_begin_late(self) -> bool:
        """Where others have taken this iteration of the loop: small requests alone of those whose last turn
        was brief, while such turns are."""
        frames = self._frames
        return (
            0 <= self._turn_s < BRIEF_TURN_S
            and self._parts.turns.share.may_begin_late
            and bool(frames)
            and len(frames[0]) <= SMALL_TURN_BYTES
        )

    def _settle_arrival(self, is_turn: bool = False) -> None:
        """Charges what is here and not begun; without room for more the connection stands in line for it, and
        reads nothing."""
        splitter = self._splitter
        here_bytes, frame_bytes = splitter.received_bytes, splitter.pending_bytes
        memory = self.arrival.settle(
            self._kept_bytes, here_bytes, frame_bytes, self.received_bytes, is_turn=is_turn
        )
        if memory is not None and self._machine.state is not QUEUED:
            self._join(memory)

    def _may_begin(self, frame: Buffer, is_turn: bool) -> bool:
        """Whether its turn among the requests of its connection has come, and its memory is charged: its
        bytes, or what a wide Fetch remembers while it waits. Else it waits for what ends, or in line."""
        key = self._key = frame[0] << 8 | frame[1] if len(frame) > 1 else -1
        if self._exchanges:
            if key in AT_HEAD:
                return False
            last = self._exchanges[-1]
            if last.is_pending and last.is_barrier and not last.outcome.done():
                return False
        size_bytes = len(frame)
        if key in WITH_RECORDS:
            part = BULK
        else:
            part = LARGE if size_bytes >= SMALL_FRAME_BYTES else BRIEF
            if size_bytes >= WIDE_FETCH_BYTES and key in FETCHES:
                size_bytes *= WIDE_FETCH_FACTOR
        self._part, self._charge_bytes = part, size_bytes
        budget = self._budget
        if budget.take_at_once(size_bytes, part):
            return True
        if budget.is_held_by_readers(key, self._is_good_reader, is_turn=is_turn):
            self._join(budget.replies)
            return False
        memory = budget.of_frames[part]
        if memory.take(size_bytes, is_turn=is_turn):
            return True
        self._join(memory)
        return False

    def _join(self, memory: RequestMemory) -> None:
        self._take(NO_MEMORY)
        is_reading = memory is self._budget.replies
        is_known = self._is_good_reader() if is_reading else self.received_bytes >= KNOWN_BYTES
        memory.wait(self, self._on_room, self.info.network, is_known=is_known)

    def _is_good_reader(self) -> bool:
        """It has had answers of some size, and all of them have reached it."""
        written_bytes = self._writer.written_bytes
        return written_bytes >= KNOWN_READ_BYTES and self.acknowledged_bytes == written_bytes

    def _begin(self, frame: Buffer) -> bool:
        """Whether a reply may be there already."""
        charged_bytes = self._charge_bytes
        if self._kept_bytes:
            self._kept_bytes -= len(frame)
        if self._key not in WITH_RECORDS:
            frame = bytes(frame)  # a request may keep views of it, and what it lies in is received into again
        try:
            exchange = self._dispatcher.begin(frame, self.info)
        except WireError as error:
            self._budget.of_frames[self._part].release(charged_bytes)
            self.end(str(error))
            return True
        exchange.charged_bytes, exchange.part = charged_bytes, self._part
        self._exchanges.append(exchange)
        if exchange.is_pending:
            if self._key in WITH_RECORDS:
                request = exchange.request
                if (
                    request is None
                    or len(request.topic_data) != 1
                    or len(request.topic_data[0].partition_data) > PARTS_FREE
                ):
                    self._charge_parts(exchange)
            elif self._key in KEPT_BY_GROUPS:
                if exchange.is_barrier:  # it is decoded in chunks
                    exchange.on_begun = lambda: self._give_back(exchange)
                else:
                    exchange.is_barrier = True
                    self._uncharge(exchange)
            if exchange.is_barrier:
                self._watch(exchange)
            return False
        return True

    def _charge_parts(self, exchange: Exchange) -> None:
        """What a Produce of many partitions waits with, beside its bytes."""
        if exchange.request is None:
            exchange.on_begun = lambda: self._charge_parts(exchange)
            return
        topics = exchange.request.topic_data
        if len(topics) == 1 and len(topics[0].partition_data) <= PARTS_FREE:
            return
        parts_bytes = PART_BYTES * sum(len(topic.partition_data) for topic in topics)
        if exchange.charged_bytes:
            exchange.charged_bytes += parts_bytes
            self._budget.of_frames[exchange.part].charge(parts_bytes)

    def _watch(self, exchange: Exchange) -> None:
        if not exchange.is_watched:
            exchange.is_watched = True
            exchange.outcome.add_done_callback(self._on_done)

    def _on_yielded(self) -> None:
        self._contain(self._take, YIELDED)

    def _on_room(self) -> None:
        self._contain(self._take, ROOM)

    def _steer(self) -> None:
        """Tells the machine whether something holds the next frame back, where that is news to it."""
        state = self._machine.state
        if self._frames or self._writer.is_held or len(self._exchanges) >= IN_FLIGHT_MAX:
            if state is READING:
                self._take(HELD)
        elif state is EXECUTING:
            self._take(FREE)

    def _take(self, event: ConnectionEvent) -> None:
        """Tells the machine of an event, and carries its effect out."""
        effect = self._machine.on(event)
        if effect is ADVANCE:
            self._advance(is_turn=event is ROOM, is_queued=event is YIELDED)
            return
        if effect is YIELD or effect is PAUSE_AND_YIELD:
            self._parts.turns.queue.call_soon(self, self._on_yielded, self.info.network, self._standing)
        if effect is NOTHING or effect is YIELD or self._transport.is_closing():
            return
        if effect is RESUME:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # Replies

    def _on_done(self, outcome: asyncio.Future[object]) -> None:
        if self._machine.state is CLOSING:
            _retrieve(outcome)
        try:
            self._send()
            if self._frames and self._machine.state <= EXECUTING:
                self._advance()
            else:
                self._steer()
        except Exception as error:
            self._break(error)

    def _collect(self) -> None:
        """Encodes every reply whose turn has come. The first that is not there is watched, and calls us
        again; those behind it need not."""
        exchanges = self._exchanges
        while exchanges:
            exchange = exchanges[0]
            outcome = exchange.outcome
            if exchange.is_pending:
                if not outcome.done():
                    self._watch(exchange)
                    break
                outcome = self._dispatcher.settle(exchange)
            exchanges.popleft()
            self._done_bytes[exchange.part] += exchange.charged_bytes
            if outcome is NO_REPLY or self._machine.state is CLOSING:
                continue
            reply = None if outcome is CLOSE else self._dispatcher.encode(exchange, outcome)
            if reply is None:
                self._cut(f"{exchange.route.api.name} has no answer")
            else:
                self._ready += reply
                self._ready_bytes += sum(map(len, reply))

    def _write(self) -> None:
        """Hands what is ready to the writer, in one call."""
        ready, size_bytes = self._ready, self._ready_bytes
        self._ready, self._ready_bytes = [], 0
        self.is_active = True
        self._writer.write(ready, size_bytes)
        if self._writer.is_held:
            self.charge_unsent()

    def _send(self) -> None:
        """All that may leave now leaves; then, where the end was decided, the end."""
        self._collect()
        if self._ready:
            self._write()
        self._release_done()
        state = self._machine.state
        if state is CLOSING or (state is DRAINING and not self._exchanges):
            self._writer.close()

    def _release_done(self) -> None:
        brief_bytes, bulk_bytes, large_bytes = self._done_bytes
        if brief_bytes or bulk_bytes or large_bytes:
            self._done_bytes = [0, 0, 0]
            self._budget.brief.release(brief_bytes)
            self._budget.bulk.release(bulk_bytes)
            if large_bytes:
                self._budget.large.release(large_bytes)

    def _uncharge(self, exchange: Exchange) -> None:
        """Gives back what it is charged before its turn to leave has come."""
        self._done_bytes[exchange.part] += exchange.charged_bytes
        exchange.charged_bytes = 0

    def _give_back(self, exchange: Exchange) -> None:
        """The same, from outside an iteration of its own."""
        self._uncharge(exchange)
        self._release_done()

    def charge_unsent(self) -> bool:
        """Brings the charge for unsent replies up to date; whether the client took any since the last
        time."""
        unsent_bytes = self.unsent_bytes
        change_bytes = unsent_bytes - self.pinned_bytes
        self.pinned_bytes = unsent_bytes
        if change_bytes > 0:
            self._budget.replies.charge(change_bytes)
        elif change_bytes:
            self._budget.replies.release(-change_bytes)
        return change_bytes < 0

    def pause_writing(self) -> None:
        self._writer.on_paused()  # called from within writelines; who wrote charges what is left
        self._steer()

    def resume_writing(self) -> None:
        self._writer.on_resumed()

    def _on_written(self) -> None:
        self.is_active = True
        self.charge_unsent()
        if self._machine.state <= EXECUTING and not self._writer.is_held:
            self._contain(self._advance)

    # Ends

    def end(self, reason: str) -> None:
        """Takes no more, lets the replies of what was begun leave, then closes."""
        if self._machine.state < DRAINING:
            self._parts.on_ended(self, reason)
            self.drain()

    def drain(self) -> None:
        """As `end`, on our own account: nothing is logged."""
        self._take_no_more(END)
        self.force_complete()
        if not self._exchanges:
            if self._ready and self._machine.state is DRAINING:
                self._write()  # answers of this very iteration
            self._writer.close()

    def abort(self, *, is_reset: bool = False) -> None:
        """Closes now; what was not written is dropped. `is_reset`: what the system holds for the peer,
        too."""
        self._take_no_more(ABORT)
        self._writer.drop()
        self.charge_unsent()
        if is_reset:
            reset(self._transport)
        else:
            self._transport.abort()

    def _soon(self, call: Callable[[], None]) -> None:
        """In an iteration of the loop to come, for a part of ours."""
        self._parts.yield_queue.call_soon(partial(self._contain, call))

    def _contain(self, call: Callable[..., None], *args: object) -> None:
        """From a callback of the loop or of the budget: a defect here breaks this connection alone."""
        try:
            call(*args)
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        """A defect, met while we served this client: its connection ends, and the others go on."""
        log.error("the connection of %s fails", self.peer, exc_info=error)
        if self._machine.state < DRAINING:
            self._parts.on_ended(self, "it met a defect")
        self._release_done()
        self.abort()

    def _cut(self, reason: str) -> None:
        """Sends nothing after what is ready: the next reply would be taken for the missing one's. `_send`
        closes."""
        if self._machine.state < DRAINING:
            self._parts.on_ended(self, reason)
        self._take_no_more(ABORT)

    def _take_no_more(self, event: ConnectionEvent) -> None:
        """It ends, or closes: what was not begun is dropped, and its memory given back."""
        self._take(event)
        self._parts.turns.queue.forget(self)
        self._frames.clear()
        self._splitter.rest = b""
        self._budget.forget(self)
        self._kept_bytes = 0
        self.arrival.release()

    def force_complete(self) -> None:
        """The delayed operations of this connection are answered with what there is."""
        for operation in list(self.info.purgatory.values()):
            operation.force_complete()

    def force_complete_charged(self, part: int) -> None:
        """Others wait for that part of the budget: delayed operations here that are charged to it, or hold up
        what is, are force completed; and what is done and waits behind another gives back its charge."""
        charged = [one for one in self._exchanges if one.part == part and one.charged_bytes]
        if not charged:
            return
        self.force_complete()
        for exchange in charged:
            if exchange.route.api.key not in BRIEFLY_ANSWERED or (
                exchange.is_pending and not exchange.outcome.done()
            ):
                continue
            if exchange.is_pending:
                exchange.outcome = self._dispatcher.settle(exchange)
                exchange.is_pending = False
            exchange.request = None
            self._uncharge(exchange)
        self._release_done()

    def connection_lost(self, exc: Exception | None) -> None:
        self.info.is_open = False
        self._take_no_more(ABORT)
        self._writer.drop()
        for exchange in self._exchanges:
            if exchange.is_pending:
                self._watch(exchange)
                if exchange.outcome.done():
                    _retrieve(exchange.outcome)
                if exchange.route.api.key in KEPT_BY_GROUPS:
                    self._uncharge(exchange)
        self._release_done()
        self.charge_unsent()
        self.drain()
        self._parts.on_lost(self)


def _retrieve(outcome: asyncio.Future[object]) -> None:
    """What failed for a client that is gone, behind a request that may never be done, is nobody's news."""
    if not outcome.cancelled():
        outcome.exception()
