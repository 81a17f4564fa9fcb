"""Request and response headers, and which version of them each API uses.

    request v1     api key i16, api version i16, correlation id i32, client id nullable string (i16 length)
    request v2     the same, then a tagged section; for flexible versions. The client id's length stays an i16
    response v0    correlation id i32
    response v1    the same, then a tagged section; for flexible versions, but never for ApiVersions, whose
                   answer must be readable before versions are agreed (KIP-511)

Not here: the table of versions (apis.py), bodies (codec.py). Kept true: whatever the bytes are, decoding
raises nothing but WireError.
"""

from __future__ import annotations

from struct import Struct

from millrace.protocol.apis import API, Api
from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import READ_ERRORS, Buffer, skip_tags, string_bytes

API_VERSIONS_KEY = 18

_REQUEST = Struct(">hhih")
_CORRELATION = Struct(">i")
REQUEST_HEADER_BYTES_MIN = _REQUEST.size


@dataclass(slots=True)
class RequestHeader:
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str  # null becomes "", as in Kafka


def decode_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header and the position of the body. A known key is enough: whether the version is served is the
    caller's check.

    The version need not be one we know. An ApiVersions request of a later version is read as far as the
    client id, since what follows it may be laid out in a way of its own; its body is not to be decoded.
    Raises WireError for an unknown key, or a header that is cut off or malformed.
    """
    try:
        key, version, correlation_id, length = _REQUEST.unpack_from(frame, 0)
        api = API.get(key)
        if api is None:
            raise WireError(f"no API has key {key}")
        pos = 10
        client_id = ""
        if length > 0:
            pos += length
            if pos > len(frame):
                raise WireError("client id beyond the end")
            client_id = str(frame[10:pos], "utf-8")
        flexible = api.flexible_since
        if (
            flexible is not None
            and version >= flexible
            and (version <= api.max_version or key != API_VERSIONS_KEY)
        ):
            pos = skip_tags(frame, pos, len(frame)) if frame[pos] else pos + 1
        return RequestHeader(key, version, correlation_id, client_id), pos
    except READ_ERRORS as error:
        raise WireError(f"request header: {error}") from error


def request_header(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """A request's header, for the client's side of a connection."""
    raw = b"" if client_id is None else string_bytes(client_id)
    head = _REQUEST.pack(api.key, version, correlation_id, -1 if client_id is None else len(raw))
    return head + raw + (b"\0" if api.is_flexible(version) else b"")


def has_tagged_response_header(api: Api, version: int) -> bool:
    return api.is_flexible(version) and api.key != API_VERSIONS_KEY


def decode_response_header(api: Api, version: int, frame: Buffer) -> tuple[int, int]:
    """The correlation id and the position of the body. Raises WireError where the header is cut off."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(frame, 0)
        pos = 4
        if has_tagged_response_header(api, version):
            pos = skip_tags(frame, pos, len(frame))
        return correlation_id, pos
    except READ_ERRORS as error:
        raise WireError(f"response header: {error}") from error
