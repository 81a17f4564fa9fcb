"""The memory that all connections receive into: used again at once, and never while somebody views it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.network.receiver import NARROW_BYTES, RECEIVE_BYTES, Receiver
from millrace.broker.requests.request import RequestContext
from millrace.protocol.messages.heartbeat import HeartbeatResponse
from millrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tests.broker.network.test_connection import LOOPS, both_loops, payload
from tests.broker.shell import Shell
from tests.patience import eventually

HEARTBEAT, SASL_AUTHENTICATE = 12, 36


def receive(receiver: Receiver, data: bytes) -> memoryview:
    receiver.lend()[: len(data)] = data
    return receiver.view[: len(data)]


def test_memory_is_used_again_once_nobody_views_it() -> None:
    """Reads go to the same place, one after the other, and a read that brought nothing is none."""
    receiver = Receiver()
    place = id(receive(receiver, b"first").obj)
    for number in range(10):
        got = receive(receiver, bytes([number]) * 1000)
        assert bytes(got) == bytes([number]) * 1000
        assert id(got.obj) == place
        del got
        assert len(receiver.lend()) == RECEIVE_BYTES
    assert receiver.given_up_count == 0


@pytest.mark.parametrize("is_slice", [False, True])
def test_memory_that_is_viewed_is_given_up(is_slice: bool) -> None:
    """Whoever keeps a view, or a slice of one, keeps its bytes: the next read goes elsewhere."""
    receiver = Receiver()
    got = receive(receiver, b"kept" * 100)
    kept = got[4:8] if is_slice else got
    del got
    for _ in range(3):
        receive(receiver, b"next" * 200)
    assert bytes(kept[:4]) == b"kept"
    assert receiver.given_up_count == 1


def test_narrow_reads_and_wide_ones() -> None:
    """From the next read on; the bytes of the last one are good meanwhile, and memory that is viewed is given
    up in both widths."""
    receiver = Receiver()
    got = receive(receiver, b"wide" * 5000)
    receiver.narrow()
    assert got.obj is receiver.memory
    kept = receive(receiver, b"slim")
    assert len(receiver.lend()) == NARROW_BYTES
    assert bytes(got[:4]) == b"wide"
    receiver.widen()
    receiver.widen()
    assert len(receiver.lend()) == RECEIVE_BYTES
    receive(receiver, b"over" * 5000)
    assert (bytes(got[:4]), bytes(kept)) == (b"wide", b"slim")
    assert receiver.given_up_count == 2


@both_loops
def test_requests_that_wait_keep_their_bytes(loop_name: str) -> None:
    """Two connections send by turns more than may be in flight, whole and in pieces, and each request is
    answered with its own bytes, though all were received into the same memory; none of it had to be given
    up."""

    async def run() -> None:
        begun: list[tuple[asyncio.Future[Any], SaslAuthenticateRequest]] = []

        def park(context: RequestContext, request: SaslAuthenticateRequest) -> asyncio.Future[Any]:
            begun.append((asyncio.get_running_loop().create_future(), request))
            return begun[-1][0]

        def finish() -> None:
            while begun:
                future, request = begun.pop(0)
                future.set_result(SaslAuthenticateResponse(auth_bytes=bytes(request.auth_bytes)))

        async with Shell({SASL_AUTHENTICATE: park, HEARTBEAT: lambda *_: HeartbeatResponse()}) as shell:
            clients = [await shell.client() for _ in range(2)]
            for number in range(100):
                for place, client in enumerate(clients):
                    frame = client.frame(
                        SASL_AUTHENTICATE, 2, payload(2 * number + place, 50 + 997 * number % 5000)
                    )
                    client.writer.write(frame[: number % 50])
                    await asyncio.sleep(0)
                    client.writer.write(frame[number % 50 :])
            await eventually(lambda: len(begun) == 128)
            for number in range(100):
                for place, client in enumerate(clients):
                    await eventually(lambda client=client: bool(begun) or bool(client.reader._buffer))
                    finish()
                    answer = (await client.receive(SASL_AUTHENTICATE, 2))[1]
                    expected = payload(2 * number + place, 50 + 997 * number % 5000).auth_bytes
                    assert answer.auth_bytes == expected
            assert shell.server._parts.receiver.given_up_count == 0

    LOOPS[loop_name](run())
