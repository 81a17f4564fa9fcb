"""Requests and responses as whole frames: header and body in one call, for either side of a connection.

A response is a list of buffers for `writelines`: record bytes stay the views that they were given as, small
pieces are joined, since a copy of a few hundred bytes is cheaper than one more buffer on the way to the
socket.

Not here: cutting frames out of a stream (frame.py), which versions are served (broker/requests/dispatch.py).
The hot twins of messages/*_hot.py stand in for the compiled codec where there is one; both give the same
values and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct, error
from typing import Any, TypeAlias

from millrace.protocol.apis import Api
from millrace.protocol.compile import (
    build_decoder,
    build_yielding_decoder,
    build_yielding_encoder,
    decoder,
    encoder,
    parts_encoder,
)
from millrace.protocol.frame import joined_small
from millrace.protocol.header import decode_response_header, has_tagged_response_header, request_header
from millrace.protocol.primitives import (
    DATA_ELEMENTS_MAX,
    ELEMENTS_AT_ONCE,
    GROUP_ELEMENTS_MAX,
    REQUEST_ELEMENTS_MAX,
    Buffer,
)

DecodeRequest: TypeAlias = Callable[[Buffer, int], Any]
EncodeResponse: TypeAlias = Callable[[int, Any], list[Buffer]]
YieldingDecode: TypeAlias = Callable[[Buffer, int], Generator[None, None, Any]]
YieldingEncode: TypeAlias = Callable[[int, Any], Generator[None, None, list[Buffer]]]

PRODUCE, FETCH, JOIN_GROUP, SYNC_GROUP = 0, 1, 11, 14
ELEMENTS_MAX = {
    PRODUCE: DATA_ELEMENTS_MAX,
    FETCH: DATA_ELEMENTS_MAX,
    JOIN_GROUP: GROUP_ELEMENTS_MAX,
    SYNC_GROUP: GROUP_ELEMENTS_MAX,
}
ELEMENTS_PER_CHUNK = 1_000
PIECES_PER_CHUNK = 5_000  # a millisecond or two

_FRAME = Struct(">ii")
_FRAME_TAGGED = Struct(">iix")


def decode_request(api: Api, version: int, frame: Buffer, pos: int) -> Any:
    """The body of a request that begins at `pos`. Surplus bytes after it are tolerated; librdkafka sends
    some. Raises TooManyElements for one that holds more than ELEMENTS_AT_ONCE: it is decoded in steps."""
    decode = _request_decoders.get((api.key, version))
    if decode is None:
        decode = _request_decoders[api.key, version] = request_decoder(api, version)
    return decode(frame, pos)


def decode_request_yielding(api: Api, version: int, frame: Buffer, pos: int) -> Generator[None, None, Any]:
    """The value of `decode_request`, of any size, with stops on the way: a small request has none. `frame`
    must not change meanwhile."""
    if (api.key, version) not in _yielding_decoders:
        elements_max = ELEMENTS_MAX.get(api.key, REQUEST_ELEMENTS_MAX)
        made = build_yielding_decoder(api.request_type, version, ELEMENTS_PER_CHUNK, elements_max)
        _yielding_decoders[api.key, version] = made
    decode = _yielding_decoders[api.key, version]
    if decode is None:
        return decode_request(api, version, frame, pos)
    return (yield from decode(memoryview(frame), pos))  # one view, of which records are slices


def encode_response(api: Api, version: int, correlation_id: int, response: Any) -> list[Buffer]:
    """The frame of a response, its length in front. A value that the version cannot carry is a ValueError."""
    encode = _response_encoders.get((api.key, version))
    if encode is None:
        encode = _response_encoders[api.key, version] = response_encoder(api, version)
    try:
        return encode(correlation_id, response)
    except error as reason:
        raise ValueError(f"{api.name} v{version}: {reason}") from reason


def encode_response_yielding(
    api: Api, version: int, correlation_id: int, response: Any
) -> Generator[None, None, list[Buffer]]:
    """The bytes of `encode_response`, with stops on the way: a small response has none. Record bytes are
    copied. Raises ValueError for a value that the version cannot carry."""
    encode = _yielding_encoders.get((api.key, version))
    if encode is None:
        encode = _yielding_encoders[api.key, version] = yielding_encoder(api, version)
    try:
        return (yield from encode(correlation_id, response))
    except error as reason:
        raise ValueError(f"{api.name} v{version}: {reason}") from reason


def encode_request(api: Api, version: int, correlation_id: int, client_id: str | None, request: Any) -> bytes:
    """The frame of a request, its length in front."""
    head = request_header(api, version, correlation_id, client_id)
    body = encoder(api.request_type, version)(request)
    return b"".join(((len(head) + len(body)).to_bytes(4, "big"), head, body))


def decode_response(api: Api, version: int, frame: Buffer) -> tuple[int, Any]:
    """The correlation id and the body of a response, from a frame without its length."""
    correlation_id, pos = decode_response_header(api, version, frame)
    return correlation_id, decoder(api.response_type, version)(frame, pos)[0]


# Filled on first use of an API and version; bounded by the table of APIs.
_request_decoders: dict[tuple[int, int], DecodeRequest] = {}
_response_encoders: dict[tuple[int, int], EncodeResponse] = {}
_yielding_decoders: dict[tuple[int, int], YieldingDecode | None] = {}
_yielding_encoders: dict[tuple[int, int], YieldingEncode] = {}


def request_decoder(api: Api, version: int) -> DecodeRequest:
    """The twin of a hot request, else the compiled decoder."""
    if api.key == PRODUCE:
        from millrace.protocol.messages import produce_hot

        return produce_hot.request_decoder(version)
    general = compiled_request_decoder(api, version)
    if api.key == FETCH:
        from millrace.protocol.messages import fetch_hot

        return fetch_hot.request_decoder(version, general)
    return general


def response_encoder(api: Api, version: int) -> EncodeResponse:
    """The twin of a hot response, else the compiled encoder."""
    general = compiled_response_encoder(api, version)
    if api.key == PRODUCE:
        from millrace.protocol.messages import produce_hot

        return produce_hot.response_encoder(version, general)
    if api.key == FETCH:
        from millrace.protocol.messages import fetch_hot

        return fetch_hot.response_encoder(version, general)
    return general


def compiled_request_decoder(api: Api, version: int) -> DecodeRequest:
    decode = build_decoder(api.request_type, version, ELEMENTS_AT_ONCE)
    return lambda frame, pos: decode(frame, pos)[0]


def yielding_encoder(api: Api, version: int) -> YieldingEncode:
    steps = build_yielding_encoder(api.response_type, version)
    head = _FRAME_TAGGED if has_tagged_response_header(api, version) else _FRAME

    def encode_at_once(correlation_id: int, response: Any) -> Generator[None, None, list[Buffer]]:
        yield from ()
        return encode_response(api, version, correlation_id, response)

    def encode(correlation_id: int, response: Any) -> Generator[None, None, list[Buffer]]:
        assert steps is not None
        chunks: list[Buffer] = [b""]
        pieces: list[Buffer] = []
        for _ in steps(pieces.append, response):
            if len(pieces) >= PIECES_PER_CHUNK:
                chunks.append(b"".join(pieces))
                pieces.clear()
                yield
        chunks.append(b"".join(pieces))
        chunks[0] = head.pack(head.size - 4 + sum(map(len, chunks)), correlation_id)
        return joined_small(chunks)

    return encode_at_once if steps is None else encode


def compiled_response_encoder(api: Api, version: int) -> EncodeResponse:
    give = parts_encoder(api.response_type, version)
    head = _FRAME_TAGGED if has_tagged_response_header(api, version) else _FRAME

    def encode(correlation_id: int, response: Any) -> list[Buffer]:
        parts: list[Buffer] = [b""]
        give(parts.append, response)
        parts[0] = head.pack(head.size - 4 + sum(map(len, parts)), correlation_id)
        return joined_small(parts)

    return encode
