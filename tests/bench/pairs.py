"""What benchmarks ask for that measure in pairs of stretches, in a folder of their own."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.report import Row, exit_code, table

Measure = Callable[[Path, int, float], list[Row]]
"""Of a folder, a number of pairs, and the seconds of each stretch."""


def run_pairs(name: str, about: str, measure: Measure, window_s: float) -> int:
    """Prints the figures of tests.bench.`name`; its exit code."""
    parser = argparse.ArgumentParser(f"python -m tests.bench.{name}", description=about.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--window", type=float, default=window_s, help="seconds of each stretch")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=f"millrace-{name}-", dir="/var/tmp") as folder:
        rows = measure(Path(folder), given.pairs, given.window)
    print(table(rows))
    return exit_code(rows)
