"""The write-ahead log's contract: durable append of opaque payloads, in order, by one owner.

A *position* is a place in an endless logical log; positions of records only grow. One owner (cluster, node, epoch) at a time; each open
takes a higher epoch than any before it. The life of a log object:

    open -> recover() to its end -> [reset()] -> start(callbacks) -> append()*, trim()* -> close()

Invariants
  * Records are confirmed in the order they were appended: `confirmed_end` only grows, and everything that ends at or below it is durable.
  * recover() yields every confirmed record at or above the trim point, in order, and possibly later ones that were never
    confirmed, but never one that lies behind a hole.
  * A failed write is terminal: `on_failed` is called once, and nothing is confirmed after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import NewType, Protocol, runtime_checkable

from millrace.runtime.disk import Buffer

WalPosition = NewType("WalPosition", int)


@dataclass(frozen=True, slots=True)
class WalOwner:
    """Who writes: stamped in the header and in every block."""

    cluster_id: str
    node_id: int
    epoch: int


@dataclass(slots=True)
class WalRecord:
    """One appended or recovered record. `payload` is a read-only view that pins its block's memory."""

    position: int
    end: int
    payload: memoryview


class WriteAheadLog(Protocol):
    capacity_bytes: int
    max_record_bytes: int  # no payload may be longer
    is_new: bool  # no owner wrote to it before this one opened it

    @property
    def confirmed_end(self) -> int: ...

    @property
    def used_bytes(self) -> int:
        """Bytes between the durable trim point and the end of what was appended."""
        ...

    @property
    def room_bytes(self) -> int:
        """Payload bytes that may be appended now, in however many records of at least 64 bytes: a lower bound."""
        ...

    @property
    def blocked_reason(self) -> str:
        """Why what was appended is not confirmed for the time being, or "" when nothing holds it up."""
        ...

    def recover(self) -> AsyncIterator[WalRecord]:
        """Once, before `start`. Raises WalCorrupt for a bad record below the highest confirmed position. Where it steps over damage because it was
        told to, nothing is changed before `reset`, which must follow then."""
        ...

    def start(self, on_confirmed: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        """From now on appends are taken. `on_confirmed(end)` is called once per durable group, in order, from the loop."""
        ...

    def append(self, *parts: Buffer, tail_crc: int | None = None) -> WalRecord:
        """Copies the concatenation of `parts` into the log's current block and gives its place; never waits. `tail_crc` is the CRC32C of
        the last part, from a caller who has just verified it; at most 64 KiB less one byte stand before that part.

        Durable once `confirmed_end >= record.end`. Raises WalFull when `room_bytes` is short (nothing was taken), WalClosed, WalFenced.
        """
        ...

    async def trim(self, end: int) -> None:
        """Everything below `end` may be forgotten. On return the space is reusable (the new trim point is durable)."""
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
