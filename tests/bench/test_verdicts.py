"""Benchmarks that miss a target end with an exit code: short forms of each, and the run of them all."""

from __future__ import annotations

import pytest

from millrace.wal.config import ObjectWalSettings
from tests.bench import metadata_bytes, object_wal, partitions, storage
from tests.bench.cluster import End, row_of_stops, rows_of_kills, rows_of_moves
from tests.bench.recovery import rows_of
from tests.bench.report import Row, exit_code


@pytest.mark.parametrize(("verdicts", "code"), [([None, True], 0), ([True, False, None], 1), ([], 0)])
def test_a_missed_target_is_an_exit_code(verdicts: list[bool | None], code: int) -> None:
    """Whatever else was met; figures without a target say nothing."""
    assert exit_code(Row("x", "1", is_met=is_met) for is_met in verdicts) == code


def test_a_known_miss_is_a_miss() -> None:
    """It has a mark of its own and the same exit code; met, it is like any other."""
    missed, met = (Row("x", "1", "", "2", is_met, is_known=True) for is_met in (False, True))
    assert missed.verdict == "MISSED, as docs/PERFORMANCE.md says"
    assert met.verdict == "met"
    assert exit_code([met, missed]) == 1


def test_one_failure_fails_them_all_and_stops_none(capsys: pytest.CaptureFixture[str]) -> None:
    """All are run, in their order, also behind one that failed; the end says which."""
    asked: list[str] = []

    def run(name: str) -> int:
        asked.append(name)
        return int(name == "recovery")

    assert storage.main([], run) == 1
    assert asked == list(storage.PARTS)
    said = capsys.readouterr().out
    assert "[3/5] recovery" in said
    assert [line.split()[0] for line in said.splitlines() if "FAILED" in line] == ["recovery"]
    assert storage.main(["cost", "object_wal"], run) == 0
    assert storage.main(["costs"], run) == 2


@pytest.mark.parametrize(
    ("interval_ms", "requests", "is_met"), [(0, 49.0, True), (0, 103.0, False), (100, 49.0, False)]
)
def test_an_object_wal_that_asks_too_often_misses(interval_ms: int, requests: float, is_met: bool) -> None:
    """Latencies as they should be, and more requests than age, interval and bytes allow."""
    allowed = object_wal.allowed_requests(4096 * 50, ObjectWalSettings(batch_interval_ms=interval_ms))
    line = object_wal.line("x", [0.06] * 100, [0.06] * 100, requests, allowed, 4096)
    assert (line.is_met, "MISSED" in line.text) == (is_met, not is_met)
    assert object_wal.show([line]) == int(not is_met)


class Recovered:
    """What a broker shows of a recovery."""

    ready_seconds = 1.0

    def __init__(self, flush_s: float, peak_mib: int) -> None:
        self._flush_s, self._peak_mib = flush_s, peak_mib

    def metrics(self) -> dict[str, float]:
        seconds = {"open": 0.1, "read": 0.5, "flush": self._flush_s, "close": 0.1}
        return {
            f'millrace_storage_recovery_seconds{{phase="{phase}"}}': value for phase, value in seconds.items()
        }

    def peak_memory_bytes(self) -> int:
        return self._peak_mib << 20


@pytest.mark.parametrize(
    ("full_share", "flush_s", "peak_mib", "missed"),
    [
        (0.97, 1.0, 200, []),
        (0.33, 1.0, 200, ["x: WAL at the crash"]),
        (0.97, 9.0, 200, ["x: recovered and committed"]),
        (0.97, 1.0, 260, ["x: memory at most"]),
    ],
)
def test_every_figure_of_a_recovery_has_a_verdict(
    full_share: float, flush_s: float, peak_mib: int, missed: list[str]
) -> None:
    """A ring that was not full, a recovery that took long, a process that grew."""
    rows = rows_of(Recovered(flush_s, peak_mib), "x", full_share, 1 << 30, 1.0, 256)  # type: ignore[arg-type]
    assert all(row.is_met is not None for row in rows)
    assert [row.what for row in rows if not row.is_met] == missed


def test_every_figure_of_metadata_has_a_verdict() -> None:
    """At a size that takes a second; the fixed part of a few partitions weighs more there."""
    rows = metadata_bytes.measure(20, 20)
    assert len(rows) == 15
    assert all(row.is_met is not None and row.target for row in rows)


def test_every_figure_of_a_cluster_has_a_verdict() -> None:
    """Moves by median and p99, the worst round of stops and of kills, and the part of a kill that comes once
    the broker is fenced."""
    rows = rows_of_moves([0.4, *[0.05] * 39], "")
    assert [(row.what, row.is_met) for row in rows] == [("moved, median", True), ("moved, p99", False)]
    stops = [End(0.3, None, 0.0), End(0.6, None, 0.0)]
    assert [row_of_stops(some, 1_000, "").is_met for some in (stops, stops[:1])] == [False, True]
    kills = [End(4.0, 1.0, 5e8), End(4.9, 2.1, 5e8)]
    assert [row.is_met for row in rows_of_kills(kills, "500 MB", "", 0.5)] == [False, True]
    assert [row.is_met for row in rows_of_kills(kills[:1], "500 MB", "", 0.5)] == [True, True]


def test_every_bound_of_many_partitions_has_a_verdict() -> None:
    """A commit that grew with the partitions, a start and an election that took long."""
    small = partitions.Size(1_000, 500.0, 1_000.0, 500.0, 50e6, 1.0, 1.0, 2.0)
    large = partitions.Size(100_000, 300.0, 1_600.0, 500.0, 450e6, 5.5, 4.0, 6.0)
    rows = partitions.rows_of([small, large])
    assert [row.what.strip() for row in rows if row.is_met is False] == [
        "100,000 partitions: CPU a commit",
        "start after a stop",
        "election",
    ]
