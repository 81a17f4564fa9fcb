"""What pipelines write: a partitioned Parquet table that any reader can scan without repeats.

Each micro-batch overwrites the partition folders `topic=/date=/batch=<its number>` and no others. A batch that is run again after a crash covers the
same offsets (Spark's offset log fixed them before the first try), so it replaces what the first try left and adds nothing. Files become visible
by rename when the batch's job commits; readers skip what is staged. The table remembers the checkpoint it belongs to, because batch
numbers of another checkpoint would overwrite other rows: a mismatch is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

PARTITION_COLUMNS = ("topic", "date", "batch")
OWNER_FILE = "_millrace_checkpoint"


class TableOwned(RuntimeError):
    """The table was written from another checkpoint."""


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


def claim_table(session: SparkSession, table_path: str, checkpoint: str) -> None:
    """Binds the table to the checkpoint, on the first run; raises TableOwned when it is another's."""
    java = session.sparkContext._jvm
    assert java is not None
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    owner_path = java.org.apache.hadoop.fs.Path(table_path, OWNER_FILE)
    checkpoint_path = java.org.apache.hadoop.fs.Path(checkpoint)
    files = owner_path.getFileSystem(configuration)
    mark = _qualified(checkpoint_path, configuration)
    if files.exists(owner_path):
        stream = files.open(owner_path)
        owner = java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        stream.close()
        if owner != mark:
            raise TableOwned(
                f"{table_path} is written by the checkpoint {owner}, not {mark}: give each pipeline a table of its own"
            )
        if not checkpoint_path.getFileSystem(configuration).exists(checkpoint_path):
            raise TableOwned(
                f"the checkpoint {mark} of {table_path} is gone: a new one would overwrite rows; give a new table path"
            )
        return
    out = files.create(owner_path, False)
    out.write(bytearray(mark.encode()))
    out.close()
    checkpoint_path.getFileSystem(configuration).mkdirs(checkpoint_path)


def _qualified(path: object, configuration: object) -> str:
    return str(path.getFileSystem(configuration).makeQualified(path).toString())  # type: ignore[attr-defined]
