"""A cluster whose metadata is lost on every node is built again from the bucket."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import LiveCluster, LiveCombined
from tests.live.test_brokers import PARTITIONS, TOPIC
from tests.live.test_controllers import QUICK
from tests.live.test_failover import check_all, send, values
from tests.patience import PATIENCE_S

SAVED_MS = 500  # how often metadata is put into the bucket


def filled(folder: Path, **settings: str) -> LiveCombined:
    """Three nodes that were killed, with records that are in their write-ahead logs alone."""
    overrides = {**QUICK, "s3.metadata.upload.interval.ms": str(SAVED_MS), **settings}
    with LiveCombined(folder, 3, overrides) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        send(cluster, values(0, 120))
        time.sleep(3 * SAVED_MS / 1000)  # what opened the streams is in the bucket
        send(cluster, values(120, 60))
    return cluster


def restore(node: LiveBroker, folder: Path) -> None:
    words = [word for key, value in node._overrides.items() for word in ("--override", f"{key}={value}")]
    command = [sys.executable, "-m", "millrace.broker", "restore", "--take-over"]
    own = ["--from", f"file://{folder}/bucket", "--data-dir", str(node.folder / "data")]
    subprocess.run([*command, *own, *words], check=True, timeout=PATIENCE_S)


def test_logs_of_blocks_are_recovered_by_their_nodes(tmp_path: Path) -> None:
    cluster = filled(tmp_path)
    for node in cluster.brokers.values():
        shutil.rmtree(node.folder / "data" / "metadata")
    restore(cluster.brokers[1], tmp_path)
    with cluster:
        check_all(cluster, values(0, 180))
        send(cluster, values(180, 60))
        check_all(cluster, values(0, 240))


def test_controllers_that_are_no_brokers_are_built_again(tmp_path: Path) -> None:
    overrides = {**QUICK, "s3.metadata.upload.interval.ms": str(SAVED_MS)}
    with LiveCluster(tmp_path, 1, 2, overrides) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        send(cluster, values(0, 120))
        time.sleep(3 * SAVED_MS / 1000)
    (controller,) = cluster.quorum.nodes.values()
    shutil.rmtree(controller.folder / "data" / "metadata")
    for node in cluster.brokers.values():
        shutil.rmtree(node.folder / "data" / "metadata")
    restore(controller, tmp_path)
    with cluster:
        check_all(cluster, values(0, 120))
        send(cluster, values(120, 60))
        check_all(cluster, values(0, 180))


def test_logs_of_objects_are_recovered_by_whoever_is_there(tmp_path: Path) -> None:
    """The machines are lost, one of them for good: the bucket alone holds all that was acknowledged."""
    cluster = filled(tmp_path, **{"s3.wal.path": f"0@file://{tmp_path}/logs/?kind=object"})
    for node in cluster.brokers.values():
        shutil.rmtree(node.folder / "data")
    restore(cluster.brokers[1], tmp_path)
    del cluster.brokers[3]
    with cluster:
        check_all(cluster, values(0, 180))
        send(cluster, values(180, 60))
        check_all(cluster, values(0, 240))
