"""The examples run as they are, as their reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.testing.workflow import run_steps, workflow_text

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "millrace.testing.plugin",
    "-p",
    "no:cacheprovider",
    "-c",
    "/dev/null",
)
CASES = {
    "confluent_orders": (*PYTEST, "--rootdir", ".", "."),
    "fastapi_aiokafka": (*PYTEST, "--rootdir", ".", "."),
    "faststream_orders": (*PYTEST, "--rootdir", ".", "."),
    "unittest_orders": (sys.executable, "-m", "unittest", "-q"),
}
# In tests/spark_jobs, tests/compat and, for it needs npm's registry, `make test-wheel`.
ELSEWHERE = {"spark_streaming", "java_orders", "kafkajs_orders"}


def run_example(name: str, words: tuple[str, ...], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        words,
        cwd=EXAMPLES / name,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_an_example_passes(name: str) -> None:
    """As its reader would run it, in its own folder."""
    run_example(name, CASES[name])


def test_each_example_is_run_somewhere() -> None:
    """A folder that nobody runs is not an example."""
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {
        "__pycache__"
    } == CASES.keys() | ELSEWHERE


def test_the_workflow_of_the_page_is_one() -> None:
    """What GitHub needs is there, and each step is one that `make test-wheel` runs or a runner's own."""
    install, test = run_steps(workflow_text())
    assert install.startswith("pip install -r requirements-dev.txt")
    assert test.startswith("pytest")
