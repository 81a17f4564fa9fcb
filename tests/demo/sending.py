"""What one producer sent to one topic, as it was acknowledged; its digest goes by the order of sending.

A partition is learnt with an acknowledgement. These come in the order in which the partition's records were
sent, or the client has lost that order. The topic is new and nobody else writes it, so a record's offset is
the number of records before it: one that is told differently was put in twice, or in another place.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter

from tests.demo.digest import Digest, mark_of


class Sending:
    def __init__(self) -> None:
        self.digest = Digest()
        self.errors: list[str] = []
        self.sent_bytes = 0
        self._sent_count = 0
        self._waiting: dict[int, tuple[bytes, int]] = {}  # by the number of the record
        self._last: dict[int, int] = {}  # by partition
        self._counts: Counter[int] = Counter()
        self._lock = threading.Lock()  # a client calls back from a thread of its own

    def begin(self, key: bytes, value: bytes) -> tuple[int, int, list[tuple[str, bytes]]]:
        """The record's number, its time and its headers."""
        number, time_ms = self._sent_count, time.time_ns() // 1_000_000
        headers = [
            ("number", str(number).encode()),
            ("crc32", zlib.crc32(value).to_bytes(4, "big")),
            ("nothing", b""),
        ]
        with self._lock:
            self._waiting[number] = mark_of(key, value, time_ms, headers), len(value)
        self._sent_count += 1
        self.sent_bytes += len(value)
        return number, time_ms, headers

    def on_acknowledged(self, number: int, partition: int, offset: int | None) -> None:
        """`offset` may be unknown: None, or below 0."""
        with self._lock:
            mark, value_bytes = self._waiting.pop(number)
            if number < self._last.get(partition, -1):
                self.errors.append(f"record {number} of partition {partition} after {self._last[partition]}")
            if offset is not None and 0 <= offset != self._counts[partition]:
                self.errors.append(
                    f"record {self._counts[partition]} of partition {partition} is at offset {offset}"
                )
            self._last[partition] = number
            self._counts[partition] += 1
            self.digest.add(partition, mark, value_bytes)

    def check(self) -> None:
        if self.errors:
            raise RuntimeError(self.errors[0])

    def check_ended(self) -> None:
        """All that was begun is acknowledged."""
        self.check()
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} records were not delivered")
