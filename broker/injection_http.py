"""The control listener of test mode: POST /NAME?ARGUMENT=TEXT on loopback, answered in JSON. What the names
do is injection.py's.

    POST /fail?api=Produce&code=NOT_LEADER_OR_FOLLOWER&times=2      200 {}
    POST /fail?api=Nothing                                          400 {"error": "api=Nothing is none of
                                                                    ..."}

One request a connection, no body read, HEAD_BYTES_MAX of head, CONNECTIONS_MAX connections. In a start
without test mode there is none.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import cast
from urllib.parse import parse_qsl

from millrace.broker.injection import Injection
from millrace.runtime.net import Listener, Net

HOST = "127.0.0.1"
CONNECTIONS_MAX = 64
HEAD_BYTES_MAX = 8 << 10


class ControlServer:
    def __init__(self, net: Net, injection: Injection) -> None:
        self._net = net
        self._injection = injection
        self._listener: Listener | None = None
        self.connections: dict[int, ControlConnection] = {}

    async def start(self) -> int:
        """Gives the port."""
        self._listener = await self._net.listen(lambda: ControlConnection(self), HOST, 0)
        return self._listener.port

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections.values()):
            connection.end()

    async def answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or words[0] != "POST":
            return reply(405, {"error": "POST /NAME?ARGUMENT=TEXT only"})
        path, _, query = words[1].partition("?")
        command = self._injection.commands.get(path.removeprefix("/"))
        if command is None:
            return reply(404, {"error": f"there is no {path}: {', '.join(self._injection.commands)}"})
        try:
            found = command(dict(parse_qsl(query)))
            return reply(200, await found if inspect.isawaitable(found) else found)
        except ValueError as error:
            return reply(400, {"error": str(error)})


class ControlConnection(asyncio.Protocol):
    """Gathers one request's head, answers it, closes."""

    _transport: asyncio.Transport

    def __init__(self, server: ControlServer) -> None:
        self._server = server
        self._head = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections[id(self)] = self
        if len(self._server.connections) > CONNECTIONS_MAX:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._task is not None or self._transport.is_closing():
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._task = asyncio.get_running_loop().create_task(self._answer())
        elif len(self._head) > HEAD_BYTES_MAX:
            self._transport.abort()

    async def _answer(self) -> None:
        try:
            self._transport.write(await self._server.answer(self._head))
        finally:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(id(self), None)

    def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()


def reply(status: int, value: object) -> bytes:
    body = json.dumps(value).encode() + b"\n"
    reason = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}[status]
    head = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
