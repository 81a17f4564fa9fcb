"""What a callback of the loop may raise, and which of it is fatal, on both loops."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from millrace.runtime import process
from millrace.runtime.escapes import CallbackFailed, guard_loop
from tests.patience import PATIENCE_S

RUNS: dict[str, Callable[..., Any]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


def ours(*_: object) -> None:
    """A callback of the product that raises."""
    process.read_text("/nowhere")


def soon(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(process.read_text, "/nowhere")


def later(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_later(0.001, process.read_text, "/nowhere")


def done(loop: asyncio.AbstractEventLoop) -> None:
    future = loop.create_future()
    future.add_done_callback(ours)
    future.set_result(None)


def by_signal(loop: asyncio.AbstractEventLoop) -> None:
    loop.add_signal_handler(signal.SIGUSR1, ours)
    os.kill(os.getpid(), signal.SIGUSR1)


def through_a_library(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(lambda: json.loads("{}", object_hook=ours))


def of_a_library(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(json.loads, "x")


def of_a_future_that_is_done(loop: asyncio.AbstractEventLoop) -> None:
    future = loop.create_future()
    future.set_result(None)
    loop.call_soon(future.set_result, None)


def nobody_asked(loop: asyncio.AbstractEventLoop) -> None:
    async def fail() -> None:
        ours()

    loop.create_task(fail())


class Raising(asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        ours()


@pytest.mark.parametrize("loop_name", RUNS)
@pytest.mark.parametrize(
    ("plant", "is_fatal"),
    [
        (soon, True), (later, True), (done, True), (by_signal, True), (through_a_library, True),
        (of_a_library, False), (of_a_future_that_is_done, False), (nobody_asked, False),
    ],
)  # fmt: skip
def test_which_escapes_are_fatal(
    loop_name: str, plant: Callable[[asyncio.AbstractEventLoop], None], is_fatal: bool
) -> None:
    """Code of ours in a callback is; libraries alone, futures that are done and results that nobody asked for
    are not."""
    told: list[CallbackFailed] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        guard_loop(loop, told.append)
        plant(loop)
        await asyncio.sleep(0.05)
        gc.collect()

    RUNS[loop_name](run())
    assert [type(error.cause) for error in told] == ([FileNotFoundError] if is_fatal else [])


@pytest.mark.parametrize("loop_name", RUNS)
def test_a_connection_that_raises_is_closed_alone(loop_name: str) -> None:
    """What a protocol raises over bytes ends that connection, which the loop does, and is not fatal."""
    told: list[CallbackFailed] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        guard_loop(loop, told.append)
        server = await loop.create_server(Raising, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x")
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
        server.close()

    RUNS[loop_name](run())
    assert told == []
