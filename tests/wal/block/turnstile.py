"""A file that several machines share, whose reads and writes take effect one at a time in an order that
somebody chooses. Reads see what has landed, whoever wrote it; a write that is `torn` lands in two steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from millrace.runtime.disk import BlockFile, DiskFailed
from millrace.wal.block.layout import CLAIM_PLACE, RING_START
from tests.sim.disk import SimDisk
from tests.wal.object.build import make_bucket
from tests.wal.object.turnstile import Turnstile

SECTOR_BYTES = 512


class SharedStorage:
    """The bytes, and the turnstile that all machines' requests pass. `torn`: whose block writes land in two
    steps."""

    def __init__(self, choose: Callable[[int], int], size_bytes: int, torn: tuple[str, ...] = ()) -> None:
        self.turnstile = Turnstile(make_bucket(), choose)
        self.data = bytearray(size_bytes)
        self.torn = torn
        self.reads_fail = ""  # whose reads of the claim fail

    def machine(self, name: str) -> Machine:
        return Machine(self, name)


class Machine(SimDisk):
    """One that reaches the storage. Only its block files are the storage's."""

    def __init__(self, storage: SharedStorage, name: str) -> None:
        super().__init__()
        self._storage = storage
        self._name = name

    async def list_folder(self, path: str) -> list[str]:
        return ["wal"]

    async def open_block(  # type: ignore[override]
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> BlockFile:
        return SharedFile(self._storage, self._name)


class SharedFile:
    is_direct = True
    is_new = False
    is_exclusive = True  # a lock is its machine's own
    keeper = None

    def __init__(self, storage: SharedStorage, name: str) -> None:
        self.size_bytes = len(storage.data)
        self._storage = storage
        self._name = name

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._write(position, bytes(buffer)))

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        async def both() -> DiskFailed | None:
            await self._write(position, bytes(buffer))
            try:
                into[:] = await self.read_at(read_position, len(into))
            except DiskFailed as error:
                return error
            return None

        return asyncio.ensure_future(both())

    async def _write(self, position: int, data: bytes) -> None:
        parts = [(position, data)]
        if self._name in self._storage.torn and position > CLAIM_PLACE:
            parts = [(position, data[:SECTOR_BYTES]), (position + SECTOR_BYTES, data[SECTOR_BYTES:])]
        for place, part in parts:
            await self._step(f"write {place}", partial(self._put, place, part))

    def _put(self, place: int, part: bytes) -> None:
        self._storage.data[place : place + len(part)] = part

    async def read_at(self, position: int, length: int) -> bytes:
        if position == CLAIM_PLACE and self._storage.reads_fail == self._name:
            raise DiskFailed("/data/wal", "Input/output error")
        found: bytes = await self._step(
            f"read {position}", lambda: bytes(self._storage.data[position : position + length])
        )
        return found

    async def _step(self, what: str, effect: Callable[[], Any]) -> Any:
        if what == f"read {RING_START // 2}":  # the second copy of a header, right behind the first
            return effect()
        return await self._storage.turnstile.pass_through(f"{self._name} {what}", effect)

    async def resize(self, size_bytes: int) -> None:
        raise AssertionError("a log that is shared keeps its size here")

    async def reserve(self, key: int, old_key: int) -> bool:
        return False

    async def close(self) -> None:
        pass
