"""What a checkpoint is bound to, as two small files name it: docs/formats/pipeline_binding.md draws them.
Pure.

The file in the checkpoint holds the cluster, the topics with their ids, and the positions of topics that were
taken out; the one in the table names the checkpoint. Both carry the pipeline's identity and a checksum.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from millrace.spark_jobs.refusal import Refused

BINDING_FILE = "_millrace_binding"  # in the checkpoint
TABLE_FILE = "_millrace_checkpoint"  # in the table
# in the table, a folder: a file, with nothing in it, is called as the batch whose rows came last
BATCHES = "_millrace_batches"
HEADER = "millrace-pipeline"
VERSION = 1
Offsets = dict[str, dict[int, int]]  # topic, partition, the next offset to take


@dataclass(frozen=True)
class BoundTopic:
    topic_id: str
    from_batch: int  # the first of the table's batches that holds this topic's records


@dataclass(frozen=True)
class ParkedTopic:
    """Was taken out of the topics; is gone on with when it is put in again."""

    topic_id: str
    from_batch: int
    offsets: dict[int, int]


@dataclass(frozen=True)
class Change:
    """Spark is to go on from these positions, after a batch of this number that holds nothing. Written down
    before it is made."""

    batch: int
    offsets: Offsets


@dataclass(frozen=True)
class Binding:
    identity: str
    cluster_id: str
    checkpoint: str
    table: str
    topics: dict[str, BoundTopic] = field(default_factory=dict)
    parked: dict[str, ParkedTopic] = field(default_factory=dict)
    change: Change | None = None


@dataclass(frozen=True)
class TableMark:
    """What the table says. `identity` is empty where the file is a bare path: written by hand, or by a
    version before this format."""

    identity: str
    checkpoint: str


def encode_binding(binding: Binding) -> str:
    return _sign(asdict(binding))


def decode_binding(text: str, name: str) -> Binding:
    """Raises Refused naming the file where it is not whole, or not of this version."""
    found = _open(text, name)
    try:
        change = found.pop("change")
        return Binding(
            **{key: found[key] for key in ("identity", "cluster_id", "checkpoint", "table")},
            topics={topic: BoundTopic(**bound) for topic, bound in found["topics"].items()},
            parked={
                topic: ParkedTopic(parked["topic_id"], parked["from_batch"], by_partition(parked["offsets"]))
                for topic, parked in found["parked"].items()
            },
            change=Change(change["batch"], by_topic(change["offsets"])) if change else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged(name) from None


def encode_mark(mark: TableMark) -> str:
    return _sign(asdict(mark))


def decode_mark(text: str, name: str) -> TableMark | None:
    """None where nothing is written; raises Refused where a signed one is not whole."""
    if not text.strip():
        return None
    if not text.startswith(HEADER):
        return TableMark("", text.strip())
    found = _open(text, name)
    try:
        return TableMark(**found)
    except TypeError:
        raise _damaged(name) from None


def by_topic(offsets: dict[str, dict[str, int]]) -> Offsets:
    """From JSON, whose names are texts."""
    return {topic: by_partition(positions) for topic, positions in offsets.items()}


def by_partition(positions: dict[str, int]) -> dict[int, int]:
    return {int(partition): int(position) for partition, position in positions.items()}


def _sign(document: dict[str, Any]) -> str:
    body = json.dumps(document, sort_keys=True, indent=1) + "\n"
    return f"{HEADER} {VERSION} {zlib.crc32(body.encode()):08x}\n{body}"


def _open(text: str, name: str) -> dict[str, Any]:
    head, _, body = text.partition("\n")
    words = head.split(" ")
    if len(words) == 3 and words[0] == HEADER and words[1].isdigit() and int(words[1]) > VERSION:
        raise Refused(f"{name} is of version {words[1]}, written by a later millrace: run that one")
    if words != [HEADER, str(VERSION), f"{zlib.crc32(body.encode()):08x}"]:
        raise _damaged(name)
    found: dict[str, Any] = json.loads(body)
    return found


def _damaged(name: str) -> Refused:
    return Refused(
        f"{name} is damaged: restore it from a copy of the folder, or begin with a new table and a new "
        "checkpoint"
    )
