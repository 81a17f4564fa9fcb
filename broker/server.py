"""The listeners, the set of connections, who may stay, and the end of all.

Not here: what a connection does (connection.py). Kept true:

  * At most `connections_max` connections, and `connections_per_address_max` from one address; one too many is closed at once.
  * One sweep over all connections, not a timer for each, ends those that were quiet for `idle_ms` with nothing in flight. When
    others wait for memory it also ends those that hold it and took nothing for `stall_ms`, or sent nothing of the frame they began for
    `receive_stall_ms`: a client that asks for much and reads nothing, or begins and does not end, must not stop the broker for
    the rest.
  * When somebody has to wait for memory, requests that wait for news and hold some are answered with what there is, at most every RELIEF_S.
  * `stop` accepts no more, begins no more, lets what was begun finish within its grace, then cuts what is left.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from millrace.broker.addresses import Endpoint
from millrace.broker.connection import Connection, ConnectionParts
from millrace.broker.connection_log import ConnectionLog
from millrace.broker.dispatch import Dispatcher
from millrace.broker.memory import RequestBudget
from millrace.broker.receiver import Receiver
from millrace.runtime.net import Listener, Net
from millrace.runtime.steps import StepLine

log = logging.getLogger(__name__)
SWEEP_MAX_S = 5.0
SWEEPS_PER_BOUND = 4
RELIEF_S = 0.2


@dataclass(frozen=True, slots=True)
class ServerSettings:
    request_bytes_max: int = 104_857_600
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    connections_per_address: Mapping[str, int] | None = None  # exceptions to it
    idle_ms: int = 600_000  # not above zero: for ever
    stall_ms: int = 30_000
    receive_stall_ms: int = 5_000  # who reads may be busy with what it read; who sends has no reason to stop
    backlog: int = 1024


class Server:
    def __init__(
        self, net: Net, dispatcher: Dispatcher, budget: RequestBudget, settings: ServerSettings, line: StepLine
    ) -> None:
        self._net = net
        self._settings = settings
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._log = ConnectionLog()
        self._ids = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._per_address: Counter[str] = Counter()
        self._listeners: list[Listener] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._relief_timers: dict[bool, asyncio.TimerHandle] = {}
        self._all_gone: asyncio.Future[None] | None = None
        budget.brief.on_short = partial(self._on_short, False)
        budget.bulk.on_short = partial(self._on_short, True)
        self.accepted_count = 0
        self.refused_count = 0
        self._parts = ConnectionParts(
            dispatcher=dispatcher,
            budget=budget,
            receiver=Receiver(),
            call_soon=self._loop.call_soon,
            line=line,
            request_bytes_max=settings.request_bytes_max,
            on_made=self._on_made,
            on_ended=self._on_ended,
            on_lost=self._on_lost,
        )

    @property
    def connections(self) -> Mapping[int, Connection]:
        return self._connections

    async def start(self, endpoints: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
        """Listens on all, or on none (ListenFailed). Gives the endpoints with their real ports."""
        bound: list[Endpoint] = []
        try:
            for endpoint in endpoints:
                listener = await self._net.listen(
                    lambda name=endpoint.listener: Connection(self._parts, next(self._ids), name),  # type: ignore[misc]
                    endpoint.host,
                    endpoint.port,
                    backlog=self._settings.backlog,
                )
                self._listeners.append(listener)
                bound.append(Endpoint(endpoint.listener, endpoint.host, listener.port))
        except BaseException:
            self._close_listeners()
            raise
        self._schedule_sweep()
        return tuple(bound)

    async def stop(self, grace_ms: int = 5_000) -> int:
        """Drains; gives the number of connections that had to be cut. Cancelling it leaves connections open."""
        self._close_listeners()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for timer in self._relief_timers.values():
            timer.cancel()
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
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _on_made(self, connection: Connection) -> None:
        host = connection.info.peer_host
        self._connections[connection.info.id] = connection
        self._per_address[host] += 1
        self.accepted_count += 1
        connection.quiet_since_s = self._loop.time()
        exceptions = self._settings.connections_per_address or {}
        address_max = exceptions.get(host, self._settings.connections_per_address_max)
        if self._all_gone is not None:
            connection.abort()
        elif len(self._connections) > self._settings.connections_max:
            self._refuse(connection, f"max.connections={self._settings.connections_max} is reached")
        elif self._per_address[host] > address_max:
            self._refuse(connection, f"max.connections.per.ip={address_max} is reached")

    def _refuse(self, connection: Connection, reason: str) -> None:
        self.refused_count += 1
        self._on_ended(connection, reason)
        connection.abort()

    def _on_ended(self, connection: Connection, reason: str) -> None:
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

    # Relief

    def _on_short(self, is_bulk: bool) -> None:
        if is_bulk not in self._relief_timers:
            self._relief_timers[is_bulk] = self._loop.call_later(0, self._relieve, is_bulk)

    def _relieve(self, is_bulk: bool) -> None:
        """Again after a while, as long as somebody waits: what was answered is asked for anew."""
        if self._budget.of_frames(is_bulk).is_short:
            for connection in list(self._connections.values()):
                connection.hurry(is_bulk)
            self._relief_timers[is_bulk] = self._loop.call_later(RELIEF_S, self._relieve, is_bulk)
        else:
            del self._relief_timers[is_bulk]

    # The sweep

    def _schedule_sweep(self) -> None:
        settings = self._settings
        all_ms = (settings.idle_ms, settings.stall_ms, settings.receive_stall_ms)
        bounds_ms = [bound_ms for bound_ms in all_ms if bound_ms > 0]
        period_s = min([SWEEP_MAX_S, *(bound_ms / 1000 / SWEEPS_PER_BOUND for bound_ms in bounds_ms)])
        self._sweep_timer = self._loop.call_later(period_s, self._sweep)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        idle_s = self._settings.idle_ms / 1000
        for connection in list(self._connections.values()):
            if connection.unsent_bytes and connection.charge_unsent():
                connection.is_active = True
            is_holding = connection.unsent_bytes > 0 or connection.is_receiving
            if connection.is_active or (connection.in_flight_count and not is_holding):
                connection.is_active = False
                connection.quiet_since_s = now_s
                continue
            quiet_s = now_s - connection.quiet_since_s
            stall_ms = self._settings.stall_ms if connection.unsent_bytes else self._settings.receive_stall_ms
            part = self._budget.replies if connection.unsent_bytes else self._budget.bulk
            if is_holding and part.is_short and quiet_s * 1000 >= stall_ms:
                self._on_ended(connection, f"took and sent nothing for {quiet_s:.0f} s while others wait for memory")
                connection.abort()
            elif idle_s > 0 and quiet_s >= idle_s:
                connection.abort()
        self._schedule_sweep()
