"""What a hundred thousand partitions cost a cluster: its metadata's commits, memory, starts, elections.

    python -m tests.bench.partitions [--sizes 10,100,1000,10000,30000,100000] [--per-topic 1000]

Three nodes on this machine, each broker and controller, that grow from size to size. `--kafka-sizes` are
those that three nodes of Apache Kafka are brought to beside them (partitions_kafka.py). Every partition has
taken a record, so each has its three streams, and is open. At each size:

    commits     CreateTopics and DeleteTopics of one partition, eight at a time: how many a second, and CPU of
                all nodes for one
    opens       first records to partitions that have none: CPU of all nodes a partition
    memory      what a node grew by since the first size, a partition
    start       a node that was stopped, and one that was killed, until it is ready
    election    from the kill of the controller that leads until another has committed a command

Exit code 1 when a target is MISSED.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.bench import partitions_kafka
from tests.bench.report import Row, exit_code, table
from tests.live import LiveBroker
from tests.live.client import VERSION_BY_NAME, Client, batch_of
from tests.live.cluster import LiveCombined, offset_of
from tests.live.test_brokers import leaders
from tests.patience import PATIENCE_S, until

SIZES = (10, 100, 1_000, 10_000, 30_000, 100_000)
PER_TOPIC = 1_000
COMMITS, AT_ONCE = 400, 8
STEADY_MAX = 1.5  # what a commit costs at the largest size, beside the smallest
SECONDS_MAX = 5.0
OPENED_A_REQUEST = 200
WAL_MIB = 512
ALL_S = 600.0  # for a request of many partitions


@dataclass(frozen=True, slots=True)
class Size:
    """What was seen at one size. `memory_bytes`: of each node, the mean."""

    partitions: int
    commits_a_second: float
    commit_us: float
    open_us: float
    memory_bytes: float
    stopped_start_s: float
    killed_start_s: float
    election_s: float


class ManyPartitions:
    def __init__(self, cluster: LiveCombined, per_topic: int) -> None:
        self._cluster = cluster
        self._per_topic = per_topic
        self._count = 0  # of partitions
        self._topics: dict[str, int] = {}  # and how many each has

    @property
    def _nodes(self) -> list[LiveBroker]:
        return list(self._cluster.brokers.values())

    def grow(self, partitions: int) -> Size:
        added = self._added(partitions - self._count)
        open_us = self._open(added)
        self._topics |= added
        self._count = partitions
        self._settle()
        commits_a_second, commit_us = self._commit(partitions)
        memory_bytes = statistics.mean(node.memory_bytes() for node in self._nodes)
        controller = self._cluster.leader()
        follower = next(node for node_id, node in self._cluster.brokers.items() if node_id != controller)
        assert follower.stop() == 0
        stopped_s = follower.start().ready_seconds
        self._settle()
        follower.kill()
        killed_s = follower.start().ready_seconds
        self._settle()
        election_s = self._elect(partitions)
        self._settle()
        return Size(
            partitions, commits_a_second, commit_us, open_us, memory_bytes, stopped_s, killed_s, election_s
        )

    def _added(self, partitions: int) -> dict[str, int]:
        """Topics of `per_topic` at most, so many partitions together."""
        wholes, rest = divmod(partitions, self._per_topic)
        sizes = [self._per_topic] * wholes + [rest] * bool(rest)
        return {f"many-{len(self._topics) + number}": size for number, size in enumerate(sizes)}

    def _settle(self) -> None:
        """Returns when the nodes have applied the same, and write nothing of their own accord."""
        until(lambda: len({offset_of(node) for node in self._nodes}) == 1, "they do not agree")

    def _cpu_s(self) -> float:
        return sum(node.cpu_seconds() for node in self._nodes)

    def _open(self, topics: Mapping[str, int]) -> float:
        """Makes topics, and gives each partition its first record: CPU of that, in us a partition."""
        with Client(self._nodes[0].address, ALL_S) as client:
            for topic, partitions in topics.items():
                client.create(topic, partitions)
        self._settle()
        before_s = self._cpu_s()
        for topic in topics:
            led = leaders(self._nodes[0], topic)
            with ThreadPoolExecutor(len(self._nodes)) as pool:
                by_node = [
                    [index for index, leader in led.items() if leader == node_id]
                    for node_id in self._cluster.brokers
                ]
                list(pool.map(write_first, self._nodes, [topic] * len(by_node), by_node))
        return 1e6 * (self._cpu_s() - before_s) / sum(topics.values())

    def _commit(self, round_number: int) -> tuple[float, float]:
        """How many a second, and CPU of all nodes for one, in us."""

        def commit_some(worker: int) -> None:
            with Client(self._nodes[worker % len(self._nodes)].address) as client:
                for number in range(COMMITS // AT_ONCE // 2):
                    topic = f"one-{round_number}-{worker}-{number}"
                    client.create(topic)
                    assert client.delete(topic) == 0

        before_s, began_s = self._cpu_s(), time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(commit_some, range(AT_ONCE)))
        spent_s = time.monotonic() - began_s
        return COMMITS / spent_s, 1e6 * (self._cpu_s() - before_s) / COMMITS

    def _elect(self, round_number: int) -> float:
        """The node that leads is killed; until another takes commands. It is started again."""
        controller = self._cluster.leader()
        other = next(node for node_id, node in self._cluster.brokers.items() if node_id != controller)
        with Client(other.address) as client:
            began_s = time.monotonic()
            self._cluster.brokers[controller].kill()
            client.create(f"elected-{round_number}")
            elected_s = time.monotonic() - began_s
            assert client.delete(f"elected-{round_number}") == 0
        # One that starts while another node recovers its log would find itself replaced, and end.
        last = [*self._topics][-1]
        until(lambda: controller not in leaders(other, last).values(), "its partitions are nobody's")
        self._cluster.brokers[controller].start()
        return elected_s


def write_first(node: LiveBroker, topic: str, partitions: Sequence[int]) -> None:
    """A record to each, many in one request."""
    batch = batch_of([b"first"])
    with Client(node.address, ALL_S) as client:
        for start in range(0, len(partitions), OPENED_A_REQUEST):
            data = [
                PartitionProduceData(index, memoryview(batch))
                for index in partitions[start : start + OPENED_A_REQUEST]
            ]
            request = ProduceRequest(
                None, -1, int(PATIENCE_S * 1000), [TopicProduceData(topic, partition_data=data)]
            )
            client.socket.sendall(encode_request(NAMED["Produce"], VERSION_BY_NAME, 1, "many", request))
            answers = client.take_answer("Produce", VERSION_BY_NAME).responses[0].partition_responses
            assert not any(answer.error_code for answer in answers), answers


def rows_of(sizes: Sequence[Size]) -> list[Row]:
    first, rows = sizes[0], []
    for size in sizes:
        grown = size.partitions - first.partitions
        a_partition = (size.memory_bytes - first.memory_bytes) / grown if grown else 0.0
        ratio = size.commit_us / first.commit_us
        name = f"{size.partitions:,} partitions"
        rows += [
            Row(f"{name}: CPU a commit", f"{size.commit_us:.0f} us", f"{ratio:.2f} x of the first size",
                f"at most {STEADY_MAX} x", ratio <= STEADY_MAX),
            Row("  commits a second", f"{size.commits_a_second:.0f}", f"{AT_ONCE} at a time"),
            Row("  CPU a partition's first record", f"{size.open_us:.0f} us"),
            Row(
                "  memory of a node",
                f"{size.memory_bytes / 2**20:.0f} MiB",
                f"{a_partition:.0f} bytes a partition",
            ),
        ]  # fmt: skip
        times = (
            ("start after a stop", size.stopped_start_s),
            ("start after a kill", size.killed_start_s),
            ("election", size.election_s),
        )
        rows += [
            Row(f"  {what}", f"{seconds:.2f} s", "", f"{SECONDS_MAX:.0f} s", seconds <= SECONDS_MAX)
            for what, seconds in times
        ]
    return rows


def measure(folder: Path, sizes: Sequence[int], per_topic: int) -> list[Size]:
    cluster = LiveCombined(folder, 3)
    for node_id, node in cluster.brokers.items():
        node._overrides["s3.wal.path"] = f"0@file://{folder}/wal{node_id}?capacity={WAL_MIB}MiB"
    found = []
    with cluster:
        many = ManyPartitions(cluster, per_topic)
        for size in sizes:
            found.append(many.grow(size))
            print(table(rows_of(found)[-7:]), flush=True)
    return found


def read_sizes(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.bench.partitions", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument(
        "--kafka-sizes", default=",".join(map(str, partitions_kafka.SIZES)), help="none where it is empty"
    )
    parser.add_argument("--per-topic", type=int, default=PER_TOPIC)
    given = parser.parse_args()
    sizes = read_sizes(given.sizes)
    with tempfile.TemporaryDirectory(prefix="millrace-partitions-", dir="/var/tmp") as name:
        rows = rows_of(measure(Path(name) / "ours", sizes, given.per_topic))
        if given.kafka_sizes:
            rows += partitions_kafka.measure(Path(name) / "kafka", read_sizes(given.kafka_sizes))
    print(table(rows))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
