"""What a start finds of the quorum in a log directory: which node and cluster it is of, the image and the
voters that its snapshot and log come to, and what of it is known to be committed.

Nothing is written but to finish what a start or an end before was at; a directory that holds nothing is made
anew. Not here: locking it, what is done with what is found (node.py). Kept true: the image is the newest
whole snapshot and the log behind it as far as that is known to be committed; a snapshot that cannot be read
falls back to the one before it while the log still reaches back that far; and never to no voters where the
directory was formatted with some.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from millrace.kraft.config import ControllerSettings
from millrace.kraft.errors import LogCorrupt, LogMismatch, SnapshotCorrupt, VotersChanged
from millrace.kraft.image.applier import Folding
from millrace.kraft.image.image import EMPTY_IMAGE, MetadataImage
from millrace.kraft.image.voter_records import change_of, leading_voters
from millrace.kraft.log.log_store import NO_EPOCH, STATE_FILE, LogStore, SnapshotId
from millrace.kraft.log.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from millrace.kraft.log.snapshot import LoadedSnapshot, load_snapshot
from millrace.kraft.raft.agreement import NO_OPENING
from millrace.kraft.raft.log_view import LogView
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.voters import NO_DIRECTORY, STATIC, Replica, VoterHistory, VoterSet
from millrace.protocol.batches import BatchHeader
from millrace.protocol.ids import uuid_bytes, uuid_text
from millrace.runtime.disk import Disk
from millrace.runtime.rand import Rand

log = logging.getLogger(__name__)
FORMATTED: Final = SnapshotId(0, 0)  # what a directory is formatted with, before any log


# Whether what is durable on this disk is committed by that, under these voters.
IsEnough = Callable[[VoterSet], bool]


class Recovery:
    """What a start finds behind the snapshot: batches that are known to be committed are folded into its
    image, others are only looked at; where epochs begin, and who votes."""

    def __init__(self, image: MetadataImage, voters: VoterHistory, is_enough: IsEnough) -> None:
        """`voters`: as the snapshot has them. What is durable here is committed while this disk `is_enough`
        for those in force. Else it is the leader who says how much behind the snapshot is."""
        self.epochs: list[tuple[int, int]] = []
        self.snapshot_end, self.snapshot_epoch = image.offset, image.epoch
        self.epoch = image.epoch
        self.start: int | None = None
        self.record_count = 0
        self.bytes = 0  # behind the snapshot
        self.newest_ms = 0  # the latest time of a batch
        self.opening = NO_OPENING  # of the last epoch that begins behind the snapshot
        self.voters = voters
        self._folding = Folding(image)
        self._is_enough = is_enough
        self.is_all_committed = is_enough(voters.last)

    @property
    def committed_end(self) -> int:
        """Everything below is committed, and in the image."""
        return self._folding.end

    @property
    def is_to_be_replaced(self) -> bool:
        """A log of earlier epochs than the snapshot is no log that the snapshot was made of: the leader's
        was about to take its place."""
        return not self.is_all_committed and bool(self.epochs) and self.epochs[-1][0] < self.snapshot_epoch

    def visit(self, header: BatchHeader, view: memoryview) -> None:
        """Takes the log's next batch. Raises LogCorrupt where the snapshot ends within it."""
        if self.start is None:
            self.start = header.base_offset
        self.newest_ms = max(self.newest_ms, header.max_timestamp)
        if not self.epochs or self.epochs[-1][0] < header.leader_epoch:
            self.epochs.append((header.leader_epoch, header.base_offset))
        if header.base_offset < self._folding.end <= header.last_offset and not self.is_to_be_replaced:
            raise LogCorrupt(
                "the snapshot", 0, f"it ends at offset {self._folding.end}, within a batch of the log"
            )
        if header.base_offset < self._folding.end:
            return
        if header.is_control and (voters := leading_voters(view)) is not None:
            self.opening = header.leader_epoch, voters
        if header.is_control and (change := change_of(view)) is not None:
            self.voters.append(header.base_offset, change)
            self.is_all_committed = self.is_all_committed and self._is_enough(self.voters.last)
        if self.is_all_committed:
            self._folding.take(header, view)
        self.epoch = header.leader_epoch
        self.record_count += header.record_count
        self.bytes += header.size_bytes

    def image(self) -> MetadataImage:
        return self._folding.image()


async def recover(
    disk: Disk, rand: Rand, settings: ControllerSettings, store: LogStore
) -> tuple[MetaProperties, Recovery, QuorumState, LogView]:
    """Reads what the directory holds; makes it anew when it holds nothing. Raises LogCorrupt where a part of
    it is missing or damaged, LogMismatch where it is another node's or cluster's, or of another quorum. A new
    meta.properties is
    durable on return."""
    meta = await read_meta_properties(disk, settings.log_dir)
    segments = await store.list_segments()
    snapshots = await store.snapshots()
    is_alone = store.voters == (settings.node_id,)
    state = await store.load_state()
    is_formatted = snapshots == [FORMATTED] and not state.epoch
    was_used = (meta is not None or bool(snapshots)) and not is_formatted
    # Else a snapshot was about to take the log's place.
    if not segments and was_used and (is_alone or snapshots in ([], [FORMATTED])):
        raise LogCorrupt(store.folder, 0, "the directory was in use, and the log's segments are gone")
    if meta is not None:
        check_meta(settings, meta)
    voters = await store.load_voters()
    check_voters(settings, store.folder, voters, store.voters)
    own = settings.node_id, uuid_bytes(meta.directory_id) if meta is not None else NO_DIRECTORY
    # Of a node that was a quorum of one until now too; its state still says so.
    is_static_enough = is_alone or voters == (settings.node_id,)
    is_enough = partial(is_enough_alone, own, is_static_enough)
    own_epoch = own_epoch_of(state, voters, settings.node_id)
    recovery, snapshot = await replay(disk, store, snapshots, segments, is_enough, own_epoch)
    if meta is None and (snapshot is not None or recovery.record_count):
        # A first start writes it before the first record: a new cluster id would make a stranger of the log.
        raise LogCorrupt(
            f"{settings.log_dir}/meta.properties", 0, "it is gone, and the directory holds a metadata log"
        )
    if meta is None:
        # Syncs its folder: a segment that a killed start made there is durable before meta.properties says
        # that there is one.
        await store.save_state(state)
        cluster_id = settings.cluster_id or uuid_text(rand.split("cluster id").uuid())
        meta = MetaProperties(cluster_id, settings.node_id, uuid_text(rand.split("directory id").uuid()))
        await write_meta_properties(disk, settings.log_dir, meta)
    epoch = max(
        [recovery.epoch, *(epoch for epoch, _ in recovery.epochs)]
    )  # no checksum covers a batch's epoch
    if state.epoch < epoch:
        raise LogCorrupt(f"{store.folder}/quorum-state", 0, f"epoch {state.epoch}, below the log's {epoch}")
    # Older segments may lie there still; of their epochs nothing was read.
    start = store.end if recovery.start is None else recovery.start
    log_view = LogView(start, store.end, store.end, recovery.epochs, voters=recovery.voters)
    if snapshot is not None and snapshot != FORMATTED:
        log_view.snapshot = snapshot.end, snapshot.epoch
    return meta, recovery, state, log_view


def own_epoch_of(state: QuorumState, voters: tuple[int, ...], node_id: int) -> int:
    """From which epoch on each batch of the log was written by this node, one at a time: of a quorum of one
    all were, by the voters of the start that saved the state, whether the last one came to lead or not."""
    if voters == (node_id,):
        return 0
    return state.epoch if state.leader == node_id else NO_EPOCH


def is_enough_alone(own: Replica, is_static_enough: bool, known: VoterSet) -> bool:
    """This node is the only voter, so that nobody else is asked."""
    return is_static_enough if known.kraft_version == STATIC else known.is_only(*own)


def check_voters(
    settings: ControllerSettings, folder: str, before: tuple[int, ...], now: tuple[int, ...]
) -> None:
    """Raises VotersChanged where this node was one of several voters, and the quorum is to have others: those
    that it leaves behind may still elect each other, and acknowledge beside it. A quorum of one may grow, for
    nobody else knew its metadata."""
    was_voter = settings.node_id in before
    if was_voter and len(before) > 1 and before != now and not settings.is_voters_change_accepted:
        raise VotersChanged(f"{folder}/{STATE_FILE}", before, now)


async def replay(
    disk: Disk,
    store: LogStore,
    snapshots: Sequence[SnapshotId],
    segments: Sequence[int],
    is_enough: IsEnough,
    own_epoch: int = NO_EPOCH,
) -> tuple[Recovery, SnapshotId | None]:
    """The newest snapshot that can be read, and the log behind it, as far as it is known to be committed. A
    log that ends below a snapshot of a leader's, or in an earlier epoch, was being replaced by it.
    `own_epoch`: from there on this node led. Raises SnapshotCorrupt or LogCorrupt where the two do not
    meet."""
    loaded, chosen = LoadedSnapshot(EMPTY_IMAGE, None), None
    fault: SnapshotCorrupt | None = None
    for snapshot in snapshots:
        try:
            loaded, chosen = await load_snapshot(disk, store.folder, snapshot), snapshot
            break
        except SnapshotCorrupt as error:
            log.error("a snapshot cannot be read, the one before it is tried: %s", error)
            fault = fault or error
    if fault is not None and chosen is None and FORMATTED in snapshots:
        raise fault  # it alone names the first voters, whom the log changes
    image = loaded.image if chosen != FORMATTED else EMPTY_IMAGE  # as of who was not formatted
    if segments and image.offset < segments[0]:
        if fault is not None:
            raise fault
        raise LogCorrupt(
            store.folder, 0, f"the log begins at offset {segments[0]}, and no snapshot holds what is before"
        )

    def voters() -> VoterHistory:
        history = VoterHistory(VoterSet.static(store.voters))
        history.restart_at(image.offset, loaded.voters)
        return history

    recovery = Recovery(image, voters(), is_enough)
    is_alone = recovery.is_all_committed
    if is_alone and image.offset and not segments:
        # No snapshot of a leader's takes the place of its log.
        raise LogCorrupt(
            store.folder, 0, "the log's segments are gone, and no other voter has what they held"
        )
    await store.read_all(image.offset, recovery.visit, own_epoch)
    if (store.end < image.offset and not is_alone) or recovery.is_to_be_replaced:
        await store.restart_at(image.offset)
        recovery = Recovery(image, voters(), lambda known: False)
    if store.end < image.offset:
        raise LogCorrupt(
            store.folder, 0, f"the log ends at offset {store.end}, before the snapshot at {image.offset}"
        )
    return recovery, chosen


def check_meta(settings: ControllerSettings, meta: MetaProperties) -> None:
    """The directory is this node's and this cluster's. Else raises LogMismatch."""
    path = f"{settings.log_dir}/meta.properties"
    if meta.node_id != settings.node_id:
        raise LogMismatch(path, "node.id", meta.node_id, settings.node_id)
    if settings.cluster_id is not None and meta.cluster_id != settings.cluster_id:
        raise LogMismatch(path, "cluster.id", meta.cluster_id, settings.cluster_id)
