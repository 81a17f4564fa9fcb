"""Records from JSON lines: what `millrace dev --seed FILE` and `Broker.seed` write.

    {"topic": "orders", "value": {"id": 1}, "key": "a", "headers": {"h": "x"}, "partition": 0, "timestamp": 1700000000000}

All but the topic may be left out. Text is UTF-8, null is null, all else of a value or a key is JSON. Blank lines are left out. Records of a
partition keep their order, and go in batches of at most RECORDS_A_BATCH and about BATCH_BYTES.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millrace.protocol.records import Record as WireRecord
from millrace.testing.operations import Conversation, now_ms, partitions_of, place_of, write_batch

RECORDS_A_BATCH = 1_000
BATCH_BYTES = 512 << 10
FIELDS = frozenset(("topic", "value", "key", "headers", "partition", "timestamp"))


@dataclass(frozen=True, slots=True)
class SeedRecord:
    topic: str
    record: WireRecord
    partition: int | None


@dataclass(slots=True)
class Waiting:
    records: list[WireRecord] = field(default_factory=list)
    size_bytes: int = 0


def read_seed(lines: Iterable[str]) -> list[SeedRecord]:
    """ValueError names the line, by its number from 1, and what is wrong with it."""
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_read(json.loads(line)))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    return found


def _read(fields: Any) -> SeedRecord:
    if not isinstance(fields, dict):
        raise ValueError("is no JSON object")
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise ValueError(f"has unknown fields {', '.join(unknown)}; known are {', '.join(sorted(FIELDS))}")
    topic, partition, timestamp = fields.get("topic"), fields.get("partition"), fields.get("timestamp")
    headers = fields.get("headers", {})
    if not isinstance(topic, str) or not topic:
        raise ValueError('has no "topic"')
    for name, number in (("partition", partition), ("timestamp", timestamp)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
            raise ValueError(f'"{name}" is no whole number from 0 on')
    if not isinstance(headers, dict):
        raise ValueError('"headers" is no JSON object')
    pairs = tuple((name.encode(), _bytes_of(text)) for name, text in headers.items())
    time_ms = now_ms() if timestamp is None else timestamp
    return SeedRecord(
        topic, WireRecord(_bytes_of(fields.get("key")), _bytes_of(fields.get("value")), time_ms, pairs), partition
    )


def _bytes_of(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()


def write_seed(seed: Iterable[SeedRecord]) -> Conversation[int]:
    """Makes the topics that there are not; gives how many records were written."""
    places: dict[str, list[int]] = {}
    waiting: dict[tuple[str, int], Waiting] = {}
    count = 0
    for each in seed:
        if each.topic not in places:
            indexes = yield from partitions_of(each.topic, creates=True)
            assert indexes is not None
            places[each.topic] = indexes
        index = place_of(each.record.key, places[each.topic]) if each.partition is None else each.partition
        queue = waiting.setdefault((each.topic, index), Waiting())
        size_bytes = len(each.record.key or b"") + len(each.record.value or b"")
        is_full = len(queue.records) == RECORDS_A_BATCH or queue.size_bytes + size_bytes > BATCH_BYTES
        if queue.records and is_full:
            yield from write_batch(each.topic, index, queue.records)
            queue = waiting[each.topic, index] = Waiting()
        queue.records.append(each.record)
        queue.size_bytes += size_bytes
        count += 1
    for (topic, index), queue in waiting.items():
        yield from write_batch(topic, index, queue.records)
    return count
