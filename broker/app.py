"""Every part of a node and how they are joined: start order down, stop order up.

    disk, store ─► controller ─► registration gives the epoch ─► WAL ─► stream engine (recovers) ─► partitions, coordinators
        ─► handlers ─► listeners

A later part is given the earlier ones by its constructor; nobody holds the whole. `start` that fails half-way is followed by `stop`, which
ends what there is. Not here: what any part does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from millrace.broker.addresses import AdvertisedAddresses, Endpoint
from millrace.broker.admin_http import AdminHttp, health_pages
from millrace.broker.binding import BindingRefused, bind_bucket, check_first_start, check_wal, read_bound_cluster
from millrace.broker.compaction import CompactionTask
from millrace.broker.config import BrokerSettings
from millrace.broker.config_table import all_keys
from millrace.broker.controller_client import ControllerClient
from millrace.broker.coordinators.config import CoordinatorSettings
from millrace.broker.coordinators.coordinator import GroupCoordinator
from millrace.broker.dispatch import Dispatcher
from millrace.broker.dynamic_configs import DynamicConfigs
from millrace.broker.handlers import Parts, build_handlers
from millrace.broker.maintenance import Maintenance, MaintenanceSettings
from millrace.broker.memory import RequestBudget
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.meters import StoreCounts, show_compaction, show_edge, show_engine, show_metadata, show_traffic
from millrace.broker.object_cleaner import ObjectCleaner
from millrace.broker.partitions.directory import PartitionDirectory
from millrace.broker.partitions.unpacking import Unpacking
from millrace.broker.server import Server
from millrace.broker.start_watch import RetryLog, StartWatch
from millrace.broker.stores import NodeStores, stack_stores
from millrace.broker.topic_creation import TopicCreation
from millrace.broker.unfinished_uploads import UploadSweep
from millrace.kraft.meta_properties import read_meta_properties
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.features import SUPPORTED
from millrace.kraft.topic_configs import ConfigLookup
from millrace.runtime import Runtime
from millrace.runtime.metrics import Registry
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreDenied, StoreFull
from millrace.runtime.objectstore_retry import Retries, RetryingObjectStore, RetryPolicy
from millrace.runtime.objectstore_watched import WAL_STORE, StoreWatch, WatchedObjectStore
from millrace.runtime.storeaddress import StoreAddress
from millrace.runtime.tasks import Tasks
from millrace.s3stream.storage import Storage
from millrace.wal.kind import WalPlace
from millrace.wal.log import WalOwner
from millrace.wal.opening import is_wal_used, open_wal

T = TypeVar("T")

log = logging.getLogger(__name__)
START_RETRIES = RetryPolicy(attempts_max=None, longest_wait_ms=2_000)
DRAIN_MS = 5_000
CLOSE_MS = 20_000


class Broker:
    """One node. `failed` gets an exception when it cannot go on: the process ends, and the next start recovers."""

    def __init__(self, settings: BrokerSettings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._registry = Registry()
        self._line = runtime.line()
        self._tasks = Tasks()
        self._endings: list[tuple[str, Callable[[], Awaitable[object]]]] = []
        self._watch = StartWatch()
        self._wal_store = StoreWatch(WAL_STORE)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.listeners: Sequence[Endpoint] = ()
        self.admin_port: int | None = None
        self.controller: ControllerNode | None = None  # once it is open: for who compares images (tests/sim)

    async def start(self) -> None:
        await self._start_admin()
        stores = await self._open_store()
        node = await self._start_controller(stores)
        cache = MetadataCache(node.publisher, node.cluster_id, self._settings.node_id)
        show_metadata(self._registry, cache)
        client = ControllerClient(node.channel, cache, self._settings.node_id)
        await self._register(client)
        self._watch.enter("recovering what the WAL holds")
        storage = await self._start_engine(node, client, stores)
        parts = self._build_parts(node, cache, client, storage)
        self._start_tasks(node, parts, stores)
        await self._serve(parts)
        self._watch.leave()

    async def stop(self) -> None:
        """Ends the parts in reverse order of their start; one that fails to end does not keep the others."""
        self._watch.enter("stopping")
        while self._endings:
            name, end = self._endings.pop()
            try:
                await end()
            except Exception:
                log.exception("%s did not end in order", name)

    def _on_failed(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _ends_with(self, name: str, end: Callable[[], Awaitable[object]]) -> None:
        self._endings.append((name, end))

    async def _open_store(self) -> NodeStores:
        """The store as each part uses it: it fails what is not answered after a few attempts; who must not fail asks again."""
        self._watch.enter("waiting for the object store")
        address, runtime = self._settings.data, self._runtime
        retries = Retries(runtime.rand.split("store opening"), START_RETRIES, self._watch.on_retry)
        try:
            bare = await retries.attempt("open", lambda: runtime.open_store(address, runtime.clock))
        except (ObjectMissing, ValueError) as error:
            raise BindingRefused(f"{address} cannot be the data bucket: {error}") from error
        meter, rand = StoreCounts(self._registry), self._runtime.rand.split("store retries")
        stores = stack_stores(bare, meter, rand, self._settings.traffic, RetryLog().on_retry, self._line)
        show_traffic(self._registry, stores)
        self._ends_with("object store", stores.plain.close)
        return stores

    async def _reach_store(self, store: ObjectStore, bucket: str) -> str | None:
        """The cluster that the bucket belongs to, however long the store takes to answer."""
        rand = self._runtime.rand.split("store at start")
        patient = RetryingObjectStore(store, rand, START_RETRIES, on_retry=self._watch.on_retry)
        return await read_bound_cluster(patient, bucket)

    async def _start_controller(self, stores: NodeStores) -> ControllerNode:
        settings, disk, bucket = self._settings, self._runtime.disk, str(self._settings.data)
        bound_cluster = await self._reach_store(stores.plain, bucket)
        self._watch.enter("opening the metadata log")
        self._watch.blocked_reason = lambda: self._wal_store.reason
        if await read_meta_properties(disk, settings.controller.log_dir) is None:
            is_used = await self._asked_of_wal(is_wal_used(self._wal_place(stores), settings.node_id))
            check_first_start(is_used, str(settings.wal), bucket, bound_cluster)
        node = await ControllerNode.open(
            disk,
            self._runtime.clock,
            self._runtime.rand.split("controller"),
            settings.controller,
            check_broker_config=DynamicConfigs(all_keys()).check,
            on_failed=self._on_failed,
        )
        self.controller = node
        self._ends_with("controller", node.close)
        is_remote = settings.data.scheme == "s3"
        await bind_bucket(
            stores.plain, bucket, bound_cluster, node.cluster_id, node.publisher.image, is_remote=is_remote
        )
        await node.start()
        return node

    async def _register(self, client: ControllerClient) -> None:
        listeners = self._settings.listeners
        shown = {endpoint.listener: endpoint for endpoint in (*listeners.clients, *listeners.advertised)}
        await client.register(
            self._runtime.rand.split("incarnation").uuid(),
            [(endpoint.listener, endpoint.host, endpoint.port) for endpoint in shown.values()],
            [(feature.name, feature.min_level, feature.max_level) for feature in SUPPORTED],
            self._settings.rack,
        )

    async def _start_engine(self, node: ControllerNode, client: ControllerClient, stores: NodeStores) -> Storage:
        settings, image = self._settings, node.publisher.image
        owner = WalOwner(node.cluster_id, settings.node_id, client.broker_epoch)
        wal = await self._asked_of_wal(open_wal(self._wal_place(stores), owner))
        self._ends_with("WAL", wal.close)
        check_wal(wal.is_new, settings.is_lost_wal_accepted, settings.wal.target, image, settings.node_id)
        storage = Storage(wal, stores.engine, client, client, settings.streams, node.cluster_id, self._on_failed)
        self._ends_with("stream engine", lambda: storage.close(CLOSE_MS))
        self._watch.blocked_reason = lambda: (
            wal.blocked_reason or storage.upload_blocked_reason or self._wal_store.reason
        )
        await storage.start()
        self._watch.blocked_reason = lambda: wal.blocked_reason or storage.upload_blocked_reason
        show_engine(self._registry, wal, storage)
        return storage

    async def _asked_of_wal(self, asked: Awaitable[T]) -> T:
        try:
            return await asked
        except (StoreDenied, StoreFull, ObjectMissing, ValueError) as error:
            remedy = "; mend the credentials or the rights, or s3.wal.path" if isinstance(error, StoreDenied) else ""
            raise BindingRefused(f"{self._settings.wal} cannot hold the WAL: {error}{remedy}") from error

    def _wal_place(self, stores: NodeStores) -> WalPlace:
        """Its store is counted and watched, and not repeated: the log repeats what has no answer itself. It has connections of its own, which no
        upload holds up."""
        settings, runtime = self._settings, self._runtime
        retries = Retries(runtime.rand.split("WAL store opening"), START_RETRIES)

        async def open_once(address: StoreAddress) -> ObjectStore:
            with self._wal_store.attempt("open"):
                return await runtime.open_store(address, runtime.clock)

        async def open_store(address: StoreAddress) -> ObjectStore:
            bare = await retries.attempt("open", lambda: open_once(address))
            return WatchedObjectStore(stores.wal(bare), self._wal_store)

        return WalPlace(
            settings.wal,
            runtime.disk,
            open_store,
            runtime.rand.split("wal"),
            settings.wal_settings,
        )

    def _build_parts(
        self, node: ControllerNode, cache: MetadataCache, client: ControllerClient, storage: Storage
    ) -> Parts:
        settings = self._settings
        lookup = ConfigLookup(settings.node_id, settings.static_configs)
        directory = PartitionDirectory(
            settings.node_id, cache.image, client, storage, lookup.effective_all, self._runtime.clock
        )
        node.publisher.subscribe(directory.on_image)
        self._ends_with("partitions", directory.close)
        groups = GroupCoordinator(
            directory,
            storage,
            cache,
            coordinator_settings(settings),
            self._runtime.clock,
            self._runtime.rand.split("groups"),
            self._on_failed,
        )
        groups.start()
        node.publisher.subscribe(groups.on_image)
        self._ends_with("groups", groups.stop)
        creation = TopicCreation(node.channel, internal_topics(settings))
        offload = self._runtime.offload()
        self._ends_with("threads of codecs", offload.close)
        unpacking = Unpacking(offload, settings.memory.total_bytes)
        runtime = self._runtime
        return Parts(
            settings, runtime, node.channel, cache, client, storage, directory, creation, lookup, groups, unpacking
        )

    def _start_tasks(self, node: ControllerNode, parts: Parts, stores: NodeStores) -> None:
        settings, clock = self._settings, self._runtime.clock
        cleaner = ObjectCleaner(stores.plain, parts.client, parts.cache, clock, settings.object_grace_ms)
        node.publisher.subscribe(lambda delta, image: cleaner.on_image())
        rounds = MaintenanceSettings(
            settings.topics.retention_check_interval_ms,
            settings.producers.expiration_ms,
            settings.producers.expiration_check_interval_ms,
        )
        maintenance = Maintenance(parts.directory, parts.cache, clock, rounds)
        compaction = CompactionTask(
            stores.compaction,
            parts.client,
            settings.compaction,
            node.cluster_id,
            clock,
            self._runtime.rand.split("compaction"),
        )
        node.publisher.subscribe(lambda delta, image: compaction.on_image(image))
        show_compaction(self._registry, compaction)
        upload_ms_max = max(settings.streams.prepare_ttl_ms, settings.compaction.prepare_ttl_ms)
        sweep = UploadSweep(stores.compaction, parts.cache, clock, upload_ms_max)
        self._tasks.start("object cleaner", cleaner.run)
        self._tasks.start("upload sweep", sweep.run)
        self._tasks.start("compaction", compaction.run)
        self._tasks.start("maintenance", maintenance.run)
        self._ends_with("background tasks", self._tasks.stop)

    async def _serve(self, parts: Parts) -> None:
        loop, settings = asyncio.get_running_loop(), self._settings
        dispatcher = Dispatcher(build_handlers(parts), loop.create_task)
        budget = RequestBudget(settings.memory.requests_bytes, loop.call_soon)
        server = Server(self._runtime.net, dispatcher, budget, settings.server, self._line)
        self.listeners = await server.start(settings.listeners.clients)
        parts.cache.addresses = AdvertisedAddresses(self.listeners, settings.listeners.advertised)
        self._ends_with("listeners", lambda: server.stop(DRAIN_MS))
        self._ends_with("group members who wait", parts.groups.stop)  # first: parked joins would hold the drain up
        show_edge(self._registry, server, budget, dispatcher)

    async def _start_admin(self) -> None:
        """First, and it ends last: it says what the rest waits for."""
        address = self._settings.listeners.admin
        if address is None:
            return
        watch = self._watch
        pages = health_pages(lambda: watch.reason, self._registry.render, lambda: watch.blocked_reason())
        admin = AdminHttp(self._runtime.net, pages)
        self.admin_port = await admin.start(*address)

        async def stop_admin() -> None:
            admin.stop()

        self._ends_with("admin listener", stop_admin)


def internal_topics(settings: BrokerSettings) -> dict[str, tuple[int, dict[str, str]]]:
    """Partitions and configuration of topics that the broker makes for itself."""
    groups = settings.groups
    offsets = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(groups.offsets_segment_bytes),
    }
    return {"__consumer_offsets": (groups.offsets_partitions_count, offsets)}


def coordinator_settings(settings: BrokerSettings) -> CoordinatorSettings:
    groups = settings.groups
    return CoordinatorSettings(
        initial_rebalance_delay_ms=groups.initial_rebalance_delay_ms,
        session_timeout_min_ms=groups.session_timeout_min_ms,
        session_timeout_max_ms=groups.session_timeout_max_ms,
        members_max=groups.members_max,
        offset_metadata_bytes_max=groups.offset_metadata_bytes_max,
        offsets_retention_ms=groups.offsets_retention_ms,
        offsets_retention_check_interval_ms=groups.offsets_retention_check_interval_ms,
    )
