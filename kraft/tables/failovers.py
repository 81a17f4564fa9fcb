"""Failovers: fenced brokers whose write-ahead logs are to be recovered by another, and who does each.

Begins when a broker is fenced with streams open, ends when none of them is open any more, or when the broker
is back. Not here: who is chosen (commands/leaders.py), the recovery (broker/quorum/failover.py). Kept true:
at most one failover a broker, done by one other at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.kraft.tables.sorted_map import SortedMap
from millrace.protocol.dataclass import dataclass
from millrace.protocol.stream_records import FailoverRecord

NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class Failover:
    node_id: int  # the broker that is gone
    by_node: int  # who recovers its log; NOBODY: none of those that are there can
    unable: tuple[int, ...]  # broker epochs of those that said they cannot, in order
    reason: str  # why, of the last of them

    def record(self) -> FailoverRecord:
        """That makes it as it is."""
        return FailoverRecord(self.node_id, self.by_node, list(self.unable), self.reason)


@dataclass(frozen=True, slots=True)
class Failovers:
    by_id: SortedMap[int, Failover]

    def get(self, node_id: int) -> Failover | None:
        return self.by_id.get(node_id)

    def __iter__(self) -> Iterator[Failover]:
        """By the id of the broker that is gone."""
        return self.by_id.values()

    def __len__(self) -> int:
        return len(self.by_id)

    def with_failover(self, record: FailoverRecord) -> Failovers:
        edit = self.by_id.edit()
        unable = tuple(record.unable_epochs)
        edit[record.node_id] = Failover(record.node_id, record.by_node, unable, record.reason)
        return Failovers(edit.done())

    def without(self, node_id: int) -> Failovers:
        edit = self.by_id.edit()
        edit.pop(node_id)
        return Failovers(edit.done())


NO_FAILOVERS = Failovers(SortedMap())
