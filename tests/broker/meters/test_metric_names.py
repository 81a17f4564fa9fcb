"""Names of metrics: every one that docs/metrics.md lists keeps to the rule there. Whether the broker shows
these: tests/live/test_metrics_page.py."""

from __future__ import annotations

import re

import pytest

from tests.metrics_docs import METRICS_PAGE, MetricRow, metric_rows

FIELD_NAMES = (
    "process_",
    "millrace_build_info",
    "millrace_quorum_leader",
    "millrace_quorum_epoch",
    "millrace_quorum_high_watermark",
)
PAGE = METRICS_PAGE.read_text()


def listed_components() -> set[str]:
    table = PAGE.partition("| component |")[2].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def listed_units() -> set[str]:
    return set(re.findall(r"`(\w+)`", PAGE.partition("\nUnits: ")[2].partition("\n\n")[0]))


MEASURES = {
    "bytes",
    "bytes_per_second",
    "seconds",
    "offset",
}  # of something that has to be said; what is counted says itself
COMPONENTS, UNITS = listed_components(), listed_units()


def fault_of(row: MetricRow) -> str:
    """What is wrong with the name, "" for nothing."""
    name = row.name
    if name.startswith(FIELD_NAMES):
        return ""
    if name.endswith("_total") is not (row.kind == "counter"):
        return "_total is for counters"
    words = name.removeprefix("millrace_").removesuffix("_total")
    for component in COMPONENTS:
        rest = words.removeprefix(f"{component}_")
        for unit in UNITS:
            is_named = rest.endswith(f"_{unit}") or (rest == unit and unit not in MEASURES)
            if name.startswith("millrace_") and rest != words and is_named:
                return ""
    return "it is not millrace_<component>_<what>_<unit>"


def test_every_name_has_a_component_and_a_unit() -> None:
    """Both from the closed lists of the page, of which every word is used."""
    rows = metric_rows()
    assert {row.name: fault for row in rows if (fault := fault_of(row))} == {}
    names = [row.name.removesuffix("_total") for row in rows]
    assert [one for one in COMPONENTS if not any(name.startswith(f"millrace_{one}_") for name in names)] == []
    assert [one for one in UNITS if not any(name.endswith(f"_{one}") for name in names)] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("millrace_reads_total", "counter"),
        ("millrace_room_bytes", "gauge"),
        ("millrace_wal_bytes", "gauge"),
        ("millrace_storage_room", "gauge"),
        ("millrace_wal_used_bytes", "counter"),
        ("millrace_store_requests_total", "gauge"),
        ("wal_used_bytes", "gauge"),
    ],
)
def test_what_breaks_the_rule_is_found(name: str, kind: str) -> None:
    """Without a component, without what is measured, without a unit, a counter that does not say so,
    another's prefix."""
    assert fault_of(MetricRow(name, kind, frozenset(), "")) != ""


DASHBOARDS_ASK = (
    "kafka.server:BrokerTopicMetrics,BytesInPerSec",
    "kafka.server:BrokerTopicMetrics,BytesOutPerSec",
    "kafka.server:BrokerTopicMetrics,MessagesInPerSec",
    "kafka.server:BrokerTopicMetrics,FailedProduceRequestsPerSec",
    "kafka.network:RequestMetrics,TotalTimeMs,request=",
    "kafka.controller:KafkaController,ActiveControllerCount",
    "kafka.controller:KafkaController,OfflinePartitionsCount",
    "kafka.coordinator.group:GroupMetadataManager,NumGroups",
    "kafka.log:Log,LogStartOffset",
    "kafka.log:Log,LogEndOffset",
    "kafka.log:Log,Size",
    "kafka_brokers",
    "kafka_topic_partitions",
    "kafka_topic_partition_current_offset",
    "kafka_topic_partition_oldest_offset",
    "kafka_consumergroup_members",
    "kafka_consumergroup_lag",
    "kafka_consumergroup_lag_sum",
)
OF_EVERY_PROCESS = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
    "millrace_build_info",
    "millrace_log_cache_used_bytes",
}


@pytest.mark.parametrize("name", DASHBOARDS_ASK)
def test_what_dashboards_of_kafka_ask_for_has_a_name_here(name: str) -> None:
    """Each name of JMX or of kafka_exporter stands in a row with a metric that the broker shows."""
    shown = {row.name for row in metric_rows()}
    rows = [
        line
        for line in PAGE.splitlines()
        if line.startswith("| ") and re.search(rf"`{re.escape(name)}\*?`", line)
    ]
    assert rows
    assert all(shown & set(re.findall(r"\b(?:millrace|process)_\w+", row)) for row in rows), rows


def test_what_every_process_shows_is_listed() -> None:
    """By the names that dashboards have for all programs, and the cache of recent records."""
    assert {row.name for row in metric_rows()} >= OF_EVERY_PROCESS
