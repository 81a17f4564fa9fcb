"""docs/metrics.md, the alert rules and the dashboard as tests read them: the rows of the list, and every
expression of PromQL with its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DOCS = Path(__file__).parent.parent / "docs"
METRICS_PAGE = DOCS / "metrics.md"
ALERTS = DOCS / "metrics" / "millrace-alerts.yml"
DASHBOARD = DOCS / "metrics" / "millrace-dashboard.json"


class MetricRow(NamedTuple):
    """`kind`: counter, gauge or histogram. `text`: what it is."""

    name: str
    kind: str
    labels: frozenset[str]
    text: str


def metric_rows() -> list[MetricRow]:
    """The list of the page, in its order."""
    found = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|", METRICS_PAGE.read_text(), re.MULTILINE
    )
    return [
        MetricRow(name, kind, frozenset(re.findall(r"\w+", labels)), text)
        for name, kind, labels, text in found
    ]


def alert_rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> dict[str, str]:
    """PromQL by where it stands: of alerts, of the dashboard, of the page's table of Kafka's names."""
    found = {f"alert {rule['alert']}": rule["expr"] for rule in alert_rules()}
    for panel in panels():
        for target in panel["targets"]:
            found[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    section = METRICS_PAGE.read_text().partition("\n## Kafka's names\n")[2].partition("\n## ")[0]
    for number, row in enumerate(line for line in section.splitlines() if line.startswith("| `")):
        for expression in re.findall(r"`([^`]*millrace_[^`]*)`", row.split(" | ", 1)[1]):
            found[f"Kafka's names, row {number}: {expression}"] = expression
    return found
