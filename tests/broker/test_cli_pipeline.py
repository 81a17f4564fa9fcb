"""`millrace pipeline run` and the process it starts: its words, its end, and the signals handed on. A script stands for PySpark's interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Says what it was given, and runs until SIGTERM, or for a minute; its orderly end takes a while.
ORDERLY = 'trap "sleep 0.2; echo ended; exit 7" TERM\necho "$@"\nfor second in $(seq 60); do sleep 1 & wait; done'
HELPLESS = 'echo "$@"\nexec sleep 60'


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.touch(0o755)
    return path


def begin(interpreter: Path, script: str, *words: str) -> subprocess.Popen[str]:
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    command = [sys.executable, "-m", "millrace.broker", "pipeline", "run", "ingest", "--python", str(interpreter)]
    return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_words_and_exit_code_are_handed_on(interpreter: Path) -> None:
    """The pipeline's code is the command's."""
    started = begin(interpreter, 'echo "$@"; exit 3', "--config", "c.toml", "--once")
    assert started.communicate(timeout=30)[0] == "-m millrace.spark_jobs ingest --config c.toml --once\n"
    assert started.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_as_sigterm(interpreter: Path, number: int) -> None:
    """And the end is waited for."""
    with begin(interpreter, ORDERLY, "--config", "c.toml") as started:
        assert started.stdout is not None
        assert "ingest" in started.stdout.readline()
        started.send_signal(number)
        assert started.stdout.read() == "ended\n"
    assert started.returncode == 7


def test_an_end_by_a_signal_is_told_as_shells_tell_it(interpreter: Path) -> None:
    """128 and the signal's number, not 256 less it."""
    with begin(interpreter, HELPLESS, "--config", "c.toml") as started:
        assert started.stdout is not None
        assert "ingest" in started.stdout.readline()
        started.send_signal(signal.SIGTERM)
    assert started.returncode == 128 + signal.SIGTERM
