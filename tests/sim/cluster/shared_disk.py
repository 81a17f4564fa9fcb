"""SharedDisk: a folder that every machine of a cluster sees under the same path, on a disk that stays up when
a machine goes; a log of blocks in it can be recovered by others.

A file that is opened for one process is that process's, as its lock has it. When the process is killed, what
it had under way is finished by the kernel; when its machine loses power, each write survives as the machine's
fate says; then its files are free. A process that is halted keeps them.

A file that is opened as one that others have open, too (`fencing=claim`), has no lock (loose_file.py). Not
here: a device with reservations.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from millrace.runtime.disk.lock_keeper import LockKeeper
from millrace.runtime.rand import Rand
from tests.sim.cluster.loose_file import LooseFile, Storage
from tests.sim.disk import Fate, SimBlockFile, SimDisk

FOLDER = "/shared"


def is_below(path: str) -> bool:
    return path == FOLDER or path.startswith(FOLDER + "/")


class SharedDisk:
    def __init__(self, rand: Rand, latency_s: float, hits: Counter[str] | None = None) -> None:
        self.below = SimDisk(rand, latency_s=latency_s)
        self.below.keeper = LockKeeper(b"m" * 16, b"b" * 16, b"f" * 16)  # one, whichever machine asks
        self.storage = Storage(self.below, rand.split("loose"), Counter() if hits is None else hits)

    def mounted(self, own: SimDisk) -> MountedDisk:
        """For one life of a machine with a disk of its own."""
        return MountedDisk(own, self.below, self.storage)


class MountedDisk:
    """A Disk: what lies in FOLDER is the shared one's, all else the machine's own. `is_slow`: what this
    machine writes into files without a lock may land late."""

    def __init__(self, own: SimDisk, shared: SimDisk, storage: Storage) -> None:
        self._own = own
        self._shared = shared
        self._storage = storage
        self._opened: dict[str, None] = {}
        self._loose: list[LooseFile] = []
        self.is_slow = False

    def __getattr__(self, name: str) -> Any:
        """Each verb of a disk begins with a path, and a rename stays on one side."""
        on_own, on_shared = getattr(self._own, name), getattr(self._shared, name)

        def ask(path: str, *args: Any, **keys: Any) -> Any:
            return (on_shared if is_below(path) else on_own)(path, *args, **keys)

        return ask

    async def open_block(
        self, path: str, size_bytes: int, *, direct: str = "prefer", is_shared: bool = False
    ) -> SimBlockFile:
        if not is_below(path):
            return await self._own.open_block(path, size_bytes, direct=direct, is_shared=is_shared)
        file = await self._shared.open_block(path, size_bytes, direct=direct, is_shared=is_shared)
        if is_shared:
            return self._open_loose(path, file)
        self._opened[path] = None
        close_file = file.close

        async def close() -> None:
            await close_file()
            self._opened.pop(path, None)

        file.close = close  # type: ignore[method-assign]
        return file

    def _open_loose(self, path: str, file: SimBlockFile) -> LooseFile:
        loose = LooseFile(self._storage, path, file, lambda: self.is_slow)
        self._loose.append(loose)
        return loose

    def end(self, fate: Fate) -> None:
        """The life is over: nothing of it completes any more, but for what files without a lock were asked
        for."""
        for path in self._opened:
            file = self._shared.files[path]
            for pending in list(file.pending):
                file.pending.remove(pending)
                for position, data in fate(pending):
                    file.put(position, data)
            self._shared.close_block(path)
        self._opened.clear()
        for loose in self._loose:
            loose.end(fate)
        self._loose.clear()
