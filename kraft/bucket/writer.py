"""MetadataBackup: puts what is committed into the bucket, on the node that leads the quorum.

    committed log -> pieces, by demand (a trim of the WAL, an opening) and by age -> snapshot now and then
        -> pointer -> old ones deleted

A piece holds all that is committed when it is cut, so that whoever waits while one is under way shares the
next one. Each is put once, under a name that no other content may have: a name that is taken by other bytes
means that another copy of this metadata log wrote it, and this node ends. A store that is away is asked again
for ever; what waits, waits. Before each put and deletion the owner's claim is looked at: what a replaced
node, or a clone, committed never moves the pointer. What still lands between look and put is passed over by
readers, by its lower epoch.

Not here: who must wait for what (s3stream/uploader.py, broker/background/object_cleaner.py, the opening of
partitions), reading (reader.py). Kept true: nothing that is not committed is put; what is called saved can be
restored from the bucket alone; snapshots and pieces are deleted only behind three newer snapshots; below
millrace.version 1 nothing is put, and nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from millrace.kraft.bucket.layout import (
    BackupCorrupt,
    Kind,
    PieceName,
    decode_newest,
    encode_newest,
    frame,
    log_prefix,
    newest_key,
    parse_piece_key,
    parse_snapshot_key,
    piece_key,
    snapshot_key,
    snapshots_prefix,
)
from millrace.kraft.bucket.reader import BucketMetadata
from millrace.kraft.bucket.settings import BackupSettings
from millrace.kraft.errors import LogCorrupt
from millrace.kraft.image.applier import StoredBatch
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.image.publisher import MetadataPublisher
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.log.snapshot import NO_VOTERS, snapshot_parts
from millrace.kraft.raft.voters import VoterSet
from millrace.protocol.batches import BatchHeader
from millrace.runtime.clock import Clock
from millrace.runtime.errors import Closed, Exhausted, Fenced, Unavailable
from millrace.runtime.objectstore import (
    ObjectMissing,
    ObjectStore,
    PreconditionFailed,
    StoreConflict,
    StoreDenied,
    StoreFull,
)
from millrace.runtime.objectstore.rounds import EXISTS, NOT_THERE, Rounds, contradiction

T = TypeVar("T")
log = logging.getLogger(__name__)
NOT_NOW = (Unavailable, Exhausted, StoreDenied, ObjectMissing)
PIECE_BYTES_MAX: Final = 4 << 20
SNAPSHOTS_KEPT: Final = 3
PAUSE_MS_MIN: Final = 100
PAUSE_MS_MAX: Final = 10_000
SAMPLE_EVERY_S: Final = 1.0  # how exactly the age of what is not saved is known


class BackupForked(Fenced):
    """The bucket holds other metadata under a name that this node was about to write. Arguments: key."""

    def __str__(self) -> str:
        return (
            f"{self.args[0]} is in the bucket already with other bytes: another copy of this metadata log "
            "has written on. This node ends; see that "
            "one copy alone is started"
        )


class CommittedLog(Protocol):
    """The local metadata log, as far as it is read here."""

    @property
    def start(self) -> int: ...

    async def read(self, start: int, end: int, bytes_max: int) -> list[StoredBatch]: ...


async def no_owner(since_s: float) -> None:
    """Where nobody can take the node over."""


def _nobody() -> None:
    """Makes room."""


class MetadataBackup:
    """`found` is what the bucket held when this node began to lead. Runs until cancelled; `close` before that
    gives the rest a chance."""

    def __init__(
        self,
        store: ObjectStore,
        cluster_id: str,
        committed: CommittedLog,
        publisher: MetadataPublisher,
        confirmed: Clock,
        settings: BackupSettings,
        found: BucketMetadata,
        verify_owner: Callable[[float], Awaitable[None]] = no_owner,
        *,
        is_conditional: bool = True,
        voters_at: Callable[[int], VoterSet] = lambda end: NO_VOTERS,
    ) -> None:
        """`verify_owner` is asked before each put for a newer owner of this node since that second of the
        loop's clock, and raises Fenced then. `is_conditional`: the store keeps If-None-Match; without it a
        name is looked at before it is put. `confirmed`: the Clock of the newest time that is known to be
        right; by what is saved of it a restored node starts. `voters_at`: who votes where the log ends at an
        offset, which is put from kraft.version 1 on for whoever restores."""
        self._store = store
        self._voters_at = voters_at
        self._verify_owner = verify_owner
        self._cluster_id = cluster_id
        self._log = committed
        self._publisher = publisher
        self._confirmed = confirmed
        self._piece: tuple[PieceName, int] | None = None  # the one that is being put, and its time
        self._settings = settings
        self._is_conditional = is_conditional
        self._failure: Exception | None = None
        self.saved_end = found.chain_end  # the bucket has all that is committed below
        self._needs_snapshot = found.highest is not None and found.highest[0] > self.saved_end
        self._pieces_since = len(found.pieces)
        self._bytes_since = 0
        self._demand = 0  # somebody waits for what is committed below
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._unsaved: deque[tuple[int, float]] = deque()  # (a committed end, when it was seen), oldest first
        self._snapshotting: asyncio.Task[None] | None = None
        self.blocked_reason = ""
        self._is_full = asyncio.Event()  # the bucket refused the last put for want of room
        # called when it begins to: somebody may be able to make some
        self.on_full: Callable[[], None] = _nobody
        self.pieces_put = 0
        self.snapshots_put = 0
        self.bytes_put = 0
        self._unsubscribe = publisher.subscribe(lambda delta, image: self._on_image(image))
        if self.is_behind:
            self._sample()

    @property
    def is_on(self) -> bool:
        return self._publisher.image.features.has_identities

    @property
    def is_full(self) -> bool:
        """What is to be put waits for room in the bucket."""
        return self._is_full.is_set()

    @property
    def is_behind(self) -> bool:
        return self.is_on and self._publisher.image.offset > self.saved_end

    def age_s(self) -> float:
        """How long the oldest committed metadata that is not in the bucket has been committed; 0 where there
        is none."""
        return (
            asyncio.get_running_loop().time() - self._unsaved[0][1] if self._unsaved and self.is_on else 0.0
        )

    async def reach_committed(self, *, is_urgent: bool = True) -> None:
        """Returns when all that is committed now is in the bucket: a restore from it alone finds it.
        Cancelling gives up the wait alone. Raises what `run` ended with, Closed. Not urgent: it goes with
        what is put for others, or by age."""
        target = self._publisher.image.offset
        if not self.is_on or self.saved_end >= target:
            return
        if self._failure is not None:
            raise self._failure
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((target, reached))
        if is_urgent and target > self._demand:
            self._demand = target
            self._wake.set()
        await reached

    async def reach_for_deletion(self, *, is_urgent: bool) -> None:
        """As `reach_committed`, but returns as well while the bucket has no room for metadata: only deletions
        make some. A restore from such a bucket may then name objects that are gone, below the start of their
        streams."""
        reached = asyncio.ensure_future(self.reach_committed(is_urgent=is_urgent))
        full = asyncio.ensure_future(self._is_full.wait())
        try:
            await asyncio.wait((reached, full), return_when=asyncio.FIRST_COMPLETED)
            if reached.done():
                reached.result()
        finally:
            reached.cancel()
            full.cancel()

    async def run(self) -> None:
        """Until cancelled. Raises BackupForked, Fenced of a node that has a newer owner, and what tells of a
        broken local log."""
        try:
            while True:
                await self._until_due()
                await self._patiently("a piece of metadata", self._save)
                self._begin_snapshot_if_due()
                if self._snapshotting is not None and self._snapshotting.done():
                    self._snapshotting.result()
                    self._snapshotting = None
        except Exception as error:
            self._fail(error)
            raise
        finally:
            if self._snapshotting is not None:
                self._snapshotting.cancel()
                await asyncio.gather(self._snapshotting, return_exceptions=True)

    def close(self) -> None:
        """Follows no image any more, and tells who waits Closed. Behind the end of `run`, where the node goes
        on."""
        self._unsubscribe()
        self._fail(Closed("the metadata backup"))

    def _fail(self, error: Exception) -> None:
        self._failure = error
        for _, reached in self._waiting:
            if not reached.done():
                reached.set_exception(error)

    async def finish(self, timeout_ms: int) -> None:
        """Puts what is left, within the bound; the next start goes on where this one ended. Nothing once
        `run` has failed."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.reach_committed()
        except TimeoutError:
            log.warning(
                "metadata backup: not everything that is committed is in the bucket: %s", self.blocked_reason
            )
        except Exception as error:
            if error is not self._failure:
                raise

    # What is due.

    def _on_image(self, image: MetadataImage) -> None:
        if image.offset <= self.saved_end or not self.is_on:
            return
        is_first = not self._unsaved
        self._sample()
        if is_first:
            self._wake.set()

    def _sample(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._unsaved or now - self._unsaved[-1][1] >= SAMPLE_EVERY_S:
            self._unsaved.append((self._publisher.image.offset, now))

    async def _until_due(self) -> None:
        while not (self._demand > self.saved_end and self.is_on):
            wait_s = None
            if self._unsaved and self.is_behind:
                wait_s = self._settings.interval_ms / 1000 - self.age_s()
                if wait_s <= 0:
                    return
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _note_saved(self, end: int) -> None:
        self.saved_end = max(self.saved_end, end)
        while self._unsaved and self._unsaved[0][0] <= self.saved_end:
            self._unsaved.popleft()
        if not self._unsaved and self.is_behind:
            self._sample()
        waiting, self._waiting = self._waiting, []
        for target, reached in waiting:
            if target > self.saved_end:
                self._waiting.append((target, reached))
            elif not reached.done():
                reached.set_result(None)

    # Puts.

    async def _save(self) -> None:
        """All that is committed at the call: durable in the bucket on return."""
        target = self._publisher.image.offset
        while self.saved_end < target:
            if self._needs_snapshot or self._log.start > self.saved_end:
                await self._save_snapshot()
                continue
            try:
                batches = await self._log.read(self.saved_end, target, PIECE_BYTES_MAX)
            except LogCorrupt:
                if self._log.start <= self.saved_end:
                    raise
                continue  # the log was trimmed meanwhile
            assert batches, (self.saved_end, target)
            await self._save_piece(batches)

    async def _save_piece(self, batches: list[StoredBatch]) -> None:
        name = PieceName(batches[-1].end, batches[-1].epoch, batches[0].base)
        if self._piece is None or self._piece[0] != name:  # what is put again has to be the same bytes
            decided_ms = max(BatchHeader(batch.data).max_timestamp for batch in batches)
            self._piece = name, min(decided_ms, self._confirmed.wall_ms())
        time_ms = self._piece[1]
        body = frame(Kind.PIECE, name.base, name.end, name.epoch, time_ms, [batch.data for batch in batches])
        await self._put_once(piece_key(self._cluster_id, name), body)
        self.pieces_put += 1
        self._pieces_since += 1
        self._bytes_since += sum(map(len, body))
        self._note_saved(name.end)

    async def _put_once(self, key: str, body: list[bytes | bytearray | memoryview]) -> None:
        await self._verify()
        try:
            await self._put_if_absent(key, body)
        except PreconditionFailed:
            if await self._store.head(key) is None:
                raise StoreConflict(
                    key, "metadata is there, by the answer to a put, and there is none"
                ) from None
            raise BackupForked(key) from None
        self.bytes_put += sum(map(len, body))

    async def _put_if_absent(self, key: str, body: list[bytes | bytearray | memoryview]) -> None:
        if self._is_conditional:
            await self._store.put_if_absent(key, body)
        elif await self._store.head(key) is None:
            await self._store.put(key, body)
        elif await self._store.get(key) != b"".join(body):
            raise PreconditionFailed(key)

    async def _save_snapshot(self) -> None:
        """Of the image as it is now, and what follows from it: the pointer, and the deletion of what is
        old."""
        image = self._publisher.image
        snapshot = SnapshotId(image.offset, image.epoch)
        time_ms = self._confirmed.wall_ms()
        parts = [part async for part in snapshot_parts(image, time_ms, self._voters_at(image.offset))]
        key = snapshot_key(self._cluster_id, snapshot)
        try:
            await self._put_once(key, frame(Kind.SNAPSHOT, 0, snapshot.end, snapshot.epoch, time_ms, parts))
        except BackupForked:
            log.info(
                "a snapshot of the same metadata is in the bucket already: %s", key
            )  # made at another moment
        self.snapshots_put += 1
        self._pieces_since = self._bytes_since = 0
        self._needs_snapshot = False
        self._note_saved(snapshot.end)
        await self._point_to(snapshot)
        await self._delete_old()

    async def _point_to(self, snapshot: SnapshotId) -> None:
        """Moves the pointer up to the snapshot, unless it is there or beyond already. Raises StoreContradicts
        after a bounded number of rounds, each of which judged anew what another had put there meanwhile."""
        key, content = newest_key(self._cluster_id), encode_newest(snapshot)
        rounds = Rounds()
        while True:
            try:
                before = await self._store.get(key)
            except ObjectMissing:
                before = None
            await self._verify()
            try:
                if before is None:
                    await self._put_if_absent(key, [content])
                    return
                if _pointed_to(key, before) >= snapshot:
                    return
                await self._store.replace(key, [content], before)
                return
            except PreconditionFailed:
                if not await rounds.again():
                    raise contradiction(key, *_judged(key, before), rounds.count) from None

    async def _verify(self) -> None:
        await self._verify_owner(asyncio.get_running_loop().time())

    async def _delete_old(self) -> None:
        listed = [entry.key async for entry in self._store.list(snapshots_prefix(self._cluster_id))]
        known = [found for key in listed if (found := parse_snapshot_key(self._cluster_id, key)) is not None]
        known.sort(reverse=True)
        kept, old = known[:SNAPSHOTS_KEPT], known[SNAPSHOTS_KEPT:]
        if not old and len(kept) < SNAPSHOTS_KEPT:
            return
        keys = [snapshot_key(self._cluster_id, snapshot) for snapshot in old]
        async for entry in self._store.list(log_prefix(self._cluster_id)):
            piece = parse_piece_key(self._cluster_id, entry.key)
            if piece is not None and piece.end > kept[-1].end:
                break
            if piece is not None:
                keys.append(entry.key)
        for first in range(0, len(keys), 1000):
            await self._verify()
            await self._store.delete(keys[first : first + 1000])

    def _begin_snapshot_if_due(self) -> None:
        """Beside the pieces, which go on: whoever waits for them does not wait for a large snapshot."""
        is_due = (
            self._pieces_since >= self._settings.snapshot_pieces
            or self._bytes_since >= self._settings.snapshot_bytes
        )
        if is_due and self._snapshotting is None:
            self._pieces_since = self._bytes_since = 0
            self._snapshotting = asyncio.create_task(
                self._patiently("a snapshot of metadata", self._save_snapshot),
                name="metadata snapshot to the bucket",
            )

    async def _patiently(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Calls until it is answered; everything called here may be repeated."""
        pause_ms = PAUSE_MS_MIN
        while True:
            try:
                answer = await call()
                if self.blocked_reason:
                    log.info("metadata backup: puts go on: %s", what)
                self.blocked_reason = ""
                self._is_full.clear()
                return answer
            except NOT_NOW as error:
                if not self.blocked_reason:
                    log.warning("metadata backup: %s cannot be put now and is tried again: %s", what, error)
                self.blocked_reason = f"{what} cannot be put into the bucket: {error}"
                if isinstance(error, StoreFull) and not self.is_full:
                    self._is_full.set()
                    self.on_full()
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)


def _judged(key: str, before: bytes | None) -> tuple[str, str]:
    """What a put of the pointer was told, and a read."""
    if before is None:
        return EXISTS, NOT_THERE
    return (
        "a put is told that it was changed meanwhile",
        f"a read that it names the snapshot at offset {_pointed_to(key, before).end}",
    )


def _pointed_to(key: str, content: bytes) -> SnapshotId:
    try:
        return decode_newest(key, content)
    except BackupCorrupt as error:
        log.warning("metadata backup: the pointer is written anew: %s", error)
        return SnapshotId(-1, -1)
