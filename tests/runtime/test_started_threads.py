"""Blocking calls are made, and answered, where the system gives a process no further thread."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millrace.runtime.started_threads import started_threads
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("given", [1, 2, 4])
def test_calls_share_the_threads_that_there_are(given: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, others = threading.Thread.start, threading.active_count()

    def start_some(thread: threading.Thread) -> None:
        if threading.active_count() >= others + given:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with started_threads(4) as threads:
        at_once = threading.Barrier(given)
        calls = [threads.submit(at_once.wait, PATIENCE_S) for _ in range(4 * given)]
        assert sorted(call.result(PATIENCE_S) for call in calls) == sorted([*range(given)] * 4)


def test_the_metadata_log_of_a_node_needs_no_thread_that_it_has_not(tmp_path: Path) -> None:
    """What it appends in a moment without threads neither fails nor ends the node."""
    program = f"""
import asyncio, os, signal, threading
from millrace.broker.__main__ import run_loop
from millrace.broker.cli.serve import run_broker
from millrace.runtime.disk.posix import PosixDisk
def refuse(thread):
    raise RuntimeError("can't start new thread")
class Node:
    async def start(self):
        file = await PosixDisk().open_log({str(tmp_path / "log")!r})
        start, threading.Thread.start = threading.Thread.start, refuse
        await asyncio.gather(*(file.append([b"record"]) for _ in range(8)))
        threading.Thread.start = start
        await file.close()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    async def stop(self):
        pass
async def main():
    node = Node()
    node.failed = asyncio.get_running_loop().create_future()
    return await run_broker(node, None)
raise SystemExit(run_loop(main()))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").read_bytes() == b"record" * 8
