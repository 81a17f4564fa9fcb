"""LooseFile: a block file that several machines have open at once, on storage that knows no lock.

    write_at ──► handed to the storage ──► lands: durable, seen by every machine ──► its process is told
                        │
                        ├── the process stands still        it lands all the same, and is told of later
                        ├── the process was killed          it lands, now or up to LATE_S later
                        ├── the machine lost power          what its fate leaves of it does, now or later
                        └── the machine is slow             it lands up to LATE_S later

What an owner asked for before it was replaced so lands behind what its successor has read, and written. The
look behind a write (`write_then_read`) is the kernel's in half of the files (io_uring), the process's own in
the others, as the product has both.

Not here: what docs/formats/block_wal.md says is left, a write that lands once others have written half a ring
since it was begun. It does not land, and is counted.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from millrace.runtime.disk import BLOCK_BYTES, DiskFailed
from millrace.runtime.errors import Closed
from millrace.runtime.rand import Rand
from millrace.wal.block.layout import CLAIM_PLACE
from tests.sim.disk import Fate, Pending, SimBlockFile, SimDisk
from tests.sim.loop import own_context

LATE_S = 2.5  # less than the session of a broker that is gone
SLOW_ONE_IN, GONE_ONE_IN = 3, 3  # writes that are late: of a slow machine, and of a process that is gone


@dataclass
class Storage:
    """What all machines write to. `by_writer`: bytes by path and writer."""

    disk: SimDisk
    rand: Rand
    hits: Counter[str]
    by_writer: dict[str, Counter[int]] = field(default_factory=dict)
    writer_count: int = 0

    def new_writer(self) -> int:
        self.writer_count += 1
        return self.writer_count

    def others_bytes(self, path: str, writer: int) -> int:
        counts = self.by_writer.setdefault(path, Counter())
        return counts.total() - counts[writer]

    def delay_s(self) -> float:
        return self.disk.latency_s * (0.5 + self.rand.fraction())

    def late_s(self, one_in: int) -> float:
        return 0.0 if self.rand.below(one_in) else LATE_S * self.rand.fraction()


@dataclass(slots=True, eq=False)
class UnderWay:
    """A write that was handed to the storage. `others_bytes`: what others had written into the file by then.
    `on_landed`: what follows in the kernel."""

    pending: Pending
    others_bytes: int
    due_s: float
    is_late: bool
    pieces: list[tuple[int, bytes]]
    buffer: memoryview
    on_landed: Callable[[], None]
    is_owned: bool = True  # its process is there


class LooseFile(SimBlockFile):
    """`is_slow` is asked with each write."""

    def __init__(self, storage: Storage, path: str, file: SimBlockFile, is_slow: Callable[[], bool]) -> None:
        super().__init__(storage.disk, path, file.is_direct)
        self.is_exclusive = file.is_exclusive
        self._storage = storage
        self._is_slow = is_slow
        self._writer = storage.new_writer()
        self._is_linked = bool(storage.rand.below(2))
        self._writes: list[UnderWay] = []

    def write_at(self, position: int, buffer: memoryview) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        process = copy_context()
        self._hand_over(position, buffer, lambda: _tell(process, lambda: future.set_result(None)))
        return future

    def write_then_read(
        self, position: int, buffer: memoryview, read_position: int, into: memoryview
    ) -> asyncio.Future[DiskFailed | None]:
        if not self._is_linked:
            return super().write_then_read(position, buffer, read_position, into)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[DiskFailed | None] = loop.create_future()
        process = copy_context()

        def read() -> None:
            end = read_position + len(into)
            found = bytes(self._file.visible[read_position:end])
            is_lost = any(read_position <= at < end for at in self._file.lost)
            failure = DiskFailed(self._path, os.strerror(errno.EIO)) if is_lost else None

            def tell() -> None:
                into[:] = found
                future.set_result(failure)

            _tell(process, tell)

        def read_soon() -> None:
            loop.call_later(self._storage.delay_s(), read)

        self._hand_over(position, buffer, read_soon)
        return future

    def _hand_over(self, position: int, buffer: memoryview, on_landed: Callable[[], None]) -> None:
        if self._is_closed:
            raise Closed(self._path)
        assert position % BLOCK_BYTES == len(buffer) % BLOCK_BYTES == 0, (position, len(buffer))
        assert 0 < len(buffer) <= self.size_bytes - position, (position, len(buffer))
        storage, content = self._storage, bytes(buffer)
        number, _ = self._disk.begin_write("write_at", self._path, position, content)
        pending = Pending(number, self._path, position, content)
        self._file.pending.append(pending)
        self._under_way += 1
        late_s = storage.late_s(SLOW_ONE_IN) if self._is_slow() else 0.0
        due_s = asyncio.get_running_loop().time() + storage.delay_s() + late_s
        others_bytes = storage.others_bytes(self._path, self._writer)
        pieces = [(position, content)]
        write = UnderWay(pending, others_bytes, due_s, bool(late_s), pieces, buffer, on_landed)
        self._writes.append(write)
        self._land_when_due(write)

    def _land_when_due(self, write: UnderWay) -> None:
        asyncio.get_running_loop().call_at(write.due_s, self._land, write, context=own_context(None))

    def _land(self, write: UnderWay) -> None:
        if asyncio.get_running_loop().time() < write.due_s:
            self._land_when_due(write)  # its process was killed meanwhile, and the storage takes its time
            return
        self._writes.remove(write)
        self._file.pending.remove(write.pending)
        self._under_way -= 1
        storage, path = self._storage, self._path
        others_bytes = storage.others_bytes(path, self._writer) - write.others_bytes
        if write.is_late and others_bytes >= self.size_bytes // 2:
            storage.hits["late write: the ring came round, not landed"] += 1
        else:
            for position, data in write.pieces:
                self._file.put(position, data)
                storage.by_writer[path][self._writer] += len(data)
            if write.is_late and others_bytes and write.pieces:
                storage.hits[f"late write landed behind another's: {_place(write.pending.position)}"] += 1
        if write.is_owned:
            assert bytes(write.buffer) == write.pending.data, "the buffer changed under its write"
            write.on_landed()

    def end(self, fate: Fate) -> None:
        """The process is gone; of what it handed over the fate leaves what it does."""
        now_s = asyncio.get_running_loop().time()
        for write in self._writes:
            write.is_owned = False
            write.pieces = fate(write.pending)
            late_s = self._storage.late_s(GONE_ONE_IN)
            write.due_s, write.is_late = max(write.due_s, now_s + late_s), write.is_late or bool(late_s)
        self._is_closed = True
        if self.is_exclusive:
            self._disk.close_block(self._path)


def _tell(process: Context, tell: Callable[[], None]) -> None:
    """When the process runs again; never where it is gone."""
    asyncio.get_running_loop().call_soon(tell, context=process)


def _place(position: int) -> str:
    return "the header" if position < CLAIM_PLACE else "the claim" if position == CLAIM_PLACE else "the ring"
