"""Metadata records: round trips in every version, and what no two of them may share."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from millrace.protocol.compile import decoder, encoder
from millrace.protocol.control_records import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from millrace.protocol.declare import WireType, wire_fields
from millrace.protocol.metadata_records import METADATA_RECORDS
from millrace.protocol.stream_records import STREAM_RECORDS

RECORDS: tuple[Any, ...] = (*METADATA_RECORDS, *STREAM_RECORDS)
CONTROL: tuple[Any, ...] = (
    LeaderChangeMessage,
    SnapshotHeaderRecord,
    SnapshotFooterRecord,
    KRaftVersionRecord,
    VotersRecord,
)
SAMPLES: dict[str, Any] = {
    "bool": True,
    "int8": -3,
    "int16": 300,
    "uint16": 65_000,
    "int32": 70_000,
    "int64": -(1 << 40),
    "float64": 0.25,
    "string": "näme",
    "bytes": b"\x00\x01",
    "uuid": bytes(range(16)),
}


def sample(kind: WireType, version: int) -> Any:
    if kind.kind == "array":
        assert kind.element is not None
        return [sample(kind.element, version)]
    if kind.kind == "struct":
        assert kind.structure is not None
        return filled(kind.structure, version)
    return SAMPLES[kind.kind]


def filled(cls: type[Any], version: int) -> Any:
    """An instance with a telling value in every field that the version carries."""
    found = {field.name: sample(field.type, version) for field in wire_fields(cls) if field.is_in(version)}
    return cls(**found)


@pytest.mark.parametrize("cls", [*RECORDS, *CONTROL], ids=lambda cls: cls.__name__)
def test_round_trip(cls: Any) -> None:
    """Every version of every record comes back as it was written, empty and filled."""
    for version in cls.VERSIONS:
        for value in (cls(), filled(cls, version)):
            data = encoder(cls, version)(value)
            assert decoder(cls, version)(data, 0) == (value, len(data))


def test_keys_are_unique() -> None:
    """No two records share a number, and ours begin at 501."""
    keys = [cls.KEY for cls in RECORDS]
    assert len(set(keys)) == len(keys)
    assert all(cls.KEY >= 501 for cls in STREAM_RECORDS)
    assert all(cls.KEY < 501 for cls in METADATA_RECORDS)


def test_every_record_has_a_default_for_every_field() -> None:
    """A decoder may leave out what a version does not carry."""
    for cls in RECORDS:
        for field in dataclasses.fields(cls):
            has_default = (
                field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            )
            assert has_default, (cls, field.name)
