"""One request for every version of its API: what a version does not carry is left out of a full one. And what
a response says, walked whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from millrace.protocol.declare import WireField, wire_fields


def fit(message: Any, version: int) -> Any:
    """A copy that `version` can carry."""
    found = {
        field.name: _fitted(field, getattr(message, field.name), version)
        for field in wire_fields(type(message))
    }
    return replace(message, **found)


def _fitted(field: WireField, value: Any, version: int) -> Any:
    if not field.is_in(version):
        return field.default
    if value is None and not field.is_nullable(version):
        return field.default
    if isinstance(value, list):
        return [fit(item, version) if is_dataclass(item) else item for item in value]
    return fit(value, version) if is_dataclass(value) else value


def codes_in(message: Any) -> Iterator[int]:
    """Every error code of a response, however deep, zeros too."""
    if isinstance(message, list):
        for item in message:
            yield from codes_in(item)
    elif is_dataclass(message):
        for field in fields(message):
            value = getattr(message, field.name)
            if field.name.endswith("error_code"):
                yield int(value)
            else:
                yield from codes_in(value)


def leaves_of(message: Any) -> Iterator[Any]:
    """Every value of a response that is no structure."""
    if isinstance(message, list):
        for item in message:
            yield from leaves_of(item)
    elif is_dataclass(message):
        for field in fields(message):
            yield from leaves_of(getattr(message, field.name))
    else:
        yield message
