"""PeerConnection: a connection to another node, over which one asks and is answered in Kafka's protocol.

    connection = await PeerConnection.open(net, "host", 9093, "node 1")     connected, versions agreed
    response = await connection.ask(request, timeout_s=2.0)
    connection.close()

Both sides may be of different versions: the first thing asked is what the peer serves (ApiVersions), and each
request goes out in the newest version that both know. A request that is not answered in time closes the
connection, since what is answered later would be taken for the answer to another; so it does where nobody
waits any more, for the connection may let nothing pass.

Not here: when one connects again (lane.py), what requests mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self, cast

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


class Asked(NamedTuple):
    api: Api
    version: int
    answer: asyncio.Future[Any]
    deadline: asyncio.TimerHandle  # whether anybody waits or not


class PeerConnection(asyncio.Protocol):
    """Made by `open`. Requests are answered in the order of asking."""

    _transport: asyncio.Transport

    def __init__(self, peer: str, client_id: str) -> None:
        self._peer = peer
        self._client_id = client_id
        self._splitter = FrameSplitter(VERSIONS_BYTES_MAX)
        self._waiting: dict[int, Asked] = {}
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}  # that the peer serves, by API key
        self._lost: str | None = None

    @classmethod
    async def open(
        cls, net: Net, host: str, port: int, client_id: str, assumed: Mapping[int, tuple[int, int]] = NOTHING
    ) -> Self:
        """`assumed`: versions of APIs that the peer serves and shows nobody. Raises ConnectFailed where
        nobody accepts, PeerLost where nobody answers."""
        peer = f"{host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await net.connect(lambda: cls(peer, client_id), host, port)
        except TimeoutError:
            raise PeerLost(peer, f"no connection within {CONNECT_S} s") from None
        assert isinstance(connection, cls)
        try:
            answer = await connection._ask(API_VERSIONS, 0, ApiVersionsRequest(), CONNECT_S)
        except BaseException:
            connection.close()
            raise
        connection._splitter.bytes_max = RESPONSE_BYTES_MAX
        connection._versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        connection._versions |= assumed
        return connection

    @property
    def is_open(self) -> bool:
        return self._lost is None

    async def ask(
        self, request: Any, timeout_s: float, for_version: Callable[[Any, int], Any] = lambda one, _: one
    ) -> Any:
        """The response. `for_version` makes of the request what an older peer understands. Raises PeerLost,
        and WireError where the peer knows no version of the API that we do."""
        api = api_of(request)
        version = self.version_of(api)
        return await self._ask(api, version, for_version(request, version), timeout_s)

    def version_of(self, api: Api) -> int:
        """The newest that both know. Raises WireError where there is none."""
        served = self._versions.get(api.key)
        version = min(served[1], api.max_stable_version) if served else -1
        if served is None or version < max(served[0], api.min_version):
            raise WireError(f"{self._peer} serves no version of {api.name} that is known here")
        return version

    async def _ask(self, api: Api, version: int, request: Any, timeout_s: float) -> Any:
        if self._lost is not None:
            raise PeerLost(self._peer, self._lost)
        self._correlation_id += 1
        frame = encode_request(api, version, self._correlation_id, self._client_id, request)
        loop, why = asyncio.get_running_loop(), f"{api.name} was not answered within {timeout_s} s"
        answer: asyncio.Future[Any] = loop.create_future()
        deadline = loop.call_later(timeout_s, self._end, why)
        self._waiting[self._correlation_id] = Asked(api, version, answer, deadline)
        self._transport.write(frame)
        return await answer

    def close(self) -> None:
        """What is not answered is lost. Idempotent."""
        self._end("closed")

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
                asked.deadline.cancel()
                if not asked.answer.done():
                    asked.answer.set_result(response)
        except WireError as error:
            self._end(in_words(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(in_words(exc) if exc is not None else "the peer closed the connection")

    def _end(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            asked.deadline.cancel()
            if not asked.answer.done():
                asked.answer.set_exception(PeerLost(self._peer, why))
