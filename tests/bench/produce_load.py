"""A load of produce requests over raw sockets: one process, prepared frames, so that the client costs as
little as can be.

Not a benchmark of its own: bench.py and the soak use it. Every error code of every answer is looked at.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, cast

from millrace.protocol.apis import API
from millrace.protocol.batch_build import build_batch
from millrace.protocol.codec import decode_response, encode_request, encode_response
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.records import Record
from tests.live.client import Client
from tests.patience import until

PRODUCE_VERSION = 9


@dataclass
class LoadResult:
    requests_count: int = 0
    bytes_count: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def requests_per_second(self) -> float:
        return self.requests_count / self.seconds

    @property
    def bytes_per_second(self) -> float:
        return self.bytes_count / self.seconds

    def quantile_ms(self, fraction: float) -> float:
        ordered = sorted(self.latencies_s)
        return 1000 * ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def batch_of(records_count: int, value_bytes: int) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([Record(None, bytes(value_bytes), now_ms) for _ in range(records_count)])


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    data = [
        TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=partition, records=batch)])
    ]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)
    return encode_request(API[0], PRODUCE_VERSION, 1, "load", request)


class AnswerCheck:
    """The error code of every partition in every answer, without decoding: answers to the same request are of
    one size, and codes stand at the same bytes in all of them. The first is decoded, and so is any that looks
    otherwise."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._codes_of: Callable[[bytes], object] = bytes
        self._good: object = b""

    def check(self, answer: bytes) -> None:
        if len(answer) != self._size_bytes or self._codes_of(answer) != self._good:
            self._learn(answer)

    def _learn(self, answer: bytes) -> None:
        _, response = decode_response(API[0], PRODUCE_VERSION, answer)
        partitions = [partition for topic in response.responses for partition in topic.partition_responses]
        assert partitions, response
        for partition in partitions:
            assert partition.error_code == 0, partition
            partition.error_code = 0x0101
        marked = b"".join(encode_response(API[0], PRODUCE_VERSION, 1, response))[4:]
        places = [at for at, pair in enumerate(zip(marked, answer, strict=True)) if pair[0] != pair[1]]
        assert len(places) == 2 * len(partitions), (places, len(partitions))
        self._size_bytes, self._codes_of = len(answer), itemgetter(*places)
        self._good = self._codes_of(answer)


class Producer(asyncio.Protocol):
    """One connection that keeps `depth` requests in flight until told to stop."""

    def __init__(self, frame: bytes, depth: int, result: LoadResult, pace_s: float = 0.0) -> None:
        self._frame = frame
        self._depth = depth
        self._result = result
        self._pace_s = pace_s
        self._check = AnswerCheck()
        self._sent: deque[float] = deque()
        self._unread = b""
        self._is_stopping = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._pace_s:
            self._due_s = asyncio.get_running_loop().time()
            self._tick()
        else:
            for _ in range(self._depth):
                self._send()

    def _tick(self) -> None:
        """At its own times, however late the last one was: those of a late turn of the loop would stay
        together for ever, and be answered together, at less than they cost apart."""
        if not self._is_stopping:
            self._due_s += self._pace_s
            asyncio.get_running_loop().call_at(self._due_s, self._tick)
            self._send()

    def _send(self) -> None:
        self._sent.append(time.perf_counter())
        self._transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        data = self._unread + data if self._unread else data
        position = 0
        while len(data) - position >= 4:
            end = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if len(data) < end:
                break
            self._on_answer(data[position + 4 : end])
            position = end
        self._unread = data[position:]

    def _on_answer(self, answer: bytes) -> None:
        self._check.check(answer)
        self._result.requests_count += 1
        self._result.bytes_count += len(self._frame)
        self._result.latencies_s.append(time.perf_counter() - self._sent.popleft())
        if not self._is_stopping and not self._pace_s:
            self._send()
        elif self._is_stopping and not self._sent and not self.done.done():
            self.done.set_result(None)

    def stop(self) -> None:
        self._is_stopping = True
        if not self._sent and not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the broker closed the connection"))


class ProduceLoad:
    """One connection a frame, each with `depth` requests in flight, from `start` to `stop`; `measure` looks
    at a stretch of it. With `pace_s` each sends one so often, answered or not, and they begin spread over
    that time: clients know nothing of each other."""

    def __init__(self, port: int, frames: list[bytes], depth: int, pace_s: float = 0.0) -> None:
        self._port = port
        self._frames = frames
        self._depth = depth
        self._pace_s = pace_s
        self._producers: list[Producer] = []
        self.result = LoadResult()

    async def start(self) -> ProduceLoad:
        loop = asyncio.get_running_loop()
        for frame in self._frames:
            _, producer = await loop.create_connection(
                partial(Producer, frame, self._depth, self.result, self._pace_s), "127.0.0.1", self._port
            )
            self._producers.append(producer)
            await asyncio.sleep(self._pace_s / len(self._frames))
        return self

    def raise_failure(self) -> None:
        """What has ended a connection so far: a refusal, or the broker."""
        for producer in self._producers:
            if producer.done.done():
                producer.done.result()

    async def measure(self, seconds: float) -> LoadResult:
        result = self.result
        result.requests_count = result.bytes_count = 0
        result.latencies_s.clear()
        started = time.perf_counter()
        await asyncio.sleep(seconds)
        spent_s = time.perf_counter() - started
        self.raise_failure()
        return LoadResult(result.requests_count, result.bytes_count, spent_s, list(result.latencies_s))

    async def stop(self) -> None:
        """Returns when every request was answered; raises what ended a connection, a refusal for one."""
        for producer in self._producers:
            producer.stop()
        await asyncio.gather(*(producer.done for producer in self._producers))
        for producer in self._producers:
            producer.close()


async def run_load(
    port: int, frames: list[bytes], *, depth: int, seconds: float, pace_s: float = 0.0, warm_s: float = 1.0
) -> LoadResult:
    """One connection a frame. Measures `seconds` after a warm-up."""
    load = await ProduceLoad(port, frames, depth, pace_s).start()
    await asyncio.sleep(warm_s)
    measured = await load.measure(seconds)
    await load.stop()
    return measured


async def ask(port: int, key: int, version: int, request: Any) -> Any:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode_request(API[key], version, 1, "load", request))
    size = int.from_bytes(await reader.readexactly(4), "big")
    frame = await reader.readexactly(size)
    writer.close()
    return decode_response(API[key], version, frame)[1]


def until_written(port: int, topic: str, partitions: Iterable[int]) -> None:
    """Returns when each partition that the node leads takes records: a broker may learn later than who made
    the topic that it leads it."""
    with Client(f"127.0.0.1:{port}") as client:
        for index in partitions:
            until(lambda index=index: not client.send(topic, [b"first"], index).error_code, "not written")  # type: ignore[misc]


async def make_topic(port: int, topic: str, partitions: int = -1) -> None:
    wanted = CreatableTopic(topic, num_partitions=partitions, replication_factor=-1)
    response = await ask(port, 19, 5, CreateTopicsRequest(topics=[wanted], timeout_ms=60_000))
    assert response.topics[0].error_code == 0, response
