"""LeaderDuties: what a cluster needs one of, done by the controller that leads, for as long as it leads.

    claims the series of the metadata log's writer in the bucket, and looks whether somebody claims it later
    puts what is committed into the bucket (kraft/bucket/writer.py)
    deletes objects that metadata has marked for deletion, and uploads that nobody will end
    gives partitions of busy brokers to others

A term begins with the leadership and ends with it. Who leads no more and has not noticed finds the next
leader's claim before each put and each deletion; what it still deletes was marked in metadata that is
committed. Not here: what the parts do. Kept true: nothing is put or deleted where the bucket knows newer
metadata than the leader's log, or is older than that: the process ends then, since it would give offsets and
ids, or claims, a second time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from millrace.broker.background.object_cleaner import ObjectCleaner
from millrace.broker.background.unfinished_uploads import UploadSweep
from millrace.broker.cluster.loads import LoadTable
from millrace.broker.config import BrokerSettings
from millrace.broker.controller_client import ControllerClient
from millrace.broker.identity.binding import BindingRefused, bind_bucket, read_bound_cluster
from millrace.broker.identity.bucket_age import check_bucket_age
from millrace.broker.identity.claims import Claimant, claimant_of, known_newest
from millrace.broker.identity.known_time import KnownTime
from millrace.broker.identity.metadata_check import REMEDY, newer_metadata
from millrace.broker.identity.ownership import NOT_NOW, Owner, Replaced
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.quorum.balancer import Balancer
from millrace.broker.stores import START_RETRIES, NodeStores
from millrace.kraft.bucket.reader import BucketMetadata, survey
from millrace.kraft.bucket.writer import MetadataBackup
from millrace.kraft.channel import LocalChannel
from millrace.kraft.commands.objects import OF_CONTROLLER
from millrace.kraft.log.restored_from import read_restored_from
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.claims import METADATA_SERIES
from millrace.protocol.messages.report_load import ReportLoadRequest
from millrace.runtime.bundle import Runtime
from millrace.runtime.errors import Fenced, in_words
from millrace.runtime.objectstore import ObjectStore
from millrace.runtime.objectstore.retry import RetryingObjectStore

log = logging.getLogger(__name__)
AGAIN_S: Final = 10.0  # before the same leader begins another term
UNABLE_S: Final = 10.0  # that a leader does not reach the bucket, before another is to lead
LOOK_S: Final = 1.0


class LeaderDuties:
    """`backup` is the term's; None while another leads, or nobody."""

    def __init__(
        self,
        node: ControllerNode,
        stores: NodeStores,
        known: KnownTime,
        settings: BrokerSettings,
        runtime: Runtime,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._node = node
        self._stores = stores
        self._known = known
        self._settings = settings
        self._runtime = runtime
        self._on_failed = on_failed
        self._cache = MetadataCache(node.publisher, node.cluster_id, settings.node_id)
        self._client = ControllerClient(LocalChannel(node.controller), self._cache, OF_CONTROLLER)
        self.backup: MetadataBackup | None = None
        self._loads = LoadTable(asyncio.get_running_loop().time)
        self.balanced_count = 0  # partitions that the balancer moved, in all terms
        self._owner: Owner | None = None
        self._led_epoch = -1
        self._over = ""  # why the last term is
        self._able_s = 0.0  # when it last reached the bucket, or began to lead in that epoch
        self._term: asyncio.Task[None] | None = None
        self._claimant: Claimant | None = None  # of the newest claim
        self._claiming: Claimant | None = None  # of one that is not seen to be there

    async def run(self) -> None:
        """Until cancelled: one term after another. The process ends in order then: what it claimed last is
        released, also where it has lost the leadership since to nobody."""
        try:
            await self._serve_terms()
        except asyncio.CancelledError:
            await self._release()
            raise

    async def _serve_terms(self) -> None:
        news = self._node.driver.news
        while True:
            await self._until_leading()
            epoch = news.epoch
            if epoch != self._led_epoch:
                self._led_epoch, self._able_s = epoch, asyncio.get_running_loop().time()
            term = asyncio.get_running_loop().create_task(self._serve(epoch), name="duties of the leader")
            self._term = term
            try:
                while self._is_leading(epoch) and not term.done():
                    await asyncio.wait(
                        [term, news.changed()], timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    self._give_way_where_unable()
            finally:
                term.cancel()
                await asyncio.wait([term])
            over = self._why_over(term)
            if over is not None and await self._is_confirmed(epoch):
                if not isinstance(over, Replaced):
                    self._on_failed(over)
                    return
                log.critical("duties: this controller leads on, and %s", over)
            self._give_way_where_unable()
            if self._is_leading(epoch):
                await asyncio.wait([news.changed()], timeout=AGAIN_S)

    def _give_way_where_unable(self) -> None:
        """Brokers wait for the bucket to have the metadata: of those who may lead one may reach it."""
        now_s = asyncio.get_running_loop().time()
        if self._owner is not None and self.backup is not None and not self.backup.blocked_reason:
            self._able_s = max(self._able_s, now_s - self._owner.age_s)
        if now_s - self._able_s > UNABLE_S:
            why = self._over if self.backup is None else self.backup.blocked_reason
            self._node.driver.give_way(why or f"{self._settings.data} does not answer")

    async def _release(self) -> None:
        """Nobody is at work from now on, unless another has claimed since."""
        if self._term is not None:
            self._term.cancel()
            await asyncio.wait([self._term])
        for claimant in (self._claiming, self._claimant):
            if claimant is not None:
                await claimant.release_all()

    def take_load(self, report: ReportLoadRequest) -> None:
        """Of a broker that was replaced, or is not registered, nothing is kept."""
        broker = self._cache.image.brokers.get(report.broker_id)
        if broker is not None and broker.epoch == report.broker_epoch:
            self._loads.take(report)

    def _on_balanced(self, count: int) -> None:
        self.balanced_count += count

    def is_at_work(self) -> bool:
        return self.backup is not None

    def _is_leading(self, epoch: int) -> bool:
        news = self._node.driver.news
        return news.is_active and news.epoch == epoch

    async def _until_leading(self) -> None:
        """And until metadata has what claims need, which a new cluster has soon, and an older one with its
        upgrade."""
        news, changed = self._node.driver.news, asyncio.Event()
        unsubscribe = self._node.publisher.subscribe(lambda delta, image: changed.set())
        news.on_change.append(changed.set)
        try:
            while not (news.is_active and self._cache.image.features.has_identities):
                changed.clear()
                await changed.wait()
        finally:
            news.on_change.remove(changed.set)
            unsubscribe()

    def _why_over(self, term: asyncio.Task[None]) -> BaseException | None:
        """What the process has to end for, where it leads all the same, or is told loudly for, where another
        has claimed the writing of metadata; None where there may be another term."""
        error = None if term.cancelled() else term.exception()
        self._over = "" if error is None else in_words(error)
        if isinstance(error, (Fenced, *NOT_NOW)) and not isinstance(error, Replaced):
            log.warning("duties: this controller does them no more: %s", in_words(error))
            return None
        return error

    async def _is_confirmed(self, epoch: int) -> bool:
        """Whether this controller leads. One that stood still, or is cut off, may have been replaced by
        others whose claims its log does not have: it learns of them, or resigns, before this returns."""
        news, raft = self._node.driver.news, self._node.driver.raft
        confirmed_s = 2 * raft.settings.fetch_ticks * self._settings.controller.ticks.ms / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(confirmed_s):
                while self._is_leading(epoch):
                    await asyncio.wait([news.changed()])
        return self._is_leading(epoch)

    async def _serve(self, epoch: int) -> None:
        """One term. Raises BindingRefused where the bucket is not this metadata log's, Fenced once another
        has claimed it."""
        await self._look()
        await self._check_age()
        self._owner = owner = await self._claim(epoch)
        found = await self._look()  # also what the leader before put until now
        node, settings, judged = self._node, self._settings, self._known.judged
        backup = MetadataBackup(
            self._stores.plain,
            node.cluster_id,
            node.log,
            node.publisher,
            judged,
            settings.backup,
            found,
            owner.verify,
            is_conditional=owner.is_conditional,
            voters_at=node.driver.raft.log.voters.at,
        )
        grace_ms = settings.object_grace_ms
        is_urgent = grace_ms <= settings.backup.interval_ms
        before_delete = partial(backup.reach_for_deletion, is_urgent=is_urgent)
        cleaner = ObjectCleaner(
            self._stores.plain, self._client, self._cache, judged, grace_ms, before_delete, owner
        )
        upload_ms_max = max(settings.streams.prepare_ttl_ms, settings.compaction.prepare_ttl_ms)
        sweep = UploadSweep(self._stores.compaction, self._cache, judged, upload_ms_max, owner)
        self._loads.forget()
        channel = LocalChannel(node.controller)
        balancer = Balancer(
            channel, lambda: self._cache.image, self._loads, settings.balancer, self._on_balanced
        )
        unsubscribe = node.publisher.subscribe(lambda delta, image: cleaner.on_image())
        self.backup = backup

        async def look() -> None:
            await owner.run()
            await owner.verify(0.0)

        try:
            async with asyncio.TaskGroup() as group:
                for work in (look, backup.run, cleaner.run, sweep.run, balancer.run):
                    group.create_task(work())
        except* Exception as errors:
            raise errors.exceptions[0] from None
        finally:
            self.backup = self._owner = None
            unsubscribe()
            backup.close()
            owner.close()

    async def _look(self) -> BucketMetadata:
        """What the bucket holds of the log. Changes nothing but to bind a bucket that is nobody's."""
        store, bucket = self._patient("bucket of the term"), str(self._settings.data)
        cluster_id, image = self._node.cluster_id, self._cache.image
        bound_cluster = await read_bound_cluster(store, bucket)
        if bound_cluster is None and image.claims.highest(METADATA_SERIES):
            raise BindingRefused(
                f"{bucket} holds nothing of cluster {cluster_id}, whose metadata is in a bucket: "
                "give each of its nodes that one (s3.data.buckets)"
            )
        is_remote = self._settings.data.scheme == "s3"
        await bind_bucket(store, bucket, bound_cluster, cluster_id, image, is_remote=is_remote)
        newest = await known_newest(store, bucket, cluster_id, image, METADATA_SERIES)
        found = await survey(store, cluster_id)
        claimed_epoch = -1 if newest is None else newest.metadata_epoch
        history = self._node.driver.raft.log.history
        reason = newer_metadata(found, history, claimed_epoch)
        if reason is not None:
            raise BindingRefused(f"{bucket}: {reason}: {REMEDY}")
        return found.within(history)

    async def _check_age(self) -> None:
        """Raises BindingRefused where the bucket was put back to an older state than the log's."""
        store, bucket = self._patient("age of the bucket"), str(self._settings.data)
        cluster_id, image, node_id = self._node.cluster_id, self._cache.image, self._settings.node_id
        log_dir = self._settings.controller.log_dir
        is_restored = await read_restored_from(self._runtime.disk, log_dir) is not None
        await check_bucket_age(store, bucket, cluster_id, cluster_id, image, node_id, is_restored=is_restored)

    async def _claim(self, epoch: int) -> Owner:
        rand, clock = self._runtime.rand.split(f"term {epoch}"), self._runtime.clock
        self._claiming = claimant = await claimant_of(
            self._patient("claim of the term"),
            str(self._settings.data),
            self._node.cluster_id,
            rand.split("incarnation").uuid(),
            clock,
            self._node.publisher,
            self._client,
            lambda what, attempts, error: log.warning("duties: %s waits for room: %s", what, error),
        )
        claim = await claimant.claim(METADATA_SERIES)
        self._claimant, self._claiming = claimant, None
        return Owner(
            self._stores.looks,
            [claim],
            self._settings.node_id,
            rand.split("looks"),
            _say_replaced,
            clock,
            is_conditional=claimant.has_conditions,
        )

    def _patient(self, name: str) -> ObjectStore:
        """However long the store takes to answer."""
        rand = self._runtime.rand.split(name)
        return RetryingObjectStore(self._stores.plain, rand, START_RETRIES)


def _say_replaced(error: Replaced) -> None:
    log.info("duties: another controller does them: %s", error)
