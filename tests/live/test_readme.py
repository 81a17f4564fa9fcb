"""The README's first steps, as they stand there: its Python program against a broker, and the lines that it
says are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docker.pages import python_snippet
from tests.live import LiveBroker
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:9092"


def test_the_program_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    """On a broker as `make run` starts it but for its port, the delay of a first rebalance included: ten
    lines, the first and the last as told, and run again, as newcomers do, the next ten: it leaves no member
    behind whose session the second run would wait for in vain."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = python_snippet(readme)
    ((first, last),) = re.findall(r"^It prints `(.*?)` to `(.*?)`", readme, re.MULTILINE)
    with LiveBroker(tmp_path, {"group.initial.rebalance.delay.ms": "3000"}, wal="64MiB") as broker:
        assert program.count(ADDRESS) == 2
        words = [sys.executable, "-c", program.replace(ADDRESS, broker.address)]
        runs = [
            subprocess.run(
                words, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path
            )
            for _ in range(2)
        ]
    assert [done.returncode for done in runs] == [0, 0], runs
    once, again = (done.stdout.splitlines() for done in runs)
    assert (len(once), once[:1], once[-1:]) == (10, [first], [last]), runs
    assert again == [f"0 {10 + number} hello {number}" for number in range(10)], runs
