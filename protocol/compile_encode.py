"""Writes the text of an encoder: one function a structure, `write_X(out, value)`, which gives pieces to
`out`.

Or of one that can be stopped: a structure that holds arrays of structures, near or far, gets a generator
`yielding_X(out, value)` instead, which stops behind each element of such an array.

Runs of fixed-size fields are one `pack`, into which the length that follows a run (where it is not a varint)
and an empty tagged section are drawn. Fields that the version does not carry are checked against their
default, unless ignorable. A field that is never null is not checked for None: the type checker does that.

Not here: joining the pieces (compile.py, codec.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from millrace.protocol.compile_text import LETTERS, NUMBERS, Text, holds_arrays, present
from millrace.protocol.declare import WireField, WireType, wire_fields
from millrace.protocol.primitives import ONE_BYTE, string_bytes, tag_section, total_bytes, uuid_field, uvarint

READY_COUNT = 8


def encode_text(cls: type[Any], version: int, *, is_yielding: bool = False) -> tuple[str, dict[str, Any]]:
    """The text of the encoder of `cls` at `version`, and the globals it needs."""
    text = Text(cls, version, is_yielding=is_yielding)
    text.names |= {
        "ONE_BYTE": ONE_BYTE,
        "string_bytes": string_bytes,
        "tag_section": tag_section,
        "total_bytes": total_bytes,
        "uuid_field": uuid_field,
        "uvarint": uvarint,
        "null_in": null_in,
        "not_in": not_in,
    }
    write_structure(text, cls)
    return text.text(), text.names


def null_in(version: int, name: str) -> ValueError:
    return ValueError(f"{name} may not be null in version {version}")


def not_in(version: int, name: str) -> ValueError:
    return ValueError(f"{name} is not carried by version {version}")


class Run:
    """Fixed-size values that wait to be packed together."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.letters: list[str] = []
        self.values: list[str] = []

    def add(self, letter: str, value: str | None) -> None:
        self.letters.append(letter)
        if value is not None:
            self.values.append(value)

    def flush(self, indent: int) -> None:
        """Packs what waits; must come before anything else is given to out, and before a branch."""
        letters = "".join(self.letters)
        if letters == "x":
            self.text.add(indent, r"out(b'\0')")
        elif letters:
            self.text.add(indent, f"out({self.text.layout('pack', letters)}({', '.join(self.values)}))")
        self.letters, self.values = [], []


def write_structure(text: Text, cls: type[Any]) -> None:
    """The function of `cls`, after those of the structures it holds."""
    if cls in text.done:
        return
    text.done.add(cls)
    ordered, tagged = present(cls, text.version, text.flexible)
    for field in ordered + tagged:
        inner = field.type.element or field.type
        if inner.structure is not None:
            write_structure(text, inner.structure)
    text.add(0, f"def {entry(text, cls)}(out, value):")
    write_absent(text, cls, {field.name for field in ordered + tagged})
    run = Run(text)
    for field in ordered:
        write_value(text, 1, run, f"value.{field.name}", field.type, field.is_nullable(text.version))
    if tagged:
        run.flush(1)
        write_tags(text, tagged)
    elif text.flexible:
        run.add("x", None)  # no tagged fields: one zero byte
    run.flush(1)
    if text.lines[-1].startswith("def "):
        text.add(1, "pass")
    text.add(0, "")


def entry(text: Text, cls: type[Any]) -> str:
    """The name of the function of `cls`."""
    return f"{'yielding' if yields(text, cls) else 'write'}_{cls.__name__}"


def yields(text: Text, cls: type[Any]) -> bool:
    return text.is_yielding and can_yield(cls, text.version, text.flexible)


def can_yield(cls: type[Any], version: int, flexible: bool) -> bool:
    """Whether it has arrays of structures in that version."""
    return holds_arrays(cls, version, flexible, lambda element: element.structure is not None)


def write_absent(text: Text, cls: type[Any], here: set[str]) -> None:
    """Refuses values that this version would lose."""
    for field in wire_fields(cls):
        if field.name not in here and not field.presence.ignorable:
            text.add(1, f"if {differs(text, field)}:", f"    raise not_in({text.version}, '{field.name}')")


def differs(text: Text, field: WireField) -> str:
    """The condition that a field has not its default."""
    value = f"value.{field.name}"
    if field.default is None:
        return f"{value} is not None"
    if field.type.kind == "bool":
        return f"not {value}" if field.default else value
    if field.type.kind == "array":
        return f"{value} is None or {value}" if field.type.nullable else value
    if field.type.kind == "struct":
        default = text.constant(field.default)
        return f"{value} is not {default} and {value} != {default}"
    return f"{value} != {field.default!r}"


def write_value(text: Text, indent: int, run: Run, value: str, wire: WireType, nullable: bool) -> None:
    """Gives one value to out. `value` is an expression that is cheap to repeat."""
    if wire.kind in LETTERS:
        run.add(LETTERS[wire.kind], f"uuid_field({value})" if wire.kind == "uuid" else value)
        return
    if not nullable:
        if wire.nullable:
            text.add(indent, f"if {value} is None:", f"    raise null_in({text.version}, '{value}')")
        write_sized(text, indent, run, value, wire)
        return
    run.flush(indent)
    text.add(indent, f"if {value} is None:", f"    out({null_bytes(text, wire)!r})", "else:")
    if wire.kind == "struct":
        run.add("b", "1")
    write_sized(text, indent + 1, run, value, wire)
    run.flush(indent + 1)


def null_bytes(text: Text, wire: WireType) -> bytes:
    """How null is written: a marker byte, a compact length of zero, or a length of -1."""
    if wire.kind == "struct":
        return b"\xff"
    if text.flexible:
        return b"\0"
    return b"\xff" * (2 if wire.kind == "string" else 4)


def write_sized(text: Text, indent: int, run: Run, value: str, wire: WireType) -> None:
    """Gives a value that is not null and not of fixed size."""
    if wire.kind == "struct":
        assert wire.structure is not None
        run.flush(indent)
        call = f"{entry(text, wire.structure)}(out, {value})"
        text.add(indent, f"yield from {call}" if yields(text, wire.structure) else call)
    elif wire.kind == "array":
        write_array(text, indent, run, value, wire)
    elif wire.kind == "records":
        write_records(text, indent, run, value)
    else:
        text.add(indent, f"raw = string_bytes({value})" if wire.kind == "string" else f"raw = {value}")
        write_length(text, indent, run, "len(raw)", "h" if wire.kind == "string" else "i")
        run.flush(indent)
        text.add(indent, "out(raw)")


def write_length(text: Text, indent: int, run: Run, length: str, letter: str) -> None:
    if not text.flexible:
        run.add(letter, length)
        return
    run.flush(indent)
    text.add(indent, f"n = {length} + 1", "out(ONE_BYTE[n] if n < 128 else uvarint(n))")


def write_records(text: Text, indent: int, run: Run, value: str) -> None:
    """Record bytes go out as they are, from one buffer or from several."""
    run.flush(indent)
    text.add(indent, f"parts = {value} if isinstance({value}, (list, tuple)) else ({value},)")
    write_length(text, indent, run, "total_bytes(parts)", "i")
    run.flush(indent)
    text.add(indent, "for part in parts:", "    out(part)")


def write_array(text: Text, indent: int, run: Run, value: str, wire: WireType) -> None:
    element = wire.element
    assert element is not None
    if element.kind in NUMBERS:
        run.flush(indent)
        name = f"{element.kind}s"
        text.names[name] = numbers_encoder(LETTERS[element.kind], text.flexible)
        text.add(indent, f"out({name}({value}))")
        return
    write_length(text, indent, run, f"len({value})", "i")
    run.flush(indent)
    name = f"item{indent}"
    text.add(indent, f"for {name} in {value}:")
    write_value(text, indent + 1, run, name, element, element.nullable)
    run.flush(indent + 1)
    if text.is_yielding and element.structure is not None:
        text.add(indent + 1, "yield")


@cache
def numbers_encoder(letter: str, is_compact: bool) -> Callable[[list[Any]], bytes]:
    """Encodes an array of numbers, its count included. Short ones (replicas) have their layout ready."""
    count_letter, added = ("B", 1) if is_compact else ("i", 0)
    ready = [struct.Struct(f">{count_letter}{count}{letter}").pack for count in range(READY_COUNT)]

    def encode(numbers: list[Any]) -> bytes:
        count = len(numbers)
        if count < READY_COUNT:
            return ready[count](count + added, *numbers)
        head = uvarint(count + 1) if is_compact else struct.pack(">i", count)
        return head + struct.pack(f">{count}{letter}", *numbers)

    return encode


def write_tags(text: Text, tagged: list[WireField]) -> None:
    """Gives a tagged section: each known field that is not at its default, by ascending tag."""
    text.add(1, "outer, tags = out, []")
    for field in tagged:
        text.add(1, f"if {differs(text, field)}:", "    pieces = []", "    out = pieces.append")
        run = Run(text)
        write_value(text, 2, run, f"value.{field.name}", field.type, field.is_nullable(text.version))
        run.flush(2)
        text.add(2, f"tags.append(({field.presence.tag}, b''.join(pieces)))")
    text.add(1, "outer(tag_section(tags) if tags else b'\\0')")
