"""Every part of a node and how they are joined: start order down, stop order up.

    disk, store ─► controller ─► registration gives the epoch ─► WAL ─► stream engine (recovers) ─►
    partitions, coordinators
        ─► handlers ─► listeners

A later part is given the earlier ones by its constructor; nobody holds the whole. `start` that fails half-way
is followed by `stop`, which ends what there is. Not here: what any part does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millrace.broker.background.compaction import CompactionTask
from millrace.broker.background.damage_log import DamageLog, show_damage
from millrace.broker.background.maintenance import Maintenance, MaintenanceSettings
from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.broker.background.outage_watch import OutageWatch
from millrace.broker.background.room_makers import RoomMakers
from millrace.broker.background.start_watch import StartWatch
from millrace.broker.background.unfinished_uploads import UploadSweep
from millrace.broker.config import BrokerSettings
from millrace.broker.controller_client import ControllerClient
from millrace.broker.coordinators.groups.coordinator import GroupCoordinator
from millrace.broker.endings import Endings
from millrace.broker.handlers import Parts, build_handlers
from millrace.broker.identity.binding import (
    MARKER_KEY,
    BindingRefused,
    bind_bucket,
    check_first_look,
    check_first_start,
    read_bound_cluster,
)
from millrace.broker.identity.bucket_age import check_bucket_age
from millrace.broker.identity.claims import NO_CLAIMS, Claimant, check_claims, claimant_of
from millrace.broker.identity.first_room import check_first_room
from millrace.broker.identity.first_start import FirstStart
from millrace.broker.identity.known_time import KnownTime, make_known_time, newest_of, show_clock
from millrace.broker.identity.metadata_check import (
    check_claim_basis,
    check_metadata,
    check_restored_from,
    note_claim_basis,
)
from millrace.broker.identity.ownership import Owner, Replaced, left_in_wal
from millrace.broker.identity.unclaimed import Unclaimed
from millrace.broker.identity.wal_binding import WalBinding, check_found_mark, judge_wal
from millrace.broker.identity.wal_start import (
    discard_foreign,
    disown,
    give_up_unknown,
    is_loss_restored,
    is_registered,
    register_wal,
    say_behind_hole,
    say_given_up,
)
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.meters.groups import show_groups
from millrace.broker.meters.node import (
    show_backup,
    show_compaction,
    show_edge,
    show_engine,
    show_metadata,
    show_outages,
    show_owner,
    show_states,
)
from millrace.broker.meters.process import show_process
from millrace.broker.meters.topics import show_topics
from millrace.broker.network.admin_http import AdminHttp, health_pages
from millrace.broker.network.listeners import Listeners
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import BoundEndpoint, bind_all, new_server, unbind
from millrace.broker.partitions.directory import SAVE_MS, PartitionDirectory
from millrace.broker.partitions.unpacking import Unpacking
from millrace.broker.partitions.validation import slow_validation
from millrace.broker.quorum.remote_backup import RemoteBackup
from millrace.broker.requests.change_log import ChangeLog
from millrace.broker.settings.addresses import Endpoint
from millrace.broker.settings.connection_limits import DynamicLimits
from millrace.broker.settings.log_levels import LogLevels
from millrace.broker.settings.of_parts import (
    config_checks,
    follow_expiration,
    follow_log_levels,
    internal_topics,
    listener_rules,
)
from millrace.broker.state_memory import StateMemory
from millrace.broker.state_refusals import StateRefusals
from millrace.broker.store_opening import open_stores
from millrace.broker.stores import START_RETRIES, NodeStores, wal_place
from millrace.broker.topic_creation import TopicCreation
from millrace.kraft.bucket.reader import BucketMetadata
from millrace.kraft.bucket.writer import MetadataBackup
from millrace.kraft.commands.decision import ConfigRules
from millrace.kraft.log.meta_properties import read_meta_properties
from millrace.kraft.log.restored_from import forget_restored_from, read_restored_from
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.kraft.tables.features import SUPPORTED
from millrace.kraft.topic_configs import ConfigLookup
from millrace.runtime.bundle import Runtime
from millrace.runtime.metrics import Registry
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreDenied, StoreFull
from millrace.runtime.objectstore.retry import RetryingObjectStore
from millrace.runtime.objectstore.watched import WAL_STORE, StoreWatch
from millrace.runtime.tasks import Tasks
from millrace.s3stream.ownership import UNOWNED, AckGate, Ownership
from millrace.s3stream.recovery import Recovered
from millrace.s3stream.storage import Storage
from millrace.s3stream.uploader import no_wait
from millrace.wal.identity import NO_MARK, NO_WAL_ID, MetadataMark, WalIdentity
from millrace.wal.kind import WalPlace
from millrace.wal.log import WalOwner, WriteAheadLog
from millrace.wal.opening import identify_wal, kind_of, open_wal

if TYPE_CHECKING:  # loaded in test mode alone
    from millrace.broker.injection import Injection

T = TypeVar("T")

log = logging.getLogger(__name__)
DRAIN_MS, DRAIN_FAILED_MS = 5_000, 500
CLOSE_MS, SAVE_FAILED_MS = 20_000, 500
BACKUP_CLOSE_MS = 5_000


class Broker:
    """One node. `failed` gets an exception when it cannot go on: the process ends, and the next start
    recovers."""

    _close_ms = CLOSE_MS  # for what is not uploaded when it ends
    _outages: OutageWatch | None = None  # once the engine runs

    def __init__(
        self, settings: BrokerSettings, runtime: Runtime, injection: Injection | None = None
    ) -> None:
        """`injection`: faults that tests ask for; in test mode alone."""
        self._settings = settings
        self._injection = injection
        self._runtime = runtime
        self._registry = Registry()
        self._tasks = Tasks()
        self._owner_tasks = Tasks()
        self._ownership: Ownership = UNOWNED
        self._gate: AckGate = UNOWNED
        self._engine: Storage | None = None
        self._endings = Endings()
        self._watch = StartWatch()
        self._wal_store = StoreWatch(WAL_STORE)
        self._wal_binding = WalBinding()
        # A copy of the log directory comes to the same write-ahead log.
        self._is_log_shared = kind_of(settings.wal).name == "object"
        self._first = FirstStart(runtime.disk)
        self._bound: Sequence[BoundEndpoint] = ()
        self._known: KnownTime  # once the store is open
        self._makers: RoomMakers  # once there is an engine
        self._bucket_metadata = BucketMetadata()
        self._changes = ChangeLog()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.listeners: Sequence[Endpoint] = ()
        self.admin_port: int | None = None
        self.controller: ControllerNode | None = None  # once it is open: for who compares images (tests/sim)

    async def start(self) -> None:
        await self._start_admin()
        await self._bind()
        stores = await self._open_store()
        self._known = make_known_time(self._settings, self._runtime, stores.last_date)
        node = await self._start_controller(stores)
        await self._settle_clock(node)
        cache = MetadataCache(node.publisher, node.cluster_id, self._settings.node_id)
        show_metadata(self._registry, cache, lambda: node.driver.news.is_active)
        client = ControllerClient(node.channel, cache, self._settings.node_id)
        incarnation = self._runtime.rand.split("incarnation").uuid()
        await self._claim(node, client, stores, incarnation)
        backup = self._start_backup(node, stores)
        await self._register(client, incarnation)
        self._watch.enter("recovering what the WAL holds")
        wal = await self._open_wal(node, client, stores)
        storage = await self._start_engine(node, cache, client, stores, wal, backup)
        await register_wal(self._settings, node.publisher.image, client, wal, self._wal_binding)
        await forget_restored_from(self._runtime.disk, self._settings.controller.log_dir)
        parts = self._build_parts(node, cache, client, storage)
        self._start_tasks(parts, stores)
        await self._serve(node, parts)
        self._watch.leave()

    async def stop(self) -> None:
        """Ends the parts in reverse order of their start; one that fails to end does not keep the others."""
        self._watch.enter("stopping")
        await self._endings.run()

    def _on_failed(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    async def _open_store(self) -> NodeStores:
        """The store as each part uses it: it fails what is not answered after a few attempts; who must not
        fail asks again."""
        self._watch.enter("waiting for the object store")
        stores = await open_stores(self._settings, self._runtime, self._registry, self._watch.on_retry)
        self._endings.add("object store", stores.plain.close)
        return stores

    async def _reach_store(self, store: ObjectStore, bucket: str) -> str | None:
        """The cluster that the bucket belongs to, however long the store takes to answer."""
        return await read_bound_cluster(self._patient(store, "store at start"), bucket)

    def _patient(self, store: ObjectStore, name: str) -> ObjectStore:
        """However long the store takes to answer."""
        return RetryingObjectStore(
            store, self._runtime.rand.split(name), START_RETRIES, on_retry=self._watch.on_retry
        )

    def _start_backup(self, node: ControllerNode, stores: NodeStores) -> MetadataBackup | RemoteBackup:
        """Of what is committed, to the bucket, for as long as the controller lives, and nobody has replaced
        this process."""
        owned = self._ownership
        backup = MetadataBackup(
            stores.plain,
            node.cluster_id,
            node.log,
            node.publisher,
            self._known.judged,
            self._settings.backup,
            self._bucket_metadata,
            owned.verify,
            is_conditional=owned.is_conditional,
        )
        show_backup(self._registry, backup)
        tasks = Tasks()
        tasks.start("metadata backup", backup.run, on_escape=lambda name, error: self._on_failed(error))

        async def end() -> None:
            await backup.finish(BACKUP_CLOSE_MS)
            await tasks.stop()

        self._endings.add("metadata backup", end)
        return backup

    async def _start_controller(self, stores: NodeStores) -> ControllerNode:
        settings, disk, bucket = self._settings, self._runtime.disk, str(self._settings.data)
        bound_cluster = await self._reach_store(stores.plain, bucket)
        is_new = await self._look_first(stores, bound_cluster)
        check_broker_config, check_other_config = config_checks(settings)
        node = await ControllerNode.open(
            disk,
            self._known.believed,
            self._runtime.rand.split("controller"),
            settings.controller,
            check_broker_config=check_broker_config,
            check_other_config=check_other_config,
            on_failed=self._on_failed,
        )
        self.controller = node
        self._first.is_kept = not node.is_new
        self._endings.add("controller", lambda: node.close(is_discarded=not self._first.is_kept))
        check_first_look(is_new, node.is_new, settings.controller.log_dir)
        log.info(
            "%s %s", "new cluster, for nothing was there yet:" if node.is_new else "cluster", node.cluster_id
        )
        await self._check_bucket(node, stores, bound_cluster)
        self._watch.enter("looking at the WAL")
        found_wal = await self._asked_of_wal(identify_wal(self._wal_place(stores), settings.node_id))
        self._wal_binding = await self._judge_wal(node, found_wal)
        self._first.is_kept = True
        asked = stores.plain, bucket, bound_cluster, node.cluster_id, node.publisher.image
        try:
            await bind_bucket(*asked, is_remote=settings.data.scheme == "s3")
        except (StoreDenied, StoreFull):
            self._first.is_kept = (
                not node.is_new or await read_bound_cluster(stores.plain, bucket) is not None
            )
            raise
        await self._known.open(newest_of(node))  # the store was asked, and nothing is refused from here on
        await node.start()
        return node

    async def _look_first(self, stores: NodeStores, bound_cluster: str | None) -> bool:
        """Whether the metadata log is yet to be made: raises BindingRefused where bucket or WAL are used."""
        settings, disk = self._settings, self._runtime.disk
        self._watch.enter("opening the metadata log")
        self._watch.blocked_reason = lambda: self._wal_store.reason
        is_new = await read_meta_properties(disk, settings.controller.log_dir) is None
        self._first.is_kept = not is_new
        if is_new:
            place = self._wal_place(stores)
            found = await self._asked_of_wal(identify_wal(place, settings.node_id))
            check_first_start(found is not None, str(settings.wal), str(settings.data), bound_cluster)
            await check_first_room(disk, settings, place)
        return is_new

    async def _judge_wal(self, node: ControllerNode, found: WalIdentity | None) -> WalBinding:
        settings = self._settings
        binding = judge_wal(
            found,
            settings.wal.target,
            node.publisher.image,
            node.history_at_open,
            settings.node_id,
            node.cluster_id,
            is_acceptable=settings.is_lost_wal_accepted,
        )
        is_restored_short = await is_loss_restored(settings, self._runtime.disk)
        return replace(binding, is_lost=binding.is_lost or is_restored_short)

    async def _check_bucket(
        self, node: ControllerNode, stores: NodeStores, bound_cluster: str | None
    ) -> None:
        """Raises BindingRefused where the bucket or the metadata log is older than the other knows."""
        settings, bucket = self._settings, str(self._settings.data)
        self._watch.enter("looking at the metadata in the bucket")
        image = node.publisher.image
        patient = self._patient(stores.plain, "claims at start")
        claims, refused = NO_CLAIMS, None
        try:
            claims = await check_claims(patient, bucket, node.cluster_id, image, settings.node_id)
        except BindingRefused as error:
            refused = error  # of an older copy the metadata in the bucket says more
        # Without a marker too: who removed one that was damaged may have put an older log directory beside
        # the bucket.
        if bound_cluster in (None, node.cluster_id):
            self._bucket_metadata = await check_metadata(
                patient, bucket, node.cluster_id, image, node.history_at_open, claims
            )
        if refused is not None:
            raise refused
        log_dir = settings.controller.log_dir
        is_restored = await read_restored_from(self._runtime.disk, log_dir) is not None
        await check_bucket_age(
            patient, bucket, bound_cluster, node.cluster_id, image, settings.node_id, is_restored=is_restored
        )

    async def _settle_clock(self, node: ControllerNode) -> None:
        await self._known.settle(newest_of(node))
        show_clock(self._registry, self._known)

    async def _claim(
        self, node: ControllerNode, client: ControllerClient, stores: NodeStores, incarnation: bytes
    ) -> None:
        """The node and the metadata log are this start's on return, and it watches that they stay so. Nothing
        at millrace.version 0."""
        if not node.publisher.image.features.has_identities:
            node.publisher.subscribe(Unclaimed(self._settings.node_id).on_image)
            return
        self._watch.enter("claiming the node")
        settings, rand = self._settings, self._runtime.rand.split("looks")
        patient = self._patient(stores.plain, "claims")
        claimant = await claimant_of(
            patient,
            str(settings.data),
            node.cluster_id,
            incarnation,
            self._runtime.clock,
            node.publisher,
            client,
            self._watch.on_retry,
        )
        disk, log_dir, is_alone = self._runtime.disk, settings.controller.log_dir, settings.is_alone
        if self._is_log_shared and is_alone:
            basis = partial(note_claim_basis, disk, log_dir, node.epoch_at_open, node.history_at_open.end)
            await node.driver.reserve.at_need(basis)
        series_claimed = (METADATA_SERIES, settings.node_id) if is_alone else (settings.node_id,)
        self._endings.add("claims", lambda: self._release(claimant))
        claims = [await claimant.claim(series) for series in series_claimed]
        is_conditional = claimant.has_conditions
        clock, on_replaced = self._runtime.clock, self._on_replaced
        owner = Owner(
            stores.looks, claims, settings.node_id, rand, on_replaced, clock, is_conditional=is_conditional
        )
        self._ownership = self._gate = owner
        self._watch.held_reason = lambda: owner.held_reason
        if is_alone:
            node.commit_after(owner.wait_to_acknowledge)
        show_owner(self._registry, owner)
        self._owner_tasks.start("ownership", owner.run, on_escape=lambda name, error: self._on_failed(error))

        async def end() -> None:
            await self._owner_tasks.stop()
            owner.close()

        self._endings.add("ownership", end)
        if not is_alone:
            return
        check = partial(check_restored_from, patient, str(settings.data), node.cluster_id, disk, log_dir)
        await node.driver.reserve.at_need(check)
        # Also of a start with another kind of log: the node puts metadata of its own from here on.
        await check_claim_basis(patient, str(settings.data), node.cluster_id, disk, log_dir)

    async def _release(self, claimant: Claimant) -> None:
        """Of a process that ends in order; who was killed, or could not go on, leaves its claims standing."""
        if not self.failed.done():
            await claimant.release_all()

    def _on_replaced(self, error: Replaced) -> None:
        """From the look that found the newer owner: this process acknowledges and commits nothing more, and
        ends."""
        storage, image = self._engine, None if self.controller is None else self.controller.publisher.image
        if storage is not None and image is not None:
            member_id = None if self._settings.is_alone else self._settings.node_id
            error.left = left_in_wal(*storage.not_uploaded(), image, str(self._settings.wal), member_id)
            storage.end(error)
        log.critical("ownership: %s", error)
        self._on_failed(error)

    async def _register(self, client: ControllerClient, incarnation: bytes) -> None:
        listeners = self._settings.listeners
        shown = {endpoint.listener: endpoint for endpoint in (*listeners.clients, *listeners.advertised)}
        await client.register(
            incarnation,
            [(endpoint.listener, endpoint.host, endpoint.port) for endpoint in shown.values()],
            [(feature.name, feature.min_level, feature.max_level) for feature in SUPPORTED],
            self._settings.rack,
            is_named=self._ownership.writer is not None,
        )

    async def _open_wal(
        self, node: ControllerNode, client: ControllerClient, stores: NodeStores
    ) -> WriteAheadLog:
        """On return the WAL is this start's; one that is not the node's registered one is empty."""
        settings, binding, image = self._settings, self._wal_binding, node.publisher.image
        has_identity = image.features.has_identities
        new_id = self._runtime.rand.split("WAL id").uuid() if has_identity else NO_WAL_ID
        # A log in a store is taken without one: the mark that it has is compared first.
        mark = (
            MetadataMark(image.offset, image.epoch) if has_identity and not self._is_log_shared else NO_MARK
        )
        least_end = -1 if settings.is_lost_wal_accepted else binding.committed_end
        owner = WalOwner(node.cluster_id, settings.node_id, client.broker_epoch, new_id, least_end, mark)
        await disown(binding, client, settings.wal, self._runtime.rand.split("WAL of nobody").uuid())
        wal = await self._asked_of_wal(open_wal(self._wal_place(stores), owner))
        self._endings.add("WAL", wal.close)
        if not binding.is_foreign:
            target, history = settings.wal.target, node.history_at_open
            check_found_mark(wal.found_mark, wal.wal_id, target, image, history, settings.node_id)
        if binding.is_foreign:
            is_accepted = settings.is_lost_wal_accepted
            await discard_foreign(wal, settings.wal.target, image, settings.node_id, is_accepted=is_accepted)
        node.publisher.subscribe(
            lambda delta, image: wal.see_metadata(MetadataMark(image.offset, image.epoch))
        )
        return wal

    async def _start_engine(
        self,
        node: ControllerNode,
        cache: MetadataCache,
        client: ControllerClient,
        stores: NodeStores,
        wal: WriteAheadLog,
        backup: MetadataBackup | RemoteBackup,
    ) -> Storage:
        settings = self._settings
        # A log of objects outlives this machine, and with it what is acknowledged: metadata must know its
        # streams by then.
        before_append = backup.reach_committed if self._is_log_shared else no_wait
        storage = Storage(
            wal,
            stores.engine,
            client,
            client,
            settings.streams,
            node.cluster_id,
            self._on_failed,
            backup.reach_committed,
            before_append,
            self._ownership,
            self._gate,
        )
        self._engine = storage
        self._endings.add("stream engine", lambda: storage.close(self._close_ms))
        outages = self._outages = OutageWatch(
            lambda: wal.blocked_reason,
            lambda: client.full_reason or storage.upload_blocked_reason or backup.blocked_reason,
        )
        self._watch.blocked_reason = lambda: (
            outages.wal.reason() or outages.uploads.reason() or self._wal_store.reason
        )
        binding = self._wal_binding
        self._makers = self._room_makers(node, cache, client, stores, storage, backup)
        self._endings.add("what makes room", self._makers.stop)

        async def accept_loss(recovered: Recovered) -> None:
            await give_up_unknown(settings, self._runtime.disk, node.publisher.image, recovered, binding)
            say_behind_hole(recovered, node.publisher.image, settings.node_id)
            is_short = wal.has_given_up or wal.confirmed_end < binding.committed_end
            if binding.is_lost or is_short or recovered.has_loss:
                say_given_up(await client.accept_wal_loss())

        await storage.start(
            has_records=not binding.is_foreign,
            is_loss_accepted=settings.is_lost_wal_accepted,
            before_close=accept_loss,
            may_leave_open=is_registered(node.publisher.image, settings.node_id, wal),
        )
        self._watch.blocked_reason, self._watch.wal_reason = outages.uploads.reason, outages.unready_reason
        show_outages(self._registry, outages)
        self._tasks.start("outages", outages.run)
        show_engine(self._registry, wal, storage)
        return storage

    async def _asked_of_wal(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except (ObjectMissing, ValueError) as error:
            raise BindingRefused(f"{self._settings.wal} cannot hold the WAL: {error}") from error

    def _wal_place(self, stores: NodeStores) -> WalPlace:
        return wal_place(self._settings, self._runtime, stores, self._wal_store)

    def _build_parts(
        self, node: ControllerNode, cache: MetadataCache, client: ControllerClient, storage: Storage
    ) -> Parts:
        settings = self._settings
        lookup = ConfigLookup(settings.node_id, settings.static_configs)
        runtime = replace(self._runtime, clock=self._known)
        memory = StateMemory(settings.memory.states_bytes, settings.producers.expiration_ms)
        follow_expiration(memory, cache, node.publisher)
        memory.on_refused = StateRefusals(asyncio.get_running_loop().time, memory).note
        show_states(self._registry, memory)
        damage = DamageLog(storage.damaged, lambda: cache.image)
        show_damage(self._registry, damage)
        node.publisher.subscribe(lambda delta, image: damage.on_image(image))
        engine = storage, lookup.effective_all, runtime.clock, memory
        is_skipping = settings.is_damage_skipped
        directory = PartitionDirectory(
            settings.node_id, cache.image, client, *engine, is_skipping=is_skipping
        )
        node.publisher.subscribe(directory.on_image)
        self._endings.add(
            "partitions", lambda: directory.close(SAVE_FAILED_MS if self.failed.done() else SAVE_MS)
        )
        groups = GroupCoordinator(
            directory,
            storage,
            cache,
            settings.groups.of_coordinator(),
            runtime.clock,
            self._known.judged,
            self._runtime.rand.split("groups"),
            self._on_failed,
            runtime.yield_queue,
            memory,
        )
        groups.start()
        node.publisher.subscribe(groups.on_image)
        self._endings.add("groups", groups.stop)
        creation = TopicCreation(node.channel, internal_topics(settings), runtime.yield_queue)
        creation.on_created = self._changes.note_created
        offload = self._runtime.offload()
        self._endings.add("threads of codecs", offload.close)
        unpacking = Unpacking(offload, settings.memory.total_bytes, runtime.yield_queue)
        budget = RequestBudget(settings.client_requests_bytes, asyncio.get_running_loop().call_soon)
        listeners = Listeners(cache, listener_rules(settings), settings.listeners.advertised)
        return Parts(
            settings,
            runtime,
            node.channel,
            cache,
            client,
            storage,
            directory,
            creation,
            lookup,
            groups,
            unpacking,
            budget,
            ConfigRules(lookup, *config_checks(settings)),
            listeners,
            self._follow_levels(node, cache),
            lambda: node.driver.raft.voter_set.kraft_version,
        )

    def _follow_levels(self, node: ControllerNode, cache: MetadataCache) -> LogLevels:
        return follow_log_levels(self._settings.log_level, cache, node.publisher)

    def _room_makers(
        self,
        node: ControllerNode,
        cache: MetadataCache,
        client: ControllerClient,
        stores: NodeStores,
        storage: Storage,
        backup: MetadataBackup | RemoteBackup,
    ) -> RoomMakers:
        settings, owned = self._settings, self._ownership
        clock, judged, grace_ms = self._runtime.clock, self._known.judged, settings.object_grace_ms
        cleaner = None
        if isinstance(backup, MetadataBackup):
            is_urgent = grace_ms <= settings.backup.interval_ms
            before_delete = partial(backup.reach_for_deletion, is_urgent=is_urgent)
            cleaner = ObjectCleaner(stores.plain, client, cache, judged, grace_ms, before_delete, owned)
            node.publisher.subscribe(lambda delta, image: cleaner.on_image())
        compaction = CompactionTask(
            stores.compaction,
            client,
            settings.node_id,
            settings.compaction,
            node.cluster_id,
            clock,
            self._runtime.rand.split("compaction"),
            self._on_failed,
            owned,
            lambda: storage.uploader.is_full or backup.is_full,
        )
        node.publisher.subscribe(lambda delta, image: compaction.on_image(image))
        compaction.on_image(node.publisher.image)
        show_compaction(self._registry, compaction)
        makers = RoomMakers(cleaner, compaction)
        storage.uploader.on_full = backup.on_full = makers.on_full
        return makers

    def _start_tasks(self, parts: Parts, stores: NodeStores) -> None:
        settings, judged = self._settings, self._known.judged
        rounds = MaintenanceSettings(
            settings.topics.retention_check_interval_ms, settings.producers.expiration_check_interval_ms
        )
        maintenance = Maintenance(parts.directory, parts.cache, judged, rounds)
        upload_ms_max = max(settings.streams.prepare_ttl_ms, settings.compaction.prepare_ttl_ms)
        self._makers.begin()
        if settings.is_alone:  # of a cluster's brokers none deletes what may be another's
            sweep = UploadSweep(stores.compaction, parts.cache, judged, upload_ms_max, self._ownership)
            self._tasks.start("upload sweep", sweep.run)
        self._tasks.start("maintenance", maintenance.run)
        self._tasks.start("clock", lambda: self._known.run(lambda: stores.plain.head(MARKER_KEY)))
        self._endings.add("what makes room", self._makers.stop)
        self._endings.add("background tasks", self._tasks.stop)

    async def _serve(self, node: ControllerNode, parts: Parts) -> None:
        settings = self._settings
        slow = slow_validation(settings.static_configs)
        if slow:
            log.warning("%s", slow)
        handlers = self._changes.wrap(build_handlers(parts))
        if self._injection:
            handlers = self._injection.wrap(handlers)
        limits = DynamicLimits(settings.server.connections, parts.cache.broker_values)
        server = new_server(handlers, self._runtime, parts.budget, settings.server, limits.now)
        if self._injection:
            self._injection.attach(server, parts)
        self.listeners = await parts.listeners.start(server, self._bound)
        node.publisher.subscribe(lambda delta, image: parts.listeners.on_image())
        parts.listeners.on_image()  # of what was changed since its start looked
        # What was asked of a process that could not go on may never be answered.
        self._endings.add(
            "listeners", lambda: server.stop(DRAIN_FAILED_MS if self.failed.done() else DRAIN_MS)
        )
        listening = Tasks()
        listening.start("listeners", parts.listeners.run)
        self._endings.add("changes of listeners", listening.stop)
        self._endings.add(
            "group members who wait", parts.groups.stop
        )  # first: parked joins would hold the drain up
        show_edge(self._registry, server, parts.budget)
        show_topics(self._registry, parts.directory, lambda: parts.cache.image.topics)
        show_groups(self._registry, parts.groups, parts.directory)

    async def _bind(self) -> None:
        """Before anything is made: an address that is taken changes nothing. Which listeners there are beside
        the lasting ones is known later."""
        self._bound = await bind_all(self._runtime.net, listener_rules(self._settings).lasting)

        async def end() -> None:
            unbind(self._bound)
            await self._first.take_back()

        self._endings.add("addresses", end)
        await self._first.note(self._settings)

    async def _start_admin(self) -> None:
        """First, and it ends last: it says what the rest waits for."""
        show_process(self._registry, self._runtime.clock)
        address = self._settings.listeners.admin
        if address is None:
            return
        render, queue, watch = self._registry.render_yielding, self._runtime.yield_queue, self._watch
        waits = (
            lambda: watch.blocked_reason(),
            lambda: watch.held_reason(),
            lambda: watch.undecided_reason(),
        )
        admin = AdminHttp(self._runtime.net, health_pages(render, queue, lambda: watch.reason, *waits))
        self.admin_port = await admin.start(*address)

        async def stop_admin() -> None:
            admin.stop()

        self._endings.add("admin listener", stop_admin)
