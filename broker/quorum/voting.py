"""VotingBroker: a broker that is a voter too, of a quorum that has others or has room for them
(process.roles=broker,controller). It does what a broker beside controllers does, answers the other members,
and does the duties while it leads.

When it ends, the broker does first, while its controller still decides. Not here: what either part does
(follower.py, process.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext

from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity.bucket_age import check_bucket_age
from millrace.broker.identity.known_time import newest_of
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.meters.quorum import show_duties, show_quorum
from millrace.broker.network.memory import RequestBudget
from millrace.broker.network.server import BoundEndpoint, bind_all, unbind
from millrace.broker.quorum.duties import LeaderDuties
from millrace.broker.quorum.follower import FollowingBroker
from millrace.broker.quorum.listener import DRAIN_MS, controller_server
from millrace.broker.quorum.member import look_into_bucket, until_current
from millrace.broker.quorum.others_end import until_others_end
from millrace.broker.quorum.restored_member import compare_restored
from millrace.broker.quorum.waiting_count import WaitingCount
from millrace.broker.settings.log_levels import LogLevels
from millrace.broker.stores import NodeStores
from millrace.kraft.log.restored_from import read_restored_from
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.runtime.tasks import Tasks


class VotingBroker(FollowingBroker):
    _member_places: Sequence[BoundEndpoint] = ()  # bound, and not yet served
    _bound_cluster: str | None = None  # of a quorum of one: whose the bucket was
    _levels: LogLevels  # once it is a member: both listeners change them

    async def _bind(self) -> None:
        places = await bind_all(self._runtime.net, self._settings.listeners.controllers)

        async def end() -> None:
            unbind(places)

        self._endings.add("addresses of the controller", end)
        self._member_places = places
        await super()._bind()

    async def _start_controller(self, stores: NodeStores) -> ControllerNode:
        """Of a quorum of one no other voter has what this log directory lacks: an empty one beside a bucket
        or a WAL that are used is refused, with nothing changed."""
        settings = self._settings
        if settings.quorum.is_list_of_one:
            self._bound_cluster = await self._reach_store(stores.plain, str(settings.data))
            await self._look_first(stores, self._bound_cluster)
        return await super()._start_controller(stores)

    async def _join(self, node: ControllerNode, transport: QuorumTransport, stores: NodeStores) -> None:
        """Others need this voter while its broker still waits for what it is to be told."""
        settings, runtime = self._settings, self._runtime
        waiting = WaitingCount(node, runtime.yield_queue.yield_now)
        show_quorum(self._registry, node, waiting)
        budget = RequestBudget(settings.member_requests_bytes, asyncio.get_running_loop().call_soon)
        cache = MetadataCache(node.publisher, node.cluster_id, settings.node_id)
        levels = self._levels = super()._follow_levels(node, cache)
        server = controller_server(node, transport, budget, settings, levels, runtime)
        patient = self._patient(stores.plain, "metadata at start")
        if settings.quorum.is_list_of_one:
            await self._check_bucket(node, stores, self._bound_cluster)  # before it leads
        self._empty_reason = await look_into_bucket(node, nullcontext(patient))
        await compare_restored(node, settings, runtime, patient, self._watch.on_retry)
        await self._known.open(newest_of(node))
        self._endings.add("controller listener", lambda: server.stop(DRAIN_MS))
        self._endings.add("controller", node.close)
        await server.start(self._member_places)
        await node.start()
        tasks = Tasks()
        tasks.start("count of partitions that wait", waiting.run)
        tasks.start(
            "duties of the leader",
            lambda: self._do_duties(node, transport, stores),
            on_escape=lambda name, error: self._on_failed(error),
        )
        self._endings.add("duties of the leader", tasks.stop)
        self._endings.add("wait for brokers that end", lambda: until_others_end(node))

    async def _claim(
        self, node: ControllerNode, client: ControllerClient, stores: NodeStores, incarnation: bytes
    ) -> None:
        """As the log of a lone broker, that of a quorum of one commits nothing behind a halt before a look
        for a newer owner; until the looks end with the broker."""
        await super()._claim(node, client, stores, incarnation)
        node.commit_after(self._gate.wait_to_acknowledge)

        async def end() -> None:
            if not self.failed.done():
                node.commit_after(None)

        self._endings.add("looks before commits", end)

    async def _do_duties(self, node: ControllerNode, transport: QuorumTransport, stores: NodeStores) -> None:
        await until_current(node)
        if node.driver.raft.is_alone and not self._settings.quorum.is_list_of_one:
            await self._check_age(node, stores)
        await self._known.settle(newest_of(node))
        duties = LeaderDuties(node, stores, self._known, self._settings, self._runtime, self._on_failed)
        transport.commands.backup = lambda: duties.backup
        transport.commands.on_load = duties.take_load
        show_duties(self._registry, duties)
        await duties.run()

    async def _check_age(self, node: ControllerNode, stores: NodeStores) -> None:
        """Of the only voter that the log names, before it puts anything: what of its log is committed it
        knows once it leads. Raises BindingRefused."""
        settings, bucket = self._settings, str(self._settings.data)
        bound_cluster = await self._reach_store(stores.plain, bucket)
        is_restored = await read_restored_from(self._runtime.disk, settings.controller.log_dir) is not None
        asked = bucket, bound_cluster, node.cluster_id, node.publisher.image, settings.node_id
        store = self._patient(stores.plain, "age of the bucket")
        await check_bucket_age(store, *asked, is_restored=is_restored)

    def _follow_levels(self, node: ControllerNode, cache: MetadataCache) -> LogLevels:
        return self._levels
