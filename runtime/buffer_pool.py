"""Memory lent in buffers, each of which comes back by itself when its last view is gone, and is lent again.

Bytes from the store are read straight into such buffers. Memory that was touched before is worth it: a first
touch was measured at 2 us a page on a virtual machine, ten times what it costs to read a page's bytes into
it. Small buffers are plain bytearrays, which the allocator reuses.

    lend ─► buffer, views of it anywhere ─► its last view dies, in whichever thread ─► free ─► lent again, or
    given back to the system

Not here: how much may be lent (the owner decides, and drops what it holds). Kept true:
  * a buffer is never lent twice at once: whoever may still write into it holds a view;
  * what the owner let go and others still view is counted (`released_bytes`), so that the owner can make up
    for it;
  * free and lent memory together stay within the capacity as long as what is lent does: what is free in the
    wrong size goes first.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from millrace.runtime.disk.aligned import PAGE_BYTES, aligned_memory

if TYPE_CHECKING:
    import mmap

# Pieces below this are not kept: their memory is the allocator's.
KEPT_BYTES_MIN = 64 << 10
# A size is rounded up to one in so many of its power of two: at most an eighth of a buffer is unused.
STEPS = 8


def buffer_size(size_bytes: int) -> int:
    """What a buffer for so many bytes takes."""
    if size_bytes < KEPT_BYTES_MIN:
        return size_bytes
    step = max(PAGE_BYTES, (1 << (size_bytes.bit_length() - 1)) // STEPS)
    return -(-size_bytes // step) * step


class PooledBuffer:
    """`view` is exactly as long as was asked for; `size_bytes` is what it pins while it, or any slice of it,
    lives."""

    __slots__ = ("_lease", "size_bytes", "view")

    def __init__(self, view: memoryview, size_bytes: int, lease: _Lease | None) -> None:
        self.view = view
        self.size_bytes = size_bytes
        self._lease = lease

    def release(self) -> None:
        """The owner counts it no longer, and drops it after this; whoever views it may go on. A second time
        it does nothing."""
        if self._lease is not None:
            self._lease.set_released(True)

    def retain(self) -> None:
        """The owner counts it again."""
        if self._lease is not None:
            self._lease.set_released(False)


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """Of one memory; lives as long as it is lent, in the pool's table."""

    __slots__ = ("is_released", "memory", "pool")

    memory: mmap.mmap
    pool: BufferPool
    is_released: bool

    def set_released(self, is_released: bool) -> None:
        if self.is_released is not is_released and self() is not None:
            self.is_released = is_released
            self.pool.on_release(len(self.memory) if is_released else -len(self.memory))


class BufferPool:
    """For one thread, but that buffers may come back in others."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._free: dict[int, list[mmap.mmap]] = {}
        self._leases: dict[int, _Lease] = {}  # keeps them alive, so that they are told
        self._returned: deque[_Lease] = deque()  # filled by whoever drops the last view
        self._free_bytes = self._used_bytes = self._released_bytes = 0
        self.made_count = self.reused_count = 0

    @property
    def used_bytes(self) -> int:
        self._collect()
        return self._used_bytes

    @property
    def released_bytes(self) -> int:
        """Let go by the owner, and still viewed."""
        self._collect()
        return self._released_bytes

    @property
    def free_bytes(self) -> int:
        self._collect()
        return self._free_bytes

    def acquire(self, size_bytes: int) -> PooledBuffer:
        """Never waits, and never refuses. Its bytes are whatever the last one left."""
        if size_bytes < KEPT_BYTES_MIN:
            return PooledBuffer(memoryview(bytearray(size_bytes)), size_bytes, None)
        self._collect()
        whole_bytes = buffer_size(size_bytes)
        memory = self._take(whole_bytes)
        # An exporter of its own for each lease: it dies with the last view, and its weak reference is told.
        exporter = _exporter(whole_bytes).from_buffer(memory)
        lease = _Lease(exporter, self._returned.append)
        lease.memory, lease.pool, lease.is_released = memory, self, False
        self._leases[id(lease)] = lease
        self._used_bytes += whole_bytes
        return PooledBuffer(memoryview(exporter).cast("B")[:size_bytes], whole_bytes, lease)

    def on_release(self, size_bytes: int) -> None:
        self._released_bytes += size_bytes

    def _take(self, whole_bytes: int) -> mmap.mmap:
        found = self._free.get(whole_bytes)
        if found:
            self.reused_count += 1
            self._free_bytes -= whole_bytes
            return found.pop()
        while self._free_bytes and self._used_bytes + self._free_bytes + whole_bytes > self._capacity_bytes:
            self._give_one_back()
        self.made_count += 1
        return aligned_memory(whole_bytes)

    def _give_one_back(self) -> None:
        size_bytes, kept = next(iter(self._free.items()))
        if kept:
            self._free_bytes -= len(kept.pop())
        if not kept:
            del self._free[size_bytes]

    def _collect(self) -> None:
        while self._returned:
            lease = self._returned.popleft()
            size_bytes = len(lease.memory)
            del self._leases[id(lease)]
            self._used_bytes -= size_bytes
            if lease.is_released:
                self._released_bytes -= size_bytes
            if self._used_bytes + self._free_bytes + size_bytes <= self._capacity_bytes:
                self._free_bytes += size_bytes
                self._free.setdefault(size_bytes, []).append(lease.memory)


_EXPORTERS: dict[int, Any] = {}


def _exporter(size_bytes: int) -> Any:
    found = _EXPORTERS.get(size_bytes)
    if found is None:
        import ctypes  # not at the start: it takes some milliseconds

        found = _EXPORTERS[size_bytes] = ctypes.c_ubyte * size_bytes
    return found
