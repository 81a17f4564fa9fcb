"""ControllerProcess: a node of the quorum that is no broker (process.roles=controller).

    disk ─► controller (recovers its log) ─► transport to the other members ─► controller listener

It is started when the listener is; whether anybody leads is the others' matter too, and shown on the ready
page. Not here: what any part does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from millrace.broker.background.start_watch import RetryLog, StartWatch
from millrace.broker.config import BrokerSettings
from millrace.broker.endings import Endings
from millrace.broker.identity.binding import MARKER_KEY
from millrace.broker.identity.known_time import make_known_time, newest_of, show_clock
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.meters.process import show_process
from millrace.broker.meters.quorum import show_controller, show_duties, show_quorum
from millrace.broker.network.admin_http import AdminHttp, health_pages
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import BoundEndpoint, bind_all, unbind
from millrace.broker.quorum.duties import LeaderDuties
from millrace.broker.quorum.listener import DRAIN_MS, controller_server
from millrace.broker.quorum.member import (
    look_into_bucket,
    open_member,
    still_lacks,
    until_current,
    why_nobody_leads,
)
from millrace.broker.quorum.others_end import until_others_end
from millrace.broker.quorum.restored_member import compare_restored
from millrace.broker.quorum.waiting_count import WaitingCount
from millrace.broker.settings.addresses import Endpoint
from millrace.broker.settings.of_parts import follow_log_levels
from millrace.broker.store_opening import open_stores
from millrace.broker.stores import START_RETRIES
from millrace.kraft.log.restored_from import forget_restored_from, read_restored_from
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.runtime.bundle import Runtime
from millrace.runtime.metrics import Registry
from millrace.runtime.objectstore import ObjectStore, StoreDate
from millrace.runtime.objectstore.retry import RetryingObjectStore
from millrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)


class ControllerProcess:
    """`failed` gets an exception when it cannot go on: the process ends, and the next start recovers."""

    def __init__(self, settings: BrokerSettings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._registry = Registry()
        self._watch = StartWatch()
        self._endings = Endings()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.listeners: Sequence[Endpoint] = ()
        self.admin_port: int | None = None
        self.node: ControllerNode | None = None  # once it is open
        self._last_date: Callable[[], StoreDate | None] = lambda: None  # a store's, once one is open
        self._known = make_known_time(settings, runtime, lambda: self._last_date())
        self._said = (-1, -1)  # leader and epoch
        self._empty_reason = ""  # why none may lead, while it lacks something (member.py)

    async def start(self) -> None:
        """Returns when other members are answered. Raises what opening the log does, and ListenFailed."""
        show_process(self._registry, self._runtime.clock)
        await self._start_admin()
        places = await self._bind()
        self._watch.enter("opening the metadata log")
        node, transport = await self._open()
        await self._look_into_bucket(node)
        await self._compare_restored(node)
        await self._known.open(newest_of(node))
        node.driver.news.on_change.append(self._say_leader)
        await self._serve(node, transport, places)
        await node.start()
        await self._start_duties(node, transport)
        self._watch.leave()

    async def stop(self) -> None:
        """Ends the parts in reverse order of their start; one that fails to end does not keep the others."""
        self._watch.enter("stopping")
        await self._endings.run()

    def _on_failed(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _say_leader(self) -> None:
        assert self.node is not None
        news = self.node.driver.news
        if news.leader >= 0 and (news.leader, news.epoch) != self._said:
            self._said = news.leader, news.epoch
            log.info("quorum: node %d leads in epoch %d", news.leader, news.epoch)

    def _why_not_ready(self) -> str:
        if self._watch.reason or self.node is None:
            return self._watch.reason
        silent = why_nobody_leads(self.node)
        return self._empty_reason if silent and still_lacks(self.node) else silent

    async def _start_admin(self) -> None:
        """First, and it ends last: it says what the rest waits for."""
        address = self._settings.listeners.admin
        if address is None:
            return
        pages = health_pages(self._registry.render_yielding, self._runtime.yield_queue, self._why_not_ready)
        admin = AdminHttp(self._runtime.net, pages)
        self.admin_port = await admin.start(*address)

        async def end() -> None:
            admin.stop()

        self._endings.add("admin listener", end)

    async def _bind(self) -> Sequence[BoundEndpoint]:
        """Before anything is made: an address that is taken changes nothing."""
        places = await bind_all(self._runtime.net, self._settings.listeners.controllers)

        async def end() -> None:
            unbind(places)

        self._endings.add("addresses", end)
        return places

    async def _open(self) -> tuple[ControllerNode, QuorumTransport]:
        node, transport = await open_member(
            self._settings, self._runtime, self._known.believed, self._on_failed
        )
        self.node = node
        show_controller(self._registry, node)
        self._waiting = WaitingCount(node, self._runtime.yield_queue.yield_now)
        show_quorum(self._registry, node, self._waiting)
        self._endings.add("quorum transport", transport.close)
        return node, transport

    async def _look_into_bucket(self, node: ControllerNode) -> None:
        self._watch.enter("looking what the bucket knows of the metadata of this cluster")
        self._empty_reason = await look_into_bucket(node, self._patient_store())

    async def _compare_restored(self, node: ControllerNode) -> None:
        """Of the first start after a restore alone. The word for what is missing is asked here; from here on
        the directory is as any other."""
        settings, runtime = self._settings, self._runtime
        if await read_restored_from(runtime.disk, settings.controller.log_dir) is None:
            return
        self._watch.enter(
            "looking whether the bucket has grown since this log directory was restored from it"
        )
        async with self._patient_store() as patient:
            await compare_restored(node, settings, runtime, patient, self._watch.on_retry)
        await forget_restored_from(runtime.disk, settings.controller.log_dir)

    @asynccontextmanager
    async def _patient_store(self) -> AsyncIterator[ObjectStore]:
        """However long the store takes to answer."""
        settings, runtime, on_retry = self._settings, self._runtime, self._watch.on_retry
        stores = await open_stores(settings, runtime, Registry(), on_retry)
        self._last_date = stores.last_date
        rand = runtime.rand.split("metadata at start")
        try:
            yield RetryingObjectStore(stores.plain, rand, START_RETRIES, on_retry=on_retry)
        finally:
            await stores.plain.close()

    async def _serve(
        self, node: ControllerNode, transport: QuorumTransport, places: Sequence[BoundEndpoint]
    ) -> None:
        budget = RequestBudget(self._settings.member_requests_bytes, asyncio.get_running_loop().call_soon)
        settings = self._settings
        cache = MetadataCache(node.publisher, node.cluster_id, settings.node_id)
        levels = follow_log_levels(settings.log_level, cache, node.publisher)
        server = controller_server(node, transport, budget, settings, levels, self._runtime)
        # First the controller, while requests are answered still: who leads hands over.
        self._endings.add("controller listener", lambda: server.stop(DRAIN_MS))
        self._endings.add("controller", node.close)
        self.listeners = await server.start(places)

    async def _start_duties(self, node: ControllerNode, transport: QuorumTransport) -> None:
        """A store that is away keeps nobody from voting: what waits for it are the duties alone."""
        tasks = Tasks()

        def on_escape(name: str, error: BaseException) -> None:
            self._on_failed(error)

        tasks.start("count of partitions that wait", self._waiting.run)
        tasks.start("duties of the leader", lambda: self._do_duties(node, transport), on_escape=on_escape)
        self._endings.add("duties of the leader", tasks.stop)
        self._endings.add("wait for brokers that end", lambda: until_others_end(node))

    async def _do_duties(self, node: ControllerNode, transport: QuorumTransport) -> None:
        settings, runtime, known = self._settings, self._runtime, self._known
        stores = await open_stores(settings, runtime, self._registry, RetryLog().on_retry)
        try:
            self._last_date = stores.last_date
            await until_current(node)
            await known.settle(newest_of(node))
            show_clock(self._registry, known)
            duties = LeaderDuties(node, stores, known, settings, runtime, self._on_failed)
            transport.commands.backup = lambda: duties.backup
            transport.commands.on_load = duties.take_load
            show_duties(self._registry, duties)
            async with asyncio.TaskGroup() as group:
                group.create_task(known.run(lambda: stores.plain.head(MARKER_KEY)))
                group.create_task(duties.run())
        finally:
            await stores.plain.close()
