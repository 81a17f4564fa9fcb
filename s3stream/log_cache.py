"""Recent entries: a queue of blocks, each a map from stream to its entries, sealed for upload and evicted
from the old end.

    active --seal--> sealed --free (its upload was committed)--> free --evict (bytes are wanted)--> gone

Pure: it is told what happened and says what it holds. Not here: when to seal by size or age (storage.py), the
upload (uploader.py).

Keeps true:
  * entries of a stream are continuous through all blocks: `put` refuses one that is not, since a gap would
    become a hole in the objects;
  * blocks are freed in the order they were sealed, so that what is free is always the old end of the queue;
  * what is not free is never evicted: a stream's cached entries begin at or below what is committed of it;
  * a stream's range in a block may be of any length (an object's writer cuts its rows at 32 bits): no offsets
    of one stream close the block that all streams share;
  * bytes are charged with what an entry costs beside its payload, else many small records are many times the
    bound.

What is free is kept up to KEPT_BYTES_FIRST, and twice as much whenever a reader comes for something that more
would have kept, up to the whole cache: memory is taken for readers that there are (ghosts.py).

A lookup is a bisection over a stream's runs, then one over the entries of a run.

An entry arrives as a view of the WAL's memory and pins all of the piece (arena) it lies in, so a block is
charged with every arena it pins, once. Small entries are copied into bytes of their own; so are large ones
while they are less than half of what the WAL writes (padding and small records are the rest), or one of them
would hold megabytes of what nobody reads.

A run keeps columns, not entries: numbers in arrays, and bytes, which the garbage collector does not walk. A
small entry as an object cost 480 bytes and had every full collection look at it twice. Whoever reads is given
entries made anew.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque

from millrace.protocol.dataclass import dataclass
from millrace.s3stream.ghosts import Ghosts
from millrace.s3stream.objects.format import INT64_MAX, Entry
from millrace.s3stream.read_accumulator import ReadAccumulator

# Measured beside the payload: the bytes' own header, and places in three columns that grow by eighths; a view
# is an object of 200 bytes more.
COPY_OVERHEAD_BYTES = 80
VIEW_OVERHEAD_BYTES = 256
RUN_OVERHEAD_BYTES = 1024
# How many entries a reader is given at first, and at most at a time: what does not fit its bytes any more was
# made in vain.
STEP_COUNT_FIRST = 4
STEP_COUNT_MAX = 256
COPY_BELOW_BYTES = 1024
# Of blocks that are uploaded, as long as no reader wants more.
KEPT_BYTES_FIRST = 256 << 20
# Over how much of the WAL the share of large entries is judged: an arena.
DENSITY_WINDOW_BYTES = 4 << 20


class Run:
    """The entries [start, end) of one stream in one block, all of one epoch of its owner; `bases` are their
    base offsets.

    It names its block by number: with a reference back, a block that was evicted would keep the WAL's memory
    until the collector of cycles comes by, which was measured to be hundreds of MiB later.
    """

    __slots__ = (
        "__weakref__",
        "_crcs",
        "_data",
        "bases",
        "block_number",
        "charged_bytes",
        "end",
        "epoch",
        "payload_bytes",
        "start",
        "stream_id",
    )

    def __init__(self, block_number: int, stream_id: int, epoch: int, start: int) -> None:
        self.block_number = block_number
        self.stream_id = stream_id
        self.epoch = epoch
        self.start = start
        self.end = start
        self.payload_bytes = 0
        self.charged_bytes = RUN_OVERHEAD_BYTES
        self.bases = array("q")
        self._crcs = array("q")  # -1 for none
        self._data: list[bytes | memoryview] = []

    def __len__(self) -> int:
        return len(self._data)

    def add(self, entry: Entry, data: bytes | memoryview, charge_bytes: int) -> None:
        """`data`: what to keep of the entry's bytes."""
        self.bases.append(entry.base_offset)
        self._crcs.append(-1 if entry.crc is None else entry.crc)
        self._data.append(data)
        self.end = entry.end
        self.payload_bytes += len(data)
        self.charged_bytes += charge_bytes

    def entries(self, first: int, last: int, end_offset: int = INT64_MAX) -> list[Entry]:
        """Those at the places [first, last) that begin below `end_offset`, as far as there are any."""
        bases, crcs, kept, epoch = self.bases, self._crcs, self._data, self.epoch
        found = []
        count = len(bases)
        for place in range(first, min(last, count)):
            base = bases[place]
            if base >= end_offset:
                break
            end = bases[place + 1] if place + 1 < count else self.end
            crc = crcs[place]
            found.append(Entry(base, end - base, memoryview(kept[place]), epoch, None if crc < 0 else crc))
        return found

    def __repr__(self) -> str:
        return f"{self.stream_id}:[{self.start},{self.end}) {self.payload_bytes}B"


class CacheBlock:
    """One unit of upload: `payload_bytes` of it, charged as `size_bytes`. `wal_end`: everything in the WAL
    below it lies in this block, in an older one, or belongs to no stream. `since_s`: when the oldest entry
    came, by the clock of `LogCache.now_s`."""

    __slots__ = (
        "is_free",
        "is_sealed",
        "number",
        "payload_bytes",
        "pinned_id",
        "runs",
        "since_s",
        "size_bytes",
        "wal_end",
        "wal_start",
    )

    def __init__(self, number: int, wal_start: int) -> None:
        self.number = number
        self.runs: dict[int, Run] = {}
        self.size_bytes = 0
        self.payload_bytes = 0
        self.wal_start = wal_start
        self.wal_end = wal_start
        self.since_s = 0.0
        self.pinned_id = 0  # of the arena that the newest views pin
        self.is_sealed = False
        self.is_free = False

    @property
    def is_empty(self) -> bool:
        """Nothing to upload and nothing to trim."""
        return not self.runs and self.wal_end == self.wal_start

    def __repr__(self) -> str:
        state = "free" if self.is_free else "sealed" if self.is_sealed else "active"
        runs = " ".join(map(repr, self.runs.values()))
        return (
            f"block {self.number} {state} {self.size_bytes}B wal [{self.wal_start},{self.wal_end}) {runs}"
        ).rstrip()


@dataclass(frozen=True, slots=True)
class SealBounds:
    """At how much a block is closed and uploaded, each by its own measure: an arena that is pinned, or a page
    that is mostly padding, is no reason for a small object."""

    payload_bytes: int  # what there is to upload
    charged_bytes: int  # what it takes of the cache
    span_bytes: int  # what it takes of the WAL

    def are_reached(self, block: CacheBlock) -> bool:
        return (
            block.payload_bytes >= self.payload_bytes
            or block.size_bytes >= self.charged_bytes
            or block.wal_end - block.wal_start >= self.span_bytes
        )


class LogCache:
    def __init__(
        self, capacity_bytes: int, streams_per_block: int = 20_000, kept_bytes: int = KEPT_BYTES_FIRST
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._kept_bytes = min(kept_bytes, capacity_bytes)
        self._ghosts = Ghosts(capacity_bytes)
        self._streams_per_block = streams_per_block
        self._streams: dict[int, list[Run]] = {}
        self._blocks: deque[CacheBlock] = deque()
        self._sealed: list[CacheBlock] = []
        self.active = CacheBlock(0, 0)
        self._blocks.append(self.active)
        self.size_bytes = 0
        self.free_bytes = 0
        self.evicted_count = 0
        self.now_s = 0.0  # whoever puts entries sets it
        self._freed_number = -1
        self._committed_number = -1  # at or above that
        self._wal_end = 0
        self._span_bytes = 0
        self._large_bytes = 0
        self._is_dense = False

    def __repr__(self) -> str:
        lines = [
            f"log cache {self.size_bytes}B of {self._capacity_bytes}B, {self.free_bytes}B free",
            *map(repr, self._blocks),
        ]
        return "\n  ".join(lines)

    @property
    def blocks(self) -> tuple[CacheBlock, ...]:
        """Oldest first; the active block is the last."""
        return tuple(self._blocks)

    @property
    def held_bytes(self) -> int:
        """Bytes that cannot be evicted, since their upload is not committed."""
        return self.size_bytes - self.free_bytes

    @property
    def held_since_s(self) -> float | None:
        """When the oldest entry came whose upload is not committed; None when there is none."""
        return next((block.since_s for block in self._blocks if block.runs and not block.is_free), None)

    def put(self, stream_id: int, entry: Entry, wal_end: int) -> None:
        """Adds the next entry of a stream, the record of which ends at `wal_end`. May seal the active block
        before."""
        runs = self._streams.get(stream_id)
        run = runs[-1] if runs else None
        if run is None or run.block_number != self.active.number or run.epoch != entry.epoch:
            run = self._begin_run(stream_id, entry, run)
        assert entry.base_offset == run.end, (
            f"stream {stream_id} goes on at {run.end}, not at {entry.base_offset}"
        )
        assert wal_end >= self._wal_end, f"a record that ends at {wal_end} after one at {self._wal_end}"
        data: bytes | memoryview = entry.data
        length = len(data)
        self._span_bytes += wal_end - self._wal_end
        self._wal_end = wal_end
        if length >= COPY_BELOW_BYTES:
            self._large_bytes += length
        if self._span_bytes > DENSITY_WINDOW_BYTES:
            self._judge_density()
        block = self.active
        pins_bytes = self._pins(entry.data) if length >= COPY_BELOW_BYTES and self._is_dense else None
        if pins_bytes is None:
            data = bytes(data)
            charge = COPY_OVERHEAD_BYTES + length
        else:
            charge = VIEW_OVERHEAD_BYTES + pins_bytes
        run.add(entry, data, charge)
        block.wal_end = wal_end
        block.payload_bytes += length
        block.size_bytes += charge
        self.size_bytes += charge

    def begin(self, wal_start: int) -> None:
        """What is put from now on lies in the WAL from `wal_start` on. Only while the active block is
        empty."""
        assert self.active.is_empty
        self.active.wal_start = self.active.wal_end = self._wal_end = wal_start

    def pass_wal(self, wal_end: int) -> None:
        """A record that nobody wants any more (its stream was dropped) ends here: it may be trimmed with the
        active block."""
        self.active.wal_end = self._wal_end = wal_end

    def read(self, stream_id: int, start: int, end: int, max_bytes: int) -> list[Entry] | None:
        """Entries from the one that holds `start` to the last that begins before `end`, the first whole,
        further ones while they fit `max_bytes`. None when `start` is below what is cached; from there to the
        stream's end there is no gap."""
        accumulator = ReadAccumulator(stream_id, start, end, max_bytes)
        return accumulator.entries if self.read_into(accumulator) else None

    def read_into(self, accumulator: ReadAccumulator) -> bool:
        """As `read`, going on where the accumulator stands; False when that is below what is cached."""
        start = accumulator.next_offset
        runs = self._streams.get(accumulator.stream_id)
        if not runs or start < runs[0].start:
            if self._ghosts.take(accumulator.stream_id, start):
                self._kept_bytes = min(self._capacity_bytes, 2 * self._kept_bytes)
            return False
        place = len(runs) - 1
        if start < runs[place].start:
            place = bisect_right(runs, start, key=_run_start) - 1
        first = bisect_right(runs[place].bases, start) - 1
        step_count = STEP_COUNT_FIRST
        while not accumulator.is_full and place < len(runs):
            run = runs[place]
            accumulator.take(run.entries(first, first + step_count, accumulator.end))
            first += step_count
            step_count = min(2 * step_count, STEP_COUNT_MAX)
            if first >= len(run):
                place, first = place + 1, 0
        return True

    def start_of(self, stream_id: int) -> int | None:
        """Where the cached entries of a stream begin; None when there are none."""
        runs = self._streams.get(stream_id)
        return runs[0].start if runs else None

    def end_of(self, stream_id: int) -> int | None:
        runs = self._streams.get(stream_id)
        return runs[-1].end if runs else None

    def seal(self) -> CacheBlock | None:
        """Closes the active block, if anything is in it, and begins another."""
        block = self.active
        if block.is_empty:
            return None
        block.is_sealed = True
        self.active = CacheBlock(block.number + 1, block.wal_end)
        self._blocks.append(self.active)
        self._sealed.append(block)
        return block

    def take_sealed(self) -> list[CacheBlock]:
        """Blocks sealed since the last call, in order, whoever sealed them."""
        if not self._sealed:
            return []
        sealed, self._sealed = self._sealed, []
        return sealed

    def note_committed(self, block: CacheBlock) -> None:
        """The block's upload is committed, and it may not be evicted yet: the WAL has it still."""
        assert block.number > self._committed_number, (self._committed_number, block)
        self._committed_number = block.number

    def free(self, block: CacheBlock) -> None:
        """The block's upload is committed: it stays readable and may be evicted."""
        assert block.is_sealed
        assert not block.is_free
        assert block.number == self._freed_number + 1, f"freed after block {self._freed_number}: {block!r}"
        self._freed_number = block.number
        self._committed_number = max(self._committed_number, block.number)
        block.is_free = True
        self.free_bytes += block.size_bytes

    def evict(self, capacity_bytes: int | None = None) -> None:
        """Drops free blocks, oldest first, until the cache keeps to its bound (or to the one given) and to
        what readers want."""
        bound = self._capacity_bytes if capacity_bytes is None else capacity_bytes
        while self._blocks[0].is_free:
            block = self._blocks[0]
            if block.runs and self.size_bytes <= bound and self.free_bytes <= self._kept_bytes:
                return
            del self._blocks[0]
            self._ghosts.add(
                block.size_bytes, {run.stream_id: (run.start, run.end) for run in block.runs.values()}
            )
            self.size_bytes -= block.size_bytes
            self.free_bytes -= block.size_bytes
            self.evicted_count += 1
            for run in block.runs.values():
                self._forget_run(run)

    def drop(self, stream_id: int) -> None:
        """Forgets a stream. What of it lies in sealed blocks keeps its bytes until they go: an upload may be
        reading them."""
        runs = self._streams.pop(stream_id, None)
        if runs and runs[-1].block_number == self.active.number:
            run = self.active.runs.pop(stream_id)
            self.active.payload_bytes -= run.payload_bytes
            self.active.size_bytes -= run.charged_bytes
            self.size_bytes -= run.charged_bytes

    def is_held(self, stream_id: int) -> bool:
        """Whether some of the stream's entries wait for an upload or for its commit."""
        runs = self._streams.get(stream_id)
        return runs is not None and runs[-1].block_number > self._committed_number

    def _begin_run(self, stream_id: int, entry: Entry, last: Run | None) -> Run:
        base_offset = entry.base_offset
        assert last is None or last.end == base_offset, (
            f"stream {stream_id} goes on at {last and last.end}, not at {base_offset}"
        )
        if stream_id in self.active.runs or len(self.active.runs) >= self._streams_per_block:
            self.seal()
        if not self.active.runs:
            self.active.since_s = self.now_s
        run = Run(self.active.number, stream_id, entry.epoch, base_offset)
        self.active.runs[stream_id] = run
        self.active.size_bytes += RUN_OVERHEAD_BYTES
        self.size_bytes += RUN_OVERHEAD_BYTES
        self._streams.setdefault(stream_id, []).append(run)
        return run

    def _forget_run(self, run: Run) -> None:
        runs = self._streams.get(run.stream_id)
        if runs and runs[0] is run:
            runs.pop(0)
            if not runs:
                del self._streams[run.stream_id]

    def _judge_density(self) -> None:
        """Older bytes count half, so that the judgement follows the load within a few arenas."""
        self._is_dense = self._large_bytes * 2 >= self._span_bytes
        self._span_bytes >>= 1
        self._large_bytes >>= 1

    def _pins(self, data: memoryview) -> int | None:
        """What the active block pins more if it keeps this view; None when its arena is too large beside the
        cache."""
        if id(data.obj) == self.active.pinned_id:
            return 0
        arena_bytes = memoryview(data.obj).nbytes
        if arena_bytes > self._capacity_bytes // 8:
            return None
        self.active.pinned_id = id(data.obj)
        return arena_bytes


def _run_start(run: Run) -> int:
    return run.start
