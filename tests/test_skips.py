"""What is skipped without leave fails the run, with one worker and with several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import is_allowed

ROOT = Path(__file__).parents[1]
SKIPPING = 'import pytest\n\ndef test_it():\n    pytest.skip("no jar")\n\ndef test_other():\n    pass\n'


@pytest.mark.parametrize("words", [[], ["-n", "2"]])
def test_a_skip_without_leave_fails_the_run(tmp_path: Path, words: list[str]) -> None:
    """It is named with its reason."""
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-c", os.devnull, "--rootdir", tmp_path,
        *words, tmp_path],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tests/skips.py): test_skipping.py::test_it: Skipped: no jar" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout


def test_what_is_allowed() -> None:
    """By test and reason together."""
    assert is_allowed("tests/live/test_wal_device.py::test_a[x]", "Skipped: needs root and losetup")
    assert not is_allowed("tests/live/test_wal_device.py::test_a[x]", "Skipped: no jar")
    assert not is_allowed("tests/kraft/test_kafka_tools.py::test_a", "Skipped: needs root and losetup")
