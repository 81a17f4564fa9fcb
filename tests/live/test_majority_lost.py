"""A majority of the controllers is gone: what goes on meanwhile, and what becomes of it when they come back,
or never do. Nodes are broker and controller in one, as real processes; what was acknowledged is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.live import LiveBroker, warm
from tests.live.client import Client
from tests.live.cluster import LiveCombined, LiveNodes, logged
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.test_controllers import QUICK, ready_page
from tests.live.test_failover import check_all, send, values
from tests.live.test_growing import CHANGED
from tests.live.traffic import Traffic
from tests.patience import PATIENCE_S, until

SOON = {**QUICK, "s3.metadata.upload.interval.ms": "500"}
SELDOM = {**QUICK, "s3.metadata.upload.interval.ms": "600000"}
BRIEF = {**QUICK, "request.timeout.ms": "1500"}  # that a command waits for controllers
UNDECIDED = "nothing is decided: no controller leads"


@contextmanager
def three(folder: Path, overrides: dict[str, str]) -> Iterator[LiveCombined]:
    with LiveCombined(folder, 3, overrides) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        yield cluster


def ask_cluster(node: LiveBroker, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millrace.broker", "cluster", *words, "--bootstrap-server", node.address]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def try_create(node: LiveBroker) -> int:
    request = CreateTopicsRequest([CreatableTopic("more", 1, 1)], 60_000)
    with Client(node.address) as client:
        return int(client.ask("CreateTopics", request).topics[0].error_code)


def test_the_survivor_serves_what_it_leads_until_the_others_are_back(tmp_path: Path) -> None:
    """Under producers and a group, which lose and double nothing. Meanwhile commands are told that nobody
    decides, and so is who looks."""
    with three(tmp_path, BRIEF) as cluster:
        traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
        traffic.start()
        try:
            until(lambda: all(traffic.told.acknowledged), "nothing is acknowledged")
            survivor = cluster.brokers[3]
            (own, *_) = [index for index, leader in leaders(survivor).items() if leader == 3]
            (other, *_) = [index for index, leader in leaders(survivor).items() if leader != 3]
            for node_id in (1, 2):
                cluster.brokers[node_id].kill()
            until(lambda: UNDECIDED in ready_page(survivor), "the page does not say it")
            assert ready_page(survivor).startswith("ready\n")
            with Client(survivor.address) as client:
                for number in range(20):
                    value = (1 << 30 | number) * traffic.lanes + traffic.prober
                    sent = client.send(TOPIC, [b"%d" % value], own)
                    assert sent.error_code == 0
                    with traffic.lock:
                        traffic.told.acknowledged[own][value] = sent.base_offset
                assert len(client.read(TOPIC, own)) >= 20
                assert client.send(TOPIC, [b"0"], other).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert try_create(survivor) in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER)
            told = ask_cluster(survivor, "status")
            assert told.returncode == 1
            assert "quorum: nobody leads; a majority of the controllers has to run" in told.stdout
            for node_id in (1, 2):
                cluster.brokers[node_id].begin()
            for node_id in (1, 2):
                cluster.brokers[node_id].wait_ready()
            until(lambda: UNDECIDED not in ready_page(survivor), "nobody leads")
            assert try_create(survivor) == 0
        finally:
            traffic.finish()
        print(f"{traffic.check()} records")
        assert not traffic.told.errors


def survivor_of(node_id: int, node: LiveBroker) -> LiveNodes:
    """That node alone, with a list of itself."""
    alone = LiveNodes()
    alone.brokers[node_id] = node
    clients, _, controller = node._overrides["listeners"].partition(",CONTROLLER://")
    node.override({"controller.quorum.voters": f"{node_id}@{controller}", "listeners": clients})
    return alone


def lose(nodes: Iterable[LiveBroker]) -> None:
    """For good, but for their write-ahead logs."""
    for node in nodes:
        node.kill()
        shutil.rmtree(node.folder / "data" / "metadata")


def produce_late(cluster: LiveCombined) -> None:
    """A record to each of two partitions of a topic that is made now."""
    with Client(cluster.addresses[0]) as client:
        client.create("late", 2)
    asked, *_ = cluster.brokers.values()
    for index, leader in leaders(asked, "late").items():
        with Client(cluster.brokers[leader].address) as client:
            client.produce("late", [b"late"], index)


def refusal(node: LiveBroker) -> str:
    refused = warm.run(node.command()[1:])
    assert refused.returncode == 1, refused
    return str(refused.stderr)


def test_the_survivor_goes_on_alone_where_the_others_are_gone_for_good(tmp_path: Path) -> None:
    """By the word alone. What was acknowledged is there from the log that it reaches; what only the other one
    held waits, is told, and is given up by name. Both are forgotten then, and the word is for one start."""
    with three(tmp_path, QUICK) as cluster:
        send(cluster, values(0, 120))
        led = leaders(cluster.brokers[3])
        node = cluster.brokers[3]
        node.kill()
        lose([cluster.brokers[1], cluster.brokers[2]])
        shutil.rmtree(cluster.brokers[2].folder)
        alone = survivor_of(3, node)
        assert "this node last voted in a quorum of the nodes 1, 2, 3 " in refusal(node)
        node.override(CHANGED)
        node.start()
        kept = [value for value in values(0, 120) if led[int(value) % PARTITIONS] != 2]
        reached = [index for index, leader in led.items() if leader != 2]
        until(lambda: {leaders(node)[index] for index in reached} == {3}, "node 1's log is not recovered")
        read = [value for index in reached for value in read_one(node, index)]
        assert sorted(read) == kept
        told = ask_cluster(node, "status")
        assert (told.returncode, "broker 2" in told.stdout) == (1, True), told
        given = ask_cluster(node, "give-up", "2", "--accept-loss")
        assert given.returncode == 0, given
        until(lambda: {*leaders(node).values()} == {3}, "what was given up is not led")
        for node_id in ("1", "2"):
            gone = ask_cluster(node, "unregister", node_id)
            assert gone.returncode == 0, gone
        assert ask_cluster(node, "status").returncode == 0
        send(alone, values(120, 60))
        node.override({"controller.quorum.voters.change.accept": "false"})
        node.restart()
        check_all(alone, [*kept, *values(120, 60)])


def read_one(node: LiveBroker, index: int) -> list[bytes]:
    with Client(node.address) as client:
        return client.read(TOPIC, index)


def test_a_survivor_that_the_bucket_is_ahead_of_is_restored(tmp_path: Path) -> None:
    """It was away while the others went on. Alone it would give offsets and ids a second time: its start says
    what to do, and nothing of what they acknowledged is missing then."""
    with three(tmp_path, SOON) as cluster:
        send(cluster, values(0, 60))
        node = cluster.brokers.pop(3)
        assert node.stop() == 0
        send(cluster, values(60, 60))
        produce_late(cluster)
        time.sleep(1.5)  # what was decided is in the bucket
        send(cluster, values(120, 60))
        lose(cluster.brokers.values())
        alone = survivor_of(3, node)
        node.override(CHANGED)
        assert "`millrace restore`" in refusal(node)
        metadata = node.folder / "data" / "metadata"
        metadata.rename(node.folder / "set-aside")
        words = [word for key, value in node._overrides.items() for word in ("--override", f"{key}={value}")]
        restore = [sys.executable, "-m", "millrace.broker", "restore", "--take-over"]
        own = ["--from", f"file://{tmp_path}/bucket", "--data-dir", str(node.folder / "data")]
        subprocess.run([*restore, *own, *words], check=True, timeout=PATIENCE_S)
        node.override({"controller.quorum.voters.change.accept": "false"})
        with alone, Client(node.address) as client:
            until(lambda: {*leaders(node).values()} == {3}, "the others' logs are not recovered")
            check_all(alone, values(0, 180))
            assert [client.read("late", index) for index in (0, 1)] == [[b"late"], [b"late"]]


def test_what_the_survivor_does_not_know_is_told_and_not_dropped(tmp_path: Path) -> None:
    """It was away, and the bucket does not know better: the others' logs hold records of a topic that nobody
    knows now. They are kept until somebody says that they are lost; all else is there."""
    with three(tmp_path, SELDOM) as cluster:
        send(cluster, values(0, 60))
        led_by = cluster.leader()  # another one would put the metadata into the bucket as it takes over
        survivor = next(node_id for node_id in cluster.brokers if node_id != led_by)
        node = cluster.brokers.pop(survivor)
        assert node.stop() == 0
        produce_late(cluster)
        lose(cluster.brokers.values())
        gone = [*cluster.brokers]
        alone = survivor_of(survivor, node)
        node.override(CHANGED)
        with alone:
            for node_id in gone:
                waits = rf"opened after what the metadata here knows: stream \d+ of node {node_id}"
                until(lambda waits=waits: logged(node, waits), "it is not told")  # type: ignore[misc]
            for node_id in gone:
                given = ask_cluster(node, "give-up", str(node_id), "--accept-loss")
                assert given.returncode == 0, given
            check_all(alone, values(0, 60))
