"""For how long nothing is written while a partition moves, a broker is stopped, or one is killed.

    python -m tests.bench.cluster [moved moved_slow clients stopped killed elections three_nodes kafka]
                                  [--moves 40] [--client-moves 10] [--partitions 1000] [--rounds 3]
                                  [--pairs 10]

Three nodes of one cluster on this machine, each broker and controller, with the settings that they have by
default but for what fills their logs. What is seen is write_gaps.py's. Of a stop and a kill the broker is one
that does not lead the quorum, so that what is seen is the partitions' way and no election's; all of its
partitions hold a record, are open and are written to: where they are many by wide_gaps.py, whose own cost
is told. `clients` is what applications of four clients see of a move, with their own back-offs, ours and
beside Apache Kafka (client_moves.py).

After a kill a session runs out first (`broker.session.timeout.ms`, 3 s): what comes then is counted from the
controller's word that the broker is fenced. A row a figure, the worst of the rounds; exit code 1 when a
target is MISSED. The last parts are elections.py, three_nodes.py (each with kafka_load.py beside it) and
cluster_kafka.py: what is seen of three nodes of Apache Kafka.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import client_moves, cluster_kafka, elections, kafka_load, three_nodes
from tests.bench.device import both_ways_s
from tests.bench.kept import KEPT
from tests.bench.report import Row, exit_code, table
from tests.bench.wide_gaps import watching_all
from tests.bench.write_gaps import QUIET_S, probing, quantile_ms
from tests.compat.rolled.nodes import MillraceNodes
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.s3_server import S3Server
from tests.live.slow_proxy import SlowProxy
from tests.live.test_brokers import leaders
from tests.patience import until

TOPIC = "spread"
VALUE = b"x" * 100
FILLING = [b"x" * 100_000] * 9
MIB = 1 << 20
MOVED_MS, MOVED_P99_MS, STOPPED_MS = 100.0, 300.0, 500.0
FENCED_S, KILLED_S = 2.0, 5.0
BLOCKS = "0@file://{folder}/wal{node_id}?capacity={capacity_mib}MiB"
OBJECTS = "0@file://{folder}/log{node_id}/?kind=object&capacity={capacity_mib}MiB"


@dataclass(frozen=True, slots=True)
class Log:
    """A write-ahead log, and how much it holds when its broker goes."""

    name: str
    address: str = BLOCKS
    filled_mib: int = 0
    capacity_mib: int = 256


KILLED = (
    Log("500 MB", filled_mib=477, capacity_mib=2048),
    Log("1 GiB", filled_mib=1024, capacity_mib=3584),
    Log("500 MB of objects", OBJECTS, 477, 2048),
)


@dataclass(frozen=True, slots=True)
class End:
    """What was seen of one broker's end. `fenced_s`: from the word that it is fenced, None where it handed
    over."""

    longest_s: float
    fenced_s: float | None
    held_bytes: float
    cost: str = ""  # of the probe


def moved(folder: Path, moves: int, settings: dict[str, str] | None = None) -> list[float]:
    with LiveCombined(folder, 3, settings) as cluster, Client(cluster.addresses[0]) as client:
        client.create(TOPIC, 1)
        with probing(addresses_of(cluster), TOPIC, [0]) as gaps:
            for number in range(moves):
                target = number % 3 + 1
                client.move(TOPIC, [0], target)
                until(lambda target=target: leaders(cluster.brokers[1])[0] == target, "it stays")  # type: ignore[misc]
                time.sleep(QUIET_S / 2)
        return sorted(gaps.gaps_s(0), reverse=True)[:moves]


def moved_over_slow_store(folder: Path, moves: int) -> list[float]:
    """As `moved`, where a PUT takes 60 ms at the median and 250 ms at 99 of 100."""
    with S3Server(folder / "s3") as server, SlowProxy(server.port) as proxy:
        server.make("lake")
        return moved(folder / "nodes", moves, {"s3.data.buckets": proxy.slow(server.address("lake"))})


def ended(folder: Path, partitions: int, log: Log, end: Callable[[LiveBroker], object]) -> End:
    """A broker that leads so many partitions goes."""
    cluster = LiveCombined(folder, 3, KEPT if log.filled_mib else {})
    for node_id, node in cluster.brokers.items():
        address = log.address.format(folder=folder, node_id=node_id, capacity_mib=log.capacity_mib)
        node._overrides["s3.wal.path"] = address
    with cluster, Client(cluster.addresses[0]) as client:
        client.create(TOPIC, 3 * partitions)
        controller = cluster.leader()
        victim = next(node_id for node_id in cluster.brokers if node_id != controller)
        led = [index for index, leader in leaders(cluster.brokers[1]).items() if leader == victim]
        fill(cluster.brokers[victim], led, log)
        with watching_all(addresses_of(cluster), TOPIC, led) as gaps:
            held_bytes = cluster.brokers[victim].metrics()["millrace_wal_used_bytes"]
            began_s = time.time()
            end(cluster.brokers[victim])
        longest_s = max(gaps.longest_s())
        fenced_at_s = fenced_at(cluster.brokers[controller], victim)
    shutil.rmtree(folder)
    after_s = None if fenced_at_s is None else longest_s - (fenced_at_s - began_s)
    return End(longest_s, after_s, held_bytes, gaps.cost())


def addresses_of(cluster: LiveCombined) -> dict[int, str]:
    return {node_id: node.address for node_id, node in cluster.brokers.items()}


def fill(broker: LiveBroker, led: Sequence[int], log: Log) -> None:
    """A record in each partition, and what the log is to hold."""
    with Client(broker.address) as client:
        for index in led:
            assert not client.send(TOPIC, [VALUE], index).error_code
        for number in range(log.filled_mib * MIB // sum(map(len, FILLING))):
            assert not client.send(TOPIC, FILLING, led[number % len(led)]).error_code


def fenced_at(controller: LiveBroker, broker_id: int) -> float | None:
    """When the controller's log says that a session was over; in its clock, which is this machine's."""
    found = re.search(
        rf"^(\S+ \S+) .*broker {broker_id} is fenced: no heart", controller.log_path.read_text(), re.M
    )
    if found is None:
        return None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()


def rows_of_moves(gaps_s: Sequence[float], load: str, over: str = "") -> list[Row]:
    rows = []
    for name, fraction, bound_ms in (("median", 0.5, MOVED_MS), ("p99", 0.99, MOVED_P99_MS)):
        figure_ms = quantile_ms(gaps_s, fraction)
        beside = f"{len(gaps_s)} moves, {load}"
        rows.append(
            Row(
                f"moved{over}, {name}",
                f"{figure_ms:.0f} ms",
                beside,
                f"{bound_ms:.0f} ms",
                figure_ms <= bound_ms,
            )
        )
    return rows


def row_of_stops(ends: Sequence[End], partitions: int, load: str) -> Row:
    worst_ms = 1000 * max(one.longest_s for one in ends)
    middle_ms = 1000 * statistics.median(one.longest_s for one in ends)
    return Row(
        f"stopped, with {partitions} partitions: the longest of all",
        f"{worst_ms:.0f} ms",
        f"median of {len(ends)} rounds {middle_ms:.0f} ms, {load}; {ends[-1].cost}",
        f"{STOPPED_MS:.0f} ms",
        worst_ms <= STOPPED_MS,
    )


def rows_of_kills(ends: Sequence[End], name: str, load: str, device_s: float) -> list[Row]:
    """`device_s`: what the device alone takes to read and write as much."""
    held_mb = max(one.held_bytes for one in ends) / 1e6
    rows = []
    # Of a session that is not over nothing can be said.
    fenced = [one.fenced_s if one.fenced_s is not None else one.longest_s for one in ends]
    whole = [one.longest_s for one in ends]
    for what, found, bound_s in (("from fenced", fenced, FENCED_S), ("in all", whole, KILLED_S)):
        worst_s = max(found)
        beside = (
            f"{held_mb:.0f} MB held, which the device reads and writes at once in {device_s:.2f} s; "
            f"median of {len(found)} rounds {statistics.median(found):.2f} s, {load}"
        )
        rows.append(
            Row(f"killed, {name}: {what}", f"{worst_s:.2f} s", beside, f"{bound_s:.0f} s", worst_s <= bound_s)
        )
    return rows


def clients_of_both(folder: Path, moves: int) -> list[Row]:
    """What applications see of a move, ours and Apache Kafka's."""
    (folder / "clients").mkdir()
    with MillraceNodes(folder / "clients" / "ours") as nodes, Client(nodes.addresses[0]) as client:

        def lead(topic: str, target: int) -> None:
            client.move(topic, [client_moves.MOVED], target)
            witness = nodes.cluster.brokers[1]
            until(lambda: leaders(witness, topic)[client_moves.MOVED] == target, "it does not move")

        found = client_moves.moved(nodes, lead, folder / "clients", moves)
    rows = client_moves.rows("Millrace", found, load())
    return rows + cluster_kafka.rows_of_clients(folder / "kafka-clients", moves, load())


def load() -> str:
    """What else the machine did in the last minute, this benchmark included."""
    return f"load {Path('/proc/loadavg').read_text().split()[0]}"


def measure(part: str, folder: Path, given: argparse.Namespace) -> list[Row]:
    if part == "moved":
        return rows_of_moves(moved(folder / part, given.moves), load())
    if part == "moved_slow":
        gaps_s = moved_over_slow_store(folder / part, given.moves)
        return rows_of_moves(gaps_s, load(), " over a slow store")
    rounds = range(given.rounds)
    if part == "stopped":
        stops = [ended(folder / f"{part}{n}", given.partitions, Log(""), LiveBroker.stop) for n in rounds]
        return [row_of_stops(stops, given.partitions, load())]
    if part == "elections":
        pairs = given.pairs, elections.WINDOW_S
        return elections.measure(folder / part, *pairs) + kafka_load.elected(
            folder / "kafka-elections", *pairs
        )
    if part == "three_nodes":
        pairs = given.pairs, three_nodes.WINDOW_S
        return three_nodes.measure(folder / part, *pairs) + kafka_load.through_three(
            folder / "kafka3", *pairs
        )
    if part == "kafka":
        return cluster_kafka.rows(folder, given.moves, given.partitions, given.rounds)
    if part == "clients":
        return clients_of_both(folder, given.client_moves)
    rows = []
    for log in KILLED:
        kills = [ended(folder / f"{part}{n}", 10, log, LiveBroker.kill) for n in rounds]
        device_s = statistics.median(both_ways_s(folder, log.filled_mib * MIB) for _ in rounds)
        rows += rows_of_kills(kills, log.name, load(), device_s)
    return rows


PARTS = ("moved", "moved_slow", "clients", "stopped", "killed", "elections", "three_nodes", "kafka")


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.bench.cluster", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, where none is named")
    parser.add_argument("--moves", type=int, default=40)
    parser.add_argument("--client-moves", type=int, default=10, help="for each of four clients")
    parser.add_argument("--rounds", type=int, default=3, help="of each stop and kill")
    parser.add_argument(
        "--partitions", type=int, default=1_000, help="that the broker leads which is stopped"
    )
    parser.add_argument("--pairs", type=int, default=10, help="of elections, and of loads of three nodes")
    given = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="millrace-cluster-", dir="/var/tmp") as name:
        for part in given.parts or PARTS:
            found = measure(part, Path(name), given)
            print(table(found), flush=True)
            rows += found
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
