"""The vocabulary of message declarations, and how a declaration is read back as wire fields.

A declaration is a slotted dataclass whose fields stand in wire order; compile.py shows one. An annotation is
the wire type, the words given to `wire`, `array` and `struct` say in which versions and how:

    since, until     first and last version that carry the field (inclusive, as Kafka's tables have them)
    tag              the field lives in the tagged section, under this number; not written when it has its
                     default
    nullable_since   an annotation with `| None` may be null from this version on (all versions when not
                     given)
    ignorable        a value other than the default is dropped in silence by versions that do not carry the
                     field; without it, encoding such a value is a ValueError

Not here: code generation (compile*.py), meaning (handlers). Kept true: every field has a default, so that a
decoder can leave out what a version does not carry and a test can build a message from nothing.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, field, fields
from typing import Annotated, Any, TypeVar, Union

from millrace.protocol.dataclass import dataclass
from millrace.protocol.primitives import Buffer

T = TypeVar("T")

Int8 = Annotated[int, "int8"]
Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
UInt16 = Annotated[int, "uint16"]
UInt32 = Annotated[int, "uint32"]
Float64 = Annotated[float, "float64"]
Uuid = Annotated[bytes, "uuid"]  # the 16 raw bytes
Records = Annotated[Buffer, "records"]  # decoded as a view of the frame
RecordParts = Annotated[Buffer | Sequence[Buffer], "records"]  # the same; may be encoded from several buffers

NO_UUID = bytes(16)
NO_OPERATIONS = -(1 << 31)  # a bit field of permitted operations that was not asked for
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of one message: the first, the last, and the first flexible one (compact lengths and
    tags)."""

    first: int
    last: int
    flexible: int | None = None

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))


@dataclass(frozen=True, slots=True)
class Presence:
    """In which versions a field is on the wire, and where. See the module's docstring."""

    since: int = 0
    until: int | None = None
    tag: int | None = None
    nullable_since: int = 0
    ignorable: bool = False


def wire(
    default: T,
    *,
    since: int = 0,
    until: int | None = None,
    tag: int | None = None,
    nullable_since: int = 0,
    ignorable: bool = False,
) -> T:
    """A field with a constant default: a number, text, None, or a frozen structure.

    (The dataclass gets a `field`; the checker sees the default's type.)
    """
    words = {"wire": Presence(since, until, tag, nullable_since, ignorable)}
    return field(default=default, metadata=words)


def array(
    *,
    since: int = 0,
    until: int | None = None,
    tag: int | None = None,
    nullable_since: int = 0,
    ignorable: bool = False,
) -> list[Any]:
    """An array that is empty by default."""
    words = {"wire": Presence(since, until, tag, nullable_since, ignorable)}
    return field(default_factory=list, metadata=words)


def struct(
    default: Callable[[], T],
    *,
    since: int = 0,
    until: int | None = None,
    tag: int | None = None,
    nullable_since: int = 0,
    ignorable: bool = False,
) -> T:
    """A nested structure with its own defaults by default."""
    words = {"wire": Presence(since, until, tag, nullable_since, ignorable)}
    return field(default_factory=default, metadata=words)


@dataclass(frozen=True, slots=True)
class WireType:
    """What a field holds: a primitive's name, `struct` (of `structure`) or `array` (of `element`)."""

    kind: str
    structure: type[Any] | None = None
    element: WireType | None = None
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class WireField:
    """One field of a declaration, as the compiler sees it."""

    name: str
    type: WireType
    presence: Presence
    default: Any  # the value, for an array or structure a fresh one that is only compared with

    def is_in(self, version: int) -> bool:
        until = self.presence.until
        return self.presence.since <= version and (until is None or version <= until)

    def is_nullable(self, version: int) -> bool:
        return self.type.nullable and version >= self.presence.nullable_since


_fields_by_class: dict[type[Any], tuple[WireField, ...]] = {}


def wire_fields(cls: type[Any]) -> tuple[WireField, ...]:
    """The fields of a declaration, in wire order."""
    found = _fields_by_class.get(cls)
    if found is None:
        found = _fields_by_class[cls] = tuple(read_fields(cls))
    return found


def read_fields(cls: type[Any]) -> Iterator[WireField]:
    """In the order of declaration. Raises TypeError for a field without a default, or of no wire type."""
    hints = typing.get_type_hints(cls, include_extras=True)
    for declared in fields(cls):
        default = declared.default if declared.default is not MISSING else None
        if declared.default_factory is not MISSING:
            default = declared.default_factory()
        elif declared.default is MISSING:
            raise TypeError(f"{cls.__name__}.{declared.name} has no default")
        presence = declared.metadata.get("wire", Presence())
        yield WireField(declared.name, wire_type(hints[declared.name]), presence, default)


PLAIN: dict[Any, str] = {bool: "bool", str: "string", bytes: "bytes", float: "float64"}


def wire_type(hint: Any) -> WireType:
    """The wire type that an annotation names. Raises TypeError where it names none."""
    origin: Any = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Union or origin is types.UnionType:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        found = wire_type(inner)
        return WireType(found.kind, found.structure, found.element, nullable=True)
    if origin is Annotated:
        return WireType(arguments[1])
    if origin is list:
        return WireType("array", element=wire_type(arguments[0]))
    if hint in PLAIN:
        return WireType(PLAIN[hint])
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        return WireType("struct", structure=hint)
    raise TypeError(f"not a wire type: {hint!r}")
