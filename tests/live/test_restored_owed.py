"""Clusters that are lost while partitions move, and the bucket's metadata is older than the logs of blocks:
what each of these owes of a stream is there after the restore, in whatever cluster, and once."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.runtime.objectstore.folder import NEW_FOLDER
from tests.live.barred import Barred
from tests.live.client import Client
from tests.live.cluster import CLUSTER, LiveNodes, logged
from tests.live.restored import (
    BLOCKS,
    OBJECTS,
    RUN_S,
    SAVED_MS,
    LiveAlone,
    ask_cluster,
    check,
    combined,
    lose,
    restore,
    settings_of,
)
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders
from tests.live.traffic import Traffic
from tests.patience import until

NODES = (1, 2, 3)


class Moving:
    """Three nodes at work; who led which partition at first."""

    def __init__(self, folder: Path, kind: str = BLOCKS) -> None:
        self.cluster = combined(folder, len(NODES), kind)
        self.data = Barred(folder, f"{CLUSTER}/objects")
        self.metadata = Barred(folder, f"{CLUSTER}/metadata/log")
        self.puts = Barred(folder, NEW_FOLDER)  # of whatever: what is there is read on

    def run(self, trouble: Callable[[Moving], None]) -> Traffic:
        with self.cluster as cluster:
            with Client(cluster.addresses[0]) as client:
                client.create(TOPIC, PARTITIONS)
            self.led = leaders(cluster.brokers[1])
            self.traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
            self.traffic.start()
            try:
                time.sleep(RUN_S + 3 * SAVED_MS / 1000)
                trouble(self)
                self.wait_written()
            finally:
                self.traffic.finish()
        return self.traffic

    def move(self, steps: int, of: tuple[int, ...] = NODES) -> None:
        """Each partition that one `of` these led at first to the node that is so many behind it."""
        targets = dict(self.led)
        for index, node in self.led.items():
            if node in of:
                targets[index] = NODES[(NODES.index(node) + steps) % len(NODES)]
        with Client(self.cluster.addresses[0]) as client:
            for index, target in targets.items():
                if self.led[index] in of:
                    client.move(TOPIC, [index], target)
        until(lambda: leaders(self.cluster.brokers[1]) == targets, "they stay")
        self.wait_written()

    def wait_written(self) -> None:
        def counts() -> list[int]:
            with self.traffic.lock:
                return [len(one) for one in self.traffic.told.acknowledged]

        before = counts()
        is_on = lambda: all(now > was + 10 for now, was in zip(counts(), before, strict=True))  # noqa: E731
        until(is_on, "a partition takes nothing")


def moved_twice(moving: Moving) -> None:
    """The bucket knows of no move: it has each partition open at its first node."""
    moving.puts.bar()
    moving.move(1)
    moving.move(2)


def moved_once(moving: Moving, of: tuple[int, ...] = NODES) -> None:
    """The bucket knows what each first node owes, and not that it has uploaded that since."""
    moving.data.bar()
    moving.move(1, of)
    time.sleep(3 * SAVED_MS / 1000)
    moving.metadata.bar()
    moving.data.lift()


def moved_back(moving: Moving) -> None:
    """Nor that this leads again."""
    moved_once(moving)
    moving.move(0)


def moved_from(moving: Moving) -> None:
    """The bucket knows of no move from the third node, whose partitions are the first one's by now."""
    moving.puts.bar()
    moving.move(1, (3,))


def moved_from_and_known(moving: Moving) -> None:
    moved_once(moving, (3,))


def alone(folder: Path, kind: str = BLOCKS) -> LiveNodes:
    return LiveAlone(folder, settings_of(folder, kind))


def the_same(folder: Path, kind: str = BLOCKS) -> LiveNodes:
    return combined(folder, 3, kind)


def others(folder: Path, kind: str = BLOCKS) -> LiveNodes:
    return combined(folder, 3, kind, first=11)


@contextmanager
def restored(cluster: LiveNodes, folder: Path, *words: str) -> Iterator[None]:
    """Of a bucket that has ranges owed: it runs, and leads all."""
    first = next(iter(cluster.brokers.values()))
    told = restore(first, folder, *words)
    assert "it owes some of" in told, told
    with cluster:
        until(lambda: {*leaders(first).values()} <= {*cluster.brokers}, "partitions wait")
        yield


@pytest.mark.parametrize("after", [the_same, alone, others])
@pytest.mark.parametrize("kind", [BLOCKS, OBJECTS])
def test_what_the_bucket_has_owed_is_recovered(
    tmp_path: Path, kind: str, after: Callable[[Path, str], LiveNodes]
) -> None:
    """From the logs that owe it, wherever the partitions go."""
    moving = Moving(tmp_path, kind)
    traffic = moving.run(moved_once)
    moving.metadata.lift()
    lose(moving.cluster)
    cluster = after(tmp_path, kind)
    with restored(cluster, tmp_path, *(["--new-node"] if after is others else [])):
        print(f"{check(cluster, traffic)} records")


@pytest.mark.parametrize("after", [the_same, alone, others])
@pytest.mark.parametrize("trouble", [moved_back, moved_twice])
def test_what_several_logs_hold_of_a_stream_is_all_there(
    tmp_path: Path, trouble: Callable[[Moving], None], after: Callable[[Path], LiveNodes]
) -> None:
    """Each node starts, or another recovers its log; and after one more restart of all nothing has
    changed."""
    moving = Moving(tmp_path)
    traffic = moving.run(trouble)
    (moving.metadata if trouble is moved_back else moving.puts).lift()
    lose(moving.cluster)
    cluster = after(tmp_path)
    with restored(cluster, tmp_path, *(["--new-node"] if after is others else [])):
        print(f"{check(cluster, traffic)} records")
        for node in cluster.brokers.values():
            node.kill()
        for node in cluster.brokers.values():
            node.begin()
        for node in cluster.brokers.values():
            node.wait_ready()
        print(f"{check(cluster, traffic)} records")


def kept(traffic: Traffic, lost: dict[int, tuple[int, int]]) -> None:
    """Nothing is missing of what was acknowledged but these offsets, and no offset has another record."""
    found = traffic.found().records
    for index, acknowledged in enumerate(traffic.told.acknowledged):
        start, end = lost.get(index, (0, 0))
        there = dict(found[index])
        assert len(there) == len({*there.values()}), index
        expected = {offset: value for value, offset in acknowledged.items() if not start <= offset < end}
        assert {offset: there.get(offset) for offset in expected} == expected, index
        assert not any(start <= offset < end for offset in there), index


def given_up(told: str) -> dict[int, tuple[int, int]]:
    """By partition of the topic, [start, end) of what is given up."""
    found = re.findall(rf"^{TOPIC}:(\d+): records from offset (\d+) to (\d+) ", told, re.MULTILINE)
    return {int(index): (int(start), int(last) + 1) for index, start, last in found}


@pytest.mark.parametrize("trouble", [moved_from_and_known, moved_from])
def test_a_lost_log_that_owes_is_named_and_given_up_by_word(
    tmp_path: Path, trouble: Callable[[Moving], None]
) -> None:
    """One disk is gone, and what it owed of partitions that others went on with is in no other place: the
    restore names these ranges with both ends, nothing is stepped over before the word, and by the word that
    alone is."""
    moving = Moving(tmp_path)
    traffic = moving.run(trouble)
    (moving.puts if trouble is moved_from else moving.metadata).lift()
    lose(moving.cluster)
    shutil.rmtree(tmp_path / "node3")
    cluster = alone(tmp_path)
    node = cluster.brokers[1]
    told = restore(node, tmp_path)
    assert "node 3: the block log" in told
    assert "opened after the bucket's newest metadata is not known; it is not seen from here" in told
    of_third = {index for index, leader in moving.led.items() if leader == 3}
    waiting = told.partition("not seen from here, and not lost while")[2]
    named = dict(re.findall(rf"{TOPIC}-(\d+): offsets (\[\d+, \d+\)): .* node 3 alone", waiting))
    assert {int(index) for index in named} >= of_third, told
    with cluster:
        until(lambda: logged(node, "broker 3: its partitions wait for it"), "nobody says why")
        assert "wait for broker 3, or for its write-ahead log" in ask_cluster(cluster, "status", code=1)
        lost = given_up(ask_cluster(cluster, "give-up", "3", "--accept-loss"))
        assert lost.keys() >= of_third
        until(lambda: {*leaders(node).values()} == {1}, "it does not lead all")
        for index in of_third:
            assert named[str(index)] == "[{}, {})".format(*lost[index])
        traffic.move_to(cluster.addresses)
        kept(traffic, lost)
        ask_cluster(cluster, "unregister", "3")
        ask_cluster(cluster, "unregister", "2")
        ask_cluster(cluster, "status")
        node.restart()
        kept(traffic, lost)


def test_a_lost_log_of_its_own_start_is_given_up_by_its_setting(tmp_path: Path) -> None:
    """The node that is restored has lost its disk: it names what it owed, asks for the word, and what others
    have behind that is there."""
    moving = Moving(tmp_path)
    traffic = moving.run(moved_from)
    moving.puts.lift()
    lose(moving.cluster)
    shutil.rmtree(tmp_path / "node3")
    cluster = LiveAlone(tmp_path, settings_of(tmp_path, BLOCKS), 3)
    node = cluster.brokers[3]
    told = restore(node, tmp_path, code=1)
    of_third = {index for index, leader in moving.led.items() if leader == 3}
    named = re.findall(rf"{TOPIC}-(\d+): offsets \[(\d+), (\d+)\): ", told.partition("missing:")[2])
    lost = {int(index): (int(start), int(end)) for index, start, end in named}
    assert lost.keys() >= of_third, told
    node.begin()
    assert node.wait_end() != 0
    node.override({"wal.lost.accept": "true"})
    with cluster:
        until(lambda: {*leaders(node).values()} == {3}, "it does not lead all")
        traffic.move_to(cluster.addresses)
        kept(traffic, lost)


def test_a_cluster_that_is_lost_again_as_it_starts_is_restored_again(tmp_path: Path) -> None:
    """One node of three, killed as soon as it is ready: the logs of the others may be recovered, or not, and
    the bucket may know what they owed, or not yet."""
    moving = Moving(tmp_path)
    traffic = moving.run(moved_twice)
    moving.puts.lift()
    lose(moving.cluster)
    cluster = alone(tmp_path)
    node = cluster.brokers[1]
    for pause_s in (0.0, 0.5, 2.0):
        restore(node, tmp_path)
        node.begin()
        node.wait_ready()
        time.sleep(pause_s)
        lose(cluster)
    restore(node, tmp_path)
    with cluster:
        until(lambda: {*leaders(node).values()} == {1}, "partitions wait")
        print(f"{check(cluster, traffic)} records")


def test_logs_that_were_not_at_hand_are_not_dropped(tmp_path: Path) -> None:
    """The restore saw one log of three, as of three machines with a disk each, and partitions have moved over
    all of them. What has no place in what was restored is named, and its node asks for the word; restored
    once more with the logs at hand, all is there."""
    moving = Moving(tmp_path)
    traffic = moving.run(moved_twice)
    moving.puts.lift()
    lose(moving.cluster)
    cluster = the_same(tmp_path)
    node, *elsewhere = cluster.brokers.values()
    for one in elsewhere:
        (one.folder / "data" / "wal").rename(one.folder / "away")
    told = restore(node, tmp_path, code=1)
    assert re.search(r"stream \d+ of node 1: offsets \[", told), told
    assert told.count("opened after the bucket's newest metadata is not known") == len(elsewhere), told
    for one in elsewhere:
        (one.folder / "away").rename(one.folder / "data" / "wal")
    for one in cluster.brokers.values():
        one.begin()
    assert node.wait_end() != 0
    assert logged(node, r"holds records of \d+ streams that were opened after what the metadata here knows")
    lose(cluster)
    restore(node, tmp_path)
    with cluster:
        print(f"{check(cluster, traffic)} records")
