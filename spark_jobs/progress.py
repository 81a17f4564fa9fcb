"""How far Spark is by the files of its checkpoint, and the files that make it go on from elsewhere. Pure.

Spark writes `offsets/N` before it runs batch N and `commits/N` after it. An entry of offsets is a line `v1`,
a line of settings and a line with the source's positions; a batch is told as done by its number alone, so a
batch that holds nothing can be put between two others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millrace.spark_jobs.binding import Offsets, by_topic
from millrace.spark_jobs.refusal import Refused

OFFSETS, COMMITS = "offsets", "commits"
QUERY_FILE = "metadata"  # the query's id
INITIAL_FILE = "sources/0/0"  # a zero byte, `v1`, and where the first batch begins; before it is planned
NO_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True)
class Progress:
    """`planned`: the newest batch that was written down, None before the first; `is_done`: it was finished,
    too."""

    planned: int | None
    is_done: bool

    @property
    def next_batch(self) -> int:
        """The number of the batch that Spark runs next, begun or not."""
        if self.planned is None:
            return 0
        return self.planned + 1 if self.is_done else self.planned

    @property
    def base(self) -> str:
        """The file whose positions the next batch begins at."""
        return f"{OFFSETS}/{self.next_batch - 1}" if self.next_batch else INITIAL_FILE

    @property
    def read_first(self) -> tuple[str, ...]:
        """What Spark reads when it starts."""
        if self.planned is None:
            return (QUERY_FILE, INITIAL_FILE)
        return (QUERY_FILE, INITIAL_FILE, f"{OFFSETS}/{self.planned}", f"{COMMITS}/{self.next_batch - 1}")

    def due(self, changing: int | None) -> tuple[int, int]:
        """Least and most of the batch that the table was given last; -1: none. `changing`: the batch of a
        change that is under way."""
        if changing is not None:
            return changing - 1, changing
        return self.next_batch - 1, -1 if self.planned is None else self.planned


def progress_of(offset_names: Sequence[str], commit_names: Sequence[str], checkpoint: str) -> Progress:
    """From the names in the two folders; raises Refused where files are missing among them."""
    planned, done = (max(batches_in(names), default=None) for names in (offset_names, commit_names))
    if planned is None and done is None:
        return Progress(None, False)
    if (
        planned is None
        or (done is not None and done > planned)
        or planned - (-1 if done is None else done) > 1
    ):
        raise Refused(
            f"the checkpoint {checkpoint} has lost files: the newest of {OFFSETS} is {planned}, of {COMMITS} "
            f"{done}; "
            "restore it from a copy, or begin with a new table and a new checkpoint"
        )
    return Progress(planned, planned == done)


def positions_in(text: str, name: str) -> Offsets:
    """Of an entry of offsets, or of the positions that the first batch began at. Raises Refused for what
    Spark does not write."""
    try:
        return by_topic(_last_line(text))
    except (IndexError, ValueError, AttributeError, TypeError):
        raise Refused(f"{name} is not what Spark 4.0 writes: restore the checkpoint from a copy") from None


def check_whole(text: str, name: str) -> None:
    """Raises Refused where a file of Spark's, of whichever kind, has lost its end."""
    try:
        _last_line(text)
    except (IndexError, ValueError):
        raise Refused(
            f"{name} is cut off, as a full disk or a loss of power leaves a file: put back checkpoint and "
            "table from copies of one moment, "
            "or begin with a new table and a new checkpoint"
        ) from None


def _last_line(text: str) -> Any:
    return json.loads(text.lstrip("\0").splitlines()[-1])


def moved_entry(entry: str, offsets: Offsets) -> str:
    """An entry of offsets with other positions."""
    return "\n".join([*entry.splitlines()[:-1], json.dumps(offsets, separators=(",", ":"))])


def batches_in(names: Sequence[str]) -> set[int]:
    """Their numbers, by the files that are called so; what is not whole is called by another name."""
    return {int(name) for name in names if name.isdecimal()}
