"""What a hand-written twin is held to: the same values, bytes and refusals as the compiled codec, whatever it
is given."""

from __future__ import annotations

from random import Random
from typing import Any

from millrace.protocol.apis import Api
from millrace.protocol.codec import (
    DecodeRequest,
    compiled_request_decoder,
    compiled_response_encoder,
    request_decoder,
    response_encoder,
)
from millrace.protocol.compile import encoder
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer


def outcome(decode: DecodeRequest, frame: Buffer, pos: int) -> Any:
    """A decoder's value, or that it refused."""
    try:
        return decode(frame, pos)
    except WireError:
        return WireError


def assert_decodes_alike(api: Api, version: int, request: Any, random: Random) -> None:
    """Twin and compiled decoder agree on a request, on every prefix of it, and on damaged copies."""
    twin, compiled = request_decoder(api, version), compiled_request_decoder(api, version)
    raw = encoder(api.request_type, version)(request)
    assert twin(raw, 0) == compiled(raw, 0) == request
    shifted = memoryview(bytearray(b"\xff" + raw + b"\xff\xff"))
    assert twin(shifted, 1) == request
    for length in range(len(raw)):
        assert outcome(twin, raw[:length], 0) is WireError, length
    for _ in range(200):
        damaged = bytearray(raw)
        for _ in range(random.choice((1, 1, 3))):
            damaged[random.randrange(len(damaged))] = random.choice(
                (0, 1, 2, 0x7F, 0x80, 0xFF, random.randrange(256))
            )
        assert outcome(twin, damaged, 0) == outcome(compiled, damaged, 0), bytes(damaged).hex()


def assert_encodes_alike(api: Api, version: int, response: Any) -> None:
    """Twin and compiled encoder give the same frame."""
    twin, compiled = response_encoder(api, version), compiled_response_encoder(api, version)
    assert b"".join(twin(-3, response)) == b"".join(compiled(-3, response))
