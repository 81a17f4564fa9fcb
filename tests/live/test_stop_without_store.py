"""A node of several is stopped while the bucket takes nothing: others lead what it led, it does not wait for
what it cannot do, and its log has what it owes."""

from __future__ import annotations

import time
from pathlib import Path

from millrace.runtime.objectstore.folder import NEW_FOLDER
from tests.live.barred import Barred
from tests.live.client import Client
from tests.live.cluster import LiveCluster, logged
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_controllers import QUICK
from tests.live.test_failover import SECOND, check_all, send, values
from tests.patience import until

ENDED_S = 20.0  # a container's grace, with room for a busy machine


def test_it_ends_soon_and_says_what_it_owes(tmp_path: Path) -> None:
    settings = {**QUICK, "s3.wal.upload.interval.ms": "500"}
    with LiveCluster(tmp_path, 1, 3, settings) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        send(cluster, values(0, 120))
        puts = Barred(tmp_path, NEW_FOLDER)
        puts.bar()
        send(cluster, values(120, 120))
        node = cluster.brokers[SECOND]
        until(lambda: logged(node, "upload waits"), "its uploads go on")
        began_s = time.monotonic()
        assert node.stop() == 0
        took_s = time.monotonic() - began_s
        print(f"ended in {took_s:.1f} s")
        del cluster.brokers[SECOND]
        assert SECOND not in leaders(next(iter(cluster.brokers.values()))).values()
        assert took_s < ENDED_S
        assert logged(node, "ends while its log owes some of what others lead: .*takes nothing")
        puts.lift()
        send(cluster, values(240, 60))
        check_all(cluster, values(0, 300))
