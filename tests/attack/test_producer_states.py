"""Clients that make producers without end: nobody else's repeat becomes a second record, and memory stays
bounded."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path

from millrace.protocol.apis import API
from millrace.protocol.batch_build import build_batch
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.records import Record
from tests.attack import IS_FULL, SLACK
from tests.attack.bystander import Bystander, produce_one
from tests.live import LiveBroker
from tests.live.client import Client
from tests.patience import PATIENCE_S

VERSION = 12
MIB = 1 << 20
IN_FLIGHT = 50
OTHER_ADDRESS = "127.0.0.2"


class Flood:
    """A connection that sends idempotent batches, `IN_FLIGHT` requests at a time."""

    def __init__(self, broker: LiveBroker, from_address: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), PATIENCE_S, (from_address, 0))
        self._file = self._socket.makefile("rb")

    def send(self, batches: list[tuple[int, int, int]], topic: str = "t") -> list[tuple[int, int, int]]:
        """Of (partition, producer id, sequence) each: error code, base offset, throttle time."""
        answers = []
        for first in range(0, len(batches), IN_FLIGHT):
            part = batches[first : first + IN_FLIGHT]
            self._socket.sendall(b"".join(_frame(topic, *one) for one in part))
            answers += [self._answer() for _ in part]
        return answers

    def _answer(self) -> tuple[int, int, int]:
        (length,) = struct.unpack(">i", self._file.read(4))
        response = decode_response(API[0], VERSION, self._file.read(length))[1]
        found = response.responses[0].partition_responses[0]
        return found.error_code, found.base_offset, response.throttle_time_ms

    def close(self) -> None:
        self._socket.close()


def _frame(topic: str, partition: int, producer_id: int, sequence: int) -> bytes:
    record = Record(None, b"v", int(time.time() * 1000))
    batch = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])]
    return encode_request(API[0], VERSION, 1, "flood", ProduceRequest(None, -1, 30_000, data))


def test_ten_thousand_producers_make_no_repeat_a_second_record(tmp_path: Path) -> None:
    """A producer writes, as many others as were remembered at once write behind it to the same partition, and
    its retry comes: it is told the offset of its batch; its next batch is taken, one behind a gap refused. So
    it is after a kill."""
    count = 40_000 if IS_FULL else 10_050
    with LiveBroker(tmp_path, wal="64MiB", is_warm=True) as broker:
        flood = Flood(broker)
        _create(broker, 1)
        assert flood.send([(0, 1, 0)]) == [(0, 0, 0)]
        codes = [code for code, _, _ in flood.send([(0, number, 0) for number in range(2, count)])]
        assert set(codes) == {0}
        began = time.monotonic()
        assert flood.send([(0, 1, 0)]) == [(0, 0, 0)]
        took_s = time.monotonic() - began
        assert flood.send([(0, 1, 2)])[0][0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert flood.send([(0, 2, 1)])[0][:2] == (0, count - 1)
        broker.kill()
        broker.start()
        flood = Flood(broker)
        assert flood.send([(0, 1, 0), (0, 3, 0), (0, 2, 1)]) == [(0, 0, 0), (0, 2, 0), (0, count - 1, 0)]
        assert flood.send([(0, 1, 2)])[0][0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        print(f"a repeat behind {count} producers: the first offset again, after {took_s * 1000:.1f} ms")


def test_a_new_producer_for_each_batch_fills_no_memory(tmp_path: Path) -> None:
    """With 1 MiB for states, one address makes a producer for each batch on many partitions until it is
    refused: with a code that is sent again and a time to wait. Its own producers go on, another address
    begins new ones, who writes beside it waits little, and the process grows by less than
    memory.max.bytes."""
    rounds = 40 if IS_FULL else 4
    with LiveBroker(
        tmp_path, {"states.memory.max.bytes": "1MiB", "memory.max.bytes": "128MiB"}, wal="64MiB"
    ) as broker:
        flood = Flood(broker)
        _create(broker, 20)
        _create(broker, 1, "beside")
        before_bytes = broker.memory_bytes()
        refused, taken = 0, 0
        with Bystander(broker, produce_one("beside")) as bystander:
            for number in range(rounds):
                producer_ids = range(5000 * number, 5000 * (number + 1))
                answers = flood.send([(one % 20, one, 0) for one in producer_ids])
                refusals = [answer for answer in answers if answer[0]]
                assert {(code, throttle) for code, _, throttle in refusals} <= {
                    (ErrorCode.NOT_ENOUGH_REPLICAS, 1000)
                }
                refused += len(refusals)
                taken += len(answers) - len(refusals)
            bystander.check_served()
        assert taken > 1000
        assert refused > 1000
        assert flood.send([(0, 0, 1)])[0][0] == 0, "a producer that is known goes on"
        other = Flood(broker, OTHER_ADDRESS)
        assert {code for code, _, _ in other.send([(one % 20, 10**9 + one, 0) for one in range(200)])} == {0}
        metrics = broker.metrics()
        assert metrics["millrace_states_memory_bytes"] <= 1.01 * MIB
        assert metrics["millrace_states_refusals_total"] >= refused
        assert "127.0.0.1 is refused a producer" in broker.log_path.read_text()
        grown_bytes = broker.peak_memory_bytes() - before_bytes
        assert grown_bytes <= 128 * MIB, f"{grown_bytes / MIB:.0f} MiB"
        print(
            f"{taken} producers taken, {refused} refused; states "
            f"{metrics['millrace_states_memory_bytes'] / MIB:.2f} MiB of 1, "
            f"the process {grown_bytes / MIB:.0f} MiB larger; the slowest answer beside them "
            f"{bystander.slowest_s * 1000:.0f} ms"
        )
        assert bystander.slowest_s < 2 * SLACK


def _create(broker: LiveBroker, partitions: int, topic: str = "t") -> None:
    with Client(broker.address) as client:
        client.create(topic, partitions)
