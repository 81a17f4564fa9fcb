"""The workflow that docs/testing.md gives for GitHub Actions, and its steps as a runner takes them.

There is no runner here: a `run` step is what its shell is given, of the steps that come from elsewhere the
two are known that a runner would carry out by itself. Not here: the environment that they run in (wheel.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
# actionlint knows what GitHub takes: https://github.com/rhysd/actionlint
LINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
SHELL = ("bash", "-e", "-c")  # GitHub's own for `run` on Linux takes a file in place of the last
# By the runner: the project is there, and the Python is the environment's.
CARRIED_OUT = ("actions/checkout", "actions/setup-python")


def workflow_text() -> str:
    """As a reader copies it. Raises AssertionError where the page has not the one."""
    found: list[str] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (text,) = found
    return text


def run_steps(text: str) -> list[str]:
    """The commands of its jobs, in order. Raises AssertionError for what GitHub would refuse, or a step that
    nobody here can carry out."""
    workflow: dict[Any, Any] = yaml.safe_load(text)
    assert workflow.get(True), "it says not when it runs (`on` is true in YAML 1.1)"
    commands = []
    for name, job in workflow["jobs"].items():
        assert job["runs-on"], name
        for step in job["steps"]:
            if "run" in step:
                commands.append(step["run"])
            else:
                assert step["uses"].partition("@")[0] in CARRIED_OUT, step
    return commands
