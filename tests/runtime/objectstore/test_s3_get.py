"""The client of ranged GETs: bytes land where they belong however they are cut up, and every end of a
connection is told for what it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import uvloop

from millrace.runtime.objectstore import ObjectMissing, StoreDenied, StoreUnavailable
from millrace.runtime.objectstore.s3 import S3ObjectStore
from millrace.runtime.objectstore.s3_get import (
    HEAD_BYTES_MAX,
    RECEIVED_BYTES_MAX,
    ConnectionEnded,
    GetConnection,
    GetPool,
    Reply,
)
from tests.patience import PATIENCE_S, eventually
from tests.runtime.objectstore.test_s3 import CUT, Answer, answer, refusal, scripted

CONTENT = bytes(range(256)) * 400
REQUEST = b"GET /b/a HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED_REFUSAL = (
    b"HTTP/1.1 403 X\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"26\r\n<Error><Code>AccessDenied</Code></Error>\r\n0\r\n\r\n"
)
Script = list[
    bytes | float | asyncio.Event | None
]  # pieces to write, seconds or something to wait for, None: close


class RawServer:
    """One script for each connection: pieces of bytes as they are written, for whatever request has come."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.connections = 0
        self.requests = 0
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        script = self.scripts.pop(0)
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            for step in script:
                if step is None:
                    return
                if step == b"next":
                    await reader.readuntil(b"\r\n\r\n")
                    self.requests += 1
                elif isinstance(step, bytes):
                    writer.write(step)
                    await writer.drain()
                    await asyncio.sleep(0)
                elif isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    await asyncio.sleep(step)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


def on_server(
    server: RawServer,
    test: Callable[[GetPool], Awaitable[None]],
    connections_max: int = 4,
    read_timeout_s: float = PATIENCE_S,
) -> None:
    """On the broker's own loop: another one reads otherwise."""

    async def main() -> None:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        pool = GetPool(
            "127.0.0.1",
            port,
            None,
            connections_max=connections_max,
            connect_timeout_s=PATIENCE_S,
            read_timeout_s=read_timeout_s,
            keepalive_s=30,
        )
        try:
            await test(pool)
        finally:
            pool.close()
            listener.close()

    problems: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: problems.append(context))
        runner.run(main())
    assert not problems


def lent(sizes: Sequence[int]) -> tuple[bytearray, list[memoryview]]:
    memory = bytearray(sum(sizes) + 4)
    views, place = [], 0
    for size in sizes:
        views.append(memoryview(memory)[place : place + size])
        place += size
    return memory, views


@pytest.mark.parametrize("cut", [60, 1000, HEAD_BYTES_MAX, 1 << 20])
@pytest.mark.parametrize(
    "sizes", [(len(CONTENT),), (1, 0, 5000, 3, len(CONTENT) - 5004), (len(CONTENT), 100)]
)
def test_bytes_land_where_they_belong(cut: int, sizes: tuple[int, ...]) -> None:
    """In whatever pieces an answer comes, views are filled in order, nothing is written behind them, and the
    connection serves the next request."""
    whole = b"HTTP/1.1 100 Continue\r\n\r\n" + answer(206, CONTENT, ETag="x")
    server = RawServer(
        [*(whole[at : at + cut] for at in range(0, len(whole), cut)), b"next", answer(200, b"again")]
    )

    async def test(pool: GetPool) -> None:
        memory, views = lent(sizes)
        reply = await pool.get(REQUEST, lambda: views)
        assert (reply.status, reply.came_bytes, reply.headers["etag"]) == (206, len(CONTENT), "x")
        assert reply.views is views
        assert bytes(memory) == CONTENT + bytes(len(memory) - len(CONTENT))
        memory, views = lent((5,))
        assert (await pool.get(REQUEST, lambda: views)).came_bytes == 5
        assert memory[:5] == b"again"

    on_server(server, test)
    assert (server.connections, server.requests) == (1, 2)


def test_an_answer_that_comes_byte_by_byte() -> None:
    """Heads and bodies may be cut anywhere."""
    whole = answer(206, CONTENT[:300])
    server = RawServer([whole[at : at + 1] for at in range(len(whole))])

    async def test(pool: GetPool) -> None:
        memory, views = lent((1, 0, 200, 99))
        assert (await pool.get(REQUEST, lambda: views)).came_bytes == 300
        assert memory[:300] == CONTENT[:300]

    on_server(server, test)


def test_an_idle_connection_takes_its_end_quietly() -> None:
    """After an answer that filled the place for heads, and whose end comes at once behind it."""
    server = RawServer([answer(206, CONTENT), None], [answer(206, CONTENT)])

    async def test(pool: GetPool) -> None:
        for _ in range(2):
            memory, views = lent((len(CONTENT),))
            assert (await pool.get(REQUEST, partial(list, views))).came_bytes == len(CONTENT)
            assert memory[: len(CONTENT)] == CONTENT
            await asyncio.sleep(0.1)

    on_server(server, test)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([b"HTTP/1.1 206 X\r\nContent-Length: 9\r\n\r\nabc", None], "closed"),
        ([b"HTTP/1.1 206 X\r\nContent-Length: 900\r\n\r\nabc"], "fewer were asked for"),
        ([b"HTTP/1.1 206 X\r\nContent-Length: 3\r\n\r\nabcdef"], "fewer were asked for"),
        ([b"SSH-2.0-x\r\n\r\n"], "no HTTP answer"),
        ([b"x" * HEAD_BYTES_MAX], "too long"),
        ([b"HTTP/1.1 2", None], "closed"),
    ],
)
def test_an_answer_that_is_none(script: Script, message: str) -> None:
    """Cut off, longer than asked for, or not of the protocol: an error of the connection, which is not used
    again."""
    server = RawServer(script, [answer(200, b"good")])

    async def test(pool: GetPool) -> None:
        memory, views = lent((9,))
        with pytest.raises(ConnectionEnded, match=message):
            await pool.get(REQUEST, lambda: views)
        assert memory[9:] == bytes(4)
        assert (await pool.get(REQUEST, lambda: views)).came_bytes == 4
        assert memory[:4] == b"good"

    on_server(server, test)
    assert server.connections == 2


def test_an_idle_connection_that_was_closed_costs_one_more_attempt() -> None:
    """The store may close it at any time: the request goes out again on a new one. On a new one the end is
    told."""
    server = RawServer(
        [answer(200, b"1"), 0.01, None], [answer(200, b"2"), b"next", None], [answer(200, b"3")], [None]
    )

    async def test(pool: GetPool) -> None:
        memory, views = lent((1,))
        await pool.get(REQUEST, lambda: views)
        await asyncio.sleep(0.1)
        await pool.get(REQUEST, lambda: views)
        await pool.get(REQUEST, lambda: views)
        assert memory[:1] == b"3"
        for connection in list(pool._idle):
            connection.abort()
        with pytest.raises(ConnectionEnded):
            await pool.get(REQUEST, lambda: views)

    on_server(server, test)
    assert server.connections == 4


def test_silence_is_told_after_its_time() -> None:
    """The time begins anew with everything that comes: an answer may take long as long as it moves."""
    head = b"HTTP/1.1 206 X\r\nContent-Length: 6\r\n\r\n"
    waits: Script = [step for at in range(6) for step in (0.6, b"abcdef"[at : at + 1])]
    server = RawServer([0.6, head, *waits], [head, b"abc"])

    async def test(pool: GetPool) -> None:
        memory, views = lent((6,))
        await pool.get(REQUEST, lambda: views)
        assert memory[:6] == b"abcdef"
        for connection in list(pool._idle):
            connection.abort()
        with pytest.raises(TimeoutError, match="nothing came"):
            await pool.get(REQUEST, lambda: views)

    on_server(server, test, read_timeout_s=3)


def test_a_cancelled_get_writes_no_more() -> None:
    """Its connection is closed: what comes late goes nowhere, and the next request has an answer of its
    own."""
    head = b"HTTP/1.1 206 X\r\nContent-Length: 6\r\n\r\n"
    late = asyncio.Event()
    server = RawServer([head, b"abc", late, b"def"], [answer(200, b"xyz")])

    async def test(pool: GetPool) -> None:
        memory, views = lent((6,))
        reading = asyncio.create_task(pool.get(REQUEST, lambda: views))
        while memory[:3] != b"abc":  # noqa: ASYNC110  (memory tells nobody)
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        other, other_views = lent((3,))
        await pool.get(REQUEST, lambda: other_views)
        late.set()
        await eventually(lambda: server.open == 1)  # the first has sent it, and seen its end
        assert memory == b"abc" + bytes(7)
        assert other[:3] == b"xyz"

    on_server(server, test)


def test_large_bodies_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much the sockets hold, an iteration of the loop receives one read's worth, whoever it is for;
    and all of it comes."""
    content = CONTENT * 80
    server = RawServer(*([answer(206, content)] for _ in range(4)))
    received: list[tuple[int, int]] = []
    turn = 0

    async def test(pool: GetPool) -> None:
        def count_turns() -> None:
            nonlocal turn
            turn += 1
            asyncio.get_running_loop().call_soon(count_turns)

        asyncio.get_running_loop().call_soon(count_turns)
        memories = [lent([len(content)]) for _ in range(4)]
        await asyncio.gather(*(pool.get(REQUEST, partial(list, views)) for _, views in memories))
        assert all(memory[:-4] == content for memory, _ in memories)

    take_body = GetConnection._take_body

    def noted(connection: GetConnection, count: int) -> None:
        received.append((turn, count))
        take_body(connection, count)

    monkeypatch.setattr(GetConnection, "_take_body", noted)
    on_server(server, test)
    of_turn = Counter[int]()
    for number, count in received:
        of_turn[number] += count
    assert sum(of_turn.values()) == 4 * len(content)
    # Four that begin, or whose bytes have just arrived, may come in one turn; each then waits its own.
    assert max(of_turn.values()) <= 4 * RECEIVED_BYTES_MAX
    assert max(count for _, count in received) == RECEIVED_BYTES_MAX


def test_no_more_connections_than_allowed() -> None:
    """Who comes beyond them waits for one, and one that is idle is used before a new one is made."""
    script: Script = [0.02, answer(200, b"x")]
    for _ in range(40):
        script += [b"next", 0.005, answer(200, b"x")]
    server = RawServer(*([script] * 3))
    seen = []

    async def test(pool: GetPool) -> None:
        async def one() -> Reply:
            reply = await pool.get(REQUEST, lambda: lent((1,))[1])
            seen.append(server.open)
            return reply

        replies = await asyncio.gather(*(one() for _ in range(30)))
        assert all(reply.came_bytes == 1 for reply in replies)

    on_server(server, test, connections_max=3)
    assert max(seen) == server.connections == 3


def into(store: S3ObjectStore, key: str, start: int, end: int, memory: bytearray) -> Awaitable[Any]:
    return store.get_into(key, start, end, lambda: [memoryview(memory)[: end - start]])


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (refusal(404, "NoSuchKey"), ObjectMissing, "a"),
        (refusal(503, "SlowDown"), StoreUnavailable, "SlowDown"),
        (refusal(403, "AccessDenied"), StoreDenied, "AccessDenied"),
        (
            answer(400, b"<Error><Code>X</Code></Error>", x_amz_bucket_region="eu-west-3"),
            StoreDenied,
            "say region=eu-west-3",
        ),
        (CHUNKED_REFUSAL, StoreDenied, "AccessDenied"),
        (answer(500), StoreUnavailable, "500"),
        (CUT, StoreUnavailable, "closed"),
    ],
)
def test_a_refusal_means_what_it_means_elsewhere(reply: Answer, kind: type[Exception], message: str) -> None:
    """The store's word decides, as for every other verb."""

    async def test(store: S3ObjectStore) -> None:
        with pytest.raises(kind, match=message):
            await into(store, "a", 0, 4, bytearray(4))

    [request] = scripted([reply], test)
    assert request.headers["range"] == "bytes=0-3"


def test_a_store_that_does_not_say_lengths_is_read_the_other_way() -> None:
    """The first answer without one is asked for again, and copied; from then on that way is taken at once."""
    chunked = b"HTTP/1.1 206 X\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"

    async def test(store: S3ObjectStore) -> None:
        for _ in range(2):
            memory = bytearray(4)
            assert (await into(store, "a", 0, 4, memory))[1] == 4
            assert memory == b"abcd"

    assert len(scripted([chunked, chunked, chunked], test)) == 3
