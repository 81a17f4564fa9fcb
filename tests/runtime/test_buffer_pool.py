"""Memory that is lent: nobody has it twice, it comes back by itself, and what is kept of it is bounded."""

from __future__ import annotations

import gc
import random
import threading

import pytest

from millrace.runtime.buffer_pool import KEPT_BYTES_MIN, BufferPool, buffer_size
from tests.patience import PATIENCE_S

KIB, MIB = 1024, 1 << 20


def test_a_piece_comes_back_with_its_last_view() -> None:
    """A slice of a slice keeps it; when that is gone, without any collection of garbage, the very same memory
    is lent again."""
    pool = BufferPool(4 * MIB)
    gc.disable()
    try:
        buffer = pool.acquire(MIB)
        buffer.view[:3] = b"abc"
        small = buffer.view[1:][:2]
        del buffer
        assert (pool.used_bytes, pool.free_bytes) == (MIB, 0)
        assert small == b"bc"
        del small
        assert (pool.used_bytes, pool.free_bytes) == (0, MIB)
        again = pool.acquire(MIB)
        assert bytes(again.view[:3]) == b"abc"
        assert (pool.made_count, pool.reused_count) == (1, 1)
    finally:
        gc.enable()


def test_what_was_let_go_and_is_viewed_is_counted() -> None:
    """By the owner's word and back; it ends with the last view. Said twice it counts once."""
    pool = BufferPool(4 * MIB)
    buffer = pool.acquire(MIB)
    reply = buffer.view[:10]
    buffer.release()
    buffer.release()
    assert pool.released_bytes == MIB
    buffer.retain()
    assert pool.released_bytes == 0
    buffer.release()
    del buffer
    assert pool.released_bytes == MIB
    del reply
    assert (pool.released_bytes, pool.used_bytes) == (0, 0)


def test_a_view_that_dies_in_another_thread_brings_it_back() -> None:
    """As one does that a cancelled read left to its thread."""
    pool = BufferPool(4 * MIB)
    held, may_end = [pool.acquire(MIB).view], threading.Event()

    def read() -> None:
        may_end.wait(PATIENCE_S)
        held.clear()

    thread = threading.Thread(target=read)
    thread.start()
    assert pool.used_bytes == MIB
    may_end.set()
    thread.join()
    assert (pool.used_bytes, pool.free_bytes) == (0, MIB)


@pytest.mark.parametrize(
    "size_bytes", [1, KEPT_BYTES_MIN - 1, KEPT_BYTES_MIN, 100_000, MIB - 1, MIB, MIB + 1, 9_000_000]
)
def test_a_piece_wastes_little(size_bytes: int) -> None:
    """Its view is as long as was asked for, and it pins at most an eighth more and a page."""
    pool = BufferPool(64 * MIB)
    buffer = pool.acquire(size_bytes)
    assert len(buffer.view) == size_bytes <= buffer.size_bytes == buffer_size(size_bytes)
    assert buffer.size_bytes <= size_bytes * 9 // 8 + 4096
    assert not buffer.view.readonly


def test_memory_stays_within_the_capacity() -> None:
    """Over many sizes, what is lent and what is free make up no more than the capacity, nor is anything lent
    twice."""
    chance, pool = random.Random(5), BufferPool(16 * MIB)
    held: list[tuple[int, memoryview]] = []
    for number in range(3000):
        while sum(buffer_size(len(view)) for _, view in held) > 12 * MIB:
            held.pop(chance.randrange(len(held)))
        buffer = pool.acquire(chance.choice((KEPT_BYTES_MIN, 200 * KIB, 700 * KIB, MIB, 2 * MIB)))
        buffer.view[:4] = buffer.view[-4:] = number.to_bytes(4, "big")
        held.append((number, buffer.view))
        del buffer
        assert pool.used_bytes == sum(buffer_size(len(view)) for _, view in held)
        assert pool.used_bytes + pool.free_bytes <= 16 * MIB
        assert all(view[:4] == view[-4:] == number.to_bytes(4, "big") for number, view in held)
    assert pool.reused_count > 1000
    buffers = [pool.acquire(MIB) for _ in range(40)]
    assert pool.used_bytes >= 40 * MIB, "it never refuses"
    buffers.clear()
    held.clear()
    assert pool.used_bytes == 0
    assert 15 * MIB < pool.free_bytes <= 16 * MIB
