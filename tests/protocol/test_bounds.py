"""What a request may hold in all: nests of tiny things are refused before they are built, requests of real
sizes pass."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.errors import WireError
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.primitives import REQUEST_ELEMENTS_MAX, uvarint
from tests.fuzz.cost import DECODED_FACTOR, peak_bytes
from tests.whole import decode_whole

MANY = REQUEST_ELEMENTS_MAX // 5


def repeated(element: bytes, count: int) -> bytes:
    """A compact array."""
    return uvarint(count + 1) + element * count


def compact(kind: str, times: int, many: int = MANY) -> tuple[str, int, bytes]:
    """The body of a request of `times` things with many tiny ones in each."""
    if kind == "Produce":
        partitions = repeated(struct.pack(">i", 0) + b"\x01\x00", many)
        return (
            kind,
            12,
            b"\x00"
            + struct.pack(">hi", -1, 1000)
            + repeated(b"\x01" + partitions + b"\x00", times)
            + b"\x00",
        )
    if kind == "Fetch":
        topic = b"\x01" + repeated(bytes(33), many) + b"\x00"
        return kind, 12, bytes(25) + repeated(topic, times) + b"\x01\x01\x00"
    if kind == "Fetch, forgotten":
        topic = b"\x01" + repeated(bytes(4), 8 * many) + b"\x00"
        return "Fetch", 12, bytes(25) + b"\x01" + repeated(topic, times) + b"\x01\x00"
    if kind == "tags":
        tags = uvarint(9000) + b"".join(uvarint(tag) + b"\x00" for tag in range(9000))
        return "Metadata", 12, repeated(bytes(16) + b"\x00" + tags, times * many // 9000) + b"\x00\x00\x00"
    group = b"\x01\x00" + struct.pack(">i", -1) + repeated(b"\x01\x01\x00", many) + b"\x00"
    return "OffsetFetch", 9, repeated(group, times) + b"\x00\x00"


KINDS = ("OffsetFetch", "Produce", "Fetch", "Fetch, forgotten", "tags")


@pytest.mark.parametrize("kind", KINDS)
def test_nests_of_tiny_things_are_refused(kind: str) -> None:
    """Each array is below its own bound, all of them are not; what was built by then is within the bound of
    memory, as is what passes."""
    name, version, body = compact(kind, 1, 2000)
    decode_whole(NAMED[name], version, body, 0)  # what is made on first use counts for nothing
    refused, taken = (3, 2) if name in ("Produce", "Fetch") else (7, 4)
    for times, expected in (
        (refused, pytest.raises(WireError, match="more elements")),
        (taken, nullcontext()),
    ):
        name, version, body = compact(kind, times)
        assert peak_bytes(partial(decode_expecting, expected, name, version, body)) <= DECODED_FACTOR * len(
            body
        )


def decode_expecting(expected: AbstractContextManager[object], name: str, version: int, body: bytes) -> None:
    with expected:
        decode_whole(NAMED[name], version, body, 0)


def test_plain_versions_are_bounded_too() -> None:
    """Produce before compact encodings has a decoder of its own."""
    topic = struct.pack(">hi", 0, MANY) + struct.pack(">ii", 0, 0) * MANY
    for times in (2, 3):
        body = struct.pack(">hhii", -1, -1, 1000, times) + topic * times
        if times == 2:
            assert len(decode_whole(NAMED["Produce"], 8, body, 0).topic_data) == 2
        else:
            with pytest.raises(WireError):
                decode_whole(NAMED["Produce"], 8, body, 0)


def fetch() -> FetchRequest:
    return FetchRequest(topics=[FetchTopic("", bytes(16), [FetchPartition(n) for n in range(50_000)])])


def produce() -> ProduceRequest:
    asked = [PartitionProduceData(0, memoryview(b"x"))]
    return ProduceRequest(topic_data=[TopicProduceData(f"t{n}", partition_data=asked) for n in range(10_000)])


def offset_commit() -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(p) for p in range(10)]
    topics = [OffsetCommitRequestTopic(f"t{n}", partitions=partitions) for n in range(10_000)]
    return OffsetCommitRequest("g", topics=topics)


def reassignments() -> AlterPartitionReassignmentsRequest:
    partitions = [ReassignablePartition(p, [1, 2, 3]) for p in range(100_000)]
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("t", partitions)])


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("Fetch", fetch),
        ("Produce", produce),
        ("OffsetCommit", offset_commit),
        ("AlterPartitionReassignments", reassignments),
    ],
)
def test_large_requests_of_real_clients_pass(name: str, made: Callable[[], object]) -> None:
    """Ten thousand topics, a hundred thousand partitions, three replicas each."""
    api = NAMED[name]
    version = 12 if name in ("Fetch", "Produce") else min(9, api.max_stable_version)
    frame = encode_request(api, version, 1, "c", made())[4:]
    _, pos = decode_request_header(frame)
    decode_whole(api, version, frame, pos)
