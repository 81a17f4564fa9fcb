"""The page of /metrics: what topics and groups show on it, and that docs/metrics.md lists what it has and
nothing else."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace.protocol.messages import find_coordinator, offset_commit
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.every_request import join
from tests.metrics_docs import MetricRow, metric_rows
from tests.patience import PATIENCE_S, until

OBJECT_WAL_ONLY = {
    "millrace_wal_hedges_total",
    "millrace_wal_won_hedges_total",
    "millrace_wal_hedged_bytes_total",
}

CLUSTER_ONLY = ("millrace_quorum_", "millrace_failover_", "millrace_balancer_")


@pytest.fixture(scope="module", params=["block", "object"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LiveBroker]:
    """With each kind of write-ahead log: all else that is shown is there with every setting."""
    folder = tmp_path_factory.mktemp("metrics")
    wal = (
        {"s3.wal.path": f"0@file://{folder}/wal-objects/?capacity=64MiB"} if request.param == "object" else {}
    )
    size = "" if wal else "64MiB"
    with LiveBroker(folder, {"num.partitions": "2", **wal}, wal=size) as running:
        yield running


@pytest.fixture(scope="module")
def used(broker: LiveBroker) -> Client:
    """Three records in a topic, of which a group committed one, and a refused request."""
    client = Client(broker.address)
    client.create("orders", partitions=2)
    client.produce("orders", [b"a", b"b"], 0)
    client.produce("orders", [b"c"], 1)
    client.read("orders")
    commit(client, "billing", "orders", 1)
    assert client.delete("missing") != 0
    return client


def commit(client: Client, group: str, topic: str, offset: int) -> None:
    """Of partition 0; the coordinator may have to come up first."""
    partition = offset_commit.OffsetCommitRequestPartition(0, offset)
    request = offset_commit.OffsetCommitRequest(
        group, topics=[offset_commit.OffsetCommitRequestTopic(topic, partitions=[partition])]
    )

    def is_committed() -> bool:
        client.ask("FindCoordinator", find_coordinator.FindCoordinatorRequest(coordinator_keys=[group]))
        return client.ask("OffsetCommit", request, 9).topics[0].partitions[0].error_code == 0

    until(is_committed)


def page_of(broker: LiveBroker) -> str:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=PATIENCE_S
    ) as answer:
        return str(answer.read().decode())


def shown(broker: LiveBroker) -> dict[str, MetricRow]:
    """What the page says of each metric, by name."""
    page = page_of(broker)
    rows = {}
    for name, text, kind in re.findall(r"^# HELP (\w+) (.*)\n# TYPE \w+ (\w+)$", page, re.MULTILINE):
        series = re.findall(rf"^{name}(?:_bucket)?(?:{{(.*)}})? ", page, re.MULTILINE)
        labels = {label for one in series for label in re.findall(r'(\w+)="', one)} - {"le"}
        rows[name] = MetricRow(name, kind, frozenset(labels), text)
    return rows


def test_the_page_is_read_by_a_parser_of_prometheus(broker: LiveBroker, used: Client) -> None:
    """As many families as it heads, each once and with a kind; each line that is no comment is a sample; a
    histogram's buckets grow."""
    page = page_of(broker)
    families = list(text_string_to_metric_families(page))
    names = [family.name for family in families]
    assert len(set(names)) == len(names) == len(re.findall(r"^# TYPE ", page, re.MULTILINE)) > 90
    assert {family.type for family in families} == {"counter", "gauge", "histogram"}
    samples = [sample for family in families for sample in family.samples]
    assert len(samples) == len(re.findall(r"^[^#\n]", page, re.MULTILINE))
    series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples]
    assert len(set(series)) == len(series)
    for family in (one for one in families if one.type == "histogram"):
        shown: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for sample in family.samples:
            others = tuple(sorted((key, text) for key, text in sample.labels.items() if key != "le"))
            if sample.name.endswith("_bucket"):
                shown.setdefault(others, []).append(sample.value)
            elif sample.name.endswith("_count"):
                assert sample.value == shown[others][-1], family.name
        assert shown, family.name
        assert all(values == sorted(values) for values in shown.values()), family.name


def test_topics_and_groups_are_shown(broker: LiveBroker, used: Client) -> None:
    """Bytes and records both ways, by topic and in all; offsets and size by partition; a group's state and
    how far it is behind."""
    page = broker.metrics()
    assert (
        page["millrace_broker_in_records_total"]
        == page['millrace_topic_in_records_total{topic="orders"}']
        == 3
    )
    assert (
        page["millrace_broker_in_bytes_total"]
        == page['millrace_topic_in_bytes_total{topic="orders"}']
        > 2 * 61
    )
    assert (
        page["millrace_broker_out_bytes_total"] == page['millrace_topic_out_bytes_total{topic="orders"}'] > 61
    )
    assert page['millrace_topic_partitions{topic="orders"}'] == 2
    ends = [
        page[f'millrace_partition_log_end_offset{{partition="{index}",topic="orders"}}'] for index in (0, 1)
    ]
    assert ends == [2, 1]
    sizes = [
        page[f'millrace_partition_log_size_bytes{{partition="{index}",topic="orders"}}'] for index in (0, 1)
    ]
    assert sum(sizes) == page['millrace_topic_in_bytes_total{topic="orders"}']
    assert page['millrace_group_lag_records{group="billing",topic="orders"}'] == 1, (
        "nothing was committed of the other partition"
    )
    assert page['millrace_coordinator_groups{state="Empty"}'] == 1


def test_the_page_and_its_documentation_are_the_same(broker: LiveBroker, used: Client) -> None:
    """docs/metrics.md lists what the page has, and nothing else: names, types, labels and what each is."""
    joining = join("billing")
    joining.member_id = used.ask("JoinGroup", joining).member_id
    assert used.ask("JoinGroup", joining).error_code == 0  # a group with a member
    listed = {row.name: row for row in metric_rows()}
    if "wal-objects" not in " ".join(broker.command()):
        listed = {name: row for name, row in listed.items() if name not in OBJECT_WAL_ONLY}
    alone = {name: row for name, row in listed.items() if not name.startswith(CLUSTER_ONLY)}
    assert shown(broker) == alone


def test_lag_after_a_restart_needs_no_client(tmp_path: Path) -> None:
    """Nobody has asked for the group or opened the partition since the start: a look at the page loads the
    group, and metadata has the ends."""
    with LiveBroker(tmp_path, wal="64MiB") as broker:
        with Client(broker.address) as client:
            client.create("orders")
            for value in (b"a", b"b", b"c"):
                client.produce("orders", [value])
            commit(client, "billing", "orders", 1)
        broker.restart()
        lag = 'millrace_group_lag_records{group="billing",topic="orders"}'
        until(lambda: lag in broker.metrics())
        page = broker.metrics()
        assert page[lag] == 2
        assert page['millrace_group_partition_lag_records{group="billing",partition="0",topic="orders"}'] == 2
        assert (
            page['millrace_group_partition_committed_offset{group="billing",partition="0",topic="orders"}']
            == 1
        )
        assert 'millrace_partition_log_end_offset{partition="0",topic="orders"}' not in page, (
            "nobody opened it"
        )


def test_upload_lag_grows_while_the_store_is_away(tmp_path: Path) -> None:
    """The folder of the objects is taken away: the age of the oldest record that is not in it grows, and so
    does the time that uploads wait. Put back, both are 0 again."""
    lag, waiting = "millrace_upload_lag_seconds", "millrace_upload_blocked_seconds"
    with (
        LiveBroker(tmp_path, {"s3.wal.upload.interval.ms": "1000"}, wal="64MiB") as broker,
        Client(broker.address) as client,
    ):
        client.create("orders")
        until(lambda: broker.metrics()[lag] == 0)
        objects = tmp_path / "data" / "objects"
        objects.rename(tmp_path / "away")
        client.produce("orders", [b"acknowledged, and in the write-ahead log alone"])
        until(lambda: broker.metrics()[lag] > 3 and broker.metrics()[waiting] > 0)
        (tmp_path / "away").rename(objects)
        until(lambda: broker.metrics()[lag] == broker.metrics()[waiting] == 0)
