"""Two readers of history, each a process of its own: one through the broker, one straight from the object store. For cold_reader.py.

    python -m tests.bench.cold_load fetch PORT TOPIC      reads the topic's partition 0 over and over, 4 MiB a fetch
    python -m tests.bench.cold_load store ADDRESS         GETs of 4 MiB over every object, over and over, one after the other

A line on standard output each time so much more has been read: bytes, seconds. They end when standard input does, and say so once more.
"""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time

from millrace.protocol.apis import API
from millrace.protocol.batches import iter_headers
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.runtime.clock import SystemClock
from millrace.runtime.storeaddress import open_store, parse_address

FETCH_VERSION = 12
FETCH_BYTES = 4 << 20
GET_BYTES = 4 << 20
TELL_BYTES = 8 << 20


class Teller:
    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._bytes = 0
        self._told = 0

    def add(self, size_bytes: int) -> bool:
        """Whether to go on."""
        self._bytes += size_bytes
        if self._bytes - self._told >= TELL_BYTES:
            self.tell()
            return not select.select([sys.stdin], [], [], 0)[0]
        return True

    def tell(self) -> None:
        self._told = self._bytes
        print(self._bytes, time.perf_counter() - self._began, flush=True)


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
        """One fetch from `offset`, which moves on; at the end of the topic it goes back to its beginning. Bytes of records."""
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
            count = self._socket.recv_into(view[place:])
            assert count, "the broker closed the connection"
            place += count
        return view


def read_topic(port: int, topic: str) -> None:
    reader, teller = ColdReader(port, topic), Teller()
    while teller.add(reader.fetch()):
        pass
    teller.tell()


async def read_store(address: str) -> None:
    store = await open_store(parse_address(address), SystemClock())
    objects = [entry async for entry in store.list("") if entry.size_bytes >= 1 << 20]
    teller, goes_on = Teller(), True
    while goes_on:
        for entry in objects:
            for start in range(0, entry.size_bytes, GET_BYTES):
                data = await store.get_range(entry.key, start, min(start + GET_BYTES, entry.size_bytes))
                goes_on = goes_on and teller.add(len(data))
            if not goes_on:
                break
    teller.tell()
    await store.close()


if __name__ == "__main__":
    if sys.argv[1] == "fetch":
        read_topic(int(sys.argv[2]), sys.argv[3])
    else:
        asyncio.run(read_store(sys.argv[2]))
