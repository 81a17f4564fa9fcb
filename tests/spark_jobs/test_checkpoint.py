"""A checkpoint and its table on a file system: killed at each step of a first start and of a change, the next
start comes to the same end."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from millrace.spark_jobs.agreement import Policies, TopicState
from millrace.spark_jobs.binding import BATCHES, BINDING_FILE, TABLE_FILE
from millrace.spark_jobs.checkpoint import Checkpoint
from millrace.spark_jobs.claims import CLAIMS
from millrace.spark_jobs.files import Files
from millrace.spark_jobs.lease import Lease
from millrace.spark_jobs.processes import Process, process_of
from millrace.spark_jobs.refusal import Refused, Stopped
from tests.spark_jobs.first_start import FirstStart

A = TopicState("A", {0: 0}, {0: 50})
B = TopicState("B", {0: 2}, {0: 50})


class Killed(Exception):
    """In place of the end of the process."""


class DyingFiles(Files):
    """Dies before the change of that number."""

    def __init__(self, session: Any, dies_at: int) -> None:
        super().__init__(session)
        self.left = dies_at

    def _step(self) -> None:
        if not self.left:
            raise Killed
        self.left -= 1

    def write_whole(self, path: str, text: str) -> None:
        self._step()
        super().write_whole(path, text)

    def put(self, path: str, text: str) -> None:
        self._step()
        super().put(path, text)

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
                f'v1\n{{"of":{batch}}}'
                + (f'\n{{"a":{{"0":{10 * batch + 10}}}}}' if name == "offsets" else "")
            )
            (path.parent / f".{batch}.crc").write_bytes(b"what Hadoop has of it")
        for batch in (0, 1, 2):
            rows = self.table / "topic=a" / "date=2026-11-24" / f"batch={batch}"
            rows.mkdir(parents=True)
            (rows / "part.parquet").touch()
        (self.table / BATCHES).mkdir()
        (self.table / BATCHES / "2").touch()

    def notes(self) -> list[str]:
        return sorted(os.listdir(self.table / BATCHES))

    def batches(self) -> list[str]:
        return sorted(path.parent.name for path in self.table.glob("topic=*/date=*/batch=*/part.parquet"))

    def state(self) -> dict[str, str]:
        """All files but the empty ones; the identity is drawn at each first start."""
        found = {
            str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()
        }
        return {
            name: path.read_text()
            for name, path in sorted(found.items())
            if not name.endswith((".new", ".crc"))
        }


@pytest.fixture
def lake(spark: Any, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path / "lake")


def test_killed_anywhere_in_a_first_start(spark: Any, first_start: FirstStart) -> None:
    """At every call to the file system: the same checkpoint is taken, and from then on no other, and no other
    table."""
    names = [record.name.split("-", 1)[1] for record in first_start.records]
    assert {f"rename-{BINDING_FILE}", f"rename-{TABLE_FILE}", "rename-metadata"} <= set(names)
    cluster_id = json.loads((first_start.checkpoint / BINDING_FILE).read_text().partition("\n")[2])[
        "cluster_id"
    ]
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


@pytest.mark.parametrize("noted", ["1", "2"])
def test_killed_anywhere_in_a_change(lake: Lake, spark: Any, noted: str) -> None:
    """Of the topics: the rows of the batch that was begun are gone, Spark goes on behind a batch that holds
    nothing, whatever was left; and the table, which had been told of the batch or not yet, fits that."""
    lake.fill()
    (lake.table / BATCHES / "2").rename(lake.table / BATCHES / noted)
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
        lake.open()
        assert lake.notes() == ["2"]
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
    assert kills == {"1": 7, "2": 5}[noted]


@pytest.mark.parametrize("name", ["la[k]e", "{lake}", "l*ke", "l\\ake"])
def test_a_folder_that_is_called_like_a_pattern(lake: Lake, spark: Any, tmp_path: Path, name: str) -> None:
    """Is itself alone: the rows of its own table are taken back, and of no other."""
    named = Lake(spark, tmp_path / name)
    for each in (lake, named):
        each.fill()
    named.open().agree({"b": B}, frozenset(), Policies())
    assert named.batches() == ["batch=0", "batch=1"]
    assert lake.batches() == ["batch=0", "batch=1", "batch=2"]


def test_a_batch_whose_records_the_brokers_lost(lake: Lake) -> None:
    """Was begun and goes to 30, and the log ends at 25: it is refused, or taken back, and the records that
    there are are taken anew."""
    lake.fill()
    shorter = TopicState("A", {0: 0}, {0: 25})
    with pytest.raises(
        Refused, match="a-0 ends at 25, and 29 was read: the brokers have lost records: on_lost_records"
    ):
        lake.open().agree({"a": shorter}, frozenset(), Policies())
    agreed = lake.open().agree({"a": shorter}, frozenset(), Policies(on_lost_records="skip"))
    assert agreed.notes == [
        "a-0 ends at 25, and 29 was read: the brokers have lost records; going on from 20"
    ]
    assert lake.batches() == ["batch=0", "batch=1"]
    assert (lake.checkpoint / "offsets" / "2").read_text() == 'v1\n{"of":2}\n{"a":{"0":20}}'
    assert lake.open().agree({"a": shorter}, frozenset(), Policies()).change is None


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


@pytest.mark.parametrize("name", ["checkpoint", "table"])
def test_a_copy_from_another_time(lake: Lake, name: str) -> None:
    """Of one of the two: an older checkpoint would number batches anew, an older table lacks what was taken.
    Both from one moment go on."""
    lake.fill()
    copy = lake.folder.parent / "copy"
    shutil.copytree(lake.folder, copy)
    (lake.checkpoint / "commits" / "2").write_text("v1\n{}")
    later = lake.open()
    for batch in (3, 3, 4):
        (lake.checkpoint / "offsets" / str(batch)).write_text('v1\n{}\n{"a":{"0":50}}')
        later.note_batch(batch)
        assert lake.notes() == [str(batch)]
        (lake.checkpoint / "commits" / str(batch)).write_text("v1\n{}")
    lake.open()
    shutil.rmtree(lake.folder / name)
    shutil.copytree(copy / name, lake.folder / name)
    with pytest.raises(Refused, match=f"the {name} .* is older than the"):
        lake.open()
    (lake.table / TABLE_FILE).write_text(f"file:{lake.checkpoint}\n")  # somebody's word
    if name == "table":
        lake.open()
        lake.open()
        return
    with pytest.raises(Refused, match=f"the {name} .* is older than the"):
        lake.open()
    shutil.rmtree(lake.table)
    shutil.copytree(copy / "table", lake.table)
    lake.open()


def test_killed_or_refused_while_a_batch_is_noted(lake: Lake, spark: Any) -> None:
    """The older note is there, or both; the table fits the checkpoint, and one is left by the next try, of
    this driver or of another."""
    lake.fill()
    (lake.checkpoint / "commits" / "2").write_text("v1\n{}")
    (lake.checkpoint / "offsets" / "3").write_text('v1\n{}\n{"a":{"0":50}}')
    filled = lake.folder.parent / "filled"
    shutil.copytree(lake.folder, filled)
    for is_killed in (False, True):
        for step, left in enumerate((["2"], ["2", "3"])):
            opened = lake.open(files := DyingFiles(spark, step))
            with pytest.raises(Killed):
                opened.note_batch(3)
            assert lake.notes() == left
            files.left = 9
            (lake.open() if is_killed else opened).note_batch(3)
            assert lake.notes() == ["3"]
            shutil.rmtree(lake.folder)
            shutil.copytree(filled, lake.folder)


def test_two_pipelines_begin_with_one_table(lake: Lake, spark: Any) -> None:
    """At once: both found it new. The one that wrote its name into it first writes no batch."""

    class Late(Files):
        def write_whole(self, path: str, text: str) -> None:
            if path.endswith(TABLE_FILE):
                first.claim("cluster")
            super().write_whole(path, text)

    first = Checkpoint(Files(spark), str(lake.checkpoint), str(lake.table))
    second = Checkpoint(Late(spark), str(lake.folder / "other"), str(lake.table))
    second.claim("cluster")
    second.note_batch(0)
    with pytest.raises(Refused, match=r"was given to the checkpoint .*/other while .*/checkpoint wrote it"):
        first.note_batch(0)
    shutil.rmtree(lake.table)
    with pytest.raises(Refused, match="was removed, or emptied, while the pipeline ran"):
        second.note_batch(1)
    assert not lake.table.exists()


def test_spark_was_killed_before_it_planned_anything(lake: Lake, spark: Any) -> None:
    """It had drawn where to begin: that holds for the topics as they were then, as later positions do."""
    lake.open().agree({"a": A}, frozenset(), Policies())
    initial = lake.checkpoint / "sources" / "0" / "0"
    initial.parent.mkdir(parents=True)
    initial.write_text('\0v1\n{"a":{"0":30}}')
    anew = TopicState("A2", {0: 0}, {0: 80})
    with pytest.raises(Refused, match="a was deleted and created anew"):
        lake.open().agree({"a": anew}, frozenset(), Policies())
    with pytest.raises(Killed):
        lake.open(DyingFiles(spark, 1)).agree({"a": anew, "b": B}, frozenset(), Policies("restart"))
    assert initial.read_text() == '\0v1\n{"a":{"0":30}}'
    lake.open()
    assert initial.read_text() == '\0v1\n{"a":{"0":0},"b":{"0":2}}'


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


@pytest.mark.parametrize("name", ["metadata", "sources/0/0", "offsets/2", "commits/1"])
def test_half_a_file_of_spark_s(lake: Lake, name: str) -> None:
    """Is refused by its name, be it empty or a part; where it is not there Spark writes it."""
    lake.fill()
    path = lake.checkpoint / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in ("", "v1", '{"id":'):
        path.write_text(text)
        with pytest.raises(Refused, match=f"checkpoint/{name} is cut off, as a full disk or a loss of power"):
            lake.open()
    path.write_text('v1\n{"a":{"0":10}}')
    lake.open()


def test_a_second_driver_is_kept_out(lake: Lake) -> None:
    """Until the first has given its lease back. One on another machine of which nothing is heard is followed
    when its lease expires, and does nothing more. What claims are over is taken away."""
    lake.fill()
    files, place, said = Files(lake.session), lake.open().path, list[str]()
    first, second = (Lease(files, place, process_of(os.getpid())) for _ in range(2))
    far, last = (
        Lease(files, place, Process("far", 12)),
        Lease(files, place, Process("near", 13), expires_s=0.5),
    )

    def take(lease: Lease) -> None:
        lease.take(lambda: False, said.append, wait_s=0)

    take(first)
    with pytest.raises(
        Refused, match=rf"another driver runs with the checkpoint .*/checkpoint \(process {os.getpid()} on"
    ):
        take(second)
    first.give_back()
    take(second)
    second.give_back()
    take(far)
    take(last)
    assert said == [
        "waiting for up to 0.5 s whether the checkpoint's last driver still runs: process 12 on far"
    ]
    last.hold()
    with pytest.raises(Refused, match="another driver took the checkpoint"):
        far.hold()
    with pytest.raises(Stopped):
        second.take(lambda: True, said.append)
    last.give_back()
    take(last)
    assert [
        path.name.partition("-")[0] for path in (lake.checkpoint / CLAIMS).iterdir() if path.suffix != ".crc"
    ] == [f"{last.epoch:08d}"]
