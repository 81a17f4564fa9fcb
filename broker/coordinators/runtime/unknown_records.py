"""Records of types that the state machine does not know: the latest of each key, kept as it is. Pure.

A newer release may have written them (Kafka's newer groups have record types of their own): after a downgrade
they are of no use here, and the release that is upgraded to again must find them. So a rewrite of the log
carries them along byte for byte. A tombstone removes its key, and so does a record of the same key that the
state machine knows.

They are charged to memory, as restored from a log (broker/state_memory.py). Beyond `bytes_max` none are kept
in memory, and the log must not be rewritten, for they are in nothing but it.

Keeps true: while `is_complete`, the log's records of unknown types are those that `snapshot` gives, in
effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millrace.broker.coordinators.runtime.records import record_bytes, record_type
from millrace.broker.state_memory import Charges, StateMemory
from millrace.protocol.records import Record

UNKNOWN_BYTES_MAX = 16 << 20  # of one shard, in memory
# What one takes in memory beside its key, its value and its headers.
UNKNOWN_RECORD_BYTES = 400


class UnknownRecords:
    """Of one shard; `live_bytes` is what they take in the log."""

    def __init__(self, memory: StateMemory, bytes_max: int = UNKNOWN_BYTES_MAX) -> None:
        self._records: dict[bytes, Record] = {}
        self._holder = memory.restored
        self._charges = Charges(memory)
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self.live_bytes = 0
        self.is_complete = True

    def __len__(self) -> int:
        return len(self._records)

    def keep(self, record: Record) -> None:
        """Keep one that the state machine did not take; no value is the tombstone of its key. One without a
        key is of no use to anybody."""
        if record.key is None or not self.is_complete:
            return
        self._remove(record.key)
        if record.value is None:
            return
        self._records[record.key] = record
        self._count(record, 1)
        if self._size_bytes > self._bytes_max:
            self.is_complete = False
            self.clear()

    def forget(self, records: Iterable[Record]) -> None:
        """The state machine knows a later record of these keys."""
        if self._records:
            for record in records:
                if record.key is not None:
                    self._remove(record.key)

    def counts(self) -> dict[int, int]:
        """How many there are of each type (records.py: record_type), in the order of the types."""
        counts: dict[int, int] = {}
        for key in self._records:
            counts[record_type(key)] = counts.get(record_type(key), 0) + 1
        return dict(sorted(counts.items()))

    def snapshot(self) -> Iterator[Record]:
        """All of them, as they were written. Some may be forgotten between two."""
        for key in list(self._records):
            record = self._records.get(key)
            if record is not None:
                yield record

    def clear(self) -> None:
        """Keep none any more, and give back their memory."""
        self._records.clear()
        self._charges.release()
        self._size_bytes = self.live_bytes = 0

    def _remove(self, key: bytes) -> None:
        record = self._records.pop(key, None)
        if record is not None:
            self._count(record, -1)

    def _count(self, record: Record, sign: int) -> None:
        log_bytes = record_bytes(record)
        self.live_bytes += sign * log_bytes
        self._size_bytes += sign * (UNKNOWN_RECORD_BYTES + log_bytes)
        self._charges.add(self._holder, sign * (UNKNOWN_RECORD_BYTES + log_bytes))
