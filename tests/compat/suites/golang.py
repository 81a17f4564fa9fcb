"""Suites of clients in Go, from their modules: a module's archive holds its tests, and Go's own tool fetches,
compiles and runs them.

Only tests that ask a broker are run: those in whose text one of the suite's `marks` stands.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.compat.suites.suite import Excuse, OneNode, Outcome

TEST = re.compile(r"^func (Test\w+)\(.*?(?=^func |\Z)", re.DOTALL | re.MULTILINE)
PLACE = re.compile(r"^\s*(?:\S+\.go:\d+: )?(.*\S)")
ERROR = re.compile(r"^\s*Error:\s+(.*?)(?=^\s*(?:Test|Messages|Error Trace):)", re.DOTALL | re.MULTILINE)


class GoSuite(OneNode):
    """`prepare` is given the folder of the source and the broker's address, and repairs what is fixed in it.
    `unasked`: tests that are not run, for they would end the process or wait for ever, with the reason."""

    def __init__(
        self,
        name: str,
        module: str,
        version: str,
        *,
        marks: str,
        passed_min: int,
        known: Mapping[str, Excuse],
        package: str = ".",
        flags: tuple[str, ...] = (),
        fickle: Mapping[str, Excuse] | None = None,
        overrides: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[Path, str], None] | None = None,
        unasked: Mapping[str, str] | None = None,
        nodes: int = 1,
    ) -> None:
        self.name = f"{name} {version}" + (f", {nodes} nodes" if nodes > 1 else "")
        self.nodes = nodes
        self.passed_min = passed_min
        self.known = known
        self.fickle = fickle or {}
        self.overrides = overrides or {}
        self._module, self._version, self._package = module, version, package
        self.marks, self._flags = re.compile(marks), flags
        self._environment = environment or {}
        self._prepare = prepare
        self.unasked = unasked or {}

    def fetch(self, folder: Path) -> None:
        fetch_module(self._module, self._version, folder / "source")

    def run(self, folder: Path, address: str) -> Outcome:
        source = folder / "source"
        if self._prepare is not None:
            self._prepare(source, address)
        names = "|".join(live_tests(source / self._package, self.marks))
        given = {name: text.replace("ADDRESS", address) for name, text in self._environment.items()}
        words = [
            "go",
            "test",
            "-json",
            "-count=1",
            "-timeout=40m",
            "-mod=mod",
            *self._flags,
            "-run",
            f"^({names})$",
        ]
        words += ["-skip", "|".join(self.unasked)] if self.unasked else []
        words.append(self._package)
        with (folder / "output").open("w") as output:
            subprocess.run(
                words, cwd=source, env={**os.environ, **given}, stdout=output, stderr=subprocess.STDOUT
            )
        return read_events(folder / "output")


def fetch_module(module: str, version: str, target: Path) -> None:
    """A copy of the module's source that may be written to."""
    assert shutil.which("go"), "Go is missing: install it (Debian: apt-get install golang)"
    words = ["go", "mod", "download", "-json", f"{module}@{version}"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    shutil.copytree(json.loads(done.stdout)["Dir"], target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def live_tests(package: Path, marks: re.Pattern[str]) -> list[str]:
    texts = [path.read_text() for path in sorted(package.glob("*_test.go"))]
    return [found[1] for text in texts for found in TEST.finditer(text) if marks.search(found[0])]


def read_events(path: Path) -> Outcome:
    """What `go test -json` printed. A test with parts counts by its parts, and itself where it failed and
    none of them did."""
    ends: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        test = event.get("Test")
        if test is None:
            continue
        if event["Action"] == "output":
            said.setdefault(test, []).append(event["Output"])
        elif event["Action"] in ("pass", "fail", "skip", "run"):
            ends[test] = event["Action"]
    assert ends, f"no test ran:\n{path.read_text()[-4000:]}"
    outcome = Outcome()
    for test, end in ends.items():
        parts = [ends[other] for other in ends if other.startswith(test + "/")]
        if end in ("fail", "run") and not any(part in ("fail", "run") for part in parts):
            outcome.failed[test] = reason(said.get(test, [])) if end == "fail" else "never ended"
        elif end == "pass" and not parts:
            outcome.passed.append(test)
        elif end == "skip":
            outcome.skipped.append(test)
    return outcome


def reason(lines: list[str]) -> str:
    """What testify says the error is; else the last line that the test itself printed."""
    said = ERROR.search("".join(lines))
    if said is not None:
        return " ".join(said[1].split())[:300]
    own = [line for line in lines if not line.lstrip().startswith(("===", "---")) and line.strip()]
    placed = [line for line in own if re.search(r"\.go:\d+: .*\S|panic", line)]
    found = PLACE.match((placed or own or [""])[-1])
    return found[1][:300] if found else ""
