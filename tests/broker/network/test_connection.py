"""Connections over a real loopback socket: order of replies, back-pressure, bounds, and how they end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from typing import Any

import pytest

from millrace.broker.network.connection import (
    FRAMES_PER_CHUNK,
    IN_FLIGHT_MAX,
    PART_BYTES,
    UNREAD_PLENTY_BYTES,
)
from millrace.broker.network.server import ServerSettings
from millrace.broker.requests.request import CLOSE, NO_REPLY, RequestContext
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.protocol.messages.join_group import JoinGroupResponse
from millrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tests.broker.shell import LOOPS, MIB, Shell
from tests.patience import PATIENCE_S, eventually

# SaslAuthenticate stands in for any API with large bytes in either direction.
PRODUCE, JOIN_GROUP, HEARTBEAT, BYTES = 0, 11, 12, 36
both_loops = pytest.mark.parametrize("loop_name", LOOPS)
ATTEMPTS = 10  # of what the system does now and then


class Parking:
    """A handler whose requests wait until the test finishes them, by their generation id."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.waiting: dict[int, asyncio.Future[Any]] = {}

    def handle(self, context: RequestContext, request: HeartbeatRequest) -> asyncio.Future[Any]:
        self.begun.append(request.generation_id)
        future = self.waiting[request.generation_id] = asyncio.get_running_loop().create_future()
        return future

    def finish(self, number: int, outcome: Any = None) -> None:
        self.waiting.pop(number).set_result(
            HeartbeatResponse(error_code=number) if outcome is None else outcome
        )


class ParkingBytes(Parking):
    """The same for large requests; the first byte is the number."""

    def handle(self, context: RequestContext, request: Any) -> asyncio.Future[Any]:
        number = request.auth_bytes[0]
        self.begun.append(number)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        return future

    def finish(self, number: int, outcome: Any = None) -> None:
        super().finish(number, SaslAuthenticateResponse(error_code=number) if outcome is None else outcome)


def beat(number: int) -> HeartbeatRequest:
    return HeartbeatRequest(generation_id=number)


def payload(number: int, size: int) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=bytes([number]) + bytes(size - 1))


def echo(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=request.generation_id)


@both_loops
def test_a_defect_ends_one_connection(loop_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """An account of a connection that is spoilt fails in a callback of the loop: that client is cut off, its
    memory is given back, the trace is logged, and others are served."""

    async def run() -> None:
        parking = Parking()
        async with Shell({HEARTBEAT: parking.handle}) as shell:
            client, other = await shell.client(), await shell.client()
            client.send(HEARTBEAT, 4, beat(1))
            await eventually(lambda: 1 in parking.waiting)
            other.send(HEARTBEAT, 4, beat(2))
            await eventually(lambda: 2 in parking.waiting)
            spoilt = next(each for each in shell.server.connections.values() if each.in_flight_count)
            spoilt._ready_bytes = None  # type: ignore[assignment]
            parking.finish(1)
            assert await client.is_ended()
            parking.finish(2)
            assert (await other.receive(HEARTBEAT, 4))[1].error_code == 2
            await eventually(lambda: shell.memory.used_bytes == 0)
            assert len(shell.server.connections) == 1

    LOOPS[loop_name](run())
    assert [record.exc_info is not None for record in caplog.records if "fails" in record.message] == [True]


@both_loops
def test_a_defect_in_a_reply_under_way_ends_one_connection(
    loop_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A large reply goes out over several iterations of the loop: what is met in one of them cuts off that
    client, and nothing reaches the loop."""
    escaped: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: escaped.append(context["message"])
        )
        parking = ParkingBytes()
        async with Shell({BYTES: parking.handle}) as shell:
            client = await shell.client()
            client.send(BYTES, 2, payload(1, 10))
            await eventually(lambda: 1 in parking.waiting)
            (spoilt,) = shell.server.connections.values()
            parking.finish(1, SaslAuthenticateResponse(auth_bytes=bytes(8 * MIB)))
            while not spoilt._writer._parts:  # noqa: ASYNC110  (before the second chunk)
                await asyncio.sleep(0)
            spoilt._writer._parts_bytes = None  # type: ignore[assignment]
            await eventually(lambda: not shell.server.connections)
            await eventually(lambda: shell.memory.used_bytes == 0)

    LOOPS[loop_name](run())
    assert escaped == []
    assert [record.exc_info is not None for record in caplog.records if "fails" in record.message] == [True]


@both_loops
def test_what_fails_behind_a_request_that_is_never_done_is_not_complained_of(loop_name: str) -> None:
    """After a failed write nothing that waits for the log is ever answered; requests behind it that failed,
    before or after their client went, leave no warning of an exception that nobody took."""
    warned: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: warned.append(context["message"]))
        parking = Parking()
        async with Shell({HEARTBEAT: parking.handle}) as shell:
            client = await shell.client()
            for number in range(3):
                client.send(HEARTBEAT, 4, beat(number))
            await eventually(lambda: len(parking.waiting) == 3)
            parking.waiting.pop(1).set_exception(OSError("before"))
            await asyncio.sleep(0)
            client.close()
            await eventually(lambda: not shell.server.connections)
            parking.waiting.pop(2).set_exception(OSError("after"))
            await asyncio.sleep(0)
            parking.waiting.clear()
        gc.collect()

    LOOPS[loop_name](run())
    gc.collect()
    assert warned == []


@both_loops
def test_replies_leave_in_request_order(loop_name: str) -> None:
    """Futures that finish in reverse are answered in the order of their requests, and nothing leaves before
    the first."""

    async def run() -> None:
        parking = Parking()
        async with Shell({HEARTBEAT: parking.handle}) as shell:
            client = await shell.client()
            for number in range(20):
                client.send(HEARTBEAT, 4, beat(number))
            await eventually(lambda: len(parking.begun) == 20)
            for number in reversed(range(1, 20)):
                parking.finish(number)
            await asyncio.sleep(0.02)
            assert not client.reader._buffer  # type: ignore[attr-defined]
            parking.finish(0)
            codes = [(await client.receive(HEARTBEAT, 4))[1].error_code for _ in range(20)]
            assert codes == list(range(20)) == parking.begun
            assert shell.memory.used_bytes == 0

    LOOPS[loop_name](run())


def test_ready_replies_wait_for_parked_ones_before_them() -> None:
    """A reply that is there at once still leaves after an earlier one that waits."""

    async def run() -> None:
        parking = Parking()

        def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
            return parking.handle(context, request) if request.generation_id == 1 else echo(context, request)

        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            for number in (1, 2, 3):
                client.send(HEARTBEAT, 4, beat(number))
            await eventually(lambda: parking.begun == [1])
            parking.finish(1)
            assert [(await client.receive(HEARTBEAT, 4))[1].error_code for _ in range(3)] == [1, 2, 3]

    asyncio.run(run())


@both_loops
def test_a_long_burst_is_answered_whole(loop_name: str) -> None:
    """Thousands of pipelined requests, far more than one turn takes, all get their answer in order."""

    async def run() -> None:
        async with Shell({HEARTBEAT: echo}) as shell:
            client = await shell.client()
            client.writer.write(b"".join(client.frame(HEARTBEAT, 4, beat(number)) for number in range(3000)))
            for number in range(3000):
                correlation_id, answer = await client.receive(HEARTBEAT, 4)
                assert (correlation_id, answer.error_code) == (number + 1, number)

    LOOPS[loop_name](run())


def test_a_burst_gives_others_their_turn() -> None:
    """One connection's burst is begun in turns of a bounded number of frames; between two, the loop runs
    others."""

    async def run() -> None:
        begun = 0
        between: list[int] = []

        def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
            nonlocal begun
            if begun % FRAMES_PER_CHUNK == 0:
                asyncio.get_running_loop().call_soon(lambda: between.append(begun))
            begun += 1
            return HeartbeatResponse()

        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            client.writer.write(b"".join(client.frame(HEARTBEAT, 4) for _ in range(FRAMES_PER_CHUNK * 5)))
            await eventually(lambda: begun == FRAMES_PER_CHUNK * 5)
            assert (
                max(later - earlier for earlier, later in zip([0, *between], between, strict=False))
                <= FRAMES_PER_CHUNK
            )

    asyncio.run(run())


def test_requests_in_flight_are_bounded() -> None:
    """Of a deep pipeline IN_FLIGHT_MAX requests are begun; each that finishes lets one more begin."""

    async def run() -> None:
        parking = Parking()
        async with Shell({HEARTBEAT: parking.handle}) as shell:
            client = await shell.client()
            for number in range(200):
                client.send(HEARTBEAT, 4, beat(number))
            await eventually(lambda: len(parking.begun) == IN_FLIGHT_MAX)
            await asyncio.sleep(0.02)
            assert len(parking.begun) == IN_FLIGHT_MAX
            for number in range(200):
                await eventually(lambda number=number: number in parking.waiting)  # type: ignore[misc]
                parking.finish(number)
                assert (await client.receive(HEARTBEAT, 4))[1].error_code == number
            assert parking.begun == list(range(200))

    asyncio.run(run())


@both_loops
def test_a_slow_reader_is_not_served_further(loop_name: str) -> None:
    """While a client does not read, its next requests are not begun and what waits for it is charged; reading
    resumes all."""

    async def run() -> None:
        begun = 0

        def handle(context: RequestContext, request: Any) -> SaslAuthenticateResponse:
            nonlocal begun
            begun += 1
            return SaslAuthenticateResponse(auth_bytes=bytes(8 * MIB))

        async with Shell({BYTES: handle}) as shell:
            client = await shell.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(10):
                client.send(BYTES, 2)
            await eventually(lambda: shell.memory.used_bytes > MIB)
            await asyncio.sleep(0.05)
            assert begun == 1
            held = shell.memory.used_bytes
            assert held <= 8 * MIB + 100
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(10):
                assert len((await client.receive(BYTES, 2))[1].auth_bytes) == 8 * MIB
            await eventually(lambda: shell.memory.used_bytes == 0)
            assert begun == 10

    LOOPS[loop_name](run())


def test_a_lost_slow_reader_gives_its_memory_back() -> None:
    """A client that vanishes with unsent replies releases what they pinned."""

    async def run() -> None:
        big = SaslAuthenticateResponse(auth_bytes=bytes(8 * MIB))
        async with Shell({BYTES: lambda context, request: big}) as shell:
            client = await shell.client()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(BYTES, 2)
            await eventually(lambda: shell.memory.used_bytes > MIB)
            client.writer.transport.abort()
            await eventually(lambda: shell.memory.used_bytes == 0 and not shell.server.connections)

    asyncio.run(run())


def test_the_memory_budget_holds_requests_back_in_turn() -> None:
    """With room for two large frames, two of four connections are begun; the others follow in order as the
    first finish."""

    async def run() -> None:
        parking = ParkingBytes()
        async with Shell(
            {BYTES: parking.handle}, memory_bytes=12 * MIB
        ) as shell:  # 768 KiB of it for large frames
            clients = [await shell.client() for _ in range(4)]
            for number, client in enumerate(clients):
                client.send(BYTES, 2, payload(number, 600_000))
                await eventually(
                    lambda number=number: len(parking.begun) + shell.memory.waiting_count == number + 1
                )  # type: ignore[misc]
            await asyncio.sleep(0.02)
            assert parking.begun == [0, 1]
            for number, client in enumerate(clients):
                await eventually(lambda number=number: number in parking.waiting)  # type: ignore[misc]
                parking.finish(number)
                assert (await client.receive(BYTES, 2))[1].error_code == number
            assert parking.begun == [0, 1, 2, 3]
            assert shell.memory.used_bytes == 0

    asyncio.run(run())


@both_loops
def test_a_frame_is_charged_as_it_comes(loop_name: str) -> None:
    """Its length alone costs nothing, and 70 KB of a 10 MiB frame cost 128 KiB: a large frame of another
    client passes beside it. What is here is free again when the sender is lost."""

    async def run() -> None:
        small = SaslAuthenticateResponse(error_code=5)
        async with Shell(
            {HEARTBEAT: echo, BYTES: lambda context, request: small}, memory_bytes=2 * MIB
        ) as shell:
            hoarder, client = await shell.client(), await shell.client()
            hoarder.writer.write((10 * MIB).to_bytes(4, "big") + b"begin")
            await client.ask(HEARTBEAT, 4, beat(4))
            assert shell.memory.used_bytes == 0
            hoarder.writer.write(bytes(70_000))
            await eventually(lambda: shell.memory.used_bytes == 128 << 10)
            client.send(BYTES, 2, payload(0, 3_000_000))
            assert (await client.receive(BYTES, 2))[1].error_code == 5
            assert shell.memory.used_bytes == 128 << 10
            hoarder.close()
            await eventually(lambda: shell.memory.used_bytes == 0)

    LOOPS[loop_name](run())


def test_a_frame_larger_than_the_budget_passes() -> None:
    """With 1 MiB of budget a 3 MiB request is served, and counted once."""

    async def run() -> None:
        parking = ParkingBytes()
        async with Shell({BYTES: parking.handle}, memory_bytes=MIB) as shell:
            client = await shell.client()
            client.send(BYTES, 2, payload(1, 3 * MIB))
            await eventually(lambda: 1 in parking.waiting)
            assert 3 * MIB < shell.memory.used_bytes < 3 * MIB + 100
            parking.finish(1)
            assert (await client.receive(BYTES, 2))[1].error_code == 1
            assert shell.memory.used_bytes == 0

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what memory a socket uses")
@both_loops
def test_a_sender_whose_window_is_closed_waits_for_us(loop_name: str) -> None:
    """Half of a frame is here and all of it is on its way, read 4 KiB at a time: the system stops its peer
    although little is unread, and it is ours to go on each time. When nothing is on its way any more it is
    the peer's. The system does that now and then, by how fast it hands bytes on: it is asked a few times."""
    frame_bytes, sent_bytes, here_bytes = 900 << 10, 600 << 10, 8 << 10

    async def run() -> None:
        for _ in range(ATTEMPTS):
            if await is_stopped():
                return
        raise AssertionError("the system never stopped the peer with little unread")

    async def is_stopped() -> bool:
        async with Shell({}) as shell:
            client = await shell.client()
            client.writer.write(frame_bytes.to_bytes(4, "big") + bytes(here_bytes - 4))
            await eventually(
                lambda: [one.received_bytes for one in shell.server.connections.values()] == [here_bytes]
            )
            (connection,) = shell.server.connections.values()
            connection._transport.pause_reading()
            client.writer.write(bytes(sent_bytes))
            stopped_count = 0
            with socket.socket(
                fileno=os.dup(connection._transport.get_extra_info("socket").fileno())
            ) as there:
                while connection.received_bytes < here_bytes + sent_bytes:
                    connection.buffer_updated(there.recv_into(connection.get_buffer(-1)[: 4 << 10]))
                    unread_bytes = connection._unread()
                    is_all_here = connection.received_bytes + unread_bytes == here_bytes + sent_bytes
                    if unread_bytes < UNREAD_PLENTY_BYTES and not is_all_here:
                        await asyncio.sleep(0.05)
                        if unread_bytes == connection._unread():
                            stopped_count += 1
                            assert connection.awaited()[2], (connection.received_bytes, unread_bytes)
            assert not connection.awaited()[2]
            return stopped_count > 0

    LOOPS[loop_name](run())


def test_one_who_waits_for_memory_and_is_lost_leaves_the_line() -> None:
    """A connection whose client goes while it stands in line is found out when its turn comes; the one behind
    it gets the room."""

    async def run() -> None:
        parking = ParkingBytes()
        async with Shell({BYTES: parking.handle}, memory_bytes=MIB) as shell:
            clients = [await shell.client() for _ in range(5)]
            shell.server.relief.stop()  # it would end one that does not go on
            frames = [
                client.frame(BYTES, 2, payload(number, 10 * MIB)) for number, client in enumerate(clients)
            ]
            large, arrivals = shell.memory.large, shell.memory.large_arrivals
            clients[0].writer.write(frames[0])
            await eventually(lambda: 0 in parking.waiting)
            clients[1].writer.write(frames[1])
            await eventually(lambda: large.waiting_count == 1)
            for number in (
                2,
                3,
            ):  # the second waits whole; of those behind it one is read from, the others stand in line
                clients[number].writer.write(frames[number][: 2 * MIB])
                await eventually(lambda number=number: arrivals.waiting_count == number - 2)  # type: ignore[misc]
                await eventually(lambda: arrivals.overrunning_count > 0)
            clients[4].writer.write(frames[4])
            await eventually(lambda: arrivals.waiting_count == 2)
            clients[3].writer.transport.abort()
            clients[2].writer.write(frames[2][2 * MIB :])
            for number in (0, 1, 2):
                await eventually(lambda number=number: number in parking.waiting)  # type: ignore[misc]
                parking.finish(number)
            await eventually(lambda: 4 in parking.waiting)
            assert parking.begun == [0, 1, 2, 4]
            parking.finish(4)

    asyncio.run(run())


def test_producers_do_not_wait_for_large_requests_of_other_kinds() -> None:
    """Those that name things by the thousand fill a part of their own, and wait for each other."""

    async def run() -> None:
        parking = ParkingBytes()
        handlers = {BYTES: parking.handle, PRODUCE: lambda *_: ProduceResponse()}
        async with Shell(handlers, memory_bytes=MIB) as shell:
            first, second = await shell.client(), await shell.client()
            first.send(BYTES, 2, payload(0, 2 * MIB))
            await eventually(lambda: 0 in parking.waiting)
            second.send(BYTES, 2, payload(1, 2 * MIB))
            await eventually(lambda: shell.memory.large.waiting_count == 1)
            await asyncio.wait_for((await shell.client()).ask(PRODUCE, 9), PATIENCE_S)
            for number in range(2):
                await eventually(lambda number=number: number in parking.waiting)  # type: ignore[misc]
                parking.finish(number)
            await eventually(lambda: shell.memory.used_bytes == 0)

    asyncio.run(run())


@pytest.mark.parametrize("parts_count", [9, 400, 2_000])
def test_a_produce_that_waits_is_charged_for_its_partitions(parts_count: int) -> None:
    """Also of one with so many that it is decoded in chunks; and all is given back with its answer, also
    where its client is gone by then."""

    async def scenario() -> None:
        waiting: list[asyncio.Future[Any]] = []

        def park(context: RequestContext, request: ProduceRequest) -> asyncio.Future[Any]:
            waiting.append(asyncio.get_running_loop().create_future())
            return waiting[-1]

        parts = [PartitionProduceData(index, b"x") for index in range(parts_count)]
        request = ProduceRequest(acks=-1, topic_data=[TopicProduceData("a", partition_data=parts)])
        async with Shell({PRODUCE: park}) as shell:
            client, gone = await shell.client(), await shell.client()
            for one in (client, gone):
                one.send(PRODUCE, 9, request)
            await eventually(lambda: len(waiting) == 2)
            await eventually(lambda: shell.memory.used_bytes > 2 * parts_count * PART_BYTES)
            gone.close()
            for future in waiting:
                future.set_result(ProduceResponse())
            await asyncio.wait_for(client.receive(PRODUCE, 9), PATIENCE_S)
            await eventually(lambda: shell.memory.used_bytes == 0)

    asyncio.run(scenario())


def test_one_who_waits_for_memory_when_all_must_end_leaves_the_line() -> None:
    """A connection that is drained while it stands in line leaves it: nobody seems to wait for memory
    afterwards."""

    async def run() -> None:
        parking = ParkingBytes()
        async with Shell({BYTES: parking.handle}, memory_bytes=MIB) as shell:
            (await shell.client()).send(BYTES, 2, payload(0, 2 * MIB))
            await eventually(lambda: 0 in parking.waiting)
            (await shell.client()).send(BYTES, 2, payload(1, 2 * MIB))
            await eventually(lambda: shell.memory.large.waiting_count == 1)
            stopping = asyncio.ensure_future(shell.server.stop())
            await eventually(lambda: shell.memory.waiting_count == 0)
            parking.finish(0)
            assert await stopping == 0
            assert (parking.begun, shell.memory.used_bytes) == ([0], 0)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xff\xff\xff\xff", "frame of -1 bytes"),
        ((2 * MIB).to_bytes(4, "big"), "frame of 2097152 bytes"),
        (b"GET /metrics HTTP/1.1\r\n", "looks like HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "looks like TLS"),
        (b"\0\0\0\2\0\0", "frame of 2 bytes"),
        (b"\0\0\0\x0a\x00\x0c\0\4\0\0\0\1\0\x05", "client id beyond the end"),
        (b"\0\0\0\x0b\x00\x0c\0\4\0\0\0\1\0\0\0", "Heartbeat"),
        (b"\0\0\0\x0b\x7f\xff\0\4\0\0\0\1\0\0\0", "no API has key 32767"),
        (b"\0\0\0\x0b\x00\x0c\0\x63\0\0\0\1\0\0\0", "version 99"),
    ],
)
def test_what_is_no_request_ends_the_connection_unanswered(
    raw: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Bad lengths, other protocols, undecodable and unserved requests: no byte is sent, and one line names
    the reason."""
    caplog.set_level(logging.INFO)

    async def run() -> None:
        from millrace.broker.network.server import ServerSettings

        async with Shell({HEARTBEAT: echo}, settings=ServerSettings(request_bytes_max=MIB)) as shell:
            client = await shell.client()
            client.writer.write(raw)
            assert await client.is_ended()
            await eventually(lambda: not shell.server.connections)

    asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records if "connection of" in record.getMessage()]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "127.0.0.1" in lines[0]


def test_replies_before_a_bad_frame_still_leave() -> None:
    """Two good requests, one of them pending, then garbage: both replies arrive, then the end."""

    async def run() -> None:
        parking = Parking()

        def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
            return parking.handle(context, request) if request.generation_id == 2 else echo(context, request)

        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            good = [client.frame(HEARTBEAT, 4, beat(number)) for number in (1, 2)]
            client.writer.write(b"".join(good) + b"\0\0\0\2\0\0" + client.frame(HEARTBEAT, 4, beat(3)))
            await eventually(lambda: parking.begun == [2])
            parking.finish(2)
            assert [(await client.receive(HEARTBEAT, 4))[1].error_code for _ in range(2)] == [1, 2]
            assert await client.is_ended()

    asyncio.run(run())


def test_no_reply_leaves_no_gap() -> None:
    """A request that is not answered (acks=0) is skipped in the line of replies."""

    async def run() -> None:
        def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
            return NO_REPLY if request.generation_id % 2 else echo(context, request)

        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            for number in range(6):
                client.send(HEARTBEAT, 4, beat(number))
            assert [(await client.receive(HEARTBEAT, 4))[0] for _ in range(3)] == [1, 3, 5]

    asyncio.run(run())


@pytest.mark.parametrize("is_pending", [False, True])
def test_close_ends_the_connection_in_its_turn(is_pending: bool) -> None:
    """CLOSE, at once or from a future: earlier replies leave, the connection ends, later ones are never
    answered."""

    async def run() -> None:
        parking = Parking()

        def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
            if request.generation_id == 2 and not is_pending:
                return CLOSE
            return parking.handle(context, request)

        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            for number in (1, 2, 3):
                client.send(HEARTBEAT, 4, beat(number))
            await eventually(lambda: {1, 3} <= set(parking.waiting))
            parking.finish(3)
            if is_pending:
                parking.finish(2, CLOSE)
            await asyncio.sleep(0.01)
            parking.finish(1)
            assert (await client.receive(HEARTBEAT, 4))[1].error_code == 1
            assert await client.is_ended()
            await eventually(lambda: shell.memory.used_bytes == 0 and not shell.server.connections)

    asyncio.run(run())


def test_what_was_begun_finishes_after_the_client_is_gone() -> None:
    """A lost connection's futures are not cancelled; the info says it is gone, and its memory returns when
    they are done."""

    async def run() -> None:
        parking = Parking()
        seen: list[RequestContext] = []

        def handle(context: RequestContext, request: HeartbeatRequest) -> Any:
            seen.append(context)
            return parking.handle(context, request)

        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            client.send(HEARTBEAT, 4, beat(1))
            client.send(HEARTBEAT, 4, beat(2))
            await eventually(lambda: len(parking.begun) == 2)
            assert seen[0].connection.is_open
            client.writer.transport.abort()
            await eventually(lambda: not shell.server.connections)
            assert not seen[0].connection.is_open
            assert shell.memory.used_bytes > 0
            for number in (2, 1):
                assert not parking.waiting[number].cancelled()
                parking.finish(number)
            await eventually(lambda: shell.memory.used_bytes == 0)

    asyncio.run(run())


def test_frames_may_come_byte_by_byte() -> None:
    """Requests cut anywhere by the network are put together."""

    async def run() -> None:
        async with Shell({HEARTBEAT: echo}) as shell:
            client = await shell.client()
            for byte in client.frame(HEARTBEAT, 4, beat(9)):
                client.writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.receive(HEARTBEAT, 4))[1].error_code == 9

    asyncio.run(run())


def test_handlers_see_both_ends_of_the_connection() -> None:
    """The listener's name, the address that the client reached and the peer's own are known to handlers."""

    async def run() -> None:
        seen: list[RequestContext] = []

        def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
            seen.append(context)
            return HeartbeatResponse()

        async with Shell({HEARTBEAT: handle}) as shell:
            client = await shell.client()
            await client.ask(HEARTBEAT, 4)
            info = seen[0].connection
            assert (info.listener, info.local_host, info.local_port) == ("PLAINTEXT", "127.0.0.1", shell.port)
            assert (info.peer_host, info.peer_port) == client.writer.get_extra_info("sockname")
            assert info.principal == "User:ANONYMOUS"

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a peer that closed")
@both_loops
def test_one_who_closes_behind_a_join_that_waits_is_let_go(loop_name: str) -> None:
    """With a frame behind the join nothing is read, and so nobody is told of the end: the sweep looks. One
    who stays is answered."""

    async def run() -> None:
        joins: list[asyncio.Future[Any]] = []

        def join(context: RequestContext, request: Any) -> asyncio.Future[Any]:
            joins.append(asyncio.get_running_loop().create_future())
            return joins[-1]

        settings = ServerSettings(idle_ms=400)
        async with Shell({JOIN_GROUP: join, HEARTBEAT: echo}, settings=settings) as shell:
            leaving, staying = await shell.client(), await shell.client()
            for number, client in enumerate((leaving, staying), 1):
                client.send(JOIN_GROUP, 7)
                client.send(HEARTBEAT, 4)
                await eventually(lambda: len(joins) == number)  # noqa: B023
            leaving.close()
            await eventually(lambda: len(shell.server.connections) == 1)
            joins[1].set_result(JoinGroupResponse())
            await staying.receive(JOIN_GROUP, 7)
            await staying.receive(HEARTBEAT, 4)

    LOOPS[loop_name](run())
