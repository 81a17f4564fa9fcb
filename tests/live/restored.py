"""Clusters that are lost and built again from their bucket, of another size: every process is killed, every
metadata log directory goes, and `millrace restore` makes the first node of another one.

Not here: what is compared (traffic.py).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import CLUSTER, LiveCombined, LiveNodes
from tests.live.test_brokers import PARTITIONS, TOPIC
from tests.live.test_controllers import QUICK
from tests.live.test_failover import send, values
from tests.live.traffic import Traffic
from tests.patience import PATIENCE_S

SAVED_MS = 500  # how often metadata is put into the bucket
RUN_S = 1.0
SETTINGS = {
    **QUICK,
    "s3.metadata.upload.interval.ms": str(SAVED_MS),
    "offsets.topic.num.partitions": "5",
    "s3.wal.upload.interval.ms": "1000",  # so that a part lies in objects, and the rest in logs alone
}
BLOCKS, OBJECTS = "blocks", "objects"


def settings_of(folder: Path, kind: str) -> dict[str, str]:
    logs = {"s3.wal.path": f"0@file://{folder}/logs/?kind=object"} if kind == OBJECTS else {}
    return {**SETTINGS, **logs}


class LiveAlone(LiveNodes):
    """One node that is its own quorum, over the bucket of a cluster; in a folder as of LiveCombined."""

    def __init__(self, folder: Path, overrides: dict[str, str], node_id: int = 1) -> None:
        super().__init__()
        own = {"node.id": str(node_id), "cluster.id": CLUSTER, "s3.data.buckets": f"0@file://{folder}/bucket"}
        self.brokers[node_id] = LiveBroker(folder / f"node{node_id}", {**own, **overrides}, wal="64MiB")


def history(cluster: LiveNodes, moved: Iterable[int] = ()) -> Traffic:
    """Idempotent producers and a group at work; partitions move meanwhile, to these brokers in turn. What was
    acknowledged last is in write-ahead logs alone."""
    with Client(cluster.addresses[0]) as client:
        client.create(TOPIC, PARTITIONS)
    traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
    traffic.start()
    try:
        time.sleep(RUN_S)
        with Client(cluster.addresses[0]) as client:
            for index, to in enumerate(moved):
                client.move(TOPIC, [index % PARTITIONS], to)
        time.sleep(RUN_S)
    finally:
        traffic.finish()
    time.sleep(3 * SAVED_MS / 1000)  # what opened the streams is in the bucket
    return traffic


def lose(cluster: LiveNodes) -> None:
    """All at once, and every log directory."""
    for node in cluster.brokers.values():
        node.kill()
    for node in cluster.brokers.values():
        shutil.rmtree(node.folder / "data" / "metadata")


def restore(node: LiveBroker, folder: Path, *words: str, code: int = 0) -> str:
    """What it says."""
    settings = [word for key, value in node._overrides.items() for word in ("--override", f"{key}={value}")]
    command = [sys.executable, "-m", "millrace.broker", "restore", "--take-over", *words]
    own = ["--from", f"file://{folder}/bucket", "--data-dir", str(node.folder / "data")]
    done = subprocess.run(
        [*command, *own, *settings], timeout=PATIENCE_S, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def ask_cluster(cluster: LiveNodes, *words: str, code: int = 0) -> str:
    """Of `millrace cluster`; what it says."""
    asked = [sys.executable, "-m", "millrace.broker", "cluster", *words]
    asked += ["--bootstrap-server", cluster.addresses[0]]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def check(cluster: LiveNodes, traffic: Traffic) -> int:
    """How many records were acknowledged before; all are there, once, at their offsets, and the group's
    commits. Producers go on."""
    traffic.move_to(cluster.addresses)
    count = traffic.check()
    send(cluster, values(900_000, 60))
    return count


def combined(folder: Path, count: int, kind: str, first: int = 1) -> LiveCombined:
    return LiveCombined(folder, count, settings_of(folder, kind), first=first)
