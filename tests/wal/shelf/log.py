"""A write-ahead log on a shelf in memory: the contract in as few lines as it takes, to show what a further
implementation is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from millrace.protocol.crc32c import crc32c
from millrace.runtime.disk import Buffer
from millrace.wal.errors import WalClosed, WalFenced, WalFull, WalMismatch, WalOutdated
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark, WalIdentity
from millrace.wal.kind import WalKind, WalPlace, WalReport
from millrace.wal.log import WalOwner, WalRecord

RECORD_OVERHEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class ShelfSettings:
    capacity_bytes: int
    wood: str  # a parameter that no other kind has

    def problems(self) -> list[str]:
        return [] if self.wood in ("oak", "pine") else [f"{self.wood} bears no log"]


@dataclass(slots=True)
class Shelf:
    """What outlives a log: its records from the trim on."""

    cluster_id: str
    node_id: int
    epoch: int = -1
    records: list[tuple[int, int, bytes]] = field(default_factory=list)
    trim: int = 0
    end: int = 0
    wal_id: bytes = NO_WAL_ID
    mark: MetadataMark = NO_MARK


SHELVES: dict[str, Shelf] = {}


class ShelfWal:
    def __init__(self, shelf: Shelf, capacity_bytes: int, owner: WalOwner) -> None:
        self.capacity_bytes = capacity_bytes
        self.max_record_bytes = capacity_bytes // 3
        self.is_new = shelf.epoch < 0
        if shelf.wal_id == NO_WAL_ID:
            shelf.wal_id = owner.new_wal_id
        self.wal_id = shelf.wal_id
        self.has_given_up = False
        self.confirmed_end = shelf.end
        self.blocked_reason = ""
        self._shelf = shelf
        self._owner = owner
        self._end = shelf.end
        self._waiting: list[tuple[int, int, bytes]] = []
        self._is_closed = False

    @property
    def used_bytes(self) -> int:
        return self._end - self._shelf.trim

    @property
    def room_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.used_bytes) * 8 // 9

    async def recover(self) -> AsyncGenerator[WalRecord, None]:
        for position, end, payload in list(self._shelf.records):
            yield WalRecord(position, end, memoryview(payload), 0, crc32c(payload))
        if self._shelf.end < self._owner.committed_end:
            raise WalOutdated(self._shelf.end, self._owner.committed_end)
        self._shelf.epoch = self._owner.epoch

    def start(self, on_confirmed: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        self._on_confirmed = on_confirmed

    def append(self, *parts: Buffer, tail_crc: int | None = None) -> WalRecord:
        payload = b"".join(parts)
        if self._is_closed:
            raise WalClosed("the log is closed")
        if len(payload) > self.max_record_bytes:
            raise ValueError(f"a payload of {len(payload)} bytes; the log takes {self.max_record_bytes}")
        if self.used_bytes + len(payload) + RECORD_OVERHEAD_BYTES > self.capacity_bytes:
            raise WalFull(len(payload), self.room_bytes)
        position, self._end = self._end, self._end + len(payload) + RECORD_OVERHEAD_BYTES
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append((position, self._end, payload))
        return WalRecord(position, self._end, memoryview(payload))

    def _write(self) -> None:
        if self._waiting:
            written, self._waiting = self._waiting, []
            self._shelf.records += written
            self._shelf.end = self.confirmed_end = written[-1][1]
            self._on_confirmed(self.confirmed_end)

    async def trim(self, end: int) -> None:
        self._shelf.trim = max(self._shelf.trim, end)
        self._shelf.records = [record for record in self._shelf.records if record[1] > self._shelf.trim]

    @property
    def found_mark(self) -> MetadataMark:
        return NO_MARK

    def see_metadata(self, mark: MetadataMark) -> None:
        if self.wal_id != NO_WAL_ID:
            self._shelf.mark = max(self._shelf.mark, mark)

    async def mark_metadata(self) -> None:
        """What is seen is on the shelf."""

    async def reset(self) -> None:
        await self.trim(self.confirmed_end)

    async def close(self) -> None:
        self._write()
        self._is_closed = True


async def open_shelf(place: WalPlace, owner: WalOwner) -> ShelfWal:
    shelf = SHELVES.setdefault(place.address.target, Shelf(owner.cluster_id, owner.node_id))
    if shelf.cluster_id != owner.cluster_id:
        raise WalMismatch("cluster", owner.cluster_id, shelf.cluster_id)
    if shelf.node_id != owner.node_id:
        raise WalMismatch("node", owner.node_id, shelf.node_id)
    if owner.epoch <= shelf.epoch:
        raise WalFenced(owner.epoch, shelf.epoch)
    return ShelfWal(shelf, place.settings.capacity_bytes, owner)


async def identify_shelf(place: WalPlace, node_id: int) -> WalIdentity | None:
    shelf = SHELVES.get(place.address.target)
    return None if shelf is None else WalIdentity(shelf.wal_id, shelf.epoch, shelf.mark)


async def inspect_shelf(place: WalPlace, cluster_id: str, node_id: int, reads_data: bool) -> WalReport:
    shelf = SHELVES[place.address.target]
    size_bytes = sum(len(payload) for _, _, payload in shelf.records)
    facts = {"records": len(shelf.records), "epoch": shelf.epoch}
    harms = [] if shelf.cluster_id == cluster_id else [f"the shelf is of cluster {shelf.cluster_id}"]
    return WalReport(
        facts, [f"epoch {shelf.epoch}"], [("records", len(shelf.records), size_bytes)], [], harms
    )


SHELF = WalKind(
    lambda words: ShelfSettings(words.number("capacity", 1 << 20), words.text("wood", "oak")),
    open_shelf,
    identify_shelf,
    name="shelf",
    name_of=lambda address: f"shelf {address.target}",
    mend="nail the shelf",
    inspect=inspect_shelf,
)
