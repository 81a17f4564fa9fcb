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
from tests.patience import PATIENCE_S

FILES = 150


class Narrow(LiveBroker):
    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *super().command()]


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
