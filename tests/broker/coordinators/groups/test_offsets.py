"""Committed offsets: what is kept, by group and topic, and what has expired (KIP-211)."""

from __future__ import annotations

import random

import pytest

from millrace.broker.coordinators.groups.group import Group
from millrace.broker.coordinators.groups.members import GroupState
from millrace.broker.coordinators.groups.offsets import ORPHANS_PER_CHUNK, CommittedOffset, CommittedOffsets

DAY_MS = 86_400_000
ID, OTHER_ID = b"i" * 16, b"o" * 16


def offset(
    committed_ms: int = 0, *, expires_ms: int | None = None, topic_id: bytes = ID, metadata: str = ""
) -> CommittedOffset:
    return CommittedOffset(7, 1, metadata, committed_ms, expires_ms, topic_id)


def group_in(
    state: GroupState,
    protocol_type: str | None,
    *,
    since_ms: int | None = None,
    subscribed: set[str] | None = None,
) -> Group:
    group = Group("g", initial_delay_ms=0, size_max=9, new_id=str)
    group.state, group.protocol_type, group.state_since_ms = state, protocol_type, since_ms
    group.subscribed = None if subscribed is None else frozenset(subscribed)
    return group


def test_the_last_commit_counts_and_a_tombstone_forgets() -> None:
    """Groups and topics are there only while they have an offset, and sizes follow."""
    offsets = CommittedOffsets()
    assert offsets.of_topic("g", "t") == {}
    offsets.apply("g", "t", 0, offset(1))
    size_bytes = offsets.live_bytes
    offsets.apply("g", "t", 0, offset(2, metadata="four"))
    assert offsets.live_bytes == size_bytes + 4
    offsets.apply("g", "t", 1, offset(3))
    offsets.apply("h", "u", 5, offset(4))
    assert offsets.of_group("g") == {"t": {0: offset(2, metadata="four"), 1: offset(3)}}
    assert (offsets.count, list(offsets.groups()), offsets.topics()) == (3, ["g", "h"], ["t", "u"])
    for group_id, topic, partition in [
        ("g", "t", 0),
        ("g", "t", 1),
        ("h", "u", 5),
        ("h", "u", 5),
        ("x", "y", 1),
    ]:
        offsets.apply(group_id, topic, partition, None)
    assert (offsets.count, list(offsets.groups()), offsets.live_bytes) == (0, [], 0)


def test_sizes_never_drift() -> None:
    """After any commits and tombstones the size is that of what is there."""
    chance = random.Random(1)
    offsets = CommittedOffsets()
    for _ in range(2000):
        name = chance.choice(["g", "group-two"]), chance.choice(["t", "topic"]), chance.randrange(4)
        value = None if chance.random() < 0.4 else offset(metadata="x" * chance.randrange(9))
        offsets.apply(*name, value)
    fresh = CommittedOffsets()
    for group_id in offsets.groups():
        for topic, partitions in offsets.of_group(group_id).items():
            for partition, found in partitions.items():
                fresh.apply(group_id, topic, partition, found)
    assert (fresh.live_bytes, fresh.count) == (offsets.live_bytes, offsets.count)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        # a simple group: since each commit
        (group_in(GroupState.EMPTY, None, since_ms=9 * DAY_MS), ["old"]),
        # an empty group: since it became empty, whenever the commit was
        (group_in(GroupState.EMPTY, "consumer", since_ms=3 * DAY_MS, subscribed=set()), []),
        (
            group_in(GroupState.EMPTY, "consumer", since_ms=2 * DAY_MS, subscribed=set()),
            ["old", "read", "new"],
        ),
        (group_in(GroupState.EMPTY, "connect", since_ms=2 * DAY_MS), ["old", "read", "new"]),
        # of one that an old broker wrote without a time: since each commit
        (group_in(GroupState.EMPTY, "consumer", subscribed=set()), ["old"]),
        # a stable consumer group: what it does not read any more, since each commit
        (group_in(GroupState.STABLE, "consumer", since_ms=0, subscribed={"read"}), ["old"]),
        (group_in(GroupState.STABLE, "consumer", since_ms=0, subscribed={"read", "old"}), []),
        (group_in(GroupState.STABLE, "consumer", since_ms=0), []),
        # others with members keep all
        (group_in(GroupState.STABLE, "connect", since_ms=0), []),
        (group_in(GroupState.PREPARING, "consumer", since_ms=0, subscribed=set()), []),
        (group_in(GroupState.COMPLETING, "consumer", since_ms=0, subscribed=set()), []),
    ],
    ids=str,
)
def test_what_expires(group: Group, expected: list[str]) -> None:
    """On day 9, with a retention of 7 days: commits of day 1 ("old"), of day 4, and of day 8."""
    offsets = CommittedOffsets()
    for topic, day in [("old", 1), ("read", 4), ("new", 8)]:
        offsets.apply("g", topic, 0, offset(day * DAY_MS))
    found = offsets.plan_expiry(group, 9 * DAY_MS, 7 * DAY_MS)
    assert [topic for topic, _ in found] == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (group_in(GroupState.EMPTY, None), [0]),
        (group_in(GroupState.EMPTY, "consumer", since_ms=100, subscribed=set()), [0]),
        (group_in(GroupState.STABLE, "consumer", subscribed={"u"}), [0]),
        (group_in(GroupState.STABLE, "consumer", subscribed={"t"}), []),
        (group_in(GroupState.PREPARING, "consumer", subscribed={"u"}), []),
    ],
    ids=str,
)
def test_an_explicit_retention_goes_first(group: Group, expected: list[int]) -> None:
    """OffsetCommit up to version 4 may name one: it counts instead of the broker's, wherever offsets expire
    at all."""
    offsets = CommittedOffsets()
    offsets.apply("g", "t", 0, offset(100, expires_ms=100))
    offsets.apply("g", "t", 1, offset(100, expires_ms=101))
    found = offsets.plan_expiry(group, 100, 7 * DAY_MS)
    assert [partition for _, partition in found] == expected


def test_deleted_topics_take_their_offsets() -> None:
    """By name and id; an offset of unknown id goes by its name, one of a namesake stays."""
    offsets = CommittedOffsets()
    offsets.apply("g", "t", 0, offset(topic_id=ID))
    offsets.apply("g", "t", 1, offset(topic_id=OTHER_ID))
    offsets.apply("h", "t", 2, offset(topic_id=bytes(16)))
    offsets.apply("h", "u", 3, offset(topic_id=ID))
    assert gone(offsets, {"t": OTHER_ID}) == [("g", "t", 0), ("h", "u", 3)]
    assert gone(offsets, {"t": ID, "u": ID}) == [("g", "t", 1)]
    assert gone(offsets, {}) == [("g", "t", 0), ("g", "t", 1), ("h", "t", 2), ("h", "u", 3)]


def test_orphans_are_found_while_others_change_what_is_kept() -> None:
    """Some at a time; an offset that was committed for a new topic of the name between two is none."""
    offsets = CommittedOffsets()
    for partition in range(1000):
        offsets.apply("g", "t", partition, offset(topic_id=ID))
    ids: dict[str, bytes] = {}
    found = []
    for part in offsets.orphans(ids.get):
        assert len(part) <= ORPHANS_PER_CHUNK
        found += part
        if not ids:
            ids["t"] = OTHER_ID
            offsets.apply("g", "t", 999, offset(topic_id=OTHER_ID))
            offsets.apply("g", "t", 998, None)
            offsets.apply("h", "t", 0, offset(topic_id=OTHER_ID))
    assert found == [("g", "t", partition) for partition in range(998)]


def gone(offsets: CommittedOffsets, ids: dict[str, bytes]) -> list[tuple[str, str, int]]:
    return [place for part in offsets.orphans(ids.get) for place in part]
