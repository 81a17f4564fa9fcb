"""Counters, gauges and histograms as plain objects handed in, and the registry that prints them for
Prometheus.

Whoever counts holds the object and calls `inc`; a part built without a registry makes its own and nobody
looks at it. There are no module-level metrics. Objects are for one thread, the loop's. Labels are fixed when
the object is made: a series that comes and goes (a topic, a client) is made and dropped by its owner, who
bounds how many there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

from millrace.runtime.scheduling.yielding import Yielding, run_to_end

LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
# Seconds of a clock that is finer than the loop's (uvloop's goes in milliseconds), for what is only shown: no
# decision may rest on it.
measured_s = perf_counter
SIZE_BOUNDS_BYTES = tuple(float(4**power) for power in range(4, 15))  # 256 bytes to 256 MiB


class Figure:
    """One number. With `read`, its value is asked for when it is printed, and nobody calls `inc`."""

    __slots__ = ("_read", "_value")

    def __init__(self, read: Callable[[], float] | None = None) -> None:
        self._read = read
        self._value: float = 0

    @property
    def value(self) -> float:
        return self._value if self._read is None else self._read()

    def inc(self, amount: float = 1) -> None:
        self._value += amount


class Counter(Figure):
    """Only grows."""

    __slots__ = ()


class Gauge(Figure):
    """Goes up and down."""

    __slots__ = ()

    def set(self, value: float) -> None:
        self._value = value

    def dec(self, amount: float = 1) -> None:
        self._value -= amount


class Histogram:
    """Counts by upper bound, inclusive; the last count is for everything above the last bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        assert list(bounds) == sorted(set(bounds)), bounds
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, fraction: float) -> float:
        """The upper bound below which that fraction lies: for people, not for decisions. 0 when nothing was
        seen."""
        rank, seen = fraction * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen and seen >= rank:
                return bound
        return self.bounds[-1] if seen or self.counts[-1] else 0.0


Metric = Counter | Gauge | Histogram
Sample = tuple[Mapping[str, str], float]  # labels and value
Samples = Mapping[str, Iterable[Sample]]  # by the family's name
M = TypeVar("M", Counter, Gauge, Histogram)
LINES_PER_CHUNK = 500  # of series that come and go
_TYPES = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}


class Registry:
    """Names and prints metrics. One family a name: its help and type, and a series for each set of labels.
    Names of counters, and of nothing else, end in `_total`: who asks for a rate sees by the name whether
    there is one."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, dict[str, Metric]]] = {}
        self._sampled: dict[str, tuple[str, str]] = {}  # by name: text and kind
        self._reads: list[Callable[[], Samples]] = []

    def counter(
        self, name: str, text: str, read: Callable[[], float] | None = None, **labels: str
    ) -> Counter:
        return self._add(name, text, Counter(read), labels)

    def gauge(self, name: str, text: str, read: Callable[[], float] | None = None, **labels: str) -> Gauge:
        return self._add(name, text, Gauge(read), labels)

    def histogram(
        self, name: str, text: str, bounds: Sequence[float] = LATENCY_BOUNDS_S, **labels: str
    ) -> Histogram:
        return self._add(name, text, Histogram(bounds), labels)

    def sampled(self, name: str, text: str, kind: str, read: Callable[[], Iterable[Sample]]) -> None:
        """A family whose series come and go: `read` gives those that there are when they are printed, and
        bounds how many. `kind`: counter or gauge."""
        self.sampled_together({name: text}, kind, lambda: {name: read()})

    def sampled_together(self, texts: Mapping[str, str], kind: str, read: Callable[[], Samples]) -> None:
        """Families of one kind whose series come from one look: `texts` and what `read` gives are by name."""
        for name, text in texts.items():
            assert name.endswith("_total") is (kind == "counter"), f"{name} is a {kind}"
            assert name not in (*self._families, *self._sampled), f"{name} was registered before"
            self._sampled[name] = text, kind
        self._reads.append(read)

    def _add(self, name: str, text: str, metric: M, labels: Mapping[str, str]) -> M:
        kind = _TYPES[type(metric)]
        assert name.endswith("_total") is (kind == "counter"), f"{name} is a {kind}"
        known_text, known_kind, series = self._families.setdefault(name, (text, kind, {}))
        assert (known_text, known_kind) == (text, kind), f"{name} was registered differently"
        key = _label_text(labels)
        assert key not in series, f"{name}{key} was registered before"
        series[key] = metric
        return metric

    def drop(self, name: str, **labels: str) -> None:
        """Forgets one series; no error when there is none."""
        if name in self._families:
            self._families[name][2].pop(_label_text(labels), None)

    def render(self) -> str:
        """Prometheus text format 0.0.4, all of it at once."""
        return run_to_end(self.render_yielding())

    def render_yielding(self) -> Yielding[str]:
        """The same, with a stop behind each look at what comes and goes, and behind so many lines."""
        lines: list[str] = []
        for name, (text, kind, series) in list(self._families.items()):
            if not series:
                continue
            lines.append(f"# HELP {name} {_escape(text, quote=False)}")
            lines.append(f"# TYPE {name} {kind}")
            for labels, metric in series.items():
                lines.extend(_sample_lines(name, labels, metric))
        for read in self._reads:
            yield
            found = {name: list(samples) for name, samples in read().items()}
            yield
            yield from self._render_sampled(found, lines)
        yield
        return "\n".join(lines) + "\n" if lines else ""

    def _render_sampled(self, found: Mapping[str, list[Sample]], lines: list[str]) -> Yielding[None]:
        """Labels that families share are written out once: they are most of the work."""
        label_texts: dict[int, str] = {}  # by the identity of labels, which `found` keeps alive
        for name, samples in found.items():
            if not samples:
                continue
            text, kind = self._sampled[name]
            lines += [f"# HELP {name} {_escape(text, quote=False)}", f"# TYPE {name} {kind}"]
            for number, (labels, value) in enumerate(samples, 1):
                if number % LINES_PER_CHUNK == 0:
                    yield
                label_text = label_texts.get(id(labels))
                if label_text is None:
                    label_text = label_texts[id(labels)] = _label_text(labels)
                lines.append(f"{name}{label_text} {_number(value)}")


def _sample_lines(name: str, labels: str, metric: Metric) -> Iterator[str]:
    if not isinstance(metric, Histogram):
        yield f"{name}{labels} {_number(metric.value)}"
        return
    seen = 0
    for bound, count in zip((*metric.bounds, float("inf")), metric.counts, strict=True):
        seen += count
        limit = "+Inf" if bound == float("inf") else _number(bound)
        yield f"{name}_bucket{_with_label(labels, 'le', limit)} {seen}"
    yield f"{name}_sum{labels} {_number(metric.total)}"
    yield f"{name}_count{labels} {seen}"


def _label_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return (
        "{"
        + ",".join(f'{name}="{_escape(value, quote=True)}"' for name, value in sorted(labels.items()))
        + "}"
    )


def _with_label(labels: str, name: str, value: str) -> str:
    return f'{labels[:-1]},{name}="{value}"}}' if labels else f'{{{name}="{value}"}}'


def _escape(text: str, *, quote: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
