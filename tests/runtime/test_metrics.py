"""Metrics as objects, and what the registry prints."""

from __future__ import annotations

import pytest

from millrace.runtime.metrics import LINES_PER_CHUNK, Counter, Gauge, Histogram, Registry
from millrace.runtime.scheduling.yielding import run_to_end

PRINTED = """\
# HELP wal_appends_total Records taken.
# TYPE wal_appends_total counter
wal_appends_total 3
# HELP bytes_total By \\\\ direction\\n.
# TYPE bytes_total counter
bytes_total{api="Fetch",dir="out"} 0.5
bytes_total{api="a\\"b\\\\c\\nd"} 7
# HELP lag_seconds Loop lag.
# TYPE lag_seconds histogram
lag_seconds_bucket{loop="main",le="0.1"} 1
lag_seconds_bucket{loop="main",le="1"} 3
lag_seconds_bucket{loop="main",le="+Inf"} 4
lag_seconds_sum{loop="main"} 7.05
lag_seconds_count{loop="main"} 4
# HELP room_bytes Room.
# TYPE room_bytes gauge
room_bytes 42
"""


def test_the_registry_prints_prometheus_text() -> None:
    """Families in order of registration, labels sorted and escaped, histogram buckets cumulative."""
    registry = Registry()
    registry.counter("wal_appends_total", "Records taken.").inc(3)
    registry.counter("bytes_total", "By \\ direction\n.", dir="out", api="Fetch").inc(0.5)
    registry.counter("bytes_total", "By \\ direction\n.", api='a"b\\c\nd').inc(7)
    lag = registry.histogram("lag_seconds", "Loop lag.", (0.1, 1.0), loop="main")
    for value in (0.05, 1.0, 1.0, 5.0):
        lag.observe(value)
    registry.gauge("room_bytes", "Room.", read=lambda: 42)
    assert registry.render() == PRINTED


def test_a_series_is_registered_once() -> None:
    """The same name and labels twice, or one name as two types, is a bug; a dropped series may come again."""
    registry = Registry()
    registry.counter("a_total", "A.", topic="t")
    with pytest.raises(AssertionError):
        registry.counter("a_total", "A.", topic="t")
    with pytest.raises(AssertionError):
        registry.gauge("a_total", "A.")
    registry.drop("a_total", topic="t")
    registry.drop("a_total", topic="t")
    registry.drop("unknown")
    assert registry.render() == ""
    registry.counter("a_total", "A.", topic="t")


def test_names_tell_what_only_grows() -> None:
    """A counter's name ends in _total and no other's does; a counter that reads asks each time it is
    printed."""
    registry, grown = Registry(), [1]
    with pytest.raises(AssertionError):
        registry.counter("reads", "R.")
    with pytest.raises(AssertionError):
        registry.gauge("reads_total", "R.")
    with pytest.raises(AssertionError):
        registry.histogram("reads_total", "R.")
    registry.counter("reads_total", "R.", lambda: grown[0], source="cache")
    grown[0] = 5
    assert registry.render().splitlines()[1:] == [
        "# TYPE reads_total counter",
        'reads_total{source="cache"} 5',
    ]


def test_a_page_of_many_series_is_made_in_chunks() -> None:
    """A stop around each look at what comes and goes, and one behind so many of its lines; what it comes to
    is the page."""
    registry, looks = Registry(), list[str]()
    registry.gauge("g", "G.").set(1)
    for name in ("a", "b"):
        labels = [{"n": str(number)} for number in range(2 * LINES_PER_CHUNK)]
        registry.sampled(
            name,
            "S.",
            "gauge",
            lambda name=name, labels=labels: looks.append(name) or [(one, 1.0) for one in labels],
        )
    steps, seen = registry.render_yielding(), list[list[str]]()
    for _ in steps:
        seen.append(list(looks))
    assert seen == [[], ["a"], ["a"], ["a"], ["a"], ["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"]]
    assert registry.render() == run_to_end(registry.render_yielding())
    assert registry.render().count("\n") == 2 + 1 + 2 * (2 + 2 * LINES_PER_CHUNK)


def test_gauges_and_counters() -> None:
    """A gauge goes both ways; one that reads asks each time."""
    gauge, counter, level = Gauge(), Counter(), [1]
    gauge.set(5)
    gauge.inc()
    gauge.dec(2)
    counter.inc()
    assert (gauge.value, counter.value) == (4, 1)
    reading = Gauge(lambda: level[0])
    level[0] = 9
    assert reading.value == 9


def test_quantiles_name_a_bound() -> None:
    """A quantile is the bound of the bucket it falls in; nothing seen gives 0, beyond the last bound gives
    the last."""
    histogram = Histogram((1.0, 2.0, 4.0))
    assert histogram.quantile(0.5) == 0
    for value in (0.5, 1.5, 1.5, 3.0):
        histogram.observe(value)
    assert [histogram.quantile(q) for q in (0.25, 0.5, 0.75, 1.0)] == [1.0, 2.0, 2.0, 4.0]
    beyond = Histogram((1.0,))
    beyond.observe(9)
    assert beyond.quantile(0.5) == 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_odd_numbers_are_printed(value: float) -> None:
    """Numbers that are not finite have their Prometheus spelling."""
    registry = Registry()
    registry.gauge("g", "G.").set(value)
    assert registry.render().splitlines()[-1].split()[1] in ("NaN", "+Inf", "-Inf")
