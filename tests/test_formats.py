"""docs/formats against the code: what a page lays out is what is written, record by record, field by field,
key by key.

The tables are read as a stranger would read them: a decoder made of nothing but the page reads what the
code's own encoder wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import pytest

from millrace.broker.identity.binding import MARKER_KEY
from millrace.broker.identity.claim_format import CLAIM_HEADER_BYTES, claim_key
from millrace.broker.partitions import cold_producers, epochs, meta_stream, producers, segments, time_index
from millrace.kraft.bucket import layout as bucket_layout
from millrace.kraft.bucket.layout import PieceName
from millrace.kraft.image.delta import FOLDS
from millrace.kraft.image.records import WRITTEN_VERSIONS, ValueWriter
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.declare import WireField, WireType, wire_fields
from millrace.protocol.metadata_records import METADATA_RECORDS
from millrace.protocol.stream_records import STREAM_RECORDS, CommittedObjectRecord, MadeObject
from millrace.runtime.disk.lock_keeper import ID_BYTES
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects import composite, keys
from millrace.s3stream.objects import format as object_format
from millrace.wal import record
from millrace.wal.block import layout as block_layout
from millrace.wal.block.claim import CLAIM_BYTES
from millrace.wal.object import layout as object_layout
from tests.pages import PageReader, page, rows_under

TYPES = {
    "int8": "i8",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
    "uuid": "uuid",
    "bytes": "bytes",
    "string": "string",
}


def drawn_type(wire_type: WireType) -> str:
    if wire_type.kind == "array":
        assert wire_type.element is not None
        return f"{drawn_type(wire_type.element)}[]"
    return wire_type.structure.__name__ if wire_type.structure else TYPES[wire_type.kind]


def declared(field: WireField) -> tuple[str, str, str, str]:
    tag = field.presence.tag
    tagged = ("", "") if tag is None else (str(tag), str(field.default))
    return field.name, drawn_type(field.type), *tagged


def heading_of(cls: Any) -> str:
    return f"### {cls.KEY} {cls.__name__.removesuffix('Record')}"


@pytest.mark.parametrize("cls", [*STREAM_RECORDS, MadeObject], ids=lambda cls: cls.__name__)
def test_each_record_has_its_table(cls: Any) -> None:
    """Field by field in wire order: name, type, tag, and what stands for a tag that is not there."""
    heading = heading_of(cls) if hasattr(cls, "KEY") else f"#### {cls.__name__}"
    rows = rows_under(heading, page("metadata_log.md"))
    assert [(row["field"], row["type"], row.get("tag", ""), row.get("absent", "")) for row in rows] == [
        declared(field) for field in wire_fields(cls)
    ]
    assert all(version == 0 for version in getattr(cls, "VERSIONS", ())), (
        "the page says that there is no other"
    )


def test_the_page_has_no_other_records() -> None:
    """No table for a record that the code does not have, and no key under another name."""
    found = re.findall(r"^### (\d+ \w+)$", page("metadata_log.md"), re.MULTILINE)
    assert [f"### {heading}" for heading in found] == [heading_of(cls) for cls in STREAM_RECORDS]
    overview = rows_under("## Records of ours, at a glance", page("metadata_log.md"))
    assert [(row["key"], row["record"]) for row in overview] == [
        (str(cls.KEY), cls.__name__.removesuffix("Record")) for cls in STREAM_RECORDS
    ]


def test_kafkas_records_are_those_that_are_understood() -> None:
    """Every one that a start takes, with the version that is written."""
    rows = rows_under("### Kafka's records", page("metadata_log.md"))
    assert [(row["key"], f"{row['record']}Record", row["version"]) for row in rows] == [
        (str(cls.KEY), cls.__name__, str(WRITTEN_VERSIONS.get(cls, 0)))
        for cls in METADATA_RECORDS
        if cls in FOLDS
    ]


def sample(cls: Any) -> Any:
    """A record none of whose fields has its default, each with another value."""
    values = {}
    for number, field in enumerate(wire_fields(cls), 3):
        values[field.name] = sample_value(field.type, number)
    return cls(**values)


def sample_value(wire_type: WireType, number: int) -> Any:
    if wire_type.kind == "array":
        assert wire_type.element is not None
        return [sample_value(wire_type.element, number + more) for more in range(2)]
    if wire_type.structure is not None:
        return sample(wire_type.structure)
    if wire_type.kind == "string":
        return f"text {number}"
    if wire_type.kind in ("uuid", "bytes"):
        return bytes(range(number, number + 16))
    return True if wire_type.kind == "bool" else number if wire_type.kind == "int8" else -(10**number)


def as_dict(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_dict(getattr(value, field.name)) for field in fields(value)}
    return [as_dict(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "written",
    [*(sample(cls) for cls in STREAM_RECORDS), CommittedObjectRecord(7)],
    ids=lambda one: type(one).__name__,
)
def test_a_stranger_reads_each_record_by_the_page(written: Any) -> None:
    """The bytes as the log has them, envelope included, are the fields that went in; tags that are absent
    have the values that the page gives."""
    reader = PageReader(ValueWriter().write(written))
    assert [reader.uvarint() for _ in range(4)] == [1, 20, 0, 1]  # frame, NoOpRecord, its version, one tag
    key, size_bytes = reader.uvarint(), reader.uvarint()
    assert len(reader.data) - reader.at == size_bytes
    assert (key, reader.uvarint()) == (written.KEY, 0)
    found = reader.structure(heading_of(type(written)))
    assert found == as_dict(written)
    assert reader.at == len(reader.data)


# What is drawn with offsets.

FIELD = re.compile(r"^\s*(?:\w+ +)?(\d+)\s+([iu]\d+|\d+ B)\s+\S")
SIZED = {
    "block_wal.md": [
        300,
        32,
        3 * ID_BYTES,
        16,
        CLAIM_BYTES,
        block_layout.BLOCK_HEADER_BYTES,
        record.RECORD_HEADER_BYTES,
    ],
    "object_wal.md": [object_layout.HEADER_BYTES - 4] * 2,
    "objects.md": [
        object_format.ENTRY_HEADER_BYTES,
        object_format.BLOCK_HEADER_BYTES,
        object_format.INDEX_HEADER_BYTES,
        object_format.ROW_BYTES,
        object_format.FOOTER_BYTES,
    ],
    "bucket.md": [CLAIM_HEADER_BYTES],
    "composite.md": [composite.LINKS_HEADER_BYTES, composite.LINK_BYTES],
    "partition_streams.md": [
        meta_stream._HEAD.size,
        meta_stream._VALUE.size,
        segments._SEGMENT.size,
        producers._PRODUCER.size,
        cold_producers._BLOCK.size,
        cold_producers._INDEX.size,
        time_index._HEAD.size,
    ],
}


def drawings(text: str) -> Iterator[list[tuple[int, int]]]:
    """Every structure that is drawn: (offset, bytes) of its fields; one begins where the offset is 0."""
    fields: list[tuple[int, int]] = []
    for code in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in code.split("\n"):
            match = FIELD.match(line)
            if match is None:
                continue
            offset, kind = int(match[1]), match[2]
            if offset == 0 and fields:
                yield fields
                fields = []
            fields.append((offset, int(kind[:-2]) if kind.endswith(" B") else int(kind[1:]) // 8))
    if fields:
        yield fields


@pytest.mark.parametrize("name", SIZED)
def test_what_is_drawn_adds_up(name: str) -> None:
    """Each field begins where the one before it ends, and the whole is as long as the code's."""
    found = list(drawings(page(name)))
    for drawn in found:
        for (offset, size), (following, _) in pairwise(drawn):
            assert offset + size == following, drawn
    assert [drawn[-1][0] + drawn[-1][1] for drawn in found] == SIZED[name]


def test_every_key_is_in_the_table() -> None:
    """Each key that the code makes is one row's and no other's, and each row is some key's."""
    patterns = {row["key"]: key_pattern(row["key"]) for row in rows_under("## Keys", page("bucket.md"))}
    cluster, node = "AAAAAAAAAAAAAAAAAAAAAQ", 3
    prefix = object_layout.log_prefix(cluster, node)
    made = {
        MARKER_KEY: "millrace-cluster",
        keys.object_key(cluster, ObjectId(42)): "{cluster}/objects/{spread}/{object}",
        object_layout.root_key(node): "millrace-wal-{node}",
        object_layout.object_key(prefix, object_layout.Place(7, 9)): "{cluster}/wal/{node}/{epoch}/{slot}",
        object_layout.claim_key(prefix, 7): "{cluster}/wal/{node}/{epoch}/claim",
        bucket_layout.piece_key(cluster, PieceName(5, 1, 0)): "{cluster}/metadata/log/{end}-{quorum}-{base}",
        bucket_layout.snapshot_key(cluster, SnapshotId(5, 1)): "{cluster}/metadata/snapshots/{end}-{quorum}",
        bucket_layout.newest_key(cluster): "{cluster}/metadata/newest",
        claim_key(cluster, node, 7): "{cluster}/owners/{series}/{number}",
        claim_key(cluster, METADATA_SERIES, 7): "{cluster}/owners/{series}/{number}",
        f"{MARKER_KEY}-test-{cluster}/condition": "millrace-cluster-test-{cluster}/{any}",
        "millrace-test-00ff/condition": "millrace-test-{hex}/{any}",
        "millrace-doctor-00ff/condition": "millrace-doctor-{hex}/{any}",
    }
    for key, row in made.items():
        assert [name for name, pattern in patterns.items() if pattern.fullmatch(key)] == [row], key
    assert set(made.values()) == set(patterns)
    assert keys.object_key(cluster, ObjectId(42)).endswith("/a2000000/42"), "the page's example"
    assert epochs._HEAD.size == 8, "u8 version, 3 zero, u32 count"


def key_pattern(key: str) -> re.Pattern[str]:
    parts = {
        "cluster": r"[\w-]{22}",
        "spread": r"[0-9a-f]{8}",
        "object": r"\d+",
        "node": r"\d+",
        "epoch": r"\d{20}",
        "slot": r"\d{20}",
        "end": r"\d{20}",
        "base": r"\d{20}",
        "quorum": r"\d{10}",
        "series": r"\d+|metadata",
        "number": r"\d{20}",
        "hex": r"[0-9a-f]+",
        "any": r".+",
    }
    return re.compile(re.sub(r"\{(\w+)\}", lambda match: f"(?:{parts[match[1]]})", key))
