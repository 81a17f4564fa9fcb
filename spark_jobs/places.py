"""Whether a checkpoint and a table belong together. Pure.

Batch numbers of another checkpoint, or of the same one begun anew, would overwrite rows; a table that is new
to a checkpoint would miss what the checkpoint has taken. Both are refused. A pipeline that was killed in its
first start starts again: the checkpoint's file is there before the table's, each is whole or not there, and
Spark writes down a batch before its rows.

The table says which batch was written to it last, so a copy of either folder from another time is seen:
behind an older checkpoint batches would be numbered anew, beside the rows of those that the table has, and an
older table lacks what the checkpoint has taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.spark_jobs.binding import BINDING_FILE, TABLE_FILE, Binding, TableMark
from millrace.spark_jobs.refusal import Refused

ANEW = "begin with a new table and a new checkpoint"


@dataclass(frozen=True)
class Places:
    """The two folders by their full names, and what is in them."""

    checkpoint: str
    table: str
    binding: Binding | None
    mark: TableMark | None
    has_batches: bool
    has_rows: bool
    written: int | None = None  # the batch whose rows the table was given last; None where it does not say
    due: tuple[int, int] = (-1, -1)  # by the checkpoint, least and most of what the table should say


def check_places(found: Places) -> None:
    """Raises Refused. A bare path in the table's file is somebody's word that the two belong together, and
    holds against the checkpoint's file."""
    refusal = (
        _of_the_folders(found)
        or _of_the_mark(found)
        or _of_the_binding(found)
        or _of_what_is_missing(found)
        or _of_the_batches(found)
    )
    if refusal:
        raise Refused(refusal)


def _of_the_folders(found: Places) -> str | None:
    """Readers of a table pass over what is called by a name with _ or . in front, and take every other file
    for rows."""
    table = found.table.rstrip("/")  # a bucket's root has one
    if f"{found.checkpoint}/".startswith(f"{table}/"):
        below = found.checkpoint[len(table) :].split("/")
        if not any(name.startswith(("_", ".")) for name in below):
            return (
                f"the checkpoint {found.checkpoint} is in the table {found.table}, whose readers would take "
                "its files for rows: "
                "give it a folder outside, or one whose name begins with _"
            )
    return None


def _by_hand(found: Places) -> str:
    return f"write {found.checkpoint} into the file {TABLE_FILE} in it"


def _of_the_mark(found: Places) -> str | None:
    if found.mark and found.mark.checkpoint != found.checkpoint:
        return (
            f"{found.table} is written by the checkpoint {found.mark.checkpoint}, not {found.checkpoint}: "
            f"give each pipeline a table of its own (if they were moved here, {_by_hand(found)})"
        )
    if found.has_rows and not found.mark:
        return (
            f"{found.table} has rows and {TABLE_FILE} in it does not say whose: "
            f"give a new table path, or {_by_hand(found)} if they are this checkpoint's"
        )
    return None


def _of_the_binding(found: Places) -> str | None:
    binding, mark = found.binding, found.mark
    if binding is None:
        if mark and mark.identity and found.has_batches:
            return (
                f"the checkpoint {found.checkpoint} has lost its file {BINDING_FILE}: restore it from a "
                f"copy, or {ANEW}"
            )
        return None
    if mark and mark.identity and mark.identity != binding.identity:
        return (
            f"the checkpoint {found.checkpoint} and the table {found.table} are of two pipelines, one of "
            f"them was replaced: {ANEW}"
        )
    if (binding.checkpoint, binding.table) != (found.checkpoint, found.table) and not (
        mark and not mark.identity
    ):
        return (
            f"the checkpoint {binding.checkpoint} writes the table {binding.table}; the configuration says "
            f"{found.checkpoint} and {found.table}: "
            f"a new table takes a new checkpoint (if they were moved, {_by_hand(found)})"
        )
    return None


def _of_what_is_missing(found: Places) -> str | None:
    if found.has_rows and not found.has_batches:
        return (
            f"the checkpoint {found.checkpoint} of {found.table} is gone: a new one would overwrite "
            "rows; "
            "give a new table path"
        )
    if found.has_batches and not found.mark:
        return (
            f"the table {found.table} is gone, or was emptied, and the checkpoint {found.checkpoint} goes on "
            "behind what it had: "
            f"give a new checkpoint, too (or {_by_hand(found)} to go on without those rows)"
        )
    return None


def _of_the_batches(found: Places) -> str | None:
    (least, most), by_hand = found.due, found.mark and not found.mark.identity
    if found.written is None:
        return None
    if found.written > most:
        return (
            f"the checkpoint {found.checkpoint} is older than the table {found.table}, which has batch "
            f"{found.written} where the checkpoint is "
            f"at {most}: put the newer one back, or both from one moment, or {ANEW}"
        )
    if found.written < least and not by_hand:
        return (
            f"the table {found.table} is older than the checkpoint {found.checkpoint}, which is at batch "
            f"{least} where the table has "
            f"{found.written}: put the newer one back, or both from one moment, or {ANEW} (or "
            f"{_by_hand(found)} to go on without those rows)"
        )
    return None
