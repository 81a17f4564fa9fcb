"""Balancer: gives partitions of busy brokers to others, at the controller that leads
(autobalancer.controller.enable).

    every interval   what brokers reported is looked at, and a bounded number of partitions is given away
    then             all reports are forgotten: the next look is at what was moved since

Not here: what is decided (cluster/balancing.py), who reports (load_reports.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millrace.broker.cluster.balancing import Transfer, balancing_transfers
from millrace.broker.cluster.config import BalancerSettings
from millrace.broker.cluster.loads import Load, LoadTable
from millrace.kraft.channel import ControllerChannel
from millrace.kraft.commands.spreading import REST
from millrace.kraft.commands.takers import is_drained
from millrace.kraft.image.image import MetadataImage
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.runtime.errors import MillraceError, in_words

log = logging.getLogger(__name__)


class Balancer:
    def __init__(
        self,
        channel: ControllerChannel,
        image: Callable[[], MetadataImage],
        loads: LoadTable,
        settings: BalancerSettings,
        on_moved: Callable[[int], None],
    ) -> None:
        """`on_moved` is told how many partitions were given away."""
        self._channel = channel
        self._image = image
        self._loads = loads
        self._settings = settings
        self._on_moved = on_moved

    async def run(self) -> None:
        """Until cancelled; at once where it is turned off."""
        while self._settings.is_enabled:
            await asyncio.sleep(self._settings.interval_s)
            await self.balance()

    async def balance(self) -> list[Transfer]:
        """One look; what it gave away."""
        image, settings = self._image(), self._settings
        loads = known_loads(image, self._loads.fresh(), settings.excluded_brokers)
        topics = [image.topics.by_name(name) for name in settings.excluded_topics]
        ids = {topic.topic_id for topic in topics if topic is not None}
        fixed = {key for load in loads.values() for key in load if key[0] in ids}
        transfers = balancing_transfers(loads, settings.limits, fixed)
        if transfers:
            await self._carry_out(image, transfers)
        return transfers

    async def _carry_out(self, image: MetadataImage, transfers: list[Transfer]) -> None:
        topics: dict[bytes, list[ReassignablePartition]] = {}
        for one in transfers:
            topics.setdefault(one.key[0], []).append(ReassignablePartition(one.key[1], [one.taker]))
        named = {topic_id: image.topics.by_id(topic_id) for topic_id in topics}
        asked = [
            ReassignableTopic(topic.name, topics[topic_id])
            for topic_id, topic in named.items()
            if topic is not None
        ]
        for one in transfers:
            topic = named[one.key[0]]
            if topic is not None:
                log.info(
                    "balancer: %s-%d goes from broker %d to broker %d",
                    topic.name,
                    one.key[1],
                    one.giver,
                    one.taker,
                )
        try:
            response = await self._channel.send(AlterPartitionReassignmentsRequest(topics=asked))
        except MillraceError as error:
            log.info("balancer: nothing was moved, or is not known to be: %s", in_words(error))
            return
        refused = [one for topic in response.responses for one in topic.partitions if one.error_code]
        for one in refused:
            log.info("balancer: a move was refused: %s", one.error_message)
        self._on_moved(len(transfers) - len(refused))
        self._loads.forget()


def known_loads(image: MetadataImage, reported: dict[int, Load], excluded: frozenset[int]) -> dict[int, Load]:
    """Of brokers that may be given partitions, and are not drained: what they report of what they lead,
    now."""
    found: dict[int, Load] = {}
    for who, load in reported.items():
        broker = image.brokers.get(who)
        if broker is None or not broker.is_usable or who in excluded or is_drained(image, who):
            continue
        found[who] = {
            key: rates for key, rates in load.items() if key == REST or leader_of(image, *key) == who
        }
    return found


def leader_of(image: MetadataImage, topic_id: bytes, index: int) -> int:
    """-1: nobody, or there is no such partition."""
    topic = image.topics.by_id(topic_id)
    if topic is None or not 0 <= index < len(topic.partitions):
        return -1
    return topic.partitions[index].leader
