"""Records from JSON lines: what `millrace dev --seed FILE` and `Broker.seed` write.

    {"topic": "orders", "value": {"id": 1}, "key": "a", "headers": {"h": "x"}, "partition": 0, "timestamp":
    1700000000000}

All but the topic may be left out. Text is UTF-8, null is null, all else of a value or a key is JSON. Blank
lines are left out. Records of a partition keep their order, and go in batches of at most RECORDS_A_BATCH and
about BATCH_BYTES. Lines are read as they are written: memory holds a batch a partition.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millrace.protocol.records import Record as WireRecord
from millrace.testing.errors import Refused
from millrace.testing.operations import Conversation, now_ms, partitions_of, place_of, write_batch

RECORDS_A_BATCH = 1_000
BATCH_BYTES = 512 << 10
NUMBERS_END = {"partition": 1 << 31, "timestamp": 1 << 63}
FIELDS = frozenset(("topic", "value", "key", "headers", "partition", "timestamp"))


@dataclass(frozen=True, slots=True)
class SeedRecord:
    line: int
    topic: str
    record: WireRecord
    partition: int | None


@dataclass(slots=True)
class Waiting:
    records: list[WireRecord] = field(default_factory=list)
    size_bytes: int = 0
    first_line: int = 0


def read_seed(lines: Iterable[str]) -> Iterator[SeedRecord]:
    """ValueError names the line, by its number from 1, and what is wrong with it."""
    number, each = 0, iter(lines)
    while True:
        number += 1
        try:
            line = next(each, None)
            if line is None:
                return
            text = line.removeprefix("\ufeff") if number == 1 else line  # as Windows marks UTF-8
            record = _read(number, json.loads(text)) if text.strip() else None
        except UnicodeDecodeError:
            raise ValueError(f"line {number} or near it: is not UTF-8") from None
        except UnicodeEncodeError:
            raise ValueError(f"line {number}: holds half a letter (an escape \\ud800 to \\udfff)") from None
        except RecursionError:
            raise ValueError(f"line {number}: is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if record is not None:
            yield record


def _read(line: int, fields: Any) -> SeedRecord:
    if not isinstance(fields, dict):
        raise ValueError("is no JSON object")
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise ValueError(f"has unknown fields {', '.join(unknown)}; known are {', '.join(sorted(FIELDS))}")
    topic, partition, timestamp = fields.get("topic"), fields.get("partition"), fields.get("timestamp")
    headers = fields.get("headers", {})
    if not isinstance(topic, str) or not topic:
        raise ValueError('has no "topic"')
    topic.encode()
    for name, end in NUMBERS_END.items():
        number = fields.get(name)
        if number is not None and (type(number) is not int or not 0 <= number < end):
            raise ValueError(f'"{name}" is no whole number from 0 to {end - 1}')
    if not isinstance(headers, dict):
        raise ValueError('"headers" is no JSON object')
    pairs = tuple((name.encode(), _bytes_of(text)) for name, text in headers.items())
    time_ms = now_ms() if timestamp is None else timestamp
    return SeedRecord(
        line,
        topic,
        WireRecord(_bytes_of(fields.get("key")), _bytes_of(fields.get("value")), time_ms, pairs),
        partition,
    )


def _bytes_of(value: Any) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()


def write_seed(seed: Iterable[SeedRecord]) -> Conversation[int]:
    """Makes the topics that there are not; gives how many records were written. Refused names the line,
    too."""
    places: dict[str, list[int]] = {}
    waiting: dict[tuple[str, int], Waiting] = {}
    count = 0
    for each in seed:
        if each.topic not in places:
            places[each.topic] = yield from _places_of(each)
        index = place_of(each.record.key, places[each.topic]) if each.partition is None else each.partition
        queue = waiting.setdefault((each.topic, index), Waiting())
        size_bytes = len(each.record.key or b"") + len(each.record.value or b"")
        is_full = len(queue.records) == RECORDS_A_BATCH or queue.size_bytes + size_bytes > BATCH_BYTES
        if queue.records and is_full:
            yield from _write(each.topic, index, queue)
            queue = waiting[each.topic, index] = Waiting()
        queue.first_line = queue.first_line or each.line
        queue.records.append(each.record)
        queue.size_bytes += size_bytes
        count += 1
    for (topic, index), queue in waiting.items():
        yield from _write(topic, index, queue)
    return count


def _places_of(first: SeedRecord) -> Conversation[list[int]]:
    try:
        indexes = yield from partitions_of(first.topic, creates=True)
    except Refused as error:
        raise error.at(f"line {first.line}") from None
    assert indexes is not None
    return indexes


def _write(topic: str, index: int, queue: Waiting) -> Conversation[None]:
    try:
        yield from write_batch(topic, index, queue.records)
    except Refused as error:
        raise error.at(f"records from line {queue.first_line} on") from None
