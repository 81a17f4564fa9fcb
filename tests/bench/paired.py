"""Two versions of the broker by turns, in one run: what a change costs.

    python -m tests.bench.paired --base CHECKOUT [--pairs 10] [--only cpu,fetch,latency] [--folder DIR]
    [--short]

CHECKOUT is another checkout of this repository with its own .venv (`make setup` there). Both brokers are up
all the time; one rests while the other is loaded, and who is first changes from pair to pair, so that a
neighbour's load and a drifting clock rate hit both alike. A figure is the median over the pairs of (this
version / base); beside it stand the least and the most. CPU is that of the broker's whole process, uploads
included. A row of CPU above `--most` (1.03) is MISSED, and the exit code is 1; latencies are shown beside the
device at the same time, and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from tests.bench.device import Device
from tests.bench.extent import FULL, SHORT, Extent
from tests.bench.fetch_load import FetchLoad, ends_of
from tests.bench.produce_load import ProduceLoad, batch_of, make_topic, produce_frame
from tests.bench.report import Row, exit_code, table
from tests.bench.rest import wait_rest
from tests.live import LiveBroker
from tests.live.rolling_upgrade import python_of

WAL = "1GiB"
WARM_S = 4.0
CONNECTIONS = 4
FETCHERS = 10


class VersionBroker(LiveBroker):
    """A broker of another checkout, run by that checkout's Python."""

    def __init__(self, checkout: Path, folder: Path, wal: str) -> None:
        super().__init__(folder, {"num.partitions": "8"}, wal=wal)
        self.python = python_of(checkout)


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of both versions."""

    ours: float
    base: float

    @property
    def ratio(self) -> float:
        return self.ours / self.base


@dataclass(frozen=True, slots=True)
class Load:
    """`frames_count` connections, `depth` requests in flight on each, one batch a request."""

    what: str
    records: int
    value_bytes: int
    frames_count: int = CONNECTIONS
    depth: int = 4
    pace_s: float = 0.0

    def frames(self) -> list[bytes]:
        batch = batch_of(self.records, self.value_bytes)
        return [produce_frame(self.what, index % 8, batch) for index in range(self.frames_count)]


SIZES = (
    Load("one-record", 1, 100, 50, 1),
    Load("4-KiB", 4, 1000),
    Load("16-KiB", 16, 1000),
    Load("32-KiB", 32, 1000),
    Load("64-KiB", 64, 1000),
)
PACED = Load("paced", 10, 1000, 10, 1, 0.1)


class Paired:
    def __init__(
        self, ours: LiveBroker, base: LiveBroker, device: Device, pairs: int, extent: Extent, most: float
    ):
        self._ours = ours
        self._base = base
        self._device = device
        self._pairs = pairs
        self._extent = extent
        self._most = most
        self.rows: list[Row] = []

    async def _by_turns(self, measure: Callable[[LiveBroker], Awaitable[float]]) -> list[Pair]:
        pairs = []
        for number in range(self._pairs):
            order = (self._ours, self._base) if number % 2 else (self._base, self._ours)
            found = {}
            for broker in order:
                found[broker] = await measure(broker)
                await wait_rest(broker.pid, self._extent.stretch(3))
            pairs.append(Pair(found[self._ours], found[self._base]))
        return pairs

    def _add(self, what: str, pairs: list[Pair], unit: str, *, is_judged: bool, beside: str = "") -> None:
        ratio = statistics.median(pair.ratio for pair in pairs)
        ours, base = (
            statistics.median(values)
            for values in zip(*((pair.ours, pair.base) for pair in pairs), strict=True)
        )
        ratios = sorted(pair.ratio for pair in pairs)
        beside = beside or f"{ours:.2f} and {base:.2f} {unit}; {ratios[0]:.3f} to {ratios[-1]:.3f}"
        target, is_met = (f"at most {self._most:g} x", ratio <= self._most) if is_judged else ("", None)
        self.rows.append(Row(what, f"{ratio:.3f} x", beside, target, is_met))
        print(f"{what}: {ratio:.3f} x, {beside}", flush=True, file=sys.stderr)

    def _begin_anew(self) -> None:
        """Both brokers without data: all rows together write more than a disk may have room for."""
        for broker in (self._ours, self._base):
            broker.kill()
            shutil.rmtree(broker.folder / "data")
            broker.start()

    # -- parts

    async def cpu(self) -> None:
        """CPU of a produce request of one batch, by its size."""
        for load in SIZES if self._extent is FULL else SIZES[:2]:
            self._begin_anew()
            for broker in (self._ours, self._base):
                await make_topic(broker.port, load.what)
                await self._cpu_us(broker, load, WARM_S)
            pairs = await self._by_turns(lambda broker, load=load: self._cpu_us(broker, load, 2.0))  # type: ignore[misc]
            self._add(f"CPU a request, {load.what}", pairs, "us", is_judged=True)

    async def _cpu_us(self, broker: LiveBroker, load: Load, seconds: float) -> float:
        """From before the first request to when the broker rests: uploads count wherever they run."""
        before = broker.cpu_seconds()
        running = await ProduceLoad(broker.port, load.frames(), load.depth).start()
        await asyncio.sleep(self._extent.stretch(seconds))
        await running.stop()
        await wait_rest(broker.pid, self._extent.stretch(3))
        return 1e6 * (broker.cpu_seconds() - before) / running.result.requests_count

    async def fetch(self) -> None:
        """CPU of the same paced load with ten consumers at the tail of its one partition, a fetch."""
        self._begin_anew()
        load = Load("tail", 1, 1000, 5, 1, 0.01)
        for broker in (self._ours, self._base):
            await make_topic(broker.port, load.what)
        pairs = await self._by_turns(lambda broker: self._fetch_us(broker, load))
        self._add("CPU a tail fetch and its produce", pairs, "us", is_judged=True)

    async def _fetch_us(self, broker: LiveBroker, load: Load) -> float:
        running = await ProduceLoad(
            broker.port, load.frames()[:1] * load.frames_count, 1, load.pace_s
        ).start()
        readers = await FetchLoad(broker.port, load.what, [0] * FETCHERS).start(
            await ends_of(broker.port, load.what, 1)
        )
        await asyncio.sleep(self._extent.stretch(0.5))
        before, counted = broker.cpu_seconds(), readers.count.fetches_count
        await asyncio.sleep(self._extent.stretch(3))
        spent_s, fetches = broker.cpu_seconds() - before, readers.count.fetches_count - counted
        await readers.stop()
        await running.stop()
        return 1e6 * spent_s / fetches

    async def latency(self) -> None:
        """acks=all at 1 MB/s in batches of 10 KB over ten connections, the device at that pace and time
        beside it."""
        self._begin_anew()
        p99: dict[LiveBroker, list[float]] = {self._ours: [], self._base: []}
        device_ms: list[float] = []

        async def p50_ms(broker: LiveBroker) -> float:
            seconds = self._extent.stretch(6)
            running = await ProduceLoad(broker.port, PACED.frames(), PACED.depth, PACED.pace_s).start()
            run, raw = await asyncio.gather(
                running.measure(seconds), asyncio.to_thread(self._device.write, 12 << 10, seconds, 0.01)
            )
            await running.stop()
            p99[broker].append(run.quantile_ms(0.99))
            device_ms.append(raw.quantile_ms(0.99))
            return run.quantile_ms(0.5)

        for broker in (self._ours, self._base):
            await make_topic(broker.port, PACED.what)
        self._add("p50 at 1 MB/s", await self._by_turns(p50_ms), "ms", is_judged=False)
        pairs = [Pair(*both) for both in zip(p99[self._ours], p99[self._base], strict=True)]
        self._add("p99 at 1 MB/s", pairs, "ms", is_judged=False)
        middle, most = statistics.median(device_ms), max(device_ms)
        self.rows.append(
            Row("  the device's own p99", f"{middle:.2f} ms", f"at most {most:.2f} ms in a stretch")
        )


PARTS = {"cpu": Paired.cpu, "fetch": Paired.fetch, "latency": Paired.latency}


async def run(options: argparse.Namespace) -> int:
    folder, extent = Path(options.folder).resolve(), SHORT if options.short else FULL
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    device = Device(folder, extent.device_bytes)
    here = Path(__file__).parents[2]
    brokers = [
        VersionBroker(checkout.resolve(), folder / name, extent.wal or WAL)
        for name, checkout in (("ours", here), ("base", Path(options.base)))
    ]
    try:
        for broker in brokers:
            broker.start()
        paired = Paired(brokers[0], brokers[1], device, options.pairs, extent, options.most)
        for name in options.only.split(",") if options.only else PARTS:
            await PARTS[name](paired)
    finally:
        for broker in brokers:
            broker.kill()
        device.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(table(paired.rows))
    return exit_code(paired.rows)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", required=True, help="the other checkout, with its .venv")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--most", type=float, default=1.03, help="the most that CPU may grow by")
    parser.add_argument("--folder", default="build/paired", help="on the file system to be measured; emptied")
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--short", action="store_true", help="a little of everything: figures say nothing")
    return uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
