"""What pipelines write: a partitioned Parquet table that any reader can scan without repeats.

Each micro-batch overwrites the partition folders `topic=/date=/batch=<its number>` and no others. A batch
that is run again after a crash covers the same offsets (Spark's offset log fixed them before the first try),
so it replaces what the first try left and adds nothing. Files become visible by rename when the batch's job
commits; readers skip what is staged. Batch numbers mean something within one checkpoint only: see places.py.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PARTITION_COLUMNS = ("topic", "date", "batch")


def parquet_batches(table_path: str) -> Callable[[DataFrame, int], None]:
    """The function that `foreachBatch` calls."""

    def write_batch(frame: DataFrame, batch: int) -> None:
        (
            frame.withColumn("batch", F.lit(batch))
            .write.mode("overwrite")
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*PARTITION_COLUMNS)
            .parquet(table_path)
        )

    return write_batch
