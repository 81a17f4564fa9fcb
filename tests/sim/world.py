"""All that outlives a process: the loop's time, the wire, the bucket, and the record of what happened. One
world a run.

async with nothing: world = World(loop, seed); node = SimNode(world, 1); await node.start(); client =
world.client("reader", node.address)
"""

from __future__ import annotations

from collections import Counter

from millrace.runtime.rand import Rand
from tests.sim.client import SimClient
from tests.sim.clock import SimClock
from tests.sim.loop import Life, SimLoop
from tests.sim.net import SimNet
from tests.sim.objectstore import SimBucket
from tests.sim.trace import Trace


class World:
    def __init__(self, loop: SimLoop, seed: str) -> None:
        self.loop = loop
        self.rand = Rand(seed.encode())
        self.trace = Trace(lambda: loop.now_us)
        self.clock = SimClock(lambda: loop.now_us)  # the node's, which may be wrong
        self.true_clock = SimClock(lambda: loop.now_us)  # of clients and of the bucket
        self.net = SimNet(loop, self.rand.split("net"), self.trace.of("net"))
        self.bucket = SimBucket(self.true_clock)
        self.bucket.tells_date = self.rand.split("dates").below(2) == 0
        self.hits: Counter[str] = Counter()  # of what the run itself counts; edges count their own

    def client(self, name: str, address: tuple[str, int]) -> SimClient:
        """Somebody who outlives the brokers."""
        return SimClient(self.net.host(name, Life(name)), address, name)

    def all_hits(self) -> Counter[str]:
        return self.hits + self.net.hits + self.bucket.hits
