"""One led partition: batches in, offsets given, durability told, watermarks.

The offset unit of the data stream is Kafka's, and one batch is one entry, so the stream's ends are the
partition's:

    log_start_offset <= high watermark = data.confirmed_end <= log end = data.next_offset

`append` is a plain def: what it checks, judges and gives happens in one iteration of the loop, in the order
of the calls. A batch is judged against everything appended before it, durable or not; it is acknowledged once
it is durable, and so is a repeat of it.

Not here: opening (opening.py), what is remembered besides records (state.py), finding times (time_lookup.py),
when to drop records (maintenance.py), who leads what (directory.py). Room in the engine is reserved by the
caller, before `append`.

Invariants
  * Offsets have no gap and no second meaning; the high watermark never falls, nor does the log start.
  * A log start is shown once it is durable; the streams are trimmed after that.
  * What a crash makes us read again is bounded by `CHECKPOINT_BYTES` (or a multiple of a large checkpoint's
    own size).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from millrace.broker.partitions.meta_stream import MetaStream, Room, Spawn
from millrace.broker.partitions.producers import SEQUENCE_MAX, WrittenBatch
from millrace.broker.partitions.replaying import is_readable
from millrace.broker.partitions.reviving import Lookups, cool
from millrace.broker.partitions.rewrite import rewrite_batch
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.state import PartitionState
from millrace.broker.partitions.validation import Looked, walk_batch
from millrace.broker.partitions.visibility import Isolation, last_stable_offset
from millrace.broker.purgatory import Subscriptions, complete_all, notify_bytes, notify_change
from millrace.broker.state_memory import RESTORED
from millrace.protocol.batches import CRC_START, BatchHeader, check_produced_batch, restamp_head
from millrace.protocol.crc32c import crc32c
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.errors import Closed, Exhausted, Fenced, in_words
from millrace.s3stream.errors import StreamMissing
from millrace.s3stream.objects.format import SUMMED_FROM
from millrace.s3stream.stream import Append, Stream

log = logging.getLogger(__name__)

UNKNOWN_END = (1 << 63) - 1  # above every offset
NO_EPOCH = -1  # whoever asks does not say which leader epoch he believes in
CHECKPOINT_BYTES = 8 << 20
CHECKPOINT_RATIO = 32  # a checkpoint is not written before this many times its own size was appended

assert CRC_START == SUMMED_FROM, "the engine carries a batch's checksum on"

LOOK_AGAIN_S = 1.0  # at what is damaged, where producers wait for it

OnDone = Callable[[Append | None], None]


def _ignore() -> None:
    """Where nobody listens."""


class Appended(NamedTuple):
    """`append_time_ms` is -1 unless the topic's timestamps are the broker's. When not durable yet, `on_done`
    tells."""

    base_offset: int
    append_time_ms: int
    is_durable: bool


class PartitionStreams(NamedTuple):
    meta: MetaStream
    data: Stream
    time: Stream


class Partition:
    __slots__ = (
        "_asked_log_start",
        "_awaiting",
        "_in_flight",
        "_is_cooling",
        "_is_looking",
        "_life_ms",
        "_lookups",
        "_room",
        "_save_at_bytes",
        "_save_lock",
        "_settings",
        "_spawn",
        "_start_moved",
        "_trim_lock",
        "data",
        "in_bytes",
        "index",
        "is_copy",
        "is_led",
        "leader_epoch",
        "log_start_offset",
        "meta",
        "on_readable",
        "out_bytes",
        "state",
        "subscriptions",
        "time",
        "topic_id",
        "topic_name",
    )

    def __init__(
        self,
        topic_id: bytes,
        topic_name: str,
        index: int,
        leader_epoch: int,
        settings: TopicSettings,
        streams: PartitionStreams,
        state: PartitionState,
        room: Room,
        spawn: Spawn,
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.index = index
        self.leader_epoch = leader_epoch
        self.in_bytes = self.out_bytes = 0  # as Traffic, since it was opened
        self.is_led = True
        self.is_copy = False  # see become_copy
        self.meta, self.data, self.time = streams
        self.state = state
        self.log_start_offset = state.log_start_offset  # as shown
        self.subscriptions: Subscriptions = {}
        self._room = room
        self._spawn = spawn
        self._asked_log_start = self.log_start_offset
        self._in_flight: deque[tuple[int, int]] = deque()  # (end offset, bytes) of what is not durable yet
        self._awaiting: list[tuple[int, OnDone]] = []  # repeats of batches that are not durable yet
        self._save_lock = asyncio.Lock()
        self._save_at_bytes = CHECKPOINT_BYTES
        self._trim_lock = asyncio.Lock()
        # made by who waits: an idle partition costs memory
        self._start_moved: asyncio.Future[None] | None = None
        self._settings = settings
        self._life_ms = 0
        self._is_cooling = False
        self._is_looking = False
        # what was damaged can be read: the partition is to be opened anew
        self.on_readable: Callable[[], None] = _ignore
        self._lookups: Lookups | None = None
        state.producers.on_crowded = self._on_crowded
        self.settings = settings
        self.data.on_advance = self._on_advance
        state.begin_epoch(leader_epoch, self.data.next_offset)

    def __repr__(self) -> str:
        return (
            f"{self.topic_name}-{self.index}@{self.leader_epoch} [{self.log_start_offset}, "
            f"{self.high_watermark}, {self.log_end_offset})"
            f"{'' if self.is_led else ' resigned'}"
        )

    @property
    def settings(self) -> TopicSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: TopicSettings) -> None:
        """A changed configuration holds from the next batch on."""
        self._settings = settings
        jitter_ms = settings.segment_jitter_ms
        spread = crc32c(self.topic_id, self.index)
        self._life_ms = settings.segment_ms - (spread % jitter_ms if jitter_ms > 0 else 0)

    @property
    def high_watermark(self) -> int:
        return self.data.confirmed_end

    @property
    def last_stable_offset(self) -> int:
        return last_stable_offset(self.data.confirmed_end)

    def visible_end(self, isolation: Isolation) -> int:
        """Where ends what a reader of that isolation may read: readers, look-ups and delayed fetches all go
        by it."""
        return self.last_stable_offset if isolation else self.data.confirmed_end

    @property
    def log_end_offset(self) -> int:
        return self.data.next_offset

    @property
    def is_fenced(self) -> bool:
        """Another owner took the streams, or the topic is deleted: what is in flight may not be
        acknowledged."""
        return self.data.is_fenced

    def epoch_refusal(self, asked: int) -> int:
        """The error code for one who believes that the leader epoch is `asked`; 0 when that is right, or none
        was given (-1)."""
        if asked in (NO_EPOCH, self.leader_epoch):
            return 0
        is_old = asked < self.leader_epoch
        return int(ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH)

    def end_of_epoch(self, asked: int) -> tuple[int, int]:
        """The largest leader epoch at or below `asked` and where it ended; (-1, -1) when that is not known.
        What is not durable is not told: a crash could give those offsets to another epoch. Of a copy, `asked`
        itself and UNKNOWN_END where that may lie behind what it has: nobody who read on was cut off."""
        epoch, end = self.state.epochs.end_of(asked, self.data.confirmed_end)
        if self.is_copy and end >= self.data.confirmed_end:
            return asked, UNKNOWN_END
        return epoch, min(end, self.data.confirmed_end)

    def holds(self, offset: int) -> bool:
        """Whether it is an offset to read from; the log's end, where nothing is yet, is one. Of a copy, which
        knows no end, what lies above is waited for."""
        return self.log_start_offset <= offset and (self.is_copy or offset <= self.log_end_offset)

    # -- append

    def append(
        self,
        view: memoryview,
        api_version: int,
        now_ms: int,
        tick_ms: int,
        on_done: OnDone,
        is_recoded: bool = False,
        who: str = RESTORED,
        looked: Looked | None = None,
    ) -> Appended:
        """Takes a client's batch. `on_done` is called once it is durable, unless it is already. `now_ms` is
        the wall's, `tick_ms` the monotonic clock's. `is_recoded`: it was checked as it came, and has the
        topic's codec since (unpacking.py). `who`: the client's address. `looked`: what a look at its records
        told (validation.py), where they are judged and compressed. Raises KafkaError; then no offset was
        given."""
        if not self.is_led or self.state.doubts:
            raise self._refusal()
        settings = self._settings
        header = (
            BatchHeader(view)
            if is_recoded
            else check_produced_batch(view, settings.rules, now_ms, api_version)
        )
        is_walked = not is_recoded and settings.record_rules is not None
        if is_walked:
            view, header = walk_batch(view, header, looked, settings, now_ms)
        append_time_ms = -1
        if settings.is_rewriting or not 0 <= header.base_timestamp <= header.max_timestamp:
            view, header = rewrite_batch(
                view, header, settings, now_ms, is_recoded=is_recoded, is_walked=is_walked
            )
            if settings.rules.is_append_time:
                append_time_ms = now_ms
        producer_id = header.producer_id
        if producer_id < 0:
            return Appended(self._take(view, header, now_ms, on_done, header.crc), append_time_ms, False)
        first = header.base_sequence
        last = (first + header.last_offset_delta) & SEQUENCE_MAX
        producers = self.state.producers
        known = producers.judge(producer_id, header.producer_epoch, first, last, who)
        if known is not None:
            return self._repeat(known, on_done)
        base = self._take(view, header, now_ms, on_done, header.crc)
        written = WrittenBatch(first, last, base, base + header.last_offset_delta, header.max_timestamp)
        producers.written(producer_id, header.producer_epoch, written, tick_ms, who)
        return Appended(base, append_time_ms, False)

    def append_own(self, batch: bytes, now_ms: int, on_done: OnDone) -> int:
        """Takes a batch that this broker built, unjudged; gives its base offset. Raises KafkaError when it
        takes none."""
        if not self.is_led or self.state.doubts:
            raise self._refusal()
        view = memoryview(batch)
        return self._take(view, BatchHeader(batch), now_ms, on_done, crc32c(view[CRC_START:]))

    def _refusal(self) -> KafkaError:
        """Why it takes no batch. Where that is damage, it is looked whether it is there still."""
        if not self.is_led:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not self._is_looking:
            self._is_looking = True
            self._spawn(self._look_again())
        (start, end), *_ = self.state.doubts
        text = (
            f"offsets {start} to {end - 1} of {self.topic_name}-{self.index} cannot be read: the "
            "broker's "
            "log names the remedies"
        )
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, text)

    async def _look_again(self) -> None:
        """Once for all that is refused meanwhile, and no more often than each LOOK_AGAIN_S."""
        try:
            if await is_readable(self.data, self.state.doubts):
                self.on_readable()
                return
            await asyncio.sleep(LOOK_AGAIN_S)
        finally:
            self._is_looking = False

    def _take(
        self, view: memoryview, header: BatchHeader, now_ms: int, on_done: OnDone, tail_crc: int
    ) -> int:
        """`tail_crc`: of the view from CRC_START on, as found; engine and WAL carry it on."""
        data = self.data
        base = data.next_offset
        end = base + header.last_offset_delta + 1
        batch_length = header.batch_length
        head = restamp_head(base, batch_length, self.leader_epoch, header.crc)
        data.append(end - base, (head, view[CRC_START:]), on_done, tail_crc)
        self._in_flight.append((end, batch_length + 12))
        self.state.add(end, batch_length + 12, header.max_timestamp, now_ms, self._settings, self._life_ms)
        return base

    def _repeat(self, known: WrittenBatch, on_done: OnDone) -> Appended:
        is_durable = known.last_offset < self.data.confirmed_end
        if not is_durable:
            self._awaiting.append((known.last_offset + 1, on_done))
        return Appended(
            known.base_offset, known.timestamp_ms if self._settings.rules.is_append_time else -1, is_durable
        )

    def confirmed(self, end: int) -> asyncio.Future[None]:
        """Completes once everything below `end` is durable. `end` must have been given."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if end <= self.data.confirmed_end:
            future.set_result(None)
        else:
            self._awaiting.append((end, lambda _: None if future.done() else future.set_result(None)))
        return future

    def _on_advance(self, stream: Stream) -> None:
        confirmed_end, in_flight = stream.confirmed_end, self._in_flight
        size_bytes = 0
        while in_flight and in_flight[0][0] <= confirmed_end:
            size_bytes += in_flight.popleft()[1]
        if (
            self.subscriptions
        ):  # the visible ends of both isolations moved: nothing holds the last stable offset back
            notify_bytes(self.subscriptions, size_bytes)
        if self._awaiting:
            self._release(confirmed_end)
        if self.state.unsaved_bytes >= self._save_at_bytes and self.is_led and not self._save_lock.locked():
            self._spawn(self.save())

    def _release(self, confirmed_end: int) -> None:
        released = [on_done for end, on_done in self._awaiting if end <= confirmed_end]
        self._awaiting = [waiting for waiting in self._awaiting if waiting[0] > confirmed_end]
        for on_done in released:
            on_done(None)

    # -- producers

    def find_producer(self, producer_id: int, who: str) -> asyncio.Future[None] | None:
        """Where the producer's state is in the log: done when it is in memory, or could not be read, which
        `append` then says. None where there is nothing to wait for."""
        if not self.state.producers.is_cold(producer_id):
            return None
        if self._lookups is None:
            self._lookups = Lookups(self.meta, self.state.producers)
        return self._lookups.find(producer_id, who)

    async def cool_producers(self, keep_count: int) -> None:
        """Moves producers' states from memory to the log, those that wrote longest ago first, until so many
        are left."""
        if not self._is_cooling and self.is_led:
            self._is_cooling = True
            try:
                await cool(self.meta, self.state, keep_count, self.data.confirmed_end)
            finally:
                self._is_cooling = False

    def _on_crowded(self) -> None:
        if not self._is_cooling and self.is_led:
            self._spawn(self.cool_producers(self.state.producers.hot_count_kept))

    # -- log start

    def raise_log_start(self, offset: int, now_ms: int, on_done: Callable[[], None] | None = None) -> None:
        """Drops what lies below `offset`, at most the high watermark. Shown once it is durable, then
        `on_done` is called and the streams are trimmed behind it."""
        assert offset <= self.high_watermark, (offset, self.high_watermark)
        if offset <= self.log_start_offset:
            if on_done is not None:
                on_done()
            return
        self._asked_log_start = asked = max(offset, self._asked_log_start)
        self.meta.put(self.state.raise_log_start(asked, now_ms), partial(self._on_log_start, asked, on_done))

    def _on_log_start(self, offset: int, on_done: Callable[[], None] | None) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.state.log_start_shown(offset)
            if self._start_moved is not None and not self._start_moved.done():
                self._start_moved.set_result(None)
            notify_change(self.subscriptions)
            self.trim_streams()
        if on_done is not None:
            on_done()

    def trim_streams(self) -> None:
        """Lets the streams forget what no reader is shown any more, in the background."""
        if self.data.start < self.log_start_offset and not self._trim_lock.locked():
            self._spawn(self._trim())

    async def _trim(self) -> None:
        async with self._trim_lock:
            try:
                while self.data.start < self.log_start_offset:
                    await self._save_producers()
                    await self.data.trim(self.log_start_offset)
                    time_start = min(self.state.time_start(self.time.confirmed_end), self.time.confirmed_end)
                    if time_start > self.time.start:
                        await self.time.trim(time_start)
            except (Fenced, Closed, StreamMissing) as error:
                log.info("%r: streams were not trimmed here: %s", self, in_words(error))

    async def _save_producers(self) -> None:
        """Before batches leave the log that tell of producers what no checkpoint tells yet. Not where that
        would have to wait for room: what is deleted may be what makes some."""
        await self.saved()
        state = self.state
        is_told = state.saved_end >= self.log_start_offset or not len(state.producers)
        room_bytes = min(self._room.entry_bytes_max, self._room.room_bytes)
        if not is_told and state.checkpoint_bytes <= room_bytes:
            await self.save()

    # -- life

    async def save(self, *, may_wait: bool = True) -> None:
        """Writes a checkpoint of everything appended by now; durable on return. Nothing is written when
        nothing changed, nor when it could never fit, or not without waiting for room where it may not: then
        the next opening reads the log's headers from the checkpoint before."""
        async with self._save_lock:
            state = self.state
            if state.is_saved:
                return
            needed_bytes = state.checkpoint_bytes
            if needed_bytes > self._room.entry_bytes_max:
                state.forget_times()
                needed_bytes = state.checkpoint_bytes
            if not may_wait and needed_bytes > self._room.room_bytes:
                log.info("%r: no checkpoint, as there is no room in the WAL now", self)
                return
            if not await self._has_room(needed_bytes):
                self._save_at_bytes = state.unsaved_bytes + CHECKPOINT_BYTES
                log.info("%r: the WAL is too small for a checkpoint of %d bytes", self, needed_bytes)
                return
            loop = asyncio.get_running_loop()
            checkpoint = state.checkpoint(
                self.data.next_offset, self.time.next_offset, int(loop.time() * 1000)
            )
            for chunk in checkpoint.chunks:
                self.time.append(len(chunk), (chunk,))
            done: asyncio.Future[None] = loop.create_future()
            self.meta.put(checkpoint.values, lambda: None if done.done() else done.set_result(None))
            self._save_at_bytes = max(CHECKPOINT_BYTES, CHECKPOINT_RATIO * needed_bytes)
            await done

    async def _has_room(self, needed_bytes: int) -> bool:
        """Waits for it; False when it could never be."""
        if needed_bytes > self._room.entry_bytes_max:
            return False
        if needed_bytes > self._room.room_bytes:
            try:
                await self._room.wait_for_room(needed_bytes)
            except Exhausted:
                return False
        return True

    async def saved(self) -> None:
        """Returns once no checkpoint is under way."""
        async with self._save_lock:
            pass

    def raise_epoch(self, leader_epoch: int) -> None:
        """Still the leader, in a later epoch: fetches that know the old one are answered."""
        if leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.state.begin_epoch(leader_epoch, self.data.next_offset)
            complete_all(self.subscriptions)

    def become_copy(self) -> None:
        """It has what objects hold of a partition that nobody can lead, and is there for readers: it takes no
        batch, and its end is not the partition's (reading_copies.py)."""
        self.is_led, self.is_copy = False, True
        self.state.producers.forget_all()

    def resign(self) -> None:
        """Takes no more batches, and answers the fetches that wait. What is in flight is still acknowledged,
        unless it became void. Nothing is charged for its states any more."""
        self.is_led = False
        self.state.producers.release()
        complete_all(self.subscriptions)

    @property
    def has_to_upload(self) -> bool:
        """Whether a close would wait for an upload."""
        streams = (self.data, self.time, self.meta.stream)
        return not self.state.is_saved or any(stream.committed_end < stream.next_offset for stream in streams)

    async def close(self, *, is_sealing: bool = False) -> None:
        """Resigns, leaves a checkpoint at the log's end and gives the streams up to their next owner; with
        `is_sealing` at once, and what is not uploaded is owed. Its small states, producers' among them, are
        what that one has to read then, and the end of the log where no room is left for a checkpoint."""
        self.resign()
        try:
            while self.log_start_offset < self._asked_log_start:
                self._start_moved = asyncio.get_running_loop().create_future()
                await self._start_moved
            await self._trim()
            await self.save(may_wait=not is_sealing)
            if is_sealing:
                await self.meta.gather()
                await asyncio.gather(self.data.seal(), self.time.seal(), self.meta.stream.seal())
                return
            await asyncio.gather(self.data.close(), self.time.close(), self.meta.stream.close())
        except (Fenced, Closed, StreamMissing) as error:
            log.info("%r was not closed in order: %s", self, in_words(error))
