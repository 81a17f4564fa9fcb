"""Decides what becomes of the partitions of brokers that are gone, or want to end. Pure.

    a broker                       and its streams       its partitions
    is gone                        none is open          go to others
    is gone                        some are open         wait: another broker recovers its write-ahead log
                                                         first (a failover)
    is gone                        some are owed, or     go to others, beside the failover
                                   its log may hold
                                   what is not known
    shuts down                     any                   go to others, some at a time (kraft/hand_over.py): it
                                                         closes them, as it sees that
    is there, or starts                                  stay

A broker is gone that is fenced and has no session: one that starts is fenced and has. Partitions go to those
that are not drained (takers.py), by what they move, or else by number (spreading.py). From millrace.version 2
on there are failovers; before, partitions with open streams wait for their broker. Not here: when this is
looked at (broker_watch.py), the recovery itself (broker/quorum/log_recovery.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from millrace.kraft.commands.decision import Decision
from millrace.kraft.commands.failovers import is_at_work
from millrace.kraft.commands.spreading import NOT_KNOWN, KnownLoads, plan_spread
from millrace.kraft.commands.takers import count_led, takers_of
from millrace.kraft.hand_over import Key, Turn
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.tables.brokers import Broker
from millrace.kraft.tables.failovers import NOBODY, Failover
from millrace.protocol.dataclass import dataclass
from millrace.protocol.metadata_records import PartitionChangeRecord
from millrace.protocol.stream_records import EndFailoverRecord
from millrace.runtime.scheduling.yielding import Yielding, run_to_end

MOVES_PER_CHUNK: Final = 300
LOOKED_PER_CHUNK: Final = 1_000
# Of a broker that ends: how many of its partitions are between two leaders at a time. Few, for each waits for
# those that go with it; of very many a part, since each turn has its commits, and a look at all.
TURN_MIN: Final = 30
TURNS_MAX: Final = 40
NOTHING: Final[Mapping[int, int]] = {}


@dataclass(frozen=True, slots=True)
class Settled:
    """`moved_count`: partitions that go to others. `turns`: of these, by broker that ends."""

    moved_count: int
    turns: Mapping[int, Turn]


def decide_settle(
    image: MetadataImage,
    alive: Container[int],
    between: Mapping[int, int] = NOTHING,
    loads: KnownLoads = NOT_KNOWN,
) -> Decision:
    return run_to_end(decide_settle_yielding(image, alive, between, loads))


def decide_settle_yielding(
    image: MetadataImage,
    alive: Container[int],
    between: Mapping[int, int] = NOTHING,
    loads: KnownLoads = NOT_KNOWN,
) -> Yielding[Decision]:
    """`alive`: ids of brokers that have a session. `between`: by broker that ends, how many partitions that
    were moved from it are not closed yet. `loads`: as reported. The response is Settled."""
    usable = [broker for broker in image.brokers if broker.is_usable]
    gone = [broker for broker in image.brokers if broker.is_fenced and broker.broker_id not in alive]
    changed, ended = assigned_failovers(image, usable, gone)
    records: list[Any] = [failover.record() for failover in changed]
    records += [EndFailoverRecord(node_id) for node_id in ended]
    moves, turns = yield from moves_from_absent(image, alive, between, loads)
    return Decision(Settled(len(moves), turns), [*records, *moves])


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
    """Its write-ahead log may hold what was acknowledged. One that only may hold what is in no metadata is
    looked at, so that somebody is told of it; nothing waits for that, since it can be given to no stream."""
    broker_id = broker.broker_id
    may_hold = image.streams.are_in_log_of(broker_id) or image.wals.may_hold_unknown(broker_id)
    return image.features.has_failovers and may_hold


def moves_from_absent(
    image: MetadataImage, alive: Container[int], between: Mapping[int, int], loads: KnownLoads
) -> Yielding[tuple[list[PartitionChangeRecord], dict[int, Turn]]]:
    """Of all partitions whose leader is absent and has nothing to recover, those of brokers that end in their
    turns; none where nobody is there."""
    takers = takers_of(image)
    if not takers:
        return [], {}
    able = [broker.broker_id for broker in image.brokers if broker.is_usable]
    load, leaving = yield from count_led(
        image, takers, lambda leader: leader not in able and may_leave(image, leader, alive)
    )
    leaving, turns = yield from in_turns(image, leaving, between)
    moves = []
    by_id = {broker.broker_id: broker for broker in takers}
    spread = yield from plan_spread(leaving, load, loads)
    for (topic_id, index), broker_id in spread.items():
        moves.append(leader_change(topic_id, index, by_id[broker_id]))
        if len(moves) % MOVES_PER_CHUNK == 0:
            yield
    return moves, turns


def in_turns(
    image: MetadataImage, leaving: list[Key], between: Mapping[int, int]
) -> Yielding[tuple[list[Key], dict[int, Turn]]]:
    """Who goes now: all from brokers that are gone; from each that ends so many that with those before them
    no more than a turn are not closed."""
    ending: dict[int, list[Key]] = {
        broker.broker_id: [] for broker in image.brokers if broker.is_shutting_down and not broker.is_fenced
    }
    if not ending:
        return leaving, {}
    found: list[Key] = []
    for number, key in enumerate(leaving, 1):
        state = image.topics.partition(*key)
        assert state is not None, key
        ending.get(state.leader, found).append(key)
        if number % LOOKED_PER_CHUNK == 0:
            yield
    turns = {}
    for broker_id, keys in ending.items():
        room = max(0, max(TURN_MIN, len(keys) // TURNS_MAX) - between.get(broker_id, 0))
        turns[broker_id] = Turn(keys[:room], has_more=len(keys) > room)
        found += turns[broker_id].moved
    return found, turns


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
