"""What the stream engine asks of the cluster's metadata. Declared here, implemented above
(broker/controller_client.py).

Every verb is retried by the implementation until it is answered (Unavailable never surfaces before close);
refusals surface as StreamFenced (a newer epoch owns the stream or the node) or StreamMissing. Verbs are
idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from millrace.s3stream.ids import (
    CompactionCommit,
    ObjectHint,
    ObjectId,
    OpenedStream,
    StreamBounds,
    StreamId,
    StreamObjectInfo,
    StreamRange,
    StreamSetInfo,
    UploadCommit,
)
from millrace.s3stream.objects.format import Entry


class StreamCatalog(Protocol):
    async def opening_streams(self) -> list[OpenedStream]:
        """Every stream this node has open, and those of which its WAL owes a range (with their sealed ends),
        asked once at start with this node's new epoch: older epochs of the node are fenced from then on."""
        ...

    async def trim(self, stream_id: StreamId, epoch: int, new_start: int) -> None: ...

    async def close(self, stream_id: StreamId, epoch: int) -> None:
        """The stream's end becomes its committed end: everything must have been uploaded and committed
        before."""
        ...

    async def seal(self, stream_id: StreamId, epoch: int, start: int, end: int) -> bool:
        """Closes the stream, trimmed to `start`, at `end`: all below is durable in this node's WAL, which
        owes from now on what of it is not committed. False, and nothing changed, where that cannot be: all of
        the stream has to be committed, and then it is closed."""
        ...


class ObjectCatalog(Protocol):
    async def prepare(self, count: int, ttl_ms: int) -> ObjectId:
        """Reserves `count` consecutive ids and gives the first. Objects not committed within `ttl_ms` are
        deleted from the store."""
        ...

    async def commit_upload(self, commit: UploadCommit) -> None:
        """On return `candidates` knows what was committed. UploadExpired when an id of it was not prepared,
        or no longer is."""
        ...

    def candidates(self, stream_id: StreamId, offset: int, limit: int) -> Sequence[ObjectHint]:
        """Committed objects that may hold `offset` and what follows, in offset order; empty when `offset` is
        not committed.

        Those that may hold `offset` itself come first and all of them, four at most; together with what
        follows about `limit`. From the local image: no waiting.
        """
        ...


class OwedReader(Protocol):
    """Gives what earlier owners' write-ahead logs alone have of a stream (broker/owed_reads.py)."""

    async def read(self, wanted: StreamRange, max_bytes: int) -> Sequence[Entry]:
        """Entries from the one that holds the start of `wanted` on, the first whole, further ones while they
        fit; none when metadata says by now that it is owed no more: who asks looks there again. Their
        checksums, stream and epoch were compared. Raises RangeOwed where they are not to be had in time.
        Cancelling loses nothing."""
        ...


class CompactionCatalog(Protocol):
    """What compaction asks beside. Lists are of the local image: stale by a little, never wrong about what
    they name."""

    async def prepare(self, count: int, ttl_ms: int) -> ObjectId:
        """As ObjectCatalog."""
        ...

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        """On return readers are sent to the new objects. CompactionRefused when a source is no longer
        committed, or the new objects do not cover what of the sources is still wanted: nothing was changed,
        and the plan is to be thrown away."""
        ...

    def stream_set_objects(self) -> Sequence[StreamSetInfo]:
        """Those that this node may compact, newest data last: its own, and those of nodes that are gone whose
        heir it is."""
        ...

    def stream_objects(self, stream_id: StreamId) -> Sequence[StreamObjectInfo]:
        """In offset order. Between two of them there may be data that is in stream-set objects."""
        ...

    def open_streams(self) -> Sequence[StreamId]:
        """Streams this node has open: the ones whose objects it may compact."""
        ...

    def stream_bounds(self, stream_ids: Sequence[StreamId]) -> Mapping[StreamId, StreamBounds]:
        """Of those that exist."""
        ...
