"""A place that is not the node's own, found at one start: an older copy of the log directory or of the WAL's
volume, an older copy of the bucket, both, an emptied bucket, or another cluster's. Other WALs are in
strange_wal.py.

It is put where the node's own place is, at a start that is to see it: the WAL names metadata that the copied
log lacks, metadata knows a later owner than the copied WAL does, or a claim that a copied bucket lacks. That
start has to be refused, with log directory, WAL and bucket as they were; then the right place is put back. A
copy that nobody can tell from the right one (the window that docs/bucket.md names) is not put anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.broker.identity.binding import MARKER_KEY, BindingRefused
from millrace.protocol.batches import is_intact, iter_headers
from millrace.protocol.errors import WireError
from millrace.wal.block.layout import BLOCK_BYTES, RING_START, DeviceHeader, choose_device_header
from millrace.wal.config import ObjectWalSettings
from millrace.wal.errors import WalCorrupt, WalOutdated
from millrace.wal.object.layout import decode_header
from tests.sim.disk import SimDisk, SimFile
from tests.sim.history import History
from tests.sim.settings import WAL_FILE

if TYPE_CHECKING:
    from tests.sim.node import SimNode

Files = dict[str, SimFile]
Objects = dict[str, tuple[bytes, int]]
OLDER, EMPTIED, ANOTHER = "older bucket", "emptied bucket", "another bucket"
BUCKET = "the bucket"
ANOTHER_CLUSTER = "AnotherClusterssBucket"


class StrangePlace:
    """`swap` and `undo` are called while the node is down. `words`: what a refusal says, one of them."""

    def __init__(self, node: SimNode, what: str, words: tuple[str, ...] = ("older",)) -> None:
        self._node = node
        self.what = what
        self._words = words
        self._before: dict[str, Any] = {}
        self.is_in_place = False
        self.is_over = False

    async def swap(self) -> None:
        """The next start finds it, if it can tell."""
        if self.is_over or self.is_in_place or not await self.is_told():
            return
        self.put()
        self._before = self._state()
        self.is_in_place = True
        self._node.world.trace.note(self._node.name, "strange place", self.what)

    def undo(self, error: BaseException | None) -> str:
        """After a start that ended: the right place is back. Gives what is wrong with how it ended; "" for
        nothing, or where something else ended it."""
        self.is_in_place = False
        after = self._state()
        self.put_back()
        if not isinstance(error, BindingRefused | WalOutdated) or not any(
            word in str(error) for word in self._words
        ):
            return ""
        self.is_over = True
        self._node.world.hits[f"{self.what} refused"] += 1
        self._node.world.hits[f"{self.what} refused, with a log of objects"] += is_of_objects(self._node)
        for bucket in (self._before[BUCKET], after[BUCKET]):
            for key in self._node.world.bucket.rotted & bucket.keys():  # the weather's doing
                del bucket[key]
        changed = [name for name, value in self._before.items() if after[name] != value]
        return f"{self.what}: refused, and changed: {', '.join(changed)}" if changed else ""

    async def is_told(self) -> bool:
        return self.can_be_told()

    def can_be_told(self) -> bool:
        raise NotImplementedError

    def settle(self, history: History) -> None:
        """After a start that served."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.is_over

    def put(self) -> None:
        raise NotImplementedError

    def put_back(self) -> None:
        raise NotImplementedError

    def _state(self) -> dict[str, Any]:
        """What a refused start leaves as it was, all three places. Of the log directory what it says: a start
        ends what the one before was at. (What a dead process sent may come late, and is no change of the
        start's.)"""
        node = self._node
        wal = node.disk.files.get(WAL_FILE)
        late = " ".join(what for _, what in node.world.bucket.late)
        objects = node.world.bucket.objects
        return {
            "the WAL": b"" if wal is None else bytes(wal.durable),
            "the log directory": log_end(
                {path: file for path, file in node.disk.files.items() if is_in_log(node, path)}
            ),
            BUCKET: {key: content for key, (content, _) in objects.items() if key not in late},
        }


def is_in_log(node: SimNode, path: str) -> bool:
    return path.startswith(f"{node.settings.controller.log_dir}/") and path != WAL_FILE


class OlderPlace(StrangePlace):
    """Made when the copy is taken. `is_log`: of the log directory; else of the WAL, be it a file or
    objects."""

    def __init__(self, node: SimNode, *, is_log: bool) -> None:
        # (A WAL that was lost since, with the log directory, is another one's copy by now.)
        super().__init__(
            node,
            "older log directory" if is_log else "older WAL",
            ("older", "is not the one that this node wrote last"),
        )
        self._is_log = is_log
        self._copy = copied(node.disk, self._is_ours)
        self._objects = {} if is_log else wal_objects(node)
        self._current: Files = {}
        self._current_objects: Objects = {}

    def _is_ours(self, path: str) -> bool:
        return is_in_log(self._node, path) if self._is_log else path == WAL_FILE

    def put(self) -> None:
        self._current = copied(self._node.disk, self._is_ours)
        put_back(self._node.disk, self._copy, self._is_ours)
        if not self._is_log:
            self._current_objects = wal_objects(self._node)
            put_wal_objects(self._node, self._objects)

    def put_back(self) -> None:
        put_back(self._node.disk, self._current, self._is_ours)
        if not self._is_log:
            put_wal_objects(self._node, self._current_objects)

    def can_be_told(self) -> bool:
        node = self._node
        if is_of_objects(node) and not is_bucket_quiet(node):
            return False
        word = last_word(node) if self._is_log else last_word(node, self._copy, self._objects)
        if word is None or node.image is None:
            return False
        if self._is_log:
            return word.metadata_end > log_end(self._copy)
        registered = node.image.wals.active(node.node_id)
        return registered is not None and word.owner_epoch < registered.owner_epoch


class OlderPair(StrangePlace):
    """Log directory and bucket, both of one earlier moment: they fit each other, and the WAL alone tells, a
    newer one. (A log of objects is in a bucket of its own.) Made when the copies are taken."""

    def __init__(self, node: SimNode) -> None:
        super().__init__(node, "older log directory and bucket", ("the metadata log is older than the WAL",))
        self._copy = copied(node.disk, self._is_ours)
        self._objects = dict(node.world.bucket.objects)
        self._current: Files = {}
        self._current_objects: Objects = {}

    def _is_ours(self, path: str) -> bool:
        return is_in_log(self._node, path)

    def put(self) -> None:
        node = self._node
        self._current, self._current_objects = copied(node.disk, self._is_ours), node.world.bucket.objects
        wal = wal_objects(node)
        put_back(node.disk, self._copy, self._is_ours)
        node.world.bucket.objects = dict(self._objects)
        put_wal_objects(node, wal)

    def put_back(self) -> None:
        put_back(self._node.disk, self._current, self._is_ours)
        self._node.world.bucket.objects = self._current_objects

    def can_be_told(self) -> bool:
        word = last_word(self._node)
        return is_bucket_quiet(self._node) and word is not None and word.metadata_end > log_end(self._copy)


class StrangeBucket(StrangePlace):
    """`kind`: OLDER (made when the copy is taken: the node has to serve once more before it is put), EMPTIED
    or ANOTHER. `is_whole`: a log of objects is in it too; else that has a bucket of its own, which stays."""

    def __init__(self, node: SimNode, kind: str, *, is_whole: bool) -> None:
        words = ("older", "holds nothing of cluster", "holds the data of cluster")
        super().__init__(node, kind, words)
        self._is_whole = is_whole
        self._copy = {} if kind == EMPTIED else dict(node.world.bucket.objects)
        if kind == ANOTHER:
            self._copy = of_another_cluster(self._copy, node.cluster_id)
        self._current: Objects = {}

    def can_be_told(self) -> bool:
        """Not while a request of the dead is still to come, which would find the wrong bucket, or an object
        is damaged for a while; nor before the first start of a restored log directory is through, which takes
        the bucket for what it was restored from."""
        node = self._node
        if node.lost_log is not None and node.lost_log.is_begun:
            return False
        return is_bucket_quiet(node)

    def put(self) -> None:
        bucket = self._node.world.bucket
        self._current = bucket.objects
        wal = wal_objects(self._node)
        bucket.objects = dict(self._copy)
        if not self._is_whole:
            put_wal_objects(self._node, wal)

    def put_back(self) -> None:
        self._node.world.bucket.objects = self._current


def is_of_wal(key: str) -> bool:
    return "/wal/" in key or key.startswith("millrace-wal-")


def is_of_objects(node: SimNode) -> bool:
    return isinstance(node.settings.wal_settings, ObjectWalSettings)


def is_bucket_quiet(node: SimNode) -> bool:
    """No request of the dead is still to come, no object is damaged for a while, and nobody who was replaced
    writes."""
    return not node.world.bucket.late and not node.world.bucket.rotten and node.replaced is None


def wal_objects(node: SimNode) -> Objects:
    return {key: found for key, found in node.world.bucket.objects.items() if is_of_wal(key)}


def put_wal_objects(node: SimNode, objects: Objects) -> None:
    """In the place of those that are there."""
    bucket = node.world.bucket
    bucket.objects = {key: found for key, found in bucket.objects.items() if not is_of_wal(key)} | objects


class LastWord(NamedTuple):
    """What a WAL says of who owned it last, and how far its metadata had come: the end of what was committed
    then."""

    owner_epoch: int
    metadata_end: int


def last_word(node: SimNode, files: Files | None = None, objects: Objects | None = None) -> LastWord | None:
    """Of the WAL that is in place, or of a copy. A log of blocks says it in its header; a log of objects in
    the objects of whoever came last: each names the metadata that its writer knew. None: there is none, or it
    cannot be read."""
    if not is_of_objects(node):
        header = wal_header((node.disk.files if files is None else files).get(WAL_FILE))
        return None if header is None else LastWord(header.epoch, header.mark.offset)
    words: dict[int, int] = {}
    for content, _ in (wal_objects(node) if objects is None else objects).values():
        try:
            header_of_object = decode_header(content, 0)
        except WalCorrupt:
            return None
        mark = header_of_object.stamp.mark.offset
        words[header_of_object.epoch] = max(mark, words.get(header_of_object.epoch, 0))
    return LastWord(max(words), words[max(words)]) if words else None


def of_another_cluster(objects: Objects, cluster_id: str) -> Objects:
    """A bucket like this one, of a cluster with another id."""
    made = {key.replace(cluster_id, ANOTHER_CLUSTER): found for key, found in objects.items()}
    made[MARKER_KEY] = json.dumps({"version": 1, "cluster_id": ANOTHER_CLUSTER}).encode(), 0
    return made


def copied(disk: SimDisk, is_wanted: Callable[[str], bool]) -> Files:
    return {
        path: SimFile(
            bytearray(file.durable), bytearray(file.durable), is_device=file.is_device, is_log=file.is_log
        )
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
    return choose_device_header(
        bytes(file.durable[:BLOCK_BYTES]), bytes(file.durable[BLOCK_BYTES:RING_START])
    )


def log_end(files: Files) -> int:
    """The offset at which a copied metadata log ends; what a power cut tore does not count."""
    ends = [0]
    for path in sorted(path for path in files if path.endswith(".log")):
        ends.append(int(path.rpartition("/")[2].removesuffix(".log")))
        data = memoryview(bytes(files[path].visible))
        with suppress(WireError):
            for position, header in iter_headers(data):
                if is_intact(data[position : position + header.size_bytes], header):
                    ends.append(header.last_offset + 1)
    return max(ends)
