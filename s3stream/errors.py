"""The stream engine's errors.

    Fenced      <- StreamFenced       a newer epoch owns the stream, or the node
    Unavailable <- RangeOwed          an earlier owner's write-ahead log alone has it, and does not give it
    MillraceError
                <- StreamMissing      no stream has that id: never created, or deleted
                <- OffsetTrimmed      asked for below the stream's start
                <- OffsetBeyondEnd    asked for above the stream's confirmed end
                <- CompactionRefused  metadata moved on since a compaction was planned: plan anew
                <- UploadExpired      an object was not committed within the ttl it was prepared with: prepare
                                      another, put again
    Corrupt     <- ObjectCorrupt      stored bytes fail their check or their layout; never retried
                <- OffsetGap          entries of a stream do not continue: what lay between was lost
                <- RangeLost          an operator gave it up with a write-ahead log: readers step over it

StreamMissing and the two offset errors have no remedy but another question: the caller turns them into an
answer. `ObjectMissing` (Corrupt) is the store's own, in runtime/objectstore.py.
"""

from __future__ import annotations

from millrace.runtime.errors import Corrupt, Fenced, MillraceError, Unavailable


class StreamFenced(Fenced):
    """`found_epoch` is -1 when the one who refused did not say."""

    def __init__(self, stream_id: int, own_epoch: int, found_epoch: int = -1) -> None:
        super().__init__(stream_id, own_epoch, found_epoch)
        self.stream_id = stream_id
        self.own_epoch = own_epoch
        self.found_epoch = found_epoch

    def __str__(self) -> str:
        what = "the node" if self.stream_id < 0 else f"stream {self.stream_id}"
        return f"a newer owner has taken {what}: its epoch is above our own, {self.own_epoch}"


class StreamMissing(MillraceError):
    def __init__(self, stream_id: int) -> None:
        super().__init__(stream_id)
        self.stream_id = stream_id

    def __str__(self) -> str:
        return f"there is no stream {self.stream_id}: it was never made, or was deleted"


class OffsetTrimmed(MillraceError):
    def __init__(self, stream_id: int, offset: int, start: int) -> None:
        super().__init__(stream_id, offset, start)
        self.stream_id = stream_id
        self.offset = offset
        self.start = start

    def __str__(self) -> str:
        return f"offset {self.offset} of stream {self.stream_id} lies below its start, {self.start}"


class OffsetBeyondEnd(MillraceError):
    def __init__(self, stream_id: int, offset: int, end: int) -> None:
        super().__init__(stream_id, offset, end)
        self.stream_id = stream_id
        self.offset = offset
        self.end = end

    def __str__(self) -> str:
        return f"offset {self.offset} of stream {self.stream_id} lies beyond its end, {self.end}"


class ObjectCorrupt(Corrupt):
    """`key` is "" when the bytes came from elsewhere (a WAL payload), `position` is where in them the check
    failed. `offsets`: the [start, end) of its stream that a damaged block holds, where that is known."""

    def __init__(
        self, reason: str, position: int = 0, key: str = "", offsets: tuple[int, int] | None = None
    ) -> None:
        super().__init__(reason, position, key)
        self.offsets = offsets
        self.reason = reason
        self.position = position
        self.key = key

    def __str__(self) -> str:
        return (
            f"{f'object {self.key}' if self.key else 'an entry'} is damaged at byte {self.position}: "
            f"{self.reason}"
        )


class UploadExpired(MillraceError):
    def __init__(self, object_id: int) -> None:
        super().__init__(object_id)
        self.object_id = object_id

    def __str__(self) -> str:
        return f"object {self.object_id} was not committed within the time that it was prepared for"


class CompactionRefused(MillraceError):
    """Metadata has moved on since the plan was made. Nothing was changed; a new plan is to be made."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OffsetGap(Corrupt):
    def __init__(self, stream_id: int, expected: int, found: int) -> None:
        super().__init__(stream_id, expected, found)
        self.stream_id = stream_id
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"stream {self.stream_id} should go on at offset {self.expected}, and goes on at {self.found}"


class RangeOwed(Unavailable):
    """[start, end) of a stream, in which the offset asked for lies."""

    def __init__(self, stream_id: int, start: int, end: int, why: str = "") -> None:
        super().__init__(stream_id, start, end, why)
        self.stream_id = stream_id
        self.start = start
        self.end = end
        self.why = why

    def __str__(self) -> str:
        where = "in the write-ahead log of an earlier owner alone"
        why = f": {self.why}" if self.why else ""
        return f"offsets [{self.start}, {self.end}) of stream {self.stream_id} are {where}{why}"


class RangeLost(Corrupt):
    """[start, end) of a stream, in which the offset asked for lies. It never leaves the engine."""

    def __init__(self, stream_id: int, start: int, end: int) -> None:
        super().__init__(stream_id, start, end)
        self.stream_id = stream_id
        self.start = start
        self.end = end

    def __str__(self) -> str:
        return f"offsets [{self.start}, {self.end}) of stream {self.stream_id} were given up"
