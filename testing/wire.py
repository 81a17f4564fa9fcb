"""Runs conversations (operations.py) over a connection of their own: blocking, or on the loop that runs.

A connection for each, since one on loopback costs less than knowing whether an old one still stands. Its
client id tells the broker whose requests these are: injected faults spare them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any, TypeVar

from millrace.protocol.apis import KAFKA, Api
from millrace.testing.operations import Call, Conversation

T = TypeVar("T")
CLIENT_ID = "millrace-testing"
ANSWER_S = 30.0
_LENGTH_BYTES = 4


def run_blocking(conversation: Conversation[T], host: str, port: int) -> T:
    """TimeoutError when the broker does not answer a request, ConnectionError when it is not there."""
    connection: socket.socket | None = None
    answer: Any = None
    try:
        while True:
            step = conversation.send(answer)
            if not isinstance(step, Call):
                time.sleep(step)
                answer = None
                continue
            if connection is None:
                connection = socket.create_connection((host, port), ANSWER_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(patience_of(step))
            try:
                connection.sendall(request_bytes(step))
                length = int.from_bytes(_receive(connection, _LENGTH_BYTES), "big")
                answer = response_of(step, _receive(connection, length))
            except TimeoutError:
                raise unanswered(step) from None
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        conversation.close()
        if connection is not None:
            connection.close()


async def run_async(conversation: Conversation[T], host: str, port: int) -> T:
    """The same. Cancelling it closes the connection."""
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    answer: Any = None
    try:
        while True:
            step = conversation.send(answer)
            if not isinstance(step, Call):
                await asyncio.sleep(step)
                answer = None
                continue
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection(host, port)
            try:
                async with asyncio.timeout(patience_of(step)):
                    writer.write(request_bytes(step))
                    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
                    answer = response_of(step, await reader.readexactly(length))
            except TimeoutError:
                raise unanswered(step) from None
            except asyncio.IncompleteReadError as error:
                raise closed() from error
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        conversation.close()
        if writer is not None:
            writer.close()


def patience_of(call: Call) -> float:
    return ANSWER_S + float(getattr(call.request, "max_wait_ms", 0)) / 1000


def request_bytes(call: Call) -> bytes:
    from millrace.protocol.codec import encode_request

    return encode_request(_api(call.api), call.version, 1, CLIENT_ID, call.request)


def response_of(call: Call, frame: bytes) -> Any:
    from millrace.protocol.codec import decode_response

    return decode_response(_api(call.api), call.version, frame)[1]


def _api(name: str) -> Api:
    return next(api for api in KAFKA if api.name == name)


def unanswered(call: Call) -> TimeoutError:
    return TimeoutError(f"the broker did not answer {call.api} within {patience_of(call):g} s; is it paused?")


def closed() -> ConnectionError:
    return ConnectionResetError("the broker closed the connection")


def _receive(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise closed()
        parts += part
    return bytes(parts)
