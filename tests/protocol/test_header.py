"""Headers: which version each API uses, and what becomes of requests that nobody can parse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.protocol.apis import ALL, API, Api
from millrace.protocol.errors import WireError
from millrace.protocol.header import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    has_tagged_response_header,
    request_header,
)

# key, version, bytes after key and version, client id
TABLE = [
    (3, 8, "0000000a 0003 6d6521", "me!"),
    (3, 9, "0000000a 0003 6d6521 00", "me!"),
    (3, 9, "0000000a ffff 00", ""),
    (3, 9, "0000000a 0000 01 07 02 aabb", ""),
    (17, 1, "0000000a 0001 61", "a"),
    (18, 2, "0000000a 0001 61", "a"),
    (18, 3, "0000000a 0001 61 00", "a"),
]


@pytest.mark.parametrize(("key", "version", "text", "client_id"), TABLE)
def test_request_headers(key: int, version: int, text: str, client_id: str) -> None:
    """Flexible versions have a tagged section, others none; the client id's length is never compact."""
    raw = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes.fromhex(text)
    assert decode_request_header(raw) == (RequestHeader(key, version, 10, client_id), len(raw))
    assert decode_request_header(memoryview(raw + b"body"))[1] == len(raw)
    for length in range(len(raw)):
        with pytest.raises(WireError):
            decode_request_header(raw[:length])


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_our_request_headers_are_read_back(api: Api) -> None:
    """The client's side and the broker's agree, for every API and version."""
    for version in api.versions:
        for client_id in (None, "", "client"):
            raw = request_header(api, version, -7, client_id)
            assert decode_request_header(raw) == (
                RequestHeader(api.key, version, -7, client_id or ""),
                len(raw),
            )


def test_an_api_versions_request_of_the_future_is_recognised() -> None:
    """Whatever follows the client id is not looked at: the answer only needs the correlation id (KIP-511)."""
    raw = bytes.fromhex("0012 7fff 0000000a 0001 61")
    for tail in (b"", b"\xff\xff\xff\xff\xff\xff\xff"):
        header, pos = decode_request_header(raw + tail)
        assert header == RequestHeader(18, 0x7FFF, 10, "a")
        assert pos == len(raw)


@pytest.mark.parametrize(
    "text", ["0004 0000 00000001 ffff", "7fff 0000 00000001 ffff", "ffff 0000 00000001 ffff"]
)
def test_unknown_keys_are_refused(text: str) -> None:
    """There is no honest answer to an API that does not exist."""
    with pytest.raises(WireError):
        decode_request_header(bytes.fromhex(text))


def test_response_headers() -> None:
    """Tagged for flexible versions, save ApiVersions; tags in them are stepped over."""
    assert has_tagged_response_header(API[3], 9)
    assert not has_tagged_response_header(API[3], 8)
    assert not any(has_tagged_response_header(API[18], version) for version in API[18].versions)
    assert decode_response_header(API[18], 3, b"\0\0\0\x07") == (7, 4)
    assert decode_response_header(API[3], 9, b"\0\0\0\x07\0") == (7, 5)
    assert decode_response_header(API[3], 9, b"\0\0\0\x07\x01\x05\x01\xff") == (7, 8)
    with pytest.raises(WireError):
        decode_response_header(API[3], 9, b"\0\0\0\x07")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_a_wire_error(raw: bytes) -> None:
    """Nothing else escapes."""
    try:
        decode_request_header(raw)
    except WireError:
        pass
