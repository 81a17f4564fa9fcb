"""Which checkpoints and tables belong together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millrace.spark_jobs.binding import Binding, TableMark
from millrace.spark_jobs.places import Places, check_places
from millrace.spark_jobs.refusal import Refused

BOUND = Binding("a", "k", "/c", "/t")
SIGNED, BY_HAND = TableMark("a", "/c"), TableMark("", "/c")
GOOD = Places("/c", "/t", BOUND, SIGNED, has_batches=True, has_rows=True)
NEW = Places("/c", "/t", None, None, has_batches=False, has_rows=False)


@pytest.mark.parametrize(
    "found",
    [
        GOOD,
        NEW,
        replace(NEW, binding=BOUND),  # killed between the two files
        replace(NEW, binding=BOUND, mark=SIGNED),  # killed before the first batch
        replace(NEW, mark=SIGNED),  # the checkpoint is gone, and nothing of it was ever written
        replace(GOOD, has_rows=False),  # all rows were deleted, the table was not
        replace(GOOD, binding=None, mark=BY_HAND),  # of an older version
        replace(GOOD, mark=BY_HAND),  # killed while it was taken over
        replace(GOOD, table="/moved", mark=BY_HAND),
        replace(GOOD, checkpoint="/moved", mark=TableMark("", "/moved")),
        replace(GOOD, written=None, due=(7, 7)),  # the table is of an older version
        replace(GOOD, written=6, due=(6, 7)),  # killed before the batch's rows
        replace(GOOD, written=7, due=(6, 7)),  # and behind them
        replace(GOOD, written=3, due=(6, 7), mark=BY_HAND),  # without the rows that were between
        replace(NEW, table="/c/t"),
        replace(NEW, checkpoint="/t_c"),
        replace(NEW, checkpoint="s3a://t/_c", table="s3a://t/"),
        replace(NEW, checkpoint="/t/_c"),
        replace(NEW, checkpoint="/t/.hidden/c"),
    ],
)
def test_what_belongs_together(found: Places) -> None:
    """A first start, one that was killed anywhere, a later one, and what somebody vouches for."""
    check_places(found)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(GOOD, mark=TableMark("b", "/other")), "/t is written by the checkpoint /other, not /c"),
        (replace(GOOD, mark=TableMark("", "/other")), "/t is written by the checkpoint /other, not /c"),
        (replace(GOOD, mark=None), "has rows and _millrace_checkpoint in it does not say whose"),
        (replace(NEW, has_rows=True), "has rows and _millrace_checkpoint in it does not say whose"),
        (replace(GOOD, binding=None), "has lost its file _millrace_binding"),
        (replace(GOOD, mark=TableMark("b", "/c")), "are of two pipelines"),
        (replace(GOOD, table="/new", mark=None, has_rows=False), "a new table takes a new checkpoint"),
        (replace(GOOD, table="/moved"), "if they were moved, write /c into the file _millrace_checkpoint"),
        (replace(GOOD, checkpoint="/copy", mark=TableMark("a", "/copy")), "the checkpoint /c writes the "
                                                                          "table /t"),
        (replace(GOOD, has_batches=False), "the checkpoint /c of /t is gone"),
        (replace(GOOD, mark=None, has_rows=False), "the table /t is gone, or was emptied"),
        (replace(GOOD, written=8, due=(6, 7)), "the checkpoint /c is older than the table /t, which has "
                                               "batch 8 where the checkpoint is at 7"),
        (replace(GOOD, written=8, due=(6, 7), mark=BY_HAND), "the checkpoint /c is older than the table /t"),
        (replace(GOOD, written=5, due=(6, 7)), "the table /t is older than the checkpoint /c, which is at "
                                               "batch 6 where the table has 5"),
        (replace(NEW, checkpoint="/t"), "the checkpoint /t is in the table /t, whose readers"),
        (replace(NEW, checkpoint="s3a://t/c", table="s3a://t/"), "whose readers would take its files for "
                                                                 "rows"),
        (replace(NEW, checkpoint="/t/c"), "give it a folder outside, or one whose name begins with _"),
    ],
)  # fmt: skip
def test_what_does_not(found: Places, said: str) -> None:
    """One sentence with the remedy in it."""
    with pytest.raises(Refused) as refused:
        check_places(found)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
