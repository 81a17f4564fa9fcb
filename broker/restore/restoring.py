"""Builds a metadata log directory from what the bucket holds: reads, judges, and writes at the very end,
unless it only verifies.

    marker -> metadata (kraft/bucket) -> claims -> objects listed -> write-ahead logs looked at
        -> lifted (plan.py) -> directory written

Not here: arguments and words for people (cli/restore.py). Kept true: the bucket and the write-ahead logs are
not changed; nothing is written locally before all that can refuse has been asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Final

from millrace.broker.config import BrokerSettings
from millrace.broker.identity.binding import MARKER_KEY, BindingRefused, read_bound_cluster
from millrace.broker.identity.claim_format import ClaimCorrupt, OwnerClaim
from millrace.broker.identity.claims import claimed_nodes, read_newest_claim, unreadable
from millrace.broker.identity.known_time import NEWEST
from millrace.broker.identity.known_time_text import encode_time
from millrace.broker.identity.restored_claim import with_prepared
from millrace.broker.identity.unknown_streams import WalStream, unknown_ranges
from millrace.broker.restore.continued import Piece, continued
from millrace.broker.restore.other_logs import NOT_LOOKED_AT, SeenLog, log_text, others_of, unnamed_text
from millrace.broker.restore.plan import (
    MissingRange,
    Seen,
    lifted,
    missing_objects,
    ranges_behind,
    ranges_in_wal,
    ranges_without,
    unknown_from,
    went_on,
)
from millrace.kraft.bucket.reader import BucketMetadata, Loaded, load, survey
from millrace.kraft.config import static_voters
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.log.restored_from import RestoredFrom
from millrace.kraft.log.restored_log import holds_something, write_restored_log
from millrace.kraft.raft.voters import DYNAMIC, KRAFT_VERSIONS, Endpoint, Voter, VoterSet
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.kraft.tables.owed_ranges import OwedRange
from millrace.kraft.tables.wals import SHARED_KINDS, NodeWal, WalState
from millrace.protocol.dataclass import dataclass
from millrace.protocol.ids import uuid_text
from millrace.runtime.clock import Clock
from millrace.runtime.disk import Disk
from millrace.runtime.objectstore import ObjectStore, last_date_of
from millrace.runtime.rand import Rand
from millrace.s3stream.ids import NO_WAL, StreamId, StreamRange
from millrace.s3stream.objects.keys import objects_prefix, parse_object_key
from millrace.wal.identity import WalIdentity
from millrace.wal.opening import kind_of

WAL_EPOCH_PART: Final = 2  # {cluster}/wal/{node}/{epoch}/...


IdentifyWal = Callable[[], Awaitable[WalIdentity | None]]
LookAtLog = Callable[[NodeWal], Awaitable[SeenLog]]
ReadWal = Callable[[], Iterable[WalStream]]  # of a log whose streams the bucket may not know


@dataclass(slots=True)
class Restored:
    """What was found, and what becomes of it. `losses` are sentences; `missing` says what of which partition
    cannot be had."""

    cluster_id: str
    loaded: Loaded
    image: MetadataImage
    restored_from: RestoredFrom
    losses: list[str] = field(default_factory=list)
    missing: list[MissingRange] = field(default_factory=list)
    unknown: list[StreamRange] = field(
        default_factory=list
    )  # in the WAL, of streams that metadata does not know
    # The same of other nodes' logs that can be read from here: they ask for the word themselves.
    unknown_elsewhere: dict[int, list[StreamRange]] = field(default_factory=dict)
    # What waits until another node's log, which is not seen from here, is recovered.
    waiting: list[MissingRange] = field(default_factory=list)
    wals: list[str] = field(default_factory=list)
    claims: list[OwnerClaim] = field(default_factory=list)  # the newest of each series
    object_count: int = 0
    is_wal_lost: bool = False
    voters: tuple[Voter, ...] = ()  # that the written log names; of kraft.version 1

    @property
    def is_short(self) -> bool:
        """Whether something is known to be missing."""
        return bool(self.losses or self.missing or self.unknown or self.unknown_elsewhere)

    @property
    def needs_word(self) -> bool:
        """Whether the first start asks for wal.lost.accept."""
        return self.is_wal_lost or self.restored_from.is_loss_known or bool(self.unknown)

    def note_loss(self) -> None:
        """Of acknowledged records that the start would not miss by itself."""
        self.restored_from = replace(self.restored_from, is_loss_known=True)


async def look_at_none(wal: NodeWal) -> SeenLog:
    """Of who sees the bucket alone."""
    return NOT_LOOKED_AT


def claim_text(claim: OwnerClaim) -> str:
    who = "the metadata log's writer" if claim.series == METADATA_SERIES else f"node {claim.series}"
    return f"{who}, number {claim.number}, incarnation {uuid_text(claim.incarnation)}"


class Restoring:
    """One restore: `find` reads, `write` writes."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: ObjectStore,
        bucket: str,
        identify_wal: IdentifyWal,
        read_wal: ReadWal,
        wal_begin: Callable[[str], Awaitable[int | None]],
        clock: Clock,
        on_progress: Callable[[str], None] = lambda text: None,
        look_at_log: LookAtLog = look_at_none,
        *,
        is_new_node: bool = False,
    ) -> None:
        """`is_new_node`: it takes the place of no node of the bucket's cluster, and has no log there."""
        self._settings = settings
        self._store = store
        self._bucket = bucket
        self._identify_wal = identify_wal
        self._read_wal = read_wal
        self._wal_begin = wal_begin
        self._clock = clock
        self._on_progress = on_progress
        self._look_at_log = look_at_log
        self._is_new_node = is_new_node

    async def find(self, *, is_taking_over: bool) -> Restored:
        """Changes nothing. Raises BindingRefused, and what store and WAL raise."""
        cluster_id = await self._cluster()
        self._on_progress("listing the metadata in the bucket")
        found = await survey(self._store, cluster_id, all_snapshots=True)
        if found.is_empty:
            raise BindingRefused(
                f"{self._bucket} holds no metadata of cluster {cluster_id}: it was written below "
                "millrace.version 1, or its metadata was "
                "deleted; restore the log directory (log.dirs) from a copy"
            )
        loaded = await load(self._store, cluster_id, found, self._on_progress)
        if not loaded.image.offset:
            raise BindingRefused(
                f"no metadata of cluster {cluster_id} in {self._bucket} can be read: "
                f"{'; '.join(loaded.losses)}"
            )
        self._check_node(loaded.image)
        seen = Seen()
        assert found.highest is not None
        for name in found.names:
            seen.note(*name)
        restored = Restored(
            cluster_id,
            loaded,
            loaded.image,
            RestoredFrom(*found.highest, unknown_from(loaded.image, self._settings.node_id)),
            list(loaded.losses),
        )
        self._look_at_metadata(restored, found)
        await self._look_at_claims(restored, seen, is_taking_over)
        await self._look_at_objects(restored, seen)
        await self._look_at_wals(restored, seen)
        seen.unseen_ms = max(self._clock.wall_ms(), self._store_ms()) - loaded.time_ms
        restored.image = lifted(loaded.image, seen)
        return restored

    async def write(self, restored: Restored, disk: Disk, rand: Rand, first: Sequence[Voter] = ()) -> None:
        """Durable on return. `first`: the voters that the log is to name, this node with the id of its
        directory among them; of none, at kraft.version 1, it is the only one. This machine's clock is not
        asked, nor the times that records carry, which a wrong clock may have stamped: what is known of the
        time is what the store says, and what was confirmed when the metadata was put, so that a wrong clock
        deletes nothing at the first start."""
        settings = self._settings.controller
        directory = rand.split("directory id").uuid()
        directory = next((one.directory_id for one in first if one.node_id == settings.node_id), directory)
        meta = MetaProperties(restored.cluster_id, settings.node_id, uuid_text(directory))
        voters, voter_set = static_voters(settings), VoterSet()
        if settings.is_dynamic:
            endpoints = tuple(Endpoint(*endpoint) for endpoint in settings.endpoints)
            own = Voter(settings.node_id, directory, endpoints, KRAFT_VERSIONS)
            voter_set = VoterSet(tuple(first) or (own,), DYNAMIC)
            restored.voters = voter_set.voters
        known_ms = max(restored.loaded.time_ms, self._store_ms())
        image = with_prepared(restored.image, directory, rand.split("claimant").uuid())
        await disk.write_file(f"{settings.log_dir}/{NEWEST}", encode_time(known_ms))
        await write_restored_log(
            disk,
            settings.log_dir,
            meta,
            voters,
            image,
            restored.restored_from,
            known_ms,
            voter_set,
        )

    def _store_ms(self) -> int:
        """Of the store's own clock, now; 0 where it has none."""
        date = last_date_of(self._store)
        return (
            0
            if date is None
            else date.wall_ms + int((asyncio.get_running_loop().time() - date.came_s) * 1000)
        )

    async def check_target(self, disk: Disk) -> None:
        """Raises BindingRefused where the log directory holds something."""
        path = await holds_something(disk, self._settings.controller.log_dir)
        if path is not None:
            raise BindingRefused(
                f"{path} is there: a metadata log is restored into an empty directory; give another one "
                "(--data-dir, log.dirs), or move this one "
                "away if it is the old copy"
            )

    async def _cluster(self) -> str:
        cluster_id = await read_bound_cluster(self._store, self._bucket)
        wanted = self._settings.controller.cluster_id
        if wanted is not None and cluster_id not in (None, wanted):
            raise BindingRefused(f"{self._bucket} holds cluster {cluster_id}, and cluster.id={wanted} is set")
        found = cluster_id or wanted
        if found is None:
            raise BindingRefused(
                f"{self._bucket} is no bucket of a cluster: it has no marker ({MARKER_KEY}); if that was "
                "lost, say the cluster's id, which the keys "
                "of all else in the bucket begin with: --override cluster.id=ID"
            )
        return found

    def _check_node(self, image: MetadataImage) -> None:
        known, own = [broker.broker_id for broker in image.brokers], self._settings.node_id
        if known and own not in known and self._settings.is_broker and not self._is_new_node:
            raise BindingRefused(
                f"node {own} is no node of this cluster, whose metadata knows {', '.join(map(str, known))}: "
                "say which one this machine takes the place of (--node-id), or, where it takes nobody's, "
                "--new-node"
            )
        if own in known and self._is_new_node:
            raise BindingRefused(
                f"node {own} is a node of this cluster: leave --new-node out, or say another id"
            )

    @staticmethod
    def _look_at_metadata(restored: Restored, found: BucketMetadata) -> None:
        """Metadata that was in the bucket and cannot be had knew of objects that nobody knows now."""
        image = restored.loaded.image
        if found.highest is not None and image.offset < found.highest[0]:
            restored.note_loss()
            reason = "what was committed by metadata that cannot be had is not known"
            restored.missing += ranges_behind(image, image.streams.by_id.values(), reason)

    async def _look_at_claims(self, restored: Restored, seen: Seen, is_taking_over: bool) -> None:
        image = restored.loaded.image
        nodes = {self._settings.node_id: None} | {broker.broker_id: None for broker in image.brokers}
        # And nodes that registered after what the bucket knows: they could not start again.
        nodes |= dict.fromkeys(await claimed_nodes(self._store, restored.cluster_id))
        for series in (METADATA_SERIES, *nodes):
            known = image.claims.highest(series)
            try:
                newest = await read_newest_claim(self._store, restored.cluster_id, series, known)
            except ClaimCorrupt as error:
                raise BindingRefused(unreadable(self._bucket, error)) from None
            if newest is not None:
                restored.claims.append(newest)
        standing = [claim for claim in restored.claims if claim.is_standing]
        if standing and not is_taking_over:
            raise BindingRefused(
                f"{self._bucket} is claimed by {claim_text(standing[0])}, which was not stopped in order: "
                "see that it does not run any more, "
                "then say --take-over; a process that still runs ends within 10 s of the restored node's "
                "start; nothing was changed"
            )
        for claim in restored.claims:
            seen.note(claim.metadata_end, claim.metadata_epoch)
            if claim.series == self._settings.node_id:
                seen.unseen_starts = max(0, claim.number - image.claims.highest(claim.series))
            seen.claims.append((claim.series, claim.number, claim.incarnation))

    async def _look_at_objects(self, restored: Restored, seen: Seen) -> None:
        present: list[int] = []
        async for entry in self._store.list(objects_prefix(restored.cluster_id)):
            object_id = parse_object_key(restored.cluster_id, entry.key)
            if object_id is not None:
                present.append(object_id)
                if len(present) % 10_000 == 0:
                    self._on_progress(f"listing objects: {len(present)}")
        restored.object_count = len(present)
        seen.object_id = max(present, default=-1)
        missing = missing_objects(restored.loaded.image, frozenset(present))
        restored.missing += ranges_without(restored.loaded.image, missing)
        if missing:
            restored.losses.append(
                f"{len(missing)} objects that metadata names are not in the bucket (the first is "
                f"{missing[0]}): if it is a copy whose objects have "
                "not all arrived, wait for them; what they hold is below"
            )

    async def _look_at_wals(self, restored: Restored, seen: Seen) -> None:
        """By the epochs of their keys, and of this node's by its own word."""
        prefix = f"{restored.cluster_id}/wal/"
        async for entry in self._store.list(prefix):
            parts = entry.key[len(prefix) :].split("/")
            if len(parts) >= WAL_EPOCH_PART and parts[1].isdecimal():
                seen.note(int(parts[1]))
        own = self._settings.node_id
        self._on_progress("looking at the write-ahead log")
        identity = await self._identify_wal() if self._settings.is_broker else None
        if identity is not None:
            seen.note(max(identity.mark.offset, identity.owner_epoch or 0), identity.mark.epoch)
        image = restored.loaded.image
        for wal in image.wals:
            seen.note(wal.owner_epoch)
            words = f"node {wal.node_id}: the {wal.kind} log {wal.wal_id.hex()} at {wal.address}"
            if wal.node_id != own:
                continue
            if identity is not None and identity.wal_id in (None, wal.wal_id):
                restored.wals.append(f"{words} is there, and is recovered at the next start")
            elif wal is image.wals.active(own):
                restored.wals.append(f"{words} is not at {self._settings.wal.target}")
        others = await self._look_at_others(restored)
        streams = {
            wal.node_id: list(log.streams)
            for wal, log in others
            if not log.reason and wal.kind not in SHARED_KINDS
        }
        held = await self._look_at_own(restored, seen, identity) if self._settings.is_broker else None
        if held is not None:
            streams[own] = held
        unread = [wal.node_id for wal, log in others if log.reason and wal.kind not in SHARED_KINDS]
        unread += [own] if restored.is_wal_lost else []
        unread += self._unnamed(restored, others)
        self._judge_streams(restored, seen, streams, unread)
        after = went_on(image, seen)
        self._tell_others(restored, after, others)
        if restored.is_wal_lost:
            why = "what was acknowledged and not committed was in the lost write-ahead log alone"
            lost = ranges_in_wal(after, own, why)
            restored.missing += lost
            restored.is_wal_lost = bool(lost)

    async def _look_at_others(self, restored: Restored) -> list[tuple[NodeWal, SeenLog]]:
        """What the logs of blocks among them hold, as far as they can be read from here."""
        found = []
        for wal in others_of(restored.loaded.image, self._settings.node_id):
            self._on_progress(f"looking at the write-ahead log of node {wal.node_id}")
            found.append((wal, await self._look_at_log(wal)))
        return found

    def _tell_others(
        self, restored: Restored, after: MetadataImage, others: Sequence[tuple[NodeWal, SeenLog]]
    ) -> None:
        """`after`: with what the logs tell."""
        for wal, log in others:
            restored.wals.append(log_text(after, wal, log))
            if log.reason:
                reason = f"what it acknowledged later is in the log of node {wal.node_id} alone"
                restored.waiting += ranges_in_wal(after, wal.node_id, reason)
        restored.wals += map(unnamed_text, self._unnamed(restored, others))

    def _unnamed(self, restored: Restored, others: Sequence[tuple[NodeWal, SeenLog]]) -> list[int]:
        """Nodes that were not stopped in order, and of which metadata names no log."""
        known = [self._settings.node_id, *(wal.node_id for wal, _ in others)]
        standing = [claim.series for claim in restored.claims if claim.is_standing and claim.series >= 0]
        return [node_id for node_id in standing if node_id not in known]

    async def _look_at_own(
        self, restored: Restored, seen: Seen, identity: WalIdentity | None
    ) -> list[WalStream] | None:
        """What it holds, of one of blocks; None of another, and where it is lost."""
        image, own = restored.loaded.image, self._settings.node_id
        if self._is_new_node:
            self._check_new(identity)
            return None
        registered = image.wals.active(own)
        later = await self._later_log(restored, identity, registered)
        if later is not None:
            restored.wals.append(
                f"node {own}: the {later.kind} log {later.wal_id.hex()} at {later.address}, which the bucket "
                "does not know yet, is there, and is recovered at the next start"
            )
            seen.later_log, registered = later, later
        is_there = identity is not None and (
            registered is None or identity.wal_id in (None, registered.wal_id)
        )
        if is_there:
            assert identity is not None
            await self._look_at_begin(restored, identity, registered)
            is_read = kind_of(self._settings.wal).name not in SHARED_KINDS
            return list(self._read_wal()) if is_read else None
        restored.is_wal_lost = True  # where anything was in it
        # The bucket knew its streams before they were acknowledged; unless the node went on with another.
        kinds = {None if registered is None else registered.kind, kind_of(self._settings.wal).name}
        knows_all = kinds == {"object"}
        if not knows_all and any(claim.is_standing for claim in restored.claims):
            restored.losses.append(
                f"{self._settings.wal.target} is not the log that the node wrote last: streams that it "
                "opened after what the bucket knows are "
                "not known, and what was acknowledged in them cannot be named"
            )
            restored.note_loss()
        return None

    def _check_new(self, identity: WalIdentity | None) -> None:
        """A log that is there already is another node's, or of a node that the bucket does not know."""
        if identity is not None:
            raise BindingRefused(
                f"{self._settings.wal.target} holds a write-ahead log, and a new node begins with one of its "
                "own: give another place (s3.wal.path); or, where it is this node's, leave --new-node out"
            )

    async def _later_log(
        self, restored: Restored, identity: WalIdentity | None, registered: NodeWal | None
    ) -> NodeWal | None:
        """The log at the place, where this node went on with it after the one that the bucket names. It was
        never trimmed: that waits until the bucket has the metadata, which would name it."""
        if identity is None or identity.wal_id is None or identity.owner_epoch is None or registered is None:
            return None
        is_own = (identity.cluster_id, identity.node_id) == (restored.cluster_id, self._settings.node_id)
        is_known = restored.loaded.image.wals.get(self._settings.node_id, identity.wal_id) is not None
        if not is_own or is_known or identity.owner_epoch <= registered.owner_epoch:
            return None
        begin = await self._wal_begin(restored.cluster_id)
        return replace(
            registered,
            wal_id=identity.wal_id,
            kind=kind_of(self._settings.wal).name,
            address=str(self._settings.wal),
            owner_epoch=identity.owner_epoch,
            position=begin or 0,
            state=WalState.RECOVERING,
        )

    async def _look_at_begin(
        self, restored: Restored, identity: WalIdentity, registered: NodeWal | None
    ) -> None:
        """A log is trimmed of what was committed, once the bucket holds the metadata that says so: one that
        begins behind the place that this metadata knows was trimmed for later metadata, which is not here. A
        start that has nothing to commit empties the log without waiting for that: it moves to its next
        block."""
        image, begin = restored.loaded.image, await self._wal_begin(restored.cluster_id)
        begin_after = kind_of(self._settings.wal).begin_after
        is_later = (identity.mark.epoch, identity.mark.offset) > (image.epoch, image.offset)
        if registered is None or begin is None or begin <= begin_after(registered.position) or not is_later:
            return
        restored.losses.append(
            f"the write-ahead log begins at position {begin}, and this metadata has it committed up to "
            f"{registered.position}: later metadata, up to offset {identity.mark.offset}, was in the bucket "
            "once (is this an older copy?), and what it committed, and was trimmed from the log, is not known"
        )
        reason = "what was committed by later metadata, and trimmed from the write-ahead log, is not known"
        restored.missing += ranges_in_wal(image, self._settings.node_id, reason)
        restored.note_loss()

    def _judge_streams(
        self, restored: Restored, seen: Seen, logs: dict[int, list[WalStream]], unread: Sequence[int]
    ) -> None:
        """Of what each node's log holds: streams that go on in it are opened there again, and what lies
        before, in other logs, is owed by these; streams that were made since are named, and what has no place
        behind what is known."""
        image = restored.loaded.image
        found = continued(image, logs, unread)
        for stream_id, (*before, last) in found.lines.items():
            seen.owed += [_owed(image, seen, stream_id, piece) for piece in before]
            seen.reopened[stream_id] = last.node_id, max(image.streams.by_id[stream_id].epoch, last.epoch)
        for node_id, held in logs.items():
            made = [one for one in held if image.streams.get(one.stream_id) is None]
            ranges = [StreamRange(one.stream_id, one.start, one.end) for one in made]
            unknown = unknown_ranges(ranges, image, unknown_from(image, node_id))
            unknown += found.behind.get(node_id, [])
            if node_id == self._settings.node_id:
                restored.unknown = unknown
            elif unknown:
                restored.unknown_elsewhere[node_id] = unknown


def _owed(image: MetadataImage, seen: Seen, stream_id: StreamId, piece: Piece) -> OwedRange:
    later = seen.later_log
    is_later = later is not None and later.node_id == piece.node_id
    wal = later if is_later else image.wals.last_written(piece.node_id)
    wal_id = NO_WAL if wal is None else wal.wal_id
    return OwedRange(stream_id, piece.start, piece.end, piece.node_id, piece.epoch, wal_id)
