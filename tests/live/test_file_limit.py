"""A broker that may open few files: connections leave it those it needs for itself."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_controllers import QUICK
from tests.patience import PATIENCE_S, until

FILES = 150


def narrow(files: int) -> list[str]:
    """Words before a command."""
    return ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]


class Narrow(LiveBroker):
    def command(self) -> list[str]:
        return [*narrow(FILES), *super().command()]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with Narrow(tmp_path, {"s3.wal.upload.interval.ms": "500"}, wal="16MiB") as broker:
        yield broker


def has_objects(broker: LiveBroker) -> bool:
    return any(
        path.name.isdigit() and path.is_file()
        for path in (broker.folder / "data" / "objects").glob("*/objects/*/*")
    )


def test_connections_leave_files_to_the_broker(broker: LiveBroker) -> None:
    """Clients open more connections than there are files, and say nothing; who was there before them is
    served, what was produced is uploaded for the first time, and once they are gone others are served too."""
    with contextlib.ExitStack() as stack:
        producer = stack.enter_context(Client(broker.address, 30.0))
        producer.create("t")
        for _ in range(2 * FILES):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S))
        until = time.monotonic() + PATIENCE_S
        while not has_objects(broker) and time.monotonic() < until:
            assert producer.send("t", [b"v" * 1000]).error_code == 0
            time.sleep(0.05)
        assert has_objects(broker)
        assert broker.is_running()
    with Client(broker.address, 30.0) as other:
        assert other.fetch([("t", 0, 0)])["t", 0].records


def fill(stack: contextlib.ExitStack, port: int, count: int) -> None:
    for _ in range(count):
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))


def test_both_listeners_of_a_node_share_its_files(tmp_path: Path) -> None:
    """Strangers open more connections to each of both than there are files: the node keeps those it needs,
    and members of the quorum have a share of their own."""
    files = 180
    cluster = LiveCombined(tmp_path, 3, QUICK)
    node = cluster.brokers[1]
    node._within = narrow(files)
    controller_port = int(node._overrides["listeners"].rsplit(":", 1)[1])
    with cluster, contextlib.ExitStack() as stack:
        fill(stack, node.port, files)
        fill(stack, controller_port, files)
        until(lambda: len(list(Path(f"/proc/{node.pid}/fd").iterdir())) < files - 30, "it has no files left")
        assert node.is_running()
