"""SealedStreams: streams that this node has given to their next owner, while its write-ahead log owes some of
them: in metadata they are closed at their true ends, and what lies behind their committed ends is uploaded.

Pure. Not here: sealing and uploading (storage.py). Kept true: a stream is here exactly while its next owner
may meet what is in this node's log alone, and as long it is not opened here again; entries that are owed are
in the log cache, which keeps what is not uploaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.s3stream.errors import StreamFenced
from millrace.s3stream.ids import StreamId
from millrace.s3stream.stream import Stream


class SealedStreams:
    def __init__(self) -> None:
        self._by_id: dict[int, Stream] = {}

    def add(self, stream: Stream) -> None:
        """It was sealed. Nothing is kept of one that is committed to its end."""
        assert stream.is_closed
        assert stream.stream_id not in self._by_id, stream
        if stream.committed_end < stream.next_offset:
            self._by_id[stream.stream_id] = stream

    def note_committed(self, stream_id: int, end: int) -> None:
        """All below `end` is in objects: once that is all of it, nothing is owed."""
        stream = self._by_id.get(stream_id)
        if stream is None:
            return
        stream.committed_end = max(stream.committed_end, min(end, stream.next_offset))
        if stream.committed_end == stream.next_offset:
            del self._by_id[stream_id]

    def drop(self, stream_id: StreamId) -> Stream | None:
        """Metadata has deleted it, or opened it here again."""
        return self._by_id.pop(stream_id, None)

    def at_epoch(self, stream_id: int, epoch: int) -> Stream:
        """The stream as this node had it under that epoch. Raises StreamFenced where nothing is owed of it:
        it was uploaded meanwhile, or never was this node's."""
        stream = self._by_id.get(stream_id)
        if stream is None or stream.epoch != epoch:
            raise StreamFenced(stream_id, epoch, -1 if stream is None else stream.epoch)
        return stream

    def __contains__(self, stream_id: object) -> bool:
        return stream_id in self._by_id

    def __iter__(self) -> Iterator[Stream]:
        """In the order in which they were sealed."""
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)
