"""Where the tests of the stream engine construct things: an in-memory WAL, catalog and store as its edges,
and the engine on them.

The edges outlive the engine, as in life: after a crash a new engine is built on the same `World`, whose WAL
holds what was confirmed (and as much of the rest as the test says) and whose catalog holds what was
committed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from millrace.protocol.crc32c import crc32c
from millrace.runtime.disk import Buffer
from millrace.runtime.objectstore import (
    Keys,
    Lend,
    MultipartUpload,
    ObjectEntry,
    ObjectMissing,
    PreconditionFailed,
    UnfinishedUpload,
    fill,
)
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import StreamFenced, StreamMissing, UploadExpired
from millrace.s3stream.ids import (
    LOST_RANGE,
    NO_OBJECT,
    ObjectHint,
    ObjectId,
    ObjectKind,
    OpenedStream,
    StreamId,
    StreamRange,
    UploadCommit,
)
from millrace.s3stream.objects.format import Entry
from millrace.s3stream.storage import Storage
from millrace.s3stream.stream import Append, Stream
from millrace.s3stream.traffic import EngineStores
from millrace.wal.errors import WalClosed, WalFull
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark
from millrace.wal.log import WalRecord, WriteAheadLog

T = TypeVar("T")
CLUSTER_ID = "cluster"
RECORD_OVERHEAD_BYTES = 24


class MemoryWal:
    """A log whose confirmation comes when the test says so, or by itself in the next iteration of the loop
    (`is_auto`)."""

    def __init__(
        self, capacity_bytes: int = 1 << 30, *, is_auto: bool = True, records: Sequence[WalRecord] = ()
    ) -> None:
        self.capacity_bytes = self.max_record_bytes = capacity_bytes
        self.is_auto = is_auto
        self.records = list(records)
        self.end = records[-1].end if records else 0
        self.trim_point = records[0].position if records else 0
        self._confirmed_end = self.end
        self._on_confirmed: Callable[[int], None] | None = None
        self._on_failed: Callable[[BaseException], None] | None = None
        self._is_due = False
        self.is_closed = False
        self.is_new = not records
        self.wal_id = NO_WAL_ID
        self.has_given_up = False
        self.record_bytes_min = 0  # above zero: a device that pads each record to its block
        self.trims = 0

    @property
    def found_mark(self) -> MetadataMark:
        return NO_MARK

    def see_metadata(self, mark: MetadataMark) -> None:
        """It has no header."""

    async def mark_metadata(self) -> None:
        """It has no header."""

    @property
    def confirmed_end(self) -> int:
        return self._confirmed_end

    @property
    def used_bytes(self) -> int:
        return self.end - self.trim_point

    @property
    def blocked_reason(self) -> str:
        return ""

    @property
    def room_bytes(self) -> int:
        left_bytes = self.capacity_bytes - self.used_bytes
        return left_bytes * 64 // max(self.record_bytes_min, 64 + RECORD_OVERHEAD_BYTES)

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        for record in list(self.records):
            yield record

    def start(self, on_confirmed: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        self._on_confirmed, self._on_failed = on_confirmed, on_failed

    def append(self, *parts: Buffer, tail_crc: int | None = None) -> WalRecord:
        if self._on_confirmed is None or self.is_closed:
            raise WalClosed
        assert tail_crc in (None, crc32c(parts[-1]))
        data = b"".join(parts)
        size = max(self.record_bytes_min, len(data) + RECORD_OVERHEAD_BYTES)
        if self.used_bytes + size > self.capacity_bytes:
            raise WalFull(len(data), self.room_bytes)
        record = WalRecord(self.end, self.end + size, memoryview(data))
        self.records.append(record)
        self.end = record.end
        if self.is_auto and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.confirm)
        return record

    def confirm(self, count: int | None = None) -> None:
        """Confirms all that was appended, or the next `count` records, as one group."""
        self._is_due = False
        waiting = [record.end for record in self.records if record.end > self._confirmed_end]
        if count is not None:
            waiting = waiting[:count]
        if waiting and not self.is_closed:
            self._confirmed_end = waiting[-1]
            assert self._on_confirmed is not None
            self._on_confirmed(self._confirmed_end)

    def fail(self, error: BaseException) -> None:
        self.is_closed = True
        assert self._on_failed is not None
        self._on_failed(error)

    async def trim(self, end: int) -> None:
        assert end <= self._confirmed_end
        self.trims += 1
        self.trim_point = max(self.trim_point, end)
        self.records = [record for record in self.records if record.end > end]

    async def reset(self) -> None:
        self.records, self.trim_point, self._confirmed_end = [], self.end, self.end

    async def close(self) -> None:
        self.confirm()
        self.is_closed = True

    def crash(self, unconfirmed_count: int = 0) -> MemoryWal:
        """The log as the next process finds it: all that was confirmed, and so many of the records behind."""
        self.is_closed = True
        kept = [record for record in self.records if record.end <= self._confirmed_end]
        lost = [record for record in self.records if record.end > self._confirmed_end]
        copies = [
            WalRecord(r.position, r.end, memoryview(bytes(r.payload)))
            for r in kept + lost[:unconfirmed_count]
        ]
        wal = MemoryWal(self.capacity_bytes, is_auto=self.is_auto, records=copies)
        wal.end = max(wal.end, self.end)
        wal._confirmed_end = wal.end
        wal.trim_point = copies[0].position if copies else wal.end
        return wal


class MemoryStore:
    """Objects in a dict. `fault(operation, key)` may raise, or return a coroutine to await before the
    operation."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fault: Callable[[str, str], Awaitable[Any] | None] = lambda operation, key: None
        self.calls: list[tuple[str, str]] = []

    async def meet(self, operation: str, key: str) -> None:
        self.calls.append((operation, key))
        await asyncio.sleep(0)
        waiting = self.fault(operation, key)
        if waiting is not None:
            await waiting

    def count(self, operation: str) -> int:
        return sum(1 for called, _ in self.calls if called == operation)

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self.meet("put", key)
        self.objects[key] = b"".join(parts)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        await self.meet("put_if_absent", key)
        if key in self.objects:
            raise PreconditionFailed(key)
        self.objects[key] = b"".join(parts)

    async def replace(self, key: str, parts: Sequence[Buffer], before: bytes) -> None:
        await self.meet("replace", key)
        if self.objects.get(key) != before:
            raise PreconditionFailed(key)
        self.objects[key] = b"".join(parts)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        await self.meet("get", key)
        if key not in self.objects:
            raise ObjectMissing(key)
        return self.objects[key][start:end]

    async def get_into(self, key: str, start: int, end: int, lend: Lend) -> tuple[Sequence[memoryview], int]:
        return fill(lend(), await self.get_range(key, start, end))

    async def get(self, key: str) -> bytes:
        return await self.get_range(key, 0, 1 << 62)

    async def head(self, key: str) -> ObjectEntry | None:
        await self.meet("head", key)
        return ObjectEntry(key, len(self.objects[key]), 0) if key in self.objects else None

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectEntry]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield ObjectEntry(key, len(self.objects[key]), 0)

    async def delete(self, keys: Sequence[str]) -> Keys:
        for key in keys:
            self.objects.pop(key, None)
        return []

    async def list_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        """What was begun and never completed is nowhere."""
        nothing: tuple[UnfinishedUpload, ...] = ()
        for upload in nothing:
            yield upload

    async def start_multipart(self, key: str) -> MultipartUpload:
        await self.meet("start_multipart", key)
        return MemoryMultipart(self, key)

    async def close(self) -> None:
        pass


class MemoryMultipart:
    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: list[bytes] = []

    def put_part(self, parts: Sequence[Buffer], number: int | None = None) -> Coroutine[Any, Any, None]:
        if number is None:
            number = len(self._parts)
            self._parts.append(b"")
        return self._put_part(parts, number)

    async def _put_part(self, parts: Sequence[Buffer], number: int) -> None:
        await self._store.meet("put_part", self._key)
        self._parts[number] = b"".join(parts)

    async def complete(self, *, if_absent: bool = False) -> None:
        await self._store.meet("complete", self._key)
        if if_absent and self._key in self._store.objects:
            raise PreconditionFailed(self._key)
        assert all(self._parts)
        assert all(len(part) >= 5 << 20 for part in self._parts[:-1])
        self._store.objects[self._key] = b"".join(self._parts)

    async def abort(self) -> None:
        await self._store.meet("abort", self._key)


class CatalogStream:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.start = 0
        self.end = 0
        self.is_open = True
        self.node = ""  # that has, or had, it open
        self.owed: dict[str, tuple[int, int, int]] = {}  # by node: (start, end, epoch)
        self.objects: list[ObjectHint] = []


class MemoryCatalog:
    """Both catalogs, with the controller's rules: ranges start at the committed end, ids are prepared before
    they are committed, a commit that is repeated changes nothing, epochs are checked."""

    def __init__(self) -> None:
        self.streams: dict[int, CatalogStream] = {}
        self.prepared: dict[int, None] = {}
        self.committed: dict[int, UploadCommit] = {}
        self.commits: list[UploadCommit] = []
        self.closed: list[int] = []
        self.trims: list[tuple[int, int]] = []
        self.lost: list[StreamRange] = []  # given up with a log that owed them
        self._next_object = 0
        self.before: Callable[[str], Awaitable[Any] | None] = lambda verb: None
        self.after_commit: Callable[[], None] = lambda: None  # may raise: the answer is lost

    def open(self, stream_id: int) -> OpenedStream:
        """What the broker asks the controller before it calls `open_stream`."""
        stream = self.streams.get(stream_id)
        if stream is None:
            stream = self.streams[stream_id] = CatalogStream(0)
        else:
            assert not stream.is_open, f"stream {stream_id} is open"
            stream.epoch += 1
            stream.is_open = True
        return OpenedStream(StreamId(stream_id), stream.epoch, stream.start, stream.end)

    def delete(self, stream_id: int) -> None:
        del self.streams[stream_id]

    async def _meet(self, verb: str) -> None:
        await asyncio.sleep(0)
        waiting = self.before(verb)
        if waiting is not None:
            await waiting

    async def opening_streams(self) -> list[OpenedStream]:
        await self._meet("opening_streams")
        return [
            OpenedStream(StreamId(key), s.epoch, s.start, s.end)
            for key, s in self.streams.items()
            if s.is_open
        ]

    async def trim(self, stream_id: StreamId, epoch: int, new_start: int) -> None:
        await self._meet("trim")
        stream = self._owned(stream_id, epoch)
        assert stream.start <= new_start <= stream.end, (
            f"trim of stream {stream_id} to {new_start}, committed {stream.end}"
        )
        self.trims.append((stream_id, new_start))
        stream.start = new_start
        stream.objects = [info for info in stream.objects if info.end > new_start]

    async def close(self, stream_id: StreamId, epoch: int) -> None:
        await self._meet("close")
        self._owned(stream_id, epoch).is_open = False
        self.closed.append(stream_id)

    async def seal(self, stream_id: StreamId, epoch: int, start: int, end: int) -> bool:
        """Refused where one node alone uses the catalog: nobody else would go on with it."""
        await self._meet("seal")
        self._owned(stream_id, epoch)
        return False

    async def prepare(self, count: int, ttl_ms: int) -> ObjectId:
        await self._meet("prepare")
        first = self._next_object
        self._next_object += count
        self.prepared |= dict.fromkeys(range(first, first + count))
        return ObjectId(first)

    async def commit_upload(self, commit: UploadCommit) -> None:
        await self._meet("commit")
        ids = [made.object_id for made in commit.stream_objects]
        if commit.object_id != NO_OBJECT:
            ids.append(commit.object_id)
        if not all(self.committed.get(key) == commit for key in ids):
            self._apply(commit, ids)
        self.after_commit()

    def _apply(self, commit: UploadCommit, ids: list[ObjectId]) -> None:
        if not all(key in self.prepared for key in ids):
            raise UploadExpired(ids[0])
        self._check_ranges(commit)
        for key in ids:
            del self.prepared[key]
            self.committed[key] = commit
        for span in commit.ranges:
            self._advance(span, commit.object_id, ObjectKind.STREAM_SET, commit.size_bytes)
        for made in commit.stream_objects:
            self._advance(made.range, made.object_id, ObjectKind.STREAM, made.size_bytes)
        self.commits.append(commit)

    def candidates(self, stream_id: StreamId, offset: int, limit: int) -> Sequence[ObjectHint]:
        stream = self.streams.get(stream_id)
        for lost in self.lost:
            if lost.stream_id == stream_id and lost.start <= offset < lost.end:
                return [ObjectHint(LOST_RANGE, ObjectKind.STREAM, 0, lost.start, lost.end)]
        found = [hint for hint in stream.objects if hint.end > offset] if stream else []
        return found[:limit] if found and found[0].start <= offset else []

    def _check_ranges(self, commit: UploadCommit) -> None:
        spans = [*commit.ranges, *(made.range for made in commit.stream_objects)]
        assert len({span.stream_id for span in spans}) == len(spans)
        for span in spans:
            stream = self.streams.get(span.stream_id)
            if stream is not None:
                assert stream.is_open, f"commit to stream {span.stream_id}, which is closed"
                assert span.start == stream.end, f"{span} does not start at the committed end {stream.end}"
                assert span.end > span.start

    def _advance(self, span: StreamRange, object_id: ObjectId, kind: ObjectKind, size_bytes: int) -> None:
        stream = self.streams.get(span.stream_id)
        if stream is not None:
            stream.end = span.end
            stream.objects.append(ObjectHint(object_id, kind, size_bytes, span.start, span.end))

    def _owned(self, stream_id: int, epoch: int) -> CatalogStream:
        stream = self.streams.get(stream_id)
        if stream is None:
            raise StreamMissing(stream_id)
        if epoch < stream.epoch:
            raise StreamFenced(stream_id, epoch, stream.epoch)
        return stream


class World:
    """What outlives a process. `make_engine`: which engines it has, hot ones or cold ones (cold.py)."""

    make_engine: ClassVar[Callable[..., Storage]] = Storage

    def __init__(
        self, wal_bytes: int = 1 << 30, *, is_auto: bool = True, settings: dict[str, int] | None = None
    ) -> None:
        """`settings` are those of every engine built here."""
        self.settings = settings or {}
        self.wal = MemoryWal(wal_bytes, is_auto=is_auto)
        self.store = MemoryStore()
        self.catalog = MemoryCatalog()
        self.failures: list[BaseException] = []

    def engine(self, wal: WriteAheadLog | None = None, /, **settings: int) -> Storage:
        values = {"upload_interval_ms": 3_600_000, **self.settings, **settings}
        return self.make_engine(
            wal if wal is not None else self.wal,
            EngineStores.same(self.store),
            self.catalog,
            self.catalog,
            StreamSettings(**values),
            CLUSTER_ID,
            on_failed=self.failures.append,
        )

    async def started(self, **settings: int) -> Storage:
        engine = self.engine(**settings)
        await engine.start()
        return engine

    async def crash(self, engine: Storage, unconfirmed_count: int = 0) -> None:
        """Ends the engine as a kill does, as far as the world can tell."""
        self.wal = self.wal.crash(unconfirmed_count)
        await engine._stop()


def open_stream(world: World, engine: Storage, stream_id: int) -> Stream:
    return engine.open_stream(world.catalog.open(stream_id))


async def append(stream: Stream, data: bytes, count: int = 1) -> Append:
    """Appends and waits until it is durable and readable."""
    done: asyncio.Future[Append] = asyncio.get_running_loop().create_future()
    stream.append(count, [data], done.set_result)
    return await done


def shown(entries: list[Entry] | None) -> str:
    """Entries as a test reads them: base offset, end, and the data when it is short."""
    if entries is None:
        return "not cached"
    return (
        " ".join(f"[{e.base_offset},{e.end}){bytes(e.data[:8]).decode('latin1')}" for e in entries)
        or "nothing"
    )


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: the time that the loop would have waited has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits, and nobody will come"
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer: pauses and deadlines cost nothing."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a scenario in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
