"""`millrace pipeline run` and the process it starts: its words, and that the two are one. A script stands for
PySpark's interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, next_line

# Says its process id, and runs until a signal, or for a minute; its orderly end takes a while.
ORDERLY = (
    'trap "sleep 0.2; echo ended; exit 7" TERM INT\necho $$\nfor second in $(seq 60); do sleep 1 & wait; done'
)


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.touch(0o755)
    return path


def begin(interpreter: Path, script: str, *words: str) -> subprocess.Popen[str]:
    interpreter.write_text(f"#!/bin/sh\n{script}\n")
    command = [
        sys.executable,
        "-m",
        "millrace.broker",
        "pipeline",
        "run",
        "ingest",
        "--python",
        str(interpreter),
    ]
    return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_words_and_exit_code_are_handed_on(interpreter: Path) -> None:
    """The pipeline's code is the command's."""
    started = begin(interpreter, 'echo "$@"; exit 3', "--config", "c.toml", "--once")
    assert (
        started.communicate(timeout=PATIENCE_S)[0] == "-m millrace.spark_jobs ingest --config c.toml --once\n"
    )
    assert started.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_pipeline(interpreter: Path, number: int) -> None:
    """The command is the pipeline: what ends one ends the other, and its orderly end is the command's."""
    with begin(interpreter, ORDERLY, "--config", "c.toml") as started:
        assert started.stdout is not None
        assert next_line(started.stdout) == f"{started.pid}\n"
        started.send_signal(number)
        assert started.stdout.read() == "ended\n"
    assert started.returncode == 7


def test_a_killed_command_leaves_no_pipeline(interpreter: Path) -> None:
    """Nothing goes on writing when the command is killed: its output is closed, for nobody has it."""
    with begin(interpreter, "echo $$\nexec sleep 600", "--config", "c.toml") as started:
        assert started.stdout is not None
        assert next_line(started.stdout) == f"{started.pid}\n"
        started.kill()
        assert next_line(started.stdout) == ""
    assert started.returncode == -signal.SIGKILL


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    """Is one sentence, and 2."""
    words = ["pipeline", "run", "ingest", "--config", "c.toml", "--python", str(tmp_path / "none")]
    done = subprocess.run(
        [sys.executable, "-m", "millrace.broker", *words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"millrace: --python {tmp_path}/none: No such file or directory\n",
    )
