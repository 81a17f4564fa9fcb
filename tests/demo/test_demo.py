"""What the demo judges, in short and without Spark: that it did what it tells of."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.report import exit_code, table
from tests.demo.__main__ import CLIENTS, Demo, at_least
from tests.demo.victim import kill_between_batches

MEGABYTES = 4


def test_too_little_is_no_demo(tmp_path: Path) -> None:
    """Both clients' records come back from caches and, after a restart, from objects; the same run is a failure where it had to be 1 GB."""
    demo, topics = Demo(tmp_path), [f"short-{client}" for client in CLIENTS]
    with demo.broker:
        produced = demo.produce("short", topics, MEGABYTES, MEGABYTES, kills=False)
        demo.read("short", topics, produced)
        assert exit_code(demo.rows) == 0, table(demo.rows)
        cold = next(row for row in demo.rows if row.what == "short: of it from objects")
        assert cold.is_met
        demo.check("short", produced, produced[::-1], "")
    assert exit_code(demo.rows) == 1
    assert exit_code([at_least("short: produced", MEGABYTES, 1000, "MB")]) == 1


WORKER = """
import pathlib, sys, time
commits = pathlib.Path(sys.argv[1]) / "commits"
commits.mkdir(parents=True)
for batch in range(int(sys.argv[2])):
    (commits / f".{batch}.crc").touch()
    (commits / str(batch)).touch()
time.sleep(float(sys.argv[3]))
(commits / "ended").touch()
"""


def worker(checkpoint: Path, batches: int, lingers_s: float) -> int | None:
    command = [sys.executable, "-c", WORKER, str(checkpoint), str(batches), str(lingers_s)]
    return kill_between_batches(command, checkpoint, 3.0 if lingers_s and not batches else 60.0)


def test_a_pipeline_is_killed_in_the_middle_of_its_work(tmp_path: Path) -> None:
    """After a batch, before its end; one that had ended, or has done nothing yet, was not."""
    assert worker(tmp_path / "works", 1, 3600) == 1
    assert not (tmp_path / "works" / "commits" / "ended").exists()
    assert worker(tmp_path / "idles", 0, 3600) is None
    assert worker(tmp_path / "ends", 0, 0) is None
