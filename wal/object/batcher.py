"""Which records share an object, and when that object is closed: by bytes or age. Pure; `add` is hot.

The memory is handed in by the caller, arena by arena; records are packed from front to back, and a batch goes
on in the next arena where one ends: its object is the list of those stretches behind a header. Nothing is
changed once `close` has given a batch away.

When: with a batch interval, uploads begin that far apart, so that requests, and what they cost, are bounded
whatever comes; after as long without an upload the first record goes out at once. With an interval of 0
latency comes first: at once if no upload is under way, else the store is the clock. With n uploads under way
the next one begins GATHER_MS * n after the last, so that few go side by side while the store is quick, and
batches grow when it is slow: n settles near the root of (time of an upload / GATHER_MS). Shorter steps buy
requests and no latency: each acknowledgement waits for the slowest upload before it. Where objects are put
twice (hedging.py), an upload takes its time with less chance, and the steps are shorter. A full batch never
waits.
"""

from __future__ import annotations

from millrace.wal.log import WalRecord
from millrace.wal.object.layout import HEADER_BYTES
from millrace.wal.record import RECORD_HEADER_BYTES, epoch_seed, put_record

GATHER_MS = 20.0
# With latency first, no record waits longer for its upload to begin.
LONGEST_MS = 250.0


def wait_ms(
    uploads: int,
    since_last_ms: float,
    open_bytes: int,
    batch_bytes_max: int,
    batch_interval_ms: int,
    hedged_gather_ms: float | None = None,
) -> float:
    """How long the open batch still waits: 0 when it is to be closed now. `since_last_ms`: since the last
    upload began. `hedged_gather_ms`: what hedging.py says, where there is hedging; asked only with an
    interval of 0."""
    if open_bytes >= batch_bytes_max:
        return 0.0
    if batch_interval_ms:
        return max(0.0, batch_interval_ms - since_last_ms)
    if uploads == 0:
        return 0.0
    step_ms = GATHER_MS * uploads if hedged_gather_ms is None else max(GATHER_MS, hedged_gather_ms)
    return max(0.0, min(LONGEST_MS, step_ms) - since_last_ms)


class ClosedBatch:
    """One object but for its header: stretches of memory, and the place in the log. `parts` are views that
    keep their arenas from reuse."""

    __slots__ = ("body_bytes", "end", "parts", "position", "record_count", "slot")

    def __init__(self, slot: int, position: int, parts: list[memoryview], record_count: int) -> None:
        self.slot = slot
        self.position = position
        self.parts = parts
        self.body_bytes = sum(map(len, parts))
        self.record_count = record_count
        self.end = position + HEADER_BYTES + self.body_bytes


class Batcher:
    """The open batch. `fill` and `limit` are offsets in the arena: a record fits that ends at or below
    `limit`, which is 0 at first and after each close."""

    __slots__ = (
        "_arena",
        "_base",
        "_count",
        "_origin",
        "_parts",
        "_seed",
        "fill",
        "limit",
        "position",
        "slot",
    )

    def __init__(self, epoch: int, position: int) -> None:
        self._seed = epoch_seed(epoch)
        self._arena = memoryview(b"")
        self._base = 0  # where the open batch's stretch of this arena begins
        self._origin = position + HEADER_BYTES  # of the arena's first byte, in the log
        self._parts: list[memoryview] = []
        self._count = 0
        self.slot = 0  # of the open or next batch
        self.position = position  # its place
        self.fill = 0
        self.limit = 0

    @property
    def is_open(self) -> bool:
        return self._count > 0

    @property
    def body_bytes(self) -> int:
        return self._origin + self.fill - self.position - HEADER_BYTES

    @property
    def next_position(self) -> int:
        """Where the batch after the open one begins."""
        return self._origin + self.fill if self._count else self.position

    @property
    def arena_bytes_left(self) -> int:
        return len(self._arena) - self.fill

    def use_arena(self, view: memoryview) -> None:
        """The open batch goes on in other memory."""
        if self.fill > self._base:
            self._parts.append(self._arena[self._base : self.fill].toreadonly())
        self._origin += self.fill
        self._arena = view
        self._base = self.fill = 0

    def add(
        self, parts: tuple[bytes | bytearray | memoryview, ...], length: int, tail_crc: int | None = None
    ) -> WalRecord:
        """Copies a payload of `length` bytes in. The caller has compared with `limit`. `tail_crc`: of the
        last part, when it is known."""
        at = self.fill
        position = self._origin + at
        payload = put_record(self._arena, at, parts, length, position, tail_crc, self._seed)
        self.fill = end = at + RECORD_HEADER_BYTES + length
        self._count += 1
        return WalRecord(position, self._origin + end, payload)

    def close(self) -> ClosedBatch:
        """The open batch, or one without records: a mark."""
        parts = [*self._parts, self._arena[self._base : self.fill].toreadonly()]
        batch = ClosedBatch(self.slot, self.position, [part for part in parts if part], self._count)
        self._parts = []
        self._count = 0
        self._base = self.fill
        self.limit = 0
        self.slot += 1
        self.position = batch.end
        self._origin = batch.end + HEADER_BYTES - self.fill
        return batch
