"""Blocks of the log cache to objects: plan, put, commit, trim. Puts are pipelined over blocks, commits go
strictly in block order.

    submit(block) -> prepare ids (one block after another) -> put its objects (in parallel) -> commit
        -> on_committed -> metadata is safe -> no newer owner
        -> trim the WAL -> on_uploaded

Not here: when a block is sealed (storage.py), which stream gets its own object (upload_plan.py), bytes
(objects/writer.py). Keeps true:
  * the WAL is trimmed to a block's end only after that block and all before it are committed;
  * ids grow with the blocks;
  * a store that is away, full or refuses is asked again for ever, with growing pauses, and `blocked_reason`
    says so: nothing acknowledged is given up, producers wait when the cache is full;
  * `on_full` is called when a call is refused for want of room and was not before: somebody may be able to
    make some;
  * ids that got old while the puts were late are replaced: nothing is put under them any more, for whoever
    deletes what was never committed has been there, and nothing is committed;
  * ids are replaced, too, where an object of a process that this one has replaced lies: it could put that and
    never commit it;
  * what waits for its turn or for the store is not made into bytes yet: no more bodies are in memory than
    puts in flight;
  * nothing is committed before the store was asked, since the puts began, whether this node has a newer
    owner; nor is the WAL trimmed before it was asked again, since the commit is safe;
  * any other failure ends the engine through `on_failed`: the WAL has everything.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from millrace.runtime.errors import Closed, Exhausted, Unavailable, in_words
from millrace.runtime.objectstore import (
    BytesChanged,
    MultipartUpload,
    ObjectMissing,
    ObjectStore,
    StoreDenied,
    StoreFull,
)
from millrace.runtime.objectstore.body import Body, body_of
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.errors import UploadExpired
from millrace.s3stream.ids import NO_WAL, ObjectId, UploadCommit
from millrace.s3stream.log_cache import CacheBlock
from millrace.s3stream.metadata import ObjectCatalog
from millrace.s3stream.objects.keys import object_key
from millrace.s3stream.objects.placing import ObjectForeign, abandon, complete_object, pass_over, put_object
from millrace.s3stream.objects.writer import ObjectWriter
from millrace.s3stream.ownership import UNOWNED, Ownership
from millrace.s3stream.upload_plan import PlannedObject, UploadPlan, plan_upload

log = logging.getLogger(__name__)

T = TypeVar("T")
# What a store says that may be otherwise later. ObjectMissing: its folder or bucket is gone, or a multipart
# upload is and must be made anew.
NOT_NOW = (Unavailable, Exhausted, StoreDenied, ObjectMissing)
RETRY_PAUSE_MS_MIN = 100
RETRY_PAUSE_MS_MAX = 10_000
FRESH = 0.75  # of the time that ids are prepared for: the rest is for a put under way, and for the commit
# A call that takes longer than this is told as a reason why uploads wait; it goes on.
SILENT_S = 10.0
# An object is built in steps between which the loop serves others, each of one to two milliseconds: its bytes
# are summed twice (0.3 ms a MiB), and every entry costs as much as ENTRY_COST bytes, and every stream.
STEP_COST = 4 << 20
ENTRY_COST = 8192


async def no_wait() -> None:
    """Where nothing keeps a trim back."""


def _nobody() -> None:
    """Makes room."""


def _nothing(block: CacheBlock) -> None:
    """Where nobody waits for a commit."""


class UploadJob:
    """One block on its way. `puts` is the running task that ends with what to commit."""

    __slots__ = ("began_s", "block", "fresh_until", "plan", "puts")

    def __init__(self, block: CacheBlock, plan: UploadPlan) -> None:
        self.block = block
        self.plan = plan
        self.began_s = 0.0  # when its puts began, by the loop's clock
        self.fresh_until = 0.0  # by the loop's clock; its ids are no longer used then
        self.puts: asyncio.Task[UploadCommit] | None = None


class Uploader:
    def __init__(
        self,
        store: ObjectStore,
        objects: ObjectCatalog,
        settings: StreamSettings,
        cluster_id: str,
        trim_wal: Callable[[int], Awaitable[None]],
        on_uploaded: Callable[[CacheBlock], None],
        on_failed: Callable[[BaseException], None],
        before_trim: Callable[[], Awaitable[None]] = no_wait,
        ownership: Ownership = UNOWNED,
        wal_id: bytes = NO_WAL,
        on_committed: Callable[[CacheBlock], None] = _nothing,
    ) -> None:
        """`on_committed(block)` is called, in block order, when the block is committed, `on_uploaded(block)`
        when the WAL is trimmed to its end as well. `before_trim` returns when what was committed before its
        call survives the loss of the metadata log. `wal_id`: the log's that blocks come from."""
        self._ownership = ownership
        self._wal_id = wal_id
        self._store = store
        self._objects = objects
        self._settings = settings
        self._cluster_id = cluster_id
        self._trim_wal = trim_wal
        self._on_uploaded = on_uploaded
        self._on_committed = on_committed
        self._on_failed = on_failed
        self._before_trim = before_trim
        self._to_put: asyncio.Queue[UploadJob] = asyncio.Queue()
        # Bounds the blocks whose puts are under way: beside those in the queue, one is being committed and
        # one waits to enter.
        self._to_commit: asyncio.Queue[UploadJob] = asyncio.Queue(max(1, settings.uploads_in_flight - 2))
        self._to_trim: asyncio.Queue[UploadJob] = asyncio.Queue(settings.uploads_in_flight)
        self._puts = asyncio.Semaphore(settings.puts_in_flight)
        self._giving_ids = asyncio.Lock()  # to blocks of a recovery, in their order
        self._loops: list[asyncio.Task[None]] = []
        self._running: dict[asyncio.Task[UploadCommit], None] = {}
        self._blocked: dict[str, str] = {}
        self._full: dict[str, None] = {}  # of these, what waits for room in the store
        self.on_full: Callable[[], None] = _nobody
        self.pending_count = 0
        self.objects_put = 0
        self.bytes_put = 0
        self.commits = 0
        self.retries = 0

    @property
    def blocked_reason(self) -> str:
        """Why uploads do not go on, or "" when they do."""
        return next(iter(self._blocked.values()), "")

    @property
    def is_full(self) -> bool:
        """Uploads wait for room in the store."""
        return bool(self._full)

    def start(self) -> None:
        self._loops = [
            asyncio.create_task(self._supervised(self._put_loop), name="upload-puts"),
            asyncio.create_task(self._supervised(self._commit_loop), name="upload-commits"),
            asyncio.create_task(self._supervised(self._trim_loop), name="upload-trims"),
        ]

    def submit(self, block: CacheBlock) -> None:
        """Takes a sealed block; never waits. The queue is bounded by the log cache's bytes."""
        self.pending_count += 1
        self._to_put.put_nowait(self._job(block))

    async def upload(self, block: CacheBlock, before: asyncio.Task[None] | None = None) -> None:
        """Uploads and commits one block before it returns, without touching the WAL: for recovery. `before`:
        of the block before it, begun earlier; its objects may be put beside this one's, and nothing is
        committed before it is done, nor where it failed. Cancelled or failed, nothing of this block is put
        any more."""
        job = self._job(block)
        try:
            async with self._giving_ids:
                await self._start_puts(job)
            if before is not None:
                await asyncio.wait([before])
                before.result()
            await self._commit(job)
        except BaseException:
            await _end([] if job.puts is None else [job.puts])
            raise

    async def stop(self) -> None:
        """Ends what is under way. What was not committed is uploaded again from the WAL at the next start."""
        tasks: list[asyncio.Task[Any]] = [*self._loops, *self._running]
        await _end(tasks)
        self._loops = []

    def _job(self, block: CacheBlock) -> UploadJob:
        return UploadJob(block, plan_upload(block.runs.values(), self._settings.stream_object_split_bytes))

    async def _supervised(self, loop: Callable[[], Awaitable[None]]) -> None:
        try:
            await loop()
        except Exception as error:
            # A log that is closed for a failure says so to all; the failure is the news.
            log.error("uploads end: %s", in_words((isinstance(error, Closed) and error.__cause__) or error))
            self._on_failed(error)

    async def _put_loop(self) -> None:
        while True:
            await self._begin(await self._to_put.get())

    async def _begin(self, job: UploadJob) -> None:
        await self._start_puts(job)
        await self._to_commit.put(job)

    async def _commit_loop(self) -> None:
        while True:
            # No name here: while the loop waits for the next job it would keep the block of the last one, and
            # the WAL's memory with it.
            await self._hand_on(await self._to_commit.get())

    async def _hand_on(self, job: UploadJob) -> None:
        await self._commit(job)
        self._on_committed(job.block)
        await self._to_trim.put(job)

    async def _trim_loop(self) -> None:
        """Beside the commits: whoever waits for metadata to be safe holds no commit up."""
        while True:
            await self._end(await self._to_trim.get())

    async def _end(self, job: UploadJob) -> None:
        await self.before_trim()
        await self._trim_wal(job.block.wal_end)
        self.pending_count -= 1
        self._on_uploaded(job.block)

    async def before_trim(self) -> None:
        """On return what was committed before the call survives the loss of the metadata log, and this node
        had no newer owner once it did. One that takes over, and looks at the bucket after its claim, finds
        that metadata there, or the WAL as it was."""
        await self._before_trim()
        since_s = asyncio.get_running_loop().time()
        await self._patiently("look for a newer owner", partial(self._ownership.verify, since_s))

    async def _commit(self, job: UploadJob) -> None:
        """Durable in metadata on return. Ids that are old, were refused as expired or are taken in the store
        are replaced, and the objects put again."""
        if not job.plan.objects:
            return
        while True:
            try:
                commit = replace(await self._puts_of(job), wal_id=self._wal_id, wal_end=job.block.wal_end)
                await self._patiently("look for a newer owner", partial(self._ownership.verify, job.began_s))
                _check_fresh(job.fresh_until, commit.object_id)
                await self._patiently("commit", partial(self._objects.commit_upload, commit))
                break
            except UploadExpired as error:
                log.warning("object %d was prepared too long ago: it is put again", error.object_id)
            except ObjectForeign as error:
                await self._patiently("look whose object it is", partial(pass_over, self._ownership, error))
            await self._start_puts(job)
        self.commits += 1

    async def _start_puts(self, job: UploadJob) -> None:
        if not job.plan.objects:
            return
        count = len(job.plan.objects)
        first_id = await self._patiently(
            "prepare", lambda: self._objects.prepare(count, self._settings.prepare_ttl_ms)
        )
        job.began_s = asyncio.get_running_loop().time()
        job.fresh_until = job.began_s + self._settings.prepare_ttl_ms * FRESH / 1000
        puts = self._put_objects(job.plan, first_id, job.fresh_until)
        job.puts = asyncio.create_task(puts, name=f"upload-{job.block.number}")
        self._running[job.puts] = None
        job.puts.add_done_callback(self._forget)

    def _forget(self, puts: asyncio.Task[UploadCommit]) -> None:
        """When the commits have ended already, what became of the puts is nobody's."""
        del self._running[puts]
        if not puts.cancelled():
            puts.exception()

    async def _puts_of(self, job: UploadJob) -> UploadCommit:
        if job.puts is None:
            await self._start_puts(job)
        assert job.puts is not None
        return await job.puts

    async def _put_objects(self, plan: UploadPlan, first_id: ObjectId, fresh_until: float) -> UploadCommit:
        ids = [ObjectId(first_id + place) for place in range(len(plan.objects))]
        puts = [
            asyncio.create_task(self._put_object(planned, object_id, fresh_until), name=f"put-{object_id}")
            for planned, object_id in zip(plan.objects, ids, strict=True)
        ]
        try:
            return plan.commit(first_id, [await put for put in puts])
        finally:
            await _end(puts)

    async def _put_object(self, planned: PlannedObject, object_id: ObjectId, fresh_until: float) -> int:
        """Puts one object, however long it takes; gives its size. Raises UploadExpired."""
        key = object_key(self._cluster_id, object_id)
        sums: list[int] = []

        async def attempt() -> int:
            _check_fresh(fresh_until, object_id)
            if planned.payload_bytes > self._settings.object_part_bytes:
                return await self._put_in_parts(key, planned)
            return await self._put_whole(key, planned, sums)

        size_bytes = await self._patiently(key, attempt)
        self.objects_put += 1
        self.bytes_put += size_bytes
        return size_bytes

    async def _put_whole(self, key: str, planned: PlannedObject, sums: list[int]) -> int:
        """One attempt, with bytes made for it; `sums` are those of the attempts before, which its own has to
        be."""
        async with self._puts:
            writer = ObjectWriter(self._settings.block_bytes, self._ownership.writer)
            async for _ in _fill(writer, planned):
                pass
            finished = writer.finish()
            sums.append(finished.crc)
            if finished.crc != sums[0]:
                raise BytesChanged(key)
            await put_object(self._store, self._ownership, key, body_of(finished.parts, finished.crc))
        return finished.size_bytes

    async def _put_in_parts(self, key: str, planned: PlannedObject) -> int:
        """One attempt; when it fails, or is cancelled, nothing of it is visible or left in the store, and the
        next one begins anew."""
        upload = await self._store.start_multipart(key)
        under_way: list[asyncio.Task[None]] = []
        writer = ObjectWriter(self._settings.block_bytes, self._ownership.writer)
        try:
            async for _ in _fill(writer, planned):
                if writer.ready_bytes >= self._settings.object_part_bytes:
                    under_way.append(await self._start_part(upload, body_of(*writer.take_parts())))
            finished = writer.finish()
            under_way.append(await self._start_part(upload, body_of(finished.parts, finished.crc)))
            for part in under_way:
                await part
            await complete_object(self._store, self._ownership, key, upload, finished.size_bytes)
        except BaseException:
            await _end(under_way)
            await abandon(key, upload)
            raise
        return finished.size_bytes

    async def _start_part(self, upload: MultipartUpload, part: Body) -> asyncio.Task[None]:
        """Parts are numbered in the order in which their tasks begin, which is that of these calls."""
        await self._puts.acquire()
        task = asyncio.create_task(upload.put_part(part))
        task.add_done_callback(lambda _: self._puts.release())
        return task

    async def _patiently(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Calls until it is answered. What it catches leaves the outcome open at worst, and everything called
        here may be repeated. Pauses are spread by the name of what is called, so that puts which failed
        together do not come again together."""
        pause_ms = RETRY_PAUSE_MS_MIN
        silence = asyncio.get_running_loop().call_later(
            SILENT_S, self._note_wait, what, f"no answer for {SILENT_S:.0f} s"
        )
        try:
            while True:
                try:
                    return await call()
                except NOT_NOW as error:
                    self.retries += 1
                    silence.cancel()
                    self._note_wait(what, f"{type(error).__name__}: {error}")
                    self._note_room(what, isinstance(error, StoreFull))
                await asyncio.sleep(pause_ms * _spread(f"{what} {pause_ms}") / 1000)
                pause_ms = min(RETRY_PAUSE_MS_MAX, pause_ms * 2)
        finally:
            silence.cancel()
            self._full.pop(what, None)
            if self._blocked.pop(what, None) is not None:
                log.info("upload goes on: %s", what)

    def _note_wait(self, what: str, reason: str) -> None:
        if what not in self._blocked:
            log.warning("upload waits: %s: %s", what, reason)
        self._blocked[what] = f"{what}: {reason}"

    def _note_room(self, what: str, is_full: bool) -> None:
        if not is_full:
            self._full.pop(what, None)
        elif what not in self._full:
            self._full[what] = None
            self.on_full()


def _check_fresh(fresh_until: float, object_id: ObjectId) -> None:
    if asyncio.get_running_loop().time() >= fresh_until:
        raise UploadExpired(object_id)


def _spread(name: str) -> float:
    """A number around one, a quarter more or less, that depends on the name alone: chance enough, and no seed
    is needed."""
    return 0.75 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") / 2**33


async def _fill(writer: ObjectWriter, planned: PlannedObject) -> AsyncIterator[None]:
    """Adds all entries to the writer, in steps that leave the loop to others between them."""
    cost = 0
    for run in planned.runs:
        count = len(run)
        step = 1 + STEP_COST * count // (run.payload_bytes + count * ENTRY_COST)
        for first in range(0, count, step):
            entries = run.entries(first, first + step)
            writer.add(run.stream_id, entries)
            cost += ENTRY_COST + len(entries) * (ENTRY_COST + run.payload_bytes // count)
            if cost >= STEP_COST:
                cost = 0
                await asyncio.sleep(0)
                yield


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancels those that still run, and waits for all."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
