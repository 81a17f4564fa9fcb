"""Blocks that were found damaged, and when it is settled that they are so in the store. Pure.

What is damaged on its way, or by a store's cache, comes whole at another time: an object in which damage is
met is quarantined, and is tried again minutes later. At the third look at it, what is damaged still, and
comes the same twice, is carried over as it is: the rest of the object is compacted, and readers of that range
are told by the new object what they were told by the old one.
"""

from __future__ import annotations

from millrace.protocol.crc32c import crc32c
from millrace.s3stream.ids import ObjectId, StreamId
from millrace.s3stream.objects.format import BlockRef

LOOKS_BEFORE = 2
KNOWN_MAX = 10_000


class Damage:
    def __init__(self) -> None:
        self._looks: dict[ObjectId, int] = {}  # that ended at a damaged block
        self._settled: dict[tuple[StreamId, int, int], None] = {}  # by what they hold, wherever they lie

    def has(self, object_id: ObjectId) -> bool:
        return object_id in self._looks

    def on_look(self, object_id: ObjectId) -> None:
        """A look at the object ended at a damaged block."""
        if len(self._looks) >= KNOWN_MAX:
            self._looks.clear()
        self._looks[object_id] = self._looks.get(object_id, 0) + 1

    def is_settled(self, object_id: ObjectId, ref: BlockRef, data: memoryview) -> bool:
        """Of a block that was read twice with the same bytes. A block that was carried over once is known
        again."""
        key = ref.stream_id, ref.start, crc32c(data)
        if key not in self._settled and self._looks.get(object_id, 0) < LOOKS_BEFORE:
            return False
        if len(self._settled) >= KNOWN_MAX:
            self._settled.clear()
        self._settled[key] = None
        return True

    def forget(self, object_id: ObjectId) -> None:
        """It was compacted."""
        self._looks.pop(object_id, None)
