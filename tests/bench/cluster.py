"""For how long nothing is written while a partition moves, a broker is stopped, or one is killed.

    python -m tests.bench.cluster [--moves 40] [--partitions 1000] [--filled-mb 200]

Three nodes of one cluster on this machine, each broker and controller. A probe writes to each partition that
it watches every 5 ms, to whoever leads it by the newest metadata it has asked for; a pause is the time
between two acknowledgements. Clients' own back-off comes on top of it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_brokers import leaders
from tests.patience import until

TOPIC = "spread"
RETRY_S = 0.005
ANSWER_S = 1.0
VALUE = b"x" * 100
FILLING = [b"x" * 100_000] * 9
WATCHED_MAX = 4  # partitions of the broker that goes
QUIET_S = 0.5  # of acknowledgements before and after what is measured


class Probe(threading.Thread):
    """Writes to some partitions in turn. `acknowledged`: when, by partition."""

    def __init__(self, addresses: Mapping[int, str], partitions: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._addresses = dict(addresses)
        self._clients: dict[int, Client] = {}
        self._leaders: dict[int, int] = {}
        self._is_over = threading.Event()
        self.acknowledged: dict[int, list[float]] = {index: [] for index in partitions}

    def run(self) -> None:
        while not self._is_over.is_set():
            for index in self.acknowledged:
                if self._write(index):
                    self.acknowledged[index].append(time.monotonic())
                else:
                    self._look()
            time.sleep(RETRY_S)

    def finish(self) -> None:
        self._is_over.set()
        self.join()
        for client in self._clients.values():
            client.socket.close()

    def longest_s(self, index: int) -> float:
        times = self.acknowledged[index]
        return max(after - before for before, after in pairwise(times))

    def _client(self, node_id: int) -> Client:
        if node_id not in self._clients:
            self._clients[node_id] = Client(self._addresses[node_id], ANSWER_S)
        return self._clients[node_id]

    def _drop(self, node_id: int) -> None:
        client = self._clients.pop(node_id, None)
        if client is not None:
            client.socket.close()

    def _write(self, index: int) -> bool:
        leader = self._leaders.get(index, -1)
        if leader < 0:
            return False
        try:
            return not self._client(leader).send(TOPIC, [VALUE], index).error_code
        except OSError:
            self._drop(leader)
            return False

    def _look(self) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
        for node_id in list(self._addresses):
            try:
                (topic,) = self._client(node_id).ask("Metadata", request).topics
            except OSError:
                self._drop(node_id)
                continue
            self._leaders = {one.partition_index: one.leader_id for one in topic.partitions}
            return


@contextmanager
def probing(cluster: LiveCombined, parts: Sequence[Sequence[int]]) -> Iterator[list[Probe]]:
    """A probe for each part; what is done within comes between times at which all are acknowledged."""
    addresses = {node_id: node.address for node_id, node in cluster.brokers.items()}
    probes = [Probe(addresses, part) for part in parts if part]

    def wait_written() -> None:
        since_s = time.monotonic()
        until(
            lambda: all(
                times and times[-1] > since_s for probe in probes for times in probe.acknowledged.values()
            ),
            "a partition takes no writes",
        )

    for probe in probes:
        probe.start()
    wait_written()
    time.sleep(QUIET_S)
    yield probes
    wait_written()
    time.sleep(QUIET_S)
    for probe in probes:
        probe.finish()


def pauses_of_moves(folder: Path, moves: int) -> list[float]:
    with LiveCombined(folder, 3) as cluster, Client(cluster.addresses[0]) as client:
        client.create(TOPIC, 1)
        with probing(cluster, [[0]]) as (probe,):
            for number in range(moves):
                target = number % 3 + 1
                client.move(TOPIC, [0], target)
                until(lambda target=target: leaders(cluster.brokers[1])[0] == target, "it stays")  # type: ignore[misc]
                time.sleep(QUIET_S / 2)
        times = probe.acknowledged[0]
        return sorted((b - a for a, b in pairwise(times)), reverse=True)[:moves]


def pauses_of_an_end(
    folder: Path, partitions: int, filled_mb: int, end: Callable[[LiveBroker], object]
) -> tuple[list[float], float]:
    """Of partitions that the broker led which goes; and how many bytes its log held."""
    kept = {"s3.wal.upload.interval.ms": "3600000", "s3.wal.upload.threshold": "2GiB"} if filled_mb else {}
    cluster = LiveCombined(folder, 3, {**kept, "s3.wal.cache.size": "1GiB"})
    for node_id, node in cluster.brokers.items():
        node._overrides["s3.wal.path"] = f"0@file://{folder}/wal{node_id}?capacity=1GiB"
    with cluster, Client(cluster.addresses[0]) as client:
        client.create(TOPIC, partitions)
        victim = next(node_id for node_id in cluster.brokers if node_id != cluster.leader())
        led = [index for index, leader in leaders(cluster.brokers[1]).items() if leader == victim]
        with Client(cluster.brokers[victim].address) as filling:
            for number in range(filled_mb * 1_000_000 // sum(map(len, FILLING))):
                assert not filling.send(TOPIC, FILLING, led[number % len(led)]).error_code
            for index in led:
                assert not filling.send(TOPIC, [VALUE], index).error_code
        with probing(cluster, [[index] for index in led[:WATCHED_MAX]]) as probes:
            held = cluster.brokers[victim].metrics()["millrace_wal_used_bytes"]
            end(cluster.brokers[victim])
        return [probe.longest_s(index) for probe in probes for index in probe.acknowledged], held


def told(what: str, pauses: Sequence[float]) -> None:
    ordered = sorted(pauses)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    print(
        f"{what}: no writes for {statistics.median(ordered) * 1000:.0f} ms at the median, "
        f"{p99 * 1000:.0f} ms at p99, {ordered[-1] * 1000:.0f} ms at most ({len(ordered)} seen)",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.bench.cluster", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument(
        "--partitions", type=int, default=1_000, help="that the broker leads which is stopped"
    )
    parser.add_argument("--filled-mb", type=int, default=200, help="in the log of the broker that is killed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-cluster-", dir="/var/tmp") as name:
        folder = Path(name)
        told("a partition is moved", pauses_of_moves(folder / "moved", given.moves))
        stopped, _ = pauses_of_an_end(folder / "stopped", 3 * given.partitions, 0, LiveBroker.stop)
        told(f"a broker with {given.partitions} partitions is stopped", stopped)
        killed, held = pauses_of_an_end(folder / "killed", 30, given.filled_mb, LiveBroker.kill)
        told(f"a broker with {held / 1e6:.0f} MB in its log is killed", killed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
