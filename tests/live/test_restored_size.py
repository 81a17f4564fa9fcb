"""A cluster that is lost on every machine is built again from its bucket with other nodes: one of three,
three of one, three with other ids of five. What clients were told before holds after it."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from pathlib import Path

import pytest

from millrace.protocol.ids import uuid_text
from tests.live.client import Client
from tests.live.cluster import CLUSTER, LiveCluster, LiveCombined, LiveNodes, logged
from tests.live.restored import (
    BLOCKS,
    OBJECTS,
    SAVED_MS,
    LiveAlone,
    ask_cluster,
    check,
    combined,
    history,
    lose,
    restore,
    settings_of,
)
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders, producer
from tests.live.test_failover import send, values
from tests.live.voters import LiveVoters
from tests.patience import until

OPENED_SINCE = "streams that were opened after what the metadata here knows: stream "
KINDS = pytest.mark.parametrize("kind", [OBJECTS, BLOCKS])


@KINDS
def test_three_nodes_become_one(tmp_path: Path, kind: str) -> None:
    """A quorum of one, with no voters in its settings: it recovers the logs of the two that are gone, leads
    all, and they are forgotten by word."""
    with combined(tmp_path, 3, kind) as before:
        traffic = history(before, moved=[3, 2, 1])
    lose(before)
    alone = LiveAlone(tmp_path, settings_of(tmp_path, kind))
    told = restore(alone.brokers[1], tmp_path)
    assert "is there, and is recovered by node 2, or by another that reaches it" in told
    with alone:
        until(lambda: {*leaders(alone.brokers[1]).values()} == {1}, "it does not lead all")
        print(f"{check(alone, traffic)} records")
        assert "gone, or starts" in ask_cluster(alone, "status", code=1)
        for node_id in ("2", "3"):
            ask_cluster(alone, "unregister", node_id)
        ask_cluster(alone, "status")
        alone.brokers[1].restart()
        print(f"{check(alone, traffic)} records")


@KINDS
def test_one_node_becomes_three(tmp_path: Path, kind: str) -> None:
    with LiveAlone(tmp_path, settings_of(tmp_path, kind)) as before:
        traffic = history(before)
    lose(before)
    after = combined(tmp_path, 3, kind)
    told = restore(after.brokers[1], tmp_path)
    assert "The other voters are started with empty log directories" in told
    with after:
        print(f"{check(after, traffic)} records")
        ask_cluster(after, "spread")
        assert {*leaders(after.brokers[2]).values()} == {1, 2, 3}
        print(f"{check(after, traffic)} records")


@KINDS
def test_five_nodes_become_three_others(tmp_path: Path, kind: str) -> None:
    """None of the five comes back: the three have other ids, and nothing of them but what they reach."""
    with combined(tmp_path, 5, kind) as before:
        traffic = history(before, moved=[5, 4, 3])
    lose(before)
    after = combined(tmp_path, 3, kind, first=11)
    told = restore(after.brokers[11], tmp_path, code=2)
    assert "node 11 is no node of this cluster, whose metadata knows 1, 2, 3, 4, 5" in told
    told = restore(after.brokers[11], tmp_path, "--new-node")
    assert "Of brokers 1, 2, 3, 4, 5 those that do not start again are gone" in told
    with after:
        until(lambda: {*leaders(after.brokers[12]).values()} <= {11, 12, 13}, "partitions wait")
        print(f"{check(after, traffic)} records")
        for node_id in "12345":
            ask_cluster(after, "unregister", node_id)
        ask_cluster(after, "status")


def test_a_log_that_is_lost_too_is_told_and_given_up(tmp_path: Path) -> None:
    """Of three nodes with logs of blocks one's disk is gone: the restore names what may be missing, the
    restored node leads all else, and what was only there is given up by word, partition by partition."""
    with combined(tmp_path, 3, BLOCKS) as before:
        traffic = history(before)
        of_third = [index for index, leader in leaders(before.brokers[1]).items() if leader == 3]
    lose(before)
    shutil.rmtree(tmp_path / "node3")
    alone = LiveAlone(tmp_path, settings_of(tmp_path, BLOCKS))
    told = restore(alone.brokers[1], tmp_path)
    for index in range(PARTITIONS):
        is_told = f"-{index}: offsets from " in told.partition("not seen from here, and not lost")[2]
        assert is_told == (index in of_third), told
    assert "millrace cluster give-up 3 --accept-loss" in told
    with alone:
        node = alone.brokers[1]
        others = {index: 1 for index in range(PARTITIONS) if index not in of_third}
        until(lambda: leaders(node) == {**others, **dict.fromkeys(of_third, -1)}, "they are not led")
        until(lambda: logged(node, "broker 3: its partitions wait for it"), "nobody says why")
        assert "wait for broker 3, or for its write-ahead log" in ask_cluster(alone, "status", code=1)
        assert "what was acknowledged may be in its write-ahead log alone" in ask_cluster(
            alone, "unregister", "3", code=1
        )
        ends = given_up(ask_cluster(alone, "give-up", "3", "--accept-loss"))
        assert sorted(ends) == of_third
        until(lambda: {*leaders(node).values()} == {1}, "it does not lead all")
        ask_cluster(alone, "unregister", "3")
        traffic.move_to(alone.addresses)
        found = traffic.found().records
        for index, acknowledged in enumerate(traffic.told.acknowledged):
            end = ends.get(index, 1 << 60)
            kept = {offset: value for value, offset in acknowledged.items() if offset < end}
            there = dict(found[index])
            assert {offset: there.get(offset) for offset in kept} == kept, index
            assert index not in ends or len(there) == ends[index]


def test_voters_that_stand_in_the_log_become_others(tmp_path: Path) -> None:
    """Three of kraft.version 1, one of which came later: the restore says who voted, and begins a quorum of
    three others that it names, or of one."""
    settings = settings_of(tmp_path, OBJECTS)
    with LiveVoters(tmp_path, 3, settings) as before:
        before.add(2)
        before.add(3)
        traffic = history(before)
        directories = {node_id: before.directory_id(node_id) for node_id in before.brokers}
    lose(before)
    after = LiveVoters(tmp_path, 3, settings, is_formatted=False, first=11)
    drawn = {node_id: uuid_text(bytes([node_id] * 16)) for node_id in after.brokers}
    first = ",".join(f"{one}@{after.controllers[one]}:{drawn[one]}" for one in drawn)
    told = restore(after.brokers[11], tmp_path, "--new-node", "--initial-controllers", first)
    for node_id, directory in directories.items():
        assert f"{node_id}@{before.controllers[node_id]}:{directory}" in told
    assert "Voter 12 is formatted with the same --initial-controllers" in told
    for node_id in (12, 13):
        after.format(node_id, "--initial-controllers", first)
    with after:
        until(lambda: {*leaders(after.brokers[12]).values()} <= {11, 12, 13}, "partitions wait")
        assert "3 voters" in ask_cluster(after, "status", code=1)
        print(f"{check(after, traffic)} records")
        leader = after.leader()
        after.brokers[leader].restart()
        assert after.leader() in {11, 12, 13}
    lose(after)
    alone = LiveVoters(tmp_path, 1, settings, is_formatted=False, first=12)
    told = restore(alone.brokers[12], tmp_path, "--standalone")
    for node_id, directory in drawn.items():
        assert f"{node_id}@{after.controllers[node_id]}:{directory}" in told
    with alone:
        until(lambda: {*leaders(alone.brokers[12]).values()} == {12}, "partitions wait")
        assert "1 voter," in ask_cluster(alone, "status", code=1)
        print(f"{check(alone, traffic)} records")


def test_controllers_apart_ask_for_the_word_where_records_are_missing(tmp_path: Path) -> None:
    """Three controllers and two brokers become one controller and two other brokers, from a bucket whose
    newest metadata is damaged: the controller serves nobody before the word, and asks for it once."""
    overrides = settings_of(tmp_path, OBJECTS)
    with LiveCluster(tmp_path, 3, 2, overrides) as before:
        history(before)
    lose(before)
    for controller in before.quorum.nodes.values():
        shutil.rmtree(controller.folder / "data" / "metadata")
    newest = max((tmp_path / "bucket" / CLUSTER / "metadata" / "log").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")
    after = LiveCluster(tmp_path, 1, 2, overrides, first=201)
    controller = after.quorum.nodes[1]
    told = restore(after.brokers[201], tmp_path, "--new-node", code=2)
    assert "a broker that is no controller (process.roles) is not restored" in told
    told = restore(controller, tmp_path, code=1)
    assert f"{TOPIC}-0: offsets from " in told
    assert "with wal.lost.accept=true for this one start" in told
    controller.begin()
    assert controller.wait_end() != 0
    assert logged(controller, "was restored without acknowledged records")
    controller.override({"wal.lost.accept": "true"})
    with after:
        until(lambda: {*leaders(after.brokers[201]).values()} <= {201, 202}, "partitions wait")
        send(after, values(900_000, 60))
        del controller._overrides["wal.lost.accept"]
        controller.restart()
        send(after, values(900_060, 60))


def test_who_was_still_at_work_is_found_by_a_voter_of_several(tmp_path: Path) -> None:
    """The cluster was restored from while it lived: the restored voter serves nobody, and the old leader does
    its duties no more."""
    settings = settings_of(tmp_path, OBJECTS)
    with combined(tmp_path, 3, OBJECTS) as before:
        history(before)
        after = combined(tmp_path, 3, OBJECTS, first=11)
        restore(after.brokers[11], tmp_path, "--new-node")
        with Client(before.addresses[0]) as client:
            client.create("later")
        time.sleep(3 * SAVED_MS / 1000)
        leader = before.brokers[before.leader()]
        after.brokers[11].begin()
        assert after.brokers[11].wait_end() != 0
        assert logged(after.brokers[11], "the process that had the node was still at work")
        until(lambda: not leader.is_running() or logged(leader, "another controller does them"), "it goes on")
    lose(before)
    shutil.rmtree(after.brokers[11].folder / "data" / "metadata")
    alone = LiveAlone(tmp_path, settings)
    restore(alone.brokers[1], tmp_path)
    with alone, Client(alone.addresses[0]) as client:
        assert "later" in client.topic_ids()


@pytest.mark.parametrize("size", [1, 3])
def test_topics_that_the_bucket_does_not_know_are_given_up_by_word(tmp_path: Path, size: int) -> None:
    """Records of a topic that was made in the last seconds lie in logs of blocks alone, and nobody knows
    whose they are: the restore names them for each log, each node asks for the word before it drops them, and
    a log that another recovers waits for one. All else is there."""
    seldom = {**settings_of(tmp_path, BLOCKS), "s3.metadata.upload.interval.ms": "6000"}
    with LiveCombined(tmp_path, 3, seldom) as before:
        traffic = history(before)
        time.sleep(7)
        with Client(before.addresses[0]) as client:
            client.create("late", 6)
        send_to(before, "late", 60)
    lose(before)
    after: LiveNodes = LiveAlone(tmp_path, seldom) if size == 1 else LiveCombined(tmp_path, 3, seldom)
    told = restore(after.brokers[1], tmp_path, code=1).partition("of streams that were made after")[2]
    for node_id in (1, 2, 3):
        assert re.search(rf"stream \d+ of node {node_id}: offsets \[0, ", told)
    with contextlib.ExitStack() as stack:
        stack.push(after.__exit__)
        (give_up_of_others if size == 1 else give_up_by_each)(after)
        print(f"{check(after, traffic)} records")
        with Client(after.addresses[0]) as client:
            assert "late" not in client.topic_ids()


def give_up_of_others(alone: LiveNodes) -> None:
    """By a word at its own start, and by one for the log of each that is gone."""
    node = alone.brokers[1]
    node.begin()
    assert node.wait_end() != 0
    assert logged(node, OPENED_SINCE)
    node.override({"wal.lost.accept": "true"})
    node.start()
    for node_id in (2, 3):
        waits = f"broker {node_id}: its partitions wait for it, for nobody .*{OPENED_SINCE}"
        until(lambda waits=waits: logged(node, waits), "it does not wait")
        ask_cluster(alone, "give-up", str(node_id), "--accept-loss")


def give_up_by_each(cluster: LiveNodes) -> None:
    """A majority has to run while the others ask for the word."""
    first, *others = cluster.brokers.values()
    first.override({"wal.lost.accept": "true"})
    for one in (first, *others):
        one.begin()
    for one in others:
        assert one.wait_end() != 0
        assert logged(one, OPENED_SINCE)
        one.override({"wal.lost.accept": "true"})
    for one in others:
        one.begin()
    for one in (first, *others):
        one.wait_ready()


def send_to(cluster: LiveNodes, topic: str, count: int) -> None:
    sender = producer(cluster)
    try:
        for sent in [sender.send(topic, b"late", partition=number % 6) for number in range(count)]:
            sent.get(60)
    finally:
        sender.close()


def given_up(told: str) -> dict[int, int]:
    """By partition of the topic, from which offset on."""
    found = re.findall(rf"^{TOPIC}:(\d+): records from offset (\d+) on", told, re.MULTILINE)
    return {int(index): int(end) for index, end in found}
