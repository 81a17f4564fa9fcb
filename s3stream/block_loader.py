"""Blocks from objects into the cache, by few GETs: each block once however many wait for it, near ones
together.

Who wants blocks is told where they will be; an iteration of the loop later, so that all who ask at one time
are seen together, what is wanted of each object is cut into GETs (read_plan.py). Only so many are under way,
fewer of them for read-ahead; what is wanted meanwhile gathers, and goes together. A block that was wanted
ahead and is now waited for moves up, unless it is under way.

Keeps true:
  * what is under way has its room in the cache's bound: it is made before the GET;
  * a block pins the bytes of that block alone, so that the cache may keep one and drop its neighbour: the
    store reads each into memory of its own, which is used again (runtime/buffer_pool.py);
  * a block that is damaged fails who wants it, and no other of its GET;
  * a load goes on when its waiters are gone; those who wait when it is closed are told Closed;
  * checking stops after some entries, and of all blocks one chunk is checked an iteration: the loop is held
    for half a millisecond.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from millrace.runtime.buffer_pool import BufferPool, PooledBuffer, buffer_size
from millrace.runtime.errors import Closed
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.errors import ObjectCorrupt
from millrace.s3stream.ids import ObjectId
from millrace.s3stream.objects.format import BlockRef
from millrace.s3stream.objects.packed import PackedBlock
from millrace.s3stream.objects.reader import ObjectReader
from millrace.s3stream.read_plan import plan_gets
from millrace.s3stream.readahead import ReadAhead

BlockKey = tuple[ObjectId, int]


class CachedBlock:
    """The entries of one index row. `ahead`: the reader it was read ahead for, until somebody uses it.
    `is_for_once`: it was, and was not yet read to its end."""

    __slots__ = ("ahead", "buffer", "is_for_once", "key", "packed")

    def __init__(
        self, key: BlockKey, packed: PackedBlock, buffer: PooledBuffer, ahead: ReadAhead | None
    ) -> None:
        self.key = key
        self.packed = packed
        self.buffer = buffer
        self.ahead = ahead
        self.is_for_once = ahead is not None


class Keeper(Protocol):
    """Where blocks go, and their memory comes from."""

    @property
    def pool(self) -> BufferPool: ...

    def reserve(self, size_bytes: int) -> None:
        """Makes room for what is about to come, and holds it."""
        ...

    def release(self, size_bytes: int) -> None: ...

    def keep(self, block: CachedBlock) -> None: ...


class Wanted:
    __slots__ = ("ahead", "future", "key", "reader", "ref")

    def __init__(self, key: BlockKey, ref: BlockRef, reader: ObjectReader, ahead: ReadAhead | None) -> None:
        self.key = key
        self.ref = ref
        self.reader = reader
        self.ahead = ahead
        self.future: asyncio.Future[CachedBlock] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(_retrieve)


class Lane:
    """What is wanted and not under way, by object, the longest waiting first; and how many GETs may be under
    way."""

    __slots__ = ("by_object", "slots_free", "store")

    def __init__(self, store: ObjectStore, slots: int) -> None:
        self.store = store
        self.slots_free = slots
        self.by_object: OrderedDict[ObjectId, dict[BlockKey, Wanted]] = OrderedDict()

    def add(self, wanted: Wanted) -> None:
        self.by_object.setdefault(wanted.key[0], {})[wanted.key] = wanted

    def take(self, key: BlockKey) -> Wanted | None:
        of_object = self.by_object.get(key[0], {})
        found = of_object.pop(key, None)
        if found is not None and not of_object:
            del self.by_object[key[0]]
        return found

    def next_get(self, bytes_max: int) -> list[Wanted]:
        """Takes what the next GET brings. The rest of its object goes behind the others."""
        object_id, of_object = self.by_object.popitem(last=False)
        by_position = {wanted.ref.position: wanted for wanted in of_object.values()}
        run = plan_gets([wanted.ref for wanted in of_object.values()], bytes_max)[0]
        taken = [by_position[ref.position] for ref in run]
        for wanted in taken:
            del of_object[wanted.key]
        if of_object:
            self.by_object[object_id] = of_object
        return taken


class BlockLoader:
    def __init__(
        self,
        keeper: Keeper,
        reads: ObjectStore,
        read_ahead: ObjectStore,
        get_bytes_max: int,
        gets_max: int,
        yield_queue: YieldQueue,
    ) -> None:
        self._keeper = keeper
        self._yield_queue = yield_queue
        self._get_bytes_max = get_bytes_max
        self._now = Lane(reads, gets_max)
        self._ahead = Lane(read_ahead, max(1, gets_max * 3 // 4))
        self._futures: dict[BlockKey, asyncio.Future[CachedBlock]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_due = False
        self._is_closed = False
        self.gets = 0
        self.get_bytes = 0
        self.wasted_bytes = 0

    @property
    def wanted_count(self) -> int:
        """Blocks that somebody waits for, or that are under way."""
        return len(self._futures)

    def load(
        self, key: BlockKey, ref: BlockRef, reader: ObjectReader, ahead: ReadAhead | None
    ) -> asyncio.Future[CachedBlock]:
        """Where the block will be. The future is shared: to be shielded from a waiter's cancellation. Raises
        Closed after `close`."""
        if self._is_closed:
            raise Closed("the block cache is closed")
        future = self._futures.get(key)
        if future is None:
            wanted = Wanted(key, ref, reader, ahead)
            future = self._futures[key] = wanted.future
            (self._now if ahead is None else self._ahead).add(wanted)
            self._start_soon()
        elif ahead is None and (wanted_ahead := self._ahead.take(key)) is not None:
            self._now.add(wanted_ahead)
            self._start_soon()
        return future

    async def close(self) -> None:
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key in list(self._futures):
            self._fail(key, Closed("the block cache is closed"))

    def _start_soon(self) -> None:
        if not self._is_due and not self._is_closed:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._is_due = False
        if self._is_closed:
            return
        for lane in (self._now, self._ahead):
            while lane.slots_free and lane.by_object:
                lane.slots_free -= 1
                run = lane.next_get(self._get_bytes_max)
                task = asyncio.create_task(self._bring(lane, run), name=f"load-{run[0].key[0]}")
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)

    async def _bring(self, lane: Lane, run: list[Wanted]) -> None:
        first = run[0].ref.position
        span_bytes = run[-1].ref.position + run[-1].ref.size_bytes - first
        reserved_bytes = sum(buffer_size(wanted.ref.size_bytes) for wanted in run)
        self._keeper.reserve(reserved_bytes)
        buffers: list[PooledBuffer] = []
        try:
            refs = [wanted.ref for wanted in run]
            self.gets += 1
            self.get_bytes += span_bytes
            self.wasted_bytes += span_bytes - sum(ref.size_bytes for ref in refs)
            buffers = await run[0].reader.read_apart(refs, self._keeper.pool, lane.store)
            while run:
                packed = await self._scan(run[0], buffers[0])
                wanted, buffer = run.pop(0), buffers.pop(0)
                self._keeper.release(buffer.size_bytes)
                reserved_bytes -= buffer.size_bytes
                self._give(wanted, packed, buffer)
        except asyncio.CancelledError:
            self._fail_all(run, Closed("the block cache is closed"))
            raise
        except Exception as error:
            self._fail_all(run, error)
        finally:
            for buffer in buffers:
                buffer.release()
            self._keeper.release(reserved_bytes)
            lane.slots_free += 1
            self._start_soon()

    def _give(self, wanted: Wanted, packed: PackedBlock | ObjectCorrupt, buffer: PooledBuffer) -> None:
        """A damaged block fails those who want it; its neighbours are as good as if they had come alone."""
        if isinstance(packed, ObjectCorrupt):
            buffer.release()
            self._fail(wanted.key, packed)
            return
        block = CachedBlock(wanted.key, packed, buffer, wanted.ahead)
        self._keeper.keep(block)
        self._futures.pop(wanted.key).set_result(block)

    async def _scan(self, wanted: Wanted, buffer: PooledBuffer) -> PackedBlock | ObjectCorrupt:
        try:
            return await wanted.reader.scan(wanted.ref, buffer.view, buffer.size_bytes, self._yield_queue)
        except ObjectCorrupt as error:
            return error

    def _fail_all(self, run: list[Wanted], error: Exception) -> None:
        for wanted in run:
            self._fail(wanted.key, error)

    def _fail(self, key: BlockKey, error: Exception) -> None:
        future = self._futures.pop(key, None)
        if future is not None and not future.done():
            future.set_exception(error)


def _retrieve(future: asyncio.Future[CachedBlock]) -> None:
    """A load that failed while nobody waited any more is not worth a warning."""
    if not future.cancelled():
        future.exception()
