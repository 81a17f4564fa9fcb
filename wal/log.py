"""The write-ahead log's contract: durable append of opaque payloads, in order, by one owner.

A *position* is a place in an endless logical log; positions of records only grow. One owner (cluster, node,
epoch) at a time; each open takes a higher epoch than any before it. The life of a log object:

    open -> recover() to its end -> [reset()] -> start(callbacks) -> append()*, trim()* -> close()

Invariants
  * Records are confirmed in the order they were appended: `confirmed_end` only grows, and everything that
    ends at or below it is durable.
  * recover() yields every confirmed record at or above the trim point, in order, and possibly later ones that
    were never confirmed, but never one that lies behind a hole.
  * A failed write is terminal: `on_failed` is called once, and nothing is confirmed after it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NewType, Protocol, runtime_checkable

from millrace.protocol.dataclass import dataclass
from millrace.runtime.disk import Buffer
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark

WalPosition = NewType("WalPosition", int)


@dataclass(frozen=True, slots=True)
class WalOwner:
    """Who writes: stamped in the header and in every block."""

    cluster_id: str
    node_id: int
    epoch: int
    # for a log that has no id yet; NO_WAL_ID leaves it without (millrace.version 0)
    new_wal_id: bytes = NO_WAL_ID
    committed_end: int = (
        -1
    )  # metadata says that the log was committed up to there: one that ends before is an older copy
    # the highest committed metadata offset as it opens the log: its own start is below. NO_MARK without
    # `new_wal_id`
    mark: MetadataMark = NO_MARK
    # another node, in this one's name: it takes no log whose owner may live, as far as can be told from there
    is_heir: bool = False


@dataclass(slots=True)
class WalRecord:
    """One appended or recovered record. `payload` is a read-only view that pins its block's memory. Of a
    recovered one `tail_crc` is the CRC32C of the payload from byte `lead` on: whoever has those bytes summed
    as well need not walk them again."""

    position: int
    end: int
    payload: memoryview
    lead: int = 0
    tail_crc: int | None = None


class WriteAheadLog(Protocol):
    capacity_bytes: int
    max_record_bytes: int  # no payload may be longer
    is_new: bool  # no owner wrote to it before this one opened it
    wal_id: bytes  # NO_WAL_ID for a log of millrace.version 0

    @property
    def has_given_up(self) -> bool:
        """Recovery stepped over damage or cut it off, so that records may be missing."""
        ...

    @property
    def confirmed_end(self) -> int: ...

    @property
    def used_bytes(self) -> int:
        """Bytes between the durable trim point and the end of what was appended."""
        ...

    @property
    def room_bytes(self) -> int:
        """Payload bytes that may be appended now, in however many records of at least 64 bytes: a lower
        bound."""
        ...

    @property
    def blocked_reason(self) -> str:
        """Why what was appended is not confirmed for the time being, or "" when nothing holds it up."""
        ...

    def recover(self) -> AsyncGenerator[WalRecord, None]:
        """Once, before `start`. Raises WalCorrupt for a bad record below the highest confirmed position,
        WalOutdated for a log that ends before the owner's `committed_end`, changing nothing. Where it steps
        over damage because it was told to, nothing is changed before `reset`, which must follow then."""
        ...

    def start(self, on_confirmed: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        """From now on appends are taken. `on_confirmed(end)` is called once per durable group, in order, from
        the loop."""
        ...

    def append(self, *parts: Buffer, tail_crc: int | None = None) -> WalRecord:
        """Copies the concatenation of `parts` into the log's current block and gives its place; never waits.
        `tail_crc` is the CRC32C of the last part, from a caller who has just verified it; at most 64 KiB less
        one byte stand before that part.

        Durable once `confirmed_end >= record.end`. Raises WalFull when `room_bytes` is short (nothing was
        taken), WalClosed, WalFenced.
        """
        ...

    async def trim(self, end: int) -> None:
        """Everything below `end` may be forgotten. On return the space is reusable (the new trim point is
        durable)."""
        ...

    @property
    def found_mark(self) -> MetadataMark:
        """The metadata that the log named as it was taken, from when on nobody else can write to it: of a log
        in a store, where somebody may have written since it was looked at; of an owner without a mark, for
        else it may be the owner's. NO_MARK for one that is this machine's alone."""
        ...

    def see_metadata(self, mark: MetadataMark) -> None:
        """Every header that is written from now on names this committed metadata offset, or a later one. So
        whoever trims because of a commit shows it first: where a trim is durable, a mark is that covers what
        allowed it."""
        ...

    async def mark_metadata(self) -> None:
        """On return the log durably names the last mark that `see_metadata` gave it. Many share a write. A
        log in a store, of which each write is paid for, may leave it to the next record or trim: neither is
        durable without it."""
        ...

    async def reset(self) -> None:
        """Forgets everything, and what an earlier owner may still have under way; durable on return."""
        ...

    async def close(self) -> None:
        """Waits for what was appended to be confirmed, then releases the device. Idempotent."""
        ...


class HedgeCounts(Protocol):
    begun: int
    won: int
    begun_bytes: int


@runtime_checkable
class HedgedLog(Protocol):
    """A log that may write something twice at once; counted for metrics."""

    hedging: HedgeCounts
