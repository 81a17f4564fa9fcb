"""LockKeeper: which kernel keeps the lock of an open file, and which file that is to it. Pure.

A lock keeps out those who ask the same kernel for the same file. Another machine has a kernel of its own; so
has each of two mounts of a network file system, an overlay or FUSE its own file, though the kernel is one;
and a device that has a name in each of two containers is two files. Where the boot is another one of the same
machine, all that held a lock before is gone with it.

Not here: locking (opening.py), asking the system (machine_ids.py). Kept true: what cannot be told is taken
for another machine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ID_BYTES: Final = 16
NO_MACHINE: Final = bytes(ID_BYTES)


@dataclass(frozen=True, slots=True)
class LockKeeper:
    machine: bytes  # NO_MACHINE where it cannot be told
    boot: bytes
    file: bytes  # device and inode, as this kernel numbers them

    def tells_of(self, holder: LockKeeper) -> bool:
        """Whether a lock that is free here is free of that holder, too: it was taken here, or the machine it
        was taken on has been started anew."""
        if self.boot == holder.boot:
            return self.file == holder.file
        return self.machine == holder.machine != NO_MACHINE


# Somebody who was named, and of whom no more can be told: no lock tells of that one.
UNTOLD: Final = LockKeeper(NO_MACHINE, bytes(ID_BYTES), bytes(ID_BYTES))
