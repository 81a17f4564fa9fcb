"""The examples run as they are, as far as their libraries are installed here; all of them do in `make test-wheel`."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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
    "confluent_orders": (("confluent_kafka",), (*PYTEST, "--rootdir", ".", ".")),
    "fastapi_aiokafka": (("fastapi", "httpx", "aiokafka"), (*PYTEST, "--rootdir", ".", ".")),
    "faststream_orders": (("faststream", "aiokafka"), (*PYTEST, "--rootdir", ".", ".")),
    "unittest_orders": (("kafka",), (sys.executable, "-m", "unittest", "-q")),
}
ELSEWHERE = {
    "spark_streaming",
    "kafkajs_orders",
    "java_orders",
}  # tests/spark_jobs runs the first, make test-wheel the others


def run_example(name: str, words: tuple[str, ...], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        words,
        cwd=EXAMPLES / name,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_an_example_passes(name: str) -> None:
    """As its reader would run it, in its own folder."""
    libraries, words = CASES[name]
    missing = [library for library in libraries if find_spec(library) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    run_example(name, words)


def test_each_example_is_run_somewhere() -> None:
    """A folder that nobody runs is not an example."""
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__"} == CASES.keys() | ELSEWHERE
