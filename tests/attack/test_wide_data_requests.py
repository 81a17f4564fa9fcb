"""Produce and Fetch requests that name partitions by the ten thousand, real ones or not: how long each holds
the broker's loop.

Counted is CPU time of the loop's own thread, as in test_loop_stalls.py. Before, 100,000 names held everybody
for half a second to some seconds, and a request may have 120,000. In one piece are left the end of what was
decoded, and collections of garbage, which may fall anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.bench.stalls import ProbedBroker
from tests.live.client import VERSION_BY_NAME, Client, batch_of

COUNT = 20_000
# it was 150 and more, and half a second where one waits; a busy machine's caches double what it is now
BOUND_MS = 50.0


def produce_of(index: Callable[[int], int], records: bytes | None, count: int = COUNT) -> ProduceRequest:
    view = None if records is None else memoryview(records)
    asked = [PartitionProduceData(index(place), view) for place in range(count)]
    return ProduceRequest(None, -1, 30_000, [TopicProduceData("wide", partition_data=asked)])


def fetch_of(index: Callable[[int], int], *, wait_ms: int = 0, epoch: int = 0) -> FetchRequest:
    asked = [FetchPartition(index(place), -1, 0, partition_max_bytes=100) for place in range(COUNT)]
    topics = [FetchTopic(topic="wide", partitions=asked)]
    return FetchRequest(
        max_wait_ms=wait_ms, min_bytes=wait_ms << 20, max_bytes=1 << 30, topics=topics, session_epoch=epoch
    )


def codes_of(client: Client, name: str, request: Any) -> set[int]:
    answer = client.ask(name, request, VERSION_BY_NAME)
    if name == "Produce":
        return {part.error_code for topic in answer.responses for part in topic.partition_responses}
    return {part.error_code for topic in answer.responses for part in topic.partitions}


def test_requests_for_many_partitions_hold_nobody_up(tmp_path: Path) -> None:
    """One partition again and again, and partitions that there are not; small requests behind a wide one keep
    their order."""
    batch = batch_of([b"x"])
    cases: list[tuple[str, Any, int]] = [
        ("Produce", produce_of(lambda place: 0, batch), 0),
        ("Produce", produce_of(lambda place: 0, None), ErrorCode.INVALID_RECORD),
        ("Produce", produce_of(lambda place: 1 + place, batch), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("Fetch", fetch_of(lambda place: 0), 0),
        ("Fetch", fetch_of(lambda place: 1 + place), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("Fetch", fetch_of(lambda place: 0, wait_ms=200, epoch=-1), 0),
    ]
    found = []
    with ProbedBroker(tmp_path, wal="256MiB") as broker, Client(broker.address, 120.0) as client:
        client.create("wide")
        client.produce("wide", [b"first"])
        client.fetch([("wide", 0, 0)])
        for name, request, code in cases:
            broker.longest()
            assert codes_of(client, name, request) == {code}
            longest = broker.longest()
            found.append((longest[0][0] if longest else 0.0, name, code))
        end = client.offset("wide", -1)
        wide = encode_request(
            NAMED["Produce"], VERSION_BY_NAME, 1, "attack", produce_of(lambda place: 0, batch, 2000)
        )
        client.socket.sendall(wide)
        client.begin_send("wide", [b"behind it"])
        client.take_answer("Produce", VERSION_BY_NAME)
        assert client.end_send().base_offset == end + 2000
    print(found)
    assert max(found)[0] < BOUND_MS, found
