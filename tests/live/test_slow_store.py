"""The broker on its usual loop, log and data in a store as slow as one in a region: a PUT takes 60 ms, one in
a hundred 250 ms.

`make slow-store` runs it for ten minutes (MILLRACE_SLOW_STORE_S).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import uvloop

from tests.bench.produce_load import LoadResult, ProduceLoad, batch_of, make_topic, produce_frame
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.s3_server import S3Server
from tests.live.slow_proxy import SlowProxy
from tests.live.test_s3 import ready_page

SECONDS = float(os.environ.get("MILLRACE_SLOW_STORE_S", "4"))
PARTITIONS = 12
# Bytes of a value, and how often each connection sends one: many small, odd moments, and some MB/s.
LOADS = ((100, 0.013), (4096, 0.037), (65_536, 0.25))
# Beside the answer to the last PUT a record may wait for some that began before it. It is an order, not a
# goal.
P99_MS_MAX = 2_500


async def produce(broker: LiveBroker) -> list[LoadResult]:
    """All loads at once, each over its share of the partitions. Every answer without an error."""
    await make_topic(broker.port, "slow", PARTITIONS)
    loads = []
    for first, (size_bytes, pace_s) in enumerate(LOADS):
        partitions = range(first, PARTITIONS, len(LOADS))
        frames = [produce_frame("slow", partition, batch_of(1, size_bytes)) for partition in partitions]
        loads.append(await ProduceLoad(broker.port, frames, 1, pace_s).start())
    left_s = SECONDS
    while left_s > 0:
        await asyncio.sleep(min(1.0, left_s))
        left_s -= 1.0
        for load in loads:
            load.raise_failure()
    for load in loads:
        await load.stop()
    return [load.result for load in loads]


def test_a_slow_store_ends_no_broker(tmp_path: Path) -> None:
    """Twelve producers of three kinds for some seconds while data is uploaded too; then kill -9. All that was
    acknowledged is there after a restart on the same slow store, no less and no more, and the log says
    nothing of a failure. (The broker ended within seconds.)"""
    with S3Server(tmp_path / "s3") as server, SlowProxy(server.port) as proxy:
        for name in ("log", "lake"):
            server.make(name)
        settings = {
            "s3.wal.path": proxy.slow(server.address("log")) + "&capacity=256MiB",
            "s3.data.buckets": proxy.slow(server.address("lake")),
            "s3.wal.upload.interval.ms": "1500",
            "log.retention.bytes": str(256 << 20),
            "log.retention.check.interval.ms": "10000",
        }
        with LiveBroker(tmp_path, settings, is_warm=True) as broker:
            proxy.puts("log")
            results = uvloop.run(produce(broker))
            assert broker.is_running()
            assert ready_page(broker) == "ready\n"
            puts = proxy.puts("log")
            for (size_bytes, _), result in zip(LOADS, results, strict=True):
                p50_ms, p99_ms = result.quantile_ms(0.5), result.quantile_ms(0.99)
                print(
                    f"{result.requests_count} of {size_bytes} bytes: p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} "
                    "ms; PUT of the "
                    f"log p50 {puts.quantile_ms(0.5):.0f} ms, p99 {puts.quantile_ms(0.99):.0f} ms"
                )
                assert p99_ms < P99_MS_MAX
            assert (
                broker.metrics()['millrace_store_requests_total{operation="put_if_absent",outcome="ok"}'] > 0
            )
            broker.kill()
            broker.start()
            with Client(broker.address) as client:
                for first, result in enumerate(results):
                    partitions = range(first, PARTITIONS, len(LOADS))
                    ends = sum(client.offset("slow", -1, partition) for partition in partitions)
                    assert ends == result.requests_count
            assert "Traceback" not in broker.log_path.read_text()
