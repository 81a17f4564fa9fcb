"""The operator's door: /health/live, /health/ready and /metrics over a minimal HTTP/1.1.

One request a connection, GET and HEAD only, no body read. Bounded: CONNECTIONS_MAX connections, HEAD_BYTES_MAX of request head,
REQUEST_S for it to arrive. It has no authentication, so its default is loopback. Not here: what is measured (runtime/metrics.py), when
the broker is ready (app.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from millrace.runtime.net import Listener, Net

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


Page = Callable[[], Answer]


def health_pages(
    reason_unready: Callable[[], str],
    render_metrics: Callable[[], str],
    reason_blocked: Callable[[], str] = lambda: "",
    reason_held: Callable[[], str] = lambda: "",
) -> Mapping[str, Page]:
    """The three pages. `reason_unready` gives "" when clients are served, `reason_blocked` when uploads go on, `reason_held` when
    acknowledgements do: a broker whose uploads wait serves as long as the WAL has room, one that holds acknowledgements serves
    readers, so it stays ready and says why."""

    def ready() -> Answer:
        reason, blocked, held = reason_unready(), reason_blocked(), reason_held()
        if reason:
            return Answer(503, f"not ready: {reason}\n".encode())
        lines = [
            "ready",
            *[f"acknowledgements wait: {held}"] * bool(held),
            *[f"uploads wait: {blocked}"] * bool(blocked),
        ]
        return Answer(200, "".join(f"{line}\n" for line in lines).encode())

    return {
        "/health/live": lambda: Answer(200, b"live\n"),
        "/health/ready": ready,
        "/metrics": lambda: Answer(200, render_metrics().encode(), "text/plain; version=0.0.4; charset=utf-8"),
    }


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
        self._connections[id(connection)] = connection
        return len(self._connections) <= CONNECTIONS_MAX

    def forget(self, connection: AdminConnection) -> None:
        self._connections.pop(id(connection), None)

    def answer(self, head: bytes) -> bytes:
        """The whole reply to a request's head."""
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
            answer = page()
        except Exception as error:
            answer = Answer(500, f"{error!r}\n".encode())
        return _reply(answer, method == b"HEAD")


class AdminConnection(asyncio.Protocol):
    """Gathers one request's head, answers it, closes."""

    _transport: asyncio.Transport

    def __init__(self, owner: AdminHttp) -> None:
        self._owner = owner
        self._head = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._owner.admit(self):
            self.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._finish(self._owner.answer(self._head))
        elif len(self._head) > HEAD_BYTES_MAX:
            self._finish(_reply(Answer(431, b"the request's head is too long\n")))

    def connection_lost(self, exc: Exception | None) -> None:
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
