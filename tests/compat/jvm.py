"""Java for the tests: the class path that `make jars` fills, and how a source file of tests/compat/java is
run on it.

Kept true: what is missing is a failed test that says in a sentence what to do, never a skipped one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE_S

JAVA = Path(__file__).resolve().parent / "java"
CLASS_PATH = JAVA / "libs" / "*"
# Little to warm up and no second collector thread: half the start-up time of the defaults on two cores.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx768m")


def java_command(*words: str) -> list[str]:
    """A command line that runs a class of the jars, or a source file, with the jars beside it."""
    assert shutil.which("java"), (
        "java is missing: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)"
    )
    assert list(CLASS_PATH.parent.glob("kafka-clients-*.jar")), "Kafka's jars are missing: run `make jars`"
    return [
        "java",
        *OPTIONS,
        f"-Dlog4j2.configurationFile={JAVA / 'log4j2.xml'}",
        "-cp",
        str(CLASS_PATH),
        *words,
    ]


def run_source(name: str, given: str, timeout_s: float = PATIENCE_S) -> str:
    """What the program in java/`name` prints when it is given that."""
    command = java_command(str(JAVA / name))
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{name} failed:\n{done.stderr[-4000:]}"
    return done.stdout


def kafka_version() -> str:
    """Of the jars."""
    (jar,) = CLASS_PATH.parent.glob("kafka-clients-*.jar")
    return jar.stem.removeprefix("kafka-clients-")


class Jvm:
    """java/Clients.java as a process: `order(do=..., ...)` gives its answer. One order at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                java_command(str(JAVA / "Clients.java")),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def order(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the JVM ended:\n{self._log.read_text()[-4000:]}"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"{answer['error']}\n{self._log.read_text()[-2000:]}"
        return answer

    def tool(self, name: str, *words: str, given: str = "", code: int = 0) -> str:
        """What a command-line class prints, which must end with `code`."""
        return self.tool_bytes(name, *words, given=given, code=code).decode()

    def tool_bytes(self, name: str, *words: str, given: str = "", code: int = 0) -> bytes:
        answer = self.order(do="tool", **{"class": name}, words=list(words), input=given)
        said = (
            f"{name} {' '.join(words)}: code "
            f"{answer['code']}\n{answer['output'][-3000:]}\n{answer['errors'][-3000:]}"
        )
        assert answer["code"] == code, said
        return str(answer["output"]).encode("latin-1")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
