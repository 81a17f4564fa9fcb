"""The operating system's network: what a listening that failed, or was given up, leaves behind."""

from __future__ import annotations

import asyncio
import socket

import pytest

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
