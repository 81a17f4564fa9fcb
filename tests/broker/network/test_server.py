"""The server: who may connect, who may stay, and the orderly end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from millrace.broker.network import server
from millrace.broker.network.connection import Connection
from millrace.broker.network.connection_log import LINES_MAX, PERIOD_S, ConnectionLog, describe_greeting
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import SWEPT_AT_ONCE, Server, ServerSettings, bind_all
from millrace.broker.requests.dispatch import Dispatcher
from millrace.broker.requests.request import RequestContext
from millrace.broker.settings.addresses import Endpoint
from millrace.broker.settings.connection_limits import ConnectionLimits
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from millrace.protocol.messages.heartbeat import HeartbeatResponse
from millrace.protocol.messages.join_group import JoinGroupResponse
from millrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from millrace.runtime.net import ConnectFailed, ListenFailed, LoopBound, LoopNet
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.shell import LOOPS, MIB, Shell
from tests.live import free_port
from tests.patience import eventually

FETCH, JOIN_GROUP, HEARTBEAT, BYTES = 1, 11, 12, 36
INT32_MAX = 2**31 - 1


def echo(context: RequestContext, request: Any) -> HeartbeatResponse:
    return HeartbeatResponse()


def make_server(settings: ServerSettings | None = None, net: LoopNet | None = None) -> Server:
    loop = asyncio.get_running_loop()
    memory = RequestBudget(MIB, loop.call_soon)
    return Server(
        net or LoopNet(),
        Dispatcher({HEARTBEAT: echo}, loop.create_task, YieldQueue()),
        memory,
        settings or ServerSettings(),
        YieldQueue(),
    )


class Waits:
    """A handler whose requests wait for news that never come."""

    def __init__(self) -> None:
        self.completed_count = 0

    def handle(self, context: RequestContext, request: Any) -> asyncio.Future[Any]:
        purgatory = context.connection.purgatory
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        outer = self

        class Waiting:
            def force_complete(self) -> None:
                outer.completed_count += 1
                if purgatory.pop(future, None) is self:
                    future.set_result(FetchResponse())

        purgatory[future] = Waiting()
        return future


def fetch_of(count: int) -> FetchRequest:
    topic = FetchTopic("t", partitions=[FetchPartition(index) for index in range(count)])
    return FetchRequest(max_wait_ms=INT32_MAX, min_bytes=1, topics=[topic])


@pytest.mark.parametrize(
    ("partitions", "limit_bytes"), [(40, 4 * 1024), (2_000, 64 * 1024)], ids=["brief", "large"]
)
def test_who_waits_for_news_does_not_keep_others_waiting(partitions: int, limit_bytes: int) -> None:
    """A fetch that holds all of its part of the memory is answered with what there is once somebody else
    wants some. Without others it waits on."""
    waits = Waits()

    async def run() -> None:
        async with Shell({FETCH: waits.handle, HEARTBEAT: echo}, memory_bytes=limit_bytes) as shell:
            first, second = await shell.client(), await shell.client()
            first.send(FETCH, 12, fetch_of(partitions))
            part = shell.memory.large if partitions > 1000 else shell.memory.brief
            await eventually(lambda: part.used_bytes >= part.limit_bytes)
            await asyncio.sleep(0.05)
            assert waits.completed_count == 0
            if partitions > 1000:
                second.send(FETCH, 12, fetch_of(partitions))
                await eventually(lambda: waits.completed_count == 1)
            else:
                await second.ask(HEARTBEAT, 4)
            await first.receive(FETCH, 12)
            await first.ask(HEARTBEAT, 4)
            assert waits.completed_count == 1

    asyncio.run(run())


@pytest.mark.parametrize("is_cut", [False, True])
def test_who_waits_for_news_holds_nothing_once_its_client_is_gone(is_cut: bool) -> None:
    """The frame's memory is free again, whether the client closed or was cut off; so it is at the server's
    end."""
    waits = Waits()

    async def run() -> None:
        async with Shell({FETCH: waits.handle}) as shell:
            for _ in range(3):
                client = await shell.client()
                client.send(FETCH, 12, fetch_of(500))
                await eventually(lambda: shell.memory.used_bytes > 10_000)
                if is_cut:
                    client.writer.transport.abort()
                else:
                    client.close()
                await eventually(lambda: shell.memory.used_bytes == 0)
            assert waits.completed_count == 3
            last = await shell.client()
            last.send(FETCH, 12, fetch_of(1))
            await eventually(lambda: shell.memory.used_bytes > 0)
            assert await shell.server.stop(grace_ms=60_000) == 0
            await last.receive(FETCH, 12)

    asyncio.run(run())


def test_a_join_that_waits_is_charged_to_nobody() -> None:
    """Its group has what it brought, and may not answer before a rebalance is over: others' small requests do
    not wait for it meanwhile."""

    async def run() -> None:
        never: list[asyncio.Future[Any]] = []

        def join(context: RequestContext, request: Any) -> asyncio.Future[Any]:
            never.append(asyncio.get_running_loop().create_future())
            return never[-1]

        handlers = {JOIN_GROUP: join, HEARTBEAT: echo}
        async with Shell(handlers, memory_bytes=256) as shell:
            clients = [await shell.client() for _ in range(20)]
            for client in clients:
                client.send(JOIN_GROUP, 7)
            await eventually(lambda: len(never) == 20)
            assert shell.memory.used_bytes == 0
            await (await shell.client()).ask(HEARTBEAT, 4)
            clients[0].close()
            never[1].set_result(JoinGroupResponse())
            await clients[1].receive(JOIN_GROUP, 7)
            assert shell.memory.used_bytes == 0

    asyncio.run(run())


def test_one_connection_too_many_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """Above max.connections a newcomer is closed at once and the others stay; when one leaves, the next is
    taken."""
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with Shell(
            {HEARTBEAT: echo}, settings=ServerSettings(connections=ConnectionLimits(total_max=2))
        ) as shell:
            first, second = await shell.client(), await shell.client()
            await first.ask(HEARTBEAT, 4)
            await second.ask(HEARTBEAT, 4)
            third = await shell.client()
            assert await third.is_ended()
            assert "max.connections=2" in caplog.text
            await first.ask(HEARTBEAT, 4)
            second.close()
            await eventually(lambda: len(shell.server.connections) == 1)
            await (await shell.client()).ask(HEARTBEAT, 4)
            assert (shell.server.accepted_count, shell.server.refused_count) == (4, 1)

    asyncio.run(run())


def test_connections_from_one_address_are_bounded() -> None:
    """max.connections.per.ip counts by address; an exception for the address wins over it."""

    async def run(settings: ServerSettings, taken: int) -> None:
        async with Shell({HEARTBEAT: echo}, settings=settings) as shell:
            for _ in range(taken):
                await (await shell.client()).ask(HEARTBEAT, 4)
            assert await (await shell.client()).is_ended()

    asyncio.run(run(ServerSettings(connections=ConnectionLimits(per_address_max=1)), 1))
    exceptions = ConnectionLimits(per_address_max=1, per_host={"127.0.0.1": 3})
    asyncio.run(run(ServerSettings(connections=exceptions), 3))


@pytest.mark.parametrize("swept_at_once", [1, SWEPT_AT_ONCE])
def test_idle_connections_are_swept(swept_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet connection is closed after connections.max.idle.ms; one that talks, and one with a request in
    flight, stay. Thousands are looked at over several iterations of the loop."""
    monkeypatch.setattr(server, "SWEPT_AT_ONCE", swept_at_once)
    looks: list[int] = []
    monkeypatch.setattr(Connection, "is_forsaken", property(lambda self: bool(looks.append(self.info.id))))
    most = [0]

    async def run() -> None:
        def look() -> None:
            most[0] = max(most[0], len(looks))
            looks.clear()
            asyncio.get_running_loop().call_soon(look)

        look()
        parked: list[asyncio.Future[Any]] = []

        def park(context: RequestContext, request: Any) -> asyncio.Future[Any]:
            parked.append(asyncio.get_running_loop().create_future())
            return parked[0]

        handlers = {HEARTBEAT: echo, BYTES: park}
        async with Shell(handlers, settings=ServerSettings(idle_ms=2000)) as shell:
            quiet, busy, waiting = [await shell.client() for _ in range(3)]
            waiting.send(BYTES, 2)
            ended = asyncio.ensure_future(quiet.is_ended())
            while not ended.done():
                await busy.ask(HEARTBEAT, 4)
                await asyncio.sleep(0.03)
            assert ended.result()
            assert len(shell.server.connections) == 2
            parked[0].set_result(SaslAuthenticateResponse())
            await waiting.receive(BYTES, 2)

    asyncio.run(run())
    assert most[0] == min(swept_at_once, 3)


def test_idle_time_may_be_without_bound() -> None:
    """A negative connections.max.idle.ms closes nobody, and the sweep still runs."""

    async def run() -> None:
        async with Shell({HEARTBEAT: echo}, settings=ServerSettings(idle_ms=-1)) as shell:
            client = await shell.client()
            await asyncio.sleep(0.1)
            await client.ask(HEARTBEAT, 4)

    asyncio.run(run())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_stop_lets_requests_in_flight_finish(loop_name: str) -> None:
    """Stopping accepts no more and begins no more; what was begun is answered, then connections close; quiet
    ones close at once."""

    async def run() -> None:
        parked: list[asyncio.Future[Any]] = []

        def park(context: RequestContext, request: Any) -> asyncio.Future[Any]:
            parked.append(asyncio.get_running_loop().create_future())
            return parked[-1]

        async with Shell({HEARTBEAT: park}) as shell:
            client, quiet = await shell.client(), await shell.client()
            client.send(HEARTBEAT, 4)
            await eventually(lambda: len(parked) == 1)
            stopping = asyncio.ensure_future(shell.server.stop(grace_ms=60_000))
            assert await quiet.is_ended()
            client.send(HEARTBEAT, 4)
            with pytest.raises(OSError):
                await shell.client()
            await asyncio.sleep(0.02)
            assert len(parked) == 1
            assert not stopping.done()
            parked[0].set_result(HeartbeatResponse(error_code=3))
            assert (await client.receive(HEARTBEAT, 4))[1].error_code == 3
            assert await client.is_ended()
            assert await stopping == 0

    LOOPS[loop_name](run())


def test_stop_is_bounded() -> None:
    """Requests that do not finish within the grace are cut, and counted."""

    async def run() -> None:
        begun: list[int] = []

        def park(context: RequestContext, request: Any) -> asyncio.Future[Any]:
            begun.append(1)
            return asyncio.get_running_loop().create_future()

        async with Shell({HEARTBEAT: park}) as shell:
            client = await shell.client()
            client.send(HEARTBEAT, 4)
            await eventually(lambda: bool(begun))
            assert await shell.server.stop(grace_ms=30) == 1
            assert await client.is_ended()

    asyncio.run(run())


def test_listening_is_all_or_nothing() -> None:
    """When the second of two listeners cannot be had, the first is given up again and the error names the
    address."""

    async def run() -> None:
        taken = make_server()
        (endpoint,) = await taken.start(await bind_all(LoopNet(), [Endpoint("A", "127.0.0.1", 0)]))
        assert endpoint.port > 0
        server = make_server()
        wanted = [Endpoint("A", "127.0.0.1", free_port()), Endpoint("B", "127.0.0.1", endpoint.port)]
        with pytest.raises(ListenFailed) as failed:
            await server.start(await bind_all(LoopNet(), wanted))
        assert (failed.value.host, failed.value.port) == ("127.0.0.1", endpoint.port)
        assert "in use" in failed.value.reason
        with pytest.raises(ConnectFailed):
            await LoopNet().connect(asyncio.Protocol, "127.0.0.1", wanted[0].port)
        assert await server.stop() == 0
        assert await taken.stop() == 0

    asyncio.run(run())


def test_a_listener_that_a_stop_overtakes_is_closed() -> None:
    """It is refused, and its address is free."""

    class LateNet(LoopNet):
        async def bind(self, host: str, port: int) -> LoopBound:
            await stopped.wait()
            return await super().bind(host, port)

    stopped = asyncio.Event()

    async def main() -> None:
        server, endpoint = make_server(net=LateNet()), Endpoint("LATE", "127.0.0.1", free_port())
        await server.start([])
        opening = asyncio.create_task(server.open(endpoint))
        await asyncio.sleep(0)
        await server.stop()
        stopped.set()
        with pytest.raises(ListenFailed, match="is stopping"):
            await opening
        assert not server.bound
        with pytest.raises(ConnectFailed):
            await LoopNet().connect(asyncio.Protocol, endpoint.host, endpoint.port)

    asyncio.run(main())


def test_several_listeners_and_every_address() -> None:
    """An empty host listens on every address of the machine, IPv6 included where there is one, on one
    port."""

    async def run() -> None:
        server = make_server()
        one, every = await server.start(
            await bind_all(LoopNet(), [Endpoint("ONE", "localhost", 0), Endpoint("EVERY", "", 0)])
        )
        assert one.port != every.port
        for host in ("127.0.0.1", "::1"):
            try:
                _, writer = await asyncio.open_connection(host, every.port)
            except OSError:
                assert host == "::1"  # a machine without IPv6
                continue
            await eventually(lambda: bool(server.connections))
            (connection,) = server.connections.values()
            assert (connection.info.listener, connection.info.local_host) == ("EVERY", host)
            writer.close()
            await eventually(lambda: not server.connections)
        await server.stop()

    asyncio.run(run())


def test_connecting_to_nobody_is_unavailable() -> None:
    """Net.connect to a closed port raises ConnectFailed with the address."""

    async def run() -> None:
        net = LoopNet()
        listener = await net.listen(asyncio.Protocol, "127.0.0.1", 0)
        transport, _ = await net.connect(asyncio.Protocol, "127.0.0.1", listener.port)
        transport.close()
        listener.close()
        await asyncio.sleep(0.01)
        with pytest.raises(ConnectFailed):
            await net.connect(asyncio.Protocol, "127.0.0.1", listener.port)

    asyncio.run(run())


def test_lines_about_connections_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A peer that errs in a loop gets a bounded number of lines a period; the next period says how many were
    left out."""
    caplog.set_level(logging.INFO)
    connection_log = ConnectionLog()
    for number in range(100):
        connection_log.ended(number / 1000, "10.0.0.1:5", "garbage")
    assert len(caplog.records) == LINES_MAX
    connection_log.ended(PERIOD_S + 1, "10.0.0.1:5", "garbage")
    assert len(caplog.records) == LINES_MAX + 1
    assert "90 more" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("first_bytes", "word"),
    [
        (b"GET ", "HTTP"),
        (b"PRI ", "HTTP"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"SSH-", "SSH"),
        (b"\0\0\0\x20", ""),
        (b"", ""),
        (b"\x16\x03", ""),
    ],
)
def test_other_protocols_are_recognised(first_bytes: bytes, word: str) -> None:
    """The first bytes tell HTTP, TLS and SSH apart from a broken client."""
    assert (word in describe_greeting(first_bytes)) if word else (describe_greeting(first_bytes) == "")
