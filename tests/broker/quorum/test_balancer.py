"""The balancer on an image of a cluster: who may give and take, and what becomes of reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from millrace.broker.cluster.config import BalancerSettings, Limits
from millrace.broker.cluster.loads import LoadTable
from millrace.broker.quorum.balancer import Balancer
from millrace.kraft.errors import LogFull, TooManyCommands
from millrace.protocol.messages.report_load import LoadedPartition, LoadedTopic, ReportLoadRequest
from millrace.runtime.errors import Unavailable
from tests.kraft.commands.test_leaders import Cluster
from tests.kraft.commands.test_takers import drain
from tests.kraft.tables.build import topic_id
from tests.patience import PATIENCE_S

MIB = 1 << 20
SETTINGS = BalancerSettings(True, 60.0, 10.0, Limits((MIB, MIB), (0.2, 0.2), 10), frozenset(), frozenset())


class Table:
    """Three brokers, two partitions each; the reports of the moment."""

    def __init__(self, settings: BalancerSettings = SETTINGS) -> None:
        self.cluster = Cluster()
        self.loads = LoadTable(lambda: 0.0)
        self.moved: list[int] = []
        self.error: Exception | None = None
        self.balancer = Balancer(self, lambda: self.cluster.image, self.loads, settings, self.moved.append)

    async def send(self, request: Any) -> Any:
        if self.error is not None:
            raise self.error
        response = self.cluster.do(request)
        assert not response.error_code
        return response

    def report(self, broker_id: int, **rates: int) -> None:
        """MiB a second in, by partition: `_3=2`."""
        partitions = [LoadedPartition(int(name[1:]), rate * MIB, 0) for name, rate in rates.items()]
        topics = [LoadedTopic(topic_id(self.cluster, "t"), partitions)]
        self.loads.take(ReportLoadRequest(broker_id, self.cluster.epochs[broker_id], topics))

    def balance(self) -> dict[int, list[int]]:
        """Who leads what then."""
        asyncio.run(self.balancer.balance())
        return self.cluster.led()


def test_a_busy_broker_is_relieved_and_reports_are_forgotten() -> None:
    table = Table()
    mine = table.cluster.led()[1]
    table.report(1, **{f"_{index}": 4 for index in mine})
    table.report(2)
    table.report(3)
    after = table.balance()
    assert [len(after[broker_id]) for broker_id in (1, 2, 3)] == [1, 3, 2]
    assert table.moved == [1]
    assert table.balance() == after, "it knows nothing until it is told anew"


def test_who_is_gone_or_says_nothing_gets_nothing() -> None:
    table = Table()
    before = table.cluster.led()
    table.cluster.fence(2)
    table.report(1, **{f"_{index}": 4 for index in before[1]})
    table.report(2)
    assert table.balance() == before


def test_a_partition_that_went_elsewhere_meanwhile_counts_no_more() -> None:
    table = Table()
    before = table.cluster.led()
    table.report(1, **{f"_{index}": 4 for index in before[3]})
    table.report(2)
    assert table.balance() == before


def test_what_is_excluded_stays() -> None:
    for settings in (
        replace(SETTINGS, excluded_topics=frozenset({"t"})),
        replace(SETTINGS, excluded_brokers=frozenset({1})),
    ):
        table = Table(settings)
        before = table.cluster.led()
        table.report(1, **{f"_{index}": 4 for index in before[1]})
        table.report(2)
        table.report(3)
        assert table.balance() == before


@pytest.mark.parametrize(
    "error", [Unavailable("nobody leads"), LogFull("/d/metadata"), TooManyCommands(9)], ids=type
)
def test_what_cannot_be_decided_moves_nothing_and_ends_nothing(error: Exception) -> None:
    """The duties of the controller go on: also with a full disk, which takes deletions alone."""
    table = Table()
    before = table.cluster.led()
    table.report(1, **{f"_{index}": 4 for index in before[1]})
    table.report(2)
    table.error = error
    assert table.balance() == before
    assert table.moved == []


def test_a_move_that_is_refused_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker that it should go to was fenced between the look and the decision."""
    table = Table()
    before = table.cluster.led()
    table.report(1, **{f"_{index}": 4 for index in before[1]})
    table.report(2)
    image = table.cluster.image
    monkeypatch.setattr(table.balancer, "_image", lambda: image)
    table.cluster.fence(2)
    assert table.balance() == before
    assert table.moved == [0]


def test_one_that_is_turned_off_ends_at_once() -> None:
    table = Table(replace(SETTINGS, is_enabled=False))
    asyncio.run(asyncio.wait_for(table.balancer.run(), PATIENCE_S))


def test_a_drained_broker_is_given_nothing() -> None:
    """Of two idle brokers the one that was drained takes no part."""
    table = Table()
    drain(table.cluster, 2)
    before = table.cluster.led()
    table.report(1, **{f"_{index}": 4 for index in before[1]})
    table.report(2)
    table.report(3)
    after = table.balance()
    assert after[2] == before[2]
    assert len(after[3]) == len(before[3]) + 1
