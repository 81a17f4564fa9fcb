"""A short form of `make chaos`: what an operator does while brokers die."""

from __future__ import annotations

from pathlib import Path

from tests.live.operator_chaos import run
from tests.live.test_controllers import QUICK

PLAN = ("moved from one that dies", "who recovers is killed", "who recovers stands still", "unregistered")


def test_an_operator_beside_dying_brokers_loses_nothing(tmp_path: Path) -> None:
    """And no log is given up that somebody could recover, however often that is asked for."""
    print(run(tmp_path, 0.0, 1, "object", QUICK, PLAN))
