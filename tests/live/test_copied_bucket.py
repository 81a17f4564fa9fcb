"""One node of a cluster is given a copy of the bucket, and the others go on with the one that was copied:
what is acknowledged stays where all find it."""

from __future__ import annotations

import shutil
from pathlib import Path

from millrace.broker.identity.bucket_age import NEWEST_ASKED
from tests.live.client import Client
from tests.live.cluster import LiveCluster, LiveCombined, logged
from tests.live.test_brokers import leaders
from tests.live.test_put_back import is_in_bucket
from tests.patience import until

QUICK = {"s3.metadata.upload.interval.ms": "200", "s3.wal.upload.interval.ms": "200"}
TOPIC = "kept"


def copy_of(cluster: LiveCluster, folder: Path) -> dict[str, str]:
    """As the setting of a node; a topic is made behind it, and told in the bucket alone."""
    last = max(cluster.brokers)
    with Client(cluster.brokers[last].address) as client:
        client.create(TOPIC)
        client.move(TOPIC, [0], last)
        until(lambda: not client.send(TOPIC, [b"before"]).error_code, "it does not lead")
    until(lambda: is_in_bucket(cluster, TOPIC), "no piece of metadata names it")
    shutil.copytree(cluster.quorum.bucket, folder / "copy", ignore=shutil.ignore_patterns(".new"))
    with Client(cluster.addresses[0]) as client:
        client.create("later")
    until(lambda: is_in_bucket(cluster, "later"), "no piece of metadata names it")
    return {"s3.data.buckets": f"0@file://{folder}/copy"}


def is_all_in_bucket(cluster: LiveCluster) -> bool:
    return cluster.quorum.nodes[1].metrics()["millrace_metadata_backup_age_seconds"] == 0


def objects_in(folder: Path) -> list[Path]:
    """Without what was being put while it was copied."""
    return sorted(one for one in folder.rglob("*") if one.is_file() and ".new" not in one.parts)


def test_a_broker_with_a_copy_of_the_bucket_does_not_start(tmp_path: Path) -> None:
    """It would upload to the copy what it acknowledges, and trim its log. It has changed nothing; with the
    bucket that the controllers have it starts."""
    with LiveCluster(tmp_path, controllers=1, brokers=2, overrides=QUICK) as cluster:
        copied = copy_of(cluster, tmp_path)
        broker = cluster.brokers[101]
        assert broker.stop() == 0
        had, before = dict(broker._overrides), objects_in(tmp_path / "copy")
        broker.override(copied)
        broker.begin()
        assert broker.wait_end() == 1
        assert logged(broker, r"copy does not have the metadata that controller 1, which leads, has put into")
        assert logged(broker, r"one bucket \(s3\.data\.buckets\)")
        assert objects_in(tmp_path / "copy") == before
        broker.override(had)
        broker.start()
        with Client(broker.address) as client:
            client.move(TOPIC, [0], 101)
            until(lambda: not client.send(TOPIC, [b"after"]).error_code, "it does not lead")
        assert broker.stop() == 0
        other = cluster.brokers[102]
        until(lambda: leaders(other, TOPIC) == {0: 102}, "nobody leads it")
        with Client(other.address) as client:
            assert client.read(TOPIC) == [b"before", b"after"]


def test_a_broker_whose_bucket_was_copied_while_it_was_stopped_does_not_start(tmp_path: Path) -> None:
    """Nothing was put behind the copy: both hold all that is committed until it registers."""
    with LiveCluster(tmp_path, controllers=1, brokers=2, overrides=QUICK) as cluster:
        broker = cluster.brokers[101]
        assert broker.stop() == 0
        until(lambda: is_all_in_bucket(cluster), "the metadata is not in the bucket")
        shutil.copytree(cluster.quorum.bucket, tmp_path / "copy", ignore=shutil.ignore_patterns(".new"))
        before = objects_in(tmp_path / "copy")
        broker.override({"s3.data.buckets": f"0@file://{tmp_path}/copy"})
        broker.begin()
        assert broker.wait_end() == 1
        assert logged(broker, r"copy does not have the metadata that controller 1, which leads, has put into")
        assert objects_in(tmp_path / "copy") == before


def test_a_leader_with_a_copy_of_the_bucket_makes_no_broker_trim_its_log(tmp_path: Path) -> None:
    """Brokers find that the bucket lacks what the leader says that it put, keep their logs, and say so; all
    goes on once the leader has the bucket."""
    with LiveCluster(tmp_path, controllers=1, brokers=1, overrides=QUICK) as cluster:
        copied = copy_of(cluster, tmp_path)
        controller, broker = cluster.quorum.nodes[1], cluster.brokers[101]
        until(lambda: broker.metrics()["millrace_wal_used_bytes"] == 0, "not all is uploaded")
        had = dict(controller._overrides)
        assert controller.stop() == 0
        controller.override(copied)
        controller.start()
        with Client(broker.address) as client:
            client.produce(TOPIC, [b"after"])
            said = r"bucket does not have the metadata that controller 1, which leads, has put into its own"
            until(lambda: logged(broker, said), "not said")
            assert broker.metrics()["millrace_wal_used_bytes"] > 0
            assert controller.stop() == 0
            controller.override(had)
            controller.start()
            until(lambda: broker.metrics()["millrace_wal_used_bytes"] == 0, "it does not go on")
            assert client.read(TOPIC) == [b"before", b"after"]


def committed_in(cluster: LiveCombined) -> float:
    return cluster.brokers[1].metrics()['millrace_metadata_objects{state="committed"}']


def test_a_bucket_that_was_put_back_ends_whoever_leads(tmp_path: Path) -> None:
    """Of three nodes that lead by turns, before any of them claims or puts anything for the cluster. With
    the bucket of before all is there."""
    bucket = tmp_path / "bucket"
    with LiveCombined(tmp_path, 3, QUICK) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC)
            client.produce(TOPIC, [b"early"])
            shutil.copytree(bucket, tmp_path / "older", ignore=shutil.ignore_patterns(".new"))
            for _ in range(NEWEST_ASKED):
                before = committed_in(cluster)
                client.produce(TOPIC, [b"late"])
                until(lambda before=before: committed_in(cluster) > before, "no upload")  # type: ignore[misc]
        for node in cluster.brokers.values():
            assert node.stop() == 0
        bucket.rename(tmp_path / "newer")
        (tmp_path / "older").rename(bucket)
        for node in cluster.brokers.values():
            node.begin()
        until(lambda: sum(not node.is_running() for node in cluster.brokers.values()) == 2, "it is taken")
        ended = [node for node in cluster.brokers.values() if not node.is_running()]
        for node in ended:
            assert node.wait_end() == 1
            assert logged(node, r"is older than the metadata log: objects \d+ to \d+, the newest that")
        for node in cluster.brokers.values():
            node.kill()
        shutil.rmtree(bucket)
        (tmp_path / "newer").rename(bucket)
        cluster.begin()
        until(lambda: leaders(cluster.brokers[1], TOPIC)[0] in cluster.brokers, "nobody leads it")
        with Client(cluster.brokers[leaders(cluster.brokers[1], TOPIC)[0]].address) as client:
            assert client.read(TOPIC) == [b"early", *[b"late"] * NEWEST_ASKED]
