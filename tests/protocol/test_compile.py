"""The compiler against bytes written down by hand: every word of a declaration, both directions, and every
refusal."""

from __future__ import annotations

import traceback
import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest

from millrace.protocol.compile import decoder, encoder, parts_encoder, source
from millrace.protocol.declare import (
    NO_UUID,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    RecordParts,
    Records,
    UInt16,
    UInt32,
    Uuid,
    Versions,
    array,
    struct,
    wire,
    wire_type,
)
from millrace.protocol.errors import WireError


@dataclass(slots=True)
class Leaf:
    number: Int16 = -1
    end: Int8 = wire(0, since=2)  # a name that the decoder's own locals have, too


@dataclass(slots=True)
class Tree:
    """One of each: 0 plain, 1 flexible, 2 with all that came later."""

    VERSIONS = Versions(0, 2, flexible=1)

    flag: bool = False
    label: str | None = wire("", nullable_since=1)
    count: Int32 = wire(7, until=1)
    dropped: Int64 = wire(0, since=2, ignorable=True)
    wanted: Int64 = wire(0, since=2)
    leaves: list[Leaf] | None = array(nullable_since=1)
    numbers: list[Int32] = array()
    words: list[str] = array()
    blob: bytes = b""
    ident: Uuid = NO_UUID
    small: UInt16 = 0
    large: UInt32 = 0
    real: Float64 = 0.0
    maybe: Leaf | None = wire(None, since=1)
    tagged: str | None = wire("x", since=1, tag=1)
    tagged_leaf: Leaf = struct(Leaf, since=1, tag=0)
    records: Records | None = None


VALUE = Tree(
    flag=True,
    label="ab",
    leaves=[Leaf(1), Leaf(2)],
    numbers=[-1, 258],
    words=["", "z"],
    blob=b"\x09",
    ident=bytes(range(16)),
    small=0xFFFF,
    large=0xFFFF_FFFE,
    real=1.5,
    records=b"RR",
)
IDENT = bytes(range(16)).hex()
PLAIN = (
    "01 0002 6162 00000007 00000002 0001 0002 00000002 ffffffff 00000102 00000002 0000 0001 7a"
    f" 00000001 09 {IDENT} ffff fffffffe 3ff8000000000000 00000002 5252"
)
FLEXIBLE = (
    "01 03 6162 00000007 03 0001 00 0002 00 03 ffffffff 00000102 03 01 02 7a"
    f" 02 09 {IDENT} ffff fffffffe 3ff8000000000000 ff 03 5252 00"
)
LATER = (
    "01 03 6162 0000000000000005 0000000000000006 03 0001 03 00 0002 00 00 03 ffffffff 00000102 03 01 02 7a"
    f" 02 09 {IDENT} ffff fffffffe 3ff8000000000000 01 0009 00 00 03 5252"
    " 02 00 04 0008 07 00 01 01 00"
)


def with_later() -> Tree:
    value = decoder(Tree, 0)(bytes.fromhex(PLAIN), 0)[0]
    assert value.leaves is not None
    value.dropped, value.wanted, value.leaves[0].end = 5, 6, 3
    value.maybe, value.tagged, value.tagged_leaf = Leaf(9), None, Leaf(8, 7)
    return value


@pytest.mark.parametrize(
    ("version", "value", "text"),
    [(0, VALUE, PLAIN), (1, VALUE, FLEXIBLE), (2, with_later(), LATER)],
    ids=["plain", "flexible", "later"],
)
def test_bytes_written_by_hand(version: int, value: Tree, text: str) -> None:
    """Each layout is what Kafka's protocol guide says, in both directions."""
    raw = bytes.fromhex(text)
    assert encoder(Tree, version)(value) == raw
    assert decoder(Tree, version)(raw, 0) == (value, len(raw))


def test_nulls() -> None:
    """Null is -1 in plain versions, zero in flexible ones, and -1 in the one byte before a structure."""
    value = Tree(label=None, leaves=None, records=None)
    raw = encoder(Tree, 1)(value)
    assert raw[1:2] == b"\0"
    assert decoder(Tree, 1)(raw, 0)[0] == value
    plain = encoder(Tree, 0)(Tree())
    assert plain.endswith(b"\xff\xff\xff\xff")


def test_records_are_views_of_the_frame() -> None:
    """Record bytes are not copied on the way in, nor handed out but as they were given on the way out."""
    frame = bytearray.fromhex(PLAIN)
    records = decoder(Tree, 0)(memoryview(frame), 0)[0].records
    assert isinstance(records, memoryview)
    assert records.obj is frame
    pieces: list[Any] = []
    parts_encoder(Tree, 0)(pieces.append, Tree(records=records))
    assert pieces[-1] is records


@dataclass(slots=True)
class Parts:
    VERSIONS = Versions(0, 0, flexible=0)

    records: RecordParts | None = None


def test_records_in_several_buffers() -> None:
    """A response may give records piece by piece; the wire shows one run of bytes."""
    assert encoder(Parts, 0)(Parts([b"ab", memoryview(b"cde")])) == b"\x06abcde\0"
    assert encoder(Parts, 0)(Parts([])) == b"\x01\0"
    assert encoder(Parts, 0)(Parts(None)) == b"\0\0"


@pytest.mark.parametrize(
    ("version", "value"),
    [
        (0, Tree(label=None)),
        (0, Tree(leaves=None)),
        (1, Tree(wanted=1)),
        (0, Tree(tagged_leaf=Leaf(3))),
        (0, Tree(tagged=None)),
        (2, Tree(count=8)),
        (1, Tree(leaves=[Leaf(1, end=1)])),
        (0, Tree(count=1 << 31)),
        (0, Tree(small=-1)),
        (0, Tree(ident=b"short")),
        (0, Tree(label="x" * 32_768)),
        (1, Tree(words=["\ud800"])),
    ],
    ids=lambda value: "" if isinstance(value, Tree) else str(value),
)
def test_what_a_version_cannot_carry_is_a_value_error(version: int, value: Tree) -> None:
    """Null where it is not allowed, a field that the version has not, a number or text that does not fit."""
    with pytest.raises(ValueError):
        encoder(Tree, version)(value)


def test_ignorable_fields_are_dropped() -> None:
    """An ignorable field is left out by versions that do not carry it."""
    assert decoder(Tree, 1)(encoder(Tree, 1)(Tree(dropped=5)), 0)[0].dropped == 0


def test_unknown_versions_are_a_value_error() -> None:
    """A version outside the declared range is a mistake of the caller, not of the peer."""
    for make in (decoder, encoder, source):
        with pytest.raises(ValueError):
            make(Tree, 3)


@pytest.mark.parametrize(
    ("version", "text", "complaint"),
    [
        (0, "01 ffff", "label is null"),
        (0, "01 7fff 61", "label beyond the end"),
        (0, "01 0001 ff" + "00" * 80, "can't decode byte"),
        (1, "01 81 80 02" + "61" * 40_000, "label too long"),
        (1, "01 ff ff ff ff ff 01", "varint longer"),
        (1, "01 ff ff ff ff 1f", "varint above"),
        (0, "01 0000 00000007 7fffffff" + "00" * 100, "leaves of 2147483647 elements"),
        (0, "01 0000 00000007 00000033" + "00" * 100, "leaves of 51 elements"),
        (0, "01 0000 00000007 00000000 0000001a" + "00" * 100, "numbers of 26 elements"),
        (0, "01 0000", "requires a buffer"),
        (1, "01", "out of range"),
    ],
)
def test_malformed_bytes_are_a_wire_error(version: int, text: str, complaint: str) -> None:
    """Each bound is checked before it is too late, and there is one error for all of them."""
    with pytest.raises(WireError, match=complaint):
        decoder(Tree, version)(bytes.fromhex(text), 0)


@dataclass(slots=True)
class Bare:
    VERSIONS = Versions(0, 1, flexible=1)

    leaves: list[Leaf] = array()
    state: Leaf = struct(Leaf, since=1, tag=0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("01 91 4e" + "0900" * 10_001, "10001 tagged fields"),
        ("01 01 00 05 0001 00", "tag 0 beyond"),
        ("01 01 00 04 0001 00 00", "tag 0 has another length"),
        ("01 01 00 02 0001 00", "tag 0 has another length"),
        ("01 01 09 05 0001", "tag 9 beyond"),
        ("01 02 00 03 0001 00", "out of range"),
        ("00 00", "leaves is null"),
    ],
)
def test_malformed_tags_are_a_wire_error(text: str, complaint: str) -> None:
    """A tagged section is bounded in count and in length, known tag or not."""
    with pytest.raises(WireError, match=complaint):
        decoder(Bare, 1)(bytes.fromhex(text), 0)


@dataclass(slots=True)
class Shadow:
    """Fields that are called as the machinery's own locals are."""

    VERSIONS = Versions(0, 1, flexible=1)

    buf: Int8 = 0
    pos: Int8 = 0
    end: Int8 = 0
    n: Int8 = 0
    upto: str = ""
    range: Int8 = 0
    item: list[str] = array()
    stop: str = wire("", since=1, tag=0)
    tag: str = wire("", since=1, tag=1)
    late: list[Int8] | None = array(since=1)


@pytest.mark.parametrize("version", [0, 1])
def test_fields_may_be_called_anything(version: int) -> None:
    """The names of fields and those of the compiler's locals do not meet."""
    value = Shadow(99, 98, 97, 96, "u", 95, ["i", "j"])
    if version:
        value.stop, value.tag, value.late = "s", "t", None
    raw = encoder(Shadow, version)(value)
    assert decoder(Shadow, version)(raw, 0) == (value, len(raw))


def test_null_is_not_an_empty_array() -> None:
    """A null array is not the default, so a version that does not carry the field refuses it."""
    assert encoder(Shadow, 0)(Shadow(late=[])) == bytes(11)
    with pytest.raises(ValueError):
        encoder(Shadow, 0)(Shadow(late=None))


def test_tags_may_come_in_any_order_and_unknown_ones_between() -> None:
    """Unknown tags, in the message and in what it holds, change nothing."""
    raw = bytes.fromhex("02 0005 01 07 01 aa 03 09 00 00 03 0001 00 0a 02 bbbb")
    assert decoder(Bare, 1)(raw, 0) == (Bare([Leaf(5)], Leaf(1)), len(raw))


def test_an_array_above_the_bound_is_refused_even_when_its_bytes_are_there() -> None:
    """A million elements is the bound, whatever the frame holds."""
    count = 1_000_001
    with pytest.raises(WireError):
        decoder(Bare, 0)(count.to_bytes(4, "big") + bytes(2 * count), 0)


def test_a_promised_count_allocates_nothing() -> None:
    """Counts and lengths are compared with the bytes that remain before anything is built."""
    raw = bytes.fromhex("01 0000 00000007 00000000 000f4240") + bytes(1000)
    decode = decoder(Tree, 0)
    tracemalloc.start()
    with pytest.raises(WireError, match="1000000 elements"):
        decode(raw, 0)
    _now, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000, "a byte for each element that was promised"


def test_tracebacks_show_the_compiled_text() -> None:
    """The generated function can be read in a traceback, at its line."""
    try:
        decoder(Tree, 0)(b"\x01\x7f\xff", 0)
    except WireError as error:
        shown = "".join(traceback.format_exception(error))
    assert "<decode Tree v0>" in shown
    assert "raise WireError('label beyond the end')" in shown


def test_source_names_the_fields() -> None:
    """What is printed for a reader has the words of the declaration, and compiles."""
    text = source(Tree, 2)
    assert "def read_Tree(buf, pos, end):" in text
    assert "def write_Tree(out, value):" in text
    compile(text, "shown", "exec")


def test_declarations_that_make_no_sense_are_refused() -> None:
    """A field without a default, an unknown annotation, and a tag in a version without tags are
    TypeErrors."""

    @dataclass(slots=True)
    class TaggedTooSoon:
        VERSIONS = Versions(0, 0)

        number: Int8 = wire(0, tag=0)

    @dataclass(slots=True)
    class Naked:
        VERSIONS = Versions(0, 0)

        number: bool

    for kind in (TaggedTooSoon, Naked):
        with pytest.raises(TypeError):
            encoder(kind, 0)
    with pytest.raises(TypeError):
        wire_type(complex)
