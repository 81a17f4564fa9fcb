"""An older copy of one of a node's places, found at one start: the log directory, or the WAL's volume.

The copy is put where the place is, at a start that is to see that it is older: for the WAL's header names metadata that the copied log lacks, or
metadata knows a later owner than the copied WAL does. That start has to be refused, with the WAL as it was; then the right place is
put back. A copy that nobody can tell from the right one (the window that docs/bucket.md names) is not put anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.broker.binding import BindingRefused
from millrace.protocol.batches import iter_headers
from millrace.wal.block.layout import BLOCK_BYTES, RING_START, DeviceHeader, choose_device_header
from millrace.wal.errors import WalOutdated
from tests.sim.disk import SimDisk, SimFile
from tests.sim.settings import WAL_FILE

if TYPE_CHECKING:
    from tests.sim.node import SimNode

Files = dict[str, SimFile]


class OlderPlace:
    """Made when the copy is taken. `swap` and `undo` are called while the node is down."""

    def __init__(self, node: SimNode, *, is_log: bool) -> None:
        self._node = node
        self._is_log = is_log
        self._copy = copied(node.disk, self._is_ours)
        self._current: Files = {}
        self._before = b""
        self.is_in_place = False
        self.is_over = False

    def _is_ours(self, path: str) -> bool:
        is_in_log = path.startswith(f"{self._node.settings.controller.log_dir}/")
        return is_in_log and path != WAL_FILE if self._is_log else path == WAL_FILE

    def swap(self) -> None:
        """The next start finds the copy, if it can tell."""
        if self.is_over or self.is_in_place or not self._can_be_told():
            return
        disk = self._node.disk
        self._current = copied(disk, self._is_ours)
        put_back(disk, self._copy, self._is_ours)
        self._before = self._rest()
        self.is_in_place = True
        self._node.world.trace.note(self._node.name, "older place", "log directory" if self._is_log else "WAL")

    def undo(self, error: BaseException | None) -> str:
        """After a start that ended: the right place is back. Gives what is wrong with how it ended; "" for nothing, or where something else
        ended it."""
        self.is_in_place = False
        after = self._rest()
        put_back(self._node.disk, self._current, self._is_ours)
        if not isinstance(error, BindingRefused | WalOutdated) or "older" not in str(error):
            return ""
        self.is_over = True
        what = "log directory" if self._is_log else "WAL"
        self._node.world.hits[f"older {what} refused"] += 1
        return "" if self._before == after else f"an older {what} was refused, and something was changed"

    def _can_be_told(self) -> bool:
        header = wal_header(self._copy.get(WAL_FILE) or self._node.disk.files.get(WAL_FILE))
        if header is None or self._node.image is None:
            return False
        if self._is_log:
            return header.mark.offset > log_end(self._copy)
        registered = self._node.image.wals.active(self._node.node_id)
        return registered is not None and header.epoch < registered.owner_epoch

    def _rest(self) -> bytes:
        """What a refused start leaves as it was. (The bucket may change: what the dead process sent may come late.)"""
        wal = self._node.disk.files.get(WAL_FILE)
        return b"" if wal is None else bytes(wal.durable)


def copied(disk: SimDisk, is_wanted: Callable[[str], bool]) -> Files:
    return {
        path: SimFile(bytearray(file.durable), bytearray(file.durable), is_device=file.is_device, is_log=file.is_log)
        for path, file in disk.files.items()
        if is_wanted(path)
    }


def put_back(disk: SimDisk, files: Files, is_wanted: Callable[[str], bool]) -> None:
    for path in [path for path in disk.files if is_wanted(path)]:
        del disk.files[path]
    for path, file in files.items():
        disk.files[path] = SimFile(
            bytearray(file.durable), bytearray(file.durable), is_device=file.is_device, is_log=file.is_log
        )


def wal_header(file: SimFile | None) -> DeviceHeader | None:
    if file is None:
        return None
    return choose_device_header(bytes(file.durable[:BLOCK_BYTES]), bytes(file.durable[BLOCK_BYTES:RING_START]))


def log_end(files: Files) -> int:
    """The offset at which a copied metadata log ends."""
    segments = sorted(path for path in files if path.endswith(".log"))
    ends = [header.last_offset + 1 for path in segments for _, header in iter_headers(bytes(files[path].durable))]
    bases = [int(path.rpartition("/")[2].removesuffix(".log")) for path in segments]
    return max([*ends, *bases], default=0)
