"""What /metrics shows of topics and partitions: families whose series come and go, each bounded, read when
the page is printed.

A topic's first traffic decides whether it has series of its own: the first TOPICS_MAX have, until they are
deleted, and what the others moved is added up under the topic OTHERS for good. So a series does not come and
go with another topic, and none becomes smaller, which a rate would take for a new start. A topic that is
itself called OTHERS is one of them: Prometheus wants no series twice. Not here: groups and their lags
(groups.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from millrace.broker.partitions.directory import LedTopic, PartitionDirectory
from millrace.kraft.tables.topics import Topics
from millrace.protocol.ids import TopicId
from millrace.runtime.metrics import Registry, Sample, Samples

TOPICS_MAX = 500
PARTITIONS_MAX = 2_000
OTHERS = "__others"
Figures = tuple[int, int, int]

START, END = "millrace_partition_log_start_offset", "millrace_partition_log_end_offset"
SIZE = "millrace_partition_log_size_bytes"
TRAFFIC = {
    "millrace_topic_in_bytes_total": "Bytes of record batches produced to a topic",
    "millrace_topic_in_records_total": "Records produced to a topic",
    "millrace_topic_out_bytes_total": "Bytes of record batches fetched from a topic",
}
OPEN_ONLY = "of partitions that are open here; the first 2,000"


def show_topics(registry: Registry, directory: PartitionDirectory, topics: Callable[[], Topics]) -> None:
    """`topics`: of the newest metadata."""
    total = directory.traffic
    registry.counter(
        "millrace_broker_in_bytes_total",
        "Bytes of record batches produced to all topics",
        lambda: total.in_bytes,
    )
    registry.counter(
        "millrace_broker_in_records_total", "Records produced to all topics", lambda: total.in_records
    )
    registry.counter(
        "millrace_broker_out_bytes_total",
        "Bytes of record batches fetched from all topics",
        lambda: total.out_bytes,
    )
    registry.sampled_together(TRAFFIC, "counter", _Shares(directory).look)
    count = "Partitions of a topic, of the first 500 by name"
    registry.sampled("millrace_topic_partitions", count, "gauge", lambda: _partition_counts(topics()))
    texts = {
        START: f"First offset, {OPEN_ONLY}",
        END: f"High watermark, {OPEN_ONLY}",
        SIZE: f"Bytes of the record batches that were taken and not deleted, {OPEN_ONLY}",
    }
    registry.sampled_together(texts, "gauge", lambda: _logs(directory))
    registry.gauge(
        "millrace_broker_failed_partitions",
        "Partitions that could not be opened when they were last asked for, or take no batches for damage; "
        "the log says why",
        lambda: directory.failed_count,
    )


class _Shares:
    """Which topics have series of their own, and what all others moved, as the looks before left it."""

    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory
        self._own: dict[TopicId, LedTopic] = {}
        self._others: dict[TopicId, LedTopic] = {}
        self._gone: Figures = (0, 0, 0)  # of others that were deleted

    def look(self) -> Samples:
        self._follow({led.topic_id: led for led in self._directory.topics() if any(_figures(led))})
        shown = [(led.name, _figures(led)) for led in self._own.values()]
        shown.append((OTHERS, _sum([self._gone, *map(_figures, self._others.values())])))
        return {
            name: [({"topic": topic}, figures[place]) for topic, figures in shown if figures[place]]
            for place, name in enumerate(TRAFFIC)
        }

    def _follow(self, used: dict[TopicId, LedTopic]) -> None:
        self._own = {topic_id: led for topic_id, led in self._own.items() if topic_id in used}
        gone = [topic_id for topic_id in self._others if topic_id not in used]
        self._gone = _sum([self._gone, *(_figures(self._others.pop(topic_id)) for topic_id in gone)])
        for topic_id, led in used.items():
            if topic_id not in self._own and topic_id not in self._others:
                share = self._own if len(self._own) < TOPICS_MAX and led.name != OTHERS else self._others
                share[topic_id] = led


def _figures(led: LedTopic) -> Figures:
    """In the order of TRAFFIC."""
    return led.traffic.in_bytes, led.traffic.in_records, led.traffic.out_bytes


def _sum(all_figures: Iterable[Figures]) -> Figures:
    in_bytes, in_records, out_bytes = (sum(column) for column in zip(*all_figures, strict=True))
    return in_bytes, in_records, out_bytes


def _partition_counts(topics: Topics) -> Iterator[Sample]:
    others = topics.partition_count
    for topic in islice(topics, TOPICS_MAX):
        if topic.name == OTHERS:
            continue
        count = len(topic.partitions)
        others -= count
        yield {"topic": topic.name}, count
    if others:
        yield {"topic": OTHERS}, others


def _logs(directory: PartitionDirectory) -> Samples:
    found: dict[str, list[Sample]] = {START: [], END: [], SIZE: []}
    for partition in islice(directory.opened(), PARTITIONS_MAX):
        labels = {"topic": partition.topic_name, "partition": str(partition.index)}
        found[START].append((labels, partition.log_start_offset))
        found[END].append((labels, partition.high_watermark))
        found[SIZE].append((labels, partition.state.segments.size_bytes))
    return found
