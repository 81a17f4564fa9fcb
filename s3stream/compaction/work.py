"""What every compaction is given, and what ends one early. One compaction runs at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import field

from millrace.protocol.dataclass import dataclass
from millrace.runtime.clock import Clock
from millrace.runtime.objectstore import ObjectStore
from millrace.s3stream.compaction.config import CompactionSettings
from millrace.s3stream.compaction.counts import CompactionCounts
from millrace.s3stream.compaction.damage import Damage
from millrace.s3stream.compaction.known_rows import KnownRows
from millrace.s3stream.compaction.plan import SourcesOverlap
from millrace.s3stream.compaction.quarantine import Quarantine
from millrace.s3stream.compaction.sources import Source, SourceUnreadable
from millrace.s3stream.errors import UploadExpired
from millrace.s3stream.ids import CompactionCommit, ObjectId, StreamSetInfo
from millrace.s3stream.metadata import CompactionCatalog
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.ownership import UNOWNED, Ownership

log = logging.getLogger(__name__)
# A compaction whose ids are older than this part of their time is given up before the commit: their files may
# be gone at any moment.
FRESH_PART = 0.75


class Uncovered(Exception):
    """What was written does not cover what is wanted of the sources. Never committed; a fault of ours, told
    loudly."""


@dataclass(slots=True)
class Work:
    """`store` is the one that compaction's traffic goes through, so that it waits behind that of clients."""

    store: ObjectStore
    catalog: CompactionCatalog
    settings: CompactionSettings
    cluster_id: str
    clock: Clock
    counts: CompactionCounts = field(default_factory=CompactionCounts)
    quarantined: Quarantine = field(default_factory=Quarantine)
    damage: Damage = field(default_factory=Damage)
    ownership: Ownership = UNOWNED
    known_rows: KnownRows = field(init=False)

    def __post_init__(self) -> None:
        self.known_rows = KnownRows(self.settings.known_rows_bytes_max)

    def key(self, object_id: ObjectId) -> str:
        return object_key(self.cluster_id, object_id)

    def source(self, object_id: ObjectId, size_bytes: int, writer: int = 0) -> Source:
        """`writer`: the token that metadata names for it."""
        return Source(
            self.store, self.key(object_id), object_id, size_bytes, self.counts, self.damage, writer
        )

    def is_quarantined(self, object_id: ObjectId) -> bool:
        return self.quarantined.has(object_id, asyncio.get_running_loop().time())

    def stream_sets(self) -> list[StreamSetInfo]:
        """Those that this node may compact, newest data last; each once, whatever the metadata says."""
        return list({one.object_id: one for one in self.catalog.stream_set_objects()}.values())

    def is_set_quarantined(self, one: StreamSetInfo) -> bool:
        return self.is_quarantined(one.object_id)

    def quarantine(
        self, object_ids: Iterable[ObjectId], reason: str, error: Exception, *, is_growing: bool = True
    ) -> None:
        """They take part in nothing until they are tried again."""
        now_s = asyncio.get_running_loop().time()
        is_new = [
            object_id
            for object_id in object_ids
            if self.quarantined.put(object_id, now_s, is_growing=is_growing)
        ]
        self.counts.skip(reason)
        if is_new:
            log.warning("compaction leaves objects %s as they are for now: %s", is_new, error)

    def note(self, error: SourceUnreadable | SourcesOverlap) -> None:
        if isinstance(error, SourcesOverlap):
            self.quarantine(error.object_ids, "overlap", error)
        elif error.is_away:
            self.quarantine([error.object_id], "unanswered", error, is_growing=False)
        else:
            self.quarantine([error.object_id], "unreadable", error)


class Ids:
    """Ids prepared for one compaction."""

    def __init__(self, first: ObjectId, fresh_until_s: float) -> None:
        self.first = first
        self._fresh_until_s = fresh_until_s

    @staticmethod
    async def prepare(work: Work, count: int) -> Ids:
        ttl_ms = work.settings.prepare_ttl_ms
        since_s = asyncio.get_running_loop().time()
        return Ids(await work.catalog.prepare(count, ttl_ms), since_s + ttl_ms / 1000 * FRESH_PART)

    def after(self, count: int) -> Ids:
        """Those that are left when so many are taken."""
        return Ids(ObjectId(self.first + count), self._fresh_until_s)

    def fresh_until_s(self) -> float:
        return self._fresh_until_s

    @property
    def is_fresh(self) -> bool:
        """Not too much of their time has passed."""
        return asyncio.get_running_loop().time() < self._fresh_until_s

    def check_fresh(self) -> None:
        """UploadExpired when they are not."""
        if not self.is_fresh:
            raise UploadExpired(self.first)


async def commit(work: Work, ids: Ids | None, commit: CompactionCommit) -> None:
    """Readers are sent to the new objects on return; or CompactionRefused, UploadExpired: nothing was
    changed."""
    await work.ownership.verify(asyncio.get_running_loop().time())
    if ids is not None:
        ids.check_fresh()
    await work.catalog.commit_compaction(commit)
    counts = work.counts
    counts.commits += 1
    gone = len(commit.compacted_ids) + len(commit.superseded_ids) + len(commit.linked_ids)
    made = len(commit.stream_objects) + (commit.size_bytes > 0)
    counts.objects_in += gone
    counts.objects_out += made
    work.known_rows.forget((*commit.compacted_ids, *commit.linked_ids))
    log.info("compaction: %d objects became %d", gone, made)
