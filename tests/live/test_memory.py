"""What clients may make the broker hold: hostile frames, readers that do not read, writers that dribble,
thousands that are silent.

The process's own resident memory is looked at, and that others are served meanwhile. `MILLRACE_CONNECTIONS`
is how many are silent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.header import request_header
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.primitives import uvarint
from tests.live import LiveBroker
from tests.live.client import MIB, Client
from tests.patience import PATIENCE_S, until

FILES_MAX = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
CONNECTIONS = int(os.environ.get("MILLRACE_CONNECTIONS", "5000"))
if FILES_MAX != resource.RLIM_INFINITY:
    CONNECTIONS = min(CONNECTIONS, FILES_MAX - 600)  # on either side
FRAME_BYTES = 100 * MIB
REQUESTS_BYTES = 16 * MIB  # the part of memory for requests in flight
SETTINGS = {"queued.max.request.bytes": str(REQUESTS_BYTES), "memory.max.bytes": "128MiB"}


class Watch:
    """The most memory the broker's process holds while this goes on, and how many answers another client gets
    meanwhile."""

    def __init__(self, broker: LiveBroker) -> None:
        self._broker = broker
        self.before_bytes = self.peak_bytes = broker.memory_bytes()
        self.answers = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def grown_mib(self) -> float:
        return (self.peak_bytes - self.before_bytes) / MIB

    def _run(self) -> None:
        with Client(self._broker.address) as client:
            while not self._is_over:
                client.produce("steady", [b"x" * 100])
                self.answers += 1
                self.peak_bytes = max(self.peak_bytes, self._broker.memory_bytes())
                time.sleep(0.005)

    def sees_others_served(self, answers: int = 20) -> None:
        """Waits until the other client got so many more answers."""
        before = self.answers
        until(lambda: self.answers >= before + answers)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the other client is not served any more"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("memory"), SETTINGS, wal="256MiB") as started:
        with Client(started.address) as client:
            client.create("steady")
            client.create("large")
            for _ in range(24):
                client.produce("large", [os.urandom(MIB - 1000)])
        yield started


def nest(name: str) -> bytes:
    """A frame of FRAME_BYTES, or as large as such a request may be, full of arrays of the smallest things."""
    api = NAMED[name]
    version = 12 if name == "Produce" else 9
    if name == "Produce":
        many = (struct.pack(">i", 0) + b"\x01\x00") * 900_000
        outer = b"\x01" + uvarint(900_001) + many + b"\x00"
        head = b"\x00" + struct.pack(">hi", -1, 1000)
    else:
        outer = b"\x01\x00" + struct.pack(">i", -1) + uvarint(900_001) + b"\x01\x01\x00" * 900_000 + b"\x00"
        head = b""
    times = (FRAME_BYTES - 1000) // len(outer)
    return (
        request_header(api, version, 1, "hostile") + head + uvarint(times + 1) + outer * times + b"\x00\x00"
    )


@pytest.mark.parametrize("name", ["Produce", "OffsetFetch"])
def test_a_frame_of_tiny_things_costs_its_own_size(broker: LiveBroker, name: str) -> None:
    """A hundred MiB of nested arrays of nearly nothing: the connection is closed, memory grew by the frame
    and little more, and others are served."""
    frame = nest(name)
    with Watch(broker) as watch, socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S) as hostile:
        hostile.sendall(struct.pack(">i", len(frame)) + frame)
        assert hostile.recv(1) == b""
        watch.sees_others_served()
    assert watch.grown_mib < 2.5 * len(frame) / MIB
    assert broker.is_running()


def test_readers_that_do_not_read_cost_what_is_allowed(broker: LiveBroker) -> None:
    """Forty clients ask for 8 MiB again and again and take nothing: what waits for them is bounded, and
    others are served."""
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=8 * MIB)
    fetch = FetchRequest(
        max_wait_ms=0, max_bytes=8 * MIB, session_epoch=-1, topics=[FetchTopic("large", b"", [asked])]
    )
    request = encode_request(NAMED["Fetch"], 12, 1, "greedy", fetch)
    with Watch(broker) as watch, contextlib.ExitStack() as stack:
        for _ in range(40):
            greedy = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S))
            greedy.sendall(request * 5)
        time.sleep(2)
        watch.sees_others_served()
    assert watch.grown_mib < 6 * REQUESTS_BYTES / MIB


def test_writers_that_dribble_cost_what_they_sent(broker: LiveBroker) -> None:
    """A hundred clients announce requests of 50 MiB and send a little, then nothing: memory holds that
    little, and others are served."""
    with Watch(broker) as watch, contextlib.ExitStack() as stack:
        for _ in range(100):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S))
            slow.sendall(struct.pack(">i", 50 * MIB) + bytes(60_000))
        time.sleep(1)
        watch.sees_others_served()
    assert watch.grown_mib < 32


def test_silent_connections_cost_little(broker: LiveBroker) -> None:
    """Thousands of connections that say nothing: a few KiB each, and no work."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, CONNECTIONS + 500)), hard))
    with contextlib.ExitStack() as stack:
        before = broker.memory_bytes()
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S))
        until(lambda: broker.metrics()["millrace_broker_connections"] >= CONNECTIONS)
        busy_s, began_s = broker.cpu_seconds(), time.monotonic()
        time.sleep(1)
        busy_part = (broker.cpu_seconds() - busy_s) / (time.monotonic() - began_s)
        with Watch(broker) as watch:
            watch.sees_others_served()
        assert (watch.peak_bytes - before) / CONNECTIONS < 16 << 10
        assert busy_part < 0.5


def test_producers_that_wait_for_room_hold_up_nobody_else(tmp_path: Path) -> None:
    """The store is away and the WAL is full: more producers wait than memory for requests allows. Consumers
    read, groups and topics are asked for, records and topics are deleted, while not one of them has its
    answer; when the store is back every producer is served."""
    settings = {**SETTINGS, "s3.wal.upload.interval.ms": "100"}
    with LiveBroker(tmp_path, settings, wal="16MiB") as broker, contextlib.ExitStack() as stack:
        client = stack.enter_context(Client(broker.address, 60.0))
        client.create("t")
        client.create("other")
        objects = tmp_path / "data" / "objects"
        away = objects.with_name("away")
        objects.rename(away)
        values = 0
        while client.send("t", [os.urandom(MIB // 2)], timeout_ms=1000).error_code == 0:
            values += 1
        waiting = [stack.enter_context(Client(broker.address, 60.0)) for _ in range(40)]
        for producer in waiting:
            producer.begin_send("t", [os.urandom(900_000)], timeout_ms=60_000)
        time.sleep(0.5)
        newest = client.fetch([("t", 0, values - 1)])["t", 0]
        assert newest.records
        assert client.offset("other", -1) == 0
        assert client.delete_records("t", values // 2) == 0
        assert client.delete("other") == 0
        assert select.select([producer.socket for producer in waiting], [], [], 0)[0] == []
        away.rename(objects)
        codes = [producer.end_send().error_code for producer in waiting]
        assert codes == [0] * 40
