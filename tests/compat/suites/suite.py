"""What a suite is: how it is fetched and run, what it is known to fail at and why, and how its outcome is
judged.

Kept true: a failure that has no excuse here, or says something else than its excuse has it, is a failure of
the run, and so is an excuse of what no longer fails; a suite that ran fewer tests than it is known to hold is
one, too, since most of them skip in silence when they find no broker.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.live.cluster import LiveNodes


@dataclass
class Outcome:
    """Names of tests, by what became of them."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # with the first line of why
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Excuse:
    """Why a test fails, and a pattern of what it says then: one that fails with other words is news. Empty
    where no run has written its words down yet."""

    why: str
    says: str = ""


class OneNode:
    """What most suites want."""

    nodes = 1

    def of_node(self, number: int) -> Mapping[str, str]:
        return {}

    def on_started(self, nodes: LiveNodes) -> None:
        """It asks the address that it is given, and no more."""


class Suite(Protocol):
    name: str
    passed_min: int  # how many tests pass at least
    nodes: int  # how many it wants, of one cluster
    overrides: Mapping[str, str]  # settings of every node that the suite's own set-up has, too
    known: Mapping[str, Excuse]  # by a pattern of tests' names; each must match a failure
    fickle: Mapping[str, Excuse]  # the same of those that fail now and then

    def of_node(self, number: int) -> Mapping[str, str]:
        """Settings of one of its nodes, from 1 on, beside those of all."""

    def on_started(self, nodes: LiveNodes) -> None:
        """Before a run, with what runs at its addresses."""

    def fetch(self, folder: Path) -> None:
        """Gets and repairs it, in `folder`."""

    def run(self, folder: Path, address: str) -> Outcome:
        """All of it, against the node at `address`, or nodes, with commas."""


def judge(suite: Suite, outcome: Outcome) -> list[str]:
    """What is not as it is known to be; empty when all is well. Where a fickle one failed, others may not
    have been reached."""
    excuses = [*suite.known.items(), *suite.fickle.items()]
    found = [
        f"{name}: {said}"
        for name, said in outcome.failed.items()
        if not any(re.search(pattern, name) and re.search(excuse.says, said) for pattern, excuse in excuses)
    ]
    is_whole = not any(re.search(pattern, name) for pattern in suite.fickle for name in outcome.failed)
    for known, excuse in suite.known.items():
        if is_whole and not any(re.search(known, name) for name in outcome.failed):
            found.append(
                f"nothing that is called {known} failed any more: take it off the list ({excuse.why})"
            )
    if len(outcome.passed) < suite.passed_min:
        found.append(f"only {len(outcome.passed)} tests passed, {suite.passed_min} at least did before")
    return found


def read_junit(path: Path) -> Outcome:
    """The report that pytest and mocha write; `output` lies beside it."""
    said = path.parent / "output"
    is_written = path.exists() and path.stat().st_size > 0
    assert is_written, f"no report was written:\n{said.read_text(errors='replace')[-4000:]}"
    outcome = Outcome()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name", "")
        bad = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        if bad is not None:
            outcome.failed[name] = (bad.get("message") or bad.text or "").strip().split("\n")[0][:300]
        elif case.find("skipped") is not None:
            outcome.skipped.append(name)
        else:
            outcome.passed.append(name)
    return outcome
