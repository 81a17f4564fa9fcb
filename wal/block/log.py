"""The block WAL: a ring on a raw device or a preallocated file, one aligned write for whatever waits.

An append copies into the open block and returns its place. The block is closed and written at once when the
device is idle; while writes are under way, records gather in it. No timer is on this path: a flush is
scheduled with `call_soon`, at most once a loop iteration, so that the requests of one iteration share a
write. (A limit on operations, `iops`, has the only one.)

It wires the parts: `batcher.py` gathers, `writer.py` writes and confirms, `space.py` says what fits,
`device.py` keeps the header, `recovery.py` reads. It keeps `wal/log.py`'s contract. It does not know what a
payload means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from millrace.runtime.disk import Buffer, Disk, DiskFailed
from millrace.runtime.disk.aligned import Arena, ArenaPool
from millrace.wal.block.batcher import Batcher
from millrace.wal.block.device import BlockDevice
from millrace.wal.block.fill import ZeroFill
from millrace.wal.block.layout import BLOCK_BYTES, BLOCK_HEADER_BYTES, align_down, align_up
from millrace.wal.block.reading import RingReads
from millrace.wal.block.recovery import Damage, RecoveryScan
from millrace.wal.block.space import BlockEnds, RingSpace
from millrace.wal.block.writer import BlockWriter
from millrace.wal.config import BlockWalSettings
from millrace.wal.errors import WalClosed, WalFull, WalOutdated
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark
from millrace.wal.log import WalOwner, WalRecord
from millrace.wal.record import RECORD_HEADER_BYTES

log = logging.getLogger(__name__)

_OVERHEAD_BYTES = BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES


class BlockWal:
    """`open`, `recover` to the end, perhaps `reset`, `start`; then `append` and `trim`; `close`."""

    def __init__(
        self, device: BlockDevice, settings: BlockWalSettings, owner: WalOwner, incarnation: bytes = b""
    ) -> None:
        self._device = device
        self._settings = settings
        self._owner = owner
        self._incarnation = incarnation
        self._pool = ArenaPool(settings.arena_bytes, ahead_count=settings.arenas_ahead)
        self._arena: Arena | None = None
        self._ends = BlockEnds()
        self._is_recovered = self._is_owned = self._is_started = self._is_closed = self._is_flush_due = False
        self._failure: BaseException | None = None
        self.is_new = device.header.epoch < 0
        self.wal_id = device.header.wal_id
        self._mark = device.header.mark
        self.damages: list[Damage] = []  # what recovery stepped over or cut off
        self._trim_asked = device.header.trim
        self._header_write: asyncio.Task[None] | None = None
        self._fill_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._on_confirmed: Callable[[int], None] = lambda end: None
        self._on_failed: Callable[[BaseException], None] = lambda error: None
        self._build(device.header.head)

    @staticmethod
    async def open(
        disk: Disk, path: str, settings: BlockWalSettings, owner: WalOwner, *, incarnation: bytes = b""
    ) -> BlockWal:
        """Opens or formats. Raises WalMismatch for another cluster's or node's log, WalFenced unless the
        owner's epoch is higher than every one before, or where another opens the log at the same time,
        WalCorrupt for an unreadable header; the disk's own errors. `incarnation`: 16 bytes of chance, for a
        log that is fenced by claims."""
        device = await BlockDevice.open(disk, path, settings, owner, incarnation)
        return BlockWal(device, settings, owner, incarnation)

    def _build(self, tail: int) -> None:
        """The parts that depend on where the log ends and how large its ring is."""
        header, settings = self._device.header, self._settings
        geometry = header.geometry
        self.capacity_bytes = geometry.ring_bytes
        self.max_record_bytes = min(
            settings.max_record_bytes, align_down(geometry.ring_bytes // 3) - _OVERHEAD_BYTES
        )
        soft_bytes = min(settings.block_soft_bytes, align_down(geometry.ring_bytes // 4))
        self._soft_bytes = align_up(soft_bytes)
        block_bytes_max = max(self._soft_bytes, align_up(self.max_record_bytes + _OVERHEAD_BYTES))
        self._block_bytes_max = block_bytes_max
        self._block_bytes_declared = header.block_bytes_max
        self._space = RingSpace(
            geometry, header.head, block_bytes_max, self._soft_bytes, settings.arena_bytes
        )
        self._batcher = Batcher(self._owner.epoch, tail)
        self._writer = BlockWriter(
            self._device.fence or self._device.file,
            geometry,
            tail,
            writes_in_flight=settings.writes_in_flight,
            writes_at_first=settings.writes_at_first,
            window_bytes=settings.window_bytes,
            block_bytes_allowed=header.block_bytes_max,
            on_group=self._on_group,
            on_failed=self._fail,
            on_slot=self._flush,
            iops=settings.iops,
            operations_beside=0 if self._device.fence is None else 1,
        )
        self._fill = ZeroFill(
            self._device.fence or self._device.file,
            geometry,
            self._writer,
            header.filled_bytes,
            settings.fill_ahead_bytes,
            self._reach,
        )

    @property
    def is_direct(self) -> bool:
        return self._device.file.is_direct

    @property
    def has_given_up(self) -> bool:
        return bool(self.damages)

    @property
    def confirmed_end(self) -> int:
        return self._writer.confirmed

    @property
    def used_bytes(self) -> int:
        return self._batcher.next_position - self._space.head

    @property
    def room_bytes(self) -> int:
        return self._space.room_bytes(self._batcher.next_position)

    @property
    def blocked_reason(self) -> str:
        """A device answers, or fails for good."""
        return ""

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        """As the contract says. When it ends, this owner's epoch is durable in the header; where there was
        damage, nothing is changed before `reset` or `trim`, for what it made of the log may be refused."""
        assert not self._is_recovered, "recover() is for once"
        scan = RecoveryScan(self._device.header, policy=self._settings.corruption)
        reads = RingReads(self._device.file, self._space.geometry)
        try:
            while (wanted := scan.wanted()) is not None:
                try:
                    data, unreadable = await reads.take(wanted)
                except DiskFailed:
                    if not scan.is_cut:
                        raise
                    scan.stop()
                    break
                if len(scan.ends):
                    reads.begin(scan.following(sum(wanted)))
                for record in scan.feed(data, unreadable):
                    yield record
        finally:
            reads.drop()
        reached = max([scan.tail, *(damage.end for damage in scan.damages)])
        if reached < self._owner.committed_end:
            raise WalOutdated(reached, self._owner.committed_end)
        self._ends = scan.ends
        self._report(scan.damages)
        tail = scan.tail
        if (
            tail < self._owner.committed_end
        ):  # cut below it: metadata would take a log that ends there for an older copy
            tail = align_up(self._owner.committed_end)
            self._ends.add(tail)
        self._trim_asked = min(self._trim_asked, tail)
        self._build(tail)
        self._is_recovered = True
        if not scan.damages:
            await self._take_over()

    async def _take_over(self) -> None:
        """Ends what other owners may have written: only this one's blocks count from here on. Durable on
        return."""
        tail = self._batcher.tail
        await self._device.write_both(
            trim=self._trim_asked,
            epoch=self._owner.epoch,
            epoch_start=tail,
            earlier=self._device.header.earlier_than(tail),
            confirmed=tail,
            closed_end=-1,
            block_bytes_max=self._soft_bytes,
            window_bytes=self._settings.window_bytes,
            mark=self._mark,
            holder=self._device.holder,
        )
        self._build(tail)
        self._is_owned = True

    def _report(self, damages: list[Damage]) -> None:
        self.damages = damages
        for damage in damages:
            log.error(
                "the WAL is damaged at position %d (byte %d of the file): %s. As wal.corruption=%s says, "
                "recovery goes on without positions "
                "%d to %d, and so without %d records there that are sound",
                damage.start, damage.place, damage.reason, self._settings.corruption, damage.start,
                damage.end, damage.sound_count,
            )  # fmt: skip

    def start(self, on_confirmed: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        assert self._is_owned, "recover() to its end comes first, and reset() where there was damage"
        assert not self._is_started, "start() is for once"
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self._is_started = True
        self._loop = asyncio.get_running_loop()
        if self._settings.fill_ahead_bytes and self._device.fence is None:  # late zeros could be anywhere
            self._fill_task = asyncio.create_task(self._run_fill(), name="wal-fill")
        if self._device.fence is not None:
            watch = self._device.fence.watch(self._writer.fail)
            self._watch_task = asyncio.create_task(watch, name="wal-watch")

    def append(self, *parts: Buffer, tail_crc: int | None = None) -> WalRecord:
        """Parts are one-dimensional buffers of bytes. ValueError for a payload beyond `max_record_bytes`."""
        length = 0
        for part in parts:
            length += len(part)
        batcher = self._batcher
        if batcher.fill + length + RECORD_HEADER_BYTES > batcher.limit:
            self._turn_over(length)
        record = batcher.add(parts, length, tail_crc)
        if not self._is_flush_due and self._writer.has_free_slot:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        return record

    def _turn_over(self, length: int) -> None:
        """Closes the open block and opens the next, or changes nothing and raises."""
        self._check_open()
        assert self._is_started, "start() comes before append()"
        if length > self.max_record_bytes:
            raise ValueError(f"a payload of {length} bytes; the log takes {self.max_record_bytes}")
        batcher, space = self._batcher, self._space
        needed_bytes = align_up(length + _OVERHEAD_BYTES)
        position = space.place(batcher.next_position, needed_bytes)
        if position is None:
            raise WalFull(length, self.room_bytes)
        if batcher.is_open:
            self._close_block()
        if batcher.arena_bytes_left < needed_bytes:
            self._change_arena(needed_bytes)
        block_bytes = min(max(self._soft_bytes, needed_bytes), space.limit(position) - position)
        batcher.open_block(position, min(block_bytes, batcher.arena_bytes_left))

    def _change_arena(self, needed_bytes: int) -> None:
        if self._arena is not None:
            self._batcher.use_arena(memoryview(b""))
            self._pool.retire(self._arena)
        self._arena = self._pool.take(needed_bytes)
        self._batcher.use_arena(self._arena.view)

    def _close_block(self) -> None:
        block = self._batcher.close_block()
        self._ends.add(block.content_end)
        self._writer.put(block)
        self._fill.on_grown(block.end)
        if len(block.view) > self._block_bytes_declared:
            self._declare(len(block.view))

    def _flush(self) -> None:
        """Writes the open block when the device is idle, or has a slot and the block is worth a write of its
        own."""
        self._is_flush_due = False
        batcher, writer = self._batcher, self._writer
        if (
            batcher.is_open
            and writer.has_free_slot
            and (writer.is_idle or batcher.open_bytes >= self._settings.eager_bytes)
        ):
            self._close_block()

    def _on_group(self) -> None:
        """The confirmed end moved: the device is fed first, then the news is told."""
        self._flush()
        try:
            self._on_confirmed(self._writer.confirmed)
        except Exception as error:
            self._writer.fail(error)  # whoever missed a confirmation can never be told again
        if self._drained is not None and self._writer.is_idle and not self._drained.done():
            self._drained.set_result(None)

    def _declare(self, block_bytes: int) -> None:
        """The first block beyond what the header speaks of waits for the header: recovery looks no further
        than that says. So a log without large records is searched quickly after a crash; with them, the bound
        doubles a few times."""
        self._block_bytes_declared = min(
            self._block_bytes_max, max(2 * self._block_bytes_declared, block_bytes)
        )
        self._start_header_write()

    async def trim(self, end: int) -> None:
        """Many trims share a header write. Cancelling the wait does not undo the trim."""
        assert self._is_recovered, "recover() to its end comes first"
        if not self._is_owned:
            await self._take_over()
        assert end <= self._writer.confirmed, (end, self._writer.confirmed)
        self._trim_asked = max(self._trim_asked, end)
        while self._device.header.trim < end:
            self._check_open()
            await asyncio.shield(self._start_header_write())

    @property
    def found_mark(self) -> MetadataMark:
        return NO_MARK

    def see_metadata(self, mark: MetadataMark) -> None:
        if self.wal_id != NO_WAL_ID and mark.offset > self._mark.offset:
            self._mark = mark

    async def mark_metadata(self) -> None:
        mark = self._mark
        while self._device.header.mark.offset < mark.offset:
            self._check_open()
            await asyncio.shield(self._start_header_write())

    def _start_header_write(self) -> asyncio.Task[None]:
        """The header write that is under way, or a new one. Its failure is told through `on_failed`, whoever
        waits."""
        if self._header_write is None:
            self._header_write = asyncio.create_task(self._write_asked(), name="wal-header")
            self._header_write.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._header_write

    async def _write_asked(self) -> None:
        """Writes what was asked for by now: the trim, and the size of blocks that must be declared. Into both
        copies: what is free by the new header is written over, and the copy before it would look for blocks
        there."""
        trim, declared = self._trim_asked, self._block_bytes_declared
        try:
            head = self._ends.head_for(trim, self._space.head)
            self._writer.spend(2 * BLOCK_BYTES)
            await self._write_header(self._device.write_both, trim=trim, head=head, block_bytes_max=declared)
        finally:
            self._header_write = None
        self._pool.sweep()
        self._writer.allow(declared)
        if self._block_bytes_declared > declared and self._failure is None:
            self._start_header_write()

    async def _write_header(self, write: Callable[..., Awaitable[None]], **changes: Any) -> None:
        try:
            await write(
                confirmed=self._writer.confirmed,
                filled_bytes=self._fill.filled_bytes,
                mark=self._mark,
                **changes,
            )
        except Exception as error:
            self._writer.fail(error)
            raise
        self._space.head = self._device.header.head
        self._ends.forget(self._space.head)
        self._fill.on_trimmed()

    async def reset(self) -> None:
        """A capacity that was changed in the settings takes effect here, where the log is empty, and before
        `start` only; so does `fencing=claim` of a log that its lock fenced."""
        await self.trim(self._writer.confirmed)
        if self._is_started:
            return
        if self._device.late_bytes:
            await self._step_over(self._device.late_bytes)
        if self._settings.is_by_claims and self._device.fence is None:
            await self._device.turn_to_claims(self._owner, self._incarnation)
            self._build(self._batcher.tail)
        capacity_bytes = align_down(self._settings.capacity_bytes)
        if capacity_bytes != self._device.header.capacity_bytes:
            assert self._device.header.head == self._batcher.tail
            await self._device.resize(
                capacity_bytes, filled_bytes=min(self._fill.filled_bytes, capacity_bytes)
            )
            self._build(self._batcher.tail)
        await self._device.cut_off()

    async def _step_over(self, late_bytes: int) -> None:
        """Begins behind all that an owner who was replaced by a claim may still have under way, so that it
        lands over nothing of ours, until the ring comes round; half a ring at most."""
        self._device.late_bytes = 0
        tail = self._batcher.tail + align_up(min(late_bytes, self._space.ring_bytes // 2))
        self._trim_asked = tail
        await self._device.write_both(
            epoch_start=tail, trim=tail, head=tail, confirmed=tail, earlier=(), mark=self._mark
        )
        self._build(tail)

    async def close(self) -> None:
        """Cancelled, it waits for what the file was asked for, and leaves the log as a crash would."""
        if self._is_closed:
            return
        self._is_closed = True
        self._batcher.limit = 0
        try:
            await self._settle()
            if self._is_started and self._failure is None:
                self._writer.spend(BLOCK_BYTES)
                await self._write_header(self._device.write, closed_end=self._writer.confirmed)
        finally:
            self._writer.stop()
            if self._watch_task is not None:
                self._watch_task.cancel()
            await self._device.file.close()
            self._pool.close()

    async def _settle(self) -> None:
        """On return nothing is under way."""
        if self._fill_task is not None:
            self._fill.stop()
            await asyncio.gather(self._fill_task, return_exceptions=True)
        if self._is_started:
            await self._drain()
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        self._writer.stop()
        while self._header_write is not None:
            await asyncio.gather(self._header_write, return_exceptions=True)

    async def _drain(self) -> None:
        if self._batcher.is_open and self._failure is None:
            self._close_block()
        if not self._writer.is_idle and self._failure is None:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _check_open(self) -> None:
        if self._failure is not None:
            raise WalClosed("a write failed") from self._failure
        if self._is_closed or not self._is_recovered:
            raise WalClosed("the log is closed")

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._batcher.limit = 0
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._on_failed(error)

    def _reach(self) -> tuple[int, int]:
        batcher = self._batcher
        return batcher.next_position, self._space.head + self._space.ring_bytes

    async def _run_fill(self) -> None:
        try:
            await self._fill.run()
        except Exception as error:
            self._writer.fail(error)
