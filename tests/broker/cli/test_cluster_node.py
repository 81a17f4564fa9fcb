"""A node of `millrace cluster start` as a process: one that cannot be begun, and one that is stopped while it
is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millrace.broker.cli.cluster_node import LocalNode, State
from millrace.broker.cli.cluster_start import Screen, node_text
from millrace.broker.cluster.plan import NodePlan
from tests.patience import PATIENCE_S


def node_at(folder: Path) -> LocalNode:
    settings = {"no.such.setting.of.any.kind": "1"}  # it ends soon, by itself
    return LocalNode(NodePlan(1, "broker", ("127.0.0.1", 1), ("127.0.0.1", 2), str(folder), settings))


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main()

    asyncio.run(within())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a line of the node's, and the command ends with code 1."""
    (tmp_path / "node1").write_text("a file")
    node = node_at(tmp_path / "node1")

    async def main() -> None:
        assert await Screen([node], is_terminal=False).run() == 1

    run(main)
    assert f"node 1: not started: {tmp_path}/node1: File exists" in capsys.readouterr().out


def test_a_restart_that_fails_is_told(tmp_path: Path) -> None:
    """It does not say that the node starts, for ever."""
    node = node_at(tmp_path)
    (tmp_path / "log").mkdir()

    async def main() -> None:
        node.restart_in(0)
        await node.wait_end()
        assert node.state is State.ENDED

    run(main)
    assert node_text(node) == f"not started: {tmp_path}/log: Is a directory"


def test_a_command_that_is_interrupted_as_it_begins_ends_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its nodes do not listen for signals yet. One that is ended otherwise, or once it has served, is another
    matter."""
    node = node_at(tmp_path)

    async def main() -> None:
        create = asyncio.create_subprocess_exec

        async def create_deaf(*words: str, **named: object) -> asyncio.subprocess.Process:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
            return await create("sleep", "1000", **named)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", create_deaf)
            assert await Screen([node], is_terminal=False).run() == 0

    run(main)
    assert "node 1: ended before it served" in capsys.readouterr().out
    node.was_ready = True
    assert node_text(node) == "ended by signal 15"
    node.was_ready, node.code = False, -signal.SIGKILL
    assert node_text(node) == "ended by signal 9"


def test_a_stop_while_the_process_is_begun_reaches_it(tmp_path: Path) -> None:
    """Nobody else would end it: it has a session of its own."""
    node = node_at(tmp_path)
    begun: list[int] = []

    async def main() -> None:
        create, is_begun = asyncio.create_subprocess_exec, asyncio.Event()

        async def create_and_stop(*words: str, **named: object) -> asyncio.subprocess.Process:
            process = await create("sleep", "1000", **named)  # type: ignore[arg-type]
            begun.append(process.pid)
            node.stop()
            is_begun.set()
            return process

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", create_and_stop)
            node.restart_in(0)
            await is_begun.wait()
            await node.wait_end()
        with pytest.raises(ProcessLookupError):
            os.kill(begun[0], 0)

    run(main)
    assert node.code == -15
