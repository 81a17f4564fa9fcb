"""What is measured reaches the page of /metrics under its name."""

from __future__ import annotations

import asyncio

from millrace.broker.meters.node import ALERTED_ERRORS, StoreCounts, show_edge, show_hedging, show_traffic
from millrace.broker.requests.request import RequestContext
from millrace.broker.stores import stack_stores
from millrace.protocol.messages.api_versions import ApiVersionsResponse
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.runtime.clock import SystemClock
from millrace.runtime.metrics import Registry
from millrace.runtime.objectstore.memory import MemoryObjectStore
from millrace.runtime.rand import Rand
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.config import TrafficSettings
from millrace.s3stream.limiter import Tier
from tests.broker.shell import Shell
from tests.patience import eventually
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.objectstore import StoreFaults
from tests.wal.object.build import make_bucket, start_wal, store_on


def test_store_requests_are_counted_by_operation_and_outcome() -> None:
    """Requests, bytes both ways, and latency in seconds; an operation that never was has no series."""
    registry = Registry()
    counts = StoreCounts(registry)
    counts.on_operation("put", "ok", 1000, 0, 20.0)
    counts.on_operation("put", "ok", 500, 0, 30.0)
    counts.on_operation("put", "unavailable", 500, 0, 1000.0)
    counts.on_operation("get", "ok", 0, 700, 5.0)
    page = registry.render()
    for line in (
        'millrace_store_requests_total{operation="put",outcome="ok"} 2',
        'millrace_store_requests_total{operation="put",outcome="unavailable"} 1',
        'millrace_store_requests_total{operation="get",outcome="ok"} 1',
        "millrace_store_sent_bytes_total 2000",
        "millrace_store_received_bytes_total 700",
        'millrace_store_request_duration_seconds_count{operation="put"} 3',
        'millrace_store_request_duration_seconds_sum{operation="get"} 0.005',
    ):
        assert line in page.splitlines(), page
    assert "delete" not in page


def test_traffic_is_shown_by_tier_and_way() -> None:
    """What each tier's calls sent and received, who waited, and the pace of writes, once each part has used
    its own store."""

    async def main(loop: SimLoop) -> str:
        registry = Registry()
        bare = MemoryObjectStore(SystemClock())
        settings = TrafficSettings(bandwidth_bytes=1 << 20)
        stores = stack_stores(
            bare, StoreCounts(registry), Rand(b"meters"), settings, lambda *_: None, YieldQueue()
        )
        show_traffic(registry, stores)
        await stores.engine.upload.put("a", [bytes(3 << 20)])
        await stores.engine.reads.get_range("a", 0, 1000)
        await asyncio.gather(*(stores.engine.read_ahead.get_range("a", 0, 3 << 20) for _ in range(2)))
        await stores.compaction.put("b", [b"small"])
        await stores.wal(bare).get("b")
        return registry.render()

    page = run_simulation(main).splitlines()
    for line in (
        'millrace_traffic_passed_bytes_total{tier="upload",way="out"} 3145728',
        'millrace_traffic_passed_bytes_total{tier="tail",way="in"} 1000',
        'millrace_traffic_passed_bytes_total{tier="catch_up",way="in"} 6291456',
        'millrace_traffic_requests_total{tier="catch_up",way="in"} 2',
        'millrace_traffic_waits_total{tier="catch_up",way="in"} 2',
        'millrace_traffic_waiting_requests{tier="catch_up",way="in"} 0',
        'millrace_traffic_passed_bytes_total{tier="compaction",way="out"} 5',
        'millrace_traffic_passed_bytes_total{tier="compaction",way="pace"} 5',
        'millrace_traffic_passed_bytes_total{tier="wal",way="in"} 5',
        'millrace_traffic_passed_bytes_total{tier="wal",way="pace"} 0',
        "# TYPE millrace_traffic_passed_bytes_total counter",
        "# TYPE millrace_traffic_wait_seconds_total counter",
        "# TYPE millrace_traffic_waiting_requests gauge",
        "# TYPE millrace_store_hedges_total counter",
        "millrace_traffic_write_pace_bytes_per_second 0",
        "millrace_store_hedges_total 0",
    ):
        assert line in page, page
    [seconds] = [
        line
        for line in page
        if line.startswith('millrace_traffic_wait_seconds_total{tier="catch_up",way="in"}')
    ]
    assert float(seconds.split()[-1]) > 0.5


def test_second_puts_of_the_log_are_counted_as_what_they_are() -> None:
    """One object of two is put twice: three requests that are charged to the log's tier, of which the loser
    shows as cancelled; and it has counters of its own."""

    async def main(loop: SimLoop) -> str:
        registry = Registry()
        bucket = make_bucket()
        store = store_on(bucket, faults=StoreFaults(latency_ms=(60, 60)))
        stores = stack_stores(
            store, StoreCounts(registry), Rand(b"meters"), TrafficSettings(), lambda *_: None, YieldQueue()
        )
        wal, _, journal = await start_wal(bucket, 1, stores.wal(store))  # type: ignore[arg-type]
        for _ in range(8):
            wal.hedging.on_uploaded(110.0)  # the second waits for the first to end
        wal.append(b"first")
        await asyncio.sleep(0.01)
        await journal.reach(wal.append(b"second").end)
        show_hedging(registry, wal.hedging)
        assert stores.traffic.outbound.tiers.counts[Tier.WAL].requests == 2 + 3
        return registry.render()

    page = run_simulation(main)
    for line in (
        'millrace_store_requests_total{operation="put_if_absent",outcome="ok"} 4',
        'millrace_store_requests_total{operation="put_if_absent",outcome="cancelled"} 1',
        "millrace_wal_hedges_total 1",
        "millrace_wal_won_hedges_total 0",
        "millrace_wal_hedged_bytes_total 229",
    ):
        assert line in page.splitlines(), page


def test_requests_are_timed_by_api() -> None:
    """From the beginning to the reply, what a request is parked for included; one that is never answered is
    in no bucket."""
    registry = Registry()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        parked: list[asyncio.Future[HeartbeatResponse]] = []

        def park(context: RequestContext, request: HeartbeatRequest) -> asyncio.Future[HeartbeatResponse]:
            parked.append(loop.create_future())
            return parked[-1]

        async with Shell({12: park, 18: lambda context, request: ApiVersionsResponse()}) as shell:
            show_edge(registry, shell.server, shell.memory)
            client = await shell.client()
            client.send(18, 3)
            await client.receive(18, 3)
            for _ in range(2):
                client.send(12, 4)
            await eventually(lambda: len(parked) == 2)
            await asyncio.sleep(0.02)
            parked[0].set_result(HeartbeatResponse())
            await client.receive(12, 4)

    asyncio.run(run())
    page = registry.render().splitlines()
    assert 'millrace_request_duration_seconds_count{request="Heartbeat"} 1' in page
    assert 'millrace_request_duration_seconds_bucket{request="Heartbeat",le="0.01"} 0' in page
    assert 'millrace_request_duration_seconds_bucket{request="Heartbeat",le="+Inf"} 1' in page
    assert 'millrace_request_duration_seconds_count{request="ApiVersions"} 1' in page
    for code in ALERTED_ERRORS:  # before there is one: the first is an increase then
        assert f'millrace_request_errors_total{{code="{code}",request="Heartbeat"}} 0' in page
    (total,) = [
        line for line in page if line.startswith('millrace_request_duration_seconds_sum{request="Heartbeat"}')
    ]
    assert float(total.split()[-1]) >= 0.02
