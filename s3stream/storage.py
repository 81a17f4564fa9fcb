"""The meeting point: append = WAL, then log cache; read = log cache, then objects.

Confirmation comes from the WAL a group at a time, from the loop. For each group, in WAL order: entries go
into the log cache, streams' confirmed ends move, each append's `on_done` is called, then `on_advance` of
every stream that moved, then `on_confirmed_group`. One pass, no future and no task per append.

Not here: offsets (stream.py), what the cache holds (log_cache.py), uploads (uploader.py), history
(block_cache.py). Keeps true:
  * cache order is WAL order, so that a block's end in the WAL covers all it holds and nothing that it does
    not;
  * room in WAL and cache is asked for before offsets are given, and who waits for it goes in the order of
    asking: a slow store makes producers wait and loses nothing;
  * while the gate is closed (the process stood still, and may have been replaced) no group is confirmed: they
    wait in order, unseen;
  * the WAL's failure, a refused commit or an error in a callback stops the engine: `on_failed` is called
    once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from millrace.runtime.disk import Buffer
from millrace.runtime.errors import Closed, MillraceError, in_words
from millrace.s3stream.block_cache import BlockCache
from millrace.s3stream.config import StreamSettings
from millrace.s3stream.damaged_reads import DamagedReads
from millrace.s3stream.errors import OffsetTrimmed, StreamFenced, StreamMissing
from millrace.s3stream.ids import OpenedStream, StreamId, StreamRange
from millrace.s3stream.kept_room import KeptRoom
from millrace.s3stream.left_open import LeftOpen
from millrace.s3stream.log_cache import CacheBlock, LogCache, SealBounds
from millrace.s3stream.metadata import ObjectCatalog, StreamCatalog
from millrace.s3stream.objects.format import ENTRY_HEADER_BYTES, Entry
from millrace.s3stream.owed_reads import OwedReads
from millrace.s3stream.ownership import UNOWNED, AckGate, Ownership
from millrace.s3stream.read_accumulator import ReadAccumulator
from millrace.s3stream.recovery import Recovered, close_in_catalog, recover, recovery_bounds
from millrace.s3stream.room import RoomQueue
from millrace.s3stream.sealed_streams import SealedStreams
from millrace.s3stream.stream import Append, Stream
from millrace.s3stream.traffic import EngineStores
from millrace.s3stream.uploader import Uploader, no_wait
from millrace.wal.errors import WalFull
from millrace.wal.log import WalRecord, WriteAheadLog

log = logging.getLogger(__name__)

# Kept back from what `room_bytes` tells: headers and overhead of the entries, which whoever asks does not
# count.
ROOM_RESERVE_BYTES = 1 << 20
# Kept for small states (at most a part of WAL and cache): what makes room when a store is full is itself a
# record that needs some.
STATE_ROOM_BYTES_MAX = 4 << 20
STATE_ROOM_PART = 32
# Kept for coordinators beside it: groups go on committing while producers wait for room, and never take what
# small states need.
COORDINATOR_ROOM_BYTES_MAX = 8 << 20
COORDINATOR_ROOM_PART = 32
# An append that is not durable yet, beside its payload: itself, its view, its integers.
PENDING_OVERHEAD_BYTES = 512
# Streams that close at about the same time share one forced upload.
FORCE_DELAY_S = 0.01
NOTHING = memoryview(b"")


class Storage:
    def __init__(
        self,
        wal: WriteAheadLog,
        stores: EngineStores,
        streams: StreamCatalog,
        objects: ObjectCatalog,
        settings: StreamSettings,
        cluster_id: str,
        on_failed: Callable[[BaseException], None],
        before_trim: Callable[[], Awaitable[None]] = no_wait,
        before_append: Callable[[], Awaitable[None]] = no_wait,
        ownership: Ownership = UNOWNED,
        gate: AckGate = UNOWNED,
    ) -> None:
        """`before_trim`, `before_append`: return when what metadata has committed before the call survives
        the loss of its log; awaited before each trim of the WAL, and before the first append to a stream that
        was opened. `gate` is asked for each group of the WAL."""
        self._wal = wal
        self._catalog = streams
        self._settings = settings
        self._on_failed = on_failed
        self._before_append = before_append
        self._seal_bounds = recovery_bounds(settings)
        self.log_cache = LogCache(settings.log_cache_bytes, settings.streams_per_upload)
        self.block_cache = BlockCache(stores, objects, settings, cluster_id)
        self.owed_reads = OwedReads(self.block_cache)
        self.uploader = Uploader(
            stores.upload,
            objects,
            settings,
            cluster_id,
            wal.trim,
            self._on_uploaded,
            self._fail,
            before_trim,
            ownership,
            wal.wal_id,
            self._on_committed,
        )
        self.damaged = DamagedReads()
        self._streams: dict[int, Stream] = {}
        self.sealed = SealedStreams()
        self._gate = gate
        self._held_ends: deque[int] = deque()  # of groups that are durable and may not be told yet
        self._releasing: asyncio.Task[None] | None = None
        self._pending: deque[Append] = deque()
        self._pending_bytes = 0
        self._appended_end = self._uploaded_end = 0  # in the WAL
        self._group = self._kept_bytes = 0  # kept: for states and coordinators
        self._room = RoomQueue(self._make_room)
        self.state_room = KeptRoom(self, (), self._make_room)
        self._states = self.state_room.queue
        self.coordinator_room = KeptRoom(self, (self._states,), self._make_room)
        self._coordinators = self.coordinator_room.queue
        self._wal_room_end = 0  # there was room up to here when last asked: trims only add to it
        self._confirmed = asyncio.Event()
        self._uploaded = asyncio.Event()  # pulsed when a block is committed, and when the WAL is trimmed
        self._age_timer: asyncio.TimerHandle | None = None
        self._aged_block = -1
        self._force_timer: asyncio.TimerHandle | None = None
        self._late_trims: dict[int, Stream] = {}
        self._trimming: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._is_open = False
        self.append_wal: Callable[..., WalRecord] = self._refuse
        # Called once for every WAL group, after streams' ends have moved.
        self.on_confirmed_group: list[Callable[[], None]] = []
        self.recovered = Recovered()
        self.left_open = LeftOpen(streams, self._fail)
        self.reads_from_log_cache = 0

    # -- life

    async def start(
        self,
        *,
        has_records: bool = True,
        is_loss_accepted: bool = False,
        before_close: Callable[[Recovered], Awaitable[None]] | None = None,
        may_leave_open: bool = False,
    ) -> None:
        """Recovers, then takes appends. `has_records` false: the WAL was recovered and emptied by the caller.
        `before_close` runs when everything recovered is committed and the streams are still open. On return
        the WAL is empty and no stream is open here; `may_leave_open`: but for very many, which metadata has
        open still (`left_open`). Raises Corrupt when the WAL does not continue what is committed, Fenced when
        a newer owner exists."""
        records = self._wal.recover() if has_records else None

        async def settle(recovered: Recovered) -> None:
            if before_close is not None:
                await before_close(recovered)
            await self.uploader.before_trim()  # the log is reset next

        self.recovered = await recover(
            self._wal,
            records,
            self._catalog,
            self.uploader,
            self.log_cache,
            self._seal_bounds,
            settle,
            is_loss_accepted=is_loss_accepted,
            leave_open=self.left_open.begin if may_leave_open else None,
        )
        self._seal_bounds = self._bounds(self._wal.capacity_bytes // 3)  # a reset may change the capacity
        least_bytes = min(self._wal.room_bytes, self._settings.log_cache_bytes)
        self.coordinator_room.kept_bytes = min(STATE_ROOM_BYTES_MAX, least_bytes // STATE_ROOM_PART)
        coordinator_bytes = min(COORDINATOR_ROOM_BYTES_MAX, least_bytes // COORDINATOR_ROOM_PART)
        self._kept_bytes = self.coordinator_room.kept_bytes + coordinator_bytes
        self._wal.start(self._on_confirmed, self._fail)
        self._appended_end = self._uploaded_end = self._wal.confirmed_end
        self.log_cache.begin(self._wal.confirmed_end)
        self.uploader.start()
        self.append_wal, self._is_open = self._wal.append, True

    async def mark_opened(self) -> None:
        """On return the WAL durably names the metadata under which streams were opened, or will with what is
        appended to them: so an older copy of the metadata log is told by it; and what opened them survives
        the metadata log where the WAL may."""
        await self._wal.mark_metadata()
        await self._before_append()

    async def upload_all(self, deadline_ms: int) -> bool:
        """Whether all that was appended before the call was committed, and trimmed from the WAL, within the
        bound."""
        target = self._appended_end
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                while self._pending and self._pending[0].wal_end <= target:
                    await self._wait_for(self._confirmed)
                if self._uploaded_end < target:
                    self._force()
                while self._uploaded_end < target:
                    await self._wait_for(self._uploaded)
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_ms: int) -> None:
        """Takes no more, uploads what it can within the bound and closes the streams that are wholly
        committed; the rest stays in the WAL, for the next start. The WAL is closed last. Idempotent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        self._stop_intake(Closed("the stream engine is closing"))
        if self._failure is None:
            try:
                await self.upload_all(timeout_ms * 4 // 5)
                whole = [
                    stream for stream in self._streams.values() if stream.committed_end == stream.next_offset
                ]
                async with asyncio.timeout(max(0.0, deadline - loop.time())):
                    await self._finish_trims(whole)
                    ended = [(stream.stream_id, stream.epoch) for stream in whole]
                    await close_in_catalog(self._catalog, [*ended, *(await self.left_open.stop())])
            except (TimeoutError, MillraceError) as error:
                log.warning(
                    "closed before everything was handed over; the next start recovers it: %s",
                    in_words(error),
                )
        await self._stop()
        await self._wal.close()

    # -- streams

    def open_stream(self, opened: OpenedStream) -> Stream:
        """A handle on a stream that the controller opened for this node. What lies beyond `opened.end` is
        nobody's any more."""
        stream_id, stream = opened.stream_id, Stream(self, opened)
        assert stream_id not in self._streams, f"stream {stream_id} is open"
        assert stream_id not in self.sealed, f"stream {stream_id} is owed"
        if self.log_cache.end_of(stream_id) not in (None, stream.next_offset):
            # Another node wrote it meanwhile.
            assert not self.log_cache.is_held(stream_id), (
                f"stream {stream_id} has entries that are not uploaded"
            )
            self.log_cache.drop(stream_id)
        self._streams[stream_id] = stream
        return stream

    def open_for_reading(self, known: OpenedStream) -> Stream:
        """A handle on what metadata has of a stream that is not open here, to be read alone. What is cached
        of it, and not held, may be of before an accepted loss."""
        if known.stream_id not in self._streams and not self.log_cache.is_held(known.stream_id):
            self.log_cache.drop(known.stream_id)
        stream = Stream(self, known)
        stream.is_closed = True  # to appends
        return stream

    async def close_stream(self, stream: Stream) -> None:
        """On return all of the stream is committed and metadata has it closed. Cancelled, it takes no appends
        and is still open there."""
        stream.is_closed = True
        while stream.confirmed_end < stream.next_offset:
            await self._wait_for(self._confirmed)
        while stream.committed_end < stream.next_offset and not stream.is_fenced:
            if stream.stream_id in self.log_cache.active.runs:
                self._force_soon()
            await self._wait_for(self._uploaded)
        if self._streams.get(stream.stream_id) is stream:
            try:
                await self.trim_catalog(stream)
                await self._catalog.close(stream.stream_id, stream.epoch)
            except StreamMissing:
                log.info("stream %d was deleted before it was closed", stream.stream_id)
            finally:
                self._streams.pop(stream.stream_id, None)

    async def seal_stream(self, stream: Stream) -> None:
        """On return metadata has the stream closed at its true end, and others may go on with it; what of it
        is not committed is owed by the WAL, and its upload is under way. Where metadata takes no seal, it is
        closed as by `close_stream`. Cancelled, it takes no appends, and may be open there or sealed."""
        stream.is_closed = True
        while stream.confirmed_end < stream.next_offset:
            await self._wait_for(self._confirmed)
        if stream.committed_end == stream.next_offset or stream.is_fenced:
            await self.close_stream(stream)
            return
        try:
            is_sealed = await self._catalog.seal(
                stream.stream_id, stream.epoch, stream.start, stream.next_offset
            )
        except StreamMissing:
            self._streams.pop(stream.stream_id, None)
            log.info("stream %d was deleted before it was sealed", stream.stream_id)
            return
        except StreamFenced:
            # Or it was sealed, the answer lost, and nothing of it is owed by now; what is here is on its way.
            self._owe(stream)
            raise
        if is_sealed:
            self._owe(stream)
        else:
            await self.close_stream(stream)

    def _owe(self, stream: Stream) -> None:
        """It is the next owner's."""
        if self._streams.get(stream.stream_id) is stream:
            del self._streams[stream.stream_id]
            self.sealed.add(stream)
            self._late_trims.pop(stream.stream_id, None)  # they are the next owner's
            if stream.stream_id in self.log_cache.active.runs:
                self._force_soon()

    def take_back(self, stream_ids: Iterable[StreamId]) -> None:
        """Metadata has opened these here anew, and opens none that this WAL owes: what is left of them here
        is in objects, or nobody's any more (trimmed, or given up), and no upload of it is waited for."""
        for stream_id in stream_ids:
            if self.sealed.drop(stream_id) is not None:
                self.log_cache.drop(stream_id)

    async def read_sealed(self, stream_id: StreamId, epoch: int, start: int, max_bytes: int) -> list[Entry]:
        """Entries of what the WAL owes of a stream, for its next owner, as Stream.fetch gives them; from
        memory, where all is that is not uploaded. So is what is being sealed: the next owner may know of it
        before this one. Raises StreamFenced where it owes nothing of it, OffsetTrimmed for what is
        uploaded."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.epoch != epoch or not stream.is_closed:
            stream = self.sealed.at_epoch(stream_id, epoch)
        end = stream.bounded(start, stream.confirmed_end)
        entries = self.log_cache.read(stream_id, start, end, max_bytes) if start < end else []
        if entries is None:
            raise OffsetTrimmed(stream_id, start, stream.committed_end)
        return entries

    async def drop_streams(self, stream_ids: Iterable[StreamId]) -> None:
        """Handles are void, caches forget them. Only once metadata has deleted them: what was not uploaded is
        given up."""
        for stream_id in stream_ids:
            stream = self._streams.pop(stream_id, None) or self.sealed.drop(stream_id)
            if stream is not None:
                stream.is_closed = stream.is_fenced = True
            self.log_cache.drop(stream_id)
            self.block_cache.drop_stream(stream_id)
        self._pulse(self._uploaded)

    async def trim_catalog(self, stream: Stream) -> None:
        """Tells metadata the stream's start, as far as it is committed: a start beyond the committed end
        would leave the entries between for a commit that no longer fits. `_on_uploaded` sees to the rest."""
        if stream.trim_lock is None:
            stream.trim_lock = asyncio.Lock()
        async with stream.trim_lock:
            target = min(stream.start, stream.committed_end)
            if target > stream.trimmed_start:
                await self._catalog.trim(stream.stream_id, stream.epoch, target)
                stream.trimmed_start = target

    # -- append

    @property
    def entry_bytes_max(self) -> int:
        """A payload that is longer is never taken, whatever the room."""
        return self._wal.max_record_bytes - ENTRY_HEADER_BYTES

    def has_room(self, needed_bytes: int) -> bool:
        """Whether `room_bytes` is that much. In one step where there is plenty."""
        cache = self.log_cache
        if self._room.waiting or self._coordinators.waiting or self._states.waiting:
            return False
        free_bytes = (
            self._settings.log_cache_bytes - cache.size_bytes + cache.free_bytes - self._pending_bytes
        )
        granted_bytes = self._granted_bytes
        plenty_bytes = 2 * (needed_bytes + granted_bytes + self._kept_bytes + ROOM_RESERVE_BYTES)
        if plenty_bytes < free_bytes and plenty_bytes < self._wal_room_end - self._appended_end:
            return True
        return needed_bytes <= self.room_bytes

    @property
    def room_bytes(self) -> int:
        """Payload bytes that may be appended now; 0 while somebody waits for room."""
        return 0 if self._is_waited_for else self.room_beside(self._kept_bytes)

    def wait_for_room(self, needed_bytes: int) -> asyncio.Future[None]:
        """Completes once that much may be appended, in the order of asking; await it directly and append
        before the next await. WalFull when it could never fit, Closed when the engine stops."""
        return self.ask_room(self._room, needed_bytes)

    @property
    def _is_waited_for(self) -> bool:
        return bool(self._room or self._coordinators or self._states)

    @property
    def _granted_bytes(self) -> int:
        return self._room.granted_bytes + self._coordinators.granted_bytes + self._states.granted_bytes

    def room_beside(self, kept_bytes: int) -> int:
        """What may be appended now if so much is left to others. For KeptRoom."""
        return max(0, self._free_room() - kept_bytes - self._granted_bytes)

    def ask_room(self, line: RoomQueue, needed_bytes: int) -> asyncio.Future[None]:
        """Joins that line; see `wait_for_room`. For KeptRoom."""
        future = line.ask(needed_bytes)
        if self._is_open:
            self._make_room()
        else:
            line.refuse(Closed("the stream engine takes no appends"))
        return future

    def on_appended(self, append: Append) -> None:
        self._pending.append(append)
        self._pending_bytes += len(append.payload) + PENDING_OVERHEAD_BYTES
        self._appended_end = append.wal_end

    def _free_room(self) -> int:
        wal_bytes = self._wal.room_bytes
        self._wal_room_end = self._appended_end + wal_bytes
        raw = min(wal_bytes, self._settings.log_cache_bytes - self.log_cache.held_bytes - self._pending_bytes)
        return max(0, raw - min(raw // 2, ROOM_RESERVE_BYTES))

    def _make_room(self) -> None:
        """Lets through who fits; while somebody does not, sees to it that an upload is under way. No second
        one is forced before the first is done: its room may be enough, and small objects cost as much as
        large ones."""
        lines = (
            (self._states, 0),
            (self._coordinators, self.coordinator_room.kept_bytes),
            (self._room, self._kept_bytes),
        )
        for line, kept_bytes in lines:
            while line:
                line.grant(self.room_beside(kept_bytes) + line.granted_bytes)
                if not line:
                    break
                if not self.uploader.pending_count:
                    self._force()
                if self.uploader.pending_count or self._pending or self._granted_bytes:
                    return
                line.refuse_first(WalFull(line.first_needed_bytes, self.room_beside(kept_bytes)))

    # -- confirmation

    def _on_confirmed(self, end: int) -> None:
        try:
            if self._held_ends or not self._gate.may_acknowledge():
                self._hold(end)
            else:
                self._confirm(end)
        except Exception as error:
            self._fail(error)

    def _hold(self, end: int) -> None:
        """Nobody sees the group: it is as one that the WAL is writing still, and takes room as such."""
        self._held_ends.append(end)
        if self._releasing is None:
            self._releasing = asyncio.create_task(self._release_held(), name="held acknowledgements")

    async def _release_held(self) -> None:
        """Group by group, others have the loop between. It stays the one that releases once it has failed:
        nothing is confirmed then."""
        while self._held_ends:
            try:
                await self._gate.wait_to_acknowledge()
            except Closed:
                return  # the next start recovers them
            except Exception as error:
                self._fail(error)
                return
            try:
                self._confirm(self._held_ends.popleft())
            except Exception as error:
                self._fail(error)
                return
            await asyncio.sleep(0)
        self._releasing = None

    def _confirm(self, end: int) -> None:
        pending, put = self._pending, self.log_cache.put
        self._group = group = self._group + 1
        self.log_cache.now_s = asyncio.get_running_loop().time()
        confirmed: list[Append] = []
        moved: list[Stream] = []
        while pending and pending[0].wal_end <= end:
            append = pending.popleft()
            stream, payload, base_offset = append.stream, append.payload, append.base_offset
            self._pending_bytes -= len(payload) + PENDING_OVERHEAD_BYTES
            if stream.is_fenced:
                self.log_cache.pass_wal(append.wal_end)
            else:
                entry = Entry(base_offset, append.end - base_offset, payload, stream.epoch, append.crc)
                put(stream.stream_id, entry, append.wal_end)
            append.payload = NOTHING  # whoever keeps the append does not keep the WAL's memory
            stream.confirmed_end = append.end
            if stream.group != group:
                stream.group = group
                moved.append(stream)
            confirmed.append(append)
        for append in confirmed:
            if append.on_done is not None:
                append.on_done(append)
        for stream in moved:
            if stream.on_advance is not None:
                stream.on_advance(stream)
        for on_group in self.on_confirmed_group:
            on_group()
        self._after_group()

    def _after_group(self) -> None:
        cache, active = self.log_cache, self.log_cache.active
        if self._seal_bounds.are_reached(active):
            cache.seal()
        self._submit_sealed()
        if cache.active.number != self._aged_block and not cache.active.is_empty:
            self._start_age_timer()
        cache.evict()
        self._pulse(self._confirmed)
        if self._is_waited_for:
            self._make_room()

    # -- upload

    def _bounds(self, span_bytes: int) -> SealBounds:
        """Three blocks fit the cache and the WAL, so that one can be written, one uploaded and one fill up
        before anybody waits."""
        return SealBounds(
            self._settings.upload_threshold_bytes, self._settings.log_cache_bytes // 3, span_bytes
        )

    def _submit_sealed(self) -> None:
        for block in self.log_cache.take_sealed():
            self.uploader.submit(block)

    def _force(self) -> None:
        self.log_cache.seal()
        self._submit_sealed()

    def _force_soon(self) -> None:
        if self._force_timer is None:
            self._force_timer = asyncio.get_running_loop().call_later(FORCE_DELAY_S, self._on_force_timer)

    def _on_force_timer(self) -> None:
        self._force_timer = None
        self._force()

    def _start_age_timer(self) -> None:
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._aged_block = self.log_cache.active.number
        self._age_timer = asyncio.get_running_loop().call_later(self.upload_interval_s, self._force)

    def _on_committed(self, block: CacheBlock) -> None:
        """Who closes a stream waits for this, and not for the trim: that is the log's concern, and waits
        until metadata survives the loss of its own log."""
        self.log_cache.note_committed(block)
        for run in block.runs.values():
            self.sealed.note_committed(run.stream_id, run.end)
            stream = self._streams.get(run.stream_id)
            if stream is not None and run.end <= stream.confirmed_end:
                stream.committed_end = max(stream.committed_end, run.end)
                if stream.start > stream.trimmed_start:
                    self._late_trims[stream.stream_id] = stream
        if self._late_trims and self._trimming is None:
            self._trimming = asyncio.create_task(self._trim_late(), name="late-trims")
        self._pulse(self._uploaded)

    def _on_uploaded(self, block: CacheBlock) -> None:
        self._uploaded_end = block.wal_end
        self.log_cache.free(block)
        self.log_cache.evict()
        self._pulse(self._uploaded)
        if self._is_waited_for:
            self._make_room()

    async def _trim_late(self) -> None:
        try:
            while self._late_trims:
                await self._finish_trims([self._late_trims.pop(next(iter(self._late_trims)))])
        except MillraceError as error:
            log.warning("a trim was not told to metadata; the next one tells it: %s", in_words(error))
        finally:
            self._trimming = None

    async def _finish_trims(self, streams: list[Stream]) -> None:
        for stream in streams:
            try:
                await self.trim_catalog(stream)
            except (StreamFenced, StreamMissing) as error:
                log.info("stream %d was not trimmed here: %s", stream.stream_id, in_words(error))

    # -- read

    def read_cached(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[Entry] | None:
        found = self.log_cache.read(stream_id, start, end, max_bytes)
        if found is not None:
            self.reads_from_log_cache += 1
        return found

    async def fetch(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[Entry]:
        """History first, then what the log cache goes on with; it may be evicted or freed while history is
        read, so it is asked anew."""
        accumulator = ReadAccumulator(stream_id, start, end, max_bytes)
        if self.log_cache.read_into(accumulator):
            self.reads_from_log_cache += 1
            return accumulator.entries
        while not accumulator.is_full and not self.log_cache.read_into(accumulator):
            cached_start = self.log_cache.start_of(stream_id)
            history_end = end if cached_start is None else min(end, cached_start)
            history = ReadAccumulator(stream_id, accumulator.next_offset, history_end, accumulator.left_bytes)
            await self.owed_reads.read(history)
            accumulator.adopt(history)
            if not history.is_full:
                break  # something is the matter with what follows: who reads on there is told
            accumulator.is_full |= history.is_full and history.next_offset < history_end
        return accumulator.entries

    def is_owed(self, stream_id: int, offset: int) -> bool:
        """For Stream."""
        return self.block_cache.finder.is_owed(stream_id, offset)

    async def resume_after(self, stream_id: int, offset: int) -> int:
        """For who reads past damage (ObjectFinder.resume_after)."""
        return await self.block_cache.finder.resume_after(stream_id, offset)

    # -- state

    @property
    def wal_id(self) -> bytes:
        return self._wal.wal_id

    @property
    def upload_blocked_reason(self) -> str:
        """Why uploads wait, or "" when they do not: the store is away, full, or refuses."""
        return self.uploader.blocked_reason

    @property
    def upload_interval_s(self) -> float:
        return self._settings.upload_interval_ms / 1000

    @property
    def upload_lag_s(self) -> float:
        """Seconds since the oldest entry was confirmed that is not committed as an object; 0 when all are."""
        since_s = self.log_cache.held_since_s
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    def end(self, error: BaseException) -> None:
        """For whoever finds that the node was taken over: no append is taken and nothing committed any more.
        `on_failed` is called as for a failure of its own."""
        self._fail(error)

    def not_uploaded(self) -> tuple[list[StreamRange], int]:
        """What is acknowledged and in the WAL alone, by stream, and how many bytes of payload that is."""
        held = (*self._streams.values(), *self.sealed)
        streams = [one for one in held if one.committed_end < one.confirmed_end]
        ranges = [StreamRange(one.stream_id, one.committed_end, one.confirmed_end) for one in streams]
        return ranges, sum(block.payload_bytes for block in self.log_cache.blocks if not block.is_free)

    def drop_caches(self) -> None:
        """Forgets whatever is in objects, so that these are what is read next."""
        self.block_cache.drop_all()
        self.log_cache.evict(0)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._stop_intake(Closed(f"the stream engine failed: {in_words(error)}"))
            self._pulse(self._confirmed)
            self._pulse(self._uploaded)
            self._on_failed(error)

    def _stop_intake(self, reason: Closed) -> None:
        self.append_wal, self._is_open = self._refuse, False
        self._room.refuse(reason)
        self._coordinators.refuse(reason)
        self._states.refuse(reason)

    async def _stop(self) -> None:
        for timer in (self._age_timer, self._force_timer):
            if timer is not None:
                timer.cancel()
        for task in (self._trimming, self._releasing):
            if task is not None:
                task.cancel()
        await self.left_open.stop()
        await self.uploader.stop()
        await self.block_cache.close()

    async def _wait_for(self, event: asyncio.Event) -> None:
        """Until the next pulse; Closed when the engine has failed, for then there is none."""
        if self._failure is None:
            await event.wait()
        if self._failure is not None:
            raise Closed(f"the stream engine failed: {in_words(self._failure)}")

    @staticmethod
    def _pulse(event: asyncio.Event) -> None:
        event.set()
        event.clear()

    def _refuse(self, *parts: Buffer, tail_crc: int | None = None) -> NoReturn:
        raise Closed("the stream engine takes no appends")
