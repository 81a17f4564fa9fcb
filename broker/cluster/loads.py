"""What partitions move, by broker: reported by each of them (ReportLoad), kept at the controller that leads.
Pure.

Not here: what is made of it (balancing.py). Kept true: a broker that has not reported for `FRESH_S` is not
known, and is neither given anything nor relieved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from millrace.kraft.commands.spreading import FRESH_S, PARTITIONS_MAX, REST, Key
from millrace.protocol.messages.report_load import LoadedPartition, LoadedTopic, ReportLoadRequest

LEAST_RATE: Final = 1_024  # bytes a second: what moves less is not told


class Rates(NamedTuple):
    """Bytes of record batches a second."""

    in_rate: float
    out_rate: float


Load = Mapping[Key, Rates]
NO_LOAD: Final = Rates(0.0, 0.0)


class LoadTable:
    """`now_s` is the loop's clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._reports: dict[int, tuple[float, Load]] = {}

    def take(self, report: ReportLoadRequest) -> None:
        load = {
            (topic.topic_id, one.index): Rates(one.in_rate, one.out_rate)
            for topic in report.topics
            for one in topic.partitions
        }
        self._reports[report.broker_id] = self._now_s(), load

    def forget(self) -> None:
        """What was moved since is reported anew."""
        self._reports.clear()

    def fresh(self) -> dict[int, Load]:
        """By broker."""
        since_s = self._now_s() - FRESH_S
        self._reports = {who: one for who, one in self._reports.items() if one[0] >= since_s}
        return {who: load for who, (_, load) in self._reports.items()}


def report_of(
    broker_id: int,
    broker_epoch: int,
    before: Mapping[Key, tuple[int, int]],
    after: Mapping[Key, tuple[int, int]],
    seconds: float,
) -> ReportLoadRequest:
    """Of counters of bytes in and out, looked at twice. A partition that was opened between is left out."""
    rates = []
    for key, (in_bytes, out_bytes) in after.items():
        was = before.get(key)
        if was is None or in_bytes < was[0] or out_bytes < was[1]:
            continue
        found = (in_bytes - was[0]) / seconds, (out_bytes - was[1]) / seconds
        if max(found) >= LEAST_RATE:
            rates.append((key, found))
    rates.sort(key=lambda one: max(one[1]), reverse=True)
    topics: dict[bytes, list[LoadedPartition]] = {}
    rest = [found for _, found in rates[PARTITIONS_MAX:]]
    told = rates[:PARTITIONS_MAX]
    if rest:
        told.append((REST, (sum(one[0] for one in rest), sum(one[1] for one in rest))))
    for (topic_id, index), (in_rate, out_rate) in told:
        topics.setdefault(topic_id, []).append(LoadedPartition(index, int(in_rate), int(out_rate)))
    return ReportLoadRequest(broker_id, broker_epoch, [LoadedTopic(*one) for one in topics.items()])
