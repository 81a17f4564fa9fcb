"""What an election of the controllers, and a quorum that is away, cost producers: nothing, for an open
partition needs no controller.

    python -m tests.bench.elections [--pairs 10] [--window 4]

Three controllers and, apart from them, the broker that is written to: acks=all at 1 MB/s in a thousand
requests a second over forty connections, so that a 99th percentile is the fortieth of them. A pair is a
stretch before and one during: that of an election begins when the controller that leads is killed (-9), and
another leads before it ends; that of a quorum that is away has two of three stopped (SIGSTOP) all the time.
Nothing is uploaded meanwhile: the upload's writes to the log's own disk would fall into one stretch of a pair
and not into the other. A figure is the median over the pairs of (99th percentile during / before): disks and
neighbours that falter hit both alike. Exit code 1 when a target is MISSED.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import uvloop

from tests.bench.kept import KEPT
from tests.bench.paired import Pair
from tests.bench.pairs import run_pairs
from tests.bench.produce_load import ProduceLoad, batch_of, make_topic, produce_frame, until_written
from tests.bench.report import Row
from tests.live.cluster import LiveCluster, LiveControllers

TOPIC = "elections"
PARTITIONS = 8
CONNECTIONS, PACE_S = 40, 0.04  # a thousand requests a second of one record of 1,000 bytes each
WINDOW_S = 4.0  # of each stretch
RATIO_MAX = 1.1
WARM_S = 2.0
SETTLE_S = 1.0


class Voters(Protocol):
    """Three controllers apart, nodes 1 to 3."""

    def leader(self, is_other_than: int = -1) -> int:
        """Who leads, once somebody does."""

    def kill(self, node_id: int) -> None: ...

    def start(self, node_id: int) -> None: ...

    def pid(self, node_id: int) -> int: ...


class OwnVoters:
    def __init__(self, quorum: LiveControllers) -> None:
        self._quorum = quorum

    def leader(self, is_other_than: int = -1) -> int:
        return self._quorum.leader(is_other_than)

    def kill(self, node_id: int) -> None:
        self._quorum.nodes[node_id].kill()

    def start(self, node_id: int) -> None:
        self._quorum.nodes[node_id].start()

    def pid(self, node_id: int) -> int:
        return self._quorum.nodes[node_id].pid


class Elections:
    """`port`: of the one broker. `name`: of whose nodes they are, where that is not this project; then
    nothing is aimed at."""

    def __init__(self, voters: Voters, port: int, pairs: int, window_s: float, name: str = "") -> None:
        self._voters = voters
        self._port = port
        self._pairs = pairs
        self._window_s = window_s
        self._name = name

    async def rows(self) -> list[Row]:
        await make_topic(self._port, TOPIC, PARTITIONS)
        await asyncio.to_thread(until_written, self._port, TOPIC, range(PARTITIONS))
        frames = [produce_frame(TOPIC, n % PARTITIONS, batch_of(1, 1000)) for n in range(CONNECTIONS)]
        load = await ProduceLoad(self._port, frames, 1, PACE_S).start()
        await asyncio.sleep(WARM_S)
        rows = [
            await self._row(load, "an election", self._elected),
            await self._row(load, "the quorum away", self._away),
        ]
        await load.stop()
        return rows

    async def _row(
        self, load: ProduceLoad, what: str, during: Callable[[ProduceLoad], Awaitable[float]]
    ) -> Row:
        pairs = []
        for _ in range(self._pairs):
            await asyncio.sleep(SETTLE_S)
            before_ms = (await load.measure(self._window_s)).quantile_ms(0.99)
            pairs.append(Pair(await during(load), before_ms))
        ratios = sorted(pair.ratio for pair in pairs)
        ratio = statistics.median(ratios)
        ours, base = (
            statistics.median(each) for each in zip(*((p.ours, p.base) for p in pairs), strict=True)
        )
        beside = f"{ours:.2f} and {base:.2f} ms; {ratios[0]:.2f} to {ratios[-1]:.2f} in {len(pairs)} pairs"
        if self._name:
            return Row(f"{self._name}: produce p99, {what}", f"{ratio:.2f} x", beside)
        target = f"at most {RATIO_MAX} x"
        return Row(f"produce p99, {what}", f"{ratio:.2f} x", beside, target, ratio <= RATIO_MAX)

    async def _elected(self, load: ProduceLoad) -> float:
        """The 99th percentile, in ms, of a stretch in which the controller that leads dies."""
        leader = await asyncio.to_thread(self._voters.leader)
        await asyncio.to_thread(self._voters.kill, leader)  # which waits for it: the load's loop does not
        during = await load.measure(self._window_s)
        await asyncio.to_thread(self._voters.leader, leader)
        await asyncio.to_thread(self._voters.start, leader)
        return during.quantile_ms(0.99)

    async def _away(self, load: ProduceLoad) -> float:
        """The same while a majority of the controllers stands still."""
        halted = [self._voters.pid(node_id) for node_id in (1, 2)]
        for pid in halted:
            os.kill(pid, signal.SIGSTOP)
        try:
            during = await load.measure(self._window_s)
        finally:
            for pid in halted:
                os.kill(pid, signal.SIGCONT)
        await asyncio.to_thread(self._voters.leader)
        return during.quantile_ms(0.99)


def measure(folder: Path, pairs: int, window_s: float) -> list[Row]:
    with LiveCluster(folder, controllers=3, brokers=1, overrides=KEPT, wal="1GiB") as cluster:
        (broker,) = cluster.brokers.values()
        return uvloop.run(Elections(OwnVoters(cluster.quorum), broker.port, pairs, window_s).rows())


if __name__ == "__main__":
    sys.exit(run_pairs("elections", __doc__ or "", measure, WINDOW_S))
