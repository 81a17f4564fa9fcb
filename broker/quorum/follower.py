"""FollowingBroker: a broker beside controllers that are processes of their own (process.roles=broker). It
follows their quorum as an observer, sends commands to whoever leads, and recovers the write-ahead logs of
brokers that are gone where it is asked to.

    caught up ─► nobody recovers its log ─► bucket, claims and log are its own ─► registered ─► claimed ─► log
                     ▲                                                               │
                     └───────── another began to, meanwhile: refused ◄───────────────┘

Whether another recovers this broker's log or this start does is decided where it registers: metadata lets
nobody begin to recover the log of a broker that has registered, and no broker register whose log another is
at work on. So nothing that is this start's alone (its claim, its log) is taken before.

Not here: the metadata in the bucket and the deletion of objects, which are the controllers' (duties.py).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import Final

from millrace.broker.app import Broker
from millrace.broker.controller_client import ControllerClient
from millrace.broker.handlers import Parts
from millrace.broker.identity.binding import BindingRefused, bind_bucket
from millrace.broker.identity.claims import check_claims
from millrace.broker.identity.known_time import newest_of
from millrace.broker.identity.ownership import Owner
from millrace.broker.owed_range_reader import OwedRangeReader
from millrace.broker.quorum.common_bucket import CommonBucket
from millrace.broker.quorum.failovers import start_failovers
from millrace.broker.quorum.heartbeats import Heartbeats
from millrace.broker.quorum.load_reports import LoadReports
from millrace.broker.quorum.member import ask_time, catch_up, open_member, still_lacks, why_nobody_leads
from millrace.broker.quorum.remote_backup import RemoteBackup, await_backup, why_not_put
from millrace.broker.stores import NodeStores
from millrace.kraft.commands.failovers import is_at_work
from millrace.kraft.commands.takers import CORDONED
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.disk import DiskLocked
from millrace.runtime.errors import MillraceError, in_words
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.tasks import Tasks
from millrace.wal.opening import identify_wal

log = logging.getLogger(__name__)
BOUND_AGAIN_S: Final = 0.5
IN_USE_AGAIN_S: Final = 1.0  # the lock of a file tells nobody that it is free
CUT_OFF_S: Final = 10.0
COMPARE_S: Final = 10.0  # in which a controller that does not reach the bucket gives way to another
CLOSE_STUCK_MS: Final = 500  # what was not uploaded while it was waited for
UPLOAD_FIRST_S: Final = 5.0  # of a broker that ends
NOBODY_LEADS: Final = "no controller says that it leads"


def why_silent(leader: int) -> str:
    """Of controllers that are reached and do not answer a question."""
    if leader < 0:
        return NOBODY_LEADS
    return f"controller {leader} leads, and decides nothing: its log says why where that lasts"


class FollowingBroker(Broker):
    _empty_reason = ""  # of a voter: why none may lead (member.py)
    _transport: QuorumTransport  # once it is a member
    _backup: RemoteBackup
    _heartbeats: Heartbeats  # once it is registered
    _stores: NodeStores  # once it serves
    _told_wait = ""

    async def _start_controller(self, stores: NodeStores) -> ControllerNode:
        """A node that follows. Raises BindingRefused where bucket or WAL are not this broker's; as far as
        whoever leads knows: one that was replaced and has not noticed may know less, for some seconds, and
        takes no command any more, so that the claim of this node fails."""
        settings, bucket = self._settings, str(self._settings.data)
        self._watch.enter("joining the quorum of controllers")
        self._first.is_kept = True
        node, transport = await open_member(settings, self._runtime, self._known.believed, self._on_failed)
        self.controller, self._transport = node, transport
        self._endings.add("quorum transport", transport.close)
        await self._join(node, transport, stores)
        self._watch.blocked_reason = lambda: (
            (self._empty_reason if still_lacks(node) else "")
            or transport.failure
            or why_silent(node.driver.news.leader)
        )
        await catch_up(node)
        self._watch.blocked_reason = lambda: self._wal_store.reason
        self._watch.undecided_reason = lambda: why_nobody_leads(node)
        await self._until_recovered(node)
        bound_cluster = await self._until_bound(stores, bucket)
        log.info("cluster %s", node.cluster_id)
        await self._look_at_own(node, stores)
        await bind_bucket(stores.plain, bucket, bound_cluster, node.cluster_id, node.publisher.image)
        await self._compare_buckets(node, stores, "nothing was changed")
        return node

    async def _compare_buckets(self, node: ControllerNode, stores: NodeStores, changed: str) -> None:
        """Before anything is put: raises BindingRefused where the controllers put the metadata into another
        bucket; `changed` is what was until then. A copy that was made behind all that is committed is told
        once something more is, so this is asked again behind the registration. Who leads and does not reach
        its own keeps no broker from starting."""
        end, news = node.publisher.image.offset, node.driver.news
        if not node.publisher.image.features.has_identities:
            return
        self._watch.enter("waiting for the controllers to put the metadata into the bucket")
        channel = self._transport.new_channel()
        try:
            async with asyncio.timeout(COMPARE_S):
                leader = await await_backup(channel, news, end)
        except TimeoutError:
            log.warning(
                "%s: that is not waited for, and whether the bucket is the same one is looked at later",
                why_not_put(news.leader),
            )
            return
        finally:
            channel.close()
        common = self._common_bucket(node, self._patient(stores.plain, "common bucket"))
        why = await common.why_another(leader, end)
        if why:
            raise BindingRefused(f"{changed}: {why}")

    def _common_bucket(self, node: ControllerNode, store: ObjectStore) -> CommonBucket:
        return CommonBucket(store, str(self._settings.data), node.cluster_id)

    async def _join(self, node: ControllerNode, transport: QuorumTransport, stores: NodeStores) -> None:
        """On return the node speaks to the quorum, and ends when the broker does."""
        self._endings.add("metadata", node.close)
        await ask_time(nullcontext(stores.plain))
        await self._known.open(newest_of(node))
        await node.start()

    async def _look_at_own(self, node: ControllerNode, stores: NodeStores) -> None:
        """Changes nothing; waits while another broker recovers this one's log, or has it open still. Raises
        BindingRefused where claims or log are not this broker's, DiskLocked where the log is in use, and
        nobody was to recover it. Where another has come between that counts for nothing, and all is looked at
        again: it is asked to recover the log, and looks at it, or it has begun, which gives this broker a new
        epoch first."""
        while True:
            await self._until_recovered(node)
            epoch = self._known_epoch(node)
            try:
                await self._look_once(node, stores)
                return
            except (BindingRefused, DiskLocked) as error:
                await catch_up(node)
                has_come = await self._until_recovered(node) or self._known_epoch(node) != epoch
                if not has_come and not (isinstance(error, DiskLocked) and await self._has_waited(node)):
                    raise
                log.info("looks at its claims and its log again: %s", in_words(error))

    async def _has_waited(self, node: ControllerNode) -> bool:
        """The log is in use. Where others were to recover it one of them has it open that stands still, and
        is not taken for one that is there any more: it is waited for, a moment here, until it goes on or
        ends. False where nobody was to: then it is another's, for good."""
        node_id, image = self._settings.node_id, node.publisher.image
        if image.failovers.get(node_id) is None:
            return False
        silent = [one.broker_id for one in image.brokers if one.is_fenced and one.broker_id != node_id]
        who = f"broker {' or '.join(map(str, silent))}" if silent else "another broker"
        waits = f"waiting for {who}, which has this broker's write-ahead log open and does not go on"
        self._watch.enter(waits)
        if waits != self._told_wait:
            log.warning("%s: continue it, or end it", waits)
            self._told_wait = waits
        await asyncio.sleep(IN_USE_AGAIN_S)
        return True

    def _known_epoch(self, node: ControllerNode) -> int:
        broker = node.publisher.image.brokers.get(self._settings.node_id)
        return -1 if broker is None else broker.epoch

    async def _look_once(self, node: ControllerNode, stores: NodeStores) -> None:
        self._watch.enter("looking at the WAL")
        await self._check_claims(node, stores)
        found = await self._asked_of_wal(identify_wal(self._wal_place(stores), self._settings.node_id))
        self._wal_binding = await self._judge_wal(node, found)

    async def _check_claims(self, node: ControllerNode, stores: NodeStores) -> None:
        """Raises BindingRefused for a claim that metadata does not know. Others claim while this broker
        starts, and record it first: a claim that its image lacks is looked for in what is committed by
        then."""
        patient, node_id = self._patient(stores.plain, "claims at start"), self._settings.node_id
        bucket = str(self._settings.data)
        try:
            await check_claims(patient, bucket, node.cluster_id, node.publisher.image, node_id)
        except BindingRefused as error:
            log.info("looks at the claims again: %s", error)
            await catch_up(node)
            await check_claims(patient, bucket, node.cluster_id, node.publisher.image, node_id)

    async def _until_recovered(self, node: ControllerNode) -> bool:
        """While another broker recovers this one's write-ahead log, which cannot be opened twice. Where
        nobody does, this start recovers it. Whether somebody did: then the node's image and history are later
        than what that one wrote into the log."""
        found = False
        while await self._was_recovered(node):
            found = True
            await catch_up(node)
        return found

    async def _was_recovered(self, node: ControllerNode) -> bool:
        """Returns when nobody is at work on this broker's log: whether somebody was."""
        changed, node_id, was_recovered = asyncio.Event(), self._settings.node_id, False
        unsubscribe = node.publisher.subscribe(lambda delta, image: changed.set())
        try:
            while True:
                changed.clear()
                image = node.publisher.image
                failover = image.failovers.get(node_id)
                if failover is None or not is_at_work(image, failover):
                    return was_recovered
                was_recovered = True
                self._watch.enter(
                    f"waiting for broker {failover.by_node}, which recovers this broker's write-ahead log"
                )
                await changed.wait()
        finally:
            unsubscribe()

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
        reader = self._read_from_owners(node, parts)  # before it is given partitions
        await super()._serve(node, parts)
        self._endings.add("reads of owed ranges", reader.close)  # once it leads none
        self._watch.enter("waiting for the controllers to unfence this broker")
        heartbeats = self._heartbeats
        node.publisher.subscribe(heartbeats.on_image)
        await heartbeats.begin(node.publisher.image)

        async def leave() -> None:
            if not self.failed.done():  # else its streams may never be closed: its log is recovered
                await self._upload_first(parts)
                await heartbeats.leave(lambda: parts.storage.upload_blocked_reason)
                if parts.storage.upload_blocked_reason:
                    self._close_ms = CLOSE_STUCK_MS

        self._endings.add("leadership of partitions", leave)
        self._start_failovers(node, parts)

    def _read_from_owners(self, node: ControllerNode, parts: Parts) -> OwedRangeReader:
        reader = OwedRangeReader(lambda: parts.cache.image, self._transport.peers, self._settings.node_id)
        node.publisher.subscribe(reader.on_image)
        parts.storage.owed_reads.reader = reader
        return reader

    async def _upload_first(self, parts: Parts) -> None:
        """While this broker leads all that it leads still: what is then closed for others has little left to
        upload. Where the store is slow it goes on beside what follows."""
        if parts.storage.upload_blocked_reason:
            return
        try:
            async with asyncio.timeout(UPLOAD_FIRST_S):
                await parts.directory.save()
                await parts.storage.upload_all(int(UPLOAD_FIRST_S * 1000))
        except (TimeoutError, MillraceError) as error:
            log.info("hands over before all is uploaded: %s", in_words(error))

    async def _claim(
        self, node: ControllerNode, client: ControllerClient, stores: NodeStores, incarnation: bytes
    ) -> None:
        """Registered first: a claim that a recovery of this broker's log may follow is worth nothing."""
        while not await self._is_registered(client, incarnation):
            await catch_up(node)
            await self._look_at_own(node, stores)
        await self._known.settle(newest_of(node))  # whoever leads has stamped its registration
        self._begin_heartbeats(client)
        await self._compare_buckets(node, stores, "nothing was put")
        await super()._claim(node, client, stores, incarnation)
        if self._ownership.writer is not None:
            client.sign_as(incarnation)

    async def _is_registered(self, client: ControllerClient, incarnation: bytes) -> bool:
        """False: another broker recovers this one's log, or did when that was decided."""
        try:
            await super()._register(client, incarnation)
        except KafkaError as error:
            if error.code != ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                raise
            log.info("not registered yet: another broker recovers this one's write-ahead log")
            return False
        log.info("registered in epoch %d", client.broker_epoch)
        return True

    async def _register(self, client: ControllerClient, incarnation: bytes) -> None:
        """It is by now, for `_claim` has done so."""

    def _begin_heartbeats(self, client: ControllerClient) -> None:
        """Until the engine has ended: nobody opens the log of a broker that lives."""
        settings, tasks = self._settings, Tasks()
        assert self.controller is not None
        news, every_s = self.controller.driver.news, settings.quorum.heartbeat_s
        cordoned = settings.static_configs.get(CORDONED, "").strip()
        parts = settings.node_id, client, news, every_s, self._is_cut_off
        heartbeats = Heartbeats(*parts, is_cordoned=bool(cordoned))
        tasks.start("heartbeats", heartbeats.run, on_escape=lambda name, error: self._on_failed(error))
        self._heartbeats = heartbeats
        self._endings.add("heartbeats", tasks.stop)

    def _is_cut_off(self) -> bool:
        """From the store: its log has taken nothing for a while though something waits, or no look for a
        newer owner was answered, which is asked for every few seconds."""
        outages, owner = self._outages, self._ownership
        is_stuck = outages is not None and outages.wal.seconds() >= CUT_OFF_S
        return is_stuck or (isinstance(owner, Owner) and owner.age_s >= CUT_OFF_S)

    def _start_failovers(self, node: ControllerNode, parts: Parts) -> None:
        own = self._settings, self._runtime
        failovers = start_failovers(*own, node, parts.client, self._stores, self._backup)
        self._endings.add("failovers", failovers.stop)

    def _start_backup(self, node: ControllerNode, stores: NodeStores) -> RemoteBackup:
        common = self._common_bucket(node, stores.plain)
        channel, news = self._transport.new_channel(), node.driver.news
        backup = self._backup = RemoteBackup(channel, node.publisher, news, common)
        self._endings.add("wait for the metadata backup", backup.close)
        return backup

    def _start_tasks(self, parts: Parts, stores: NodeStores) -> None:
        super()._start_tasks(parts, stores)
        self._stores = stores
        every_s, queue = self._settings.balancer.report_s, self._runtime.yield_queue
        reports = LoadReports(parts.client, parts.channel, parts.directory, queue, every_s)
        self._tasks.start("load reports", reports.run)
