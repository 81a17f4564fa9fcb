"""Decides what becomes of the partitions of brokers that are gone, or want to end. Pure.

    a broker                       and its streams       its partitions
    is gone                        none is open          go to others
    is gone                        some are open         wait: another broker recovers its write-ahead log
                                                         first (a failover)
    shuts down                     any                   go to others: it closes them, as it sees that
    is there, or starts                                  stay

A broker is gone that is fenced and has no session: one that starts is fenced and has. Partitions go to who
leads fewest of those that are not drained (takers.py). From millrace.version 2 on there are failovers;
before, partitions with open streams wait for their broker. Not here: when this is looked at
(broker_watch.py), the recovery itself (broker/quorum/log_recovery.py).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from heapq import heapify, heapreplace
from typing import Any, Final

from millrace.kraft.commands.decision import Decision
from millrace.kraft.commands.failovers import is_at_work
from millrace.kraft.commands.takers import count_led, takers_of
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker
from millrace.kraft.tables.failovers import NOBODY, Failover
from millrace.protocol.metadata_records import PartitionChangeRecord
from millrace.protocol.stream_records import EndFailoverRecord
from millrace.runtime.scheduling.yielding import Yielding, run_to_end

MOVES_PER_CHUNK: Final = 300


def decide_settle(image: MetadataImage, alive: Container[int]) -> Decision:
    return run_to_end(decide_settle_yielding(image, alive))


def decide_settle_yielding(image: MetadataImage, alive: Container[int]) -> Yielding[Decision]:
    """`alive`: ids of brokers that have a session. The response is how many partitions go to others."""
    usable = [broker for broker in image.brokers if broker.is_usable]
    gone = [broker for broker in image.brokers if broker.is_fenced and broker.broker_id not in alive]
    changed, ended = assigned_failovers(image, usable, gone)
    records: list[Any] = [failover.record() for failover in changed]
    records += [EndFailoverRecord(node_id) for node_id in ended]
    moves = yield from moves_from_absent(image, alive)
    return Decision(len(moves), [*records, *moves])


def assigned_failovers(
    image: MetadataImage, usable: Sequence[Broker], gone: Sequence[Broker]
) -> tuple[list[Failover], list[int]]:
    """The failovers that begin or are given to another, and whose are over."""
    load = {broker.broker_id: 0 for broker in usable}
    for failover in image.failovers:
        if failover.by_node in load:
            load[failover.by_node] += 1
    changed: list[Failover] = []
    to_recover = {broker.broker_id: None for broker in gone if is_to_recover(image, broker)}
    for node_id in to_recover:
        before = image.failovers.get(node_id)
        if before is not None and is_at_work(image, before):
            continue
        unable = () if before is None else before.unable
        able = [broker.broker_id for broker in usable if broker.epoch not in unable]
        by_node = min(able, key=lambda broker_id: (load[broker_id], broker_id), default=NOBODY)
        after = Failover(node_id, by_node, unable, "" if before is None else before.reason)
        if after != before:
            changed.append(after)
        if by_node != NOBODY:
            load[by_node] += 1
    return changed, [failover.node_id for failover in image.failovers if failover.node_id not in to_recover]


def is_to_recover(image: MetadataImage, broker: Broker) -> bool:
    """Its write-ahead log may hold what was acknowledged."""
    return image.features.has_failovers and any(image.streams.open_on(broker.broker_id))


def moves_from_absent(image: MetadataImage, alive: Container[int]) -> Yielding[list[PartitionChangeRecord]]:
    """Of all partitions whose leader is absent and has nothing to recover; none where nobody is there."""
    takers = takers_of(image)
    if not takers:
        return []
    able = [broker.broker_id for broker in image.brokers if broker.is_usable]
    load, leaving = yield from count_led(
        image, takers, lambda leader: leader not in able and may_leave(image, leader, alive)
    )
    moves = []
    by_id = {broker.broker_id: broker for broker in takers}
    least = [(count, broker_id) for broker_id, count in load.items()]
    heapify(least)
    for topic_id, index in leaving:
        count, broker_id = least[0]
        heapreplace(least, (count + 1, broker_id))
        moves.append(leader_change(topic_id, index, by_id[broker_id]))
        if len(moves) % MOVES_PER_CHUNK == 0:
            yield
    return moves


def may_leave(image: MetadataImage, leader: int, alive: Container[int]) -> bool:
    """Whether partitions may go to others from this leader, which is not usable: it closes their streams
    itself, or it is gone and none is open."""
    broker = image.brokers.get(leader)
    if broker is not None and not broker.is_fenced:
        return True
    return leader not in alive and not any(image.streams.open_on(leader))


def leader_change(topic_id: bytes, index: int, broker: Broker) -> PartitionChangeRecord:
    """The partition is the broker's, in a new leader epoch."""
    return PartitionChangeRecord(
        index,
        topic_id,
        isr=[broker.broker_id],
        leader=broker.broker_id,
        replicas=[broker.broker_id],
        directories=[broker.directory],
    )
