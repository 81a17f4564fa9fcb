"""A table as any reader of Parquet sees it."""

from __future__ import annotations

from pathlib import Path

Row = tuple[str, int, int, bytes | None]


def rows_of(table: Path) -> list[Row]:
    """(topic, partition, offset, value) of every row, in that order; what is there twice is given twice."""
    import pyarrow.dataset as datasets

    columns = ["topic", "partition", "offset", "value"]
    found = datasets.dataset(table, partitioning="hive").to_table(columns=columns).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)  # type: ignore[misc]
