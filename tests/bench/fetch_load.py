"""Consumers at the tail over raw sockets: a fetch session each, one partition, the next fetch as soon as the
last one is answered.

Not a benchmark of its own: bench.py uses it. Offsets are followed by the headers of the batches, and a gap is
a failure; records are not decoded, so that the client costs as little as can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

from millrace.protocol.apis import API
from millrace.protocol.batches import iter_headers
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.bench.produce_load import ask

FETCH_VERSION = 12
MAX_BYTES = 1 << 20


@dataclass
class FetchCount:
    """Of all consumers that share it. `empty_count`: answers without records, when the wait was over."""

    fetches_count: int = 0
    empty_count: int = 0
    batches_count: int = 0
    bytes_count: int = 0


class Consumer(asyncio.Protocol):
    def __init__(self, topic: str, partition: int, count: FetchCount, offset: int) -> None:
        self._topic = topic
        self.partition = partition
        self._count = count
        self._unread = bytearray()
        self._session_id = 0
        self._session_epoch = 0
        self._is_stopping = False
        self.offset = offset
        self.high_watermark = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        wanted = FetchPartition(self.partition, -1, self.offset, partition_max_bytes=MAX_BYTES)
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[FetchTopic(self._topic, partitions=[wanted])],
        )
        self._session_epoch += 1
        self._transport.write(encode_request(API[1], FETCH_VERSION, 1, "load", request))

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) >= 4:
            end = 4 + int.from_bytes(self._unread[:4], "big")
            if len(self._unread) >= end:
                frame, self._unread = memoryview(self._unread)[4:end], self._unread[end:]
                self._on_answer(frame)

    def _on_answer(self, frame: memoryview) -> None:
        _, response = decode_response(API[1], FETCH_VERSION, frame)
        assert response.error_code == 0, response
        self._session_id = response.session_id
        self._count.fetches_count += 1
        size_bytes = 0
        for topic in response.responses:
            for answer in topic.partitions:
                assert answer.error_code == 0, answer
                self.high_watermark = answer.high_watermark
                size_bytes += len(answer.records or b"")
                self._follow(memoryview(answer.records or b""))
        self._count.bytes_count += size_bytes
        self._count.empty_count += not size_bytes
        if self._is_stopping:
            self._finish()
        else:
            self._ask()

    def _follow(self, records: memoryview) -> None:
        for _, header in iter_headers(records):
            assert header.base_offset == self.offset, (header.base_offset, self.offset)
            self.offset = header.last_offset + 1
            self._count.batches_count += 1

    def stop(self) -> None:
        self._is_stopping = True

    def _finish(self) -> None:
        self._transport.close()
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the broker closed the connection"))


class FetchLoad:
    """`start` to `stop`; `count` is of all consumers."""

    def __init__(self, port: int, topic: str, partitions: list[int]) -> None:
        self._port = port
        self._topic = topic
        self._partitions = partitions
        self.consumers: list[Consumer] = []
        self.count = FetchCount()

    async def start(self, offsets: Mapping[int, int] | None = None) -> FetchLoad:
        """From these offsets on, by partition; from 0 without them."""
        loop = asyncio.get_running_loop()
        for partition in self._partitions:
            _, consumer = await loop.create_connection(
                partial(Consumer, self._topic, partition, self.count, (offsets or {}).get(partition, 0)),
                "127.0.0.1",
                self._port,
            )
            self.consumers.append(consumer)
        return self

    async def stop(self) -> None:
        for consumer in self.consumers:
            consumer.stop()
        await asyncio.gather(*(consumer.done for consumer in self.consumers))


async def ends_of(port: int, topic: str, partitions: int) -> dict[int, int]:
    """The latest offset of each partition."""
    wanted = ListOffsetsTopic(
        topic, [ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
    )
    response = await ask(port, 2, 5, ListOffsetsRequest(replica_id=-1, topics=[wanted]))
    assert all(answer.error_code == 0 for answer in response.topics[0].partitions), response
    return {answer.partition_index: answer.offset for answer in response.topics[0].partitions}


async def behind_of(port: int, topic: str, consumers: list[Consumer]) -> int:
    """Records between where consumers of one partition each are now and the ends that the broker then
    gives."""
    read = {consumer.partition: consumer.offset for consumer in consumers}
    ends = await ends_of(port, topic, len(read))
    return sum(max(0, ends[partition] - offset) for partition, offset in read.items())
