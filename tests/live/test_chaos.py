"""A short form of `make chaos`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.live.chaos import LOGS, Chaos, run
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_brokers import leaders
from tests.live.test_controllers import QUICK
from tests.patience import until


@pytest.mark.parametrize("log", sorted(LOGS))
def test_clients_lose_nothing_to_nodes_that_come_and_go(tmp_path: Path, log: str) -> None:
    print(run(tmp_path, 15.0, 1, log, QUICK))


def test_a_node_that_was_replaced_while_it_stood_still_need_not_stop_in_order(tmp_path: Path) -> None:
    log = {"s3.wal.path": LOGS["object"].format(folder=tmp_path)}
    with LiveCombined(tmp_path, 3, QUICK | log) as cluster, Client(cluster.addresses[0]) as client:
        client.create("spread", 3)
        partition = next(index for index, leader in leaders(cluster.brokers[1]).items() if leader == 2)
        with Client(cluster.addresses[1]) as second:
            second.produce("spread", [b"held"], partition)
        chaos, node = Chaos(cluster, 1), cluster.brokers[2]
        os.kill(node.pid, signal.SIGSTOP)
        try:
            until(lambda: leaders(cluster.brokers[1])[partition] not in (-1, 2), "nobody else leads")
        finally:
            os.kill(node.pid, signal.SIGCONT)
        chaos._stop(node)
        assert chaos.done["ended, for it was replaced"] == 1
