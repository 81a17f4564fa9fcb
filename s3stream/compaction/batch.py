"""Commits of many small compactions as one: of the objects of streams, each of which comes to a few ids.

    compaction of a stream ──► ids, commit ──► batch ──(full, or the round ends)──► one commit

A commit is taken or refused whole. One that is refused is made again part by part, each with the ids that are
in it: what metadata has moved on from refuses its own part alone. Bounded by objects, and by bytes, which
would be written in vain if the process ended before the commit.
"""

from __future__ import annotations

import logging
from typing import Protocol

from millrace.protocol.dataclass import dataclass
from millrace.s3stream.compaction.work import Ids, Work, commit
from millrace.s3stream.errors import CompactionRefused, UploadExpired
from millrace.s3stream.ids import NO_OBJECT, CompactionCommit

log = logging.getLogger(__name__)
OBJECTS_MAX = 256
BYTES_MAX = 1 << 30
# Ids that are prepared at once. Those that are not used run out.
STOCK_COUNT = 32


class Committing(Protocol):
    """Where a compaction gets its ids, and hands over what it came to."""

    async def ids(self, count: int) -> Ids: ...

    async def commit(self, ids: Ids | None, made: CompactionCommit) -> None: ...


class AtOnce:
    """Durable on return, or CompactionRefused, UploadExpired."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def ids(self, count: int) -> Ids:
        return await Ids.prepare(self._work, count)

    async def commit(self, ids: Ids | None, made: CompactionCommit) -> None:
        await commit(self._work, ids, made)


@dataclass(frozen=True, slots=True)
class Part:
    ids: Ids | None
    commit: CompactionCommit

    @property
    def objects_count(self) -> int:
        made = self.commit
        gone = (
            len(made.compacted_ids)
            + len(made.superseded_ids)
            + len(made.linked_ids)
            + len(made.dropped_link_ids)
        )
        return gone + len(made.stream_objects)

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.commit.stream_objects)


class Batch:
    """Durable when `flush` has returned."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._parts: list[Part] = []
        self._stock: Ids | None = None
        self._stock_count = 0
        self.is_done = True  # no part was refused

    async def ids(self, count: int) -> Ids:
        if self._stock is None or self._stock_count < count or not self._stock.is_fresh:
            self._stock_count = max(count, STOCK_COUNT)
            self._stock = await Ids.prepare(self._work, self._stock_count)
        taken = self._stock
        self._stock, self._stock_count = taken.after(count), self._stock_count - count
        return taken

    async def commit(self, ids: Ids | None, made: CompactionCommit) -> None:
        assert made.object_id == NO_OBJECT
        self._parts.append(Part(ids, made))
        is_full = sum(part.objects_count for part in self._parts) >= OBJECTS_MAX
        if is_full or sum(part.size_bytes for part in self._parts) >= BYTES_MAX:
            await self.flush()

    async def flush(self) -> None:
        parts, self._parts = self._parts, []
        if len(parts) > 1 and await self._is_taken(Part(_oldest(parts), _joined(parts)), is_told=False):
            return
        for part in parts:
            self.is_done &= await self._is_taken(part, is_told=True)

    async def _is_taken(self, part: Part, *, is_told: bool) -> bool:
        try:
            await commit(self._work, part.ids, part.commit)
        except (CompactionRefused, UploadExpired) as error:
            if is_told:
                named = [
                    one.range.stream_id for one in part.commit.stream_objects
                ] or part.commit.compacted_ids[:9]
                log.info("compaction of %s is put off: %s: %s", named, type(error).__name__, error)
                self._work.counts.skip("refused" if isinstance(error, CompactionRefused) else "expired")
            return False
        return True


def _joined(parts: list[Part]) -> CompactionCommit:
    return CompactionCommit(
        NO_OBJECT,
        0,
        (),
        tuple(one for part in parts for one in part.commit.stream_objects),
        tuple(key for part in parts for key in part.commit.compacted_ids),
        tuple(key for part in parts for key in part.commit.superseded_ids),
        tuple(key for part in parts for key in part.commit.linked_ids),
        tuple(key for part in parts for key in part.commit.dropped_link_ids),
        trimmed_ids=tuple(dict.fromkeys(key for part in parts for key in part.commit.trimmed_ids)),
    )


def _oldest(parts: list[Part]) -> Ids | None:
    given = [part.ids for part in parts if part.ids is not None]
    return min(given, key=Ids.fresh_until_s) if given else None
