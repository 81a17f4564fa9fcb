"""Readers that ask for much and read as little as they can, beside a consumer that reads what it gets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.metadata import MetadataRequest
from tests.attack import IS_FULL
from tests.attack.bystander import Bystander
from tests.live import LiveBroker
from tests.live.client import MIB, Client

SETTINGS = {"queued.max.request.bytes": str(16 * MIB), "memory.max.bytes": "128MiB"}
READERS = 100
SECONDS = 60.0 if IS_FULL else 2.5
SLOWEST_S = 1.0
WIDE_PARTITIONS = 2_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("slow"), SETTINGS, wal="256MiB") as started:
        with Client(started.address) as client:
            client.create("large")
            client.create("wide", WIDE_PARTITIONS)
            for _ in range(24):
                client.produce("large", [os.urandom(MIB - 1000)])
        yield started


def fetch(max_bytes: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0, max_bytes=max_bytes, session_epoch=-1, topics=[FetchTopic("large", b"", [asked])]
    )


def fetched(client: Client) -> None:
    """A step: two MiB are asked for, and at least a batch comes."""
    answer = client.ask("Fetch", fetch(2 * MIB), 12)
    assert len(answer.responses[0].partitions[0].records) >= MIB - 2000


FETCHES = encode_request(NAMED["Fetch"], 12, 1, "slow", fetch(50 * MIB)) * 64
METADATA = encode_request(NAMED["Metadata"], 12, 1, "slow", MetadataRequest(topics=None)) * 64
HANDSHAKES = encode_request(NAMED["ApiVersions"], 2, 1, "slow", NAMED["ApiVersions"].request_type()) * 2000


class SlowReaders:
    """`count` clients that send `requests` at once and then read `rate_bytes_s` each. Who is cut off connects anew. `window_bytes`: what
    their systems take of what they do not read; 0 for as much as they like."""

    def __init__(
        self, broker: LiveBroker, requests: bytes, rate_bytes_s: float, window_bytes: int = 0, count: int = READERS
    ) -> None:
        self._address = ("127.0.0.1", broker.port)
        self._requests = requests
        self._rate_bytes_s = rate_bytes_s
        self._window_bytes = window_bytes
        self._count = count
        self._clients: list[socket.socket] = []
        self._is_over = threading.Event()
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.cut_count = 0

    def _connect(self) -> socket.socket:
        made = socket.socket()
        if self._window_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._window_bytes)
        made.connect(self._address)
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.send(self._requests)
        return made

    def _run(self) -> None:
        last_s = time.monotonic()
        while not self._is_over.wait(0.1):
            while len(self._clients) < self._count:
                with contextlib.suppress(OSError):
                    self._clients.append(self._connect())
            self._has_begun.set()
            due_bytes, last_s = int(self._rate_bytes_s * (time.monotonic() - last_s)), time.monotonic()
            for client in list(self._clients):
                try:
                    with contextlib.suppress(BlockingIOError):
                        if due_bytes and not client.recv(due_bytes):
                            raise ConnectionResetError
                        client.send(b"")
                    if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        raise ConnectionResetError
                except OSError:
                    self.cut_count += 1
                    self._clients.remove(client)
                    client.close()
        for client in self._clients:
            client.close()

    def __enter__(self) -> SlowReaders:
        self._thread.start()
        assert self._has_begun.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.mark.parametrize(
    ("requests", "rate_bytes_s", "window_bytes"),
    [
        pytest.param(FETCHES, 1000, 0, id="large fetches"),
        pytest.param(FETCHES, 65_536, 4096, id="at the least pace with a small window"),
        pytest.param(METADATA, 1000, 4096, id="wide metadata"),
        pytest.param(HANDSHAKES, 0, 4096, id="small answers that nobody reads"),
    ],
)
def test_slow_readers_do_not_stop_consumers(
    broker: LiveBroker, requests: bytes, rate_bytes_s: float, window_bytes: int
) -> None:
    """A consumer's Fetch beside a hundred of them."""
    with contextlib.ExitStack() as stack:
        bystander = stack.enter_context(Bystander(broker, fetched))
        readers = stack.enter_context(SlowReaders(broker, requests, rate_bytes_s, window_bytes))
        time.sleep(SECONDS)
        slowest_s, peak = bystander.slowest_s, bystander.peak_memory_bytes
    print(
        f"\nslowest Fetch {slowest_s:.3f} s of {len(bystander.latencies_s)}, {readers.cut_count} readers cut, peak {peak / MIB:.0f} MiB"
    )
    assert slowest_s < SLOWEST_S
