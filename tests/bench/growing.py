"""`make bench-growing`: for how long partitions take no writes while one node becomes three, and three one.

    restarted   the lone node is stopped, and started with the same settings
    replaced    by a process that is loaded before, and has a listener for others (`serve --replace`)
    grown       two nodes join, are added to the voters, and get their share
    a move      of all partitions of one node, beside it: the measure that growing is held to
    shrunk      they are drained, removed, stopped and forgotten

The longest gap of each partition, by the probe of write_gaps.py; the median and the longest of them.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.write_gaps import probing
from tests.live.client import Client
from tests.live.growing import Growing

TOPIC, PARTITIONS = "growing", 24
AIM_MS = 300.0  # of a reassignment


def main() -> int:
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder, Growing(Path(folder)) as cluster:
        node = cluster.brokers[1]
        with Client(node.address) as client:
            client.create(TOPIC, PARTITIONS)
        addresses = {node_id: broker.address for node_id, broker in cluster.brokers.items()}

        def measure(name: str, work: Callable[[], object], nodes: int = 3) -> None:
            known = {node_id: addresses[node_id] for node_id in range(1, nodes + 1)}
            with probing(known, TOPIC, range(PARTITIONS)) as gaps:
                work()
            longest_s = gaps.longest_s()
            found[name] = 1000 * statistics.median(longest_s), 1000 * max(longest_s)
            print(f"{name:10} {found[name][0]:6.0f} ms  {found[name][1]:6.0f} ms", flush=True)

        print("            median    longest, without writes")
        measure("restarted", node.restart, 1)
        node.override({"listeners": cluster.listeners})
        measure("replaced", node.replace, 1)
        measure("grown", lambda: cluster.grow())
        measure("a move", lambda: cluster.command("drain", "2"))
        cluster.command("undrain", "2")
        cluster.command("spread")
        time.sleep(1.0)
        measure("shrunk", lambda: cluster.shrink())
    late = [name for name in ("grown", "shrunk") if found[name][1] > AIM_MS]
    for name in late:
        print(f"{name}: above {AIM_MS:.0f} ms")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
