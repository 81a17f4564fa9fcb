"""What /metrics shows of groups: how many there are by state, their members, what they committed and how far
behind they are.

A look at the page loads the groups that nobody has asked for since the start (as ListGroups does), so that a
group whose consumers are away is on the page from the next look on. Bounded, in the order of the log:
GROUPS_MAX groups with members, GROUP_TOPICS_MAX pairs of group and topic, and GROUP_PARTITIONS_MAX partitions
with series of their own. OFFSETS_MAX committed offsets are looked at, and CLOSED_MAX of them of partitions
that are not open, whose ends come from metadata: that keeps a look to some milliseconds. A group whose id is
longer than GROUP_ID_CHARS_MAX is counted and has no series: an id may have 32 KiB, and a page of a thousand
such would take more memory than the broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator
from millrace.broker.coordinators.groups.members import GroupState
from millrace.broker.coordinators.groups.offsets import Partitions
from millrace.broker.partitions.directory import LedTopic, PartitionDirectory
from millrace.protocol.declare import NO_UUID
from millrace.runtime.metrics import Registry, Sample, Samples

GROUPS_MAX = 1_000
GROUP_TOPICS_MAX = 1_000
GROUP_PARTITIONS_MAX = 1_000
OFFSETS_MAX = 10_000
CLOSED_MAX = 1_000
GROUP_ID_CHARS_MAX = 249  # as of a topic's name

GROUPS, MEMBERS = "millrace_coordinator_groups", "millrace_group_members"
LAG = "millrace_group_lag_records"
PARTITION_LAG = "millrace_group_partition_lag_records"
PARTITION_OFFSET = "millrace_group_partition_committed_offset"
TEXTS = {
    GROUPS: "Groups with members or committed offsets, by state",
    MEMBERS: "Members of a group; the first 1,000 groups that have any",
    LAG: "Records of a topic that a group has not committed yet, over the partitions that it committed of; "
    "the first 1,000 pairs of group and topic",
    PARTITION_LAG: "Records of a partition that a group has not committed yet; the first 1,000",
    PARTITION_OFFSET: "Offset that a group committed of a partition; the first 1,000",
}


def show_groups(registry: Registry, groups: GroupCoordinator, directory: PartitionDirectory) -> None:
    def read() -> Samples:
        groups.load_all()
        return _groups_and_members(groups) | _lags(groups, directory)

    registry.sampled_together(TEXTS, "gauge", read)


def _groups_and_members(groups: GroupCoordinator) -> dict[str, list[Sample]]:
    counts: Counter[GroupState] = Counter()
    members: list[Sample] = []
    for shard in groups.loaded():
        for group_id, group in shard.groups.items():
            counts[group.state] += 1
            if group.members and len(members) < GROUPS_MAX and _is_shown(group_id):
                members.append(({"group": group_id}, len(group.members)))
        counts[GroupState.EMPTY] += sum(group_id not in shard.groups for group_id in shard.offsets.groups())
    return {GROUPS: [({"state": state.value}, counts[state]) for state in GroupState], MEMBERS: members}


def _lags(groups: GroupCoordinator, directory: PartitionDirectory) -> dict[str, list[Sample]]:
    lags: list[Sample] = []
    of_partitions: list[Sample] = []
    offsets: list[Sample] = []
    offsets_left, bounds = OFFSETS_MAX, _Bounds(directory)
    for group_id, topic, partitions in islice(_committed(groups), GROUP_TOPICS_MAX):
        offsets_left -= len(partitions)
        led = directory.topic_named(topic)
        if offsets_left < 0:
            break
        if led is None:
            continue
        total, is_known = 0, False
        for index, committed in partitions.items():
            found = bounds.of(led, index) if committed.topic_id in (NO_UUID, led.topic_id) else None
            if found is None:
                continue
            start, end = found
            lag = max(0, end - max(committed.offset, start))
            total, is_known = total + lag, True
            if len(offsets) < GROUP_PARTITIONS_MAX:
                labels = {"group": group_id, "topic": topic, "partition": str(index)}
                of_partitions.append((labels, lag))
                offsets.append((labels, committed.offset))
        if is_known:
            lags.append(({"group": group_id, "topic": topic}, total))
    return {LAG: lags, PARTITION_LAG: of_partitions, PARTITION_OFFSET: offsets}


class _Bounds:
    """[log start, high watermark) of partitions during one look; None for closed ones beyond CLOSED_MAX."""

    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory
        self._closed_left = CLOSED_MAX

    def of(self, led: LedTopic, index: int) -> tuple[int, int] | None:
        partition = led.partitions.get(index) or led.retention_only.get(index)
        if partition is not None:
            return partition.log_start_offset, partition.high_watermark
        self._closed_left -= 1
        return self._directory.bounds_of(led.topic_id, index) if self._closed_left >= 0 else None


def _committed(groups: GroupCoordinator) -> Iterator[tuple[str, str, Partitions]]:
    for shard in groups.loaded():
        for group_id in filter(_is_shown, shard.offsets.groups()):
            for topic, partitions in shard.offsets.of_group(group_id).items():
                yield group_id, topic, partitions


def _is_shown(group_id: str) -> bool:
    return len(group_id) <= GROUP_ID_CHARS_MAX
