"""Trouble with the network of a real cluster while clients use it: nodes are cut from each other, from the
bucket, in one direction alone; links flap, are slow, lose packets, stand still, are narrow.

Each node is in a network namespace of its own (network.py), clients and a real S3 server are outside. One
fault at a time; then all links are good again, and within BOUND_S every node is there, every partition takes
records and the group has read and committed them (probe.py). What clients were told is judged at the end
(history.py). `python -m tests.live.chaos --faults network` runs it long.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.network import BUCKET, Link, Links, Network, both, one_way
from tests.live.probe import Probe
from tests.live.s3_server import S3Server
from tests.live.test_brokers import leaders
from tests.live.traffic import Traffic
from tests.patience import until

TOPIC, PARTITIONS = "spread", 6
NODES = 3
BOUND_S = 60.0  # a session, an election, ten seconds to notice that one was replaced, a start, clients
CUT = Link(is_cut=True)
SETTINGS = {"s3.wal.upload.interval.ms": "1000", "s3.metadata.upload.interval.ms": "1000"}
LOGS = ("block", "object")


class NetworkChaos:
    """`act` does one thing to the network, heals it, and returns when everything goes on."""

    def __init__(self, cluster: LiveCombined, network: Network, probe: Probe, traffic: Traffic, seed: int):
        self._cluster = cluster
        self._network = network
        self._probe = probe
        self._traffic = traffic
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.longest = {"written": 0.0, "agreed": 0.0, "read": 0.0}

    def act(self, name: str = "", away_s: float = 0.0) -> None:
        """Says what it does, and how it went, in a line."""
        name = name or self._random.choice(list(FAULTS))
        node = self._cluster.leader() if name.startswith("leader") else self._one()
        away_s = away_s or self._away_s()
        self.done[name] += 1
        print(f"    {time.strftime('%H:%M:%S')} {name}, node {node}, {away_s:.1f} s:", end=" ", flush=True)
        before = self._count()
        try:
            FAULTS[name](self, node, away_s)
        finally:
            self._network.heal()
        during = self._count() - before
        went_on = self._probe.wait(BOUND_S)
        told = {"written": went_on.written_s, "agreed": went_on.agreed_s, "read": went_on.read_s}
        self.longest = {word: max(took_s, told[word]) for word, took_s in self.longest.items()}
        times = ", ".join(f"{word} {took_s:.1f} s" for word, took_s in told.items())
        print(f"{during} acknowledged meanwhile; after it {times}", flush=True)

    def _count(self) -> int:
        with self._traffic.lock:
            return sum(map(len, self._traffic.told.acknowledged))

    def _one(self) -> int:
        return self._random.choice(self._network.nodes)

    def _away_s(self) -> float:
        """A moment, longer than a session, or longer than what notices a bucket that is away."""
        low, high = self._random.choice([(0.5, 3.0), (3.0, 9.0), (12.0, 25.0)])
        return self._random.uniform(low, high)

    def _others(self, node: int) -> list[int]:
        return [one for one in self._network.nodes if one != node]

    def _hold(self, links: Links, away_s: float) -> None:
        self._network.set(links)
        time.sleep(away_s)

    def cut(self, node: int, away_s: float) -> None:
        self._hold(both([node], self._others(node), CUT), away_s)

    def deaf(self, node: int, away_s: float) -> None:
        self._hold(one_way(self._others(node), [node], CUT), away_s)

    def unheard(self, node: int, away_s: float) -> None:
        self._hold(one_way([node], self._others(node), CUT), away_s)

    def cut_from_one(self, node: int, away_s: float) -> None:
        self._hold(both([node], [self._random.choice(self._others(node))], CUT), away_s)

    def deaf_to_one(self, node: int, away_s: float) -> None:
        self._hold(one_way([self._random.choice(self._others(node))], [node], CUT), away_s)

    def cut_from_bucket(self, node: int, away_s: float) -> None:
        self._hold(both([node], [BUCKET], CUT), away_s)

    def deaf_to_bucket(self, node: int, away_s: float) -> None:
        """What it asks is done, and it does not hear so."""
        self._hold(one_way([BUCKET], [node], CUT), away_s)

    def all_cut_from_bucket(self, node: int, away_s: float) -> None:
        self._hold(both(self._network.nodes, [BUCKET], CUT), away_s)

    def unplug(self, node: int, away_s: float) -> None:
        """From clients, too."""
        self._network.plug(node, False)
        try:
            time.sleep(away_s)
        finally:
            self._network.plug(node, True)

    def flap(self, node: int, away_s: float) -> None:
        """Links to other nodes, or to the bucket."""
        targets = self._random.choice([self._others(node), [BUCKET]])
        ends_s = time.monotonic() + away_s
        while time.monotonic() < ends_s:
            self._hold(both([node], targets, CUT), self._random.uniform(0.1, 2.0))
            self._hold({}, self._random.uniform(0.1, 1.0))

    def bad_between_nodes(self, node: int, away_s: float) -> None:
        """Of one node, or of all."""
        sources = self._random.choice([[node], list(self._network.nodes)])
        self._hold(both(sources, self._network.nodes, self._bad()), away_s)

    def bad_to_bucket(self, node: int, away_s: float) -> None:
        sources = self._random.choice([[node], list(self._network.nodes)])
        self._hold(both(sources, [BUCKET], self._bad()), away_s)

    def slow(self, node: int, away_s: float) -> None:
        """All links of a node."""
        self._hold(both([node], [*self._network.nodes, BUCKET], Link(delay_ms=100, jitter_ms=50)), away_s)

    def _bad(self) -> Link:
        """Slow, one that loses packets, one that stands still, or a narrow one."""
        draw = self._random.uniform
        kinds: list[Callable[[], Link]] = [
            lambda: Link(delay_ms=draw(50, 300), jitter_ms=draw(10, 100)),
            lambda: Link(delay_ms=20, loss=draw(0.01, 0.15)),
            lambda: Link(stall=0.02, stall_ms=draw(300, 3000)),
            lambda: Link(delay_ms=10, kb_s=draw(20, 300)),
        ]
        return self._random.choice(kinds)()

    def kill(self, node: int, away_s: float) -> None:
        """One that is cut from the others; it starts while it is still cut."""
        self._hold(both([node], self._others(node), CUT), away_s / 2)
        self._cluster.brokers[node].kill()
        self._cluster.brokers[node].begin()
        time.sleep(away_s / 2)


FAULTS: dict[str, Callable[[NetworkChaos, int, float], None]] = {
    "cut from the other nodes": NetworkChaos.cut,
    "leader cut from the other nodes": NetworkChaos.cut,
    "deaf to the other nodes": NetworkChaos.deaf,
    "leader deaf to the other nodes": NetworkChaos.deaf,
    "unheard by the other nodes": NetworkChaos.unheard,
    "leader unheard by the other nodes": NetworkChaos.unheard,
    "cut from one other node": NetworkChaos.cut_from_one,
    "deaf to one other node": NetworkChaos.deaf_to_one,
    "cut from the bucket": NetworkChaos.cut_from_bucket,
    "leader cut from the bucket": NetworkChaos.cut_from_bucket,
    "deaf to the bucket": NetworkChaos.deaf_to_bucket,
    "all cut from the bucket": NetworkChaos.all_cut_from_bucket,
    "unplugged": NetworkChaos.unplug,
    "links flap": NetworkChaos.flap,
    "bad links between nodes": NetworkChaos.bad_between_nodes,
    "bad links to the bucket": NetworkChaos.bad_to_bucket,
    "slow": NetworkChaos.slow,
    "killed while cut from the other nodes": NetworkChaos.kill,
}
Plan = Sequence[tuple[str, float]]


def run(folder: Path, seconds: float, seed: int, log: str, settings: dict[str, str], plan: Plan = ()) -> str:
    """What was done, and how it went for the clients: faults of the plan, or drawn ones for so long. Raises
    AssertionError for what must not be."""
    with Network(NODES) as network, S3Server(folder / "s3", network.bucket) as server:
        for bucket in ("lake", "logs"):
            server.make(bucket)
        logs = {"s3.wal.path": server.address("logs") + "&capacity=64MiB"} if log == "object" else {}
        settings = {**SETTINGS, "s3.data.buckets": server.address("lake"), **logs, **settings}
        with LiveCombined(folder, NODES, settings, network) as cluster:
            return trouble(cluster, network, seconds, seed, plan)


def trouble(cluster: LiveCombined, network: Network, seconds: float, seed: int, plan: Plan) -> str:
    with Client(cluster.addresses[0]) as client:
        client.create(TOPIC, PARTITIONS)
    until(lambda: -1 not in leaders(cluster.brokers[1]).values(), "a partition has no leader")
    traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
    probe = Probe(cluster, traffic, TOPIC, PARTITIONS)
    chaos = NetworkChaos(cluster, network, probe, traffic, seed)
    traffic.start()
    try:
        probe.wait(BOUND_S)
        for name, away_s in plan:
            chaos.act(name, away_s)
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            chaos.act()
    finally:
        traffic.finish()
    count, errors = traffic.check(), traffic.told.errors
    assert not errors, errors[:5]
    done = ", ".join(f"{name} {times}" for name, times in sorted(chaos.done.items()))
    longest = ", ".join(f"{word} {took_s:.1f} s" for word, took_s in chaos.longest.items())
    ended = "".join(f"; ended {times} times: {said}" for said, times in sorted(probe.ended.items()))
    return (
        f"{count} records acknowledged, longest send {max(traffic.told.send_s):.1f} s; "
        f"longest until everything goes on: {longest}; {done}{ended}"
    )
