"""What /metrics shows of groups, and how many series at most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.coordinators.groups.members import GroupState
from millrace.broker.coordinators.groups.offsets import CommittedOffset, CommittedOffsets
from millrace.broker.meters import groups as group_meters
from millrace.broker.meters.groups import LAG, MEMBERS, PARTITION_LAG, PARTITION_OFFSET, show_groups
from millrace.protocol.declare import NO_UUID
from millrace.runtime.metrics import Registry


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16)


class Directory:
    """Partition 0 of each topic is open with [start, end); metadata has [0, 100) of all others."""

    def __init__(self, **opened: tuple[int, int]) -> None:
        self._topics = {name: self._topic(name, *bounds) for name, bounds in opened.items()}

    def _topic(self, name: str, start: int, end: int) -> Any:
        partition = SimpleNamespace(high_watermark=end, log_start_offset=start)
        return SimpleNamespace(
            name=name, topic_id=topic_id(name), partitions={0: partition}, retention_only={}
        )

    def topic_named(self, name: str) -> Any:
        return self._topics.get(name)

    def bounds_of(self, of: bytes, index: int) -> tuple[int, int]:
        return 0, 100


class Groups:
    """By group, topic and partition: what it committed. `load_all` is counted."""

    def __init__(self, offsets: dict[str, dict[tuple[str, int], int]], of_topic_id: bytes = NO_UUID) -> None:
        committed = CommittedOffsets()
        for group_id, of_group in offsets.items():
            for (name, index), offset in of_group.items():
                committed.apply(
                    group_id, name, index, CommittedOffset(offset, -1, "", 0, topic_id=of_topic_id)
                )
        self.shard = SimpleNamespace(groups={}, offsets=committed)
        self.loads = 0

    def load_all(self) -> None:
        self.loads += 1

    def loaded(self) -> list[Any]:
        return [self.shard]


def lines(groups: Any, directory: Any, name: str) -> list[str]:
    registry = Registry()
    show_groups(registry, groups, directory)
    return [
        line.removeprefix(name)
        for line in registry.render().splitlines()
        if line.startswith((f"{name}{{", f"{name} "))
    ]


def test_lags_are_those_of_every_partition_that_was_committed_of() -> None:
    """Open or not; from the log's start where retention passed the commit; none below zero; none of a topic
    that is gone."""
    directory = Directory(a=(0, 10), b=(8, 10))
    groups = Groups({"g": {("a", 0): 3, ("a", 7): 90, ("b", 0): 1, ("gone", 0): 0}, "h": {("a", 0): 12}})
    assert lines(groups, directory, LAG) == [
        '{group="g",topic="a"} 17',
        '{group="g",topic="b"} 2',
        '{group="h",topic="a"} 0',
    ]
    assert lines(groups, directory, PARTITION_LAG) == [
        '{group="g",partition="0",topic="a"} 7',
        '{group="g",partition="7",topic="a"} 10',
        '{group="g",partition="0",topic="b"} 2',
        '{group="h",partition="0",topic="a"} 0',
    ]
    assert lines(groups, directory, PARTITION_OFFSET)[1] == '{group="g",partition="7",topic="a"} 90'


def test_what_was_committed_of_a_deleted_namesake_is_no_lag() -> None:
    """The offset is of records that are gone with the topic of that id."""
    groups = Groups({"g": {("a", 0): 3}}, topic_id("another"))
    assert lines(groups, Directory(a=(0, 10)), LAG) == []
    assert lines(Groups({"g": {("a", 0): 3}}, topic_id("a")), Directory(a=(0, 10)), LAG) == [
        '{group="g",topic="a"} 7'
    ]


def test_series_and_work_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions with series of their own, partitions that are not open, pairs of group and topic, and
    offsets that are looked at; beyond, what is shown is what was found until then."""
    directory = Directory(a=(0, 10), b=(0, 10))
    groups = Groups({"g": {("a", 0): 3, ("a", 1): 90, ("a", 2): 90, ("b", 0): 1}})
    monkeypatch.setattr(group_meters, "GROUP_PARTITIONS_MAX", 2)
    assert len(lines(groups, directory, PARTITION_LAG)) == 2
    assert lines(groups, directory, LAG) == ['{group="g",topic="a"} 27', '{group="g",topic="b"} 9']
    monkeypatch.setattr(group_meters, "CLOSED_MAX", 1)
    assert lines(groups, directory, LAG) == ['{group="g",topic="a"} 17', '{group="g",topic="b"} 9']
    monkeypatch.setattr(group_meters, "OFFSETS_MAX", 3)
    assert lines(groups, directory, LAG) == ['{group="g",topic="a"} 17']
    monkeypatch.setattr(group_meters, "GROUP_TOPICS_MAX", 0)
    assert lines(groups, directory, LAG) == []


def test_groups_are_counted_by_state_and_members_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state of Kafka's is there, also where no group is in it; a group that only has offsets is
    empty."""
    groups = Groups({"offsets only": {("a", 0): 3}})
    for name, state, members in (
        ("g", GroupState.STABLE, 2),
        ("h", GroupState.STABLE, 1),
        ("i", GroupState.EMPTY, 0),
    ):
        groups.shard.groups[name] = SimpleNamespace(state=state, members=dict.fromkeys(range(members)))
    assert lines(groups, Directory(), "millrace_coordinator_groups") == [
        f'{{state="{state}"}} {count}'
        for state, count in (
            ("Empty", 2),
            ("PreparingRebalance", 0),
            ("CompletingRebalance", 0),
            ("Stable", 2),
            ("Dead", 0),
        )
    ]
    assert lines(groups, Directory(), MEMBERS) == ['{group="g"} 2', '{group="h"} 1']
    monkeypatch.setattr(group_meters, "GROUPS_MAX", 1)
    assert lines(groups, Directory(), MEMBERS) == ['{group="g"} 2']
    assert groups.loads == 3, "what nobody asked for yet is loaded for the page"


def test_a_group_with_a_long_id_is_counted_alone() -> None:
    """Any client may name groups by 32 KiB, and each of its series would repeat that."""
    shown, hidden = "g" * 249, "h" * 250
    groups = Groups({name: {("a", 0): 3} for name in (shown, hidden)})
    groups.shard.groups |= {
        name: SimpleNamespace(state=GroupState.STABLE, members={1: 1}) for name in (shown, hidden)
    }
    for name in (MEMBERS, LAG, PARTITION_LAG, PARTITION_OFFSET):
        (line,) = lines(groups, Directory(a=(0, 10)), name)
        assert f'group="{shown}"' in line
    assert '{state="Stable"} 2' in lines(groups, Directory(), "millrace_coordinator_groups")
