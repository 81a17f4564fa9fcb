"""Alert rules and dashboard, as far as they can be judged without Prometheus and Grafana: by the list of
docs/metrics.md."""

from __future__ import annotations

import re

import pytest

from millrace.broker.meters.node import ALERTED_ERRORS
from tests.metrics_docs import MetricRow, alert_rules, expressions, metric_rows, panels

ROWS = {row.name: row for row in metric_rows()}
EXPRESSIONS = expressions()
SCRAPED = MetricRow("up", "gauge", frozenset({"job"}), "Prometheus' own")
SERIES = re.compile(r"\b((?:millrace|process)_\w+|up)\b(?:\{([^}]*)\})?")
RANGES = {"rate": "counter", "increase": "counter", "delta": "gauge"}


def row_of(series: str) -> MetricRow | None:
    """The metric of a series, which a histogram has three of."""
    if series == "up":
        return SCRAPED
    whole = re.sub(r"_(bucket|sum|count)$", "", series)
    row = ROWS.get(series) or ROWS.get(whole)
    return row if row is None or (row.kind == "histogram") is (row.name != series) else None


def faults_in(expression: str) -> list[str]:
    faults = [] if expression.count("(") == expression.count(")") else ["brackets"]
    found = SERIES.findall(expression)
    known: set[str] = {"le"}
    for name, selector in found:
        row = row_of(name)
        if row is None:
            faults.append(f"nobody shows {name}")
            continue
        known |= row.labels
        faults += [
            f"{name} has no {label}"
            for label in re.findall(r"(\w+)\s*(?:=|!)", selector)
            if label not in row.labels
        ]
    for words in re.findall(r"\bby \(([^)]*)\)", expression):
        faults += [f"nothing has {label}" for label in re.findall(r"\w+", words) if label not in known]
    for function, name in re.findall(r"\b(rate|increase|delta)\((\w+)", expression):
        row = row_of(name)
        kinds = (RANGES[function], "histogram") if function != "delta" else (RANGES[function],)
        faults += [] if row is None or row.kind in kinds else [f"{function} of a {row.kind}, {name}"]
    for name in re.findall(
        r"(?<![\w(])(\w+_total)\b", re.sub(r"\b(?:rate|increase)\([^)]*\)", "", expression)
    ):
        faults.append(f"{name} without a rate")
    return faults if found else [*faults, "no metric"]


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_an_expression_names_what_there_is(place: str) -> None:
    """Metrics and labels of the list, brackets that close, a rate of counters and of nothing else."""
    assert faults_in(EXPRESSIONS[place]) == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("millrace_wal_full_bytes > 0", "nobody shows millrace_wal_full_bytes"),
        ('millrace_wal_used_bytes{topic="a"} > 0', "millrace_wal_used_bytes has no topic"),
        ("sum by (topic) (millrace_wal_used_bytes)", "nothing has topic"),
        ("rate(millrace_wal_used_bytes[5m]) > 0", "rate of a gauge, millrace_wal_used_bytes"),
        ("delta(millrace_wal_hedges_total[5m]) > 0", "delta of a counter, millrace_wal_hedges_total"),
        ("millrace_wal_hedges_total > 0", "millrace_wal_hedges_total without a rate"),
        ("rate(millrace_request_duration_seconds[5m])", "nobody shows millrace_request_duration_seconds"),
        ("sum(millrace_wal_used_bytes", "brackets"),
        ("1 > 0", "no metric"),
    ],
)
def test_what_is_wrong_is_found(expression: str, fault: str) -> None:
    """Each fault by itself."""
    assert faults_in(expression) == [fault]


def test_alert_rules_say_how_bad_it_is_and_what_to_do() -> None:
    """Names of their own; a summary and a remedy, whose placeholders are labels of the expression's
    metrics."""
    rules = alert_rules()
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert re.fullmatch(r"Millrace[A-Za-z]+", rule["alert"]), rule
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s")), rule
        assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"}), rule
        assert set(rule["annotations"]) == {"summary", "remedy"}, rule
        names = [name for name, _ in SERIES.findall(rule["expr"])]
        labels = {label for name in names if (row := row_of(name)) for label in row.labels}
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels, rule


@pytest.mark.parametrize(
    ("lag_s", "interval_s", "is_late"),
    [(599, 60, False), (601, 60, True), (3600, 3600, False), (7201, 3600, True), (0, 0.1, False)],
)
def test_uploads_are_late_by_their_own_interval(lag_s: float, interval_s: float, is_late: bool) -> None:
    """Where uploads are to wait for longer than ten minutes a lag as long is none."""
    (rule,) = (rule for rule in alert_rules() if rule["alert"] == "MillraceUploadLate")
    values = {"millrace_upload_lag_seconds": lag_s, "millrace_upload_interval_seconds": interval_s}
    assert eval(SERIES.sub(lambda name: str(values[name[1]]), rule["expr"])) is is_late


def test_an_alert_on_errors_is_raised_by_one() -> None:
    """What counted once is an increase for as long as the expression's range: a rule that waits for longer is
    met by errors that go on alone. The first value of a series is no increase, so the codes that rules name
    are shown before."""
    found = [rule for rule in alert_rules() if re.search(r"\b(rate|increase)\(", rule["expr"])]
    assert len(found) >= 3
    for rule in found:
        (minutes,) = re.findall(r"\[(\d+)m\]", rule["expr"])
        waited = re.fullmatch(r"(\d+)m", rule.get("for", "0m"))
        assert waited, rule
        assert int(waited[1]) < int(minutes), rule
        assert set(re.findall(r'code="(\w+)"', rule["expr"])) <= set(ALERTED_ERRORS), rule


def test_panels_are_complete_and_lie_beside_one_another() -> None:
    """Each has an id, a place, a unit, a data source by the variable and at least one query."""
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    places = [panel["gridPos"] for panel in found]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    for panel in found:
        assert panel["type"] == "timeseries", panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), panel["title"]
        for one in (panel, *panel["targets"]):
            assert one["datasource"] == {"type": "prometheus", "uid": "${source}"}, panel["title"]
