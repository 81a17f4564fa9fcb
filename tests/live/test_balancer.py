"""Partitions of a busy broker are given to others by themselves, while producers and a group are at work."""

from __future__ import annotations

from pathlib import Path

from tests.live.client import Client
from tests.live.cluster import LiveCombined, logged
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_controllers import QUICK
from tests.live.traffic import Traffic
from tests.patience import until

EAGER = {
    "autobalancer.controller.anomaly.detect.interval.ms": "1000",
    "autobalancer.reporter.metrics.reporting.interval.ms": "500",
    "autobalancer.controller.network.in.usage.distribution.detect.threshold": "2000",
    "autobalancer.controller.network.out.usage.distribution.detect.threshold": "2000",
}


def test_a_busy_broker_is_relieved(tmp_path: Path) -> None:
    with LiveCombined(tmp_path, 3, {**QUICK, **EAGER}) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
            client.move(TOPIC, range(PARTITIONS), 1)
        until(lambda: set(leaders(cluster.brokers[1]).values()) == {1}, "not all at one broker")
        traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
        traffic.start()
        try:
            until(
                lambda: sorted(leaders(cluster.brokers[1]).values()) == sorted([1, 2, 3] * 2),
                "nobody relieves it",
            )
        finally:
            traffic.finish()
        assert traffic.told.errors == []
        traffic.check()
        said = rf"balancer: {TOPIC}-\d goes from broker 1 to broker [23]"
        assert any(logged(node, said) for node in cluster.brokers.values())
