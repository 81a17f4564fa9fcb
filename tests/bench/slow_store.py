"""A broker whose log lies behind a store as slow as S3: acknowledgements against PUTs, and what they cost.
`python -m tests.bench.slow_store`

The store is an S3 server on this machine behind a proxy (tests/live/slow_proxy.py): PUTs of 60 ms at the
median, 250 at 99 of 100. The broker runs as it is started by operators, on uvloop, in a process of its own.
For each batch interval one broker takes each load in turn, produce requests over sockets at a steady rate;
latencies are held against the PUTs of the log in the same seconds, as the proxy saw them. Costs are PUTs of
the log a month of 30 days at S3 Standard's list price. `--seconds` each.

The goal is of the setting that favours latency, up to 10 MB/s: 1.3 times the store's own PUT, at the median
and at 99 of 100. Exit code 1 when it is missed. Two cores serve broker, producers, proxy and server: beyond
10 MB/s they are what is measured.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from tests.bench.prices import DOLLARS_A_PUT
from tests.bench.produce_load import batch_of, make_topic, produce_frame, run_load
from tests.bench.report import Row, exit_code, table
from tests.live import LiveBroker
from tests.live.s3_server import S3Server
from tests.live.slow_proxy import SlowProxy

RATIO_MAX = 1.3
MONTH_S = 30 * 86_400
INTERVALS_MS = (0, 100, 250)


@dataclass
class Load:
    name: str
    connections: int
    value_bytes: int
    pace_s: float
    is_goal: bool = False


LOADS = (
    Load("120 records/s", 12, 100, 0.1, is_goal=True),
    Load("1 MB/s", 16, 4096, 0.065, is_goal=True),
    Load("10 MB/s", 16, 65_536, 0.105, is_goal=True),
    Load("50 MB/s", 16, 262_144, 0.084),
)


async def run_one(
    broker: LiveBroker, proxy: SlowProxy, load: Load, interval_ms: int, seconds: float
) -> list[Row]:
    topic = load.name.replace(" ", "-").replace("/", "-")
    await make_topic(broker.port, topic, load.connections)
    frames = [
        produce_frame(topic, number, batch_of(1, load.value_bytes)) for number in range(load.connections)
    ]
    await run_load(
        broker.port, frames, depth=1, seconds=2.0, pace_s=load.pace_s
    )  # opens partitions, and the log learns
    proxy.puts(f"log{interval_ms}")
    cpu_s = broker.cpu_seconds()
    result = await run_load(broker.port, frames, depth=1, seconds=seconds, pace_s=load.pace_s, warm_s=0.0)
    cpu_s = (broker.cpu_seconds() - cpu_s) / seconds
    puts = proxy.puts(f"log{interval_ms}")
    own = [result.quantile_ms(part) for part in (0.5, 0.99)]
    store = [puts.quantile_ms(part) for part in (0.5, 0.99)]
    ratios = [mine / theirs for mine, theirs in zip(own, store, strict=True)]
    a_second = len(puts.times_ms) / seconds
    is_met = max(ratios) <= RATIO_MAX if load.is_goal and not interval_ms else None
    return [
        Row(
            f"batchInterval={interval_ms}, {load.name}",
            f"{ratios[0]:.2f} x {ratios[1]:.2f} x",
            f"p50 {own[0]:.0f} p99 {own[1]:.0f} ms of PUT {store[0]:.0f} and {store[1]:.0f}",
            f"{RATIO_MAX} x" if is_met is not None else "",
            is_met,
        ),
        Row(
            "  PUT of the log",
            f"{a_second:.1f} a second",
            f"${a_second * MONTH_S * DOLLARS_A_PUT:.0f} a month; broker {cpu_s:.0%} of a core, "
            f"{result.bytes_per_second / 1e6:.1f} MB/s",
        ),
    ]


def run(seconds: float, intervals_ms: list[int], only: str, options: str) -> list[Row]:
    rows: list[Row] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        with S3Server(folder / "s3") as server, SlowProxy(server.port) as proxy:
            for interval_ms in intervals_ms:
                log, lake = f"log{interval_ms}", f"lake{interval_ms}"
                server.make(log)
                server.make(lake)
                settings = {
                    "s3.wal.path": f"{proxy.slow(server.address(log))}&batchInterval={interval_ms}{options}",
                    "s3.data.buckets": proxy.slow(server.address(lake)),
                }
                with LiveBroker(folder / str(interval_ms), settings) as broker:
                    for load in LOADS:
                        if only in load.name:
                            rows += uvloop.run(run_one(broker, proxy, load, interval_ms, seconds))
                            print(table(rows[-2:]), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--interval", type=int, nargs="+", default=list(INTERVALS_MS), metavar="MS")
    parser.add_argument("--only", default="", help="loads with this in their name")
    parser.add_argument("--options", default="", help="more of s3.wal.path, as &hedge=off")
    given = parser.parse_args()
    rows = run(given.seconds, given.interval, given.only, given.options)
    print(table(rows))
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
