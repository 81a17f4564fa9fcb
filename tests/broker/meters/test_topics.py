"""How many series /metrics has of topics and partitions at most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.meters import topics as topic_meters
from millrace.broker.meters.topics import OTHERS, show_topics
from millrace.broker.partitions.traffic import Traffic
from millrace.kraft.tables.topics import NO_TOPICS, TopicsEdit
from millrace.protocol.metadata_records import PartitionRecord, TopicRecord
from millrace.runtime.metrics import Registry


def topic(name: str, in_bytes: int = 0, end: int = 10, start: int = 0) -> Any:
    traffic = Traffic()
    traffic.in_bytes = in_bytes
    state = SimpleNamespace(segments=SimpleNamespace(size_bytes=100 * (end - start)))
    partition = SimpleNamespace(
        topic_name=name, index=0, high_watermark=end, log_start_offset=start, state=state
    )
    return SimpleNamespace(topic_id=name.encode(), name=name, traffic=traffic, partitions={0: partition})


class Directory:
    def __init__(self, *topics: Any) -> None:
        self.traffic, self.failed_count = Traffic(), 0
        self._topics = list(topics)

    def add(self, one: Any) -> None:
        self._topics.append(one)

    def remove(self, one: Any) -> None:
        self._topics.remove(one)

    def topics(self) -> Any:
        return self._topics

    def opened(self) -> list[Any]:
        return [partition for one in self._topics for partition in one.partitions.values()]


def lines(registry: Registry, name: str) -> list[str]:
    return [line for line in registry.render().splitlines() if line.startswith(name)]


def test_topics_beyond_the_bound_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that were used keep their series; one without traffic has none."""
    monkeypatch.setattr(topic_meters, "TOPICS_MAX", 2)
    registry = Registry()
    directory: Any = Directory(topic("a", 1), topic("idle"), topic("b", 2), topic("c", 4), topic("d", 8))
    show_topics(registry, directory, lambda: NO_TOPICS)
    name = "millrace_topic_in_bytes_total"
    assert lines(registry, name) == [
        f'{name}{{topic="{each}"}} {value}' for each, value in (("a", 1), ("b", 2), (OTHERS, 12))
    ]
    assert lines(registry, "millrace_topic_out_bytes_total") == []


def test_a_topic_that_is_called_as_the_others_are_is_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is allowed to topics, and a series is on the page once."""
    monkeypatch.setattr(topic_meters, "TOPICS_MAX", 2)
    edit = TopicsEdit(NO_TOPICS)
    for number, name in enumerate((OTHERS, "a", "b", "c")):
        edit.apply_topic(TopicRecord(name, bytes([number]) * 16))
        edit.apply_partition(PartitionRecord(0, bytes([number]) * 16, [0], [0], leader=0))
    topics = edit.done()
    registry = Registry()
    directory: Any = Directory(topic(OTHERS, 1), topic("a", 2), topic("b", 4), topic("c", 8))
    show_topics(registry, directory, lambda: topics)
    counts, bytes_in = "millrace_topic_partitions", "millrace_topic_in_bytes_total"
    assert lines(registry, counts) == [f'{counts}{{topic="a"}} 1', f'{counts}{{topic="{OTHERS}"}} 3']
    assert [line.removeprefix(f"{bytes_in}{{topic=") for line in lines(registry, bytes_in)] == [
        '"a"} 2',
        '"b"} 4',
        f'"{OTHERS}"}} 9',
    ]


def test_no_series_of_topics_becomes_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that were asked for and get traffic late, and those that are deleted, with series of their own
    or without, leave all other series as they are: a rate would take what becomes smaller for a new start,
    and show all of it at once."""
    monkeypatch.setattr(topic_meters, "TOPICS_MAX", 2)
    registry = Registry()
    idle, first, second, third, fourth = (
        topic("idle"),
        topic("a", 1),
        topic("b", 2),
        topic("c", 4),
        topic("d", 8),
    )
    directory: Any = Directory(idle, first, second, third, fourth)
    show_topics(registry, directory, lambda: NO_TOPICS)
    name = "millrace_topic_in_bytes_total"

    def shown() -> dict[str, int]:
        found = (line.removeprefix(f'{name}{{topic="').split('"} ') for line in lines(registry, name))
        return {each: int(value) for each, value in found}

    assert shown() == {"a": 1, "b": 2, OTHERS: 12}
    idle.traffic.in_bytes = 16
    assert shown() == {"a": 1, "b": 2, OTHERS: 28}
    directory.remove(first)
    assert shown() == {"b": 2, OTHERS: 28}
    directory.remove(third)
    directory.add(topic("e", 32))
    assert shown() == {"b": 2, "e": 32, OTHERS: 28}


def test_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that are open, the first."""
    monkeypatch.setattr(topic_meters, "PARTITIONS_MAX", 1)
    registry = Registry()
    directory: Any = Directory(topic("a", end=7, start=2), topic("b"))
    show_topics(registry, directory, lambda: NO_TOPICS)
    for name, value in (("log_start_offset", 2), ("log_end_offset", 7), ("log_size_bytes", 500)):
        name = f"millrace_partition_{name}"
        assert lines(registry, name) == [f'{name}{{partition="0",topic="a"}} {value}']


def test_partition_counts_of_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Used or not, by name; the rest is added up, so that the sum is that of all."""
    monkeypatch.setattr(topic_meters, "TOPICS_MAX", 2)
    edit = TopicsEdit(NO_TOPICS)
    for number, name in enumerate(("d", "c", "b", "a")):
        edit.apply_topic(TopicRecord(name, bytes([number]) * 16))
        for index in range(number + 1):
            edit.apply_partition(PartitionRecord(index, bytes([number]) * 16, [0], [0], leader=0))
    topics = edit.done()
    registry = Registry()
    directory: Any = Directory()
    show_topics(registry, directory, lambda: topics)
    name = "millrace_topic_partitions"
    assert lines(registry, name) == [
        f'{name}{{topic="{each}"}} {value}' for each, value in (("a", 4), ("b", 3), (OTHERS, 3))
    ]
