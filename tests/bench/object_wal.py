"""The object WAL against the store underneath, in one run. `python -m tests.bench.object_wal`

The store is in this process and answers a PUT after a time drawn from a log-normal distribution: 60 ms in the
middle, 250 ms at 99 of 100, as an object store in the same region does. A producer is an append and the wait
for its confirmation. Closed: so many producers, each sends again when it was answered. Open: so many sends a
second, whoever was answered. Every load runs for the same time; latencies are compared with the PUTs that
were drawn in the same run. With `--interval 0`, which favours latency, the ratios have goals: a steady stream
of sends is to be acknowledged within 1.3 times the store's median and its 99 of 100. Each line counts
requests and bytes, duplicates included, tells what the requests are a month at S3 Standard's list price, and
holds them to what age and bytes allow: an object begins an interval (or 20 ms) after the one before it, or
when 8 MiB are full, and is put twice at most; trims come on top. `--hedge off` shows the log without second
puts. Exit code 1 when anything is MISSED. `--virtual` runs on the simulator's loop, where time jumps and the
machine plays no part: what the log's own rules cost, the same on every machine. `--broker` puts a whole
broker on the log, in this process as well, and measures produce requests over sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from tempfile import TemporaryDirectory

from millrace.broker.app import Broker
from millrace.broker.config import load as read_settings
from millrace.broker.settings.source import Given
from millrace.runtime.bundle import real_runtime
from millrace.runtime.clock import Clock, SystemClock
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.wal.config import ObjectWalSettings
from millrace.wal.log import WalOwner
from millrace.wal.object.batcher import GATHER_MS
from millrace.wal.object.log import ObjectWal
from tests.bench.prices import DOLLARS_A_PUT
from tests.bench.produce_load import batch_of, make_topic, produce_frame, run_load
from tests.bench.report import Row
from tests.live import free_port
from tests.sim.loop import SimLoop, run_simulation

P50_MS, P99_MS = 60.0, 250.0
P50_RATIO_MAX, P99_RATIO_MAX = 1.3, 1.3
MONTH_S = 30 * 86_400
Z99 = 2.3263  # of the normal distribution, at 99 of 100
SIGMA = math.log(P99_MS / P50_MS) / Z99
TRIM_EVERY_S = 0.5


@dataclass
class Line:
    """A load's figures as text, and whether all of its goals are met."""

    text: str
    is_met: bool


class DelayedStore(MemoryObjectStore):
    """Puts take their time; `puts_s` are the times they took, as measured; of one that was given up, what it
    would have taken."""

    def __init__(self, rand: Rand) -> None:
        super().__init__(SystemClock())
        self._rand = rand
        self.puts_s: list[float] = []
        self.requests = 0
        self.sent_bytes = 0

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        self.sent_bytes += sum(map(len, parts))
        await self._delay()
        await super().put_if_absent(key, parts)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._delay()
        await super().put(key, parts)

    async def close(self) -> None:
        """It outlives who opened it: a broker looks at it before it opens its log."""

    async def _delay(self) -> None:
        self.requests += 1
        first, second = 1.0 - self._rand.fraction(), self._rand.fraction()
        normal = math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)
        delay_s = P50_MS / 1000 * math.exp(SIGMA * normal)
        loop = asyncio.get_running_loop()
        began, answered = loop.time(), loop.create_future()

        def answer() -> None:
            self.puts_s.append(loop.time() - began)
            if not answered.done():
                answered.set_result(None)

        loop.call_later(delay_s, answer)
        await answered


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
    Load("1600 sends/s of 64 KiB", rate=1600, size_bytes=65536),
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
            await asyncio.sleep(TRIM_EVERY_S)
            await self.wal.trim(self.wal.confirmed_end)


async def run_log(load: Load, seconds: float, settings: ObjectWalSettings) -> Line:
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
    hedges = (
        f"{wal.hedging.begun / seconds:4.1f}/s twice, {wal.hedging.won / max(1, wal.hedging.begun):3.0%} won"
    )
    allowed = allowed_requests(len(run.latencies_s) * load.size_bytes / seconds, settings)
    object_bytes = sent_bytes / max(1, len(puts))
    return line(
        load.name,
        sorted(run.latencies_s),
        puts,
        requests / seconds,
        allowed,
        object_bytes,
        hedges,
        has_goal=not settings.interval_ms,
    )


def allowed_requests(bytes_a_second: float, settings: ObjectWalSettings) -> float:
    """A second, by age and bytes."""
    objects = 1000 / max(GATHER_MS, settings.interval_ms) + bytes_a_second / settings.batch_bytes_max
    return objects * (1 if settings.hedge == "off" else 2) + 1 / TRIM_EVERY_S


def line(
    name: str,
    latencies: list[float],
    puts: list[float],
    requests: float,
    allowed: float,
    object_bytes: float,
    hedges: str = "",
    *,
    has_goal: bool = True,
) -> Line:
    own = [at(latencies, part) for part in (0.5, 0.99)]
    store = [at(puts, part) for part in (0.5, 0.99)]
    ratios = own[0] / store[0], own[1] / store[1]
    is_quick = not has_goal or (ratios[0] <= P50_RATIO_MAX and ratios[1] <= P99_RATIO_MAX)
    is_sparing = requests <= allowed
    text = (
        f"{name:<26} produce p50 {own[0]:4.0f} p99 {own[1]:4.0f} ms   PUT p50 {store[0]:4.0f} p99 "
        f"{store[1]:4.0f} ms   "
        f"{ratios[0]:4.2f} x {ratios[1]:4.2f} x {verdict(is_quick) if has_goal else '':<6}   "
        f"{requests:5.1f} of {allowed:3.0f} requests/s {verdict(is_sparing):<6} "
        f"${requests * MONTH_S * DOLLARS_A_PUT:<4.0f} of {object_bytes / 1024:6.0f} KiB   {hedges}".rstrip()
    )
    return Line(text, is_quick and is_sparing)


def verdict(is_met: bool) -> str:
    return Row("", "", is_met=is_met).verdict


def at(ordered: list[float], part: float) -> float:
    return ordered[int(len(ordered) * part)] * 1000


@dataclass
class BrokerLoad:
    name: str
    connections: int
    depth: int = 1
    pace_s: float = 0.0  # each connection sends one so often, answered or not
    size_bytes: int = 4096  # of a request's batch


BROKER_LOADS = (
    BrokerLoad("1 connection", 1),
    BrokerLoad("16 connections", 16),
    BrokerLoad("16 connections, 5 deep", 16, depth=5),
    BrokerLoad("16 connections, 10/s each", 16, pace_s=0.1),
    BrokerLoad("10 MB/s, 10/s each of 64 KiB", 16, pace_s=0.1, size_bytes=65536),
    BrokerLoad("52 MB/s, 50/s each of 64 KiB", 16, pace_s=0.02, size_bytes=65536),
)


async def run_broker(load: BrokerLoad, seconds: float, folder: str, hedge: str, interval_ms: int) -> Line:
    """Produce requests of one batch, each connection to a partition of its own."""
    wal_store = DelayedStore(Rand(load.name.encode()))
    runtime = real_runtime()

    async def open_store(address: StoreAddress, clock: Clock) -> ObjectStore:
        return wal_store if address.scheme == "mem" else await runtime.open_store(address, clock)

    given = {
        "s3.wal.path": f"0@mem://?hedge={hedge}&batchInterval={interval_ms}",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "admin.listener": "",
    }
    settings = read_settings(
        {name: Given(value, "override", "the benchmark") for name, value in given.items()},
        data_dir=f"{folder}/{load.name}",
        machine_bytes=1 << 31,
    ).settings
    broker = Broker(settings, replace(runtime, open_store=open_store))
    try:
        await broker.start()
        port = broker.listeners[0].port
        await make_topic(port, "load", load.connections)
        batch = batch_of(1, load.size_bytes)
        frames = [produce_frame("load", number, batch) for number in range(load.connections)]
        await run_load(port, frames, depth=1, seconds=0.5)  # opens the partitions
        wal_store.puts_s.clear()
        wal_store.requests = wal_store.sent_bytes = 0
        result = await run_load(
            port, frames, depth=load.depth, seconds=seconds, pace_s=load.pace_s, warm_s=0.0
        )
        puts = sorted(wal_store.puts_s)
        object_bytes = wal_store.sent_bytes / max(1, len(puts))
        wal_settings = ObjectWalSettings(hedge=hedge, batch_interval_ms=interval_ms)
        allowed = allowed_requests(len(result.latencies_s) * load.size_bytes / seconds, wal_settings)
        requests = wal_store.requests / seconds
        latencies = sorted(result.latencies_s)
        return line(load.name, latencies, puts, requests, allowed, object_bytes, has_goal=not interval_ms)
    finally:
        await broker.stop()


def main(seconds: float, only: str, is_virtual: bool, has_broker: bool, hedge: str, interval_ms: int) -> int:
    print(
        f"goal, of steady sends: produce within {P50_RATIO_MAX} x of the store's own PUT at p50, "
        f"{P99_RATIO_MAX} x at p99"
    )
    if has_broker:
        with TemporaryDirectory() as folder:
            wanted = [load for load in BROKER_LOADS if only in load.name]
            return show(asyncio.run(run_broker(load, seconds, folder, hedge, interval_ms)) for load in wanted)
    settings = ObjectWalSettings(hedge=hedge, batch_interval_ms=interval_ms)
    loads = [load for load in LOADS if only in load.name]
    if is_virtual:
        return show(run_simulation(partial(begin, load, seconds, settings)) for load in loads)
    return show(asyncio.run(run_log(load, seconds, settings)) for load in loads)


def show(lines: Iterable[Line]) -> int:
    """Each as it is measured; the exit code."""
    missed = 0
    for measured in lines:
        print(measured.text, flush=True)
        missed += not measured.is_met
    return int(missed > 0)


async def begin(load: Load, seconds: float, settings: ObjectWalSettings, loop: SimLoop) -> Line:
    return await run_log(load, seconds, settings)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--only", default="", help="loads with this in their name")
    parser.add_argument("--virtual", action="store_true", help="time jumps: the machine plays no part")
    parser.add_argument("--broker", action="store_true", help="produce requests to a broker on the log")
    parser.add_argument(
        "--hedge", default="on", choices=("on", "off"), help="whether late puts are sent twice"
    )
    parser.add_argument(
        "--interval", type=int, default=0, metavar="MS", help="batchInterval; 0 favours latency"
    )
    given = parser.parse_args()
    sys.exit(main(given.seconds, given.only, given.virtual, given.broker, given.hedge, given.interval))
