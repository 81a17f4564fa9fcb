"""The wheel as a stranger uses it: `python -m tests.testing.wheel` (make test-wheel).

Builds the wheel from what is committed, installs it into a fresh environment beside pytest and client
libraries from the registry, and runs there the examples, two hundred tests with a topic each, one after the
other and by four workers, asynchronous tests, a Node client (npm) and a Java one (the jars of `make jars`)
through `millrace test`, a test run that is killed, a type checker over a test, and the steps of the workflow
that docs/testing.md gives, in an environment of their own. Some minutes, mostly pip's.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.testing.workflow import LINT, SHELL, run_steps, workflow_text

ROOT = Path(__file__).resolve().parents[2]
LIBS = ROOT / "tests" / "compat" / "java" / "libs"
PACKAGES = (
    "pytest",
    "pytest-xdist",
    "pytest-asyncio",
    "mypy",
    "kafka-python",
    "aiokafka",
    "confluent-kafka",
    "faststream[kafka]",
    "fastapi",
    "httpx",
)
PYTHON_EXAMPLES = ("confluent_orders", "fastapi_aiokafka", "faststream_orders")
END_S = 20.0

MANY = '''
import pytest

@pytest.mark.parametrize("number", range(200))
def test_topic(kafka, number):
    """The same names in each: whatever an earlier one left would be seen."""
    assert kafka.topics() == []
    kafka.create_topic("orders", partitions=1 + number % 3)
    kafka.produce("orders", str(number))
    kafka.produce("made-on-the-way", "x")
    assert [record.text for record in kafka.wait_for_records("orders", 1)] == [str(number)]
    with open("brokers", "a") as brokers:
        print(kafka.process.pid, file=brokers)
'''

ASYNCHRONOUS = """
import pytest
from aiokafka import AIOKafkaProducer

@pytest.mark.asyncio
async def test_publishing(kafka):
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"1")
    (record,) = await kafka.aio.wait_for_records("orders", 1)
    assert record.text == "1"
"""

HINTS = """
from typing import assert_type

from millrace.testing import AsyncBroker, Broker, Record, TopicPartition

def test_it(kafka: Broker) -> None:
    assert_type(kafka.wait_for_records("orders", 1), list[Record])
    assert_type(kafka.committed("billing"), dict[TopicPartition, int])
    assert_type(kafka.aio, AsyncBroker)
    kafka.nothing_of_this_name()  # type: ignore[attr-defined]
"""

KILLED = """
import os, signal

def test_kills_its_own_process(kafka):
    kafka.produce("orders", "x")
    print(kafka.process.pid, kafka.process._folder, file=open("left", "w"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Stranger:
    """A fresh environment in `folder`; `say` prints what passed, with its seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.projects = folder / "examples"  # away from this repository's settings of pytest
        self.wheels = folder / "wheels"

    def run(
        self, name: str, *words: str | Path, cwd: Path, env: dict[str, str] | None = None, code: int = 0
    ) -> str:
        began = time.monotonic()
        known = {name: text for name, text in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        done = subprocess.run(
            words, cwd=cwd, env={**known, **(env or {})}, capture_output=True, text=True, check=False
        )
        if done.returncode != code:
            sys.exit(f"{name}: exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
        return done.stdout

    def install(self) -> None:
        source = self.folder / "source"
        source.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "x", "-C", source], input=archive, check=True)
        shutil.copytree(source / "examples", self.projects)
        self.run("environment", sys.executable, "-m", "venv", self.folder / "venv", cwd=self.folder)
        pip = self.bin / "pip"
        self.run("wheel", pip, "wheel", "-q", "--no-deps", "-w", self.wheels, source, cwd=self.folder)
        (wheel,) = self.wheels.iterdir()
        self.run("pip install", pip, "install", "-q", wheel, *PACKAGES, cwd=self.folder)

    def examples(self) -> None:
        for name in PYTHON_EXAMPLES:
            out = self.run(name, self.bin / "pytest", "-q", cwd=self.projects / name)
            assert "passed" in out, out
        self.run(
            "unittest_orders",
            self.bin / "python",
            "-m",
            "unittest",
            "-q",
            cwd=self.projects / "unittest_orders",
        )

    def project(self, name: str, text: str) -> Path:
        """A folder with one file of tests."""
        folder = self.folder / name
        folder.mkdir()
        (folder / f"test_{name}.py").write_text(text)
        return folder

    def many(self) -> None:
        project = self.project("many", MANY)
        for name, words, count in (("200 tests", (), 1), ("200 tests, pytest -n 4", ("-n", "4"), 4)):
            out = self.run(name, self.bin / "pytest", "-q", *words, cwd=project)
            assert re.search(r"\b200 passed", out), out
            brokers = set((project / "brokers").read_text().split())
            assert len(brokers) == count, f"a broker a worker: {brokers}"
            left = [pid for pid in brokers if Path(f"/proc/{pid}").exists()]
            assert not left, f"brokers {left} are left"
            (project / "brokers").unlink()

    def asynchronous(self) -> None:
        out = self.run(
            "pytest-asyncio", self.bin / "pytest", "-q", cwd=self.project("asynchronous", ASYNCHRONOUS)
        )
        assert re.search(r"\b1 passed", out), out

    def hints(self) -> None:
        project = self.project("hints", HINTS)
        self.run("mypy --strict", self.bin / "mypy", "--strict", "test_hints.py", cwd=project)

    def killed(self) -> None:
        project = self.project("killed", KILLED)
        self.run("a run that is killed", self.bin / "pytest", "-q", cwd=project, code=-signal.SIGKILL)
        pid, folder = (project / "left").read_text().split()
        deadline = time.monotonic() + END_S
        while (Path(f"/proc/{pid}").exists() or Path(folder).exists()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{pid}").exists(), f"the broker {pid} is left"
        assert not Path(folder).exists(), f"{folder} is left"

    def node(self) -> None:
        project = self.projects / "kafkajs_orders"
        self.run("npm install", "npm", "install", "--silent", "--no-audit", "--no-fund", cwd=project)
        words = ("test", "--env", "KAFKA_BROKERS", "--", "npm", "test", "--silent")
        self.run("kafkajs", self.bin / "millrace", *words, cwd=project)

    def java(self) -> None:
        project = self.projects / "java_orders"
        words = ("test", "--topic", "orders:3", "--", "java", "-cp", f"{LIBS}/*", "Orders.java")
        assert "read 1" in self.run("java", self.bin / "millrace", *words, cwd=project)

    def lint_workflow(self) -> None:
        """With actionlint; skipped without Go, or where its registry has not the module."""
        if shutil.which("go") is None:
            print("actionlint: skipped, Go is not installed")
            return
        tools = self.folder / "tools"
        env = {**os.environ, "GOBIN": str(tools)}
        made = subprocess.run(["go", "install", LINT], env=env, capture_output=True, text=True, check=False)
        if made.returncode:
            print(f"actionlint: skipped, it is not to be had: {made.stderr[-500:]}")
            return
        self.run("actionlint", tools / "actionlint", "workflow.yml", cwd=self.project_of_workflow())

    def project_of_workflow(self) -> Path:
        """As it is checked out: an example, what it needs, and the workflow."""
        project = self.folder / "checkout"
        if not project.exists():
            shutil.copytree(self.projects / "confluent_orders", project)
            (wheel,) = self.wheels.iterdir()
            needed = (f"millrace-kafka @ {wheel.as_uri()}", "pytest", "pytest-xdist", "confluent-kafka")
            (project / "requirements-dev.txt").write_text("\n".join(needed))
            (project / "workflow.yml").write_text(workflow_text())
        return project

    def workflow(self) -> None:
        """The steps of the page, in an environment that has nothing but Python."""
        project, python = self.project_of_workflow(), self.folder / "setup-python"
        self.run("setup-python", sys.executable, "-m", "venv", python, cwd=self.folder)
        env = {"PATH": f"{python / 'bin'}:{os.environ['PATH']}"}
        outputs = [
            self.run(f"workflow: {step}", *SHELL, step, cwd=project, env=env)
            for step in run_steps(workflow_text())
        ]
        assert re.search(r"\b[1-9]\d* passed", outputs[-1]), outputs[-1]


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.testing.wheel")
    parser.add_argument("--keep", action="store_true", help="keep the environment, and print where it is")
    keep = parser.parse_args().keep
    folder = Path(tempfile.mkdtemp(prefix="millrace-wheel-"))
    try:
        stranger = Stranger(folder)
        stranger.install()
        stranger.examples()
        stranger.many()
        stranger.asynchronous()
        stranger.hints()
        stranger.killed()
        stranger.node()
        stranger.java()
        stranger.lint_workflow()
        stranger.workflow()
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
