"""Kafka's own command-line classes while partitions wait for the write-ahead log of a broker that is gone:
they name what waits, read what objects hold of it, tell no end of it, and write elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.compat.jvm import Jvm
from tests.compat.test_tools import GROUPS, Tools
from tests.live.client import LATEST, Client
from tests.live.cluster import LiveCombined
from tests.live.test_brokers import leaders
from tests.live.test_controllers import QUICK
from tests.live.test_history_without_leader import all_uploaded
from tests.patience import until

TOPIC, PARTITIONS, RECORDS = "spread", 6, 5
PROMPT = {"s3.wal.upload.interval.ms": "500"}
ASKED = 2  # the node that tools are told of
CONSOLE = "consumer.ConsoleConsumer"
HASTE = "default.api.timeout.ms=3000\nrequest.timeout.ms=1000\n"  # of an administrator's client


class Waiting:
    """Three nodes, one of them gone, and its log away. `indexes`: the partitions that wait. `group` has
    committed what it read of all, `other_group` nothing; their coordinator is there."""

    def __init__(self, cluster: LiveCombined, folder: Path, tools: Tools) -> None:
        self.tools = tools
        self.witness = cluster.brokers[ASKED]
        leader = cluster.leader()
        with Client(self.witness.address) as client:
            client.create(TOPIC, PARTITIONS)
            here = (name for name in map("group-{}".format, count()) if _is_here(client, name))
            self.group, self.other_group = next(here), next(here)
        led = leaders(self.witness)
        gone = next(node_id for node_id in cluster.brokers if node_id not in (ASKED, leader))
        self.indexes = [index for index, node_id in led.items() if node_id == gone]
        self.others = [index for index in led if index not in self.indexes]
        for index, node_id in led.items():
            with Client(cluster.brokers[node_id].address) as client:
                client.produce(TOPIC, [b"%d-%d" % (index, at) for at in range(RECORDS)], index)
        read = ("--topic", TOPIC, "--from-beginning", "--max-messages", str(RECORDS * PARTITIONS))
        tools(CONSOLE, *read, "--group", self.group)
        until(lambda: all_uploaded(cluster), "nothing is uploaded")
        node = cluster.brokers.pop(gone)
        node.kill()
        next(Path(node.folder).rglob("wal")).rename(folder / "away")
        waits = "millrace_failover_waiting_brokers"
        until(lambda: cluster.brokers[cluster.leader()].metrics()[waits] == 1, "nobody waits for its log")
        until(lambda: {leaders(self.witness)[index] for index in self.indexes} == {-1}, "it is led")

    def ends(self, cluster: LiveCombined) -> int:
        """How many records there are of the partitions that are led."""
        total = 0
        for index, node_id in leaders(self.witness).items():
            if node_id >= 0:
                with Client(cluster.brokers[node_id].address) as client:
                    total += client.offset(TOPIC, LATEST, index)
        return total


def _is_here(client: Client, group: str) -> bool:
    """Makes the topic of offsets on first need."""
    request = FindCoordinatorRequest(coordinator_keys=[group])
    until(lambda: client.ask("FindCoordinator", request).coordinators[0].error_code == 0, "no coordinator")
    return bool(client.ask("FindCoordinator", request).coordinators[0].node_id == ASKED)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCombined]:
    with LiveCombined(tmp_path_factory.mktemp("nodes"), 3, {**QUICK, **PROMPT}) as started:
        yield started


@pytest.fixture(scope="module")
def waiting(jvm: Jvm, cluster: LiveCombined, tmp_path_factory: pytest.TempPathFactory) -> Waiting:
    tools = Tools(jvm, cluster.brokers[ASKED].address)
    return Waiting(cluster, tmp_path_factory.mktemp("logs"), tools)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of settings, of a tool that gives up soon what nobody can tell it."""
    path = tmp_path_factory.mktemp("settings") / "hasty.properties"
    path.write_text(HASTE)
    return str(path)


def test_what_waits_is_named(waiting: Waiting) -> None:
    """kafka-topics: they have no leader; kafka-leader-election: the preferred one is not there."""
    described = partial(waiting.tools, "TopicCommand", "--describe", "--topic", TOPIC)
    for asked in ("--unavailable-partitions", "--under-min-isr-partitions"):
        told = re.findall(r"Partition: (\d+)\s+Leader: (\S+)", described(asked))
        assert told == [(str(index), "none") for index in waiting.indexes], asked
    assert set(re.findall(r"Partition: (\d+)\s+Leader: \d", described())) == set(map(str, waiting.others))
    election = ("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    refused = re.findall(rf"{TOPIC}-(\d+): \S+PreferredLeaderNotAvailable", waiting.tools(*election, code=1))
    assert sorted(refused) == [str(index) for index in waiting.indexes]


def test_what_objects_hold_is_read(waiting: Waiting) -> None:
    """kafka-console-consumer, of one partition, and of all in a group under another name than its own."""
    read = ("--topic", TOPIC, "--max-messages", str(RECORDS))
    for index in waiting.indexes:
        found = waiting.tools(CONSOLE, *read, "--partition", str(index), "--offset", "earliest")
        assert found.split() == [f"{index}-{at}" for at in range(RECORDS)]
    joined = ("--from-beginning", "--group", waiting.other_group, "--command-property", "client.id=billing")
    found = waiting.tools(CONSOLE, "--topic", TOPIC, "--max-messages", str(RECORDS * PARTITIONS), *joined)
    assert sorted(found.split()) == [f"{index}-{at}" for index in range(PARTITIONS) for at in range(RECORDS)]


def test_offsets_are_told_where_they_are_known(waiting: Waiting, hasty: str) -> None:
    """kafka-get-offsets: the beginnings of all, and the ends of those that are led; kafka-consumer-groups: no
    lag of what waits."""
    asked = partial(waiting.tools, "GetOffsetShell", "--topic", TOPIC, "--command-config", hasty)
    assert asked("--time", "earliest").split() == [f"{TOPIC}:{index}:0" for index in range(PARTITIONS)]
    ends = re.findall(rf"^{TOPIC}:(\d+):\d+$", asked("--time", "latest"), re.MULTILINE)
    assert ends == list(map(str, waiting.others))
    lines = waiting.tools(GROUPS, "--describe", "--group", waiting.group).splitlines()
    told = {int(words[2]): words[3:6] for words in map(str.split, lines) if words[1:2] == [TOPIC]}
    read = str(RECORDS)
    assert told == {
        index: [read, "-", "-"] if index in waiting.indexes else [read, read, "0"]
        for index in range(PARTITIONS)
    }


def test_what_may_go_to_any_partition_goes_to_those_that_are_led(
    waiting: Waiting, cluster: LiveCombined
) -> None:
    """kafka-console-producer, under its own name and another: each fills a partition of its choice, which
    may be any of the six."""
    before, sent = waiting.ends(cluster), 0
    haste = ("delivery.timeout.ms=3000", "request.timeout.ms=1000", "linger.ms=0")
    for name in ("console-producer", "billing") * 4:
        options = [word for one in (*haste, f"client.id={name}") for word in ("--command-property", one)]
        waiting.tools("ConsoleProducer", "--topic", TOPIC, *options, given="a\nb\nc\n")
        sent += 3
    assert waiting.ends(cluster) - before == sent


def test_a_move_that_waits_is_under_way_and_is_taken_back(waiting: Waiting, tmp_path: Path) -> None:
    """kafka-reassign-partitions, of one of those that wait: verified and listed as under way, cancelled, and
    then none. Last here, for it changes what is told of it."""
    index, plan = waiting.indexes[0], tmp_path / "plan.json"
    moved = {"topic": TOPIC, "partition": index, "replicas": [ASKED]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    reassign = partial(waiting.tools, "reassign.ReassignPartitionsCommand")
    named = ("--reassignment-json-file", str(plan))
    assert "No partition reassignments" in reassign("--list")
    assert "Successfully started" in reassign(*named, "--execute")
    assert f"{TOPIC}-{index} is still in progress" in reassign(*named, "--verify")
    (told,) = re.findall(
        rf"{TOPIC}-{index}: replicas: (\S+)\. adding: (\d)\. removing: (\d)", reassign("--list")
    )
    gone = told[2]
    assert told == (f"{ASKED},{gone}", str(ASKED), gone)
    assert "Successfully cancelled" in reassign(*named, "--cancel")
    assert "No partition reassignments" in reassign("--list")
    told_now = reassign(*named, "--verify")
    assert f"replica set is {gone} rather than {ASKED}" in told_now
    assert "None of the specified partition reassignments are active" in reassign(*named, "--cancel")
