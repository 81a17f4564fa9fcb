"""Random messages, built from their declarations: any message, at any of its versions.

Not here: assertions. Kept true: the same source of chance gives the same message, and what is built can be
encoded at the version it was built for.
"""

from __future__ import annotations

from random import Random
from typing import Any

from millrace.protocol.apis import ALL
from millrace.protocol.declare import WireType, wire_fields

# Every message type with every version: 309 requests and as many responses, and the private ones.
CASES = [
    (kind, version)
    for api in ALL
    for kind in (api.request_type, api.response_type)
    for version in api.versions
]
KINDS = [kind for api in ALL for kind in (api.request_type, api.response_type)]

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def case_name(case: Any) -> str:
    return (
        f"{case[0].__name__}-v{case[1]}" if isinstance(case, tuple) else str(getattr(case, "__name__", case))
    )


def build(random: Random, kind: type[Any], version: int, *, tame: bool = False) -> Any:
    """A message of `kind`. `tame` keeps to small numbers and plain text, which every other codec takes."""
    values = {}
    for field in wire_fields(kind):
        if field.is_in(version):
            nullable = field.is_nullable(version) and not (tame and field.presence.tag is not None)
            values[field.name] = value_of(random, field.type, nullable, version, tame)
    return kind(**values)


def value_of(random: Random, wire: WireType, nullable: bool, version: int, tame: bool) -> Any:
    if nullable and random.random() < 0.25:
        return None
    if wire.kind == "array":
        assert wire.element is not None
        return [
            value_of(random, wire.element, False, version, tame)
            for _ in range(random.choice((0, 1, 1, 2, 3)))
        ]
    if wire.kind == "struct":
        assert wire.structure is not None
        return build(random, wire.structure, version, tame=tame)
    if tame:
        return tame_scalar(random, wire.kind)
    return scalar(random, wire.kind)


def scalar(random: Random, kind: str) -> Any:
    """Any value of a primitive type, its edges often."""
    if kind in BITS:
        least, most = -(1 << (BITS[kind] - 1)), (1 << (BITS[kind] - 1)) - 1
        return random.choice((least, most, -1, 0, 1, random.randint(least, most)))
    if kind in ("uint16", "uint32"):
        return random.choice((0, (1 << int(kind[4:])) - 1, random.randint(0, (1 << int(kind[4:])) - 1)))
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.choice((0.0, -1.5, 1e300, float("inf")))
    if kind == "uuid":
        return random.choice((bytes(16), random.randbytes(16)))
    if kind == "string":
        return random.choice(("", "a", "topic-1", "é€😀\0", "x" * 126, "x" * 127, "y" * 200))
    return random.randbytes(random.choice((0, 1, 60, 126, 127, 128, 300)))


def tame_scalar(random: Random, kind: str) -> Any:
    if kind == "bool":
        return random.random() < 0.5
    if kind == "float64":
        return random.choice((0.0, 2.5))
    if kind == "uuid":
        return random.randbytes(16)
    if kind == "string":
        return random.choice(("a", "topic-1", "x" * 130))
    if kind in ("bytes", "records"):
        return random.randbytes(random.choice((1, 60, 127, 300)))
    return random.randint(1, 100)
