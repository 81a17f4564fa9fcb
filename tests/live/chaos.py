"""Trouble for nodes of a real cluster while clients use it: killed, stopped, halted, their partitions moved.

    python -m tests.live.chaos --minutes 10 [--seed 7] [--log object] [--faults nodes]

One node at a time, so that a majority of the controllers stays. A third of the time goes to faults of the
network between nodes, and between them and the bucket (network_chaos.py), and a third to an operator whose
brokers die meanwhile (operator_chaos.py). What clients were told is compared with what is there at the end
(history.py). Exit code 1 where that is not so.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.live import LiveBroker, network_chaos, operator_chaos
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.test_brokers import leaders
from tests.live.traffic import Traffic
from tests.patience import until

TOPIC, PARTITIONS = "spread", 6
NODES = 3
REPLACED = re.compile("another owner has|has taken node")  # told by its log or streams, or by its claim
LOGS = {"block": "", "object": "0@file://{folder}/logs/?kind=object"}


class Chaos:
    """`act` does one thing to one node, and returns when that node is there again.

    A node that stood still for longer than a session may have been replaced: it ends by itself within ten
    seconds of going on, or does not stop in order, and is started again."""

    def __init__(self, cluster: LiveCombined, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()

    def act(self) -> None:
        self.start_ended()
        node = self._random.choice(list(self._cluster.brokers.values()))
        act = self._random.choice([self._kill, self._kill, self._stop, self._halt, self._move])
        self.done[act.__name__.strip("_")] += 1
        act(node)

    def start_ended(self) -> None:
        for node in self._cluster.brokers.values():
            if not node.is_running():
                self._start_replaced(node, node.wait_end())

    def _away(self) -> None:
        """For a moment, or for longer than a session."""
        time.sleep(self._random.choice([0.0, self._random.uniform(0, 2), self._random.uniform(3, 7)]))

    def _kill(self, node: LiveBroker) -> None:
        node.kill()
        self._away()
        node.start()

    def _stop(self, node: LiveBroker) -> None:
        code = node.stop()
        self._away()
        if code == 0:
            node.start()
        else:
            self._start_replaced(node, code)

    def _start_replaced(self, node: LiveBroker, code: int) -> None:
        assert REPLACED.search(node.run_log()), f"a node ended with {code}:\n{node.run_log()[-4000:]}"
        self.done["ended, for it was replaced"] += 1
        node.start()

    def _halt(self, node: LiveBroker) -> None:
        os.kill(node.pid, signal.SIGSTOP)
        try:
            self._away()
        finally:
            os.kill(node.pid, signal.SIGCONT)
        time.sleep(1.0)

    def _move(self, node: LiveBroker) -> None:
        target = self._random.choice([*self._cluster.brokers])
        places = self._random.sample(range(PARTITIONS), self._random.randint(1, PARTITIONS))
        with Client(node.address) as client:
            client.move(TOPIC, places, target)
        time.sleep(0.5)


def run(folder: Path, seconds: float, seed: int, log: str, settings: dict[str, str]) -> str:
    """What was done, and how it went for the clients. Raises AssertionError for what must not be."""
    wal = LOGS[log].format(folder=folder)
    with LiveCombined(folder, NODES, {**settings, **({"s3.wal.path": wal} if wal else {})}) as cluster:
        with Client(cluster.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        traffic, chaos = Traffic(cluster.addresses, TOPIC, PARTITIONS), Chaos(cluster, seed)
        traffic.start()
        ends_s = time.monotonic() + seconds
        try:
            while time.monotonic() < ends_s:
                chaos.act()
            chaos.start_ended()
            until(lambda: -1 not in leaders(cluster.brokers[1]).values(), "a partition has no leader")
        finally:
            traffic.finish()
        count = traffic.check()
        errors = traffic.told.errors
    assert not errors, errors[:5]
    done = ", ".join(f"{name} {times}" for name, times in sorted(chaos.done.items()))
    return f"{count} records acknowledged, longest send {max(traffic.told.send_s):.1f} s; {done}"


FAULTS = {"nodes": run, "network": network_chaos.run, "operators": operator_chaos.run}


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.live.chaos", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="in all (10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", choices=sorted(LOGS), default="", help="of this kind alone")
    parser.add_argument(
        "--faults",
        choices=sorted(FAULTS),
        default="",
        help="of nodes, of their network (for root) or of operators alone",
    )
    parser.add_argument("--keep", type=Path, help="a folder for data and logs of nodes, which stays")
    given = parser.parse_args()
    logs = [given.log] if given.log else sorted(LOGS)
    kinds = [given.faults] if given.faults else list(FAULTS)
    seconds = given.minutes * 60 / len(logs) / len(kinds)
    for kind in kinds:
        for log in logs:
            with tempfile.TemporaryDirectory(prefix="millrace-chaos-", dir="/var/tmp") as temporary:
                folder = given.keep / f"{kind}-{log}" if given.keep else Path(temporary)
                print(f"faults of the {kind}, a log of kind {log}, seed {given.seed} ...", flush=True)
                print(f"    {FAULTS[kind](folder, seconds, given.seed, log, {})}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
