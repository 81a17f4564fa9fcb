"""Who holds memory that others wait for, over real sockets: what is force completed, who is ended, who goes
on."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from millrace.broker.network import relief
from millrace.broker.network.relief import COMPLETED_AT_ONCE, HOLDER_WEIGHT, LOOKED_AT
from millrace.broker.requests.request import RequestContext
from millrace.protocol.messages.fetch import FetchResponse
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.protocol.messages.produce import ProduceResponse
from millrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tests.broker.shell import LOOPS, MIB, Client, Shell
from tests.patience import PATIENCE_S, eventually

PRODUCE, FETCH, JOIN_GROUP, HEARTBEAT, BYTES = 0, 1, 11, 12, 36
KIB = 1 << 10
both_loops = pytest.mark.parametrize("loop_name", LOOPS)


def echo(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    return HeartbeatResponse()


def answer_small(context: RequestContext, request: Any) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=5)


def begin_frame(client: Client, size: int, here: int) -> None:
    client.writer.write(size.to_bytes(4, "big") + bytes(here))


@both_loops
def test_a_reader_that_does_not_read_makes_way(loop_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It holds the memory of all replies: whoever wants a Fetch is answered, and the reader is ended with a
    line that says why. Before anybody waited it stayed."""
    caplog.set_level(logging.INFO)

    async def run() -> None:
        big = SaslAuthenticateResponse(auth_bytes=bytes(32 * MIB))
        handlers = {FETCH: lambda context, request: FetchResponse(), BYTES: lambda context, request: big}
        async with Shell(handlers, memory_bytes=MIB) as shell:
            client = await shell.client()
            await client.ask(FETCH, 12)
            stalled = await shell.client()
            stalled.writer.transport.pause_reading()  # type: ignore[attr-defined]
            stalled.send(BYTES, 2)
            await eventually(lambda: shell.memory.replies.used_bytes > MIB)
            await asyncio.wait_for(client.ask(FETCH, 12), PATIENCE_S)
            await eventually(lambda: len(shell.server.connections) == 1)
            assert shell.server.relief.ended_counts == {"replies": 1}
            assert shell.memory.used_bytes == 0

    LOOPS[loop_name](run())
    assert "KiB/s while it held" in caplog.text


@both_loops
@pytest.mark.parametrize("frame_bytes", [60 * KIB, 50 * MIB], ids=["small", "large"])
def test_senders_that_do_not_go_on_make_way(
    loop_name: str, frame_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten of them hold all memory for parts of frames, whether they are read from or stand in line: they are
    ended, and a frame that comes in pieces is served."""
    caplog.set_level(logging.INFO)

    async def run() -> None:
        async with Shell({BYTES: answer_small}, memory_bytes=4 * MIB) as shell:
            for _ in range(10):
                begin_frame(await shell.client(), frame_bytes, min(frame_bytes - 1, 128 * KIB))
            part = shell.memory.of_arrivals(frame_bytes)
            await eventually(lambda: part.used_bytes >= part.limit_bytes)
            client = await shell.client()
            frame = client.frame(
                BYTES, 2, SaslAuthenticateRequest(auth_bytes=bytes(min(frame_bytes, 300 * KIB) - 100))
            )
            client.writer.write(frame[: 20 * KIB])
            await asyncio.sleep(0.05)
            client.writer.write(frame[20 * KIB : 40 * KIB])
            await eventually(lambda: sum(shell.server.relief.ended_counts.values()) >= 3)
            client.writer.write(frame[40 * KIB :])
            assert (await asyncio.wait_for(client.receive(BYTES, 2), PATIENCE_S))[1].error_code == 5

    LOOPS[loop_name](run())
    assert "it sent 0.0 KiB/s while it held" in caplog.text


def test_senders_that_wait_for_each_other_all_get_through() -> None:
    """Forty clients begin frames that together are thirty times their memory: none could go on. One by one
    they do, and nobody is ended."""

    async def run() -> None:
        async with Shell({BYTES: answer_small}, memory_bytes=2 * MIB) as shell:
            clients = [await shell.client() for _ in range(40)]
            for client in clients:
                client.send(BYTES, 2, SaslAuthenticateRequest(auth_bytes=bytes(200 * KIB)))
            for client in clients:
                assert (await asyncio.wait_for(client.receive(BYTES, 2), PATIENCE_S))[1].error_code == 5
            assert not shell.server.relief.ended_counts
            assert shell.memory.used_bytes == 0
            assert shell.memory.large_arrivals.overrunning_count == 0

    asyncio.run(run())


def test_a_look_at_a_crowd_is_taken_in_parts() -> None:
    """Four hundred connections hold a part of a frame each, and together more than there is: an iteration of
    the loop looks at few of them, and the look comes to its end."""

    async def run() -> None:
        async with Shell({BYTES: answer_small}, memory_bytes=64 * MIB) as shell:
            relief, loop, holdings = shell.server.relief, asyncio.get_running_loop(), [0]
            counts: list[int] = []
            holding = relief._holding

            def counted(*words: Any, **named: Any) -> Any:
                holdings[0] += 1
                return holding(*words, **named)

            def look() -> None:
                counts.append(holdings[0])
                loop.call_soon(look)

            relief._holding = counted  # type: ignore[method-assign]
            look()
            for _ in range(400):
                begin_frame(await shell.client(), 60 * KIB, 20 * KIB)
            await eventually(lambda: sum(relief.ended_counts.values()) >= 3)
            assert max(after - before for before, after in pairwise(counts)) <= LOOKED_AT // HOLDER_WEIGHT
            await eventually(lambda: not shell.memory.small_arrivals.is_short)

    asyncio.run(run())


def test_a_slow_sender_stays_while_nobody_waits() -> None:
    """Half of the memory for parts of frames is its, and it stands still for longer than would be looked at:
    it is served in the end."""

    async def run() -> None:
        async with Shell({BYTES: answer_small}, memory_bytes=MIB) as shell:
            client = await shell.client()
            frame = client.frame(BYTES, 2, SaslAuthenticateRequest(auth_bytes=bytes(120 * KIB)))
            client.writer.write(frame[: 100 * KIB])
            await asyncio.sleep(1.2)
            client.writer.write(frame[100 * KIB :])
            assert (await client.receive(BYTES, 2))[1].error_code == 5

    asyncio.run(run())


@pytest.mark.parametrize("completed_at_once", [1, COMPLETED_AT_ONCE])
def test_what_is_done_behind_one_that_waits_gives_back_its_memory(
    completed_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Produce that was answered behind a request that waits cannot be sent; others that produce do not wait
    for that, however many connections are looked at before."""
    monkeypatch.setattr(relief, "COMPLETED_AT_ONCE", completed_at_once)

    async def run() -> None:
        beaten: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        handlers = {HEARTBEAT: lambda *_: beaten, PRODUCE: lambda *_: ProduceResponse()}
        async with Shell(handlers, memory_bytes=256) as shell:
            client, other = await shell.client(), await shell.client()
            client.send(HEARTBEAT, 4)
            for _ in range(12):
                client.send(PRODUCE, 9)
            await eventually(lambda: shell.memory.bulk.used_bytes >= shell.memory.bulk.limit_bytes)
            await asyncio.wait_for(other.ask(PRODUCE, 9), PATIENCE_S)
            beaten.set_result(HeartbeatResponse())
            await client.receive(HEARTBEAT, 4)
            for _ in range(12):
                await client.receive(PRODUCE, 9)
            await eventually(lambda: shell.memory.used_bytes == 0)

    asyncio.run(run())


def test_whole_frames_behind_a_join_are_charged_and_make_way() -> None:
    """Nothing of a connection is begun behind the join that it waits for, but what it sent is held: it is
    charged, and when others wait for that memory the connection is ended."""

    async def run() -> None:
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        async with Shell({JOIN_GROUP: lambda *_: never, BYTES: answer_small}, memory_bytes=MIB) as shell:
            client = await shell.client()
            for _ in range(4):
                hoarder = await shell.client()
                hoarder.writer.write(b"".join(hoarder.frame(JOIN_GROUP, 7) for _ in range(8000)))
            part = shell.memory.large_arrivals
            await eventually(lambda: part.used_bytes >= part.limit_bytes)
            frame = client.frame(BYTES, 2, SaslAuthenticateRequest(auth_bytes=bytes(300 * KIB)))
            client.writer.write(frame[: 100 * KIB])
            await asyncio.sleep(0.05)
            client.writer.write(frame[100 * KIB :])
            assert (await asyncio.wait_for(client.receive(BYTES, 2), PATIENCE_S))[1].error_code == 5
            await eventually(lambda: shell.server.relief.ended_counts["large_arrivals"] > 0)

    asyncio.run(run())


@both_loops
def test_a_frame_whose_rest_the_system_has_waits_for_nobody(loop_name: str) -> None:
    """Memory for parts of frames is used up several times over by senders that do not go on, so that reads
    are narrow, and a frame that was sent whole is served while all of them stay; one that goes on in pieces
    waits for them."""

    async def run() -> None:
        async with Shell({BYTES: answer_small}, memory_bytes=2 * MIB) as shell:
            shell.server.relief._end = lambda connection, reason: None  # nobody is ended
            receiver, part = shell.server._parts.receiver, shell.memory.large_arrivals
            for _ in range(4):
                begin_frame(await shell.client(), 50 * MIB, 200 * KIB)
            await eventually(lambda: receiver.is_narrow)
            held_bytes = part.used_bytes
            for _ in range(20):
                begin_frame(await shell.client(), 50 * MIB, 200 * KIB)
            await eventually(lambda: part.waiting_count >= 20)
            assert part.used_bytes <= held_bytes + 256 * KIB, "what is behind waits in the system's memory"
            client = await shell.client()
            client.send(BYTES, 2, SaslAuthenticateRequest(auth_bytes=bytes(100 * KIB)))
            assert (await asyncio.wait_for(client.receive(BYTES, 2), PATIENCE_S))[1].error_code == 5
            assert receiver.is_narrow

    LOOPS[loop_name](run())


def test_reads_are_wide_again_when_there_is_room() -> None:
    """Those who crowded went away."""

    async def run() -> None:
        async with Shell({BYTES: answer_small}, memory_bytes=2 * MIB) as shell:
            receiver = shell.server._parts.receiver
            clients = [await shell.client() for _ in range(6)]
            for client in clients:
                begin_frame(client, 50 * MIB, 200 * KIB)
            await eventually(lambda: receiver.is_narrow)
            for client in clients:
                client.writer.transport.abort()
            await eventually(lambda: not receiver.is_narrow)
            assert shell.memory.used_bytes == 0

    asyncio.run(run())
