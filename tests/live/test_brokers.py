"""Brokers as real processes beside controllers: topics are spread over them, clients find each partition's
leader, and what was acknowledged is there after any of the nodes was killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from millrace.broker.cluster.view import leaders_of
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import CLUSTER, FIRST_BROKER, LiveCluster, LiveNodes
from tests.live.test_controllers import QUICK, ready_page
from tests.patience import PATIENCE_S, until

TOPIC, PARTITIONS = "spread", 6
PROMPT = {"s3.object.delete.retention.minutes": "0", "s3.metadata.upload.interval.ms": "500"}
GROUPS = [f"group-{number}" for number in range(20)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    with LiveCluster(tmp_path, 3, 3, QUICK) as started:
        with Client(started.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        yield started


def leaders(broker: LiveBroker, topic: str = TOPIC) -> dict[int, int]:
    """Who leads which partition, as this broker tells it; -1: nobody, though somebody may be named who serves
    readers."""
    with Client(broker.address) as client:
        answer = client.ask("Metadata", MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
    return {index: leader for (_, index), leader in leaders_of(answer).items()}


def producer(cluster: LiveNodes, **options: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=cluster.addresses, enable_idempotence=True, **options)


def read_all(cluster: LiveNodes, count: int) -> list[bytes]:
    """What is in the topic, partition by partition; at least so many are waited for."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.addresses, auto_offset_reset="earliest")
    try:
        consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])
        found: list[bytes] = []

        def is_all() -> bool:
            for records in consumer.poll(timeout_ms=500).values():
                found.extend(record.value for record in records)
            return len(found) >= count

        until(is_all, f"{count} records are not there")
        return found
    finally:
        consumer.close()


def test_partitions_are_spread_and_each_broker_says_where(cluster: LiveCluster) -> None:
    """Who asks the wrong one is told so, in the way that makes clients look again."""
    told = [leaders(broker) for broker in cluster.brokers.values()]
    assert told[0] == told[1] == told[2]
    assert sorted(told[0].values()) == sorted([*cluster.brokers] * 2)
    (elsewhere,) = [index for index, leader in told[0].items() if leader != FIRST_BROKER][:1]
    with Client(cluster.brokers[FIRST_BROKER].address) as client:
        assert client.send(TOPIC, [b"x"], elsewhere).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    sending = producer(cluster)
    for number in range(300):
        sending.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
    sending.flush()
    sending.close()
    assert sorted(map(int, read_all(cluster, 300))) == list(range(300))


def test_groups_commit_wherever_their_coordinator_is(cluster: LiveCluster) -> None:
    for number in range(4):
        consumer = KafkaConsumer(
            bootstrap_servers=cluster.addresses, group_id=f"g{number}", enable_auto_commit=False
        )
        place = TopicPartition(TOPIC, number)
        consumer.assign([place])
        consumer.seek(place, 0)
        assert consumer.position(place) == 0
        consumer.commit()
        assert consumer.committed(place) == 0
        consumer.close()


def test_producers_go_on_while_controllers_are_killed(cluster: LiveCluster) -> None:
    """An idempotent producer, while each controller in turn is killed and comes back: no error, nothing
    twice, nothing lost; and topics are made in between."""
    sending, is_over, sent, failed = producer(cluster), threading.Event(), [0], list[Exception]()

    def work() -> None:
        while not is_over.wait(0.002):
            sending.send(TOPIC, b"%d" % sent[0], partition=sent[0] % PARTITIONS).add_errback(failed.append)
            sent[0] += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for number, node_id in enumerate(cluster.quorum.nodes):
            cluster.quorum.nodes[node_id].kill()
            cluster.quorum.leader()
            with Client(cluster.addresses[number]) as client:
                client.create(f"between{number}")
            cluster.quorum.start([node_id])
            cluster.quorum.wait_equal(cluster.quorum.nodes)
    finally:
        is_over.set()
        worker.join()
    sending.flush(PATIENCE_S)
    sending.close()
    assert not failed
    assert sorted(map(int, read_all(cluster, sent[0]))) == list(range(sent[0]))


def test_a_broker_that_was_killed_comes_back_with_all_it_acknowledged(cluster: LiveCluster) -> None:
    """kill -9 of each broker in turn: its partitions wait for it, the others' do not. One loses its copy of
    the metadata, too, and fetches it anew."""
    sending = producer(cluster, retries=1_000)
    sent = 0
    for node_id, broker in cluster.brokers.items():
        for _ in range(100):
            sending.send(TOPIC, b"%d" % sent, partition=sent % PARTITIONS).get(PATIENCE_S)
            sent += 1
        broker.kill()
        others = [index for index, leader in leaders_without(cluster, node_id).items() if leader != node_id]
        for index in others:
            sending.send(TOPIC, b"%d" % sent, partition=index).get(PATIENCE_S)
            sent += 1
        if node_id == FIRST_BROKER:
            shutil.rmtree(broker.folder / "data" / "metadata")
        broker.start()
    sending.close()
    assert sorted(map(int, read_all(cluster, sent))) == list(range(sent))


def leaders_without(cluster: LiveCluster, is_gone: int) -> dict[int, int]:
    return leaders(next(one for node_id, one in cluster.brokers.items() if node_id != is_gone))


def objects_in(cluster: LiveCluster) -> int:
    walk = os.walk(cluster.quorum.bucket / CLUSTER / "objects")  # which passes over folders that go meanwhile
    return sum(len(files) for _, _, files in walk)


def fill_and_delete(cluster: LiveCluster, topic: str) -> None:
    """A topic's records lie in objects, and then it is deleted."""
    with Client(cluster.addresses[0]) as client:
        client.create(topic, 3)
    sending = producer(cluster)
    for number in range(30):
        sending.send(topic, bytes(1000), partition=number % 3).get(PATIENCE_S)
    sending.close()
    for broker in cluster.brokers.values():
        broker.restart()  # uploads what it has
    assert objects_in(cluster)
    with Client(cluster.addresses[0]) as client:
        deleted = client.ask("DeleteTopics", DeleteTopicsRequest([DeleteTopicState(topic)]))
    assert deleted.responses[0].error_code == 0
    until(lambda: objects_in(cluster) == 0, "the objects of a deleted topic stay")


def test_the_leader_of_the_quorum_does_what_a_cluster_needs_one_of(tmp_path: Path) -> None:
    """Objects that nobody needs go, and metadata is in the bucket; also when the controller that did it is
    killed, and another leads."""
    with LiveCluster(tmp_path, 3, 2, {**QUICK, **PROMPT}) as cluster:
        fill_and_delete(cluster, "first")
        first = cluster.quorum.leader()
        cluster.quorum.nodes[first].kill()
        second = cluster.quorum.leader(is_other_than=first)
        fill_and_delete(cluster, "second")
        cluster.quorum.start([first])
        pages = {node_id: node.metrics() for node_id, node in cluster.quorum.nodes.items()}
        assert [one for one, page in pages.items() if page.get("millrace_quorum_duties")] == [second]
        until(lambda: not cluster.quorum.nodes[second].metrics()["millrace_metadata_backup_age_seconds"])
        for node in (*cluster.brokers.values(), *cluster.quorum.nodes.values()):
            assert node.stop() == 0
        command = [sys.executable, "-m", "millrace.broker", "restore", "--verify"]
        command += ["--from", f"file://{cluster.quorum.bucket}", "--data-dir", str(tmp_path / "restored")]
        command += ["--node-id", str(FIRST_BROKER)]
        verified = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert verified.returncode == 0, verified.stdout + verified.stderr


def told_by(cluster: LiveCluster, node_id: int) -> tuple[set[int], dict[int, int]]:
    """The brokers that one tells clients of, and the leaders; -1: none."""
    with Client(cluster.brokers[node_id].address) as client:
        answer = client.ask("Metadata", MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
        described = client.ask(
            "DescribeTopicPartitions", DescribeTopicPartitionsRequest([TopicRequest(TOPIC)])
        )
        found = client.ask("FindCoordinator", FindCoordinatorRequest(coordinator_keys=GROUPS), 6)
    for one in answer.topics[0].partitions:
        assert one.error_code == (ErrorCode.LEADER_NOT_AVAILABLE if one.leader_id < 0 else 0)
    led = {one.partition_index: one.leader_id for one in answer.topics[0].partitions}
    if {one.partition_index: one.leader_id for one in described.topics[0].partitions} != led:
        return set(), {}  # one was asked before a change, and one behind it
    told = {one.node_id for one in answer.brokers}
    assert {one.node_id for one in found.coordinators if not one.error_code} <= told
    return told, led


def fencings(cluster: LiveCluster) -> int:
    """Of brokers whose sessions were over, by all controllers."""
    logs = [node.log_path.read_text() for node in cluster.quorum.nodes.values()]
    return sum(log.count("no heartbeat within its session") for log in logs)


def test_clients_are_not_sent_to_a_broker_that_is_silent(cluster: LiveCluster) -> None:
    """SIGSTOP: its session ends, and its partitions, of which none is open, go to others; SIGCONT: it is
    there again. SIGTERM: it says itself that it ends, and is fenced before its session is over."""
    first, second, third = cluster.brokers
    all_led = told_by(cluster, first)
    assert all_led[0] == {*cluster.brokers}

    def is_without(gone: int) -> bool:
        told, led = told_by(cluster, first)
        return told == {*cluster.brokers} - {gone} == {*led.values()}

    os.kill(cluster.brokers[second].pid, signal.SIGSTOP)
    try:
        until(lambda: is_without(second), "it is not fenced")
    finally:
        os.kill(cluster.brokers[second].pid, signal.SIGCONT)
    until(lambda: told_by(cluster, third)[0] == {*cluster.brokers}, "it is fenced for ever")
    until(lambda: {*told_by(cluster, second)[1].values()} == {first, third}, "it leads what it led")
    assert fencings(cluster) == 1
    assert cluster.brokers[third].stop() == 0
    until(lambda: is_without(third), "it is not fenced")
    assert fencings(cluster) == 1


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"s3.data.buckets": "0@file://{folder}/other-bucket"}, "see that theirs is the same"),
        ({"cluster.id": "BBBBBBBBBBBBBBBBBBBBBQ"}, "INCONSISTENT_CLUSTER_ID"),
        ({"controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3"}, "Connection refused"),
        ({"controller.quorum.voters": "{swapped}"}, "no controller says that it leads"),
    ],
)
def test_a_broker_that_was_told_something_else_says_what_it_waits_for(
    tmp_path: Path, overrides: dict[str, str], reason: str
) -> None:
    """It serves nobody, and nothing of it is anywhere."""
    with LiveCluster(tmp_path, 3, 0, QUICK) as cluster:
        leader, ports = cluster.quorum.leader(), cluster.quorum.ports
        other, third = (node_id for node_id in ports if node_id != leader)
        shifted = {leader: ports[other], other: ports[third], third: ports[other]}
        words = {
            "folder": str(tmp_path),
            "swapped": ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in shifted.items()),
        }
        told = {key: text.format(**words) for key, text in overrides.items()}
        broker = LiveBroker(tmp_path / "odd", {**cluster.settings_of(FIRST_BROKER), **told}, wal="64MiB")
        broker.begin()
        try:
            until(lambda: reason in ready_page_of(broker), "it does not say what it waits for")
        finally:
            broker.kill()


def ready_page_of(broker: LiveBroker) -> str:
    """ "" before there is one."""
    try:
        return ready_page(broker)
    except OSError:
        return ""


def test_a_second_process_with_a_brokers_id_and_a_new_log_is_refused(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    """What the first one acknowledged may be in its log alone; the first goes on."""
    first = cluster.brokers[FIRST_BROKER]
    with Client(first.address) as client:
        client.send(TOPIC, [b"x"], min(index for index, one in leaders(first).items() if one == FIRST_BROKER))
    second = LiveBroker(
        tmp_path / "second",
        {**first._overrides, "s3.wal.path": f"0@file://{tmp_path}/second-wal?capacity=64MiB"},
    )
    second.begin()
    assert second.wait_end() == 1
    assert "streams were open" in second.log_path.read_text()
    assert first.is_running()
