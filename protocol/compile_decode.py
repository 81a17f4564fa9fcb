"""Writes the text of a decoder: one function a structure, `read_X(buf, pos, end) -> (X, pos)`.

Locals carry the fields' own names; those of the machinery are in OWN_LOCALS. Runs of fixed-size fields are
one `unpack_from`. Every length is compared with `end` (or with `stop`, the end of a tagged field) before it
is used. `left`, a list of one number that a decoder's functions share, bounds what all arrays and tagged
sections of a message hold together.

Or of one that can be stopped: a structure that holds arrays, near or far, gets a generator `yielding_X(buf,
pos, end)` instead, which stops behind each element of such an array, or behind many where they are numbers.
Others may use the functions meanwhile: who goes on sets `left` to what it was.

Not here: which errors leave a decoder (compile.py turns those in READ_ERRORS into WireError).
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

from millrace.protocol.compile_text import LETTERS, NUMBERS, Text, holds_arrays, least_bytes, present
from millrace.protocol.declare import WireField, WireType, wire_fields
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import (
    ARRAY_COUNT_MAX,
    STRING_BYTES_MAX,
    TAG_COUNT_MAX,
    read_uvarint,
    skip_tags,
    spend,
)

# Names that the text uses itself; a field that is called so gets a local of another name.
OWN_LOCALS = frozenset({"buf", "pos", "end", "stop", "n", "item", "upto", "tag", "tags", "taken"})
NUMBERS_PER_CHUNK = 8_000  # of an array of them: as much work as an eighth of that in structures
OWN_GLOBALS = frozenset({"unpack", "str", "bytes", "list", "range", "memoryview", "left", "spend"})


def decode_text(cls: type[Any], version: int, *, is_yielding: bool = False) -> tuple[str, dict[str, Any]]:
    """The text of the decoder of `cls` at `version`, and the globals it needs."""
    text = Text(cls, version, is_yielding=is_yielding)
    text.names |= {"WireError": WireError, "unpack": struct.unpack_from}
    text.names |= {"read_uvarint": read_uvarint, "skip_tags": skip_tags, "spend": spend, "left": [0]}
    write_structure(text, cls)
    return text.text(), text.names


def local(name: str) -> str:
    return name + "_" if name in OWN_LOCALS or name in OWN_GLOBALS else name


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
    text.names[cls.__name__] = cls
    text.add(0, f"def {'yielding' if yields(text, cls) else 'read'}_{cls.__name__}(buf, pos, end):")
    for run in runs(ordered):
        if run[0].type.kind in LETTERS:
            write_run(text, run)
        else:
            write_field(text, 1, run[0], "end")
    if tagged:
        write_tags(text, tagged)
    elif text.flexible:
        text.add(1, "pos = skip_tags(buf, pos, end, left) if buf[pos] else pos + 1")
    here = {field.name for field in ordered + tagged}
    values = ", ".join(
        local(field.name) if field.name in here else fresh(text, field) for field in wire_fields(cls)
    )
    text.add(1, f"return {cls.__name__}({values}), pos")
    text.add(0, "")


def yields(text: Text, cls: type[Any]) -> bool:
    return text.is_yielding and can_yield(cls, text.version, text.flexible)


def can_yield(cls: type[Any], version: int, flexible: bool) -> bool:
    """Whether it has arrays in that version."""
    return holds_arrays(cls, version, flexible, lambda element: True)


def runs(fields: list[WireField]) -> list[list[WireField]]:
    """Neighbours of fixed size together, every other field alone."""
    out: list[list[WireField]] = []
    for field in fields:
        if out and field.type.kind in LETTERS and out[-1][0].type.kind in LETTERS:
            out[-1].append(field)
        else:
            out.append([field])
    return out


def fresh(text: Text, field: WireField) -> str:
    """The default of a field that the version does not carry, as an expression."""
    if field.type.kind == "array" and field.default is not None:
        return "[]"
    if field.type.kind == "struct" and field.default is not None:
        if isinstance(field.default, Hashable):  # frozen, so one value serves all
            return text.constant(field.default)
        structure = type(field.default)
        text.names[structure.__name__] = structure
        return f"{structure.__name__}()"
    return repr(field.default)


def write_run(text: Text, run: list[WireField]) -> None:
    letters = "".join(LETTERS[field.type.kind] for field in run)
    targets = ", ".join(local(field.name) for field in run) + ("," if len(run) == 1 else "")
    text.add(1, f"{targets} = {text.layout('unpack', letters)}(buf, pos)")
    text.add(1, f"pos += {struct.calcsize('>' + letters)}")


def write_field(text: Text, indent: int, field: WireField, bound: str) -> None:
    """Reads one field into its local."""
    write_value(text, indent, local(field.name), field.type, field.is_nullable(text.version), bound)


def write_value(text: Text, indent: int, target: str, wire: WireType, nullable: bool, bound: str) -> None:
    if wire.kind in LETTERS:
        letters = LETTERS[wire.kind]
        text.add(indent, f"{target}, = {text.layout('unpack', letters)}(buf, pos)")
        text.add(indent, f"pos += {struct.calcsize('>' + letters)}")
    elif wire.kind == "struct":
        write_nested(text, indent, target, wire, nullable, bound)
    else:
        write_length(text, indent, wire)
        if nullable:
            text.add(indent, "if n < 0:", f"    {target} = None", "else:")
        else:
            text.add(indent, "if n < 0:", f"    raise WireError('{target} is null')")
        write_counted(text, indent + int(nullable), target, wire, bound)


def write_nested(text: Text, indent: int, target: str, wire: WireType, nullable: bool, bound: str) -> None:
    assert wire.structure is not None
    name = f"{wire.structure.__name__}(buf, pos, {bound})"
    call = f"{target}, pos = {'yield from yielding' if yields(text, wire.structure) else 'read'}_{name}"
    if not nullable:
        text.add(indent, call)
        return
    text.add(indent, "n = buf[pos]", "pos += 1")
    text.add(indent, "if n > 127:", f"    {target} = None", "else:", f"    {call}")


def write_length(text: Text, indent: int, wire: WireType) -> None:
    """Reads a length or count into n; null is -1."""
    if text.flexible:
        text.add(indent, "n = buf[pos] - 1", "pos += 1")
        text.add(indent, "if n > 126:", "    n, pos = read_uvarint(buf, pos - 1)", "    n -= 1")
    elif wire.kind == "string":
        text.add(indent, f"n, = {text.layout('unpack', 'h')}(buf, pos)", "pos += 2")
    else:
        text.add(indent, f"n, = {text.layout('unpack', 'i')}(buf, pos)", "pos += 4")


def write_counted(text: Text, indent: int, target: str, wire: WireType, bound: str) -> None:
    """Reads what n counts: bytes of a string, of bytes, of records, or elements."""
    if wire.kind == "array":
        write_array(text, indent, target, wire, bound)
        return
    text.add(
        indent, "upto = pos + n", f"if upto > {bound}:", f"    raise WireError('{target} beyond the end')"
    )
    if wire.kind == "string":
        if text.flexible:
            text.add(indent, f"if n > {STRING_BYTES_MAX}:", f"    raise WireError('{target} too long')")
        text.add(indent, f"{target} = str(buf[pos:upto], 'utf-8')")
    elif wire.kind == "bytes":
        text.add(indent, f"{target} = bytes(buf[pos:upto])")
    else:
        text.add(indent, f"{target} = memoryview(buf)[pos:upto]")
    text.add(indent, "pos = upto")


def write_array(text: Text, indent: int, target: str, wire: WireType, bound: str) -> None:
    element = wire.element
    assert element is not None
    least = least_bytes(element, element.nullable, text.version, text.flexible)
    text.add(indent, f"if n > {ARRAY_COUNT_MAX} or n * {least} > {bound} - pos:")
    text.add(indent, f"    raise WireError(f'{target} of {{n}} elements')")
    text.add(indent, "if n > 1:", f"    spend(left, n{' >> 3' if element.kind in NUMBERS else ''})")
    if element.kind in NUMBERS:
        write_numbers(text, indent, target, LETTERS[element.kind], least)
        return
    text.add(indent, f"{target} = []", "for _ in range(n):")
    # A loop over strings needs n for its own lengths; range() holds the count already.
    write_value(text, indent + 1, "item", element, element.nullable, bound)
    text.add(indent + 1, f"{target}.append(item)")
    if text.is_yielding:
        text.add(indent + 1, "yield")


def write_numbers(text: Text, indent: int, target: str, letter: str, size: int) -> None:
    """Reads n numbers."""
    if not text.is_yielding:
        text.add(indent, f"{target} = list(unpack(f'>{{n}}{letter}', buf, pos))", f"pos += n * {size}")
        return
    text.add(indent, f"{target} = []", "while n:")
    text.add(indent + 1, f"taken = n if n < {NUMBERS_PER_CHUNK} else {NUMBERS_PER_CHUNK}")
    text.add(
        indent + 1,
        f"{target} += unpack(f'>{{taken}}{letter}', buf, pos)",
        f"pos += taken * {size}",
        "n -= taken",
    )
    text.add(indent + 1, "yield")


def write_tags(text: Text, tagged: list[WireField]) -> None:
    """Reads a tagged section: known tags into their locals, others stepped over."""
    for field in tagged:
        text.add(1, f"{local(field.name)} = {fresh(text, field)}")
    text.add(1, "tags = buf[pos]", "pos += 1", "if tags:")
    text.add(2, "if tags > 127:", "    tags, pos = read_uvarint(buf, pos - 1)")
    text.add(2, f"if tags > {TAG_COUNT_MAX}:", "    raise WireError(f'{tags} tagged fields')")
    text.add(2, "spend(left, tags)")
    text.add(2, "for _ in range(tags):")
    text.add(3, "tag, pos = read_uvarint(buf, pos)", "n, pos = read_uvarint(buf, pos)", "stop = pos + n")
    text.add(3, "if stop > end:", "    raise WireError(f'tag {tag} beyond the end')")
    for index, field in enumerate(tagged):
        text.add(3, f"{'elif' if index else 'if'} tag == {field.presence.tag}:")
        write_field(text, 4, field, "stop")
    text.add(3, "else:", "    pos = stop")
    text.add(3, "if pos != stop:", "    raise WireError(f'tag {tag} has another length')")
