"""The operator's door: /health/live, /health/ready and /metrics over a minimal HTTP/1.1.

One request a connection, GET and HEAD only, no body read. Bounded: CONNECTIONS_MAX connections,
HEAD_BYTES_MAX of request head, REQUEST_S for it to arrive. It has no authentication, so its default is
loopback. Not here: what is measured (runtime/metrics.py), when the broker is ready (app.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from millrace.protocol.dataclass import dataclass
from millrace.runtime.errors import in_words
from millrace.runtime.net import Listener, Net
from millrace.runtime.scheduling.yield_queue import YieldQueue, run_yielding
from millrace.runtime.scheduling.yielding import Yielding

CONNECTIONS_MAX = 64
HEAD_BYTES_MAX = 8 << 10
REQUEST_S = 10.0
_TEXT = "text/plain; charset=utf-8"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = _TEXT


Page = Callable[[], Awaitable[Answer]]


def health_pages(
    render_metrics: Callable[[], Yielding[str]],
    yield_queue: YieldQueue,
    reason_unready: Callable[[], str],
    reason_blocked: Callable[[], str] = lambda: "",
    reason_held: Callable[[], str] = lambda: "",
    reason_undecided: Callable[[], str] = lambda: "",
) -> Mapping[str, Page]:
    """The three pages. `reason_unready` gives "" when clients are served, `reason_blocked` when uploads go
    on, `reason_held` when acknowledgements do, `reason_undecided` while a controller leads: a broker whose
    uploads wait serves as long as the WAL has room, one that holds acknowledgements serves readers, one
    without controllers what it leads, so it stays ready and says why."""

    async def live() -> Answer:
        return Answer(200, b"live\n")

    rendering: asyncio.Task[bytes] | None = None
    waiting_count = 0

    async def render() -> bytes:
        return (await run_yielding(render_metrics(), yield_queue.yield_now)).encode()

    async def metrics() -> Answer:
        """Who asks while a page is being made has the same one. When all have left, its making ends."""
        nonlocal rendering, waiting_count
        if rendering is None or rendering.done():
            rendering = asyncio.get_running_loop().create_task(render(), name="metrics")
        waiting_count += 1
        try:
            page = await asyncio.shield(rendering)
        finally:
            waiting_count -= 1
            if not waiting_count and rendering is not None:
                rendering.cancel()
                rendering = None
        return Answer(200, page, "text/plain; version=0.0.4; charset=utf-8")

    async def ready() -> Answer:
        reason, blocked, held = reason_unready(), reason_blocked(), reason_held()
        undecided = reason_undecided()
        if reason:
            return Answer(503, f"not ready: {reason}\n".encode())
        lines = [
            "ready",
            *[f"acknowledgements wait: {held}"] * bool(held),
            *[f"uploads wait: {blocked}"] * bool(blocked),
            *[f"nothing is decided: {undecided}"] * bool(undecided),
        ]
        return Answer(200, "".join(f"{line}\n" for line in lines).encode())

    return {"/health/live": live, "/health/ready": ready, "/metrics": metrics}


class AdminHttp:
    def __init__(self, net: Net, pages: Mapping[str, Page]) -> None:
        self._net = net
        self._pages = pages
        self._listener: Listener | None = None
        self._connections: dict[int, AdminConnection] = {}

    async def start(self, host: str, port: int) -> int:
        """Gives the real port. Raises ListenFailed."""
        self._listener = await self._net.listen(lambda: AdminConnection(self), host, port)
        return self._listener.port

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections.values()):
            connection.abort()

    def admit(self, connection: AdminConnection) -> bool:
        """One too many takes the place of the oldest that sends nothing or does not read: a probe is answered
        whoever else is connected."""
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next((one for one in self._connections.values() if one.is_idle), None)
            if oldest is None:
                return False
            self.forget(oldest)
            oldest.abort()
        self._connections[id(connection)] = connection
        return True

    def forget(self, connection: AdminConnection) -> None:
        self._connections.pop(id(connection), None)

    async def answer(self, head: bytes) -> bytes:
        """The whole reply to a request's head. Cancelling it loses nothing."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _reply(Answer(400, b"not an HTTP/1.1 request\n"))
        method, target, _ = words
        if method not in (b"GET", b"HEAD"):
            return _reply(Answer(405, b"GET and HEAD only\n"))
        page = self._pages.get(target.split(b"?", 1)[0].decode("latin-1"))
        if page is None:
            return _reply(Answer(404, "\n".join(["pages:", *self._pages, ""]).encode()), method == b"HEAD")
        try:
            answer = await page()
        except Exception as error:
            answer = Answer(500, f"{in_words(error)}\n".encode())
        return _reply(answer, method == b"HEAD")


class AdminConnection(asyncio.Protocol):
    """Gathers one request's head, answers it, closes."""

    _transport: asyncio.Transport

    def __init__(self, owner: AdminHttp) -> None:
        self._owner = owner
        self._head = b""
        self._answering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the other side is waited for."""
        return self._answering is None or self._answering.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._owner.admit(self):
            self.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing() or self._answering is not None:
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._answering = asyncio.get_running_loop().create_task(self._answer(), name="admin page")
        elif len(self._head) > HEAD_BYTES_MAX:
            self._finish(_reply(Answer(431, b"the request's head is too long\n")))

    def eof_received(self) -> bool:
        """Whoever ends his side behind a whole request gets its answer."""
        return self._answering is not None

    async def _answer(self) -> None:
        self._finish(await self._owner.answer(self._head))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answering is not None:
            self._answering.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._owner.forget(self)

    def abort(self) -> None:
        self._transport.abort()

    def _finish(self, reply: bytes) -> None:
        self._transport.write(reply)
        self._transport.close()


def _reply(answer: Answer, is_head: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    return head if is_head else head + answer.body
