"""The table that pipelines write: a batch replaces itself and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.spark_jobs.sinks import parquet_batches
from tests.spark_jobs.table import rows_of

COLUMNS = "topic string, date date, partition int, offset bigint, value binary"


def batch(spark: Any, topic: str, *offsets: int) -> Any:
    from datetime import date

    rows = [
        (topic, date(2026, 11, 21 + offset % 2), 0, offset, bytearray(b"%d" % offset)) for offset in offsets
    ]
    return spark.createDataFrame(rows, COLUMNS)


def test_a_batch_written_again_replaces_itself(spark: Any, tmp_path: Path) -> None:
    """The same number, the same offsets: other batches keep their rows, and nothing is there twice."""
    write = parquet_batches(str(tmp_path / "table"))
    write(batch(spark, "a", 0, 1), 0)
    write(batch(spark, "a", 2, 3), 1)
    write(batch(spark, "a", 2, 3), 1)
    assert rows_of(tmp_path / "table") == [("a", 0, offset, b"%d" % offset) for offset in range(4)]


def test_an_empty_batch_writes_nothing(spark: Any, tmp_path: Path) -> None:
    """And takes nothing away."""
    write = parquet_batches(str(tmp_path / "table"))
    write(batch(spark, "a", 0), 0)
    write(batch(spark, "a"), 1)
    assert rows_of(tmp_path / "table") == [("a", 0, 0, b"0")]
