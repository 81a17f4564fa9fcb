"""A request of any size at once, for tests that do not look at how it is decoded."""

from __future__ import annotations

from typing import Any

from millrace.protocol.apis import Api
from millrace.protocol.codec import decode_request, decode_request_yielding
from millrace.protocol.errors import TooManyElements
from millrace.protocol.primitives import Buffer


def decode_whole(api: Api, version: int, frame: Buffer, pos: int) -> Any:
    """As a dispatcher: in one go where that is allowed, else in steps, all of them. WireError."""
    try:
        return decode_request(api, version, frame, pos)
    except TooManyElements:
        steps = decode_request_yielding(api, version, frame, pos)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
