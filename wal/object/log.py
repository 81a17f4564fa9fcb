"""The object WAL: records gathered into objects of a store, several on their way at once, confirmed in order.

An append copies into the open batch and returns its place. Uploads begin a batch interval apart, and what
comes between them gathers; after a pause the batch is closed and put at once, on the next iteration of the
loop, so that the requests of one iteration share an object (batcher.py has the rule, and another for a log
that favours latency). A trim rides in the header of the next object; only an idle log makes one for it.

It wires the parts: `batcher.py` gathers, `writer.py` puts and confirms, `fence.py` takes the log from its
last owner and keeps it ours, `recovery.py` decides what counts, `reader.py` reads, `space.py` counts,
`leftovers.py` deletes. It keeps `wal/log.py`'s contract. It does not know what a payload means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from millrace.runtime.disk import Buffer
from millrace.runtime.disk.aligned import Arena, ArenaPool
from millrace.runtime.objectstore import ObjectMissing, ObjectStore
from millrace.runtime.rand import Rand
from millrace.wal.config import ObjectWalSettings
from millrace.wal.errors import WalClosed, WalCorrupt, WalFull, WalMismatch, WalOutdated
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark, WalIdentity
from millrace.wal.log import WalOwner, WalRecord
from millrace.wal.object.batcher import Batcher, ClosedBatch, wait_ms
from millrace.wal.object.fence import Fence, Taken, make_fence
from millrace.wal.object.hedging import Hedging
from millrace.wal.object.layout import (
    HEADER_BYTES,
    MAGIC,
    FenceKind,
    Kind,
    ObjectHeader,
    Place,
    Stamp,
    claim_key,
    decode_header,
    encode_cluster_id,
    object_key,
    root_key,
)
from millrace.wal.object.leftovers import Leftovers
from millrace.wal.object.reader import LogReader
from millrace.wal.object.recovery import REFUSE, Damage, Extent, Listing, ObjectScan, find_garbage, find_tip
from millrace.wal.object.space import LiveObjects, payload_room
from millrace.wal.object.writer import BatchWriter, Upload
from millrace.wal.record import RECORD_HEADER_BYTES

log = logging.getLogger(__name__)

FENCES = {"conditional": FenceKind.CONDITIONAL, "reservation": FenceKind.RESERVATION}
TIMER_SLACK_S = 0.001
# uvloop's timers go in whole milliseconds: a shorter wait is none there, and would run the loop until it is
# over.
LEAST_WAIT_MS = 0.5
DAMAGES_LOGGED_MAX = 50
LATER_EPOCH = 1 << 62  # above every owner's
LOOKS_MAX = 5
_OVERHEAD_BYTES = HEADER_BYTES + RECORD_HEADER_BYTES


class ObjectWal:
    """`open`, `recover` to the end, perhaps `reset`, `start`; then `append` and `trim`; `close`."""

    def __init__(
        self,
        store: ObjectStore,
        reader: LogReader,
        fence: Fence,
        taken: Taken,
        settings: ObjectWalSettings,
        owner: WalOwner,
    ) -> None:
        self.wal_id = wal_id_of(taken.root_token)
        self._store = store
        self._reader = reader
        self._fence = fence
        self._taken = taken
        self._settings = settings
        self._owner = owner
        self._pool = ArenaPool(settings.arena_bytes, ahead_count=settings.arenas_ahead)
        self._arena: Arena | None = None
        self.capacity_bytes = settings.capacity_bytes
        least_bytes = min(settings.capacity_bytes, settings.unflushed_bytes_max)
        self.max_record_bytes = min(settings.max_record_bytes, least_bytes // 3 - _OVERHEAD_BYTES)
        self.is_new = taken.link is None
        extent = taken.extent
        self._objects = LiveObjects(extent.position)
        self._leftovers = Leftovers(store)
        self._batcher = Batcher(owner.epoch, extent.end)
        self.hedging = Hedging(is_on=settings.hedge != "off", is_eager=not settings.interval_ms)
        self._writer = BatchWriter(
            fence,
            extent.end,
            hedging=self.hedging,
            uploads_max=settings.uploads_max,
            has_more=lambda: self._batcher.is_open,
            stamp=self._stamp,
            on_group=self._on_group,
            on_failed=self._fail,
        )
        self.damages: list[Damage] = []  # what recovery stepped over or cut off
        self._kept: list[str] = []  # keys that wait for a reset
        self._appended_end = self._trim_asked = self._trim_stamped = self._trim_durable = extent.trim
        self._closing_slot = -1
        self._is_recovered = self._is_started = self._is_closed = self._is_flush_due = False
        self._failure: BaseException | None = None
        self._mark = taken.mark
        self.found_mark = taken.found_mark
        self._moved = asyncio.Event()  # a group was confirmed, or the log failed
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # when it is due, in the loop's seconds
        self._trim_timer: asyncio.TimerHandle | None = None
        self._on_confirmed: Callable[[int], None] = lambda end: None
        self._on_failed: Callable[[BaseException], None] = lambda error: None

    @staticmethod
    async def open(store: ObjectStore, settings: ObjectWalSettings, owner: WalOwner, rand: Rand) -> ObjectWal:
        """On return no owner before this one can acknowledge any more. Raises WalMismatch for another
        cluster's or node's log, WalFenced unless the owner's epoch is higher than every one before,
        WalCorrupt. Waits for a store that does not answer. The store is closed with the log, and when this
        raises."""
        try:
            encode_cluster_id(owner.cluster_id)
            reader = LogReader(store, owner, rand, is_lenient=settings.corruption != REFUSE)
            fence = make_fence(FENCES[settings.fence], store, reader, owner, rand.split("wal owner"))
            return ObjectWal(store, reader, fence, await fence.take(), settings, owner)
        except BaseException:
            await store.close()
            raise

    def see_metadata(self, mark: MetadataMark) -> None:
        """As the contract says; the header of an object is made as its first put begins."""
        if self._owner.new_wal_id != NO_WAL_ID and mark.offset > self._mark.offset:
            self._mark = mark

    async def mark_metadata(self) -> None:
        """Leaves it to the next object, whose header is paid for anyway: until then nothing is durable that
        depends on it."""

    @property
    def has_given_up(self) -> bool:
        return bool(self.damages)

    @property
    def confirmed_end(self) -> int:
        return self._writer.confirmed

    @property
    def used_bytes(self) -> int:
        end = self._batcher.next_position if self._batcher.is_open else self._appended_end
        return max(0, end - self._trim_durable)

    @property
    def room_bytes(self) -> int:
        return payload_room(self._raw_room, self._settings.batch_bytes_max)

    @property
    def blocked_reason(self) -> str:
        return self._writer.blocked_reason

    @property
    def _raw_room(self) -> int:
        unflushed_bytes = self._batcher.next_position - self._writer.confirmed
        return min(
            self.capacity_bytes - self.used_bytes, self._settings.unflushed_bytes_max - unflushed_bytes
        )

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        """As the contract says. When it ends, the log has an object of its own if it never had one; where
        there was damage, nothing of the log is deleted before `reset`, for what recovery made of it may be
        refused."""
        assert not self._is_recovered, "recover() is for once"
        extent, listing = self._taken.extent, self._taken.listing
        if extent.end < self._owner.committed_end:
            raise WalOutdated(extent.end, self._owner.committed_end)
        scan = ObjectScan(extent, self._settings.corruption)
        async with aclosing(
            self._reader.objects(extent.places(), listing, self._settings.ahead_bytes)
        ) as objects:
            async for place, data in objects:
                if data is None:
                    await self._fence.check_replaced()
                for record in scan.feed(place, None if data is None else memoryview(data)):
                    self._appended_end = record.end
                    yield record
                if scan.is_done:
                    break
        scan.finish()
        for place, position, end in scan.ends:
            self._objects.add(place, end, position)
        self._is_recovered = True
        self._clean(scan, listing, extent)
        if self.is_new:
            self._close_batch()
            await self._settle()

    def _clean(self, scan: ObjectScan, listing: Listing, extent: Extent) -> None:
        """Deletes what no recovery needs; where there was damage, that and what was given up wait for the
        reset."""
        epoch = self._owner.epoch
        keys = [self._key(place) for place in find_garbage(listing, extent, epoch)]
        keys += (claim_key(self._reader.prefix, claim) for claim in listing.claims if claim < epoch)
        self.damages = scan.damages
        if self._taken.is_root_damaged:
            log.warning(
                "the WAL's object %s, where the log begins, is gone or cannot be read. As wal.corruption=%s "
                "says, the log was found by its other "
                "objects; it is put anew when they are recovered",
                root_key(self._owner.node_id), self._settings.corruption,
            )  # fmt: skip
        if not self.damages and not self._taken.is_root_damaged:
            self._leftovers.add(keys)
            return
        found = {place for place, _, _ in scan.ends}
        lost = (place for place in extent.places() if place not in found and listing.size(place) is not None)
        self._kept = keys + [self._key(place) for place in lost]
        for damage in self.damages[:DAMAGES_LOGGED_MAX]:
            log.error(
                "the WAL is damaged at position %d: %s. As wal.corruption=%s says, recovery goes on without "
                "positions %d to %d",
                damage.start, damage.reason, self._settings.corruption, damage.start, damage.end,
            )  # fmt: skip

    def start(self, on_confirmed: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        assert self._is_recovered, "recover() to its end comes first"
        assert not self.damages, "reset() comes first where there was damage"
        assert not self._is_started, "start() is for once"
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._is_started = True
        self._loop = asyncio.get_running_loop()
        if self._failure is not None:
            self._loop.call_soon(on_failed, self._failure)

    def append(self, *parts: Buffer, tail_crc: int | None = None) -> WalRecord:
        """Parts are one-dimensional buffers of bytes. ValueError for a payload beyond `max_record_bytes`."""
        length = 0
        for part in parts:
            length += len(part)
        batcher = self._batcher
        if batcher.fill + length + RECORD_HEADER_BYTES > batcher.limit:
            self._turn_over(length)
        record = batcher.add(parts, length, tail_crc)
        if not self._is_flush_due and self._timer is None and self._writer.has_free_slot:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        return record

    def _turn_over(self, length: int) -> None:
        """Finds room for a record of this length, in the open batch or the next one, or changes nothing and
        raises."""
        self._check_open()
        assert self._is_started, "start() comes before append()"
        if length > self.max_record_bytes:
            raise ValueError(f"a payload of {length} bytes; the log takes {self.max_record_bytes}")
        batcher, batch_bytes_max = self._batcher, self._settings.batch_bytes_max
        needed_bytes = length + RECORD_HEADER_BYTES
        if needed_bytes + HEADER_BYTES > self._raw_room:
            raise WalFull(length, self.room_bytes)
        if batcher.is_open and batcher.body_bytes + needed_bytes > batch_bytes_max:
            self._close_batch()
        if batcher.arena_bytes_left < needed_bytes:
            self._change_arena(needed_bytes)
        body_bytes = batcher.body_bytes if batcher.is_open else 0
        room_bytes = self._raw_room - (0 if batcher.is_open else HEADER_BYTES)
        stretch_bytes = max(needed_bytes, batch_bytes_max - body_bytes)
        batcher.limit = batcher.fill + min(batcher.arena_bytes_left, room_bytes, stretch_bytes)

    def _change_arena(self, needed_bytes: int) -> None:
        last, self._arena = self._arena, self._pool.take(needed_bytes)
        self._batcher.use_arena(self._arena.view)
        if last is not None:
            self._pool.retire(last)

    def _close_batch(self) -> None:
        """Gives the open batch to the writer, or a mark when none is open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch = self._batcher.close()
        if batch.record_count:
            self._appended_end = batch.end
        self._objects.add(Place(self._owner.epoch, batch.slot), batch.end, batch.position)
        self._writer.put(batch)

    def _flush(self) -> None:
        """Closes the open batch if its time has come, or sees to it that somebody looks again then."""
        self._is_flush_due = False
        batcher, writer, settings = self._batcher, self._writer, self._settings
        if not batcher.is_open or not writer.has_free_slot or self._failure is not None:
            return
        now = self._loop.time()
        left_ms = wait_ms(
            writer.uploads,
            writer.since_last_ms(now),
            batcher.body_bytes,
            settings.batch_bytes_max,
            settings.interval_ms,
            self.hedging.gather_ms(batcher.body_bytes, now * 1000),
        )
        if left_ms < LEAST_WAIT_MS:
            self._close_batch()
            return
        wait_s = left_ms / 1000
        writer.hedge_now()
        if self._timer is not None:
            if self._timer_at <= now + wait_s + TIMER_SLACK_S:
                return
            self._timer.cancel()
        # A handle's own time is not asked: uvloop's call_later gives one without for waits that it rounds to
        # 0.
        self._timer, self._timer_at = self._loop.call_later(wait_s, self._on_timer), now + wait_s

    def _on_timer(self) -> None:
        self._timer = None
        self._flush()

    def _stamp(self, batch: ClosedBatch) -> tuple[Stamp, list[Buffer]]:
        """The writer's question at the last moment before the bytes go out."""
        place = Place(self._owner.epoch, batch.slot)
        head, head_position = self._objects.head_for(self._trim_asked) or (place, batch.position)
        self._trim_stamped = self._trim_asked
        stamp = Stamp(self._writer.confirmed_slot, self._trim_asked, head, head_position, self._mark)
        header = ObjectHeader(
            Kind.CLOSING if batch.slot == self._closing_slot else Kind.RECORDS,
            self._fence.kind,
            self._owner.cluster_id,
            self._owner.node_id,
            self._owner.epoch,
            self._fence.token,
            place,
            batch.position,
            batch.body_bytes,
            batch.record_count,
            stamp,
            self._taken.link,
        )
        return stamp, [header.encode(), *batch.parts]

    def _on_group(self, group: list[Upload]) -> None:
        """The confirmed end moved: the store is fed first, then the news is told."""
        if self._is_started:
            self._flush()
        stamp = group[-1].stamp
        if stamp.trim > self._trim_durable:
            self._trim_durable = stamp.trim
            self._leftovers.add(self._key(place) for place in self._objects.forget(stamp.head_position))
            self._pool.sweep()
        try:
            self._on_confirmed(self._writer.confirmed)
        except Exception as error:
            self._writer.fail(error)  # whoever missed a confirmation can never be told again
        self._pulse()

    async def trim(self, end: int) -> None:
        """Many trims share an object, and ride with records where there are any. Cancelling the wait does not
        undo the trim."""
        assert self._is_recovered, "recover() to its end comes first"
        assert end <= self._writer.confirmed, (end, self._writer.confirmed)
        self._trim_asked = max(self._trim_asked, end)
        while self._trim_durable < end:
            self._check_open()
            self._carry_soon()
            await self._moved.wait()

    def _carry_soon(self) -> None:
        if self._trim_stamped >= self._trim_asked or self._trim_timer is not None:
            return
        wait_s = self._settings.trim_wait_ms / 1000 if self._is_started else 0.0
        self._trim_timer = asyncio.get_running_loop().call_later(wait_s, self._carry)

    def _carry(self) -> None:
        """Unless an object took the trim along meanwhile, or is about to, one goes now."""
        self._trim_timer = None
        if self._trim_stamped < self._trim_asked and self._failure is None and self._writer.has_free_slot:
            self._close_batch()

    async def reset(self) -> None:
        """As the contract says; and ends what damage there was. A close ends its wait for a store that does
        not answer: WalClosed."""
        is_damaged = bool(self.damages) or self._taken.is_root_damaged
        await self.trim(
            self._writer.confirmed if is_damaged else min(self._appended_end, self._writer.confirmed)
        )
        if self._fence.kind is FenceKind.RESERVATION and not self._batcher.slot:
            # No seal stands behind what was read, so only an object of ours, by its link, makes void what
            # arrives there late.
            self._close_batch()
            await self._settle()
        if self._taken.is_root_damaged:
            await self._put_root()
        self.damages = []
        self._leftovers.add(self._kept)
        self._kept = []

    async def _put_root(self) -> None:
        """Given up, its outcome unknown, when the log is closed or fails: the root is put again by the reset
        of whoever finds it damaged."""
        putting = asyncio.create_task(self._fence.put_root(), name="wal-root")
        putting.add_done_callback(lambda _: self._pulse())
        try:
            while not putting.done():
                self._check_open()
                await self._moved.wait()
            await putting
        finally:
            putting.cancel()

    async def close(self) -> None:
        """As the contract says, but waits no longer than the settings allow for a store that does not answer:
        what was not confirmed by then never is."""
        if self._is_closed:
            return
        self._is_closed = True
        self._batcher.limit = 0
        for timer in (self._timer, self._trim_timer):
            if timer is not None:
                timer.cancel()
        try:
            async with asyncio.timeout(self._settings.close_wait_ms / 1000):
                await self._say_goodbye()
                await self._leftovers.finish()
        except TimeoutError:
            log.warning(
                "the WAL was closed before its store had answered; the next start looks at what arrived"
            )
        await self._writer.stop()
        self._pulse()
        await self._leftovers.stop()
        await self._store.close()
        self._pool.close()

    async def _say_goodbye(self) -> None:
        """Everything appended is confirmed, and after it that this owner writes no more."""
        if not self._is_recovered or self._failure is not None:
            return
        if self._batcher.is_open:
            self._close_batch()
        self._closing_slot = self._batcher.slot
        self._close_batch()
        await self._wait_idle()

    async def _settle(self) -> None:
        """Until all that was put is confirmed. Raises as an append does, WalClosed also for a close that came
        meanwhile."""
        while not self._writer.is_idle:
            self._check_open()
            await self._moved.wait()
        self._check_open()

    async def _wait_idle(self) -> None:
        """Until all that was put is confirmed, or the log has failed."""
        while not self._writer.is_idle and self._failure is None:
            await self._moved.wait()

    def _check_open(self) -> None:
        if self._failure is not None and not self._is_started:
            raise self._failure  # nobody was told yet
        if self._failure is not None:
            raise WalClosed("a write failed") from self._failure
        if self._is_closed or not self._is_recovered:
            raise WalClosed("the log is closed")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._batcher.limit = 0
        self._pulse()
        self._on_failed(error)

    def _pulse(self) -> None:
        self._moved.set()
        self._moved.clear()

    def _key(self, place: Place) -> str:
        return object_key(self._reader.prefix, place)


async def identify(store: ObjectStore, node_id: int, rand: Rand) -> WalIdentity | None:
    """What the log of this node id says of itself, whichever cluster's; without an id where its root cannot
    be read. One listing and a few headers, as an opening needs."""
    try:
        root = decode_header(await store.get_range(root_key(node_id), 0, HEADER_BYTES), 0)
    except ObjectMissing:
        return None
    except WalCorrupt:
        return WalIdentity(None, None, NO_MARK)
    reader = LogReader(store, WalOwner(root.cluster_id, node_id, LATER_EPOCH), rand)
    epoch, mark = await _last_owner(reader, root.epoch)
    return WalIdentity(wal_id_of(root.token), epoch, mark, root.cluster_id, root.node_id)


async def _last_owner(reader: LogReader, first_epoch: int) -> tuple[int | None, MetadataMark]:
    """The epoch of whoever sealed or claimed the log last, or None where damage hides it, or an owner at work
    moves on too fast: opening it tells more. And what metadata the log names. An owner's objects name ever
    more, and the first word of each later one, its seal or claim, more than those before it, for its own
    start is in the metadata. So the newest says it, whether its object counts or not; a durable trim is in
    that object or in one before it. A later owner's word counts alone: one that was replaced may have named a
    fork of the metadata until it was sealed out."""
    for _ in range(LOOKS_MAX):
        try:
            listing = await reader.list()
            tip = await reader.search(find_tip(listing, first_epoch, LATER_EPOCH, b"", None))
            epoch = max(listing.claims, default=tip.place.epoch)
            if epoch <= tip.place.epoch:
                return tip.place.epoch, tip.mark
            claim = await reader.named(claim_key(reader.prefix, epoch))
        except ObjectMissing:
            continue
        except (WalCorrupt, WalMismatch):
            return None, NO_MARK
        if claim is not None:
            return epoch, tip.mark if claim.stamp.mark == NO_MARK else claim.stamp.mark
    return None, NO_MARK


def wal_id_of(root_token: bytes) -> bytes:
    """The root is put once in the life of a log, with a token that its first owner drew: that is the log's
    id."""
    return MAGIC + root_token
