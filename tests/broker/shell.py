"""A server on loopback with the handlers a test gives it, and a client that speaks frames: for tests of the
broker's shell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import uvloop

from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import ServerSettings, bind_all, new_server
from millrace.broker.requests.request import Handle
from millrace.broker.settings.addresses import Endpoint
from millrace.protocol.apis import API
from millrace.protocol.codec import decode_response, encode_request
from millrace.runtime.bundle import real_runtime
from millrace.runtime.net import LoopNet

LOOPS: dict[str, Callable[[Coroutine[Any, Any, Any]], Any]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}
MIB = 1 << 20


class Client:
    """One connection. Replies are decoded as the version that `receive` is told."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    def frame(self, key: int, version: int, request: Any = None, client_id: str | None = "test") -> bytes:
        self._correlation_id += 1
        api = API[key]
        return encode_request(api, version, self._correlation_id, client_id, request or api.request_type())

    def send(self, key: int, version: int, request: Any = None) -> None:
        self.writer.write(self.frame(key, version, request))

    async def receive(self, key: int, version: int) -> tuple[int, Any]:
        """(correlation id, response)."""
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return decode_response(API[key], version, await self.reader.readexactly(length))

    async def ask(self, key: int, version: int, request: Any = None) -> Any:
        self.send(key, version, request)
        return (await self.receive(key, version))[1]

    async def is_ended(self) -> bool:
        """The other side closed, and sent nothing before."""
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


class Shell:
    """`async with Shell(handlers) as shell: client = await shell.client()`"""

    def __init__(
        self,
        handlers: Mapping[int, Handle],
        *,
        memory_bytes: int = 64 * MIB,
        settings: ServerSettings | None = None,
        step_clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._step_clock = step_clock
        self._handlers = handlers
        self._memory_bytes = memory_bytes
        self._settings = settings or ServerSettings()
        self._clients: list[Client] = []

    async def __aenter__(self) -> Shell:
        loop = asyncio.get_running_loop()
        self.memory = RequestBudget(self._memory_bytes, loop.call_soon)
        runtime = replace(real_runtime(), step_clock=self._step_clock)
        self.server = new_server(self._handlers, runtime, self.memory, self._settings)
        self.dispatcher = self.server.dispatcher
        (bound,) = await self.server.start(await bind_all(LoopNet(), [Endpoint("PLAINTEXT", "127.0.0.1", 0)]))
        self.port = bound.port
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        await self.server.stop(grace_ms=1000)

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        return client
