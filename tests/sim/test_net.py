"""The simulated network: bytes in order and in pieces, back-pressure, and the ways in which it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.runtime.net import ConnectFailed, ListenFailed
from millrace.runtime.rand import Rand
from tests.sim.loop import Life, SimLoop, run_simulation
from tests.sim.net import HostNet, SimNet, SimTransport
from tests.sim.trace import Trace

PORT = 9092


class Peer(asyncio.Protocol):
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.received = b""
        self.pieces = 0
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.pieces += 1

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(f"lost {type(exc).__name__}")


class Pair:
    """A server on one host, a client on another, connected."""

    def __init__(self, net: SimNet) -> None:
        self.net = net
        self.server_life = Life("server")
        self.server_host: HostNet = net.host("a", self.server_life)
        self.client_host = net.host("b")
        self.served: list[Peer] = []

    async def open(self) -> Pair:
        def accept() -> Peer:
            self.served.append(Peer())
            return self.served[-1]

        await self.server_host.listen(accept, "", PORT)
        _, client = await self.client_host.connect(Peer, "a", PORT)
        assert isinstance(client, Peer)
        self.client = client
        await asyncio.sleep(0.01)
        self.server = self.served[0]
        return self


def drive(test: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimLoop) -> None:
        net = SimNet(loop, Rand(b"net"), Trace(lambda: loop.now_us).of("net"))
        await test(await Pair(net).open())

    run_simulation(main)


def test_bytes_arrive_in_order_and_in_pieces() -> None:
    """What is written on either side arrives on the other, cut anywhere; a close lets it through first."""

    async def test(pair: Pair) -> None:
        sent = b"".join(b"%d," % number for number in range(5000))
        for at in range(0, len(sent), 999):
            pair.client.transport.write(sent[at : at + 999])
        pair.server.transport.writelines([b"a", memoryview(b"b")])
        pair.client.transport.close()
        await asyncio.sleep(0.1)
        assert pair.server.received == sent
        assert pair.server.pieces > len(sent) // 999
        assert pair.server.events[-1] == "lost NoneType"
        assert pair.client.events == ["made", "lost NoneType"]

    drive(test)


def test_a_slow_reader_is_felt() -> None:
    """Beyond the window the writer's buffer grows and it is told to pause; when the reader goes on, to
    resume."""

    async def test(pair: Pair) -> None:
        pair.server.transport.pause_reading()
        pair.client.transport.set_write_buffer_limits(high=1000)
        pair.client.transport.write(bytes(200_000))
        await asyncio.sleep(1)
        assert pair.server.received == b""
        assert pair.client.transport.get_write_buffer_size() > 100_000
        assert pair.client.events == ["made", "pause"]
        pair.server.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(pair.server.received) == 200_000
        assert pair.client.events == ["made", "pause", "resume"]

    drive(test)


def test_the_end_of_a_process_is_heard() -> None:
    """A reset loses the listener and every connection; peers get an error, and later connects are refused."""

    async def test(pair: Pair) -> None:
        pair.net.loop.end_life(pair.server_life)
        pair.net.reset(pair.server_life)
        pair.server.transport.write(b"from the grave")
        await asyncio.sleep(0.1)
        assert pair.client.events == ["made", "lost ConnectionResetError"]
        assert pair.client.received == b""
        assert pair.server.events == ["made"]
        with pytest.raises(ConnectFailed):
            await pair.client_host.connect(Peer, "a", PORT)

    drive(test)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_nothing_arrives_behind_what_a_break_took(is_flushed: bool) -> None:
    """A side that has not heard of the break goes on writing: bytes with a hole in them would be another
    message."""

    async def test(pair: Pair) -> None:
        for _ in range(20):  # delays are drawn
            _, client = await pair.client_host.connect(Peer, "a", PORT)
            assert isinstance(client, Peer)
            await asyncio.sleep(0.01)
            server = pair.served[-1].transport
            server.write(b"before")
            server.break_off(is_flushed=is_flushed)
            server.write(b"behind")
            await asyncio.sleep(0.1)
            assert client.received == (b"before" if is_flushed else b"")
            assert client.events == ["made", "lost ConnectionResetError"]

    drive(test)


def test_a_severed_way_keeps_what_is_under_way() -> None:
    """One way only: nothing arrives and nobody is told; after healing all of it does, in order."""

    async def test(pair: Pair) -> None:
        pair.net.sever("a", "b")
        pair.client.transport.write(b"to")
        pair.server.transport.write(b"back")
        await asyncio.sleep(5)
        assert (pair.server.received, pair.client.received) == (b"to", b"")
        with pytest.raises(ConnectFailed):
            await pair.client_host.connect(Peer, "a", PORT)
        pair.server.transport.write(b" again")
        pair.net.heal()
        await asyncio.sleep(0.1)
        assert pair.client.received == b"back again"

    drive(test)


def test_halves_hear_nothing_of_each_other() -> None:
    """Both ways, until they are one again; what is within a half goes on."""

    async def test(pair: Pair) -> None:
        pair.net.side_of = lambda host: int(host == "a")
        pair.client.transport.write(b"to")
        pair.server.transport.write(b"back")
        await asyncio.sleep(5)
        assert (pair.server.received, pair.client.received) == (b"", b"")
        with pytest.raises(ConnectFailed):
            await pair.client_host.connect(Peer, "a", PORT)
        pair.net.side_of = lambda host: 0
        pair.net.wake()
        await asyncio.sleep(0.1)
        assert (pair.server.received, pair.client.received) == (b"to", b"back")

    drive(test)


def test_an_address_is_listened_on_once() -> None:
    """A second listener is refused until the first is closed; an abort drops what was under way."""

    async def test(pair: Pair) -> None:
        with pytest.raises(ListenFailed):
            await pair.server_host.listen(Peer, "", PORT)
        pair.client.transport.write(b"lost")
        pair.client.transport.abort()
        await asyncio.sleep(0.1)
        assert pair.server.received == b""
        assert pair.server.events == ["made", "lost ConnectionResetError"]

    drive(test)
