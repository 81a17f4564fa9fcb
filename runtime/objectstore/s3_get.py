"""Ranged GETs whose bytes go from the socket into memory of the caller's: a small HTTP/1.1 client for this
one kind of request.

aiohttp, which all else goes through, hands bodies on in pieces that are copied twice more on their way, each
time into fresh memory. Here the kernel writes where the reader wants it.

    idle ─► head: 16 KiB of its own, the first of the body with it ─► body: straight into the views ─► idle,
    or closed

Bodies come faster than the loop turns: a socket holds megabytes, and uvloop reads on while a read fills what
it was given. So a read takes RECEIVED_BYTES_MAX at most, and a connection that has more is queued with the
others, one read an iteration of the loop (runtime/scheduling/yield_queue.py).

A refusal is read as far as it tells something, a body without its length not at all, and the connection
closed. A connection that the store had closed while it was idle costs one more attempt on a new one. Not
here: signing, proxies, what a refusal means (s3_http.py), retries. Cancelled, the connection is
closed, and nothing more is written into the views.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

from millrace.runtime.objectstore import Lend
from millrace.runtime.scheduling.yield_queue import YieldQueue

HEAD_BYTES_MAX: Final = 16 << 10
REFUSAL_BYTES_MAX: Final = 64 << 10
RECEIVED_BYTES_MAX: Final = 512 << 10  # at once: about a tenth of a millisecond
_END: Final = b"\r\n\r\n"


class ConnectionEnded(ConnectionError):
    """Closed by the other side. `is_unused`: before anything of an answer had come."""

    def __init__(self, reason: str, *, is_unused: bool = False) -> None:
        super().__init__(reason)
        self.is_unused = is_unused


class Reply:
    """An answer: its status and headers (lower case), and either the views with how much of them was filled,
    or the content of a refusal."""

    __slots__ = ("came_bytes", "content", "headers", "status", "views")

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self.headers = headers
        self.views: Sequence[memoryview] = ()
        self.came_bytes = 0
        self.content = bytearray()

    @property
    def is_found(self) -> bool:
        return self.status in (200, 206)

    @property
    def is_plain(self) -> bool:
        """The body is what was asked for, in the length that is said."""
        return self.is_found and self.size_bytes is not None and "transfer-encoding" not in self.headers

    @property
    def size_bytes(self) -> int | None:
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None


class GetConnection(asyncio.BufferedProtocol):
    """One request at a time."""

    _transport: asyncio.Transport

    def __init__(self, yield_queue: YieldQueue) -> None:
        self._yield_queue = yield_queue
        self._head = memoryview(bytearray(HEAD_BYTES_MAX))
        self._head_used = 0
        self._lend: Lend | None = None
        self._reply: Reply | None = None
        self._left: deque[memoryview] = deque()
        self._left_bytes = 0
        self._answer: asyncio.Future[Reply] | None = None
        self.is_open = False
        self.idle_since = 0.0
        self.moved_at = 0.0  # the last time that something came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    async def get(self, request: bytes, lend: Lend) -> Reply:
        """The connection is idle again when this returns, if it `is_open`."""
        assert self._answer is None, "one request at a time"
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._lend, self._reply, self._head_used, self.moved_at = lend, None, 0, loop.time()
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._answer = self._lend = self._reply = None
            self._left.clear()

    def abort(self) -> None:
        self.is_open = False
        self._transport.abort()

    def fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.abort()

    # What comes.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._left[0][:RECEIVED_BYTES_MAX] if self._left else self._head[self._head_used :]

    def buffer_updated(self, nbytes: int) -> None:
        self.moved_at = asyncio.get_running_loop().time()
        if self._answer is None or self._answer.done():
            self.abort()  # more than was asked for, or nobody waits any more
        elif self._left:
            is_more_there = nbytes == min(len(self._left[0]), RECEIVED_BYTES_MAX)
            self._take_body(nbytes)
            if is_more_there and self._left_bytes:
                self._transport.pause_reading()
                self._yield_queue.call_soon(self._read_on)
        else:
            self._head_used += nbytes
            if self._reply is None:
                self._take_head()
            else:
                self._take_refusal()

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_body(self, count: int) -> None:
        reply, first = self._reply, self._left[0]
        assert reply is not None
        reply.came_bytes += count
        self._left_bytes -= count
        if count < len(first):
            self._left[0] = first[count:]
        else:
            self._left.popleft()
        if not self._left_bytes:
            self._finish(reply)

    def _take_head(self) -> None:
        came = bytes(self._head[: self._head_used])
        end = came.find(_END)
        if end < 0:
            if self._head_used == HEAD_BYTES_MAX:
                self.fail(ConnectionEnded("the head of an answer is too long"))
            return
        try:
            reply = self._reply = parse_head(came[:end])
        except ValueError as error:
            self.fail(ConnectionEnded(f"no HTTP answer: {error}"))
            return
        rest = came[end + len(_END) :]
        self._head_used = 0
        if reply.status == 100:
            self._reply, self._head_used = None, len(rest)
            self._head[: len(rest)] = rest
            self._take_head() if rest else None
        elif reply.is_plain:
            self._begin_body(reply, rest)
        elif reply.is_found:
            self._settle(reply)
            self.abort()
        else:
            self._head_used = len(rest)
            self._head[: len(rest)] = rest
            self._take_refusal()

    def _begin_body(self, reply: Reply, rest: bytes) -> None:
        assert self._lend is not None
        assert reply.size_bytes is not None
        reply.views = self._lend()
        left_bytes = self._left_bytes = reply.size_bytes
        if left_bytes > sum(map(len, reply.views)) or len(rest) > left_bytes:
            self.fail(ConnectionEnded(f"{max(left_bytes, len(rest))} bytes came where fewer were asked for"))
            return
        for view in reply.views:
            part = view[:left_bytes]
            left_bytes -= len(part)
            if len(part):
                self._left.append(part)
        place = 0
        while place < len(rest):
            first = self._left[0]
            piece = rest[place : place + len(first)]
            first[: len(piece)] = piece
            place += len(piece)
            self._take_body(len(piece))
        if not reply.size_bytes:
            self._finish(reply)

    def _take_refusal(self) -> None:
        """As much as says why."""
        reply = self._reply
        assert reply is not None
        reply.content += self._head[: self._head_used]
        self._head_used = 0
        size_bytes = reply.size_bytes
        is_whole = (
            len(reply.content) >= size_bytes if size_bytes is not None else b"</Error>" in reply.content
        )
        if is_whole or len(reply.content) >= REFUSAL_BYTES_MAX:
            self._settle(reply)
            self.abort()

    def _finish(self, reply: Reply) -> None:
        if reply.headers.get("connection", "").lower() == "close":
            self.is_open = False
            self._transport.close()
        self._settle(reply)

    def _settle(self, reply: Reply) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(reply)

    # How it ends.

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        reply, answer = self._reply, self._answer
        if answer is None or answer.done():
            return
        if reply is not None and not reply.is_plain:
            answer.set_result(reply)  # its end was the connection's
        else:
            is_unused = reply is None and not self._head_used
            answer.set_exception(
                ConnectionEnded(str(exc or "the connection was closed"), is_unused=is_unused)
            )


def parse_head(head: bytes) -> Reply:
    """Status line and headers. ValueError when it is none."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not rest[:3].isdecimal():
        raise ValueError(first[:100])
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if version == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Reply(int(rest[:3]), headers)


class GetPool:
    """Connections to one host, the one that was used last first."""

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext | None,
        *,
        connections_max: int,
        connect_timeout_s: float,
        read_timeout_s: float,
        keepalive_s: float,
        yield_queue: YieldQueue | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._keepalive_s = keepalive_s
        self._gate = asyncio.Semaphore(connections_max)
        self._yield_queue = yield_queue or YieldQueue()
        self._idle: list[GetConnection] = []
        self._all: dict[GetConnection, None] = {}

    async def get(self, request: bytes, lend: Lend) -> Reply:
        """`request` as it goes over the wire. Raises OSError (time-outs are one of them) when there is no
        answer."""
        async with self._gate:
            while True:
                connection, is_fresh = await self._connect()
                try:
                    return await self._get(connection, request, lend)
                except ConnectionEnded as error:
                    if is_fresh or not error.is_unused:
                        raise
                finally:
                    self._put_back(connection)

    def close(self) -> None:
        for connection in list(self._all):
            connection.fail(ConnectionEnded("the store is closed"))
        self._all.clear()
        self._idle.clear()

    async def _get(self, connection: GetConnection, request: bytes, lend: Lend) -> Reply:
        """Fails it when nothing comes for the time that is allowed."""
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def watch() -> None:
            due = connection.moved_at + self._read_timeout_s
            if due <= loop.time():
                connection.fail(TimeoutError(f"nothing came for {self._read_timeout_s:g} s"))
            else:
                timers[:] = [loop.call_at(due, watch)]

        timers.append(loop.call_later(self._read_timeout_s, watch))
        try:
            return await connection.get(request, lend)
        finally:
            timers.pop().cancel()

    async def _connect(self) -> tuple[GetConnection, bool]:
        """An idle one, or a new one and True."""
        loop = asyncio.get_running_loop()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and loop.time() - connection.idle_since < self._keepalive_s:
                return connection, False
            connection.abort()
            self._all.pop(connection, None)
        async with asyncio.timeout(self._connect_timeout_s):
            name = None if self._context is None else self._host
            _, connection = await loop.create_connection(
                partial(GetConnection, self._yield_queue),
                self._host,
                self._port,
                ssl=self._context,
                server_hostname=name,
            )
        self._all[connection] = None
        return connection, True

    def _put_back(self, connection: GetConnection) -> None:
        if connection.is_open:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            self._all.pop(connection, None)
