"""Produce requests for so many partitions that they are served in pieces: cut, and their responses joined
again. Pure.

A piece is a request of its own: it finds its partitions, makes sure of room and is queued by itself, as
several requests of one connection do. Not here: serving a piece (handlers/produce.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from millrace.protocol.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millrace.protocol.primitives import ELEMENTS_AT_ONCE

PARTS_A_PIECE: Final = ELEMENTS_AT_ONCE // 2


def is_wide(request: ProduceRequest) -> bool:
    """Whether it names more than may be served in one iteration of the loop. Counted as the decoder counts: a
    wide one was decoded in chunks, and its records lie in memory of their own."""
    count = len(request.topic_data)
    if count == 1:
        return len(request.topic_data[0].partition_data) > ELEMENTS_AT_ONCE
    if count > ELEMENTS_AT_ONCE:
        return True
    for topic in request.topic_data:
        if len(topic.partition_data) != 1:
            count += len(topic.partition_data)
    return count > ELEMENTS_AT_ONCE


def pieces(request: ProduceRequest, transactional_id: str | None) -> Iterator[ProduceRequest]:
    """In the order of the request, PARTS_A_PIECE partitions at most in each, and as many topics."""
    topics: list[TopicProduceData] = []
    left = PARTS_A_PIECE
    for topic in request.topic_data:
        for start, end in _spans(len(topic.partition_data), left):
            topics.append(TopicProduceData(topic.name, topic.topic_id, topic.partition_data[start:end]))
            left -= max(1, end - start)
            if left <= 0:
                yield ProduceRequest(transactional_id, request.acks, request.timeout_ms, topics)
                topics, left = [], PARTS_A_PIECE
    if topics:
        yield ProduceRequest(transactional_id, request.acks, request.timeout_ms, topics)


def apart(request: ProduceRequest) -> Iterator[ProduceRequest]:
    """A piece for each partition, in the order of the request; one for a topic without any."""
    for topic in request.topic_data:
        for parts in [[asked] for asked in topic.partition_data] or [[]]:
            data = [TopicProduceData(topic.name, topic.topic_id, parts)]
            yield ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, data)


def _spans(count: int, left: int) -> Iterator[tuple[int, int]]:
    """The first of `left` at most, the others of a whole piece."""
    start, end = 0, min(count, left)
    yield start, end
    while end < count:
        start, end = end, min(count, end + PARTS_A_PIECE)
        yield start, end


class Joined:
    """As if the request had been served whole: each topic of it answers once, in its order. Pieces are added
    in theirs."""

    def __init__(self, asked: Iterable[TopicProduceData]) -> None:
        self.response = ProduceResponse()
        self._topics = iter(asked)
        self._missing_count = 0  # of the last topic's partitions
        self._nodes: set[int] = set()

    def add(self, piece: ProduceResponse) -> None:
        whole = self.response
        whole.throttle_time_ms = max(whole.throttle_time_ms, piece.throttle_time_ms)
        for endpoint in piece.node_endpoints:
            if endpoint.node_id not in self._nodes:
                self._nodes.add(endpoint.node_id)
                whole.node_endpoints.append(endpoint)
        for part in piece.responses:
            if not self._missing_count:
                self._missing_count = len(next(self._topics).partition_data)
                whole.responses.append(TopicProduceResponse(part.name, part.topic_id))
            whole.responses[-1].partition_responses += part.partition_responses
            self._missing_count -= len(part.partition_responses)
