"""FollowingBroker: a broker beside controllers that are processes of their own (process.roles=broker). It
follows their quorum as an observer, and sends commands to whoever leads.

Not here: the metadata in the bucket and the deletion of objects, which are the controllers' (duties.py).
Nobody's yet: failover. A broker that is gone is fenced, and keeps its partitions until it is back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.broker.app import Broker
from millrace.broker.handlers import Parts
from millrace.broker.identity.binding import bind_bucket
from millrace.broker.identity.claims import check_claims
from millrace.broker.quorum.heartbeats import Heartbeats
from millrace.broker.quorum.member import NoBackup, catch_up, open_member
from millrace.broker.stores import NodeStores
from millrace.kraft.node import ControllerNode
from millrace.runtime.tasks import Tasks
from millrace.wal.opening import identify_wal

log = logging.getLogger(__name__)
BOUND_AGAIN_S: Final = 0.5
NOBODY_LEADS: Final = "no controller says that it leads"


class FollowingBroker(Broker):
    async def _start_controller(self, stores: NodeStores) -> ControllerNode:
        """A node that follows. Raises BindingRefused where bucket or WAL are not this broker's; as far as
        whoever leads knows: one that was replaced and has not noticed may know less, for some seconds, and
        takes no command any more, so that the claim of this node fails."""
        settings, bucket = self._settings, str(self._settings.data)
        self._watch.enter("joining the quorum of controllers")
        self._first.is_kept = True
        node, transport = await open_member(settings, self._runtime, self._on_failed)
        self.controller = node
        self._endings.add("quorum transport", transport.close)
        self._endings.add("metadata", node.close)
        await node.start()
        self._watch.blocked_reason = lambda: transport.failure or NOBODY_LEADS
        await catch_up(node)
        self._watch.blocked_reason = lambda: self._wal_store.reason
        bound_cluster = await self._until_bound(stores, bucket)
        log.info("cluster %s", node.cluster_id)
        self._watch.enter("looking at the WAL")
        image = node.publisher.image
        patient = self._patient(stores.plain, "claims at start")
        await check_claims(patient, bucket, node.cluster_id, image, settings.node_id)
        found = await self._asked_of_wal(identify_wal(self._wal_place(stores), settings.node_id))
        self._wal_binding = self._judge_wal(node, found)
        await bind_bucket(stores.plain, bucket, bound_cluster, node.cluster_id, image)
        return node

    async def _until_bound(self, stores: NodeStores, bucket: str) -> str:
        """The cluster that the bucket belongs to, once a controller has taken it for theirs: a broker with
        another bucket would have its records where nobody finds them."""
        bound_cluster = await self._reach_store(stores.plain, bucket)
        while bound_cluster is None:
            self._watch.enter(
                f"waiting for the controllers to take {bucket}: see that theirs is the same (s3.data.buckets)"
            )
            await asyncio.sleep(BOUND_AGAIN_S)
            bound_cluster = await self._reach_store(stores.plain, bucket)
        return bound_cluster

    async def _serve(self, node: ControllerNode, parts: Parts) -> None:
        await super()._serve(node, parts)
        self._watch.enter("waiting for the controllers to unfence this broker")
        heartbeats, tasks = Heartbeats(parts.client, self._settings.quorum.heartbeat_s), Tasks()
        await heartbeats.begin()
        tasks.start("heartbeats", heartbeats.run, on_escape=lambda name, error: self._on_failed(error))

        async def end() -> None:
            await tasks.stop()
            await heartbeats.leave()

        self._endings.add("heartbeats", end)

    def _start_backup(self, node: ControllerNode, stores: NodeStores) -> NoBackup:
        return NoBackup()
