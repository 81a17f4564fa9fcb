"""A short form of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.chaos import LOGS, run
from tests.live.test_controllers import QUICK


@pytest.mark.parametrize("log", sorted(LOGS))
def test_clients_lose_nothing_to_nodes_that_come_and_go(tmp_path: Path, log: str) -> None:
    print(run(tmp_path, 15.0, 1, log, QUICK))
