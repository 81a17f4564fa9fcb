"""Readers that ask for much and read as little as they can, beside a consumer that reads what it gets."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.metadata import MetadataRequest
from tests.attack import IS_FULL, SLACK
from tests.attack.bystander import Bystander
from tests.attack.crowd import Attacker, Crowd
from tests.live import LiveBroker
from tests.live.client import MIB, Client

SETTINGS = {"queued.max.request.bytes": str(16 * MIB), "memory.max.bytes": "128MiB"}
READERS = 100
SECONDS = 60.0 if IS_FULL else 1.5
SLOWEST_S = 1.0 * SLACK
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


class SlowReaders(Crowd):
    """Clients that send `requests` at once and then read `rate_bytes_s` each."""

    def __init__(
        self,
        broker: LiveBroker,
        requests: bytes,
        rate_bytes_s: float,
        window_bytes: int = 0,
        count: int = READERS,
    ) -> None:
        super().__init__(broker, count, window_bytes=window_bytes)
        self._requests = requests
        self._rate_bytes_s = rate_bytes_s

    def _begin(self, one: Attacker) -> None:
        one.sent_bytes = one.socket.send(self._requests)

    def _go_on(self, one: Attacker, elapsed_s: float) -> None:
        due_bytes = int(self._rate_bytes_s * elapsed_s)
        if due_bytes and not one.socket.recv(due_bytes):
            raise ConnectionResetError
        if one.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise ConnectionResetError


def fetched_anew(broker: LiveBroker) -> Callable[[Client], None]:
    """A step: the same by a client that has just connected, of which nothing is known."""

    def step(_: Client) -> None:
        with Client(broker.address) as client:
            fetched(client)

    return step


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
    """A consumer's Fetch beside a hundred of them, and the first one of a consumer that has just come."""
    with contextlib.ExitStack() as stack:
        bystander = stack.enter_context(Bystander(broker, fetched))
        newcomer = stack.enter_context(Bystander(broker, fetched_anew(broker)))
        readers = stack.enter_context(SlowReaders(broker, requests, rate_bytes_s, window_bytes))
        time.sleep(SECONDS)
        bystander.sees_answers()
        slowest_s, first_s = bystander.slowest_s, newcomer.slowest_s
        peak = bystander.peak_memory_bytes
    print(
        f"\nslowest Fetch {slowest_s:.3f} s of {len(bystander.latencies_s)}, slowest first one "
        f"{first_s:.3f} s of {len(newcomer.latencies_s)}, {readers.cut_count} readers cut, "
        f"peak {peak / MIB:.0f} MiB"
    )
    assert slowest_s < SLOWEST_S
    assert first_s < SLOWEST_S
