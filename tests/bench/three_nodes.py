"""What a produce request costs through three nodes of a cluster on this machine, beside one node alone, at
the same load a node.

    python -m tests.bench.three_nodes [--pairs 10] [--window 4]

All run all the time and are loaded by turns; a third side are three nodes that know nothing of each other:
what a request through them costs more than through one is what three busy processes take from each other on
these cores, and no cluster's doing. CPU is that of all processes of a side, what they do beside the requests
included (heartbeats, the metadata log, uploads), over the requests that they answered. A figure is the median
over the pairs of (a request through three / through one). Exit code 1 when a target is MISSED.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import uvloop

from tests.bench.paired import Pair
from tests.bench.pairs import run_pairs
from tests.bench.produce_load import ProduceLoad, batch_of, make_topic, produce_frame
from tests.bench.report import Row
from tests.bench.rest import wait_rest
from tests.live import LiveBroker
from tests.live.cluster import LiveCombined
from tests.live.test_brokers import leaders

TOPIC = "three"
ALONE = 1  # the id of the node that is alone
LED = 8  # partitions of each node
CONNECTIONS, PACE_S = 40, 0.04  # a thousand requests a second and node
WINDOW_S = 4.0  # of each stretch
RATIO_MAX = 1.05
WARM_S = 3.0
REST_S = 2.0
LOADS = (("one record", 1, 100), ("16 KiB", 16, 1000))


class Node(Protocol):
    @property
    def port(self) -> int: ...

    @property
    def pid(self) -> int: ...

    def cpu_seconds(self) -> float: ...


class Side:
    """Nodes that are loaded alike, and which partitions each leads."""

    def __init__(self, nodes: Sequence[Node], led: Sequence[Sequence[int]]) -> None:
        self.nodes = nodes
        self.led = led

    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds() for node in self.nodes)

    async def request_us(self, batch: bytes, seconds: float) -> float:
        """CPU of all nodes a request, from before the first to after the last."""
        before_s = self.cpu_seconds()
        loads = [
            await ProduceLoad(
                node.port, [produce_frame(TOPIC, led[n % LED], batch) for n in range(CONNECTIONS)], 1, PACE_S
            ).start()
            for node, led in zip(self.nodes, self.led, strict=True)
        ]
        await asyncio.sleep(seconds)
        for load in loads:
            await load.stop()
        for node in self.nodes:
            await wait_rest(node.pid, REST_S)
        return 1e6 * (self.cpu_seconds() - before_s) / sum(load.result.requests_count for load in loads)


def joined(sides: Sequence[Side]) -> Side:
    return Side([node for side in sides for node in side.nodes], [led for side in sides for led in side.led])


async def side_of(nodes: Sequence[LiveBroker], node_ids: Sequence[int]) -> Side:
    await make_topic(nodes[0].port, TOPIC, LED * len(nodes))
    led = await asyncio.to_thread(leaders, nodes[0], TOPIC)
    return Side(nodes, [[index for index, leader in led.items() if leader == one] for one in node_ids])


async def compared(
    one: Side, three: Side, apart: Side | None, pairs_count: int, window_s: float, name: str = ""
) -> list[Row]:
    """`name`: of whose nodes they are, where that is not this project; then nothing is aimed at."""
    rows = []
    sides = (one, three) if apart is None else (one, three, apart)
    for what, records, value_bytes in LOADS:
        batch = batch_of(records, value_bytes)
        found: dict[Side, list[float]] = {side: [] for side in sides}
        for side in sides:
            await side.request_us(batch, WARM_S)
        for number in range(pairs_count):
            first = number % len(sides)
            for side in (*sides[first:], *sides[:first]):
                found[side].append(await side.request_us(batch, window_s))
        row = _row(f"{name}CPU a request, {what}", found[three], found[one])
        rows.append(replace(row, target="", is_met=None) if name else row)
        if apart is not None:
            beside = _row("  the same, nodes that know nothing of each other", found[apart], found[one])
            rows.append(replace(beside, target="", is_met=None))
    return rows


def _row(name: str, ours: Sequence[float], base: Sequence[float]) -> Row:
    """The arguments are us a request, pair by pair."""
    ratios = sorted(Pair(*pair).ratio for pair in zip(ours, base, strict=True))
    ratio = statistics.median(ratios)
    beside = (
        f"{statistics.median(ours):.1f} and {statistics.median(base):.1f} us; "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} pairs"
    )
    return Row(name, f"{ratio:.2f} x", beside, f"at most {RATIO_MAX} x", ratio <= RATIO_MAX)


async def _run(
    alone: LiveBroker, cluster: LiveCombined, apart: Sequence[LiveBroker], pairs: int, window_s: float
) -> list[Row]:
    one = await side_of([alone], [ALONE])
    three = await side_of(list(cluster.brokers.values()), list(cluster.brokers))
    sides = [await side_of([node], [ALONE]) for node in apart]
    return await compared(one, three, joined(sides), pairs, window_s)


def measure(folder: Path, pairs: int, window_s: float) -> list[Row]:
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(LiveBroker(folder / "alone", {"node.id": str(ALONE)}, wal="256MiB"))
        apart = [
            stack.enter_context(LiveBroker(folder / f"apart{n}", {"node.id": str(ALONE)}, wal="256MiB"))
            for n in range(3)
        ]
        # Reports of ten seconds see stretches of a few unevenly, and the balancer would move what is loaded.
        cluster = LiveCombined(folder / "three", 3, {"autobalancer.controller.exclude.topics": TOPIC})
        for node_id, node in cluster.brokers.items():
            node._overrides["s3.wal.path"] = f"0@file://{folder}/wal{node_id}?capacity=256MiB"
        stack.enter_context(cluster)
        return uvloop.run(_run(alone, cluster, apart, pairs, window_s))


if __name__ == "__main__":
    sys.exit(run_pairs("three_nodes", __doc__ or "", measure, WINDOW_S))
