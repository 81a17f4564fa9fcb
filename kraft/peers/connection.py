"""PeerConnection: a connection to another node, over which one asks and is answered in Kafka's protocol.

    connection = await PeerConnection.open(net, "host", 9093, "node 1")     connected, versions agreed
    response = await connection.ask(request, timeout_s=2.0)
    connection.close()

Both sides may be of different versions: the first thing asked is what the peer serves (ApiVersions), and each
request goes out in the newest version that both know. Then comes authentication (authentication.py), and
again before it expires: what is asked meanwhile waits. A request that is not answered in time closes the
connection, since what is answered later would be taken for the answer to another; so it does where nobody
waits any more, for the connection may let nothing pass.

Bounded: requests that are not answered, by number and by bytes; the next waits in line, in order, as long as
its answer may take, whose time begins when it is sent; a full line refuses. Who waited in vain has sent
nothing, and is told so.

Not here: when one connects again (ways.py), what requests mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self, cast

from millrace.kraft.peers.authentication import Authentication, AuthenticationRefused, NoAuthentication
from millrace.protocol.apis import API, Api, api_of
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.errors import WireError
from millrace.protocol.frame import FrameSplitter
from millrace.protocol.messages.api_versions import ApiVersionsRequest
from millrace.runtime.errors import Unavailable, in_words
from millrace.runtime.net import Net

RESPONSE_BYTES_MAX: Final = 128 << 20  # a batch of the metadata log is answered whole, whatever its size
VERSIONS_BYTES_MAX: Final = 64 << 10  # of the first answer: all APIs that there are take less than a kilobyte
CONNECT_S: Final = 2.0
AUTHENTICATE_S: Final = 5.0
RENEWED_AT: Final = 0.85  # of the time that an authentication holds
IN_FLIGHT_MAX: Final = 1_000
IN_FLIGHT_BYTES_MAX: Final = 16 << 20  # above it the next waits; one that is larger goes alone
LINE_MAX: Final = 10_000  # as many commands as a controller takes at a time
API_VERSIONS: Final = API[18]
NOTHING: Final[Mapping[int, tuple[int, int]]] = {}


class PeerLost(Unavailable):
    """The peer did not answer: whether it did what was asked is unknown."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(peer, why)
        self.peer = peer
        self.why = why

    def __str__(self) -> str:
        return f"{self.peer}: {self.why}"


class NotSent(PeerLost):
    """The peer was asked nothing."""


class NotAuthenticated(NotSent):
    """The peer is reached, and refuses this node, or does not end the exchange (not `is_refused`)."""

    def __init__(self, peer: str, why: str, *, is_refused: bool) -> None:
        super().__init__(
            peer, f"{'authentication was refused' if is_refused else 'no authentication'}: {why}"
        )
        self.is_refused = is_refused


class Asked(NamedTuple):
    api: Api
    version: int
    answer: asyncio.Future[Any]
    deadline: asyncio.TimerHandle  # whether anybody waits or not
    bytes: int


class PeerConnection(asyncio.Protocol):
    """Made by `open`. Requests are answered in the order of asking."""

    _transport: asyncio.Transport

    def __init__(self, peer: str, client_id: str, authentication: Authentication | None = None) -> None:
        self._peer = peer
        self._client_id = client_id
        self._authentication = authentication or NoAuthentication()
        self._renewed_at_s: float | None = None  # by when the authentication is to be renewed
        self._renewing: asyncio.Task[None] | None = None
        self._splitter = FrameSplitter(VERSIONS_BYTES_MAX)
        self._waiting: dict[int, Asked] = {}
        self._waiting_bytes = 0
        self._line: deque[asyncio.Future[None]] = deque()  # requests that are not sent, in order
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}  # that the peer serves, by API key
        self._lost: str | None = None
        self.used_at_s = 0.0  # when something was asked last, by the loop's clock

    @classmethod
    async def open(
        cls,
        net: Net,
        host: str,
        port: int,
        client_id: str,
        assumed: Mapping[int, tuple[int, int]] = NOTHING,
        authentication: Authentication | None = None,
    ) -> Self:
        """`assumed`: versions of APIs that the peer serves and shows nobody. Raises ConnectFailed where
        nobody accepts, NotAuthenticated, PeerLost where nobody answers."""
        peer = f"{host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await net.connect(lambda: cls(peer, client_id, authentication), host, port)
        except TimeoutError:
            raise PeerLost(peer, f"no connection within {CONNECT_S} s") from None
        assert isinstance(connection, cls)
        try:
            answer = await connection._ask(API_VERSIONS, 0, ApiVersionsRequest(), CONNECT_S)
            connection._splitter.bytes_max = RESPONSE_BYTES_MAX
            connection._versions = {
                one.api_key: (one.min_version, one.max_version) for one in answer.api_keys
            }
            connection._versions |= assumed
            await connection._authenticate()
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._lost is None

    @property
    def is_idle(self) -> bool:
        """Nothing is asked, and nothing waits to be."""
        return not self._waiting and not self._line and self._renewing is None

    async def ask(
        self, request: Any, timeout_s: float, for_version: Callable[[Any, int], Any] = lambda one, _: one
    ) -> Any:
        """The response. `for_version` makes of the request what an older peer understands. Raises PeerLost,
        NotSent where it is known that the peer was not asked, and WireError where it knows no version of the
        API that we do."""
        api = api_of(request)
        version = self.version_of(api)
        await self._turn(api, timeout_s)
        try:
            answer = self._ask(api, version, for_version(request, version), timeout_s)
        finally:
            self._call_next()
        return await answer

    def version_of(self, api: Api) -> int:
        """The newest that both know. Raises WireError where there is none."""
        served = self._versions.get(api.key)
        version = min(served[1], api.max_stable_version) if served else -1
        if served is None or version < max(served[0], api.min_version):
            raise WireError(f"{self._peer} serves no version of {api.name} that is known here")
        return version

    def _ask(self, api: Api, version: int, request: Any, timeout_s: float) -> asyncio.Future[Any]:
        """It is sent before this returns."""
        if self._lost is not None:
            raise NotSent(self._peer, self._lost)
        self._correlation_id += 1
        frame = encode_request(api, version, self._correlation_id, self._client_id, request)
        loop, why = asyncio.get_running_loop(), f"{api.name} was not answered within {timeout_s} s"
        answer: asyncio.Future[Any] = loop.create_future()
        deadline = loop.call_later(timeout_s, self._end, why)
        self._waiting[self._correlation_id] = Asked(api, version, answer, deadline, len(frame))
        self._waiting_bytes += len(frame)
        self.used_at_s = loop.time()
        self._transport.write(frame)
        return answer

    def close(self) -> None:
        """What is not answered is lost. Idempotent."""
        self._end("closed")

    # Whose turn it is.

    @property
    def _has_room(self) -> bool:
        return (
            self._renewing is None
            and len(self._waiting) < IN_FLIGHT_MAX
            and self._waiting_bytes < IN_FLIGHT_BYTES_MAX
        )

    async def _turn(self, api: Api, timeout_s: float) -> None:
        """Returns when a request may be sent, before anything else is. Raises NotSent."""
        self._begin_renewal()
        if not self._line and self._has_room:
            return
        if self._lost is not None:
            raise NotSent(self._peer, self._lost)
        if len(self._line) >= LINE_MAX:
            raise NotSent(self._peer, f"{LINE_MAX} requests wait to be sent")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except TimeoutError:
            self._leave_line(turn)
            raise NotSent(self._peer, f"{api.name} was not sent within {timeout_s} s") from None
        except asyncio.CancelledError:
            self._leave_line(turn)
            raise
        if self._lost is not None:
            raise NotSent(self._peer, self._lost)
        self._line.popleft()  # it was the first

    def _leave_line(self, turn: asyncio.Future[None]) -> None:
        if self._lost is None:
            self._line.remove(turn)
            self._call_next()

    def _call_next(self) -> None:
        """One at a time: it sends before it calls the next."""
        if self._line:
            self._begin_renewal()
        self._call_first()

    def _call_first(self) -> None:
        if self._line and self._has_room and not self._is_called:
            self._line[0].set_result(None)

    @property
    def _is_called(self) -> bool:
        """The first in line may send, and has not run yet."""
        return bool(self._line) and self._line[0].done()

    # Who this node is.

    async def _authenticate(self) -> None:
        """Raises NotAuthenticated, PeerLost."""

        async def ask(request: Any) -> Any:
            api = api_of(request)
            return await self._ask(api, self.version_of(api), request, AUTHENTICATE_S)

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(AUTHENTICATE_S):
                holds_s = await self._authentication.authenticate(ask)
        except TimeoutError:
            why = f"the exchange did not end within {AUTHENTICATE_S} s"
            raise NotAuthenticated(self._peer, why, is_refused=False) from None
        except AuthenticationRefused as error:
            raise NotAuthenticated(self._peer, in_words(error), is_refused=True) from None
        except WireError as error:
            raise NotAuthenticated(self._peer, in_words(error), is_refused=False) from None
        except PeerLost as error:
            raise NotAuthenticated(self._peer, error.why, is_refused=False) from None
        self._renewed_at_s = None if holds_s is None else loop.time() + RENEWED_AT * holds_s

    def _begin_renewal(self) -> None:
        """Where it is time: what is asked from now on, and what stands in line, waits."""
        is_due = self._renewed_at_s is not None and asyncio.get_running_loop().time() >= self._renewed_at_s
        if is_due and self._renewing is None and not self._is_called and self._lost is None:
            name = f"authentication at {self._peer}"
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name=name)
            self._renewing.add_done_callback(self._renewed)

    async def _renew(self) -> None:
        """What is in flight is answered first: a peer takes nothing else between the rounds."""
        if self._waiting:
            await asyncio.wait([one.answer for one in self._waiting.values()])
        await self._authenticate()

    def _renewed(self, done: asyncio.Task[None]) -> None:
        self._renewing = None
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._end(error.why if isinstance(error, PeerLost) else in_words(error))
        self._call_first()  # however short the time is for which that holds

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                correlation_id = int.from_bytes(frame[:4], "big", signed=True)
                if correlation_id not in self._waiting:
                    raise WireError(f"an answer to request {correlation_id}, which was not asked")
                asked = self._waiting[correlation_id]
                response = decode_response(asked.api, asked.version, frame)[1]
                del self._waiting[correlation_id]
                self._waiting_bytes -= asked.bytes
                asked.deadline.cancel()
                if not asked.answer.done():
                    asked.answer.set_result(response)
            self._call_next()
        except WireError as error:
            self._end(in_words(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(in_words(exc) if exc is not None else "the peer closed the connection")

    def _end(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
            self._transport.abort()
        if self._renewing is not None:
            self._renewing.cancel()
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            asked.deadline.cancel()
            if not asked.answer.done():
                asked.answer.set_exception(PeerLost(self._peer, why))
        line, self._line = self._line, deque()
        for turn in line:
            if not turn.done():
                turn.set_exception(NotSent(self._peer, why))
