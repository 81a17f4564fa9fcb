"""What the pipeline's table holds of a topic, as any reader of Parquet sees it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.demo.digest import mark_of
from tests.demo.reading import Reading

COLUMNS = ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
ROWS = 2000
NO_TIME = -1


def table_digests(lake: Path, topics: Sequence[str]) -> list[str]:
    """Of each topic's rows, by partition and offset; a topic with a row that is there twice says so
    instead."""
    ends: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for topic, partition, offset in _rows(lake, COLUMNS[:3]):
        ends[topic][partition] = max(ends[topic].get(partition, 0), offset + 1)
    readings = {topic: Reading(known) for topic, known in ends.items()}
    for topic, partition, offset, time_ms, kind, key, value, headers in _rows(lake, COLUMNS):
        named = [(header["key"], header["value"]) for header in headers or []]
        mark = mark_of(key, value, NO_TIME if kind else time_ms, named)
        readings[topic].add(partition, offset, mark, len(value))
    return [_told(reading) for reading in readings.values()]


def _told(reading: Reading) -> str:
    twice, missing = reading.repeats + reading.changed, reading.total - reading.digest.count
    return (
        f"{reading.digest} with {twice} rows twice and {missing} missing"
        if twice or missing
        else str(reading.digest)
    )


def _rows(lake: Path, columns: list[str]) -> Any:
    import pyarrow
    import pyarrow.dataset as datasets

    for batch in datasets.dataset(lake, partitioning="hive").to_batches(columns=columns, batch_size=ROWS):
        found = []
        for name in columns:
            column = batch.column(name)
            if name == "timestamp":
                column = column.cast(pyarrow.timestamp("ms", tz=column.type.tz)).cast(pyarrow.int64())
            found.append(column.to_pylist())
        yield from zip(*found, strict=True)
