"""Idempotence: which sequence numbers each producer has written to one partition. Pure.

A producer numbers its batches; the last five of each are remembered, so that a retry of any of them is told from a new batch. What
is asked here, in this order: `judge` before a batch gets its offsets, `written` when it has them. Both happen in one turn of the loop,
so a batch in flight is already remembered; whether it is durable is the partition's to know.

Not here: transactions' markers (the fields for them are kept), and how snapshots are stored.

Invariants
  * At most `WINDOW_BATCHES` batches a producer and `producers_max` producers; over it the one that was silent longest is forgotten, but
    never one with an open transaction. A forgotten producer is a new one: any sequence is accepted from it (as Kafka does).
  * Sequences wrap from 2147483647 to 0. Epochs only grow, and a new epoch begins at sequence 0.
  * Time is the monotonic clock's, so that a wall clock that jumps forgets nobody; a snapshot keeps ages, not times.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.errors import Corrupt

WINDOW_BATCHES = 5
SEQUENCE_MAX = 2**31 - 1
PRODUCERS_MAX = 10_000

_VERSION = 1
_SNAPSHOT = struct.Struct(">BxxxI")
_PRODUCER = struct.Struct(">qhBxiqq")
_BATCH = struct.Struct(">iiqiq")


def last_sequence_of(first_sequence: int, last_offset_delta: int) -> int:
    """The sequence of a batch's last record."""
    return (first_sequence + last_offset_delta) & SEQUENCE_MAX


class WrittenBatch(NamedTuple):
    """One remembered batch. `timestamp_ms` is what its producer was or will be told as append time, or the batch's own largest."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class Producer:
    """What is known of one producer id. `batches` is oldest first; `transaction_start` is -1 when none is open."""

    producer_id: int
    epoch: int
    batches: list[WrittenBatch] = field(default_factory=list)
    seen_ms: int = 0
    coordinator_epoch: int = -1
    transaction_start: int = -1


class Producers:
    """All producers of one partition, the one that wrote last at the end."""

    __slots__ = ("_by_id", "_producers_max", "_writers", "is_changed")

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._by_id: dict[int, Producer] = {}
        self._producers_max = producers_max
        self._writers: dict[int, tuple[int, int, int]] | None = None
        self.is_changed = False  # since the owner last took a snapshot; the owner's to reset

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._by_id.values())

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._by_id

    def __repr__(self) -> str:
        return "\n".join(
            f"{p.producer_id}@{p.epoch} seen {p.seen_ms}: "
            + " ".join(f"[{b.first_sequence}..{b.last_sequence}]={b.base_offset}..{b.last_offset}" for b in p.batches)
            for p in self
        )

    def judge(self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int) -> WrittenBatch | None:
        """None: append it. A batch: it was appended already, there. Raises KafkaError for a gap or an old epoch."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            return None
        if epoch != producer.epoch:
            _judge_epoch(producer, epoch, first_sequence)
            return None
        batches = producer.batches
        last = batches[-1].last_sequence if batches else -1
        if first_sequence == (last + 1) & SEQUENCE_MAX:
            return None
        for batch in batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id}: sequence {first_sequence} after {last}",
        )

    def written(self, producer_id: int, epoch: int, batch: WrittenBatch, now_ms: int) -> None:
        """A batch has its offsets. `judge` has let it through, or it was read back from the log, where no judge is asked."""
        producer = self._by_id.pop(producer_id, None)
        if producer is None:
            producer = Producer(producer_id, epoch)
            self._make_room()
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
        self._by_id[producer_id] = producer
        producer.seen_ms = now_ms
        batches = producer.batches
        batches.append(batch)
        self.is_changed = True
        if len(batches) > WINDOW_BATCHES:
            del batches[0]

    def writer_of(self, base_offset: int) -> tuple[int, int, int] | None:
        """Producer id, epoch and first sequence of the batch that was given this offset, while it is remembered. For a log that takes no more: what
        was in flight asks one after the other, and everybody's batches are gone through once."""
        if self._writers is None:
            self._writers = {
                batch.base_offset: (producer.producer_id, producer.epoch, batch.first_sequence)
                for producer in self
                for batch in producer.batches
            }
        return self._writers.get(base_offset)

    def _make_room(self) -> None:
        if len(self._by_id) < self._producers_max:
            return
        for producer in self._by_id.values():
            if producer.transaction_start < 0:
                del self._by_id[producer.producer_id]
                return

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers that have been silent for `expiration_ms`; gives how many. Stops at the first that has not."""
        expired = []
        for producer in self._by_id.values():
            if now_ms - producer.seen_ms < expiration_ms:
                break
            if producer.transaction_start < 0:
                expired.append(producer.producer_id)
        for producer_id in expired:
            del self._by_id[producer_id]
            self.is_changed = True
        return len(expired)

    @property
    def snapshot_bytes(self) -> int:
        """What a snapshot takes, at most."""
        return _SNAPSHOT.size + len(self._by_id) * (_PRODUCER.size + WINDOW_BATCHES * _BATCH.size)

    def snapshot(self, now_ms: int) -> bytes:
        """Everything, as bytes that `restore` takes back."""
        parts = [_SNAPSHOT.pack(_VERSION, len(self._by_id))]
        for p in self:
            age_ms = max(0, now_ms - p.seen_ms)
            parts.append(
                _PRODUCER.pack(p.producer_id, p.epoch, len(p.batches), p.coordinator_epoch, age_ms, p.transaction_start)
            )
            parts += [_BATCH.pack(b[0], b[1], b[2], b[3] - b[2], b[4]) for b in p.batches]
        return b"".join(parts)

    @staticmethod
    def restore(data: bytes | memoryview, now_ms: int, producers_max: int = PRODUCERS_MAX) -> Producers:
        """The inverse of `snapshot`. Raises Corrupt for bytes that are none."""
        producers = Producers(producers_max)
        try:
            version, count = _SNAPSHOT.unpack_from(data, 0)
            if version != _VERSION:
                raise Corrupt(f"producer snapshot of version {version}")
            position = _SNAPSHOT.size
            for _ in range(count):
                producer, position = _restore_one(data, position, now_ms)
                producers._by_id[producer.producer_id] = producer
        except struct.error as error:
            raise Corrupt("producer snapshot is cut off") from error
        if position != len(data):
            raise Corrupt(f"producer snapshot has {len(data) - position} bytes too many")
        return producers


def _judge_epoch(producer: Producer, epoch: int, first_sequence: int) -> None:
    if epoch < producer.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {producer.producer_id}: epoch {epoch} is older than {producer.epoch}",
        )
    if first_sequence != 0:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer.producer_id}: epoch {epoch} begins at sequence {first_sequence}",
        )


def _restore_one(data: bytes | memoryview, position: int, now_ms: int) -> tuple[Producer, int]:
    producer_id, epoch, count, coordinator_epoch, age_ms, transaction_start = _PRODUCER.unpack_from(data, position)
    position += _PRODUCER.size
    producer = Producer(producer_id, epoch, [], now_ms - age_ms, coordinator_epoch, transaction_start)
    for _ in range(count):
        first, last, base_offset, delta, timestamp_ms = _BATCH.unpack_from(data, position)
        position += _BATCH.size
        producer.batches.append(WrittenBatch(first, last, base_offset, base_offset + delta, timestamp_ms))
    return producer, position
