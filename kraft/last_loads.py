"""LastLoads: what each partition moved when that was reported last, kept by the controller that leads.

What a broker that is gone reported last stays known, for it says how busy those are that take its partitions.
Not here: who is given them (commands/spreading.py), the balancer's own table, which forgets what is not fresh
(broker/cluster/loads.py). Kept true: of a broker that is not registered nothing is kept; a report has a
thousand partitions at most, and the next one of that broker takes its place.
"""

from __future__ import annotations

from typing import NamedTuple

from millrace.kraft.commands.spreading import FRESH_S, REST, Key, KnownLoads
from millrace.kraft.image.image import MetadataImage
from millrace.protocol.messages.report_load import ReportLoadRequest


class Report(NamedTuple):
    at_s: float
    rates: dict[Key, int]  # bytes a second, in and out


class LastLoads:
    def __init__(self) -> None:
        self._reports: dict[int, Report] = {}

    def take(self, report: ReportLoadRequest, image: MetadataImage, now_s: float) -> None:
        broker = image.brokers.get(report.broker_id)
        if broker is None or broker.epoch != report.broker_epoch:
            return
        rates = {
            (topic.topic_id, one.index): max(0, one.in_rate) + max(0, one.out_rate)
            for topic in report.topics
            for one in topic.partitions
        }
        self._reports[report.broker_id] = Report(now_s, rates)

    def clear(self) -> None:
        """Another led meanwhile."""
        self._reports.clear()

    def known(self, image: MetadataImage, now_s: float) -> KnownLoads:
        """As of this image. What one reported that has moved on since counts for its leader, unless that has
        reported later: then it says so itself."""
        self._reports = {who: one for who, one in self._reports.items() if image.brokers.get(who) is not None}
        by_partition: dict[Key, int] = {}
        by_broker = {
            who: one.rates.get(REST, 0)
            for who, one in sorted(self._reports.items())
            if now_s - one.at_s <= FRESH_S and image.brokers.by_id[who].is_usable
        }
        for who, report in sorted(self._reports.items(), key=lambda item: (item[1].at_s, item[0])):
            for key, rate in report.rates.items():
                state = None if key == REST else image.topics.partition(*key)
                if state is None:
                    continue
                own = self._reports.get(state.leader)
                if state.leader == who or own is None or own.at_s < report.at_s:
                    by_partition[key] = rate
        for key, rate in by_partition.items():
            state = image.topics.partition(*key)
            if state is not None and state.leader in by_broker:
                by_broker[state.leader] += rate
        return KnownLoads(by_partition, by_broker)
