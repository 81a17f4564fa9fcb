"""Idempotence: which sequence numbers each producer has written to one partition. Pure.

A producer numbers its batches; the last five of each are remembered, so that a retry of any of them is told
from a new batch. What is asked here, in this order: `judge` before a batch gets its offsets, `written` when
it has them. Both happen in one iteration of the loop, so a batch in flight is already remembered; whether it
is durable is the partition's to know.

A producer is *hot* (its state is in memory) or *cold* (its state is in the partition's log,
cold_producers.py). Whoever has a batch of a cold producer brings its state back first (`revive`); until then
`judge` refuses the batch with a code that clients retry. What states take in memory is charged to the address
that made them (broker/state_memory.py); at the bound a new producer of whoever holds most is refused so too.

Not here: transactions' markers (the fields for them are kept), how snapshots are stored, when the log is
read.

Invariants
  * Nobody is forgotten before it was silent for `producer.id.expiration.ms`. A forgotten producer is a new
    one: any sequence is accepted from it (as Kafka does).
  * At most `WINDOW_BATCHES` batches a producer. A producer is hot or cold, never both; with an open
    transaction it is hot.
  * Sequences wrap from 2147483647 to 0. Epochs only grow, and a new epoch begins at sequence 0.
  * Time is the monotonic clock's, so that a wall clock that jumps forgets nobody; a snapshot keeps ages, not
    times.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import NamedTuple

from millrace.broker.partitions.cold_producers import (
    BLOCK_ROWS,
    ColdProducers,
    encode_block,
    find_row,
    iter_rows,
)
from millrace.broker.state_memory import RESTORED, THROTTLE_MS, Holder, StateMemory
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.errors import Corrupt

WINDOW_BATCHES = 5
SEQUENCE_MAX = 2**31 - 1
# Producers of one partition in memory; beyond it those that wrote longest ago go to the log, until half are
# left.
HOT_MAX = 4_000
# At millrace.version 0 so many stay in memory and so in the checkpoint, where the build of before reads them:
# it remembers as many, and knows nothing of those in the log.
HOT_MIN_AT_LEVEL_0 = 10_000
# What a hot producer takes in memory beside its batches, and each batch, with their part of the last
# snapshot.
PRODUCER_BYTES = 340
REVIVED_MS = 1000  # for so long one that came back from the log stays
BATCH_BYTES = 360
# What a producer is told whose batch cannot be judged now: clients send it again, and know that it was not
# written.
RETRY_CODE = ErrorCode.NOT_ENOUGH_REPLICAS

_VERSION = 1
_SNAPSHOT = struct.Struct(">BxxxI")
_PRODUCER = struct.Struct(">qhBxiqq")
_BATCH = struct.Struct(">iiqiq")
_WITH_BATCHES = [
    struct.Struct(_PRODUCER.format + count * _BATCH.format[1:]) for count in range(WINDOW_BATCHES + 1)
]


def last_sequence_of(first_sequence: int, last_offset_delta: int) -> int:
    """The sequence of a batch's last record."""
    return (first_sequence + last_offset_delta) & SEQUENCE_MAX


class WrittenBatch(NamedTuple):
    """One remembered batch. `timestamp_ms` is what its producer was or will be told as append time, or the
    batch's own largest."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class StatesFull(KafkaError):
    """A new producer is refused: states have no more memory for who asks. To be tried again after
    `throttle_ms`."""

    def __init__(self, producer_id: int, throttle_ms: int) -> None:
        super().__init__(
            RETRY_CODE, f"producer {producer_id}: this client's producers take all that they may"
        )
        self.throttle_ms = throttle_ms


@dataclass(slots=True)
class Producer:
    """What is known of one producer id. `batches` is oldest first; `transaction_start` is -1 when none is
    open. `holder` is charged for it."""

    producer_id: int
    epoch: int
    holder: Holder
    batches: list[WrittenBatch] = field(default_factory=list)
    seen_ms: int = 0
    coordinator_epoch: int = -1
    transaction_start: int = -1
    revived_ms: int = -REVIVED_MS  # when it came back from the log

    @property
    def size_bytes(self) -> int:
        """What is charged for it."""
        return PRODUCER_BYTES + BATCH_BYTES * len(self.batches)


class Producers:
    """All producers of one partition; of the hot ones the one that wrote last is at the end. `on_crowded` is
    called when there are more than `hot_count_max` of these."""

    __slots__ = ("_by_id", "_memory", "_writers", "cold", "is_changed", "is_released", "on_crowded")

    def __init__(self, memory: StateMemory | None = None) -> None:
        self._by_id: dict[int, Producer] = {}
        self._memory = StateMemory() if memory is None else memory
        self._writers: dict[int, tuple[int, int, int]] | None = None
        self.cold: ColdProducers | None = None  # while none is: None, so that it costs nothing
        self.is_changed = False  # since the owner last took a snapshot; the owner's to reset
        self.is_released = False
        self.on_crowded: Callable[[], object] = lambda: None

    @property
    def memory(self) -> StateMemory:
        return self._memory

    @property
    def hot_count(self) -> int:
        return len(self._by_id)

    @property
    def hot_count_max(self) -> int:
        """Beyond so many in memory some are to go to the log."""
        count_min = self._memory.hot_count_min
        return count_min + BLOCK_ROWS if count_min else HOT_MAX

    @property
    def hot_count_kept(self) -> int:
        """So many stay when there are too many."""
        return self._memory.hot_count_min or HOT_MAX // 2

    def __len__(self) -> int:
        return len(self._by_id) + (0 if self.cold is None else len(self.cold))

    def __iter__(self) -> Iterator[Producer]:
        """The hot ones."""
        return iter(self._by_id.values())

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._by_id or self.is_cold(producer_id)

    def is_cold(self, producer_id: int) -> bool:
        """Its state is in the log, and has to be brought back before its batches are judged."""
        return (
            self.cold is not None
            and producer_id not in self._by_id
            and self.cold.block_of(producer_id) is not None
        )

    def __repr__(self) -> str:
        return "\n".join(
            f"{p.producer_id}@{p.epoch} seen {p.seen_ms}: "
            + " ".join(
                f"[{b.first_sequence}..{b.last_sequence}]={b.base_offset}..{b.last_offset}" for b in p.batches
            )
            for p in self
        )

    def judge(
        self, producer_id: int, epoch: int, first_sequence: int, last_sequence: int, who: str = RESTORED
    ) -> WrittenBatch | None:
        """None: append it. A batch: it was appended already, there. Raises KafkaError for a gap or an old
        epoch, and for a producer that is cold or has no place. `who`: the client's address."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            self._judge_unknown(producer_id, who)
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

    def _judge_unknown(self, producer_id: int, who: str) -> None:
        if self.is_cold(producer_id):
            raise KafkaError(RETRY_CODE, f"producer {producer_id}: its state was not read from the log")
        memory = self._memory
        holder = memory.holder(who)
        if not memory.has_place(holder, PRODUCER_BYTES + BATCH_BYTES):
            memory.refuse(holder, "a producer")
            raise StatesFull(producer_id, THROTTLE_MS)

    def written(
        self, producer_id: int, epoch: int, batch: WrittenBatch, now_ms: int, who: str = RESTORED
    ) -> None:
        """A batch has its offsets. `judge` has let it through, or it was read back from the log, where no
        judge is asked."""
        by_id = self._by_id
        producer = by_id.pop(producer_id, None)
        if producer is None:
            producer = self._begin(producer_id, epoch, who)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            self._memory.charge_hot(producer.holder, -BATCH_BYTES * len(producer.batches))
            producer.batches.clear()
        by_id[producer_id] = producer
        producer.seen_ms = now_ms
        batches = producer.batches
        batches.append(batch)
        self.is_changed = True
        if len(batches) > WINDOW_BATCHES:
            del batches[0]
        else:
            self._memory.charge_hot(producer.holder, BATCH_BYTES)

    def replay(self, producer_id: int, epoch: int, batch: WrittenBatch, now_ms: int) -> None:
        """As `written`, of a batch that is read back from the log: a state that went to the log behind it has
        it already."""
        producer = self._by_id.get(producer_id)
        if producer is None or not producer.batches or producer.batches[-1].last_offset < batch.last_offset:
            self.written(producer_id, epoch, batch, now_ms)

    def _begin(self, producer_id: int, epoch: int, who: str) -> Producer:
        holder = self._memory.holder(who)
        self._memory.charge_hot(holder, PRODUCER_BYTES)
        if len(self._by_id) >= self.hot_count_max:
            self.on_crowded()
        return Producer(producer_id, epoch, holder)

    def writer_of(self, base_offset: int) -> tuple[int, int, int] | None:
        """Producer id, epoch and first sequence of the batch that was given this offset, while it is
        remembered. For a log that takes no more: what was in flight asks one after the other, and everybody's
        batches are gone through once."""
        if self._writers is None:
            self._writers = {
                batch.base_offset: (producer.producer_id, producer.epoch, batch.first_sequence)
                for producer in self
                for batch in producer.batches
            }
        return self._writers.get(base_offset)

    # -- to the log and back

    def take_cold(self, count: int, durable_end: int, now_ms: int) -> list[Producer]:
        """Up to so many producers that wrote longest ago, and are to be written to the log with `put_cold` in
        this iteration of the loop. Not one whose last batch is not durable, nor one behind it; nor one that
        has just come back from the log: the batch that it came back for is to be judged first."""
        taken: list[Producer] = []
        if self.is_released:
            return taken
        for producer in self._by_id.values():
            if len(taken) == count or (producer.batches and producer.batches[-1].last_offset >= durable_end):
                break
            if producer.transaction_start < 0 and now_ms - producer.revived_ms >= REVIVED_MS:
                taken.append(producer)
        return taken

    def put_cold(self, taken: Sequence[Producer], now_ms: int) -> tuple[int, bytes]:
        """These leave memory: the number of their block and its value, to be written to the log at once.
        `taken` may have producers of older blocks beside hot ones."""
        cold = self.cold
        if cold is None:
            cold = self.cold = ColdProducers(self._memory)
        newest_ms = max(producer.seen_ms for producer in taken)
        age_ms = max(0, now_ms - newest_ms)
        number = cold.begin_block(newest_ms, age_ms)
        rows = []
        for producer in sorted(taken, key=_id_of):
            rows.append((producer.producer_id, _pack(producer, now_ms)))
            if self._by_id.pop(producer.producer_id, None) is not None:
                self._memory.charge_hot(producer.holder, -producer.size_bytes)
            cold.add(producer.producer_id, number, producer.holder)
        self.is_changed = True
        return number, encode_block(rows, age_ms)

    def rows_of(self, number: int, value: bytes | memoryview) -> list[Producer]:
        """The producers of a block of the log whose states are there still, not charged. Raises Corrupt."""
        cold = self.cold
        block = None if cold is None else cold.blocks.get(number)
        if cold is None or block is None:
            return []
        # The block's rows have ages as of its writing: the youngest row's time says when that was.
        written_ms = block.newest_ms + block.age_ms
        rows = [row for producer_id, row in iter_rows(value) if cold.block_of(producer_id) == number]
        holder = block.charges.main_holder() or self._memory.restored
        return [_restore_row(row, written_ms, block.log_end, holder) for row in rows]

    def revive(
        self, producer_id: int, number: int, value: bytes | memoryview, now_ms: int, who: str = RESTORED
    ) -> None:
        """Brings a producer back from its block's value, unless its state is elsewhere by now; one that was
        silent for too long, or whose batches the log has lost, is forgotten. Charged to who asks, and never
        refused. Raises Corrupt for a value that lacks it."""
        if self.is_released or self.cold is None or self.cold.block_of(producer_id) != number:
            return
        row = find_row(value, producer_id)
        if row is None:
            raise Corrupt(f"block {number} does not have producer {producer_id}")
        holder, block = self._memory.holder(who), self.cold.blocks[number]
        found = _restore_row(row, block.newest_ms + block.age_ms, block.log_end, holder)
        self.cold.remove(producer_id, holder)
        self.is_changed = True
        if not found.batches or now_ms - found.seen_ms >= self._memory.producer_expiration_ms:
            return
        found.revived_ms = now_ms
        self._by_id[producer_id] = found
        self._memory.charge_hot(holder, found.size_bytes)
        if len(self._by_id) > self.hot_count_max:
            self.on_crowded()

    def cut_at(self, log_end: int) -> None:
        """The log ends at `log_end`, below what is remembered: batches above it are forgotten, and a producer
        with them whose last batches all were there. As in Kafka, it goes on at any sequence."""
        for producer in list(self._by_id.values()):
            left = [batch for batch in producer.batches if batch.last_offset < log_end]
            if len(left) == len(producer.batches):
                continue
            self.is_changed = True
            size_bytes = producer.size_bytes
            producer.batches = left
            if left:
                self._memory.charge_hot(producer.holder, producer.size_bytes - size_bytes)
            else:
                self._memory.charge_hot(producer.holder, -size_bytes)
                del self._by_id[producer.producer_id]

    def forget_all(self) -> None:
        """Each of them may have written since what is known of it. Whoever is unknown goes on at any
        sequence, as in Kafka."""
        for producer in self._by_id.values():
            self._memory.charge_hot(producer.holder, -producer.size_bytes)
        self._by_id.clear()
        for number in [] if self.cold is None else list(self.cold.blocks):
            assert self.cold is not None
            self.cold.expire(number)
        self.is_changed = True

    def release(self) -> None:
        """The partition takes no more: its states are charged to nobody. What was in flight may be asked for.
        Idempotent."""
        if self.is_released:
            return
        self.is_released = True
        for producer in self._by_id.values():
            self._memory.charge_hot(producer.holder, -producer.size_bytes)
        if self.cold is not None:
            self.cold.release()

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers that have been silent for `expiration_ms`; gives how many. Stops at the first
        that has not. Of those in the log a block at a time, with its youngest."""
        expired = []
        for producer in self._by_id.values():
            if now_ms - producer.seen_ms < expiration_ms:
                break
            if producer.transaction_start < 0:
                expired.append(producer)
        for producer in expired:
            del self._by_id[producer.producer_id]
            self._memory.charge_hot(producer.holder, -producer.size_bytes)
            self.is_changed = True
        return len(expired) + self._expire_cold(now_ms - expiration_ms)

    def _expire_cold(self, before_ms: int) -> int:
        expired_count = 0
        if self.cold is not None:
            for number, block in list(self.cold.blocks.items()):
                if block.newest_ms <= before_ms:
                    expired_count += block.count
                    self.cold.expire(number)
                    self.is_changed = True
        return expired_count

    @property
    def snapshot_bytes(self) -> int:
        """What a snapshot takes, at most."""
        return _SNAPSHOT.size + len(self._by_id) * (_PRODUCER.size + WINDOW_BATCHES * _BATCH.size)

    def snapshot(self, now_ms: int) -> bytes:
        """All that is hot, as bytes that `restore` takes back."""
        return b"".join((_SNAPSHOT.pack(_VERSION, len(self._by_id)), *(_pack(one, now_ms) for one in self)))

    @staticmethod
    def restore(data: bytes | memoryview, now_ms: int, memory: StateMemory | None = None) -> Producers:
        """The inverse of `snapshot`. Raises Corrupt for bytes that are none."""
        producers = Producers(memory)
        try:
            version, count = _SNAPSHOT.unpack_from(data, 0)
            if version != _VERSION:
                raise Corrupt(f"producer snapshot of version {version}")
            position = _SNAPSHOT.size
            for _ in range(count):
                producer, position = _restore_one(data, position, now_ms, producers._memory.restored)
                before = producers._by_id.get(producer.producer_id)
                size_bytes = producer.size_bytes - (0 if before is None else before.size_bytes)
                producers._by_id[producer.producer_id] = producer
                producers._memory.charge_hot(producer.holder, size_bytes)
            if position != len(data):
                raise Corrupt(f"producer snapshot has {len(data) - position} bytes too many")
        except (struct.error, Corrupt) as error:
            producers.release()
            raise error if isinstance(error, Corrupt) else Corrupt("producer snapshot is cut off") from error
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


def _id_of(producer: Producer) -> int:
    return producer.producer_id


def _pack(p: Producer, now_ms: int) -> bytes:
    numbers: list[int] = []
    for first, last, base_offset, last_offset, timestamp_ms in p.batches:
        numbers += (first, last, base_offset, last_offset - base_offset, timestamp_ms)
    count, age_ms = len(p.batches), max(0, now_ms - p.seen_ms)
    head = p.producer_id, p.epoch, count, p.coordinator_epoch, age_ms, p.transaction_start
    return _WITH_BATCHES[count].pack(*head, *numbers)


def _restore_row(row: memoryview, now_ms: int, log_end: int, holder: Holder) -> Producer:
    """A row of a cold block, without batches that the log has lost. Raises Corrupt."""
    try:
        found = _restore_one(row, 0, now_ms, holder)[0]
    except struct.error as error:
        raise Corrupt("a row of a cold block is cut off") from error
    found.batches = [batch for batch in found.batches if batch.last_offset < log_end]
    return found


def _restore_one(
    data: bytes | memoryview, position: int, now_ms: int, holder: Holder
) -> tuple[Producer, int]:
    producer_id, epoch, count, coordinator_epoch, age_ms, transaction_start = _PRODUCER.unpack_from(
        data, position
    )
    position += _PRODUCER.size
    producer = Producer(
        producer_id,
        epoch,
        holder,
        seen_ms=now_ms - age_ms,
        coordinator_epoch=coordinator_epoch,
        transaction_start=transaction_start,
    )
    for _ in range(count):
        first, last, base_offset, delta, timestamp_ms = _BATCH.unpack_from(data, position)
        position += _BATCH.size
        producer.batches.append(WrittenBatch(first, last, base_offset, base_offset + delta, timestamp_ms))
    return producer, position
