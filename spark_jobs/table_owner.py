"""Whose a table is: a file in it names the one checkpoint that writes it.

Batch numbers of another checkpoint, or of the same one begun anew, would overwrite rows: both are refused. Killed anywhere in its first start,
a pipeline starts again: the checkpoint's folder is there before the file, the file is there whole or not at all, and Spark writes down a batch
before its rows. So rows without a name, and rows whose checkpoint has no batches, are never what a kill leaves.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from millrace.spark_jobs.files import Files
from millrace.spark_jobs.sinks import PARTITION_COLUMNS

OWNER_FILE = "_millrace_checkpoint"
BATCHES = "offsets"  # Spark's folder in a checkpoint, made before the first batch is written down


class TableOwned(RuntimeError):
    """The table's rows are another checkpoint's, or of one that is gone."""


def claim_table(session: SparkSession, table_path: str, checkpoint: str) -> None:
    """Binds the table to the checkpoint, on the first run; raises TableOwned where rows could be overwritten."""
    files = Files(session)
    mark, owner_file = files.full_name(checkpoint), files.below(table_path, OWNER_FILE)
    # An empty file is as none: versions that wrote it in place left it when killed.
    owner = files.text(owner_file).strip()
    if owner:
        _refuse_other(table_path, owner, mark)
    if any(name.startswith(f"{PARTITION_COLUMNS[0]}=") for name in files.names(table_path)):
        if not owner:
            raise TableOwned(
                f"{table_path} has rows and {OWNER_FILE} in it does not say whose: "
                f"give a new table path, or write {mark} into the file (and remove .{OWNER_FILE}.crc beside it) if they are this checkpoint's"
            )
        if not files.exists(files.below(checkpoint, BATCHES)):
            raise TableOwned(
                f"the checkpoint {mark} of {table_path} is gone: a new one would overwrite rows; give a new table path"
            )
    files.make_folder(checkpoint)
    if not owner:
        files.write_whole(owner_file, mark)
        _refuse_other(table_path, files.text(owner_file).strip(), mark)


def _refuse_other(table_path: str, owner: str, mark: str) -> None:
    if owner != mark:
        raise TableOwned(
            f"{table_path} is written by the checkpoint {owner}, not {mark}: give each pipeline a table of its own"
        )
