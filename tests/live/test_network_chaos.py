"""A short form of `make chaos` with faults of the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.network import lacks
from tests.live.network_chaos import run
from tests.live.test_controllers import QUICK

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
PLANS = {
    "block": (("leader cut from the other nodes", 4.5), ("unheard by the other nodes", 4.5)),
    "object": (("cut from the bucket", 2.0), ("leader deaf to the other nodes", 4.5), ("slow", 2.0)),
}


@pytest.mark.parametrize("log", sorted(PLANS))
def test_clients_lose_nothing_to_a_bad_network(tmp_path: Path, log: str) -> None:
    print(run(tmp_path, 0.0, 1, log, QUICK, PLANS[log]))
