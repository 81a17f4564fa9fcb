"""Aligned memory: alignment, reuse only without views, and bounds on what the pool keeps."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from millrace.runtime.disk.aligned import PAGE_BYTES, Arena, ArenaPool

KIB = 1024


def test_arenas_are_page_aligned() -> None:
    """Every arena begins on a page."""
    for size in (4096, 64 * KIB, 3 * 4096):
        arena = Arena(size)
        assert ctypes.addressof(ctypes.c_char.from_buffer(arena.memory)) % PAGE_BYTES == 0
        assert len(arena.view) == size


def test_a_view_keeps_an_arena_from_reuse() -> None:
    """A retired arena comes again only when the last view of it, or slice of a view, has gone."""
    pool = ArenaPool(64 * KIB)
    arena = pool.take()
    held = arena.view[100:200].toreadonly()[10:20]
    memory = arena.memory
    pool.retire(arena)
    del arena
    assert pool.take().memory is not memory
    held.release()
    assert pool.take().memory is memory
    assert (pool.made_count, pool.reused_count) == (2, 1)


def test_arenas_that_are_held_do_not_hide_free_ones() -> None:
    """The oldest come first; a few that stay viewed keep their place, and the next ones are found behind
    them."""
    pool = ArenaPool(64 * KIB)
    arenas = [pool.take() for _ in range(6)]
    held = [arena.view[:1] for arena in arenas[:3]]
    memories = [arena.memory for arena in arenas]
    for arena in arenas:
        pool.retire(arena)
    del arena, arenas
    taken = [pool.take().memory for _ in range(3)]
    assert sorted(map(id, taken)) == sorted(map(id, memories[3:]))
    held.clear()
    assert pool.take().memory in memories[:3]
    assert (pool.made_count, pool.reused_count) == (6, 4)


def test_a_view_outlives_the_pool() -> None:
    """What is held stays as it was when the pool is gone."""
    pool = ArenaPool(64 * KIB)
    held = []
    for number in range(10):
        arena = pool.take()
        arena.view[:5] = b"%05d" % number
        held.append(arena.view[:5])
        pool.retire(arena)
    del arena, pool
    assert [bytes(view) for view in held] == [b"%05d" % number for number in range(10)]


def test_a_larger_piece_is_made_and_not_kept() -> None:
    """A request beyond the pool's size gets memory of its own, which the pool does not collect."""
    pool = ArenaPool(64 * KIB)
    arena = pool.take(100_000)
    assert arena.size_bytes == 102_400
    pool.retire(arena)
    assert pool.kept_bytes == 0


def burst(pool: ArenaPool, count: int) -> None:
    """So many arenas in use at once, then let go."""
    arenas = [pool.take() for _ in range(count)]
    for arena in arenas:
        pool.retire(arena)


def test_sweeps_give_memory_back_that_nobody_needs() -> None:
    """What the last burst needed stays for the next; what was not needed between two sweeps goes, by
    halves."""
    pool = ArenaPool(64 * KIB)
    burst(pool, 16)
    pool.sweep()
    assert pool.kept_bytes == 16 * 64 * KIB
    burst(pool, 16)
    pool.sweep()
    assert (pool.kept_bytes, pool.made_count) == (16 * 64 * KIB, 16)
    kept = []
    for _ in range(6):
        pool.sweep()
        kept.append(pool.kept_bytes // (64 * KIB))
    assert kept == [8, 4, 2, 1, 0, 0]


def makers(besides: Sequence[threading.Thread] = ()) -> list[threading.Thread]:
    """Threads that make arenas, but for those of other pools."""
    return [one for one in threading.enumerate() if one.name.startswith("arenas") and one not in besides]


def test_arenas_made_ahead_are_as_those_made_when_needed() -> None:
    """A thread makes the next ones once one was needed; they are whole, distinct and zeroed, and the pool
    ends with its thread."""
    others = makers()
    pool = ArenaPool(64 * KIB, ahead_count=2)
    assert not makers(others)
    arenas = [pool.take() for _ in range(50)]
    assert len({id(arena.memory) for arena in arenas}) == 50
    assert all(bytes(arena.view) == bytes(64 * KIB) for arena in arenas)
    assert pool.made_count == 50
    for arena in arenas:
        assert not arena.is_viewed()
    assert len(makers(others)) == 1
    pool.close()
    assert not makers(others)
