"""Ways: the connections of this node to others for one purpose, one to each. Made by the node's PeerTable
(table.py).

    connection = await ways.connected(2)            the one that there is, or one that is made
    response = await connection.ask(request, 2.0)
    ways.retire(2)                                  the next is asked over another
    ways.close()

A purpose has connections of its own, since answers come in the order of asking: a leader keeps a fetch for
half a second, and a wide command must not keep it from hearing of a broker that lives.

    not reached    the next attempt waits, twice as long each time; who comes before is told why at once
    refused        likewise, for longer: a peer that refuses this node is no peer that restarts
    moved          what there is goes on being used until the new place answers; then it is asked nothing
                   more, and is closed once it has answered, or after a while
    idle           closed

Not here: what is asked, and when it is asked again. Kept true: there is at most one attempt at a time to a
node for a purpose, whoever waits for it; behind `close` nothing is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, TypeVar

from millrace.kraft.peers.connection import NotAuthenticated, NotSent, PeerConnection
from millrace.kraft.peers.wire import Place
from millrace.protocol.errors import WireError
from millrace.runtime.errors import Unavailable

AGAIN_MIN_S: Final = 0.05  # after a failure, doubled with each
AGAIN_MAX_S: Final = 1.0
REFUSED_AGAIN_MIN_S: Final = 1.0  # after a peer refused to know this node
REFUSED_AGAIN_MAX_S: Final = 30.0
IDLE_S: Final = 60.0
RETIRED_S: Final = 30.0  # in which a connection that is not used any more has to have answered
SLACK_S: Final = 0.001  # of timers: who sleeps as long as the pause is comes behind it

K = TypeVar("K", bound=Hashable)
Open = Callable[[Place], Awaitable[PeerConnection]]


class Failure:
    """The last attempt, and those before it at the same place."""

    def __init__(
        self, place: Place, error: Unavailable | WireError, now_s: float, before: Failure | None
    ) -> None:
        is_refused = isinstance(error, NotAuthenticated) and error.is_refused
        least_s, most_s = (
            (REFUSED_AGAIN_MIN_S, REFUSED_AGAIN_MAX_S) if is_refused else (AGAIN_MIN_S, AGAIN_MAX_S)
        )
        pause_s = 2 * before.pause_s if before is not None and before.place == place else 0.0
        self.place: Place = place
        self.error = error
        self.pause_s: float = min(max(pause_s, least_s), most_s)
        self.again_at_s = now_s + self.pause_s


class Way:
    """To one node."""

    def __init__(self) -> None:
        self.connection: PeerConnection | None = None
        self.place: Place | None = None  # that the connection is to
        self.opening: asyncio.Task[PeerConnection] | None = None
        self.failure: Failure | None = None


class Ways(Generic[K]):
    """`place_of` says where a node is, and raises Unavailable where nobody knows; `on_unreachable` is told of
    a place where an attempt failed."""

    def __init__(
        self,
        purpose: str,
        place_of: Callable[[K], Place],
        open_to: Open,
        on_unreachable: Callable[[K, Place], None] | None = None,
        on_close: Callable[[], None] = lambda: None,
        idle_s: float = IDLE_S,
    ) -> None:
        self.purpose = purpose
        self._place_of = place_of
        self._open = open_to
        self._on_unreachable = on_unreachable
        self._on_close = on_close
        self._idle_s = idle_s
        self._ways: dict[K, Way] = {}
        self._retired: dict[PeerConnection, asyncio.TimerHandle] = {}  # and when it is closed
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def open_count(self) -> int:
        used = sum(way.connection is not None and way.connection.is_open for way in self._ways.values())
        return used + len(self._retired)

    async def connected(self, node: K, *, is_patient: bool = False) -> PeerConnection:
        """Cancelling gives up the wait, not the attempt. Raises Unavailable, WireError; the error of the last
        attempt while the next one waits, unless that `is_patient`: of who asks once, and not again."""
        if self._is_closed:
            raise NotSent(self.purpose, "connections to other nodes are closed")
        place = self._place_of(node)
        way = self._ways.setdefault(node, Way())
        self._sweep_later()
        current = way.connection
        if current is not None and current.is_open:
            if way.place != place and way.opening is None and self._may_try(way, place):
                self._begin(node, way, place)
            return current
        if way.opening is None:
            failure = way.failure
            if failure is not None and not self._may_try(way, place):
                left_s = failure.again_at_s - asyncio.get_running_loop().time()
                if not is_patient or left_s > AGAIN_MAX_S:
                    raise failure.error.with_traceback(None)
                await asyncio.sleep(left_s)
                return await self.connected(node, is_patient=True)
            self._begin(node, way, place)
        opening = way.opening
        assert opening is not None
        await asyncio.wait([opening])
        if opening.cancelled():
            raise NotSent(self.purpose, "the connection is not wanted any more")
        return opening.result()

    def retire(self, node: K, within_s: float = RETIRED_S) -> None:
        """What it was asked may be answered still, within that time; the next that is asked goes over another
        connection."""
        way = self._ways.get(node)
        if way is not None and way.connection is not None:
            connection, way.connection = way.connection, None
            self._retire(connection, within_s)

    def drop(self, node: K) -> None:
        """Nothing more is asked of it, and what was is lost."""
        way = self._ways.pop(node, None)
        if way is not None:
            if way.opening is not None:
                way.opening.cancel()
            if way.connection is not None:
                way.connection.close()

    def close(self) -> None:
        """What is not answered is lost. Idempotent."""
        self._is_closed = True
        for node in list(self._ways):
            self.drop(node)
        for connection in list(self._retired):
            self._end_retired(connection)
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        self._on_close()

    def _may_try(self, way: Way, place: Place) -> bool:
        failure, now_s = way.failure, asyncio.get_running_loop().time()
        return failure is None or failure.place != place or now_s >= failure.again_at_s - SLACK_S

    def _begin(self, node: K, way: Way, place: Place) -> None:
        name = f"way to {node} for {self.purpose}"
        way.opening = asyncio.get_running_loop().create_task(self._attempt(node, way, place), name=name)
        way.opening.add_done_callback(partial(self._ended, way))

    async def _attempt(self, node: K, way: Way, place: Place) -> PeerConnection:
        try:
            made = await self._open(place)
        except (Unavailable, WireError) as error:
            way.failure = Failure(place, error, asyncio.get_running_loop().time(), way.failure)
            if self._on_unreachable is not None:
                self._on_unreachable(node, place)
            raise
        if self._is_closed or self._ways.get(node) is not way:
            made.close()
            raise NotSent(self.purpose, "the connection is not wanted any more")
        if way.connection is not None:
            self._retire(way.connection, RETIRED_S)
        way.connection, way.place = made, place
        if way.failure is not None and way.failure.place == place:
            way.failure = None
        made.used_at_s = asyncio.get_running_loop().time()
        return made

    def _ended(self, way: Way, done: asyncio.Task[PeerConnection]) -> None:
        way.opening = None
        if not done.cancelled():
            done.exception()  # where nobody waits any more

    def _retire(self, connection: PeerConnection, within_s: float) -> None:
        if connection.is_open and not connection.is_idle:
            later = asyncio.get_running_loop().call_later
            self._retired[connection] = later(within_s, self._end_retired, connection)
        else:
            connection.close()

    def _end_retired(self, connection: PeerConnection) -> None:
        self._retired.pop(connection).cancel()
        connection.close()

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._idle_s / 2, self._sweep)

    def _sweep(self) -> None:
        """What nobody has used for a while is forgotten, a node that is gone with it."""
        self._sweeping = None
        for connection in [one for one in self._retired if one.is_idle or not one.is_open]:
            self._end_retired(connection)
        for node in [node for node, way in self._ways.items() if self._is_spent(way)]:
            self.drop(node)
        if self._ways or self._retired:
            self._sweep_later()

    def _is_spent(self, way: Way) -> bool:
        now_s, connection = asyncio.get_running_loop().time(), way.connection
        if way.opening is not None:
            return False
        if connection is not None and connection.is_open:
            return connection.is_idle and now_s - connection.used_at_s >= self._idle_s
        return way.failure is None or now_s - way.failure.again_at_s >= self._idle_s
