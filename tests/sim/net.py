"""A network in memory: hosts with addresses, listeners, connections as pairs of transports, on the loop's
virtual time.

`SimNet` is the wire that everybody shares; `host(address, life)` is one process's way to it, the `Net` of
runtime/net.py. Bytes travel in pieces, cut anywhere, each after a delay drawn from the Rand, and arrive in
order. A receiver that does not read holds them, and beyond WINDOW_BYTES the sender's buffer grows, so that
back-pressure is real.

Faults:
    reset(life)               every connection of that process breaks now; what was under way is lost or
                              arrives, by a coin a connection
    sever(source, target)     one way: nothing arrives any more, nobody is told; `heal` lets through what
                              waited
    side_of                   who is not on one's side neither sends nor receives anything of one's; `wake`
                              once that has changed
    connect                   ConnectFailed where nobody listens, or the way is severed

What arrives runs in the life of the process that listens or connected. `hits` counts the faults that struck.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Any, cast

from millrace.runtime.disk import Buffer
from millrace.runtime.net import ConnectFailed, ListenFailed, ProtocolFactory
from millrace.runtime.rand import Rand
from tests.sim.loop import LIFE, Life, SimLoop, own_context
from tests.sim.trace import Note

WINDOW_BYTES = 64 << 10
PIECE_BYTES_MAX = 256 << 10
CONNECT_TIMEOUT_S = 10.0


class SimNet:
    """`delay_us`: of each piece, both included."""

    def __init__(self, loop: SimLoop, rand: Rand, note: Note, delay_us: tuple[int, int] = (50, 300)) -> None:
        self.loop = loop
        self.rand = rand
        self.note = note
        self.delay_us = delay_us
        self.hits: Counter[str] = Counter()
        self.listeners: dict[tuple[str, int], SimListener] = {}
        self.ends: dict[int, SimTransport] = {}  # open ends of connections, in order of birth
        self.severed: dict[tuple[str, str], None] = {}
        self.side_of: Callable[[str], int] | None = None  # of a host; None: all are on one
        self.numbers = itertools.count(1)
        self.ports = itertools.count(20_000)

    def host(self, address: str, life: Life | None = None) -> HostNet:
        return HostNet(self, address, own_context(life), life)

    def draw_delay_us(self) -> int:
        return self.delay_us[0] + self.rand.below(self.delay_us[1] - self.delay_us[0] + 1)

    def reset(self, life: Life) -> None:
        """The process is gone: it listens no more, and its peers hear of it."""
        self.unlisten(life)
        for end in [end for end in self.ends.values() if end.life is life]:
            self.hits["reset"] += 1
            end.break_off(is_flushed=bool(self.rand.below(2)))
            end.is_lost = True  # it sends no more

    def unlisten(self, life: Life) -> None:
        """Nobody finds this process any more; connections stay."""
        for key in [key for key, listener in self.listeners.items() if listener.context.get(LIFE) is life]:
            del self.listeners[key]

    def move(self, life: Life, address: str) -> None:
        """This process is found at another address from now on; its connections break, and both sides live
        on."""
        for key, listener in list(self.listeners.items()):
            if listener.context.get(LIFE) is life:
                del self.listeners[key]
                listener.host = address
                self.listeners[address, listener.port] = listener
        for end in [end for end in self.ends.values() if end.life is life]:
            self.hits["break"] += 1
            end.peer.break_off(is_flushed=True)
            end.break_off(is_flushed=True)

    def break_one(self, address: str, rand: Rand) -> None:
        """One of its connections breaks, while both sides live on."""
        ends = [end for end in self.ends.values() if end.own[0] == address]
        if ends:
            self.hits["break"] += 1
            end = ends[rand.below(len(ends))]
            end.peer.break_off(is_flushed=True)
            end.break_off(is_flushed=bool(self.rand.below(2)))

    def sever(self, source: str, target: str) -> None:
        self.hits["sever"] += 1
        self.severed[source, target] = None

    def is_severed(self, source: str, target: str) -> bool:
        if (source, target) in self.severed:
            return True
        return self.side_of is not None and self.side_of(source) != self.side_of(target)

    def heal(self) -> None:
        self.severed.clear()
        self.wake()

    def wake(self) -> None:
        """Ways have opened."""
        for end in list(self.ends.values()):
            end.arrive()


class SimListener:
    def __init__(self, net: SimNet, factory: ProtocolFactory, host: str, port: int, context: Context) -> None:
        self.host = host
        self.port = port
        self.factory = factory
        self.context = context
        self._net = net

    def close(self) -> None:
        if self._net.listeners.get((self.host, self.port)) is self:  # else another took its place
            del self._net.listeners[self.host, self.port]


class SimBound:
    def __init__(self, net: HostNet, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._net = net

    async def listen(self, factory: ProtocolFactory, *, backlog: int = 100) -> SimListener:
        return self._net.accept(factory, self.host, self.port)

    def close(self) -> None:
        """It holds nothing."""


class HostNet:
    """One process's network."""

    def __init__(self, net: SimNet, address: str, context: Context, life: Life | None) -> None:
        self._net = net
        self._address = address
        self._context = context
        self._life = life

    async def bind(self, host: str, port: int) -> SimBound:
        host, port = host or self._address, port or next(self._net.ports)
        self.check_free(host, port)
        return SimBound(self, host, port)

    def check_free(self, host: str, port: int) -> None:
        if (host, port) in self._net.listeners:
            raise ListenFailed(host, port, "address already in use")

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, backlog: int = 100
    ) -> SimListener:
        return await (await self.bind(host, port)).listen(factory, backlog=backlog)

    def accept(self, factory: ProtocolFactory, host: str, port: int) -> SimListener:
        self.check_free(host, port)
        listener = SimListener(self._net, factory, host, port, self._context)
        self._net.listeners[host, port] = listener
        return listener

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        net = self._net
        await asyncio.sleep(2 * net.draw_delay_us() / 1e6)
        if net.is_severed(self._address, host) or net.is_severed(host, self._address):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise ConnectFailed(host, port, "no answer")
        listener = net.listeners.get((host, port))
        if listener is None:
            raise ConnectFailed(host, port, "connection refused")
        protocol = factory()
        own = SimTransport(net, (self._address, next(net.ports)), protocol, self._context)
        far = SimTransport(net, (host, port), None, listener.context)
        own.peer, far.peer = far, own
        net.note("connect", own.own[0], host, port, own.number)
        net.loop.call_soon(lambda: far.accept(listener.factory()), context=listener.context)
        protocol.connection_made(own)
        return own, protocol


class SimTransport(asyncio.Transport):
    """One end of a connection. `waiting` is what its peer sent and it has not taken yet: (due, bytes), or
    None for the end."""

    peer: SimTransport

    def __init__(
        self, net: SimNet, own: tuple[str, int], protocol: asyncio.BaseProtocol | None, context: Context
    ):
        super().__init__()
        self.own = own
        self.number = next(net.numbers)
        self.waiting: deque[tuple[int, bytes | None]] = deque()
        self.waiting_bytes = 0
        self.is_lost = False
        self._net = net
        self._protocol = cast(asyncio.Protocol, protocol)
        self._context = context
        self._is_paused = False  # reading
        self._is_writing_paused = False
        self._is_closing = False
        self._is_broken = False  # nothing that is written from now on arrives
        self._due_us = 0  # of the last piece
        self._high, self._low = WINDOW_BYTES, WINDOW_BYTES // 4
        net.ends[self.number] = self

    def accept(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)
        protocol.connection_made(self)
        self.arrive()

    @property
    def life(self) -> Life | None:
        """Of the process that has this end."""
        return self._context.get(LIFE)

    # Sending.

    def write(self, data: Buffer) -> None:
        if self._is_closing or self._is_broken or self.is_lost or not len(data):
            return
        content = bytes(data)
        while content:
            size_bytes = (
                1 + self._net.rand.below(min(len(content), PIECE_BYTES_MAX)) if len(content) > 1 else 1
            )
            if self._net.rand.below(4):
                size_bytes = len(content)
            self._post(content[:size_bytes])
            content = content[size_bytes:]
        if self.get_write_buffer_size() > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def _post(self, content: bytes | None) -> None:
        net, peer = self._net, self.peer
        self._due_us = max(self._due_us, net.loop.now_us + net.draw_delay_us())
        peer.waiting.append((self._due_us, content))
        peer.waiting_bytes += len(content or b"")
        net.loop.call_at(self._due_us / 1e6, peer.arrive, context=peer._context)

    def get_write_buffer_size(self) -> int:
        return max(0, self.peer.waiting_bytes - WINDOW_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = WINDOW_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def _on_taken(self) -> None:
        """The peer took something."""
        if self._is_writing_paused and self.get_write_buffer_size() <= self._low and not self.is_lost:
            self._is_writing_paused = False
            self._protocol.resume_writing()

    # Receiving.

    def arrive(self) -> None:
        """Takes what is due."""
        net = self._net
        while self.waiting and not self._is_paused and not self.is_lost and self._protocol is not None:
            due_us, content = self.waiting[0]
            if due_us > net.loop.now_us or net.is_severed(self.peer.own[0], self.own[0]):
                return
            self.waiting.popleft()
            if content is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            self.waiting_bytes -= len(content)
            net.loop.call_soon(self.peer._on_taken, context=self.peer._context)
            if not self._is_closing:
                net.note("data", self.own[0], self.number, len(content))
                deliver(self._protocol, content)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._net.loop.call_soon(self.arrive, context=self._context)

    def is_reading(self) -> bool:
        return not self._is_paused

    # Ends.

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """What was written still arrives."""
        if not self._is_closing:
            self._is_closing = True
            self._post(None)
            self._net.loop.call_soon(self._lose, None, context=self._context)

    def abort(self) -> None:
        self._is_closing = True
        self.break_off(is_flushed=False)
        self._net.loop.call_soon(self._lose, None, context=self._context)

    def break_off(self, *, is_flushed: bool) -> None:
        """This end is gone; the other hears of it, after what was under way or in its place."""
        peer, net = self.peer, self._net
        net.ends.pop(self.number, None)
        self._is_broken = True
        if not is_flushed:
            peer.waiting.clear()
            peer.waiting_bytes = 0
        due_us = max(self._due_us, net.loop.now_us + net.draw_delay_us())
        net.loop.call_at(
            due_us / 1e6, peer._lose, ConnectionResetError("reset by peer"), context=peer._context
        )

    def _lose(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = self._is_closing = True
        self._net.ends.pop(self.number, None)
        if self._protocol is not None:
            self._net.note("lost", self.own[0], self.number, type(error).__name__)
            self._protocol.connection_lost(error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"sockname": self.own, "peername": self.peer.own}.get(name, default)

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)


def deliver(protocol: Any, content: bytes) -> None:
    """As a loop does: in one piece, or in as many as the protocol's memory takes, which is overwritten by the
    next."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(content)
        return
    rest = memoryview(content)
    while rest:
        buffer = memoryview(protocol.get_buffer(-1))
        count = min(len(buffer), len(rest))
        buffer[:count] = rest[:count]
        del buffer
        protocol.buffer_updated(count)
        rest = rest[count:]
