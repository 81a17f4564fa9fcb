"""A sound request with some of its fields changed: doubled items, empty lists, nulls, edges of numbers, odd
names."""

from __future__ import annotations

import random
from dataclasses import is_dataclass, replace
from typing import Any

from millrace.protocol.declare import WireField, wire_fields
from tests.live.every_request import NAME
from tests.protocol.values import scalar

WORDS = (
    NAME,
    "",
    "x",
    "a b",
    "..",
    "__consumer_offsets",
    "__cluster_metadata",
    "é",
    "a" * 249,
    "a" * 300,
    "1",
    "-1",
    "range",
)


def changed(chance: random.Random, message: Any, version: int, rate: float) -> Any:
    """A copy in which each field that `version` carries is changed at that rate."""
    values = {}
    for field in wire_fields(type(message)):
        value = getattr(message, field.name)
        if field.is_in(version):
            value = _changed_field(chance, field, value, version, rate)
        values[field.name] = value
    return replace(message, **values)


def _changed_field(chance: random.Random, field: WireField, value: Any, version: int, rate: float) -> Any:
    if chance.random() >= rate:
        if isinstance(value, list):
            return [changed(chance, item, version, rate) if is_dataclass(item) else item for item in value]
        return changed(chance, value, version, rate) if is_dataclass(value) else value
    if field.type.kind in ("records", "struct"):
        return value
    if field.type.kind == "array":
        doubled = [*value, *[chance.choice(value)] * 2] if value else []
        return chance.choice((doubled, doubled, [], None if field.is_nullable(version) else []))
    if field.is_nullable(version) and chance.random() < 0.2:
        return None
    return chance.choice(WORDS) if field.type.kind == "string" else scalar(chance, field.type.kind)
