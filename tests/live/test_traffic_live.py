"""Bandwidth to the store on a live broker: history comes at the rate that was set, what is produced does not
wait for it."""

from __future__ import annotations

from pathlib import Path

from tests.live import LiveBroker
from tests.live.client import Client

MIB = 1 << 20


def shown(metrics: dict[str, float], name: str, tier: str, way: str) -> float:
    return metrics[f'millrace_traffic_{name}_total{{tier="{tier}",way="{way}"}}']


def test_reads_of_history_wait_for_bandwidth_and_uploads_do_not(tmp_path: Path) -> None:
    """With 2 MiB a second, 8 MiB are produced and uploaded without a wait, and read back after a restart,
    right and with waits."""
    settings = {"s3.network.baseline.bandwidth": "2MiB", "s3.wal.upload.threshold": "1MiB"}
    values = [bytes([number]) * (256 << 10) for number in range(32)]
    with LiveBroker(tmp_path, settings, wal="64MiB") as broker:
        with Client(broker.address) as client:
            client.create("t")
            for value in values:
                client.produce("t", [value])
        before = broker.metrics()
        assert shown(before, "waits", "upload", "out") == 0
        broker.restart()
        with Client(broker.address) as client:
            assert client.read("t") == values
        after = broker.metrics()
        read_bytes = shown(after, "passed_bytes", "tail", "in") + shown(
            after, "passed_bytes", "catch_up", "in"
        )
        assert 8 * MIB <= read_bytes <= 10 * MIB
        assert shown(after, "waits", "tail", "in") + shown(after, "waits", "catch_up", "in") > 0
        assert shown(after, "wait_seconds", "tail", "in") + shown(after, "wait_seconds", "catch_up", "in") > 1
        assert shown(after, "refusals", "tail", "in") == 0
