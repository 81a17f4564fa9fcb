"""Two versions of the broker in one cluster: nodes are upgraded one after the other, and taken back, while
producers and a group are at work.

    python -m tests.live.rolling_upgrade --base CHECKOUT [--log object]

CHECKOUT is another checkout of this repository with its own .venv (`make setup` there). Whenever some nodes
are of one version and some of the other, one of each is killed, so that each version recovers what the other
had acknowledged. What clients were told is compared with what is there at the end (history.py). Exit code 1
where that is not so, or where an application was told of an error by a node that was stopped in order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.live import LiveBroker
from tests.live.chaos import LOGS
from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.live.traffic import Traffic

TOPIC, PARTITIONS = "upgraded", 6
NODES = 3
AWAY_S = 5.0  # a session, and a recovery
QUIET_S = 2.0


def python_of(checkout: Path) -> str:
    return str(checkout / ".venv" / "bin" / "python")


class Roll:
    """`nodes` all run one version; `to` brings them to another one's, one after the other."""

    def __init__(self, nodes: list[LiveBroker]) -> None:
        self._nodes = nodes

    def to(self, python: str, name: str) -> None:
        for count, node in enumerate(self._nodes, 1):
            assert node.stop() == 0, node.log_path.read_text()[-4000:]
            node.python = python
            node.start()
            print(f"{count} of {len(self._nodes)} nodes run {name}", flush=True)
            time.sleep(QUIET_S)
            if count < len(self._nodes):
                self._kill(node, f"one that runs {name}")
                self._kill(self._nodes[-1], "one that does not yet")

    def _kill(self, node: LiveBroker, which: str) -> None:
        node.kill()
        time.sleep(AWAY_S)
        node.start()
        print(f"  killed {which}; it is back", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", type=Path, required=True, help="the other version's checkout")
    parser.add_argument("--log", choices=sorted(LOGS), default="block", help="where write-ahead logs lie")
    options = parser.parse_args()
    base = python_of(options.base.resolve())
    with tempfile.TemporaryDirectory(prefix="millrace-upgrade-") as name:
        folder = Path(name)
        log = LOGS[options.log].format(folder=folder)
        cluster = LiveCombined(folder, NODES, {"s3.wal.path": log} if log else {})
        for node in cluster.brokers.values():
            node.python = base
        with cluster:
            with Client(cluster.addresses[0]) as client:
                client.create(TOPIC, PARTITIONS)
            traffic = Traffic(cluster.addresses, TOPIC, PARTITIONS)
            traffic.start()
            try:
                roll = Roll(list(cluster.brokers.values()))
                roll.to(sys.executable, "this version")
                roll.to(base, "the other version")
            finally:
                traffic.finish()
            count = traffic.check()
    errors = traffic.told.errors
    print(f"{count} records acknowledged, each there once; the longest send of {PARTITIONS} took", end=" ")
    print(f"{max(traffic.told.send_s) * 1000:.0f} ms; errors that applications were told: {len(errors)}")
    for error in errors[:10]:
        print(f"  {error}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
