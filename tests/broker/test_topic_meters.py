"""How many series /metrics has of topics, partitions and groups at most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker import topic_meters
from millrace.broker.coordinators.offsets import CommittedOffset, CommittedOffsets
from millrace.broker.partitions.traffic import Traffic
from millrace.broker.topic_meters import OTHERS, show_groups, show_topics
from millrace.runtime.metrics import Registry


def topic(name: str, in_bytes: int = 0, end: int = 10, start: int = 0) -> Any:
    traffic = Traffic()
    traffic.in_bytes = in_bytes
    partition = SimpleNamespace(topic_name=name, index=0, high_watermark=end, log_start_offset=start)
    return SimpleNamespace(name=name, traffic=traffic, partitions={0: partition})


class Directory:
    def __init__(self, *topics: Any) -> None:
        self.traffic, self.failed_count = Traffic(), 0
        self._topics = topics

    def topics(self) -> Any:
        return self._topics

    def opened(self) -> list[Any]:
        return [partition for one in self._topics for partition in one.partitions.values()]

    def topic_named(self, name: str) -> Any:
        return next((one for one in self._topics if one.name == name), None)


def groups(**offsets: dict[str, int]) -> Any:
    """By group and topic: what it committed of partition 0."""
    committed = CommittedOffsets()
    for group_id, of_group in offsets.items():
        for name, offset in of_group.items():
            committed.apply(group_id, name, 0, CommittedOffset(offset, -1, "", 0))
    shard = SimpleNamespace(groups={}, offsets=committed)
    return SimpleNamespace(loaded=lambda: [shard])


def lines(registry: Registry, name: str) -> list[str]:
    return [line for line in registry.render().splitlines() if line.startswith(name)]


def test_topics_beyond_the_bound_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that were used keep their series; one without traffic has none."""
    monkeypatch.setattr(topic_meters, "TOPICS_MAX", 2)
    registry = Registry()
    directory: Any = Directory(topic("a", 1), topic("idle"), topic("b", 2), topic("c", 4), topic("d", 8))
    show_topics(registry, directory)
    name = "millrace_topic_in_bytes_total"
    assert lines(registry, name) == [
        f'{name}{{topic="{each}"}} {value}' for each, value in (("a", 1), ("b", 2), (OTHERS, 12))
    ]
    assert lines(registry, "millrace_topic_out_bytes_total") == []


def test_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are open, the first."""
    monkeypatch.setattr(topic_meters, "PARTITIONS_MAX", 1)
    registry = Registry()
    directory: Any = Directory(topic("a", end=7), topic("b"))
    show_topics(registry, directory)
    name = "millrace_partition_log_end_offset"
    assert lines(registry, name) == [f'{name}{{partition="0",topic="a"}} 7']


def test_lags_are_those_of_open_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the log's start where retention passed the commit; none below zero; none of a topic that is gone; and not more offsets than the bound
    are looked at."""
    registry = Registry()
    directory: Any = Directory(topic("a", end=10), topic("b", end=10, start=8))
    found = groups(g={"a": 3, "b": 1, "gone": 0}, h={"a": 12})
    show_groups(registry, found, directory)
    name = "millrace_group_lag_records"
    expected = [("g", "a", 7), ("g", "b", 2), ("h", "a", 0)]
    assert lines(registry, name) == [f'{name}{{group="{group}",topic="{of}"}} {lag}' for group, of, lag in expected]
    assert lines(registry, "millrace_groups") == [
        f'millrace_groups{{state="{state}"}} {count}'
        for state, count in (("Empty", 2), ("PreparingRebalance", 0), ("CompletingRebalance", 0), ("Stable", 0))
    ]
    monkeypatch.setattr(topic_meters, "OFFSETS_MAX", 1)
    assert len(lines(registry, name)) == 1
