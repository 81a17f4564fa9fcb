"""A checkpoint and its table on a file system: killed at each step of a first start and of a change, the next start comes to the same end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.agreement import Policies, TopicState
from millrace.spark_jobs.binding import BINDING_FILE, TABLE_FILE
from millrace.spark_jobs.checkpoint import Checkpoint
from millrace.spark_jobs.files import Files
from millrace.spark_jobs.lease import Lease
from millrace.spark_jobs.refusal import Refused
from tests.spark_jobs.first_start import FirstStart

pytestmark = pytest.mark.timeout(600)
A = TopicState("A", {0: 0}, {0: 50})
B = TopicState("B", {0: 2}, {0: 50})


class Killed(Exception):
    """In place of the end of the process."""


class DyingFiles(Files):
    """Dies before the change of that number."""

    def __init__(self, session: Any, dies_at: int) -> None:
        super().__init__(session)
        self._left = dies_at

    def _step(self) -> None:
        if not self._left:
            raise Killed
        self._left -= 1

    def write_whole(self, path: str, text: str) -> None:
        self._step()
        super().write_whole(path, text)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)


class Lake:
    """A table and a checkpoint as Spark leaves them with batch 1 done and batch 2 begun, of the topic a."""

    def __init__(self, session: Any, folder: Path) -> None:
        self.folder, self.table, self.checkpoint = folder, folder / "table", folder / "checkpoint"
        self.session = session

    def open(self, files: Files | None = None, table: str = "table") -> Checkpoint:
        opened = Checkpoint(files or Files(self.session), str(self.checkpoint), str(self.folder / table))
        opened.claim("cluster")
        return opened

    def fill(self) -> None:
        self.open().agree({"a": A}, frozenset(), Policies())
        for batch, name in ((0, "offsets"), (1, "offsets"), (2, "offsets"), (0, "commits"), (1, "commits")):
            path = self.checkpoint / name / str(batch)
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                f'v1\n{{"of":{batch}}}' + (f'\n{{"a":{{"0":{10 * batch + 10}}}}}' if name == "offsets" else "")
            )
            (path.parent / f".{batch}.crc").write_bytes(b"what Hadoop has of it")
        for batch in (0, 1, 2):
            rows = self.table / "topic=a" / "date=2026-11-24" / f"batch={batch}"
            rows.mkdir(parents=True)
            (rows / "part.parquet").touch()

    def batches(self) -> list[str]:
        return sorted(path.parent.name for path in self.table.glob("topic=*/date=*/batch=*/part.parquet"))

    def state(self) -> dict[str, str]:
        """All files but the empty ones; the identity is drawn at each first start."""
        found = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: path.read_text() for name, path in sorted(found.items()) if not name.endswith((".new", ".crc"))}


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def test_killed_anywhere_in_a_first_start(spark: Any, first_start: FirstStart) -> None:
    """At every call to the file system: the same checkpoint is taken, and from then on no other, and no other table."""
    names = [record.name.split("-", 1)[1] for record in first_start.records]
    assert {f"rename-{BINDING_FILE}", f"rename-{TABLE_FILE}", "rename-metadata"} <= set(names)
    cluster_id = json.loads((first_start.checkpoint / BINDING_FILE).read_text().partition("\n")[2])["cluster_id"]
    files = Files(spark)

    def claim(table: str, checkpoint: str) -> None:
        Checkpoint(files, str(first_start.lake / checkpoint), str(first_start.lake / table)).claim(cluster_id)

    for record in first_start.records:
        first_start.go_back(record)
        for _ in range(2):
            claim("table", "checkpoint")
        with pytest.raises(Refused, match="give each pipeline a table of its own"):
            claim("table", "other")
        with pytest.raises(Refused, match="a new table takes a new checkpoint"):
            claim("other", "checkpoint")


def test_killed_anywhere_in_a_change(lake: Lake, spark: Any) -> None:
    """Of the topics: the rows of the batch that was begun are gone, Spark goes on behind a batch that holds nothing, whatever was left."""
    lake.fill()
    filled = lake.folder.parent / "filled"
    shutil.copytree(lake.folder, filled)
    wanted = {"b": B}
    kills = 0
    while True:
        try:
            lake.open(DyingFiles(spark, kills)).agree(wanted, frozenset(), Policies())
        except Killed:
            kills += 1
            lake.open().agree(wanted, frozenset(), Policies())
        else:
            break
        after = lake.state()
        assert lake.batches() == ["batch=0", "batch=1"]
        assert after["checkpoint/offsets/2"] == 'v1\n{"of":2}\n{"b":{"0":2}}'
        assert after["checkpoint/commits/2"] == 'v1\n{"of":1}'
        assert not (lake.checkpoint / "offsets" / ".2.crc").exists(), "Spark would find that it does not fit"
        bound = json.loads(after[f"checkpoint/{BINDING_FILE}"].partition("\n")[2])
        assert (bound["change"], list(bound["topics"]), list(bound["parked"])) == (None, ["b"], ["a"])
        assert bound["parked"]["a"]["offsets"] == {"0": 20}, "the batch that was begun is not counted"
        shutil.rmtree(lake.folder)
        shutil.copytree(filled, lake.folder)
    assert kills == 5


def test_a_start_without_a_change_writes_nothing(lake: Lake, spark: Any) -> None:
    """And takes no rows away: Spark runs the batch again that was begun."""
    lake.fill()
    before = lake.state()
    lake.open(DyingFiles(spark, 0)).agree({"a": A}, frozenset(), Policies())
    assert lake.state() == before


def test_a_refusal_changes_nothing(lake: Lake, spark: Any) -> None:
    """Neither of the places nor of the topics nor of the cluster."""
    lake.fill()
    before = lake.state()
    with pytest.raises(Refused, match="created anew"):
        lake.open().agree({"a": TopicState("A2", {0: 0}, {0: 0})}, frozenset(), Policies())
    with pytest.raises(Refused, match="is of the cluster cluster, and the brokers are of other"):
        Checkpoint(Files(spark), str(lake.checkpoint), str(lake.table)).claim("other")
    with pytest.raises(Refused, match="a new table takes a new checkpoint"):
        lake.open(table="new")
    assert lake.state() == before
    assert not (lake.folder / "new").exists()


def test_a_table_of_an_older_version_is_taken_over(lake: Lake) -> None:
    """It names its checkpoint by a bare path, which may also be written by hand."""
    lake.fill()
    (lake.checkpoint / BINDING_FILE).unlink()
    (lake.table / TABLE_FILE).write_text(f"file:{lake.checkpoint}\n")
    lake.open().agree({"a": A}, frozenset(), Policies())
    assert (lake.checkpoint / BINDING_FILE).exists()
    assert (lake.table / TABLE_FILE).read_text().startswith("millrace-pipeline 1 ")
    (lake.checkpoint / BINDING_FILE).unlink()
    with pytest.raises(Refused, match=f"has lost its file {BINDING_FILE}"):
        lake.open()


@pytest.mark.parametrize("name", [f"checkpoint/{BINDING_FILE}", f"table/{TABLE_FILE}"])
def test_half_a_file(lake: Lake, name: str) -> None:
    """Is refused by its name, and what is whole beside it (killed between two renames) is taken."""
    lake.fill()
    path = lake.folder / name
    text = path.read_text()
    path.write_text(text[:-5])
    with pytest.raises(Refused, match=f"{name} is damaged"):
        lake.open()
    path.unlink()
    (path.parent / f"{path.name}.new").write_text(text)
    lake.open()


def test_a_second_driver_is_kept_out(lake: Lake) -> None:
    """Until the first has given its lease back."""
    lake.fill()
    place = lake.open().path
    first, second = Lease(lake.session, place), Lease(lake.session, place)
    first.take(lambda: False)
    with pytest.raises(Refused, match="another driver runs with the checkpoint"):
        second.take(lambda: False, wait_s=0)
    first.give_back()
    second.take(lambda: False, wait_s=0)
    second.give_back()
