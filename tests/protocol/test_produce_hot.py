"""Produce by hand against the compiled codec, on every version."""

from __future__ import annotations

from random import Random

import pytest

from millrace.protocol.apis import API
from millrace.protocol.codec import encode_response, request_decoder
from millrace.protocol.compile import encoder
from millrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.protocol.twins import assert_decodes_alike, assert_encodes_alike
from tests.protocol.values import build

PRODUCE = API[0]
TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("version", PRODUCE.versions)
def test_requests_decode_alike(version: int) -> None:
    """Any request, cut anywhere, damaged anyhow: the same value, or both refuse."""
    random = Random(version)
    for _ in range(12):
        assert_decodes_alike(PRODUCE, version, build(random, ProduceRequest, version), random)


@pytest.mark.parametrize("version", PRODUCE.versions)
@pytest.mark.parametrize("size_bytes", [0, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151, 2_097_152])
def test_lengths_of_any_width(version: int, size_bytes: int) -> None:
    """Lengths of one to four varint bytes, and the records are a view of the frame."""
    records = b"\x81" * size_bytes
    name, topic_id = ("", TOPIC_ID) if version >= 13 else ("t", bytes(16))
    topic = TopicProduceData(
        name, topic_id, [PartitionProduceData(1, records), PartitionProduceData(2, b"next")]
    )
    request = ProduceRequest(None, -1, 100, [topic])
    raw = encoder(ProduceRequest, version)(request)
    found = request_decoder(PRODUCE, version)(raw, 0)
    assert found == request
    view = found.topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview)
    assert view.obj is raw


@pytest.mark.parametrize("version", PRODUCE.versions)
def test_responses_encode_alike(version: int) -> None:
    """Any response: the twin gives the bytes of the compiled encoder, or hands over to it."""
    random = Random(version)
    for _ in range(50):
        assert_encodes_alike(PRODUCE, version, build(random, ProduceResponse, version))


def plain_response(count: int = 1) -> ProduceResponse:
    partitions = [PartitionProduceResponse(index, 0, 1 << 40, -1, 7) for index in range(count)]
    return ProduceResponse([TopicProduceResponse("topic" * 40, TOPIC_ID, partitions)], 3)


@pytest.mark.parametrize("version", PRODUCE.versions)
def test_the_common_answer_encodes_alike(version: int) -> None:
    """Offsets and nothing else, for no partition, for one, and for more than one byte can count."""
    for count in (0, 1, 2, 126, 127, 300):
        assert_encodes_alike(PRODUCE, version, plain_response(count))
    assert_encodes_alike(PRODUCE, version, ProduceResponse())


@pytest.mark.parametrize("version", PRODUCE.versions)
def test_uncommon_answers_encode_alike(version: int) -> None:
    """Each thing that the twin leaves to the compiled encoder, where the version carries it."""
    for field, value, since, is_ignorable in (
        ("record_errors", [BatchIndexAndErrorMessage(4, "bad")], 8, True),
        ("error_message", "", 8, True),
        ("current_leader", LeaderIdAndEpoch(2, 3), 10, False),
    ):
        response = plain_response()
        setattr(response.responses[0].partition_responses[0], field, value)
        if version >= since or is_ignorable:
            assert_encodes_alike(PRODUCE, version, response)
        else:
            with pytest.raises(ValueError):
                encode_response(PRODUCE, version, 1, response)
    response = plain_response()
    response.node_endpoints = [NodeEndpoint(1, "host", 9092)]
    if version >= 10:
        assert_encodes_alike(PRODUCE, version, response)
    else:
        with pytest.raises(ValueError):
            encode_response(PRODUCE, version, 1, response)
