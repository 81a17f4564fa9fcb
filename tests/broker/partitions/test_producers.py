"""Sequence windows: duplicates, gaps, wrap, epochs, bounds, and snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.partitions.cold_producers import ColdProducers
from millrace.broker.partitions.producers import (
    RETRY_CODE,
    SEQUENCE_MAX,
    WINDOW_BATCHES,
    Producers,
    StatesFull,
    WrittenBatch,
    last_sequence_of,
)
from millrace.broker.state_memory import StateMemory
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.errors import Corrupt


def write(
    producers: Producers,
    first: int,
    count: int,
    offset: int,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    now_ms: int = 0,
) -> None:
    last = last_sequence_of(first, count - 1)
    assert producers.judge(producer_id, epoch, first, last) is None
    producers.written(
        producer_id, epoch, WrittenBatch(first, last, offset, offset + count - 1, 1000 + offset), now_ms
    )


def refusal(producers: Producers, first: int, count: int, *, producer_id: int = 7, epoch: int = 0) -> int:
    with pytest.raises(KafkaError) as caught:
        producers.judge(producer_id, epoch, first, last_sequence_of(first, count - 1))
    return caught.value.code


def test_a_retry_of_any_of_the_last_five_batches_is_a_duplicate() -> None:
    """Each of the five remembered batches is recognised by its exact sequences; the sixth back is out of
    order."""
    producers = Producers()
    for number in range(WINDOW_BATCHES + 1):
        write(producers, number * 10, 10, number * 10)
    for number in range(1, WINDOW_BATCHES + 1):
        found = producers.judge(7, 0, number * 10, number * 10 + 9)
        assert found is not None
        assert (found.base_offset, found.last_offset, found.timestamp_ms) == (
            number * 10,
            number * 10 + 9,
            1000 + number * 10,
        )
    assert refusal(producers, 0, 10) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_or_another_cut_of_the_same_sequences_is_out_of_order() -> None:
    """Neither a sequence too far on nor a batch that overlaps a written one with other borders is taken."""
    producers = Producers()
    write(producers, 0, 10, 0)
    for first, count in ((11, 1), (0, 9), (0, 11), (5, 5), (9, 2)):
        assert refusal(producers, first, count) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_anywhere() -> None:
    """State that expired or went with the broker's memory must not stop a producer: any first sequence is
    taken."""
    producers = Producers()
    write(producers, 4711, 3, 0)
    write(producers, 4714, 1, 3)


@pytest.mark.parametrize("first", [SEQUENCE_MAX, SEQUENCE_MAX - 4])
def test_sequences_wrap_to_zero(first: int) -> None:
    """After 2147483647 comes 0, whether a batch ends there or runs across; a retry across the wrap is a
    duplicate too."""
    producers = Producers()
    count = SEQUENCE_MAX - first + 1
    write(producers, first, count, 0)
    write(producers, 0, 5, count)
    crossing = Producers()
    write(crossing, SEQUENCE_MAX - 1, 5, 0)
    found = crossing.judge(7, 0, SEQUENCE_MAX - 1, 2)
    assert found is not None
    assert found.base_offset == 0
    assert crossing.judge(7, 0, 3, 3) is None
    assert refusal(crossing, SEQUENCE_MAX, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_epochs_only_grow_and_begin_at_zero() -> None:
    """A new epoch must begin at sequence 0 and forgets the old window; an old epoch is refused, even for a
    batch it wrote."""
    producers = Producers()
    write(producers, 0, 10, 0, epoch=3)
    assert refusal(producers, 10, 1, epoch=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    write(producers, 0, 10, 10, epoch=4)
    found = producers.judge(7, 4, 0, 9)
    assert found is not None
    assert found.base_offset == 10
    assert refusal(producers, 0, 10, epoch=3) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(producers, 10, 1, epoch=3) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_silent_producers_expire_but_not_within_a_transaction() -> None:
    """Expiry goes by the time since the last write, and spares a producer whose transaction is open."""
    producers = Producers()
    write(producers, 0, 1, 0, producer_id=1, now_ms=0)
    write(producers, 0, 1, 1, producer_id=2, now_ms=0)
    write(producers, 0, 1, 2, producer_id=3, now_ms=50)
    write(producers, 1, 1, 3, producer_id=1, now_ms=60)
    next(p for p in producers if p.producer_id == 2).transaction_start = 1
    assert producers.expire(100, 50) == 1
    assert [p.producer_id for p in producers] == [2, 1]
    assert producers.expire(99, 100) == 0


def test_nobody_is_forgotten_for_others() -> None:
    """However many write after it, a producer's repeat is a duplicate until it was silent for the
    expiration."""
    producers = Producers()
    write(producers, 0, 1, 0, producer_id=1)
    for producer_id in range(2, 12_000):
        write(producers, 0, 1, producer_id, producer_id=producer_id, now_ms=1)
    found = producers.judge(1, 0, 0, 0)
    assert found is not None
    assert found.base_offset == 0
    assert producers.expire(50, 50) == 1
    assert producers.judge(1, 0, 0, 0) is None


def test_whoever_holds_most_is_refused_first() -> None:
    """At the bound of memory new producers of the address that has most are refused, with a code that is sent
    again and a time to wait; those that it has go on, and so do new ones of others."""
    memory = StateMemory(1 << 20)
    producers = Producers(memory)
    taken = 0

    def take_all() -> None:
        nonlocal taken
        while True:
            assert producers.judge(taken, 0, 0, 0, "greedy") is None
            producers.written(taken, 0, WrittenBatch(0, 0, taken, taken, 0), 0, "greedy")
            taken += 1

    with pytest.raises(StatesFull) as caught:
        take_all()
    assert (caught.value.code, caught.value.throttle_ms) == (RETRY_CODE, 1000)
    assert 0.7 < memory.used_bytes / memory.limit_bytes < 0.8
    assert producers.judge(5, 0, 1, 1, "greedy") is None
    for producer_id in range(10_000, 10_100):
        assert producers.judge(producer_id, 0, 0, 0, "modest") is None
        producers.written(producer_id, 0, WrittenBatch(0, 0, producer_id, producer_id, 0), 0, "modest")
    producers.release()
    assert (memory.used_bytes, memory.hot_bytes) == (0, 0)


def test_a_snapshot_restores_windows_and_ages() -> None:
    """What comes back judges alike, and ages go on from what they were, whatever the new clock's origin."""
    producers = Producers()
    for number in range(6):
        write(producers, number, 1, number, epoch=2, now_ms=100 * number)
    write(producers, SEQUENCE_MAX, 1, 6, producer_id=9, now_ms=600)
    restored = Producers.restore(producers.snapshot(700), 10_000)
    assert repr(restored) == repr(producers).replace("seen 500", "seen 9800").replace("seen 600", "seen 9900")
    assert restored.judge(7, 2, 2, 2) is not None
    assert restored.expire(10_000 + 150, 300) == 1


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_stored_state_keeps_its_fields(is_cold: bool) -> None:
    """The coordinator's epoch and the start of an open transaction come back as they were, from a snapshot
    and from the log."""
    before, memory = Producers(), StateMemory()
    write(before, 0, 1, 0)
    producer = next(iter(before))
    producer.coordinator_epoch = 5
    if is_cold:
        number, value = before.put_cold(before.take_cold(1, 5, 0), 0)
        after = Producers(memory)
        after.cold = ColdProducers(memory)
        after.cold.adopt_block(number, 0, 0, 1)
        after.cold.add(7, number, memory.restored)
        after.revive(7, number, value, 0)
    else:
        producer.transaction_start = 3
        after = Producers.restore(before.snapshot(0), 0)
    found = next(iter(after))
    assert found.coordinator_epoch == 5
    assert found.transaction_start == producer.transaction_start


def test_bytes_that_are_no_snapshot_are_refused() -> None:
    """Every cut of a snapshot, a tail too many and a version too high raise ValueError, never half a
    table."""
    producers = Producers()
    write(producers, 0, 1, 0)
    data = producers.snapshot(0)
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            Producers.restore(data[:end], 0)
    for wrong in (data + b"\0", b"\x02" + data[1:]):
        with pytest.raises(Corrupt):
            Producers.restore(wrong, 0)


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=40), st.integers(0, SEQUENCE_MAX))
def test_every_batch_is_appended_once_however_often_it_is_sent(
    batches: list[tuple[int, bool]], start: int
) -> None:
    """A producer that repeats any batch at once gets the offsets of the first time; the log holds each batch
    once."""
    producers = Producers()
    sequence, offset = start, 0
    for count, is_repeated in batches:
        write(producers, sequence, count, offset)
        if is_repeated:
            found = producers.judge(7, 0, sequence, last_sequence_of(sequence, count - 1))
            assert found is not None
            assert found.base_offset == offset
        offset += count
        sequence = (sequence + count) & SEQUENCE_MAX


@pytest.mark.parametrize(("log_end", "expected"), [(10, 4), (3, 2), (0, None)])
def test_a_cold_state_tells_of_nothing_that_the_log_lost(log_end: int, expected: int | None) -> None:
    """The log was cut below what a block says: batches from there on are not known any more, and a producer
    that has no other is a new one."""
    before = Producers()
    for number in range(5):
        write(before, number, 1, number)
    number, value = before.put_cold(before.take_cold(1, 5, 0), 0)
    assert before.take_cold(1, 5, 0) == []
    memory = StateMemory()
    after = Producers(memory)
    after.cold = ColdProducers(memory)
    after.cold.adopt_block(number, 0, 0, log_end)
    after.cold.add(7, number, memory.restored)
    after.revive(7, number, value, 0)
    assert not after.is_cold(7)
    if expected is None:
        assert 7 not in after
        assert memory.used_bytes == 0
    else:
        found = after.judge(7, 0, expected, expected)
        assert found is not None
        assert found.base_offset == expected
        assert after.judge(7, 0, expected + 1, expected + 1) is None
