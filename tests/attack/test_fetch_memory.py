"""Fetches that name partitions by the thousand: what a broker remembers of them, in sessions and while they
wait, stays within its memory."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.live import LiveBroker
from tests.live.client import MIB, VERSION_BY_NAME, Client
from tests.patience import PATIENCE_S

MEMORY_MIB = 128
SAME_COUNT = 5
SESSIONS, SESSION_PARTITIONS = 12, 5_000
REMEMBERED_MAX = 30_000  # of 28 MiB for requests a quarter, by 320 bytes each, is 23,000
WAITING, WAITING_PARTITIONS = 150, 2_000
WAITING_BYTES_MAX = 64 * MIB  # they took 160 MiB, and five times as many five times that


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path, {"memory.max.bytes": f"{MEMORY_MIB}MiB"}, wal="64MiB") as broker:
        yield broker


def wanted(count: int, epoch: int, max_wait_ms: int) -> FetchRequest:
    asked = [FetchPartition(index, -1, 0, partition_max_bytes=100) for index in range(count)]
    topics = [FetchTopic(topic="wide", partitions=asked)]
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=MIB, topics=topics, session_epoch=epoch
    )


def begun(broker: LiveBroker) -> float:
    return broker.metrics()['millrace_broker_requests_total{request="Fetch"}']


def settled_peak(broker: LiveBroker) -> int:
    """The most memory that the process has held, once that does not grow any more."""
    peak, same_count = 0, 0
    while same_count < SAME_COUNT:
        last, peak = peak, broker.peak_memory_bytes()
        same_count = same_count + 1 if peak == last else 0
        time.sleep(0.2)
    return peak


def test_sessions_remember_what_memory_allows(broker: LiveBroker) -> None:
    """Beyond it clients are served without a session, which is always legal."""
    with Client(broker.address) as client:
        client.create("wide")
        request = wanted(SESSION_PARTITIONS, 0, 0)
        given = [client.ask("Fetch", request, VERSION_BY_NAME).session_id for _ in range(SESSIONS)]
    assert given[0]
    assert sum(map(bool, given)) * SESSION_PARTITIONS <= REMEMBERED_MAX


def test_fetches_that_wait_are_charged_what_they_hold(broker: LiveBroker) -> None:
    """More of them than memory allows: those that wait longest are answered with what there is."""
    frame = encode_request(
        NAMED["Fetch"], VERSION_BY_NAME, 1, "attack", wanted(WAITING_PARTITIONS, -1, 600_000)
    )
    waiting = []
    try:
        with Client(broker.address, 120.0) as client:
            client.create("wide", WAITING_PARTITIONS)
            opened = wanted(WAITING_PARTITIONS, -1, 0)
            for _ in range(50):  # until all are open
                answer = client.ask("Fetch", opened, VERSION_BY_NAME)
                if not any(part.error_code for part in answer.responses[0].partitions):
                    break
            before, already = broker.memory_bytes(), begun(broker)
            for _ in range(WAITING):
                waiting.append(socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S))
                waiting[-1].sendall(frame)
            deadline = time.monotonic() + PATIENCE_S
            while begun(broker) < already + WAITING:
                assert time.monotonic() < deadline, "they are not begun"
                time.sleep(0.1)
            grown = settled_peak(broker) - before
    finally:
        for one in waiting:
            one.close()
    print(f"{grown / MIB:.0f} MiB more")
    assert grown < WAITING_BYTES_MAX
