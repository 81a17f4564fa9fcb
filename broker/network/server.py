"""The listeners, the set of connections, who may stay, and the end of all.

Not here: what a connection does (connection.py). Kept true:

  * As many connections as its limits allow in all and from one address (connection_limits.py); one too many
    is closed at once.
  * One sweep over all connections, not a timer for each, ends those that were quiet for `idle_ms` with
    nothing in flight, and those whose peer closed behind a request that waits for its group; and charges what
    waits in their transports below the mark that they tell of.
  * Who holds memory that others wait for, and goes on too slowly, is ended (relief.py).
  * `close` ends one listener: its connections begin no more, and leave when what they began is answered.
  * `stop` accepts no more, begins no more, lets what was begun finish within its grace, then cuts what is
    left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from millrace.broker.network.connection import Connection, ConnectionParts
from millrace.broker.network.connection_log import ConnectionLog
from millrace.broker.network.large_answers import wide_requests
from millrace.broker.network.loop_turns import LoopTurns
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.receiver import Receiver
from millrace.broker.network.relief import Relief
from millrace.broker.requests.dispatch import Dispatcher, Late
from millrace.broker.requests.request import Handle
from millrace.broker.settings.addresses import Endpoint
from millrace.broker.settings.connection_limits import NO_LIMITS, ConnectionLimits
from millrace.protocol.dataclass import dataclass
from millrace.runtime.bundle import Runtime
from millrace.runtime.net import Bound, Listener, ListenFailed, Net, ProtocolFactory
from millrace.runtime.scheduling.yield_queue import YieldQueue

log = logging.getLogger(__name__)
SWEEP_MAX_S = 5.0
SWEEPS_PER_BOUND = 4
SWEPT_AT_ONCE = 2_000  # connections, at one or two microseconds


@dataclass(frozen=True, slots=True)
class ServerSettings:
    request_bytes_max: int = 104_857_600
    connections: ConnectionLimits = NO_LIMITS
    idle_ms: int = 600_000  # not above zero: for ever
    backlog: int = 1024


class BoundEndpoint(NamedTuple):
    endpoint: Endpoint  # as it was asked for
    bound: Bound


async def bind_all(net: Net, endpoints: Sequence[Endpoint]) -> list[BoundEndpoint]:
    """All, or none (ListenFailed): nobody is accepted yet."""
    places: list[BoundEndpoint] = []
    try:
        for endpoint in endpoints:
            places.append(BoundEndpoint(endpoint, await net.bind(endpoint.host, endpoint.port)))
    except BaseException:
        unbind(places)
        raise
    return places


def unbind(places: Sequence[BoundEndpoint]) -> None:
    for place in places:
        place.bound.close()


def new_server(
    handlers: Mapping[int, Handle | Late],
    runtime: Runtime,
    budget: RequestBudget,
    settings: ServerSettings,
    limits: Callable[[], ConnectionLimits] | None = None,
) -> Server:
    """One that serves those handlers."""
    loop = asyncio.get_running_loop()
    turns = LoopTurns(runtime.step_clock, loop.call_soon)
    dispatcher = Dispatcher(
        handlers,
        loop.create_task,
        runtime.yield_queue,
        wide=wide_requests(budget),
        begin_in_turns=turns.begin,
    )
    return Server(runtime.net, dispatcher, budget, settings, runtime.yield_queue, turns, limits)


class Server:
    def __init__(
        self,
        net: Net,
        dispatcher: Dispatcher,
        budget: RequestBudget,
        settings: ServerSettings,
        yield_queue: YieldQueue,
        turns: LoopTurns | None = None,
        limits: Callable[[], ConnectionLimits] | None = None,
    ) -> None:
        """`turns`: what takes them beside connections has the same; none: nothing does, and nothing is timed.
        `limits`: those that hold now, asked for each new connection; none: those of the settings."""
        self.dispatcher = dispatcher
        self._net = net
        self._settings = settings
        self._limits = limits or (lambda: settings.connections)
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._log = ConnectionLog()
        self._ids = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._per_address: Counter[str] = Counter()
        self._listeners: dict[Endpoint, Listener] = {}
        self._is_stopped = False
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None
        receiver = Receiver()
        for part in (budget.small_arrivals, budget.large_arrivals):
            part.on_crowded = receiver.narrow
        self.relief = Relief(self._loop, budget, self._connections, self._end_slow, receiver.widen)
        self.on_reason: Callable[[str], None] | None = None  # told why a connection is ended, in test mode
        self.accepted_count = 0
        self.refused_count = 0
        self._parts = ConnectionParts(
            dispatcher=dispatcher,
            budget=budget,
            receiver=receiver,
            yield_queue=yield_queue,
            turns=turns or LoopTurns(lambda: 0.0, self._loop.call_soon),
            request_bytes_max=settings.request_bytes_max,
            on_made=self._on_made,
            on_ended=self._on_ended,
            on_lost=self._on_lost,
        )

    @property
    def connections(self) -> Mapping[int, Connection]:
        return self._connections

    async def start(self, places: Sequence[BoundEndpoint]) -> tuple[Endpoint, ...]:
        """Listens on all, or on none (ListenFailed). Gives the endpoints with their real ports."""
        try:
            for place in places:
                self._listeners[place.endpoint] = await place.bound.listen(
                    self._factory(place.endpoint), backlog=self._settings.backlog
                )
        except BaseException:
            self._close_listeners()
            raise
        self._schedule_sweep()
        return tuple(self.bound.values())

    @property
    def bound(self) -> dict[Endpoint, Endpoint]:
        """What is listened on, as it was asked for and with its real port."""
        return {
            endpoint: Endpoint(endpoint.listener, endpoint.host, listener.port)
            for endpoint, listener in self._listeners.items()
        }

    async def open(self, endpoint: Endpoint) -> None:
        """Accepts there from the moment it returns. Raises ListenFailed, also where the server was stopped
        meanwhile."""
        assert endpoint not in self._listeners, endpoint
        host, port = endpoint.host, endpoint.port
        listener = await self._net.listen(self._factory(endpoint), host, port, backlog=self._settings.backlog)
        if self._is_stopped:
            listener.close()
            raise ListenFailed(host, port, "the broker is stopping")
        self._listeners[endpoint] = listener

    async def check_free(self, endpoint: Endpoint) -> None:
        """Raises ListenFailed where `open` would now; nobody is accepted meanwhile."""
        unbind(await bind_all(self._net, (endpoint,)))

    def _factory(self, endpoint: Endpoint) -> ProtocolFactory:
        return lambda: Connection(self._parts, next(self._ids), endpoint.listener)

    def close(self, endpoint: Endpoint, grace_ms: int) -> None:
        """Accepts no more there. What was begun of its connections is answered; those that are left after the
        grace are cut."""
        listener = self._listeners.pop(endpoint)
        listener.close()
        place = endpoint.listener, listener.port
        leaving = [
            one for one in self._connections.values() if (one.info.listener, one.info.local_port) == place
        ]
        for connection in leaving:
            connection.drain()
        self._loop.call_later(grace_ms / 1000, self._cut, leaving)

    def _cut(self, leaving: list[Connection]) -> None:
        for connection in leaving:
            if connection.info.id in self._connections:
                connection.abort()

    async def stop(self, grace_ms: int = 5_000) -> int:
        """Drains; gives the number of connections that had to be cut. Cancelling it leaves connections
        open."""
        self._is_stopped = True
        self._close_listeners()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.relief.stop()
        for connection in list(self._connections.values()):
            connection.drain()
        if self._connections:
            self._all_gone = self._loop.create_future()
            try:
                async with asyncio.timeout(grace_ms / 1000):
                    await self._all_gone
            except TimeoutError:
                pass
        left = list(self._connections.values())
        for connection in left:
            connection.abort()
        return len(left)

    def _close_listeners(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def _on_made(self, connection: Connection) -> None:
        host = connection.info.peer_host
        self._connections[connection.info.id] = connection
        self._per_address[host] += 1
        self.accepted_count += 1
        connection.quiet_since_s = self._loop.time()
        limits = self._limits()
        address_max = limits.of_address(host)
        if self._all_gone is not None:
            connection.abort()
        elif len(self._connections) > limits.total_max:
            self._refuse(connection, f"max.connections={limits.total_max} is reached")
        elif self._per_address[host] > address_max:
            self._refuse(connection, f"max.connections.per.ip={address_max} is reached")

    def _refuse(self, connection: Connection, reason: str) -> None:
        self.refused_count += 1
        self._on_ended(connection, reason)
        connection.abort()

    def _end_slow(self, connection: Connection, reason: str) -> None:
        self._on_ended(connection, reason)
        connection.abort(is_reset=True)

    def _on_ended(self, connection: Connection, reason: str) -> None:
        if self.on_reason is not None:
            self.on_reason(reason)
        self._log.ended(self._loop.time(), connection.peer, reason)

    def _on_lost(self, connection: Connection) -> None:
        if self._connections.pop(connection.info.id, None) is None:
            return
        host = connection.info.peer_host
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]
        if not self._connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    # The sweep

    def _schedule_sweep(self) -> None:
        idle_s = self._settings.idle_ms / 1000
        period_s = min(SWEEP_MAX_S, idle_s / SWEEPS_PER_BOUND) if idle_s > 0 else SWEEP_MAX_S
        self._sweep_timer = self._loop.call_later(period_s, self._sweep)

    def _sweep(self, rest: Iterator[Connection] | None = None) -> None:
        """A part of them, and the others in iterations of the loop to come."""
        rest = iter(list(self._connections.values())) if rest is None else rest
        swept_count = 0
        now_s = self._loop.time()
        idle_s = self._settings.idle_ms / 1000
        for connection in itertools.islice(rest, SWEPT_AT_ONCE):
            swept_count += 1
            if connection.info.id not in self._connections:
                continue
            if connection.charge_unsent():
                connection.is_active = True
            if connection.is_forsaken:
                connection.abort()
            elif connection.is_active or (connection.in_flight_count and not connection.unsent_bytes):
                connection.is_active = False
                connection.quiet_since_s = now_s
            elif idle_s > 0 and now_s - connection.quiet_since_s >= idle_s:
                connection.abort()
        if swept_count == SWEPT_AT_ONCE:
            self._sweep_timer = self._loop.call_later(0, self._sweep, rest)
        else:
            self._schedule_sweep()
