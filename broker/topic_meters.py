"""What /metrics shows of topics, partitions and groups: families whose series come and go, each bounded, read when the page is printed.

A topic's first use decides whether it has series of its own: the first TOPICS_MAX have, and what the others moved is added up under the topic
OTHERS. So a series does not come and go with the traffic of another topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from millrace.broker.coordinators.coordinator import GroupCoordinator
from millrace.broker.coordinators.members import GroupState
from millrace.broker.coordinators.offsets import Partitions
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.runtime.metrics import Registry, Sample

TOPICS_MAX = 500
PARTITIONS_MAX = 2_000
GROUP_TOPICS_MAX = 1_000
OFFSETS_MAX = 10_000  # committed offsets that one page looks at: some milliseconds
OTHERS = "__others"
SHOWN_STATES = (GroupState.EMPTY, GroupState.PREPARING, GroupState.COMPLETING, GroupState.STABLE)


def show_topics(registry: Registry, directory: PartitionDirectory) -> None:
    total = directory.traffic
    registry.counter(
        "millrace_broker_in_bytes_total", "Bytes of record batches produced to all topics", lambda: total.in_bytes
    )
    registry.counter("millrace_broker_in_records_total", "Records produced to all topics", lambda: total.in_records)
    registry.counter(
        "millrace_broker_out_bytes_total", "Bytes of record batches fetched from all topics", lambda: total.out_bytes
    )
    for name, text in (
        ("in_bytes", "Bytes of record batches produced to a topic"),
        ("in_records", "Records produced to a topic"),
        ("out_bytes", "Bytes of record batches fetched from a topic"),
    ):
        registry.sampled(f"millrace_topic_{name}_total", text, "counter", _reader(directory, name))
    open_only = "of partitions that are open here; the first 2,000"
    registry.sampled(
        "millrace_partition_log_start_offset",
        f"First offset, {open_only}",
        "gauge",
        lambda: _offsets(directory, is_end=False),
    )
    registry.sampled(
        "millrace_partition_log_end_offset",
        f"High watermark, {open_only}",
        "gauge",
        lambda: _offsets(directory, is_end=True),
    )
    registry.gauge(
        "millrace_partitions_failed",
        "Partitions that could not be opened when they were last asked for; the log says why",
        lambda: directory.failed_count,
    )


def show_groups(registry: Registry, groups: GroupCoordinator, directory: PartitionDirectory) -> None:
    registry.sampled(
        "millrace_groups", "Groups with members or committed offsets, by state", "gauge", lambda: _states(groups)
    )
    registry.sampled(
        "millrace_group_lag_records",
        "Records of a topic that a group has not committed yet, over the partitions that it committed of and that are open here",
        "gauge",
        lambda: _lags(groups, directory),
    )


def _reader(directory: PartitionDirectory, name: str) -> Callable[[], Iterator[Sample]]:
    def read() -> Iterator[Sample]:
        others, count = 0, 0
        for led in directory.topics():
            value = getattr(led.traffic, name)
            if not value:
                continue
            count += 1
            if count <= TOPICS_MAX:
                yield {"topic": led.name}, value
            else:
                others += value
        if count > TOPICS_MAX:
            yield {"topic": OTHERS}, others

    return read


def _offsets(directory: PartitionDirectory, *, is_end: bool) -> Iterator[Sample]:
    for partition in islice(directory.opened(), PARTITIONS_MAX):
        labels = {"topic": partition.topic_name, "partition": str(partition.index)}
        yield labels, partition.high_watermark if is_end else partition.log_start_offset


def _states(groups: GroupCoordinator) -> Iterator[Sample]:
    counts: Counter[GroupState] = Counter()
    for shard in groups.loaded():
        counts.update(group.state for group in shard.groups.values())
        counts[GroupState.EMPTY] += sum(group_id not in shard.groups for group_id in shard.offsets.groups())
    for state in SHOWN_STATES:
        yield {"state": state.value}, counts[state]


def _lags(groups: GroupCoordinator, directory: PartitionDirectory) -> Iterator[Sample]:
    left = OFFSETS_MAX
    for group_id, topic, partitions in islice(_committed(groups), GROUP_TOPICS_MAX):
        left -= len(partitions)
        if left < 0:
            return
        led = directory.topic_named(topic)
        if led is None:
            continue
        lags = [
            max(0, opened.high_watermark - max(committed.offset, opened.log_start_offset))
            for index, committed in partitions.items()
            if (opened := led.partitions.get(index)) is not None
        ]
        if lags:
            yield {"group": group_id, "topic": topic}, sum(lags)


def _committed(groups: GroupCoordinator) -> Iterator[tuple[str, str, Partitions]]:
    for shard in groups.loaded():
        for group_id in shard.offsets.groups():
            for topic, partitions in shard.offsets.of_group(group_id).items():
                yield group_id, topic, partitions
