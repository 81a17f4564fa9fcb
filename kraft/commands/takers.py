"""Says which brokers are given partitions where nobody names one, and how many each of them leads. Pure.

A broker that was drained runs on and takes nothing by itself: not of new topics, not of brokers that are
gone, not from the balancer. It is drained as long as its setting `cordoned.log.dirs` is not empty (KIP-1066:
a directory that is cordoned gets no new partitions; a broker here has one directory, so that `*` and any name
mean all of it): as set dynamically, and else as its file has it, which it says with its heartbeats. Whoever
names it, in an assignment or a reassignment, is obeyed. Where everybody that may be given partitions is
drained they count as if none were: topics are made, and partitions are led.

Not here: who may be given partitions at all (`Broker.is_usable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker
from millrace.runtime.scheduling.yielding import Yielding

CORDONED: Final = "cordoned.log.dirs"
LOOKED_PER_CHUNK: Final = 3_000  # partitions; a millisecond


def is_drained(image: MetadataImage, broker_id: int) -> bool:
    """A value of the broker's own counts before the one of all brokers, and both before its file's."""
    values = image.configs.broker(broker_id), image.configs.broker(None)
    value = next((one[CORDONED] for one in values if CORDONED in one), None)
    if value is not None:
        return bool(value.strip())
    broker = image.brokers.get(broker_id)
    return broker is not None and bool(broker.cordoned_log_dirs)


def takers_of(image: MetadataImage) -> list[Broker]:
    """By id."""
    usable = [broker for broker in image.brokers if broker.is_usable]
    return [broker for broker in usable if not is_drained(image, broker.broker_id)] or usable


def count_led(
    image: MetadataImage, takers: Iterable[Broker], is_left: Callable[[int], bool] = lambda leader: False
) -> Yielding[tuple[dict[int, int], list[tuple[bytes, int]]]]:
    """How many partitions each taker leads; and the partitions, in order, whose leader is none of them and
    `is_left`, which is asked once a leader."""
    load = {broker.broker_id: 0 for broker in takers}
    known: dict[int, bool] = {}
    leaving: list[tuple[bytes, int]] = []
    looked_count = 0
    for topic in image.topics:
        for index, state in enumerate(topic.partitions):
            leader = state.leader
            if leader in load:
                load[leader] += 1
                continue
            if leader not in known:
                known[leader] = is_left(leader)
            if known[leader]:
                leaving.append((topic.topic_id, index))
        looked_count += len(topic.partitions)
        if looked_count >= LOOKED_PER_CHUNK:
            looked_count = 0
            yield
    return load, leaving
