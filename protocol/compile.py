"""Turns a declaration into one decoder and one encoder for a version, on first use.

A declaration is a slotted dataclass in wire order, and the only schema there is:

    from millrace.protocol.declare import Int16, Int32, Uuid, Versions, array, struct, wire

    @dataclass(slots=True)
    class ExampleTopic:
        name: str | None = wire("", nullable_since=12)     # may be null from version 12
        topic_id: Uuid = wire(NO_UUID, since=10, ignorable=True)
        partitions: list[Int32] = array()
        leader_epoch: Int32 = wire(-1, since=12, tag=0)    # tagged: written when it is not -1

    @dataclass(slots=True)
    class ExampleResponse:
        VERSIONS = Versions(0, 13, flexible=9)              # not annotated, so not a field

        error_code: Int16 = 0                               # in every version
        topics: list[ExampleTopic] = array(since=1) cursor: ExampleTopic | None = wire(None, since=13) #
        nullable structure: a byte says whether it is there state: ExampleTopic = struct(ExampleTopic,
        since=13, tag=1)

Only the outermost structure has VERSIONS; what it holds takes its version. See declare.py for every word. Use
it so:

    decoder(ExampleResponse, 13)(frame, pos) -> (value, position after it)      raises WireError
    encoder(ExampleResponse, 13)(value) -> bytes                                raises ValueError

The compiled text is registered with linecache, so that tracebacks and debuggers show it, and
`python -m millrace.protocol show Metadata 12` prints it.

Not here: headers and frames (header.py, codec.py), the text itself (compile_decode.py, compile_encode.py).
Kept true: a decoder raises nothing but WireError for any bytes, and allocates nothing by an unchecked length.

Memory: a decoded message takes up to 58 times its bytes, for it may be all tiny structures: one with three
arrays, all empty, is 4 bytes on the wire and 232 here. Lists of those are what they are; a request's elements
are bounded besides (REQUEST_ELEMENTS_MAX), record bytes are views, and messages of real clients take a few
times their bytes. Steps are in proportion to the bytes.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

from millrace.protocol.compile_decode import can_yield as can_decoder_yield
from millrace.protocol.compile_decode import decode_text
from millrace.protocol.compile_encode import can_yield as can_encoder_yield
from millrace.protocol.compile_encode import encode_text
from millrace.protocol.declare import Versions
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import READ_ERRORS, UNBOUNDED, Buffer

T = TypeVar("T")
Decode: TypeAlias = Callable[[Buffer, int], tuple[T, int]]
# The same with stops; the value alone.
YieldingDecode: TypeAlias = Callable[[Buffer, int], Generator[None, None, T]]
Encode: TypeAlias = Callable[[T], bytes]
# Gives the message to `out` piece by piece, record bytes as they are; what Fetch-like responses are sent
# with.
EncodeParts: TypeAlias = Callable[[Callable[[Buffer], object], T], None]
# The same with a stop behind each element of an array of structures.
YieldingEncode: TypeAlias = Callable[[Callable[[Buffer], object], T], Generator[None, None, None]]


def decoder(cls: type[T], version: int) -> Decode[T]:
    """The decoder of `cls` at `version`. Trailing bytes are left to the caller, who tolerates them as Kafka
    does."""
    return compiled_decoder(cls, version)


def encoder(cls: type[T], version: int) -> Encode[T]:
    """The encoder of `cls` at `version`. A value that the version cannot carry is a ValueError."""
    return compiled_encoder(cls, version)


def parts_encoder(cls: type[T], version: int) -> EncodeParts[T]:
    """Like `encoder`, giving pieces instead of joining them."""
    return compiled_parts(cls, version)


def build_decoder(cls: type[Any], version: int, elements_max: int = UNBOUNDED) -> Decode[Any]:
    """`elements_max`: more elements and tags than that in one message are a WireError."""
    check_version(cls, version)
    text, names = decode_text(cls, version)
    read = load(text, names, f"<decode {cls.__name__} v{version}>", f"read_{cls.__name__}")
    left: list[int] = names["left"]

    def decode(buf: Buffer, pos: int) -> tuple[Any, int]:
        left[0] = elements_max
        try:
            return cast("tuple[Any, int]", read(buf, pos, len(buf)))
        except READ_ERRORS as error:
            raise WireError(f"{cls.__name__} v{version}: {error}") from error

    return decode


def build_yielding_decoder(
    cls: type[Any], version: int, elements_per_chunk: int, elements_max: int = UNBOUNDED
) -> YieldingDecode[Any] | None:
    """Like `build_decoder`, with a stop when about so many elements, tags or eights of numbers were read or
    announced; None for what has no array in that version. Several decodings may be under way at a time."""
    check_version(cls, version)
    versions: Versions = cls.VERSIONS
    if not can_decoder_yield(cls, version, versions.is_flexible(version)):
        return None
    text, names = decode_text(cls, version, is_yielding=True)
    read = load(text, names, f"<decode {cls.__name__} v{version} yielding>", f"yielding_{cls.__name__}")
    left: list[int] = names["left"]

    def decode(buf: Buffer, pos: int) -> Generator[None, None, Any]:
        left[0] = kept = elements_max
        count = 0
        elements = read(buf, pos, len(buf))
        while True:
            try:
                next(elements)
            except StopIteration as end:
                return end.value[0]
            except READ_ERRORS as error:
                raise WireError(f"{cls.__name__} v{version}: {error}") from error
            now = left[0]
            count += 1 + kept - now
            kept = now
            if count >= elements_per_chunk:
                count = 0
                yield
                left[0] = kept

    return decode


def build_encoder(cls: type[Any], version: int) -> Encode[Any]:
    give = compiled_parts(cls, version)

    def encode(value: Any) -> bytes:
        out: list[Buffer] = []
        give(out.append, value)
        return b"".join(out)

    return encode


def build_parts(cls: type[Any], version: int) -> EncodeParts[Any]:
    check_version(cls, version)
    text, names = encode_text(cls, version)
    write = load(text, names, f"<encode {cls.__name__} v{version}>", f"write_{cls.__name__}")

    def give(out: Callable[[Buffer], object], value: Any) -> None:
        try:
            write(out, value)
        except struct.error as error:
            raise ValueError(f"{cls.__name__} v{version}: {error}") from error

    return give


def build_yielding_encoder(cls: type[Any], version: int) -> YieldingEncode[Any] | None:
    """Like `build_parts`, to be stopped on the way; None for what has no arrays of structures in that
    version."""
    check_version(cls, version)
    versions: Versions = cls.VERSIONS
    if not can_encoder_yield(cls, version, versions.is_flexible(version)):
        return None
    text, names = encode_text(cls, version, is_yielding=True)
    return cast(
        "YieldingEncode[Any]",
        load(text, names, f"<encode {cls.__name__} v{version} yielding>", f"yielding_{cls.__name__}"),
    )


def source(cls: type[Any], version: int) -> str:
    """The compiled text of both directions, for a reader."""
    check_version(cls, version)
    return f"{decode_text(cls, version)[0]}\n\n{encode_text(cls, version)[0]}"


def check_version(cls: type[Any], version: int) -> None:
    """Raises ValueError for a version that the declaration does not have."""
    versions: Versions = cls.VERSIONS
    if version not in versions:
        raise ValueError(f"{cls.__name__} has versions {versions.first}-{versions.last}, not {version}")


def load(text: str, names: dict[str, Any], filename: str, entry: str) -> Callable[..., Any]:
    """Compiles `text` with `names` as its globals and gives the function `entry`."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), names)
    return cast("Callable[..., Any]", names[entry])


# The checker does not take a class for hashable, hence the casts.
compiled_decoder = cast("Callable[[type[Any], int], Decode[Any]]", cache(build_decoder))
compiled_encoder = cast("Callable[[type[Any], int], Encode[Any]]", cache(build_encoder))
compiled_parts = cast("Callable[[type[Any], int], EncodeParts[Any]]", cache(build_parts))
