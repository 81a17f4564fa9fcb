"""docs/past-bugs.md names tests and files: they are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "past-bugs.md"


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [cells for cells in found if cells[0] != "what went wrong"]


@cache
def names_in(path: Path) -> frozenset[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions))


def test_every_row_has_a_remedy_and_a_test_that_exist() -> None:
    """Three cells each; the files of the second are ours, and so are the tests of the third."""
    wrong = []
    for cells in rows():
        assert len(cells) == 3, cells
        files = re.findall(r"`([\w/]+\.py)`", cells[1])
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)`", cells[2])
        if not files or not tests or cells[2].count("`") != 2 * len(tests):
            wrong.append(f"no remedy or no test: {cells[0]}")
        wrong += [f"no file {name}" for name in files if not (ROOT / name).is_file()]
        for name, test in tests:
            path = ROOT / "tests" / name
            if not path.is_file() or test not in names_in(path):
                wrong.append(f"no test {name}::{test}")
    assert wrong == []


def test_the_page_has_rows() -> None:
    """What reads the table finds it."""
    assert len(rows()) > 50
