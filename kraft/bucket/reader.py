"""What a bucket holds of a cluster's metadata: the names by a listing, the image by reading what they name.

Not here: what a start or a restore makes of it (broker/identity/metadata_check.py,
broker/restore/restoring.py), writing (writer.py). Kept true: reading changes nothing; the pointer is a hint,
and what counts is what is there. A writer that was replaced may have put a little more, behind the place
where its successor began: of names that cannot both be of one log the one of the higher epoch counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import field

from millrace.kraft.bucket.layout import (
    BackupCorrupt,
    Framed,
    PieceName,
    decode_newest,
    log_prefix,
    newest_key,
    parse_piece_key,
    parse_snapshot_key,
    piece_key,
    pieces_after,
    snapshot_key,
    snapshots_prefix,
    unframe,
)
from millrace.kraft.errors import LogCorrupt, SnapshotCorrupt
from millrace.kraft.image.applier import Folding
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.image.voter_records import change_of
from millrace.kraft.log.log_store import BytesFile, SnapshotId, read_batches
from millrace.kraft.log.snapshot import NO_VOTERS, fold_snapshot
from millrace.kraft.raft.log_view import LogHistory
from millrace.kraft.raft.voters import VotersChange, VoterSet
from millrace.protocol.dataclass import dataclass
from millrace.protocol.errors import WireError
from millrace.runtime.objectstore import ObjectMissing, ObjectStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BucketMetadata:
    """Names alone. `newest` is what the pointer says, None where there is none, or none that can be read."""

    snapshots: tuple[SnapshotId, ...] = ()  # the newest first: by epoch, then by where they end
    pieces: tuple[PieceName, ...] = ()  # by their ends; those behind the snapshot that the listing began with
    newest: SnapshotId | None = None

    @property
    def highest(self) -> tuple[int, int] | None:
        """(offset, epoch): the bucket knows metadata that is committed up to there."""
        return max(self.names, key=lambda name: name[::-1], default=None)

    @property
    def names(self) -> list[tuple[int, int]]:
        """(offset, epoch) of everything that is named."""
        snapshots = self.snapshots if self.newest is None else (*self.snapshots, self.newest)
        return [(one.end, one.epoch) for one in snapshots] + [(one.end, one.epoch) for one in self.pieces]

    def within(self, history: LogHistory) -> BucketMetadata:
        """What of it is this log's: without what a replaced writer put behind its end."""
        return BucketMetadata(
            tuple(one for one in self.snapshots if history.has(one.end, one.epoch)),
            tuple(one for one in self.pieces if history.has(one.end, one.epoch)),
            self.newest
            if self.newest is not None and history.has(self.newest.end, self.newest.epoch)
            else None,
        )

    @property
    def is_empty(self) -> bool:
        return self.highest is None

    def following(self, end: int, epoch: int) -> list[PieceName]:
        """Pieces that may lead on from `end`, before which a record of `epoch` lies; the best one first."""
        pieces = [piece for piece in self.pieces if piece.base <= end < piece.end and piece.epoch >= epoch]
        return sorted(pieces, key=_by_epoch, reverse=True)

    def chain_from(self, end: int, epoch: int) -> list[PieceName]:
        """Pieces that lead on from there without a gap, by their names; each as far as one piece goes."""
        chain: list[PieceName] = []
        while following := self.following(end, epoch):
            chain.append(following[0])
            end, epoch = following[0].end, following[0].epoch
        return chain

    @property
    def chain_end(self) -> int:
        """Up to where a restore could get from the newest snapshot."""
        start = self.snapshots[0] if self.snapshots else SnapshotId(0, -1)
        chain = self.chain_from(start.end, start.epoch)
        return chain[-1].end if chain else start.end


def _by_epoch(name: SnapshotId | PieceName) -> tuple[int, int]:
    return name.epoch, name.end


async def survey(store: ObjectStore, cluster_id: str, *, all_snapshots: bool = False) -> BucketMetadata:
    """Three requests as a rule. Pieces are those behind the newest snapshot, or (`all_snapshots`) behind the
    oldest one, for whoever may have to go back to that."""
    newest = None
    try:
        newest = decode_newest(newest_key(cluster_id), await store.get(newest_key(cluster_id)))
    except ObjectMissing:
        pass
    except BackupCorrupt as error:
        log.warning("metadata in the bucket: the pointer to the newest snapshot is passed over: %s", error)
    snapshots = [
        found
        async for entry in store.list(snapshots_prefix(cluster_id))
        if (found := parse_snapshot_key(cluster_id, entry.key)) is not None
    ]
    snapshots.sort(key=_by_epoch, reverse=True)
    after = log_prefix(cluster_id)
    if snapshots and not all_snapshots:
        after = pieces_after(cluster_id, snapshots[0].end)
    pieces = [
        piece
        async for entry in store.list(log_prefix(cluster_id), after)
        if (piece := parse_piece_key(cluster_id, entry.key)) is not None
    ]
    return BucketMetadata(tuple(snapshots), tuple(pieces), newest)


@dataclass(slots=True)
class Loaded:
    """An image read from a bucket. `losses` are sentences: what could not be read, and what that costs.
    `voters`: who voted where it ends, as far as what was read names them, from kraft.version 1 on."""

    image: MetadataImage = EMPTY_IMAGE
    snapshot: SnapshotId | None = None
    time_ms: int = 0  # the newest of its pieces and its snapshot
    piece_count: int = 0
    losses: list[str] = field(default_factory=list)
    voters: VoterSet | None = None


async def load(
    store: ObjectStore,
    cluster_id: str,
    found: BucketMetadata,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Loaded:
    """The newest image that can be had: a snapshot that can be read, and the pieces behind it as far as they
    join. Raises UnknownRecord for metadata of a later build, and what the store raises."""
    losses: list[str] = []
    if found.newest is not None and found.newest not in found.snapshots:
        losses.append(
            f"the bucket names the snapshot at offset {found.newest.end} as its newest, and it is not there: "
            "the bucket may be a copy whose "
            "objects have not all arrived, then wait for them; an older one is used"
        )
    best: Loaded | None = None
    for snapshot in (*found.snapshots, None):
        if best is not None and found.highest is not None and best.image.offset >= found.highest[0]:
            break
        loaded = await _load_from(store, cluster_id, found, snapshot, losses, on_progress)
        if loaded is not None and (best is None or loaded.image.offset > best.image.offset):
            best = loaded
    best = best or Loaded()
    best.losses = losses
    if found.highest is not None and best.image.offset < found.highest[0]:
        losses.append(
            f"metadata between offset {best.image.offset} and {found.highest[0]} was in this bucket, and "
            "cannot be had"
        )
    return best


async def _load_from(
    store: ObjectStore,
    cluster_id: str,
    found: BucketMetadata,
    snapshot: SnapshotId | None,
    losses: list[str],
    on_progress: Callable[[str], None],
) -> Loaded | None:
    """None where the snapshot cannot be read, or where there is none and no piece begins at 0."""
    if snapshot is None:
        if not found.following(0, -1):
            return None
        loaded = Loaded()
    else:
        on_progress(f"reading the snapshot at offset {snapshot.end}")
        key = snapshot_key(cluster_id, snapshot)
        try:
            framed = unframe(key, await store.get(key))
            whole = await fold_snapshot(BytesFile(framed.payload), key, snapshot)
        except (BackupCorrupt, SnapshotCorrupt, ObjectMissing) as error:
            _note(losses, f"a snapshot cannot be read, the one before it is tried: {error}")
            return None
        loaded = Loaded(whole.image, snapshot, framed.time_ms, voters=whole.voters)
    await _fold_pieces(store, cluster_id, found, loaded, losses, on_progress)
    return loaded


async def _fold_pieces(
    store: ObjectStore,
    cluster_id: str,
    found: BucketMetadata,
    loaded: Loaded,
    losses: list[str],
    on_progress: Callable[[str], None],
) -> None:
    folding = Folding(loaded.image)
    epoch = -1 if loaded.snapshot is None else loaded.snapshot.epoch
    while True:
        for name in found.following(folding.end, epoch):
            try:
                framed = await _read_piece(store, cluster_id, name)
                folding, changes = await _folded(folding, framed, piece_key(cluster_id, name))
            except (BackupCorrupt, ObjectMissing, LogCorrupt, WireError) as error:
                _note(losses, f"a piece of the metadata log cannot be read: {error}")
                continue
            loaded.time_ms = max(loaded.time_ms, framed.time_ms)
            loaded.piece_count += 1
            for change in changes:
                loaded.voters = change.on(loaded.voters or NO_VOTERS)
            epoch = name.epoch
            break
        else:
            break
        on_progress(f"metadata up to offset {folding.end}")
    loaded.image = folding.image()


async def _folded(folding: Folding, framed: Framed, key: str) -> tuple[Folding, list[VotersChange]]:
    """After the piece, and what that says of voters. One that turns out to be no log leaves nothing of
    itself."""
    attempt = Folding(folding.image())
    changes: list[VotersChange] = []
    first = framed.base
    async for header, view in read_batches(BytesFile(framed.payload), key, first, None):
        is_known = header.base_offset < attempt.end
        attempt.take(header, view)
        if header.is_control and not is_known and (change := change_of(view)) is not None:
            changes.append(change)
    if attempt.end != framed.end:
        raise BackupCorrupt(key, f"it ends at offset {attempt.end}, and is named for {framed.end}")
    return attempt, changes


async def _read_piece(store: ObjectStore, cluster_id: str, name: PieceName) -> Framed:
    key = piece_key(cluster_id, name)
    framed = unframe(key, await store.get(key))
    if (framed.base, framed.end, framed.epoch) != (name.base, name.end, name.epoch):
        raise BackupCorrupt(key, f"it holds offsets {framed.base} to {framed.end} of epoch {framed.epoch}")
    return framed


def _note(losses: list[str], text: str) -> None:
    if text not in losses:
        losses.append(text)
