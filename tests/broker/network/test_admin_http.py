"""The admin listener: its pages, and what it does with those who ask for something else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

from millrace.broker.network.admin_http import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    AdminHttp,
    Answer,
    health_pages,
)
from millrace.runtime.net import LoopNet
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.runtime.scheduling.yielding import Yielding
from tests.patience import eventually


class Door:
    """A started admin listener with the health pages, a broken page, and a switch for readiness."""

    async def __aenter__(self) -> Door:
        self.reason, self.blocked, self.held, self.undecided = "recovering", "", "", ""
        self.render_turns = 0
        pages = dict(
            health_pages(
                self.rendered,
                YieldQueue(),
                *(lambda: self.reason, lambda: self.blocked, lambda: self.held, lambda: self.undecided),
            )
        )
        pages["/broken"] = self.broken
        self.http = AdminHttp(LoopNet(), pages)
        self.port = await self.http.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.http.stop()
        await asyncio.sleep(0)

    def rendered(self) -> Yielding[str]:
        yield
        self.render_turns += 1
        yield
        return "millrace_up 1\n"

    async def broken(self) -> Answer:
        raise AssertionError("a defect")

    async def ask(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer; the connection is closed by the other side."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(raw)
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body

    async def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


def test_health_and_metrics_are_answered() -> None:
    """Live always, ready once clients are served and with the reason before, metrics in Prometheus' text
    form."""

    async def run() -> None:
        async with Door() as door:
            assert (await door.get("/health/live"))[0] == 200
            status, _, body = await door.get("/health/ready")
            assert (status, body) == (503, b"not ready: recovering\n")
            door.reason = ""
            assert (await door.get("/health/ready"))[::2] == (200, b"ready\n")
            door.blocked, door.held, door.undecided = "away", "halted", "alone"
            lines = (await door.get("/health/ready"))[2].decode().splitlines()
            waits = ["acknowledgements wait: halted", "uploads wait: away", "nothing is decided: alone"]
            assert lines == ["ready", *waits]
            status, headers, body = await door.get("/metrics?x=1")
            assert (status, body) == (200, b"millrace_up 1\n")
            assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert headers["Content-Length"] == "14"

    asyncio.run(run())


def test_who_ends_his_side_behind_the_request_is_answered() -> None:
    """As `nc -N` does: also where the page takes iterations of the loop. Half a request is nobody's, and its
    connection is closed."""

    async def run() -> None:
        async with Door() as door:
            for raw, answer in ((b"GET /metrics HTTP/1.1\r\n\r\n", b"millrace_up 1\n"), (b"GET /metr", b"")):
                reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
                writer.write(raw)
                writer.write_eof()
                assert (await reader.read()).partition(b"\r\n\r\n")[2] == answer
                writer.close()

    asyncio.run(run())


def test_what_is_not_a_page_is_refused() -> None:
    """Unknown paths, other methods, other protocols and long heads each get their status; a broken page is a
    500, not an end."""

    async def run() -> None:
        async with Door() as door:
            status, _, body = await door.get("/")
            assert status == 404
            assert b"/health/ready" in body
            assert (await door.ask(b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405
            assert (await door.ask(b"\0\0\0\x10 kafka \r\n\r\n"))[0] == 400
            assert (await door.ask(b"GET / HTTP/1.1\r\nX: " + b"y" * HEAD_BYTES_MAX))[0] == 431
            assert (await door.get("/broken"))[0] == 500
            assert (await door.get("/health/live"))[0] == 200

    asyncio.run(run())


def test_head_has_no_body() -> None:
    """HEAD gives the same head as GET and nothing after it."""

    async def run() -> None:
        async with Door() as door:
            status, headers, body = await door.ask(b"HEAD /health/live HTTP/1.1\r\n\r\n")
            assert (status, headers["Content-Length"], body) == (200, "5", b"")

    asyncio.run(run())


def test_a_request_may_come_in_pieces() -> None:
    """The head is gathered until its empty line."""

    async def run() -> None:
        async with Door() as door:
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            for piece in (b"GET /health/l", b"ive HTTP/1.1\r\nHost:", b" x\r\n\r", b"\n"):
                writer.write(piece)
                await asyncio.sleep(0.005)
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(run())


def test_those_who_ask_while_a_page_is_made_share_it() -> None:
    """Forty scrapers at once cost about as much as one, and one who comes later has a page of his own."""

    async def run() -> None:
        async with Door() as door:
            answers = await asyncio.gather(*(door.get("/metrics") for _ in range(40)))
            assert {status for status, _, _ in answers} == {200}
            assert {body for _, _, body in answers} == {b"millrace_up 1\n"}
            assert door.render_turns < 20
            before = door.render_turns
            assert (await door.get("/metrics"))[0] == 200
            assert door.render_turns == before + 1

    asyncio.run(run())


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "time"])
def test_who_leaves_while_a_page_is_made_ends_its_making(
    monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    """At once where the connection is reset; who only ends his side may still read, for as long as a request
    may take. Others are served between the steps of a page."""
    if not is_reset:
        monkeypatch.setattr("millrace.broker.network.admin_http.REQUEST_S", 0.5)

    async def run() -> None:
        async with Door() as door:
            made = 0

            def endless() -> Yielding[str]:
                nonlocal made
                while True:
                    made += 1
                    yield

            door.http._pages = health_pages(endless, YieldQueue(), lambda: "")
            _, writer = await asyncio.open_connection("127.0.0.1", door.port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            await eventually(lambda: made > 0)
            assert (await door.get("/health/live"))[0] == 200
            if is_reset:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.close()
            await eventually(lambda: not door.http._connections)
            await asyncio.sleep(0.01)
            before = made
            await asyncio.sleep(0.01)
            assert made == before

    asyncio.run(run())


def test_connections_are_bounded() -> None:
    """One too many takes the place of the oldest that has asked for nothing: idle ones keep no probe out."""

    async def run() -> None:
        async with Door() as door:
            held = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(CONNECTIONS_MAX)]
            await eventually(lambda: len(door.http._connections) == CONNECTIONS_MAX)
            assert (await door.get("/health/live"))[0] == 200
            with contextlib.suppress(ConnectionError):
                assert await held[0][0].read() == b""
            assert len(door.http._connections) == CONNECTIONS_MAX - 1
            for _, other in held:
                other.close()
            await eventually(lambda: not door.http._connections)

    asyncio.run(run())


def test_pages_that_are_made_keep_their_places() -> None:
    """One too many is dropped while all others wait for us."""

    async def run() -> None:
        async with Door() as door:
            gate = asyncio.Event()

            async def slow() -> Answer:
                await gate.wait()
                return Answer(200, b"done")

            door.http._pages = {"/slow": slow}
            asked = [asyncio.create_task(door.get("/slow")) for _ in range(CONNECTIONS_MAX)]
            await eventually(
                lambda: sum(not one.is_idle for one in door.http._connections.values()) == CONNECTIONS_MAX
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            gate.set()
            assert [found[2] for found in await asyncio.gather(*asked)] == [b"done"] * CONNECTIONS_MAX

    asyncio.run(run())
