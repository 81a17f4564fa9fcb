"""What the two halves of the compiler share: lines of text, the names they refer to, and runs of fixed-size
fields.

Not here: what is read or written (compile_decode.py, compile_encode.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from millrace.protocol.declare import WireField, WireType, wire_fields

# Fixed-size kinds and their struct letters; a run of them costs one call.
LETTERS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "uuid": "16s",
}
# Kinds whose arrays are read and written by one call to struct.
NUMBERS = frozenset(LETTERS) - {"uuid", "bool"}


class Text:
    """Lines being written, and the globals that they name."""

    def __init__(self, cls: type[Any], version: int, *, is_yielding: bool = False) -> None:
        self.version = version
        self.is_yielding = is_yielding  # what is written can be stopped on the way
        self.flexible: bool = cls.VERSIONS.is_flexible(version)
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.done: set[type[Any]] = set()  # structures that have their function already; membership only

    def add(self, indent: int, *lines: str) -> None:
        self.lines += ("    " * indent + line for line in lines)

    def layout(self, verb: str, letters: str) -> str:
        """The name of a struct method for these letters: unpack_iqh, pack_iqh. (A bool's `?` is no letter:
        z.)"""
        name = f"{verb}_{letters.replace('?', 'z')}"
        method = struct.Struct(">" + letters)
        self.names[name] = method.unpack_from if verb == "unpack" else method.pack
        return name

    def constant(self, value: Any) -> str:
        """The name of a default value of a structure."""
        name = f"DEFAULT_{type(value).__name__}"
        while self.names.get(name, value) != value:
            name += "_"
        self.names[name] = value
        return name

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def present(cls: type[Any], version: int, flexible: bool) -> tuple[list[WireField], list[WireField]]:
    """The fields of `cls` at `version`: those in order, and those of the tagged section by ascending tag.
    Raises TypeError for tagged fields at a version that is not flexible."""
    inside = [field for field in wire_fields(cls) if field.is_in(version)]
    tagged = [field for field in inside if field.presence.tag is not None]
    if tagged and not flexible:
        raise TypeError(f"{cls.__name__} has tagged fields at version {version}, which is not flexible")
    ordered = [field for field in inside if field.presence.tag is None]
    return ordered, sorted(tagged, key=lambda field: field.presence.tag or 0)


def least_bytes(wire: WireType, nullable: bool, version: int, flexible: bool) -> int:
    """The fewest bytes a value can take: what an array's count is checked against before anything is
    built."""
    if wire.kind in LETTERS:
        return struct.calcsize(">" + LETTERS[wire.kind])
    if wire.kind == "struct" and not nullable:
        assert wire.structure is not None
        ordered, _tagged = present(wire.structure, version, flexible)
        return int(flexible) + sum(
            least_bytes(field.type, field.is_nullable(version), version, flexible) for field in ordered
        )
    if wire.kind == "struct" or flexible:
        return 1
    return 2 if wire.kind == "string" else 4


def holds_arrays(cls: type[Any], version: int, flexible: bool, counts: Callable[[WireType], bool]) -> bool:
    """Whether that version has an array whose elements count, at any depth of structures."""
    ordered, tagged = present(cls, version, flexible)
    types = [field.type for field in ordered + tagged]
    if any(one.element is not None and counts(one.element) for one in types):
        return True
    return any(
        one.structure is not None and holds_arrays(one.structure, version, flexible, counts) for one in types
    )
