"""Senders that begin a request and go on as slowly as they can, beside a producer that wants its answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from millrace.protocol.apis import NAMED
from millrace.protocol.header import request_header
from tests.attack import IS_FULL
from tests.attack.bystander import Bystander
from tests.live import LiveBroker
from tests.live.client import MIB, Client

SETTINGS = {"queued.max.request.bytes": str(16 * MIB), "memory.max.bytes": "128MiB"}
KIB = 1 << 10
SECONDS = 60.0 if IS_FULL else 2.5
SLOWEST_S = 1.5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("trickle"), SETTINGS, wal="256MiB") as started:
        with Client(started.address) as client:
            client.create("steady")
        yield started


class Tricklers:
    """Clients that announce `frame_bytes`, send `first_bytes` of them at once, and then `rate_bytes_s` in steps of a tenth of a second.
    Whoever is cut off connects anew."""

    def __init__(
        self,
        broker: LiveBroker,
        count: int,
        frame_bytes: int,
        first_bytes: int,
        rate_bytes_s: float,
        begin: bytes = b"",
    ) -> None:
        self._address = ("127.0.0.1", broker.port)
        self._count = count
        head = request_header(NAMED["Produce"], 12, 1, "trickle")
        self._frame_bytes = frame_bytes
        self._start = begin + struct.pack(">i", frame_bytes) + head + bytes(first_bytes - len(head))
        self._first_bytes = first_bytes
        self._rate_bytes_s = rate_bytes_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.cut_count = 0
        self.has_begun = threading.Event()

    def _run(self) -> None:
        clients: list[list[float | socket.socket]] = []
        with contextlib.ExitStack() as stack:
            while not self._is_over.wait(0.1):
                while len(clients) < self._count:
                    with contextlib.suppress(OSError):
                        made = stack.enter_context(socket.create_connection(self._address, 30))
                        made.sendall(self._start)
                        made.setblocking(False)
                        clients.append([made, time.monotonic(), self._first_bytes])
                self.has_begun.set()
                for client in list(clients):
                    made, began_s, sent_bytes = client
                    assert isinstance(made, socket.socket)
                    assert not isinstance(began_s, socket.socket)
                    due = self._first_bytes + int(self._rate_bytes_s * (time.monotonic() - began_s)) - int(sent_bytes)  # type: ignore[arg-type]
                    due = min(due, self._frame_bytes - 1 - int(sent_bytes))  # type: ignore[arg-type]
                    try:
                        with contextlib.suppress(BlockingIOError):
                            assert made.recv(1000), "closed"
                        if due > 0:
                            client[2] += made.send(bytes(due))  # type: ignore[operator]
                    except BlockingIOError:
                        continue
                    except (OSError, AssertionError):
                        self.cut_count += 1
                        clients.remove(client)
                        made.close()

    def __enter__(self) -> Tricklers:
        self._thread.start()
        assert self.has_begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(
    ("count", "frame_bytes", "first_bytes", "rate_bytes_s"),
    [
        pytest.param(1, 100 * MIB, 70_000, 1, id="one of 100 MiB"),
        pytest.param(200, 100 * MIB, 70_000, 1, id="many of 100 MiB"),
        pytest.param(400, 60_000, 50_000, 1, id="many of ordinary size"),
    ],
)
def test_tricklers_do_not_stop_producers(
    broker: LiveBroker, count: int, frame_bytes: int, first_bytes: int, rate_bytes_s: float
) -> None:
    """Producers of small, of usual and of large batches are answered while others trickle."""
    slowest: dict[int, float] = {}
    with contextlib.ExitStack() as stack:
        tricklers = stack.enter_context(Tricklers(broker, count, frame_bytes, first_bytes, rate_bytes_s))
        found = {
            size: stack.enter_context(
                Bystander(broker, lambda client, size=size: client.produce("steady", [b"x" * size]))  # type: ignore[misc]
            )
            for size in (100, 60_000, 900_000)
        }
        time.sleep(SECONDS)
        slowest = {size: one.slowest_s for size, one in found.items()}
        answers = {size: len(one.latencies_s) for size, one in found.items()}
        peak = max(one.peak_memory_bytes for one in found.values())
    print(f"\nslowest answer, s: {slowest}, answers {answers}, cut {tricklers.cut_count}, peak {peak / MIB:.0f} MiB")
    assert max(slowest.values()) < SLOWEST_S
