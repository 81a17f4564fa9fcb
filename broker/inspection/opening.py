"""A node's metadata and bucket, opened to look and change nothing: for fsck and the commands that list.

Metadata comes from the log directory: the newest whole snapshot and the log behind it, through the same code
as a start, on a disk that takes no writes (a torn tail is read up to, and not cut). A broker that runs there
may make a snapshot and remove what it replaces meanwhile: then it is read again, so that what is given is the
metadata at one moment. Who runs on the directory is told by its lock, which is looked at and not taken, so
that no start is refused; `hold` takes it, so that none starts meanwhile. Kept true: nothing here writes to
the directory but the lock's own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from millrace.broker.config import BrokerSettings
from millrace.broker.errors import CommandRefused
from millrace.kraft.errors import LogCorrupt, SnapshotCorrupt
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.log_store import FOLDER, LogStore
from millrace.kraft.log.meta_properties import read_meta_properties
from millrace.kraft.recovery import own_epoch_of, replay
from millrace.protocol.dataclass import dataclass
from millrace.runtime.bundle import Runtime
from millrace.runtime.disk import Buffer, Disk, DiskLock, DiskLocked
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.address import StoreAddress
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy

RETRIES = RetryPolicy(attempts_max=5, longest_wait_ms=5_000)
READS_MAX = 10  # of a log whose files go while they are read


@dataclass(slots=True)
class Inspected:
    """`running_pid` is whose process holds the directory, "" when none does. With `lock`, none can until
    `release`."""

    cluster_id: str
    node_id: int
    image: MetadataImage
    running_pid: str
    lock: DiskLock | None

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()


async def inspect_metadata(disk: Disk, settings: BrokerSettings, *, hold: bool) -> Inspected:
    """Raises CommandRefused, LogCorrupt, SnapshotCorrupt, UnknownRecord. `hold`: keep brokers out, where none
    runs."""
    log_dir = settings.controller.log_dir
    meta = await read_meta_properties(disk, log_dir)
    if meta is None:
        raise CommandRefused(
            f"{log_dir} holds no metadata log: name the node's directory with --data-dir, or its settings "
            "with --config"
        )
    running_pid, lock, lock_path = "", None, f"{log_dir}/.lock"
    if hold:
        try:
            lock = disk.lock(lock_path)
        except DiskLocked as error:
            running_pid = error.holder or "unknown"
    else:
        running_pid = disk.lock_holder(lock_path)
    try:
        image = await _read_image_of_a_moment(disk, log_dir, meta.node_id)
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    return Inspected(meta.cluster_id, meta.node_id, image, running_pid, lock)


async def _read_image_of_a_moment(disk: Disk, log_dir: str, node_id: int) -> MetadataImage:
    """What does not fit together is damage, unless the files changed while they were read."""
    folder = f"{log_dir}/{FOLDER}"
    for _ in range(READS_MAX - 1):
        names = await disk.list_folder(folder)
        try:
            return await _read_image(disk, log_dir, node_id)
        except (LogCorrupt, SnapshotCorrupt):
            if await disk.list_folder(folder) == names:
                raise
    return await _read_image(disk, log_dir, node_id)


async def _read_image(disk: Disk, log_dir: str, node_id: int) -> MetadataImage:
    looking = cast(Disk, ReadOnlyDisk(disk))
    store = LogStore(looking, log_dir, (), 1)
    segments = await store.list_segments()
    snapshots = await store.snapshots()
    if not segments:
        raise LogCorrupt(store.folder, 0, "the directory was in use, and the log's segments are gone")
    try:
        own_epoch = own_epoch_of(await store.load_state(), await store.load_voters(), node_id)
        recovery, _ = await replay(looking, store, snapshots, segments, lambda known: True, own_epoch)
    finally:
        await store.close()
    return recovery.image()


async def open_bucket(runtime: Runtime, settings: BrokerSettings) -> ObjectStore:
    """The data bucket, to look at it."""
    return await open_to_look(runtime, settings.data)


async def open_to_look(runtime: Runtime, address: StoreAddress) -> ObjectStore:
    """A store that is asked again a few times when it does not answer. A directory is not made when it is
    missing, nor cleaned."""
    if address.scheme == "file":
        from millrace.runtime.objectstore.local import LocalObjectStore

        bare: ObjectStore = LocalObjectStore(address.target)
    else:
        bare = await runtime.open_store(address, runtime.clock)
    return RetryingObjectStore(bare, runtime.rand.split("inspection"), RETRIES)


class ReadOnlyDisk:
    """A disk whose changes do not happen. Of what a metadata log asks for, no more."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def open_log(self, path: str) -> ReadOnlyLog:
        """Read whole, a snapshot's interval of log at most: opened like a start does it, a file that a
        running broker has just removed would be made again. Raises LogCorrupt where the file is gone."""
        data = await self._disk.read_file(path)
        if data is None:
            raise LogCorrupt(path, 0, "it went away while it was read: a broker is running, look again")
        return ReadOnlyLog(data)

    async def read_file(self, path: str) -> bytes | None:
        return await self._disk.read_file(path)

    async def list_folder(self, path: str) -> list[str]:
        return await self._disk.list_folder(path)

    async def make_folder(self, path: str) -> None: ...

    async def remove(self, path: str) -> None: ...


class ReadOnlyLog:
    """A file as it was when it was read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_bytes = len(data)

    async def append(self, parts: Sequence[Buffer]) -> None:
        raise AssertionError("an append while looking")

    async def sync(self) -> None: ...

    async def read_at(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]

    async def truncate(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    async def close(self) -> None: ...
