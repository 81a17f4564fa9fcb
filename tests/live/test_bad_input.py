"""Bytes that no client should send, to a live broker: each gets Kafka's error, or ends its own connection and
nothing else.

While all of it goes on, a producer on another connection writes batch after batch and reads its answers; at
the end each of its batches is there once, in order, and the process is about as large as it was.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.protocol.apis import API
from millrace.protocol.batch_build import build_batch
from millrace.protocol.codec import encode_request
from millrace.protocol.crc32c import crc32c
from millrace.protocol.error_codes import ErrorCode as E
from millrace.protocol.messages.api_versions import ApiVersionsRequest
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.records import Record
from tests.live import LiveBroker
from tests.live.wire import Wire
from tests.patience import PATIENCE_S

MIB = 1 << 20
REQUEST_BYTES_MAX = 1 * MIB
METADATA, API_VERSIONS, PRODUCE = 3, 18, 0


def batch(count: int = 1, value: bytes = b"v") -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return build_batch([Record(None, value, now_ms) for _ in range(count)])


def produce(wire: Wire, topic: str, records: bytes | None, partition: int = 0) -> tuple[int, int]:
    """The partition's code and base offset."""
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(topic, partition_data=[PartitionProduceData(partition, records)])],
    )
    (found,) = wire.ask(PRODUCE, 9, request).responses[0].partition_responses
    return found.error_code, found.base_offset


class SteadyProducer:
    """Writes to one partition from a thread until it is told to stop; `offsets` are its answers."""

    def __init__(self, address: str) -> None:
        self._wire = Wire(address)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.offsets: list[int] = []
        self.errors: list[object] = []
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over:
                code, offset = produce(self._wire, "steady", batch())
                self.offsets.append(offset)
                if code:
                    self.errors.append(code)
                time.sleep(0.002)
        except (OSError, EOFError) as error:
            self.errors.append(error)

    def stop(self) -> None:
        self._is_over = True
        self._thread.join(PATIENCE_S)
        self._wire.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    overrides = {"socket.request.max.bytes": str(REQUEST_BYTES_MAX), "memory.max.bytes": "128MiB"}
    with LiveBroker(tmp_path_factory.mktemp("bad"), overrides, wal="64MiB") as running:
        with Wire(running.address) as wire:
            topics = [CreatableTopic(name, 1, 1) for name in ("steady", "target")]
            wire.ask(19, 5, CreateTopicsRequest(topics=topics))
            assert produce(wire, "target", batch()) == (0, 0)
        yield running


@pytest.fixture(scope="module", autouse=True)
def steady(broker: LiveBroker) -> Iterator[SteadyProducer]:
    """All tests of this module run beside it; whoever was disturbed is found when it stops."""
    producer = SteadyProducer(broker.address)
    yield producer
    producer.stop()
    assert producer.errors == []
    assert producer.offsets == list(range(len(producer.offsets)))
    assert len(producer.offsets) > 50
    with Wire(broker.address) as wire:
        partitions = [ListOffsetsPartition(partition_index=0, timestamp=-1)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic("steady", partitions)])
        (found,) = wire.ask(2, 6, request).topics[0].partitions
        assert found.offset == len(producer.offsets)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def head(key: int, version: int, client_id: bytes | None = b"bad") -> bytes:
    length = -1 if client_id is None else len(client_id)
    return struct.pack(">hhih", key, version, 7, length) + (client_id or b"")


def whole(key: int, version: int, request: Any = None) -> bytes:
    return encode_request(API[key], version, 7, "bad", request or API[key].request_type())


# What ends the connection

ENDS: dict[str, bytes] = {
    "garbage": random.Random(1).randbytes(300),
    "garbage before a frame": b"\x00\x00\x00\x05hello" + whole(API_VERSIONS, 0),
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100b5010000b10303") + bytes(100),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a length of 2 GiB": b"\x7f\xff\xff\xff" + bytes(64),
    "a negative length": b"\xff\xff\xff\xff" + bytes(64),
    "a length just above the bound": struct.pack(">i", REQUEST_BYTES_MAX + 1),
    "an empty frame": frame(b""),
    "half a header": frame(b"\x00\x12\x00"),
    "an unknown API": frame(head(9999, 0)),
    "a negative API": frame(head(-1, 0)),
    "an API between brokers": frame(head(62, 0) + bytes(64)),
    "a private API": frame(head(501, 0) + bytes(64)),
    "an API that is not served": frame(head(68, 0) + bytes(64)),
    "a version that is too new": frame(head(METADATA, 99) + bytes(64)),
    "a version that is too old": frame(head(1, 0) + bytes(64)),
    "a negative version": frame(head(METADATA, -1) + bytes(64)),
    "a client id beyond the end": frame(struct.pack(">hhih", METADATA, 0, 7, 32767) + b"short"),
    "a client id that is not text": frame(head(METADATA, 1, b"\xff\xfe\xfd") + bytes(4)),
    "an array of 2 billion": frame(head(METADATA, 1) + b"\x7f\xff\xff\xff"),
    "an array of more than there is": frame(head(METADATA, 1) + struct.pack(">i", 1000) + b"\x00\x01a"),
    "a compact array of 4 billion": frame(head(METADATA, 9) + b"\x00" + b"\xff\xff\xff\xff\x0f"),
    "a varint without an end": frame(head(METADATA, 9) + b"\x00" + b"\xff" * 12),
    "a string beyond the end": frame(head(METADATA, 1) + struct.pack(">ih", 1, 32000) + b"abc"),
    "a string that is not text": frame(head(METADATA, 1) + struct.pack(">ih", 1, 2) + b"\xff\xff" + bytes(8)),
    "tags beyond the end": frame(head(METADATA, 9) + b"\x05\x01\x7f"),
    "records beyond the end": frame(
        head(PRODUCE, 7) + struct.pack(">hhii", -1, -1, 5000, 1) + b"\x00\x06target" + struct.pack(">iii", 1,
        0, 1_000_000) + b"v"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_what_cannot_be_read_ends_its_connection_unanswered(broker: LiveBroker, name: str) -> None:
    """No answer, no error code: the connection closes, as Kafka does it."""
    with Wire(broker.address) as wire:
        wire.send_bytes(ENDS[name])
        assert wire.is_closed_unanswered()


def test_every_api_ends_at_a_truncated_body(broker: LiveBroker) -> None:
    """Of each API that is served, in its lowest and highest version: a request without its last byte is never
    taken for a shorter one."""
    with Wire(broker.address) as wire:
        shown = wire.ask(API_VERSIONS, 3, ApiVersionsRequest("test", "1")).api_keys
    cut = 0
    for served in shown:
        api = API[served.api_key]
        for version in {max(served.min_version, api.min_version), served.max_version}:
            body = whole(served.api_key, version)[4:-1]
            if len(body) < len(head(served.api_key, version)):
                continue
            with Wire(broker.address) as wire:
                wire.send_bytes(frame(body))
                assert wire.is_closed_unanswered(), (api.name, version)
            cut += 1
    assert cut > 60


def test_what_was_asked_before_is_answered_before_the_end(broker: LiveBroker) -> None:
    """A sound request, then garbage, in one packet: the answer comes, then the end."""
    with Wire(broker.address) as wire:
        wire.send_bytes(whole(METADATA, 1, MetadataRequest(topics=[])) + frame(head(9999, 0)))
        assert wire.read_frame()[:4] == struct.pack(">i", 7)
        assert wire.is_closed_unanswered()


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0(
    broker: LiveBroker, version: int
) -> None:
    """UNSUPPORTED_VERSION and this API's own range, whatever the body is, and the connection goes on
    (KIP-511)."""
    with Wire(broker.address) as wire:
        wire.send_bytes(frame(head(API_VERSIONS, version) + b"\x00whatever"))
        code, count, key, low, high = struct.unpack(">hihhh", wire.read_frame()[4:16])
        assert (code, count, key, low, high) == (
            E.UNSUPPORTED_VERSION,
            1,
            API_VERSIONS,
            0,
            API[API_VERSIONS].max_version,
        )
        assert wire.ask(API_VERSIONS, 3, ApiVersionsRequest("test", "1")).error_code == 0


def test_a_clients_name_must_be_one(broker: LiveBroker) -> None:
    """INVALID_REQUEST, answered."""
    with Wire(broker.address) as wire:
        assert wire.ask(API_VERSIONS, 3, ApiVersionsRequest("no good!", "1")).error_code == E.INVALID_REQUEST


def test_surplus_bytes_are_passed_over(broker: LiveBroker) -> None:
    """As Kafka and librdkafka's old versions expect: what follows a whole request in its frame does not
    matter."""
    with Wire(broker.address) as wire:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="target")])
        wire.send_bytes(frame(whole(METADATA, 1, request)[4:] + b"surplus"))
        assert wire.read_frame()[:4] == struct.pack(">i", 7)


# Batches that are refused


def patched(batch: bytes, position: int, data: bytes) -> bytes:
    return batch[:position] + data + batch[position + len(data) :]


def old_message(magic: int) -> bytes:
    """A message set of one record, as producers before Kafka 0.11 sent it."""
    body = (
        struct.pack(">BB", magic, 0)
        + (struct.pack(">q", -1) if magic else b"")
        + struct.pack(">ii", -1, 1)
        + b"v"
    )
    return struct.pack(">qiI", 0, len(body) + 4, 0) + body


def flipped(data: bytes) -> bytes:
    return patched(data, len(data) - 1, bytes([data[-1] ^ 1]))


def sealed(count: int, last_offset_delta: int) -> bytes:
    """A batch with a sound checksum whose header says something else of its records."""
    made = patched(patched(batch(), 57, struct.pack(">i", count)), 23, struct.pack(">i", last_offset_delta))
    return patched(made, 17, struct.pack(">I", crc32c(made[21:])))


REFUSED: dict[str, tuple[Callable[[], bytes | None], int]] = {
    "wrong checksum": (lambda: flipped(batch()), E.CORRUPT_MESSAGE),
    "length too small": (lambda: patched(batch(), 8, struct.pack(">i", 10)), E.CORRUPT_MESSAGE),
    "length beyond the bytes": (lambda: patched(batch(), 8, struct.pack(">i", 5000)), E.INVALID_RECORD),
    "negative length": (lambda: patched(batch(), 8, struct.pack(">i", -5)), E.CORRUPT_MESSAGE),
    "magic 0": (lambda: old_message(0), E.INVALID_RECORD),
    "magic 1": (lambda: old_message(1), E.INVALID_RECORD),
    "magic 3": (lambda: patched(batch(), 16, b"\x03"), E.CORRUPT_MESSAGE),
    "two batches": (lambda: batch() + batch(), E.INVALID_RECORD),
    "bytes after the batch": (lambda: batch() + b"more", E.INVALID_RECORD),
    "no records": (lambda: None, E.INVALID_RECORD),
    "no bytes": (lambda: b"", E.INVALID_RECORD),
    "few bytes": (lambda: b"\x00" * 16, E.INVALID_RECORD),
    "half a batch": (lambda: batch(value=b"v" * 100)[:90], E.INVALID_RECORD),
    "a base offset": (lambda: patched(batch(), 0, struct.pack(">q", 5)), E.INVALID_RECORD),
    "random bytes": (lambda: random.Random(2).randbytes(500), E.CORRUPT_MESSAGE),
    "zero records": (lambda: sealed(0, 0), E.INVALID_RECORD),
    "negative count": (lambda: sealed(-1, 0), E.INVALID_RECORD),
    "count against offsets": (lambda: sealed(1, 5), E.INVALID_RECORD),
    "negative offsets": (lambda: sealed(1, -1), E.INVALID_RECORD),
    "more records than bytes": (lambda: sealed(1_000_000, 999_999), E.INVALID_RECORD),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_batch_is_refused_and_the_connection_goes_on(broker: LiveBroker, name: str) -> None:
    """The partition gets Kafka's code, nothing is appended, and the next good batch on the same connection
    is."""
    make, code = REFUSED[name]
    with Wire(broker.address) as wire:
        _, before = produce(wire, "target", batch())
        assert produce(wire, "target", make()) == (code, -1)
        assert produce(wire, "target", batch()) == (0, before + 1)


def test_a_batch_for_nobody(broker: LiveBroker) -> None:
    """A partition that is not there, a topic that is not there, acks that mean nothing."""
    with Wire(broker.address) as wire:
        assert produce(wire, "target", batch(), partition=5) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)
        assert produce(wire, "nowhere", batch()) == (E.UNKNOWN_TOPIC_OR_PARTITION, -1)
        part = TopicProduceData("target", partition_data=[PartitionProduceData(0, batch())])
        response = wire.ask(PRODUCE, 9, ProduceRequest(acks=2, topic_data=[part]))
        assert response.responses[0].partition_responses[0].error_code == E.INVALID_REQUIRED_ACKS


def test_without_acks_an_error_ends_the_connection(broker: LiveBroker) -> None:
    """A producer that waits for no answer learns of an error by the end of its connection."""
    with Wire(broker.address) as wire:
        part = TopicProduceData("target", partition_data=[PartitionProduceData(0, flipped(batch()))])
        wire.send_bytes(whole(PRODUCE, 9, ProduceRequest(acks=0, timeout_ms=1000, topic_data=[part])))
        assert wire.is_closed_unanswered()


# What it costs


def could_send(wire: Wire, data: bytes) -> bool:
    try:
        wire.send_bytes(data)
    except TimeoutError:
        return False
    return True


def test_promises_and_floods_cost_no_memory(broker: LiveBroker) -> None:
    """60 connections that promise twice the memory for requests and send a little, 200 that are garbage, and
    one that asks and asks and reads nothing: the process grows by less than it was given for requests, and
    the steady producer waits for none of them."""
    before = broker.memory_bytes()
    waiting = [Wire(broker.address) for _ in range(60)]
    for wire in waiting:
        wire.send_bytes(struct.pack(">i", REQUEST_BYTES_MAX) + bytes(100))
    for number in range(200):
        with Wire(broker.address) as wire:
            wire.send_bytes(b"\xff\xff\xff\xff" if number % 2 else b"\x00\x00\x00\x04oops")
    greedy = Wire(broker.address)
    greedy.socket.settimeout(0.3)
    asks = whole(METADATA, 1, MetadataRequest(topics=None)) * 2000
    assert not could_send(greedy, asks * 500)  # the broker stops reading
    grown = broker.memory_bytes() - before
    for wire in (*waiting, greedy):
        wire.close()
    assert grown < 32 * MIB, f"{grown / MIB:.1f} MiB"


def test_a_client_that_leaves_mid_frame_is_forgotten(broker: LiveBroker) -> None:
    """Resets and half-closed connections at any byte of a request leave no connection behind."""
    body = whole(METADATA, 1, MetadataRequest(topics=None))
    for cut in range(len(body)):
        with Wire(broker.address) as wire:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.send_bytes(body[:cut])
    deadline = time.monotonic() + PATIENCE_S
    while broker.metrics()["millrace_broker_connections"] > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
