"""The groups of a run in parallel: what shares a fixture of a session stays with one worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.groups import group_of, order_of

ROOT = Path(__file__).parents[1]


def test_who_stays_together() -> None:
    """A folder with fixtures of a session, a module elsewhere, nobody in the simulator; in the order in which
    they are given out."""
    tests = [
        "tests/wal/test_record.py::test_a[x::y]",
        "tests/sim/test_seeds.py::test_b[1]",
        "tests/compat/test_kcat.py::test_c",
    ]
    assert [group_of(one) for one in tests] == ["tests/wal/test_record.py", tests[1], "compat"]
    assert sorted(tests, key=order_of) == [tests[2], tests[1], tests[0]]


def test_auto_is_a_worker_more_than_cores(pytestconfig: pytest.Config) -> None:
    """Of those that this process may run on."""
    found = pytestconfig.hook.pytest_xdist_auto_num_workers(config=pytestconfig)
    assert found == len(os.sched_getaffinity(0)) + 1


def test_a_module_has_one_worker() -> None:
    """Of two modules and two workers each has one; without our groups the first would be split."""
    modules = ["tests/wal/test_config.py", "tests/wal/test_record.py"]
    words = ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-vv", *modules]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ran = re.findall(r"\[(gw\d)\] .* PASSED (\S+)::", done.stdout)
    assert {module for _, module in ran} == set(modules)
    assert set(Counter(module for _, module in set(ran)).values()) == {1}
