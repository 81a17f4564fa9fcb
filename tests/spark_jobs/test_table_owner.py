"""Whose a table is: killed in its first start a pipeline starts again, and a checkpoint that would overwrite rows is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.table_owner import OWNER_FILE, TableOwned, claim_table
from tests.spark_jobs.first_start import FirstStart

pytestmark = pytest.mark.timeout(600)
Claim = Callable[[str], None]


@pytest.fixture
def claim(spark: Any, tmp_path: Path) -> Claim:
    """By the checkpoint of that name."""
    return lambda checkpoint: claim_table(spark, str(tmp_path / "table"), str(tmp_path / checkpoint))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def with_rows(claim: Claim, table: Path) -> None:
    """The table of the checkpoint "mine", and its first batch."""
    claim("mine")
    (table.parent / "mine" / "offsets").mkdir()
    (table / "topic=t").mkdir()
    claim("mine")


def test_after_a_kill_anywhere(spark: Any, first_start: FirstStart) -> None:
    """At every call to the file system of a first start: the same checkpoint is taken, and from then on no other."""
    names = [record.name.split("-", 1)[1] for record in first_start.records]
    assert {"create-_millrace_checkpoint.new", "rename-_millrace_checkpoint", "rename-metadata"} <= set(names)
    for record in first_start.records:
        first_start.go_back(record)
        claim_table(spark, str(first_start.table), str(first_start.checkpoint))
        claim_table(spark, str(first_start.table), str(first_start.checkpoint))
        with pytest.raises(TableOwned, match="give each pipeline a table of its own"):
            claim_table(spark, str(first_start.table), str(first_start.lake / "other"))


def test_a_name_that_was_written_by_hand_is_taken(claim: Claim, table: Path) -> None:
    """As the refusal of rows of nobody says, with the end of line that editors write."""
    with_rows(claim, table)
    (table / OWNER_FILE).unlink()
    with pytest.raises(TableOwned) as refused:
        claim("mine")
    mark = str(refused.value).partition("write ")[2].partition(" into")[0]
    (table / f".{OWNER_FILE}.crc").unlink(missing_ok=True)
    (table / OWNER_FILE).write_text(f"{mark}\n")
    claim("mine")
    with pytest.raises(TableOwned, match="give each pipeline a table of its own"):
        claim("other")


def test_another_checkpoint_is_refused(claim: Claim, table: Path) -> None:
    """Before the first row as after it, and nothing is made for it."""
    claim("mine")
    with pytest.raises(TableOwned, match="give each pipeline a table of its own"):
        claim("other")
    with_rows(claim, table)
    with pytest.raises(TableOwned, match="give each pipeline a table of its own"):
        claim("other")
    assert not (table.parent / "other").exists()


@pytest.mark.parametrize("lost", ["mine", "mine/offsets"])
def test_a_checkpoint_that_is_gone_is_refused(claim: Claim, table: Path, lost: str) -> None:
    """The folder or what was in it: its numbers would begin again and overwrite rows."""
    with_rows(claim, table)
    shutil.rmtree(table.parent / lost)
    for _ in range(2):
        with pytest.raises(TableOwned, match="is gone"):
            claim("mine")


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_rows_of_nobody_are_refused(claim: Claim, table: Path, left: str) -> None:
    """Whose they are is not guessed; the message says how to tell."""
    with_rows(claim, table)
    (table / OWNER_FILE).unlink()
    if left == "an empty file":
        (table / OWNER_FILE).touch()
    with pytest.raises(TableOwned, match=r"does not say whose.* write file:\S+/mine into the file"):
        claim("mine")
    (table / OWNER_FILE).write_text(f"file:{table.parent}/mine")
    (table / f".{OWNER_FILE}.crc").unlink()
    claim("mine")


@pytest.mark.parametrize("left", ["an empty file", "a file without a checkpoint"])
def test_what_older_versions_left_when_killed(claim: Claim, table: Path, left: str) -> None:
    """They wrote the file in its place, and made the checkpoint's folder after it: no row was written, so it is as if it never ran."""
    table.mkdir()
    (table / OWNER_FILE).write_text("" if left == "an empty file" else f"file:{table.parent}/mine")
    claim("mine")
    assert (table / OWNER_FILE).read_text() == f"file:{table.parent}/mine"
    assert (table.parent / "mine").is_dir()
    with pytest.raises(TableOwned):
        claim("other")
