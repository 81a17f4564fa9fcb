"""The page of /metrics: what topics and groups show on it, and that documentation, alert rules and dashboard know its names and no others."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.protocol.messages import find_coordinator, offset_commit
from tests.live import LiveBroker
from tests.live.client import Client

DOCS = Path(__file__).parents[2] / "docs"
SUFFIXES = ("_bucket", "_sum", "_count")
# With an object WAL, or after what does not happen here.
ELSEWHERE = {"up", "millrace_wal_hedges_total", "millrace_wal_hedges_won_total", "millrace_wal_hedged_bytes_total"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("metrics"), {"num.partitions": "2"}, wal="64MiB") as running:
        yield running


@pytest.fixture(scope="module")
def used(broker: LiveBroker) -> Client:
    """Three records in a topic, of which a group committed one, and a refused request."""
    client = Client(broker.address)
    client.create("orders", partitions=2)
    client.produce("orders", [b"a", b"b"], 0)
    client.produce("orders", [b"c"], 1)
    client.read("orders")
    partition = offset_commit.OffsetCommitRequestPartition(0, 1)
    request = offset_commit.OffsetCommitRequest(
        "billing", topics=[offset_commit.OffsetCommitRequestTopic("orders", partitions=[partition])]
    )
    deadline = time.monotonic() + 30
    while client.ask("OffsetCommit", request, 9).topics[0].partitions[0].error_code:
        assert time.monotonic() < deadline
        client.ask("FindCoordinator", find_coordinator.FindCoordinatorRequest(coordinator_keys=["billing"]))
    return client


def names(broker: LiveBroker) -> set[str]:
    found = {name.partition("{")[0] for name in broker.metrics()}
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name.endswith(SUFFIXES) else name for name in found}


def test_topics_and_groups_are_shown(broker: LiveBroker, used: Client) -> None:
    """Bytes and records both ways, by topic and in all; offsets by partition; a group's state and how far it is behind."""
    page = broker.metrics()
    assert page["millrace_broker_in_records_total"] == page['millrace_topic_in_records_total{topic="orders"}'] == 3
    assert page["millrace_broker_in_bytes_total"] == page['millrace_topic_in_bytes_total{topic="orders"}'] > 2 * 61
    assert page["millrace_broker_out_bytes_total"] == page['millrace_topic_out_bytes_total{topic="orders"}'] > 61
    ends = [page[f'millrace_partition_log_end_offset{{partition="{index}",topic="orders"}}'] for index in (0, 1)]
    assert ends == [2, 1]
    assert page['millrace_group_lag_records{group="billing",topic="orders"}'] == 1, (
        "nothing was committed of the other partition"
    )
    assert page['millrace_groups{state="Empty"}'] == 1


def test_every_name_is_documented(broker: LiveBroker, used: Client) -> None:
    """docs/metrics.md lists what the page has, and nothing else."""
    listed = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.MULTILINE))
    shown = names(broker)
    assert shown - listed == set(), "not documented"
    assert listed - shown - ELSEWHERE == set(), "documented, and not there"


@pytest.mark.parametrize("name", ["millrace-alerts.yml", "millrace-dashboard.json"])
def test_rules_and_dashboard_ask_for_names_that_there_are(broker: LiveBroker, used: Client, name: str) -> None:
    """An alert on a name that nobody shows would never ring."""
    text = (DOCS / "metrics" / name).read_text()
    if name.endswith(".json"):
        text = "\n".join(target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"])
    else:
        assert len(re.findall(r"^ +- alert: ", text, re.MULTILINE)) == 10
        text = "\n".join(re.findall(r"expr: >-\n +(.*)", text))
    asked = {
        re.sub(r"_bucket$", "", found)
        for found in re.findall(r"\b(?:millrace|process|up)\w*", re.sub(r'"[^"]*"', "", text))
    }
    assert len(asked) >= 8
    assert asked - names(broker) - ELSEWHERE == set()
