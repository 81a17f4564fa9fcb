"""Messages that are one crowded array: as many elements as asked for, each as small as its version can say
it.

Not here: assertions. Kept true: every array of a message is met, those within the elements of others, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millrace.protocol.apis import ALL
from millrace.protocol.compile_text import present
from millrace.protocol.declare import WireType

# The least value that is kept in memory as an object of its own, by kind; where none is, the least.
SMALL = {
    "string": "ab",
    "bytes": b"",
    "records": b"",
    "uuid": bytes(range(16)),
    "bool": True,
    "float64": 1.5,
    "int8": -100,
}
SMALL_NUMBER = 1000

Message = tuple[type[Any], int]


def versions_of(kind: type[Any]) -> list[int]:
    """The last, and the first of those with compact lengths: the densest ones."""
    versions = kind.VERSIONS
    first = versions.first if versions.flexible is None else max(versions.first, versions.flexible)
    return sorted({min(first, versions.last), versions.last})


KINDS = [kind for api in ALL for kind in (api.request_type, api.response_type)]
MESSAGES: list[Message] = [(kind, version) for kind in KINDS for version in versions_of(kind)]


def crowds(kind: type[Any], version: int, count: int) -> Iterator[tuple[str, Any]]:
    """(name of the array, message)."""
    return _crowds(kind, version, kind.VERSIONS.is_flexible(version), count)


def _crowds(kind: type[Any], version: int, flexible: bool, count: int) -> Iterator[tuple[str, Any]]:
    ordered, tagged = present(kind, version, flexible)
    for field in ordered + tagged:
        element = field.type.element
        if element is not None:
            yield field.name, kind(**{field.name: [_small(element)] * count})
            if element.structure is not None:
                for name, inner in _crowds(element.structure, version, flexible, count):
                    yield f"{field.name}.{name}", kind(**{field.name: [inner]})
        elif field.type.structure is not None:
            for name, inner in _crowds(field.type.structure, version, flexible, count):
                yield f"{field.name}.{name}", kind(**{field.name: inner})


def _small(element: WireType) -> Any:
    return element.structure() if element.structure is not None else SMALL.get(element.kind, SMALL_NUMBER)
