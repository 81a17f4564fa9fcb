"""Index rows of the objects that compaction wrote lately, so that to link them it need not read their
indexes. Pure; bounded by bytes."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.s3stream.ids import ObjectId

OVERHEAD_BYTES = 200


class KnownRows:
    """What was written first goes first. Ids are never given twice, so that what is known of one stays
    true."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rows: dict[ObjectId, bytes] = {}
        self.held_bytes = 0

    def put(self, object_id: ObjectId, rows: bytes) -> None:
        if object_id in self._rows:
            return
        self._rows[object_id] = rows
        self.held_bytes += len(rows) + OVERHEAD_BYTES
        while self.held_bytes > self._bytes_max:
            self._drop(next(iter(self._rows)))

    def get(self, object_id: ObjectId) -> bytes | None:
        return self._rows.get(object_id)

    def forget(self, object_ids: Iterable[ObjectId]) -> None:
        """They are linked, or gone."""
        for object_id in object_ids:
            if object_id in self._rows:
                self._drop(object_id)

    def _drop(self, object_id: ObjectId) -> None:
        self.held_bytes -= len(self._rows.pop(object_id)) + OVERHEAD_BYTES
