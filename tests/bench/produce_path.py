"""Microseconds of CPU a Produce and a Fetch request cost inside the handlers, by what takes them.

    python -m tests.bench.produce_path [seconds]

A log in memory, no sockets: the request is decoded, handled, made durable in the next iteration of the loop
and encoded, as behind a connection. Beside it the same with an engine that does nothing, so that the
handler's and the partition's own share can be told from codec, engine and log. CPU time is the process's:
compare within one run.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from millrace.broker.requests.request import RequestContext
from millrace.protocol.apis import API
from millrace.protocol.batches import ProduceRules, check_produced_batch
from millrace.protocol.codec import decode_request, encode_request, encode_response
from millrace.protocol.crc32c import crc32c
from millrace.protocol.header import decode_request_header
from millrace.s3stream.stream import Append
from tests.broker.broker_fixture import BrokerFixture, fetch_request, produce_request
from tests.broker.partitions.build import FIXTURES, START_MS, batch
from tests.broker.work import new_work

IN_FLIGHT = 16
SIZES = (100, 1000, 64_000)


async def measured(seconds: float, work: Callable[[], Awaitable[int]]) -> float:
    """CPU microseconds for one of what `work` counts."""
    await work()
    began, count = time.process_time(), 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        count += await work()
    return (time.process_time() - began) / count * 1e6


def frames(size: int, *, is_idempotent: bool) -> Iterator[memoryview]:
    """One frame after another, the sequence going on where there is one."""
    sequence = 0
    while True:
        data = batch(
            1,
            value=b"v" * size,
            producer_id=7 if is_idempotent else -1,
            sequence=sequence if is_idempotent else -1,
        )
        sequence += 1
        yield memoryview(encode_request(API[0], 9, 7, "bench", produce_request({("a", 0): data}, 9)))[4:]


def records_of(request: Any) -> Any:
    return request.topic_data[0].partition_data[0].records


class NoStorage:
    """Stands in for a stream's engine: gives offsets, confirms when told."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.waiting: list[Append] = []

    def append(self, count: int, parts: Any, on_done: Any = None, tail_crc: int | None = None) -> Append:
        stream = self.stream
        base = stream.next_offset
        stream.next_offset = base + count
        append = Append(stream, base, base + count, 0, memoryview(b""), 0, on_done)
        self.waiting.append(append)
        return append

    def confirm(self) -> None:
        waiting, self.waiting = self.waiting, []
        stream = self.stream
        stream.confirmed_end = stream.next_offset
        for append in waiting:
            if append.on_done is not None:
                append.on_done(append)
        stream.on_advance(stream)


class DataOnly:
    """A stream whose `append` is the bench's; everything else is the real one's."""

    def __init__(self, stream: Any, no_storage: NoStorage) -> None:
        self.next_offset = stream.next_offset
        self.confirmed_end = stream.confirmed_end
        self.start = stream.start
        self.is_fenced = False
        self.on_advance = stream.on_advance
        self.append = no_storage.append
        no_storage.stream = self


async def produce_costs(seconds: float, size: int, *, is_idempotent: bool) -> None:
    fixture = await BrokerFixture(upload_threshold_bytes=64 << 20).start()
    fixture.make_topic("a")
    partition = await fixture.partition("a")
    source = frames(size, is_idempotent=is_idempotent)
    ready = [next(source) for _ in range(4000)] if is_idempotent else [next(source)] * 4000
    taken = iter(ready)

    def decode(frame: memoryview) -> tuple[RequestContext, Any]:
        header, position = decode_request_header(frame)
        request = decode_request(API[0], 9, frame, position)
        return RequestContext(0, 9, header.correlation_id, "bench", fixture.connection, new_work), request

    def following() -> memoryview:
        nonlocal taken
        frame = next(taken, None)
        if frame is None:
            partition.state.producers._by_id.clear()
            taken = iter(ready)
            frame = next(taken)
        return frame

    async def whole() -> int:
        futures = [fixture.produce_handler.handle(*decode(following())) for _ in range(IN_FLIGHT)]
        for future in futures:
            response = await future
            assert response.responses[0].partition_responses[0].error_code == 0
            encode_response(API[0], 9, 7, response)
        return IN_FLIGHT

    total = await measured(seconds, whole)
    await fixture.engine.upload_all(5000)
    no_storage = NoStorage(partition.data)
    partition.data = DataOnly(partition.data, no_storage)  # type: ignore[assignment]
    requests = {id(frame): decode(frame) for frame in ready}
    batches = {number: records_of(request) for number, (_, request) in requests.items()}

    def decoded() -> tuple[RequestContext, Any]:
        """The next request, with its records: a handler that answered one has taken them out of it."""
        number = id(following())
        context, request = requests[number]
        request.topic_data[0].partition_data[0].records = batches[number]
        return context, request

    async def handlers_alone() -> int:
        futures = [fixture.produce_handler.handle(*decoded()) for _ in range(IN_FLIGHT)]
        no_storage.confirm()
        assert all(future.done() for future in futures)
        partition.state.unsaved_bytes = 0
        return IN_FLIGHT

    own = await measured(seconds, handlers_alone)
    data = batch(1, value=b"v" * size, producer_id=7, sequence=0)
    rules = ProduceRules()

    async def batch_check() -> int:
        for _ in range(IN_FLIGHT):
            check_produced_batch(data, rules, START_MS, 9)
        return IN_FLIGHT

    async def checksum() -> int:
        for _ in range(IN_FLIGHT):
            crc32c(data[21:])
        return IN_FLIGHT

    check, crc = await measured(seconds / 4, batch_check), await measured(seconds / 4, checksum)
    kind = "idempotent" if is_idempotent else "plain"
    print(
        f"produce {kind:10} {size:6} B  whole {total:6.1f} us  handler+partition {own:5.1f} us"
        f"  of which batch check {check:4.1f} us ({crc:4.1f} us of it checksum)"
    )


async def fetch_costs(seconds: float, size: int) -> None:
    fixture = await BrokerFixture(upload_threshold_bytes=1 << 30).start()
    fixture.make_topic("a", 100)
    await fixture.produce({("a", 0): batch(1, value=b"v" * size)})
    for index in range(1, 100):
        await fixture.partition("a", index)
    first = await fixture.fetch({("a", index): 0 for index in range(100)}, 12, session_epoch=0)
    request = fetch_request({("a", 0): 0}, 12, session_id=first.session_id, session_epoch=1, max_wait_ms=500)
    session = fixture.sessions._sessions[first.session_id]
    context = RequestContext(1, 12, 7, "bench", fixture.connection, new_work)

    async def tail() -> int:
        for _ in range(IN_FLIGHT):
            request.session_epoch = session.epoch
            encode_response(API[1], 12, 7, fixture.fetch_handler.handle(context, request))
        return IN_FLIGHT

    frame = memoryview(encode_request(API[1], 12, 7, "bench", request))[4:]

    async def decoding() -> int:
        for _ in range(IN_FLIGHT):
            _, position = decode_request_header(frame)
            decode_request(API[1], 12, frame, position)
        return IN_FLIGHT

    handle, decode = await measured(seconds, tail), await measured(seconds / 4, decoding)
    print(
        f"fetch one of 100 in a session, {size:6} B  handle and encode {handle:5.1f} us  decode "
        f"{decode:4.1f} us"
    )


async def main(seconds: float) -> None:
    for size in SIZES:
        for is_idempotent in (False, True):
            await produce_costs(seconds, size, is_idempotent=is_idempotent)
    for size in SIZES:
        await fetch_costs(seconds, size)
    while FIXTURES:
        await FIXTURES.pop().engine._stop()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
