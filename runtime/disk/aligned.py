"""Page-aligned memory for direct I/O: arenas of anonymous memory and the pool they come from.

An arena is handed to one writer, filled once from front to back, and given back with `retire` when nothing
more will be written to it. Readers may still hold views of it, for seconds or minutes: the pool probes, and
hands an arena out again only when no memoryview of it lives. It is not an allocator of single buffers and it
does not bound what views pin: whoever holds views is charged for them.

Invariant: two owners never hold the same arena, and an arena with a live view is never handed out.
"""

from __future__ import annotations

import mmap
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

PAGE_BYTES = 4096
ARENA_BYTES = 4 * 1024 * 1024
HUGE_PAGE_BYTES = 2 * 1024 * 1024

# Probes per call: each costs about half a microsecond, and readers let go roughly in the order of writing.
_PROBES = 8
_MADV_POPULATE_WRITE = 23


def aligned_memory(size_bytes: int) -> mmap.mmap:
    """Zeroed, page-aligned, private memory. It goes back to the system when its last view dies."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size_bytes)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size_bytes >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        # First touches of fresh memory were a quarter of the broker's CPU at full rate; a large page is one
        # fault for 512.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Arena:
    """One piece of aligned memory. `view` is the writer's; every other view is a slice of it."""

    __slots__ = ("memory", "size_bytes", "view")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.memory = aligned_memory(size_bytes)
        self.view = memoryview(self.memory)

    def is_viewed(self) -> bool:
        """Whether any view lives, but for the writer's own. Resizing to the same size is refused exactly
        then."""
        self.view.release()
        try:
            self.memory.resize(self.size_bytes)
        except BufferError:
            return True
        except (SystemError, ValueError, OSError):
            pass  # the platform cannot resize, and says so only after it has looked for views
        self.view = memoryview(self.memory)
        return False


class ArenaMaker:
    """Makes a few arenas ahead of their use, in a thread, with every page touched.

    First touches are the dearest part of memory: on a virtual machine whose host gives pages out lazily 140
    us for 64 KiB, more than all else that a produce request of that size costs. The thread waits in the
    kernel and leaves the interpreter to others.
    """

    def __init__(self, arena_bytes: int, ahead_count: int) -> None:
        self._arena_bytes = arena_bytes
        self._ahead_count = ahead_count
        self._asked_count = 0
        self._made: deque[Arena] = deque()  # filled by the thread
        self._threads: ThreadPoolExecutor | None = None

    def take(self) -> Arena:
        """Never waits: where none is ready it is made here and now. Nothing is made ahead before the first is
        taken."""
        try:
            arena = self._made.popleft()
            self._asked_count -= 1
        except IndexError:
            arena = Arena(self._arena_bytes)
        while self._asked_count < self._ahead_count:
            self._ask()
        return arena

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _ask(self) -> None:
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(1, thread_name_prefix="arenas")
        self._asked_count += 1
        self._threads.submit(self._make)

    def _make(self) -> None:
        arena = Arena(self._arena_bytes)
        _touch(arena)
        self._made.append(arena)


def _touch(arena: Arena) -> None:
    """Every page is there on return, where the kernel can do that (Linux 5.14)."""
    import ctypes

    try:
        madvise = ctypes.CDLL(None).madvise  # CDLL: others have the interpreter meanwhile
    except (OSError, AttributeError):
        return
    start = ctypes.c_char.from_buffer(arena.memory)
    madvise(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(arena.size_bytes), _MADV_POPULATE_WRITE)


class ArenaPool:
    """Arenas of one size. One that nobody views any more is used again before a new one is made: memory that
    was touched before is many times cheaper. What was not needed between two sweeps goes back to the system
    by halves."""

    def __init__(self, arena_bytes: int = ARENA_BYTES, *, ahead_count: int = 0) -> None:
        """`ahead_count`: so many new ones are made ready in a thread, once new ones are needed at all."""
        self.arena_bytes = arena_bytes
        self._maker = ArenaMaker(arena_bytes, ahead_count)
        self._retired: deque[Arena] = deque()  # in the order of writing
        self._free: list[Arena] = []
        self._unneeded_count = 0  # the least that was free since the last sweep
        self.made_count = 0
        self.reused_count = 0

    @property
    def kept_bytes(self) -> int:
        return (len(self._retired) + len(self._free)) * self.arena_bytes

    def take(self, needed_bytes: int = 0) -> Arena:
        """An arena of at least `needed_bytes`; never waits. Its bytes are whatever the last owner left."""
        if needed_bytes > self.arena_bytes:
            self.made_count += 1
            return Arena(-(-needed_bytes // PAGE_BYTES) * PAGE_BYTES)
        if not self._free:
            self._probe(_PROBES)
        if self._free:
            self.reused_count += 1
            arena = self._free.pop()
            self._unneeded_count = min(self._unneeded_count, len(self._free))
            return arena
        self._unneeded_count = 0
        self.made_count += 1
        return self._maker.take()

    def retire(self, arena: Arena) -> None:
        """The writer is done with it; views of it may live on."""
        if arena.size_bytes == self.arena_bytes:
            self._retired.append(arena)

    def sweep(self) -> None:
        """Looks at every retired arena, and gives back half of those that nobody needed since the last
        time."""
        del self._free[: (self._unneeded_count + 1) // 2]
        self._probe(len(self._retired))
        self._unneeded_count = len(self._free)

    def close(self) -> None:
        self._maker.close()

    def _probe(self, count: int) -> None:
        """Looks at the oldest `count`, and leaves those that are viewed in their place."""
        viewed: list[Arena] = []
        for _ in range(min(count, len(self._retired))):
            arena = self._retired.popleft()
            (viewed if arena.is_viewed() else self._free).append(arena)
        self._retired.extendleft(reversed(viewed))
