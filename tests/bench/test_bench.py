"""`make bench` in short, as a process: every part runs and makes its rows, and a missed row is an exit code.
No figure is judged."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tests.bench.rest import Effort
from tests.bench.targets import KNOWN, Targets, is_kept

ROOT = Path(__file__).parents[2]
AT_LEAST = ("of_device_percent", "requests_a_second", "tail_percent")
ANY = [f"{field.name}={0 if field.name in AT_LEAST else 'inf'}" for field in fields(Targets)]
ROWS = [
    *("ready, first start", "ready, with data", "after kill -9", "idle memory"),
    *("produce, 64 KiB, acks=all", "of the device, median of pairs", "of the device with no broker up"),
    *("p99 at 16 in flight", "CPU a request of 64 KiB", "of it uploads", "the rest", "memory"),
    *("CPU a request of 4 KiB", "CPU a request of 16 KiB", "CPU a request of 32 KiB"),
    *("produce, 1 record, 50 connections", "CPU a request of one record", "p50, p99"),
    *("p99 of acks=all at 1 MB/s", "p50, p99.9"),
    *("tail fetch beside 64 KiB batches", "behind", "CPU a batch in and out"),
    *("tail fetch beside single records", "behind", "CPU a batch in and out"),
    "CPU a tail fetch",
    *("ready, 40 idle partitions", "after kill -9", "CPU of a core when idle"),
]


def bench(folder: Path, only: str, targets: list[str]) -> tuple[int, dict[str, str], list[str]]:
    """Exit code, the verdict of each row by its name, and the names in order; each row's figure is a number
    and its unit."""
    words = [word for target in targets for word in ("--target", target)]
    command = [
        sys.executable,
        "-m",
        "tests.bench.bench",
        "--short",
        "--folder",
        str(folder),
        "--only",
        only,
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    head, _, *lines = done.stdout.splitlines()[2:]
    starts = [head.index(word) for word in ("what", "figure", "beside it", "target")]
    names, verdicts = [], {}
    for line in lines:
        what, figure = line[: starts[1]].strip(), line[starts[1] : starts[2]]
        assert re.match(r"-?[\d,.]+(?= )", figure), line
        names.append(what)
        verdicts[what] = re.sub(r"^.*? {2,}", "", line[starts[3] :]) if len(line) > starts[3] else ""
    return done.returncode, verdicts, names


def test_every_part_of_the_bench_runs(tmp_path: Path) -> None:
    """Held to targets that anything meets: all rows are there, each with a number, and the process ends
    well."""
    code, verdicts, names = bench(tmp_path / "bench", "", ANY)
    assert names == ROWS
    assert code == 0, verdicts
    assert {*verdicts.values()} == {"", "met"}
    assert {*KNOWN} <= {*names}


def test_a_row_that_misses_its_target_ends_the_bench_with_1(tmp_path: Path) -> None:
    """Also one that docs/PERFORMANCE.md tells of, which has a mark of its own; others are as they were."""
    code, verdicts, _ = bench(tmp_path / "bench", "sizes", [*ANY, "request_us=0"])
    assert code == 1
    assert verdicts == {
        "CPU a request of 4 KiB": "MISSED",
        "CPU a request of 16 KiB": "MISSED",
        "CPU a request of 32 KiB": "MISSED, as docs/PERFORMANCE.md says",
    }


def test_two_versions_are_measured_by_turns(tmp_path: Path) -> None:
    """This checkout beside itself: a row for each load with the ratio of both; CPU that may not grow at all
    is missed, and ends it with 1."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.paired",
        "--base",
        str(ROOT),
        "--short",
        "--pairs",
        "1",
        "--most",
        "0",
    ]
    done = subprocess.run(
        [*command, "--only", "cpu", "--folder", str(tmp_path / "paired")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    _, _, *rows = done.stdout.splitlines()
    assert len(rows) == 2, done.stdout
    for row in rows:
        assert re.search(r"^CPU a request, \S+ +\d+\.\d{3} x .* MISSED$", row), row


@pytest.mark.parametrize(
    ("written_bytes", "cpu_s", "is_rest"), [(4096, 0.01, True), (8 << 20, 0.01, False), (0, 0.2, False)]
)
def test_a_broker_that_uploads_does_not_rest(written_bytes: int, cpu_s: float, is_rest: bool) -> None:
    """Neither while it writes nor while it sums bytes."""
    assert Effort(10.25, 1000 + written_bytes, 3 + cpu_s).is_rest(Effort(10, 1000, 3)) is is_rest


@pytest.mark.parametrize(
    ("value", "device", "verdict"),
    [(9.9, 1.0, True), (9.9, 70.0, True), (10.0, 9.9, False), (35.0, 1.1, False), (35.0, 10.0, None)],
)
def test_what_the_disk_gives_to_nobody_is_not_judged(
    value: float, device: float, verdict: bool | None
) -> None:
    """A disk that is merely slower than usual excuses nothing."""
    assert is_kept(value, 10, device) is verdict
