"""Block WALs for tests, every option defaulted, and a journal of what one confirmed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.runtime.disk import Disk
from millrace.wal.block.log import BlockWal
from millrace.wal.config import BlockWalSettings
from millrace.wal.identity import NO_WAL_ID
from millrace.wal.log import WalOwner, WalRecord

KIB = 1024
PATH = "/data/wal"
_PATTERN = bytes(range(256)) * 2048


def small_settings(**changes: Any) -> BlockWalSettings:
    """A ring of 248 KiB in blocks of at most 16 KiB, so that laps are short."""
    defaults: dict[str, Any] = {
        "capacity_bytes": 256 * KIB,
        "block_soft_bytes": 16 * KIB,
        "max_record_bytes": 40 * KIB,
        "eager_bytes": 4 * KIB,
        "writes_at_first": 32,
        "window_bytes": 64 * KIB,
        "arena_bytes": 64 * KIB,
        "fill_ahead_bytes": 0,
    }
    return BlockWalSettings(**{**defaults, **changes})


def owner(epoch: int = 1, cluster_id: str = "cluster", node_id: int = 1) -> WalOwner:
    return WalOwner(cluster_id, node_id, epoch)


@dataclass(slots=True)
class Journal:
    """What a WAL told: every confirmed end, and the failure."""

    ends: list[int] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def on_confirmed(self, end: int) -> None:
        assert not self.failures, "confirmed after a failure"
        assert not self.ends or end > self.ends[-1], "confirmed ends only grow"
        self.ends.append(end)
        self.moved.set()

    def on_failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.moved.set()

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    async def reach(self, end: int) -> None:
        """Returns when everything below `end` is confirmed, or the WAL has failed."""
        while self.end < end and not self.failures:
            self.moved.clear()
            await self.moved.wait()


async def open_wal(
    disk: Disk, epoch: int = 1, wal_id: bytes = NO_WAL_ID, **changes: Any
) -> tuple[BlockWal, list[WalRecord]]:
    """Opened and recovered; not started. `wal_id` is for a log that has none."""
    who, incarnation = replace(owner(epoch), new_wal_id=wal_id), bytes([epoch % 256]) * 16
    wal = await BlockWal.open(disk, PATH, small_settings(**changes), who, incarnation=incarnation)
    return wal, [record async for record in wal.recover()]


async def start_wal(
    disk: Disk, epoch: int = 1, wal_id: bytes = NO_WAL_ID, **changes: Any
) -> tuple[BlockWal, list[bytes], Journal]:
    """Started, with the payloads it recovered."""
    wal, records = await open_wal(disk, epoch, wal_id, **changes)
    journal = Journal()
    wal.start(journal.on_confirmed, journal.on_failed)
    return wal, [bytes(record.payload) for record in records], journal


def payload(number: int, length: int = 100) -> bytes:
    """Bytes that name themselves: no two numbers give the same."""
    first = number * 7 & 0xFF
    return number.to_bytes(8, "big") + _PATTERN[first : first + max(0, length - 8)]
