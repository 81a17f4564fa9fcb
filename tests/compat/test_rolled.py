"""Three nodes are restarted, one after the other, under applications of four clients and under Kafka's tools:
the short form of `make roll` and `make compat-cluster`, without Apache Kafka beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.jvm import Jvm
from tests.compat.rolled.__main__ import counted, news, table, told
from tests.compat.rolled.events import Heard, longest_s
from tests.compat.rolled.nodes import MillraceNodes
from tests.compat.rolled.roller import Roller
from tests.compat.rolled.story import CLIENTS, Result
from tests.compat.test_tools import Tools
from tests.live.test_controllers import QUICK

RECORDS = 1_500


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MillraceNodes]:
    with MillraceNodes(tmp_path_factory.mktemp("nodes"), QUICK) as started:
        yield started


def test_no_application_is_told_of_a_roll(nodes: MillraceNodes, tmp_path: Path) -> None:
    """Idempotent producers and groups of Java, librdkafka, kafka-python and aiokafka: no error, nothing lost,
    doubled or out of order, no commit gone."""
    results = told(nodes, tmp_path, CLIENTS, rounds=1, settle_s=0.2)
    print(table({nodes.name: results}))
    assert {one.client: counted(one.errors) for one in results} == dict.fromkeys(CLIENTS, "none")


def test_tools_work_through_a_roll(nodes: MillraceNodes, jvm: Jvm) -> None:
    """kafka-topics makes a topic and kafka-producer-perf-test fills it while each node is restarted; then
    kafka-get-offsets counts as many, kafka-consumer-perf-test reads them and kafka-consumer-groups sees its
    group at the end."""
    tools = Tools(jvm, ",".join(nodes.addresses))
    with Roller(nodes, is_endless=False) as roller:
        roller.pause_s = 0.2
        tools("TopicCommand", "--create", "--topic", "perf", "--partitions", "3")
        many = ("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "300")
        assert f"{RECORDS} records sent" in tools("ProducerPerformance", "--topic", "perf", *many)
    assert roller.count == 3
    counted_ends = re.findall(r"perf:\d:(\d+)", tools("GetOffsetShell", "--topic", "perf"))
    assert sum(map(int, counted_ends)) == RECORDS
    read = tools(
        "ConsumerPerformance", "--topic", "perf", "--num-records", str(RECORDS), "--group", "perf",
        "--timeout", "60000",
    )  # fmt: skip
    assert f", {RECORDS}, " in read
    described = tools("consumer.group.ConsumerGroupCommand", "--describe", "--group", "perf")
    lags = re.findall(r"^perf\s+perf\s+\d\s+(\d+)\s+(\d+)\s+(\d+)", described, re.MULTILINE)
    assert [lag for _, _, lag in lags] == ["0", "0", "0"]


def test_gaps_are_of_all_partitions_and_of_the_worst() -> None:
    """From the roll's beginning to its end."""
    moments = [(0, 1.0), (1, 1.5), (0, 3.0), (1, 6.0), (0, 6.5), (0, 99.0)]
    assert longest_s(moments, 0.0, 7.0) == (3.0, 4.5)


def test_a_process_is_heard() -> None:
    """Acknowledged, read twice, committed, told: each by its line."""
    heard = Heard(2)
    heard.hear('["acked", 0, 5, 7, 1.0, 1.25]')
    heard.hear('["read", 1.5, [[0, 5, 7], [0, 5, 7]]]')
    heard.hear('["committed", 1.6, {"0": 6}]')
    heard.hear('["error", 1.7, "commit", "CommitFailedError", "rebalanced"]')
    assert heard.told.acknowledged == [{7: 5}, {}]
    assert (heard.reread(), heard.told.committed, heard.slowest_s(0.0)) == (1, {0: 6}, 0.25)
    assert heard.errors == Counter({"commit: CommitFailedError": 1})
    assert heard.has_read_all()
    assert not heard.is_busy()
    with pytest.raises(AssertionError, match="was acknowledged at 5 and 6"):
        heard.hear('["acked", 0, 6, 7, 1.0, 1.25]')


def test_only_what_kafka_does_not_tell_is_news() -> None:
    """By client, and by what it was doing."""

    def result(client: str, *errors: str) -> Result:
        texts = dict.fromkeys(errors, "why")
        return Result(client, 1, Counter(errors), texts, Counter(), (0.0, 0.0), (0.0, 0.0), 0.0, 0)

    theirs = [result("java", "commit: RebalanceInProgressException"), result("aiokafka")]
    assert news([result("java", "commit: RebalanceInProgressException")], theirs) == []
    assert news([result("aiokafka", "send: X")], theirs) == ["aiokafka: send: X: why"]
    assert news([result("java", "send: RebalanceInProgressException")], theirs)
