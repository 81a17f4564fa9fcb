"""The operating system's network: what a listening that failed, or was given up, leaves behind."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvloop

from millrace.runtime.net import ConnectFailed, ListenFailed, LoopBound, LoopNet
from tests.patience import eventually


def bound_socket(port: int = 0) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


def is_free(port: int) -> bool:
    """Whether nobody listens there."""
    with bound_socket(port) as asker:
        try:
            asker.listen()
        except OSError:
            return False
        return True


def test_an_address_that_is_taken_gives_up_the_others() -> None:
    """Of one that is listened on in two sockets: another process was faster on the second, and nobody accepts
    on the first any more."""

    async def main() -> None:
        first, second = bound_socket(), bound_socket()
        ports = first.getsockname()[1], second.getsockname()[1]
        with bound_socket(ports[1]) as faster:
            faster.listen()
            with pytest.raises(ListenFailed):
                await LoopBound("", [first, second]).listen(asyncio.Protocol)
            await eventually(lambda: is_free(ports[0]))

    asyncio.run(main())


def test_a_cancelled_listening_accepts_nobody() -> None:
    """Wherever it is cancelled: it listens and says so, or the address is given up."""

    async def main() -> None:
        for turns in range(1, 6):
            bound = LoopBound("", [bound_socket(), bound_socket()])
            task = asyncio.create_task(bound.listen(asyncio.Protocol))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            (listener,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(listener, BaseException):
                listener.close()
            await eventually(lambda: is_free(bound.port))  # noqa: B023

    asyncio.run(main())


@pytest.mark.parametrize("host", ["a" * 64 + ".example", ".", "x" * 300])
def test_what_cannot_be_a_host_is_refused_as_others_are(host: str) -> None:
    """Its encoding fails, before anybody is asked for its address."""

    async def main() -> None:
        with pytest.raises(ListenFailed) as refused:
            await LoopNet().bind(host, 0)
        assert refused.value.reason == "this is not the name of a host"
        with pytest.raises(ConnectFailed):
            await LoopNet().connect(asyncio.Protocol, host, 1)

    asyncio.run(main())


@pytest.mark.parametrize("port", [-1, 0, 65_536, 70_000, (1 << 31) - 1])
def test_what_cannot_be_a_port_is_refused_as_others_are(port: int) -> None:
    """A peer says where another is in 32 bits; uvloop would connect to what is left of them in 16."""

    async def main() -> None:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(ConnectFailed, match="not the port of a host"):
                await LoopNet().connect(asyncio.Protocol, host, port)

    asyncio.run(main())


class NamesLoop(asyncio.SelectorEventLoop):
    """`lost` is the name of a host that no server of names answers for, until `answered` is set; then it is
    on this machine, as all others are."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.answered = asyncio.Event()

    async def getaddrinfo(self, host: object, port: object, **given: Any) -> Any:
        self.asked.append(str(host))
        if host == "lost":
            await self.answered.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


def test_a_name_that_nobody_answers_for_is_looked_up_once() -> None:
    """However many wait for it, and give up: a lookup holds a thread of a few, and cannot be taken back.
    Others are found meanwhile. What comes of it is told to who still waits, and later ones ask anew."""

    async def main() -> None:
        loop, net = asyncio.get_running_loop(), LoopNet()
        assert isinstance(loop, NamesLoop)
        listener = await net.listen(asyncio.Protocol, "127.0.0.1", 0)
        loop.asked.clear()
        for _ in range(20):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(net.connect(asyncio.Protocol, "lost", listener.port), 0.001)
        transport, _ = await net.connect(asyncio.Protocol, "here", listener.port)
        transport.close()
        assert loop.asked == ["lost", "here"]
        waiting = asyncio.create_task(net.connect(asyncio.Protocol, "lost", listener.port))
        await asyncio.sleep(0)
        loop.answered.set()
        for found, _ in (await waiting, await net.connect(asyncio.Protocol, "lost", listener.port)):
            found.close()
        assert loop.asked == ["lost", "here", "lost"]
        listener.close()

    with asyncio.Runner(loop_factory=NamesLoop) as runner:
        runner.run(main())


def test_an_address_is_not_looked_up() -> None:
    """As each node of a cluster on one machine has one."""

    async def main() -> None:
        loop, net = asyncio.get_running_loop(), LoopNet()
        assert isinstance(loop, NamesLoop)
        listener = await net.listen(asyncio.Protocol, "127.0.0.1", 0)
        loop.asked.clear()
        transport, _ = await net.connect(asyncio.Protocol, "127.0.0.1", listener.port)
        transport.close()
        listener.close()
        assert loop.asked == []

    with asyncio.Runner(loop_factory=NamesLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_connects_to_a_busy_loop_does_not_wait_an_iteration_for_each_other(run: Any) -> None:
    """A hundred connected at once: they are accepted in a few iterations of the loop, not in a hundred."""

    class Noted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(iterations_count)

    accepted: list[int] = []
    iterations_count = 0

    async def main() -> None:
        nonlocal iterations_count
        listener = await LoopNet().listen(Noted, "127.0.0.1", 0, backlog=200)
        made = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(100)]
        while len(accepted) < len(made):
            iterations_count += 1
            await asyncio.sleep(0)
        for one in made:
            one.close()
        listener.close()
        await eventually(lambda: is_free(listener.port))

    run(main())
    assert len(set(accepted)) <= 12, accepted
