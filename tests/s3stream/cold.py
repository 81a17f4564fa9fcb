"""An engine whose every read is of objects: all that is durable is uploaded, the WAL trimmed and the caches
emptied before each.

Nothing is put in the place of a part: the log cache is what it is after eviction, which a reader may meet at
any time.
"""

from __future__ import annotations

from typing import Any

from millrace.s3stream.objects.format import Entry
from millrace.s3stream.storage import Storage


class ColdStorage(Storage):
    def read_cached(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[Entry] | None:
        """Nothing is at hand at once; whoever asks goes on to `fetch`."""
        return None

    async def fetch(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[Entry]:
        await self._go_cold(stream_id)
        return await super().fetch(stream_id, start, end, max_bytes)

    async def _go_cold(self, stream_id: int) -> None:
        while self._uploaded_end < self.log_cache.active.wal_end:
            self._force()
            await self._wait_for(self._uploaded)
        self.drop_caches()
        assert self._wal.used_bytes == self._appended_end - self._wal.confirmed_end, "the WAL is not trimmed"
        assert self.log_cache.start_of(stream_id) is None, "the log cache is not empty"
        assert self.block_cache.size_bytes == 0, "the block cache is not empty"


class ColdEngines:
    """Makes the engines of one test and says at its end whether they were cold."""

    def __init__(self) -> None:
        self._made: list[ColdStorage] = []

    def make(self, *parts: Any, **named: Any) -> Storage:
        engine = ColdStorage(*parts, **named)
        self._made.append(engine)
        return engine

    def check(self) -> None:
        assert all(engine.reads_from_log_cache == 0 for engine in self._made), (
            "a read was answered from the log cache"
        )
        assert sum(engine.block_cache.reads_from_objects for engine in self._made), (
            "nothing was read from objects"
        )
