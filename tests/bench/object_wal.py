"""The object WAL against the store underneath, in one run. `python -m tests.bench.object_wal`

The store is in this process and answers a PUT after a time drawn from a log-normal distribution: 60 ms in the middle, 250 ms at 99 of 100,
as an object store in the same region does. A producer is an append and the wait for its confirmation. Closed: so many producers,
each sends again when it was answered. Open: so many sends a second, whoever was answered. Every load runs for the same time; latencies
are compared with the PUTs that were measured in the same run. `--virtual` runs on the simulator's loop, where time jumps and the machine
plays no part: what the log's own rules cost, the same on every machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from millrace.runtime.clock import SystemClock
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore_memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.wal.config import ObjectWalSettings
from millrace.wal.log import WalOwner
from millrace.wal.object.log import ObjectWal
from tests.sim.loop import SimLoop, run_simulation

P50_MS, P99_MS = 60.0, 250.0
Z99 = 2.3263  # of the normal distribution, at 99 of 100
SIGMA = math.log(P99_MS / P50_MS) / Z99


class DelayedStore(MemoryObjectStore):
    """Puts take their time; `puts_s` are the times they took, as measured."""

    def __init__(self, rand: Rand) -> None:
        super().__init__(SystemClock())
        self._rand = rand
        self.puts_s: list[float] = []
        self.requests = 0
        self.sent_bytes = 0

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._delay()
        await super().put_if_absent(key, parts)
        self.puts_s.append(loop.time() - began)
        self.sent_bytes += sum(map(len, parts))

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._delay()
        await super().put(key, parts)

    async def _delay(self) -> None:
        self.requests += 1
        first, second = 1.0 - self._rand.fraction(), self._rand.fraction()
        normal = math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)
        await asyncio.sleep(P50_MS / 1000 * math.exp(SIGMA * normal))


@dataclass
class Load:
    name: str
    producers: int = 0  # closed
    rate: int = 0  # open, a second
    size_bytes: int = 4096


LOADS = (
    Load("one producer", producers=1),
    Load("8 producers", producers=8),
    Load("64 producers", producers=64),
    Load("50 sends/s", rate=50),
    Load("500 sends/s", rate=500),
    Load("5000 sends/s", rate=5000),
    Load("500 sends/s of 64 KiB", rate=500, size_bytes=65536),
)


@dataclass
class Run:
    """One load on one log."""

    wal: ObjectWal
    size_bytes: int
    waiting: deque[tuple[int, float, asyncio.Future[None] | None]] = field(default_factory=deque)
    latencies_s: list[float] = field(default_factory=list)

    def send(self, done: asyncio.Future[None] | None = None) -> None:
        record = self.wal.append(os.urandom(16), bytes(self.size_bytes - 16))
        self.waiting.append((record.end, asyncio.get_running_loop().time(), done))

    def on_confirmed(self, end: int) -> None:
        now = asyncio.get_running_loop().time()
        while self.waiting and self.waiting[0][0] <= end:
            _, began, done = self.waiting.popleft()
            self.latencies_s.append(now - began)
            if done is not None:
                done.set_result(None)

    async def produce(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            done = loop.create_future()
            self.send(done)
            await done

    async def send_steadily(self, rate: int, until: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while (now := loop.time()) < until:
            while due <= now:
                if self.wal.room_bytes > self.size_bytes:
                    self.send()
                due += 1 / rate
            await asyncio.sleep(max(0.001, due - now))

    async def trim(self, until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.5)
            await self.wal.trim(self.wal.confirmed_end)


async def run_load(load: Load, seconds: float, settings: ObjectWalSettings) -> str:
    store = DelayedStore(Rand(load.name.encode()))
    wal = await ObjectWal.open(store, settings, WalOwner("bench", 1, 1), Rand(b"bench"))
    async for _ in wal.recover():
        pass
    run = Run(wal, load.size_bytes)
    wal.start(run.on_confirmed, lambda error: print(f"failed: {error!r}"))
    store.puts_s.clear()
    store.requests = store.sent_bytes = 0
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    work = [run.produce(until) for _ in range(load.producers)]
    if load.rate:
        work.append(run.send_steadily(load.rate, until))
    await asyncio.gather(run.trim(until), *work)
    requests, puts, sent_bytes = store.requests, sorted(store.puts_s), store.sent_bytes
    await wal.close()
    return line(load.name, sorted(run.latencies_s), puts, requests / seconds, sent_bytes / max(1, len(puts)))


def line(name: str, latencies: list[float], puts: list[float], requests: float, object_bytes: float) -> str:
    own = [at(latencies, part) for part in (0.5, 0.99)]
    store = [at(puts, part) for part in (0.5, 0.99)]
    return (
        f"{name:<22} produce p50 {own[0]:4.0f} p99 {own[1]:4.0f} ms   PUT p50 {store[0]:4.0f} p99 {store[1]:4.0f} ms   "
        f"{own[0] / store[0]:4.2f} x {own[1] / store[1]:4.2f} x   {requests:5.1f} requests/s of {object_bytes / 1024:6.0f} KiB"
    )


def at(ordered: list[float], part: float) -> float:
    return ordered[int(len(ordered) * part)] * 1000


def main(seconds: float, only: str, is_virtual: bool) -> None:
    for load in LOADS:
        if only not in load.name:
            continue
        if is_virtual:
            print(run_simulation(partial(begin, load, seconds)), flush=True)
        else:
            print(asyncio.run(run_load(load, seconds, ObjectWalSettings())), flush=True)


async def begin(load: Load, seconds: float, loop: SimLoop) -> str:
    return await run_load(load, seconds, ObjectWalSettings())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--only", default="", help="loads with this in their name")
    parser.add_argument("--virtual", action="store_true", help="time jumps: the machine plays no part")
    given = parser.parse_args()
    main(given.seconds, given.only, given.virtual)
