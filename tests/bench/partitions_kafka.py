"""The same seen of three nodes of Apache Kafka: what partitions cost them. Used by partitions.py.

Three replicas of each partition, as Kafka keeps three copies where ours keep one in the bucket; all else as
it comes. At each size:

    commits     CreateTopics and DeleteTopics of one partition, eight at a time: CPU of all nodes for one
    opens       first records to partitions that have none: CPU of all nodes a partition
    memory      resident, of a node, the mean
    election    from the kill of the controller that leads until another has committed a command; the node is
                started again

A size that is not reached within GROWS_S (topics made, all replicas in sync, each partition with a record) is
said to be beyond this machine, with the reason, and no larger one is tried.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.bench.cluster_kafka import leaders_of, quorum_leader
from tests.bench.report import Row, table
from tests.compat.rolled.nodes import COUNT, KafkaNodes
from tests.live.client import Client
from tests.patience import until

NAME = "Apache Kafka"
SIZES = (10, 100, 1_000, 10_000)
PER_TOPIC = 1_000
GROWS_S = 600.0
COMMITS, AT_ONCE = 400, 8
VALUE = b"first"


class TooLarge(Exception):
    """The argument says why."""


class ManyOfKafka:
    def __init__(self, nodes: KafkaNodes) -> None:
        self._nodes = nodes
        self._count = 0
        self._topics = 0

    def grow(self, partitions: int) -> list[Row]:
        """Raises TooLarge."""
        open_us = self._open(partitions - self._count, time.monotonic() + GROWS_S)
        self._count = partitions
        commit_us, commits_a_second = self._commit(partitions)
        memory_bytes = statistics.mean(self._nodes.memory_bytes())
        election_s = self._elect(partitions)
        return [
            Row(f"{NAME}, {partitions:,} partitions: CPU a commit", f"{commit_us:.0f} us"),
            Row("  commits a second", f"{commits_a_second:.0f}", f"{AT_ONCE} at a time"),
            Row("  CPU a partition's first record", f"{open_us:.0f} us"),
            Row("  memory of a node", f"{memory_bytes / 2**20:.0f} MiB", f"{COUNT} copies of each partition"),
            Row("  election", f"{election_s:.2f} s"),
        ]

    def _open(self, partitions: int, ends_s: float) -> float:
        before_s, left = self._nodes.cpu_seconds(), partitions
        while left:
            name, count = f"many-{self._topics}", min(left, PER_TOPIC)
            self._make(name, count, ends_s)
            self._topics, left = self._topics + 1, left - count
            with Client(self._nodes.addresses[0]) as client:
                led = leaders_of(client, name)
            for node_id, address in self._nodes.by_id.items():
                with Client(address) as client:
                    for index in (index for index, leader in led.items() if leader == node_id):
                        while client.send(name, [VALUE], index).error_code:
                            _check(ends_s, f"{name}:{index} takes no record")
        while not self._nodes.is_whole():
            _check(ends_s, "not all replicas are in sync")
            time.sleep(1)
        return 1e6 * (self._nodes.cpu_seconds() - before_s) / partitions

    def _make(self, name: str, partitions: int, ends_s: float) -> None:
        timeout_ms = max(1, int(1000 * (ends_s - time.monotonic())))
        with Client(self._nodes.addresses[0], timeout_ms / 1000 + 1) as client:
            request = CreateTopicsRequest([CreatableTopic(name, partitions, COUNT)], timeout_ms)
            try:
                (answer,) = client.ask("CreateTopics", request).topics
            except OSError as error:
                raise TooLarge(f"CreateTopics of {partitions}: {error!r}") from error
        if answer.error_code:
            raise TooLarge(f"CreateTopics of {partitions}: error {answer.error_code}, {answer.error_message}")
        while True:
            with Client(self._nodes.addresses[0]) as client:
                led = leaders_of(client, name)
            if len(led) == partitions and -1 not in led.values():
                return
            _check(ends_s, f"{name} has no leaders")
            time.sleep(0.2)

    def _commit(self, round_number: int) -> tuple[float, float]:
        """CPU of all nodes for one, in us, and how many a second."""

        def commit_some(worker: int) -> None:
            with Client(self._nodes.addresses[worker % COUNT]) as client:
                for number in range(COMMITS // AT_ONCE // 2):
                    topic = f"one-{round_number}-{worker}-{number}"
                    client.create(topic)
                    until(lambda topic=topic: client.delete(topic) == 0, "it cannot be deleted")  # type: ignore[misc]

        before_s, began_s = self._nodes.cpu_seconds(), time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(commit_some, range(AT_ONCE)))
        spent_s = time.monotonic() - began_s
        return 1e6 * (self._nodes.cpu_seconds() - before_s) / COMMITS, COMMITS / spent_s

    def _elect(self, round_number: int) -> float:
        with Client(self._nodes.addresses[0]) as client:
            controller = quorum_leader(client)
        other = next(address for node_id, address in self._nodes.by_id.items() if node_id != controller)
        with Client(other) as client:
            began_s = time.monotonic()
            self._nodes.kill(controller)
            client.create(f"elected-{round_number}")
            elected_s = time.monotonic() - began_s
            assert client.delete(f"elected-{round_number}") == 0  # its one replica is none of three
        self._nodes.begin(controller)
        until(self._nodes.is_whole, "the node that was killed does not come back", pause_s=1.0)
        return elected_s


def _check(ends_s: float, why: str) -> None:
    if time.monotonic() > ends_s:
        raise TooLarge(f"{why} within {GROWS_S:.0f} s")


def measure(folder: Path, sizes: Sequence[int]) -> list[Row]:
    """Prints each size as it is done."""
    folder.mkdir()
    rows: list[Row] = []
    with KafkaNodes(folder) as nodes:
        many = ManyOfKafka(nodes)
        for size in sizes:
            try:
                found = many.grow(size)
            except (TooLarge, OSError, AssertionError) as error:
                found = [
                    Row(f"{NAME}, {size:,} partitions", "not reached", f"on this machine: {error}"[:200])
                ]
            rows += found
            print(table(found), flush=True)
            if len(found) == 1:
                break
    return rows
