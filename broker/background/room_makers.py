"""What makes room in the store: compaction, and the deletion of what metadata has marked for deletion. They
begin when the node serves, or as soon as the store is full: a start that uploads what its WAL holds, or the
metadata that goes before, would else wait for room that nobody makes.

Not here: what is compacted (s3stream/compaction), what is deleted (object_cleaner.py), who finds the store
full (uploader, metadata backup).
"""

from __future__ import annotations

from millrace.broker.background.compaction import CompactionTask
from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.runtime.tasks import Tasks


class RoomMakers:
    def __init__(self, cleaner: ObjectCleaner | None, compaction: CompactionTask) -> None:
        """`cleaner` None: somebody else deletes."""
        self._cleaner = cleaner
        self._compaction = compaction
        self._tasks = Tasks()
        self._is_begun = False

    def begin(self) -> None:
        """Idempotent; nothing once they were stopped."""
        if not self._is_begun:
            self._is_begun = True
            if self._cleaner is not None:
                self._tasks.start("object cleaner", self._cleaner.run)
            self._tasks.start("compaction", self._compaction.run)

    def on_full(self) -> None:
        """A put was refused for want of room, and waits."""
        self.begin()
        self._compaction.on_full()

    async def stop(self) -> None:
        """Idempotent."""
        self._is_begun = True
        await self._tasks.stop()
