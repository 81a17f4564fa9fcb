"""What is measured reaches the page of /metrics under its name."""

from __future__ import annotations

from millrace.broker.meters import StoreCounts
from millrace.runtime.metrics import Registry


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
        'millrace_store_seconds_count{operation="put"} 3',
        'millrace_store_seconds_sum{operation="get"} 0.005',
    ):
        assert line in page.splitlines(), page
    assert "delete" not in page
