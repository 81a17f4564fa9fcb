"""Failovers: this broker recovers write-ahead logs of brokers that are gone, as metadata asks it to.

    metadata names this broker          it recovers the log, and says so; or says that it cannot
    nobody can, this broker neither     it looks again now and then, and begins when it can; not where the log
                                        waits for an operator's word
    metadata names it no more           it stops where it is
    the broker ends                     it stops, and gives back what it was asked for

A few at a time, others wait. Not here: the recovery (log_recovery.py), who is asked (kraft/commands/
leaders.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final

from millrace.broker.config import BrokerSettings
from millrace.broker.controller_client import ControllerClient
from millrace.broker.quorum.attempts import Attempts
from millrace.broker.quorum.log_recovery import CommittedInBucket, LogDamaged, LogRecovery, LogUnreachable
from millrace.broker.stores import NodeStores
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.failovers import NOBODY, Failover
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.bundle import Runtime
from millrace.runtime.errors import Fenced, MillraceError, Unavailable, in_words

log = logging.getLogger(__name__)
AT_ONCE: Final = 2
AGAIN_S, AGAIN_MAX_S = 5.0, 15.0  # between looks at a log that nobody can recover, doubled with each
DAMAGED_AGAIN_MAX_S: Final = 300.0  # likewise at one that is damaged: a sound copy may come in its place
GIVE_BACK_S: Final = 2.0  # for a controller to be told, by a broker that ends
FENCED_S: Final = 0.5  # before a log is tried again that somebody else has, or had, doubled with each


@dataclass(frozen=True, slots=True)
class Failed:
    """The last attempt at a log, and how long this broker waits before the next one."""

    reason: str
    again_s: float
    needs_word: bool


def start_failovers(
    settings: BrokerSettings,
    runtime: Runtime,
    node: ControllerNode,
    client: ControllerClient,
    stores: NodeStores,
    backup: CommittedInBucket,
) -> Failovers:
    """Of a broker that serves: they follow every image from here on, until `stop`."""

    attempts = itertools.count()

    def recovery(node_id: int) -> LogRecovery:
        return LogRecovery(node_id, node, client, stores, backup, settings, runtime, next(attempts))

    failovers = Failovers(settings.node_id, client, recovery)
    node.publisher.subscribe(failovers.on_image)
    failovers.start(node.publisher.image)
    return failovers


class Failovers:
    """`recovery` makes an attempt at the log of a node. `client` speaks for this broker."""

    def __init__(
        self, broker_id: int, client: ControllerClient, recovery: Callable[[int], LogRecovery]
    ) -> None:
        self._broker_id = broker_id
        self._client = client
        self._recovery = recovery
        self._image: MetadataImage | None = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._given_up: set[int] = set()  # of these, which end
        self._failed: dict[int, Failed] = {}  # by node, as long as there is a failover of it
        self._waiting: set[int] = set()  # nodes whose log is looked at again in a while
        self._places = asyncio.Semaphore(AT_ONCE)
        self._attempts = Attempts()
        self._is_stopped = False

    def start(self, image: MetadataImage) -> None:
        """`on_image` is to be told of every later one."""
        self._follow(image)

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.failovers_changed:
            self._follow(image)
        self._image = image

    async def stop(self) -> None:
        """What is under way is given up; another broker goes on from there, at once where a controller is
        told."""
        self._is_stopped = True
        running = dict(self._running)
        for node_id in running:
            self._give_up(node_id)
        await asyncio.gather(*running.values(), return_exceptions=True)
        failovers = () if self._image is None else self._image.failovers
        asked = [failover.node_id for failover in failovers if failover.by_node == self._broker_id]
        await asyncio.gather(*map(self._give_back, asked))

    async def _give_back(self, node_id: int) -> None:
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self._end(node_id, f"broker {self._broker_id} ends")
        except (TimeoutError, MillraceError, KafkaError) as error:
            log.info("failover: of broker %d is left as it is: %s", node_id, in_words(error))

    def _follow(self, image: MetadataImage) -> None:
        self._image = image
        self._failed = {one: found for one, found in self._failed.items() if image.failovers.get(one)}
        for node_id in self._running:
            is_named_anew = node_id in self._waiting and self._is_asked(node_id)  # and begins at once
            if is_named_anew or not self._is_mine(image.failovers.get(node_id)):
                self._give_up(node_id)
        for failover in image.failovers:
            if self._is_mine(failover) and failover.node_id not in self._running and not self._is_stopped:
                self._begin(failover.node_id)

    def _is_mine(self, failover: Failover | None) -> bool:
        """To be done here, or to be looked at again from here."""
        if failover is None:
            return False
        if failover.by_node == self._broker_id:
            return True
        is_tried = failover.by_node == NOBODY and self._client.broker_epoch in failover.unable
        failed = self._failed.get(failover.node_id)
        return is_tried and not (failed is not None and failed.needs_word)

    def _begin(self, node_id: int) -> None:
        task = asyncio.get_running_loop().create_task(self._attend(node_id), name=f"failover of {node_id}")
        self._running[node_id] = task
        task.add_done_callback(lambda done: self._ended(node_id, done))

    def _give_up(self, node_id: int) -> None:
        """Told once: on its way out it closes the log, and would leave it open where it is told again."""
        if node_id not in self._given_up:
            self._given_up.add(node_id)
            self._running[node_id].cancel()

    def _ended(self, node_id: int, task: asyncio.Task[None]) -> None:
        if self._running.get(node_id) is task:
            del self._running[node_id]
            self._given_up.discard(node_id)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failover: of broker %d ended", node_id, exc_info=error)
        if self._image is not None and not self._is_stopped:
            self._follow(self._image)  # it may be asked for again

    async def _attend(self, node_id: int) -> None:
        """Until the log is recovered, or this broker is not asked any more. An attempt that fails is not made
        again at once: each begins with a new epoch of the one that is gone, and a claim in the bucket."""
        fenced_s = FENCED_S
        while node_id not in self._given_up:
            failed = self._failed.get(node_id)
            if failed is not None and not self._is_asked(node_id):
                await self._wait(node_id, failed.again_s)
            try:
                async with self._places:
                    failure = await self._try(node_id)
            except Fenced as error:
                log.info("failover: of broker %d is somebody else's now: %s", node_id, in_words(error))
                await asyncio.sleep(fenced_s)  # metadata says so soon, or names this broker still
                fenced_s = min(2 * fenced_s, AGAIN_S)
                continue
            if failure is None or node_id in self._given_up:
                return  # also where closing the log failed, which took the place of being cancelled
            if failed is None or str(failure) != failed.reason:
                log.warning("failover: the write-ahead log of broker %d: %s", node_id, failure)
            again_max_s = DAMAGED_AGAIN_MAX_S if isinstance(failure, LogDamaged) else AGAIN_MAX_S
            again_s = AGAIN_S if failed is None else min(2 * failed.again_s, again_max_s)
            self._failed[node_id] = Failed(str(failure), again_s, needs_word=failure.needs_word)
            if self._is_asked(node_id):
                await self._end(node_id, str(failure))
                return  # whoever is asked next, metadata says

    async def _wait(self, node_id: int, seconds: float) -> None:
        """Cancelled where metadata names this broker meanwhile: then no other is asked."""
        self._waiting.add(node_id)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting.discard(node_id)

    def _is_asked(self, node_id: int) -> bool:
        failover = None if self._image is None else self._image.failovers.get(node_id)
        return failover is not None and failover.by_node == self._broker_id

    async def _try(self, node_id: int) -> LogUnreachable | None:
        """Why the log cannot be recovered from here; None when it was. Raises Fenced where it is somebody
        else's now."""
        recovery = self._recovery(node_id)
        watch = recovery.hung_reason, recovery.device
        try:
            found = await self._attempts.make(node_id, recovery.find(), *watch)
            log.warning("failover: recovers the write-ahead log of broker %d: %s", node_id, found.wal.address)
            began_s = asyncio.get_running_loop().time()
            await self._attempts.make(node_id, recovery.run(found), *watch)
        except Fenced:
            raise
        except LogUnreachable as error:
            return error
        except Unavailable as error:
            return LogUnreachable(in_words(error))
        except Exception as error:
            log.warning("failover: of broker %d failed", node_id, exc_info=error)
            return LogUnreachable(in_words(error))
        took_s = asyncio.get_running_loop().time() - began_s
        log.warning("failover: the write-ahead log of broker %d is recovered, in %.2f s", node_id, took_s)
        await self._end(node_id, "")
        return None

    async def _end(self, node_id: int, failure: str) -> None:
        try:
            await self._client.end_failover(node_id, failure)
        except KafkaError as error:
            if error.code != ErrorCode.INVALID_RECORD_STATE:
                raise
            log.info("failover: of broker %d is somebody else's now: %s", node_id, error.message)
