"""Which tests go to one worker when the suite runs in parallel: those that share something dear to start.

A JVM, a Spark session and what they have loaded serve a whole folder; a module's brokers and recordings serve
a module. Tests of the simulator share nothing and take seconds each: each one goes to whoever is free. What
takes longest is given out first, so that the workers end together.

There is one worker more than cores: a third of a worker's time is waiting for timers, disks and processes.
"""

from __future__ import annotations

import os
from typing import Any

FOLDERS = ("spark_jobs", "compat")  # each with fixtures of the whole session; the dearest first
ALONE = ("sim",)  # nothing shared


def _folder_of(test_id: str) -> str:
    return test_id.removeprefix("tests/").partition("/")[0]


def group_of(test_id: str) -> str:
    """Of a test by its id, from the folder of the checkout."""
    folder = _folder_of(test_id)
    if folder in FOLDERS:
        return folder
    return test_id if folder in ALONE else test_id.partition("::")[0]


def order_of(test_id: str) -> int:
    """Least first."""
    dear = (*FOLDERS, *ALONE)
    folder = _folder_of(test_id)
    return dear.index(folder) if folder in dear else len(dear)


def workers() -> int:
    """How many `-n auto` stands for."""
    return len(os.sched_getaffinity(0)) + 1


def scheduling(config: Any, log: Any) -> Any:
    """pytest-xdist's way of giving out whole groups, with ours for its scopes."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)
