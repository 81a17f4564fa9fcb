"""A Kafka client over the simulated wire: asks in order on one connection, and answers come or the connection
breaks.

No retries here, and no meaning: who asks knows what a lost answer means for it. Every request goes through
the real codec, in the newest version that is stable.
"""

from __future__ import annotations

import asyncio
from typing import Any

from millrace.protocol.apis import API
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.frame import FrameSplitter
from millrace.runtime.errors import Unavailable
from millrace.runtime.net import Net

RESPONSE_BYTES_MAX = 100 << 20


class Lost(Unavailable):
    """No answer: whether the request took effect is unknown, unless it was never sent."""


class SimClient:
    """Connects when it has to. `in_doubt` of what was asked is the caller's to settle."""

    def __init__(self, net: Net, address: tuple[str, int], name: str) -> None:
        self.name = name
        self.address = address
        self._net = net
        self._wire: _Wire | None = None
        self.connections_count = 0

    def __repr__(self) -> str:
        return self.name

    async def ask(
        self, key: int, request: Any, *, version: int | None = None, timeout_s: float = 30.0
    ) -> Any:
        """The response. Raises Lost, ConnectFailed (not sent)."""
        wire = await self.wire()
        answer = wire.send(key, API[key].max_stable_version if version is None else version, request)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self.drop()
            raise Lost(self.name, "no answer in time") from None

    async def wire(self) -> _Wire:
        if self._wire is None or self._wire.is_lost:
            _, protocol = await self._net.connect(lambda: _Wire(self.name), *self.address)
            assert isinstance(protocol, _Wire)
            self._wire = protocol
            self.connections_count += 1
        return self._wire

    def knows_end(self, place: tuple[bytes, int]) -> bool:
        """Whether whom it asks of that partition leads it, so that its high watermark is the partition's."""
        return True

    def drop(self) -> None:
        """The next request takes a new connection; what waits on this one is Lost."""
        if self._wire is not None:
            self._wire.transport.abort()
            self._wire.connection_lost(None)
            self._wire = None


class _Wire(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, name: str) -> None:
        self.is_lost = False
        self._name = name
        self._splitter = FrameSplitter(RESPONSE_BYTES_MAX)
        self._waiting: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, key: int, version: int, request: Any) -> asyncio.Future[Any]:
        """In order of the calls; the future has the response, or Lost."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_lost:
            answer.set_exception(Lost(self._name, "not connected"))
            return answer
        self._number += 1
        self._waiting[self._number] = key, version, answer
        self.transport.write(encode_request(API[key], version, self._number, self._name, request))
        return answer

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            number = int.from_bytes(frame[:4], "big", signed=True)
            key, version, answer = self._waiting.pop(number)
            if not answer.done():
                answer.set_result(decode_response(API[key], version, frame)[1])

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        waiting, self._waiting = self._waiting, {}
        for _, _, answer in waiting.values():
            if not answer.done():
                answer.set_exception(Lost(self._name, "the connection broke"))
