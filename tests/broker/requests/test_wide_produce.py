"""Produce requests for many partitions: cut into pieces in order, and their responses joined to what the
whole would have answered."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest

from millrace.broker.requests.wide_produce import PARTS_A_PIECE, Joined, is_wide, pieces
from millrace.protocol.apis import API
from millrace.protocol.codec import decode_request
from millrace.protocol.compile import encoder
from millrace.protocol.errors import TooManyElements
from millrace.protocol.messages.produce import (
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millrace.protocol.primitives import ELEMENTS_AT_ONCE


def request_of(widths: list[int]) -> ProduceRequest:
    topics = [
        TopicProduceData(f"t{place}", partition_data=[PartitionProduceData(index) for index in range(width)])
        for place, width in enumerate(widths)
    ]
    return ProduceRequest(None, -1, 1000, topics)


def answered(request: ProduceRequest) -> ProduceResponse:
    topics = [
        TopicProduceResponse(
            topic.name,
            topic.topic_id,
            [PartitionProduceResponse(asked.index, 3) for asked in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return ProduceResponse(topics, len(request.topic_data), [NodeEndpoint(1)])


def test_any_request_is_cut_and_joined() -> None:
    """Nothing is lost, doubled or moved, and no piece has more than it may."""
    chance = random.Random(1)
    for _ in range(50):
        request = request_of(
            [chance.choice((0, 1, 2, 249, 250, 251, 1000)) for _ in range(chance.randrange(1, 12))]
        )
        cut = list(pieces(request, None))
        assert len(cut) > 1 or sum(len(topic.partition_data) for topic in request.topic_data) <= PARTS_A_PIECE
        for piece in cut:
            assert sum(len(topic.partition_data) for topic in piece.topic_data) <= PARTS_A_PIECE
            assert len(piece.topic_data) <= PARTS_A_PIECE
        joined = Joined(request.topic_data)
        for piece in cut:
            joined.add(answered(piece))
        found = joined.response
        assert found.responses == answered(request).responses
        assert found.node_endpoints == [NodeEndpoint(1)]
        assert found.throttle_time_ms == max(len(piece.topic_data) for piece in cut)


def test_what_is_wide() -> None:
    """Many partitions, of one topic or of many; topics without any count, too. No more is served at once than
    is decoded at once: records of what is served in pieces lie in memory of their own."""
    for widths, expected in (
        ([1], False),
        ([ELEMENTS_AT_ONCE], False),
        ([ELEMENTS_AT_ONCE + 1], True),
        ([1] * ELEMENTS_AT_ONCE, False),
        ([1] * (ELEMENTS_AT_ONCE + 1), True),
        ([0] * (ELEMENTS_AT_ONCE + 1), True),
        ([2] * (ELEMENTS_AT_ONCE // 3), False),
        ([2] * (ELEMENTS_AT_ONCE // 3 + 1), True),
    ):
        request = request_of(widths)
        assert is_wide(request) is expected
        for version in (8, 12):
            frame = encoder(ProduceRequest, version)(request)
            with pytest.raises(TooManyElements) if expected else nullcontext():
                decode_request(API[0], version, frame, 0)
