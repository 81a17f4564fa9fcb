"""A defect in a callback of the loop of a running broker: it ends, and what it had acknowledged is there
after the next start."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.live import LiveBroker
from tests.live.client import Client

# `millrace serve` whose loop runs a callback that fails when SIGUSR1 comes.
BREAKABLE = """
import asyncio, signal, sys
from millrace.broker import app
from millrace.broker.__main__ import main
from millrace.runtime import process

start = app.Broker.start

async def start_breakable(self):
    await start(self)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, process.read_text, "/nowhere")

app.Broker.start = start_breakable
sys.exit(main(sys.argv[1:]))
"""


class BreakableBroker(LiveBroker):
    def command(self) -> list[str]:
        words = super().command()
        return [sys.executable, "-c", BREAKABLE, *words[words.index("serve") :]]


def test_a_broken_callback_ends_the_process(tmp_path: Path) -> None:
    """Exit code 1, one plain sentence, the trace in the log; nothing is lost, and the WAL was closed in order
    on the way out."""
    with BreakableBroker(tmp_path, wal="24MiB") as broker:
        with Client(broker.address) as client:
            client.create("t")
            assert client.produce("t", [b"kept"]) == 0
            os.kill(broker.pid, signal.SIGUSR1)
            assert broker.wait_end() == 1
        told = broker.log_path.read_text()
        assert "millrace: cannot go on: a callback failed (FileNotFoundError: " in told
        assert told.count("Traceback") == 1
        broker.start()
        with Client(broker.address) as client:
            assert client.read("t") == [b"kept"]
