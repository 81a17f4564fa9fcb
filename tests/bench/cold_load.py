"""Readers of history, each a process of its own: through the broker, by the engine alone, and straight from
the store. For cold_reader.py.

    python -m tests.bench.cold_load fetch PORT TOPIC              reads the topic's partition 0 over and over,
                                                                  4 MiB a fetch
    python -m tests.bench.cold_load engine ADDRESS MIB [far]      the same by Stream.fetch, with so much block
                                                                  cache, in one process with the store's
                                                                  client
    python -m tests.bench.cold_load store ADDRESS WIDTH [far]     GETs of 4 MiB over every object, over and
                                                                  over, so many at a time, into memory that is
                                                                  used again: the least that a client can do
    python -m tests.bench.cold_load stream ADDRESS MBPS           the same GETs, one at a time and no more
                                                                  than so many MB/s, each sent on over
                                                                  loopback to a process that takes it: the
                                                                  least that can be done for a reader of
                                                                  history, whoever serves it

`far`: with a delay and a bandwidth as in life (cold_engine.py). A line on standard output each time so much
more has been read: bytes, seconds, seconds of this process's CPU; bytes and seconds of them without the first
quarter of each pass of the engine; GETs at most at one time. They end when standard input does, and say so
once more. All but `fetch` run on the broker's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import NoReturn, cast

import uvloop

from millrace.protocol.apis import API
from millrace.protocol.batches import iter_headers
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import open_store, parse_address
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.bench.cold_engine import FarStore, large_objects, open_largest_stream, read_stream

FETCH_VERSION = 12
FETCH_BYTES = 4 << 20
RECEIVE_BYTES = 64 << 10
GET_BYTES = 4 << 20
TELL_BYTES = 8 << 20


class Teller:
    """Counts what was read, and apart from it what was read steadily: not at the beginning of a pass, where
    readers find their stride."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._bytes = self._steady_bytes = 0
        self._steady_s = 0.0
        self._told = 0
        self.is_steady = True
        self.most_at_once = 0

    def add(self, size_bytes: int) -> bool:
        """Whether to go on."""
        now = time.perf_counter()
        if self.is_steady:
            self._steady_bytes += size_bytes
            self._steady_s += now - self._last
        self._last = now
        self._bytes += size_bytes
        if self._bytes - self._told >= TELL_BYTES:
            self.tell()
            return not select.select([sys.stdin], [], [], 0)[0]
        return True

    def tell(self) -> None:
        self._told = self._bytes
        elapsed_s = time.perf_counter() - self._began
        cpu_s = time.process_time()
        print(
            self._bytes, elapsed_s, cpu_s, self._steady_bytes, self._steady_s, self.most_at_once, flush=True
        )


def fetch_frame(topic: str, offset: int, max_bytes: int = FETCH_BYTES) -> bytes:
    wanted = FetchPartition(0, -1, offset, partition_max_bytes=max_bytes)
    topics = [FetchTopic(topic, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=max_bytes, session_epoch=-1, topics=topics)
    return encode_request(API[1], FETCH_VERSION, 1, "cold", request)


class ColdReader:
    def __init__(self, port: int, topic: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._topic = topic
        self._buffer = memoryview(bytearray(2 * FETCH_BYTES))
        self.offset = 0

    def fetch(self, max_bytes: int = FETCH_BYTES) -> int:
        """One fetch from `offset`, which moves on; at the end of the topic it goes back to its beginning.
        Bytes of records."""
        self._socket.sendall(fetch_frame(self._topic, self.offset, max_bytes))
        size = int.from_bytes(self._receive(4), "big")
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        _, response = decode_response(API[1], FETCH_VERSION, self._receive(size))
        [answer] = response.responses[0].partitions
        assert answer.error_code == 0, answer
        records = memoryview(answer.records or b"")
        for _, header in iter_headers(records):
            assert header.base_offset <= self.offset <= header.last_offset, (header.base_offset, self.offset)
            self.offset = header.last_offset + 1
        if self.offset >= answer.high_watermark:
            self.offset = 0
        return len(records)

    def _receive(self, size: int) -> memoryview:
        view, place = self._buffer[:size], 0
        while place < size:
            count = self._socket.recv_into(view[place : place + RECEIVE_BYTES])
            assert count, "the broker closed the connection"
            place += count
        return view


def read_topic(port: int, topic: str) -> None:
    reader, teller = ColdReader(port, topic), Teller()
    while teller.add(reader.fetch()):
        pass
    teller.tell()


async def open_bucket(address: str, is_far: bool, yield_queue: YieldQueue) -> ObjectStore:
    store = await open_store(parse_address(address), SystemClock(), yield_queue)
    return cast(ObjectStore, FarStore(store)) if is_far else store  # (what a reader needs of one)


async def ranges_of(store: ObjectStore) -> Iterator[tuple[str, int, int]]:
    """Of every object, over and over."""
    return itertools.cycle(
        [
            (entry.key, start, min(start + GET_BYTES, entry.size_bytes))
            for entry in await large_objects(store)
            for start in range(0, entry.size_bytes, GET_BYTES)
        ]
    )


async def read_store(address: str, width: int, is_far: bool) -> None:
    """A queue of ranges, and as many readers as connections."""
    store = await open_bucket(address, is_far, YieldQueue())
    places = await ranges_of(store)
    teller, goes_on = Teller(), True

    async def read() -> None:
        nonlocal goes_on
        memory = memoryview(bytearray(GET_BYTES))
        while goes_on:
            key, start, end = next(places)
            _, came_bytes = await store.get_into(key, start, end, partial(list, [memory[: end - start]]))
            goes_on = goes_on and teller.add(came_bytes)

    await asyncio.gather(*(read() for _ in range(width)))
    teller.tell()
    await store.close()


def take_in(address: tuple[str, int]) -> NoReturn:
    receiver, memory = socket.create_connection(address), bytearray(GET_BYTES)
    while receiver.recv_into(memory):
        pass
    os._exit(0)


async def stream_store(address: str, sender: socket.socket, bytes_per_s: float) -> None:
    store = await open_bucket(address, False, YieldQueue())
    places, memory = await ranges_of(store), memoryview(bytearray(GET_BYTES))
    sender.setblocking(False)
    loop = asyncio.get_running_loop()
    teller, began, sent_bytes = Teller(), loop.time(), 0
    while True:
        key, start, end = next(places)
        view = memory[: end - start]
        await store.get_into(key, start, end, partial(list, [view]))
        await loop.sock_sendall(sender, view)
        sent_bytes += len(view)
        if not teller.add(len(view)):
            break
        await asyncio.sleep(max(0.0, sent_bytes / bytes_per_s - (loop.time() - began)))
    teller.tell()
    await store.close()


async def read_engine(address: str, cache_mib: int, is_far: bool) -> None:
    queue = YieldQueue()
    store = await open_bucket(address, is_far, queue)
    _, stream = await open_largest_stream(store, cache_mib << 20, queue)
    teller = Teller()
    steady_from = stream.start + (stream.confirmed_end - stream.start) // 4

    def add(size_bytes: int, offset: int) -> bool:
        teller.is_steady = offset >= steady_from
        if isinstance(store, FarStore):
            teller.most_at_once = store.most_at_once
        return teller.add(size_bytes)

    await read_stream(stream, FETCH_BYTES, add)
    teller.tell()
    await store.close()


def main(kind: str, place: str, number: str, *far: str) -> None:
    if kind == "fetch":
        read_topic(int(place), number)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if kind == "stream":
            server = socket.create_server(("127.0.0.1", 0))
            if os.fork() == 0:
                take_in(server.getsockname())
            runner.run(stream_store(place, server.accept()[0], 1e6 * float(number)))
        else:
            reader = {"store": read_store, "engine": read_engine}[kind]
            runner.run(reader(place, int(number), bool(far)))


if __name__ == "__main__":
    main(*sys.argv[1:])
