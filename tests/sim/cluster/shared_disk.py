"""SharedDisk: a folder that every machine of a cluster sees under the same path, on a disk that stays up when
a machine goes; a log of blocks in it can be recovered by others.

A file is open to one process at a time, as its lock has it. When a process is killed, what it had under way
is finished by the kernel; when its machine loses power, each write survives as the machine's fate says; then
its files are free. A process that is halted keeps them. Not here: a device with reservations.
"""

from __future__ import annotations

from typing import Any

from millrace.runtime.rand import Rand
from tests.sim.disk import Fate, SimBlockFile, SimDisk

FOLDER = "/shared"


def is_shared(path: str) -> bool:
    return path == FOLDER or path.startswith(FOLDER + "/")


class SharedDisk:
    def __init__(self, rand: Rand, latency_s: float) -> None:
        self.below = SimDisk(rand, latency_s=latency_s)

    def mounted(self, own: SimDisk) -> MountedDisk:
        """For one life of a machine with a disk of its own."""
        return MountedDisk(own, self.below)


class MountedDisk:
    """A Disk: what lies in FOLDER is the shared one's, all else the machine's own."""

    def __init__(self, own: SimDisk, shared: SimDisk) -> None:
        self._own = own
        self._shared = shared
        self._opened: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        """Each verb of a disk begins with a path, and a rename stays on one side."""
        on_own, on_shared = getattr(self._own, name), getattr(self._shared, name)

        def ask(path: str, *args: Any, **keys: Any) -> Any:
            return (on_shared if is_shared(path) else on_own)(path, *args, **keys)

        return ask

    async def open_block(self, path: str, size_bytes: int, **keys: Any) -> SimBlockFile:
        if not is_shared(path):
            return await self._own.open_block(path, size_bytes, **keys)
        file = await self._shared.open_block(path, size_bytes, **keys)
        self._opened[path] = None
        close_file = file.close

        async def close() -> None:
            await close_file()
            self._opened.pop(path, None)

        file.close = close  # type: ignore[method-assign]
        return file

    def end(self, fate: Fate) -> None:
        """The life is over: nothing of it completes any more."""
        for path in self._opened:
            file = self._shared.files[path]
            for pending in list(file.pending):
                file.pending.remove(pending)
                for position, data in fate(pending):
                    file.put(position, data)
            self._shared.close_block(path)
        self._opened.clear()
