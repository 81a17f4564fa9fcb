"""Moves partitions, a bounded number at a time: the next go once these are served where they went.

A move is a reassignment (AlterPartitionReassignments): its new leader opens the partition when the one before
has closed it. That it serves is asked of it (ListOffsets). Not here: which partitions go (moves.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from millrace.broker.cluster.client import ClusterClient
from millrace.broker.cluster.moves import Move
from millrace.broker.cluster.view import Partition, epochs_of, leaders_of
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.runtime.errors import Unavailable

LATEST: Final = -1
LOOK_AGAIN_S: Final = 0.05
LOOK_FOR_LEADERS: Final = 20  # looks, after which it is asked who leads what is not served yet
Choice = Callable[[Sequence[Move]], Awaitable[Sequence[Move]]]


class NotServed(Unavailable):
    """Partitions that moved and are not served in time where they went; they may be later. `moves`: them."""

    moves: tuple[Move, ...] = ()


async def move_all(
    client: ClusterClient,
    moves: Sequence[Move],
    at_once: int,
    patience_s: float,
    on_served: Callable[[int], None],
    choose: Choice | None = None,
    epochs: Mapping[Partition, int] | None = None,
) -> list[Move]:
    """`on_served` is told how many of them are served, or deleted; `choose` is asked, before a group goes,
    which of it still go: the others are left where they are, and not counted. `epochs`: of leaders as the
    moves were decided on. By them it is seen that a partition went there, and on to another broker: of those,
    which are returned, nothing more is waited for. Raises NotServed when some of a group are not within
    `patience_s`; KafkaError for what is refused, with nothing of its group moved or some; Unavailable."""
    count, passed = 0, list[Move]()
    for start in range(0, len(moves), at_once):
        group = moves[start : start + at_once]
        if choose is not None and not (group := await choose(group)):
            continue
        going = await _reassign(client, group)
        passed += await _until_served(client, going, patience_s, epochs or {})
        count += len(group)
        on_served(count)
    return passed


async def _reassign(client: ClusterClient, group: Sequence[Move]) -> list[Move]:
    """Those that go: what was deleted since they were decided on keeps no other from moving."""
    topics: dict[str, list[ReassignablePartition]] = {}
    for move in group:
        topics.setdefault(move.topic, []).append(ReassignablePartition(move.index, [move.to]))
    asked = [ReassignableTopic(name, partitions) for name, partitions in topics.items()]
    response = await client.ask(AlterPartitionReassignmentsRequest(topics=asked))
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), response.error_message or "")
    gone: set[tuple[str, int]] = set()
    for topic in response.responses:
        for one in topic.partitions:
            if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                gone.add((topic.name, one.partition_index))
            elif one.error_code:
                why = f"{topic.name}-{one.partition_index}: {one.error_message or ''}"
                raise KafkaError(ErrorCode(one.error_code), why)
    return [move for move in group if (move.topic, move.index) not in gone]


async def _until_served(
    client: ClusterClient, group: Sequence[Move], patience_s: float, epochs: Mapping[Partition, int]
) -> list[Move]:
    """Those that went on to another broker."""
    waiting, passed, looks = list(group), list[Move](), 0
    try:
        async with asyncio.timeout(patience_s):
            while waiting := await _not_served(client, waiting):
                await asyncio.sleep(LOOK_AGAIN_S)
                looks += 1
                if looks % LOOK_FOR_LEADERS == 0:
                    passed += (gone := await _gone_on(client, waiting, epochs))
                    waiting = [move for move in waiting if move not in gone]
    except TimeoutError:
        late = NotServed("what moved is not served where it went")
        late.moves = tuple(waiting)
        raise late from None
    return passed


async def _gone_on(
    client: ClusterClient, waiting: Sequence[Move], epochs: Mapping[Partition, int]
) -> list[Move]:
    """Those that another broker leads in a later epoch than the move's: its broker is gone, or somebody gave
    them away."""
    topics = [MetadataRequestTopic(name=name) for name in dict.fromkeys(move.topic for move in waiting)]
    try:
        told = await client.ask(MetadataRequest(topics, allow_auto_topic_creation=False))
    except Unavailable:
        return []
    leaders, later = leaders_of(told), epochs_of(told)
    found = []
    for move in waiting:
        one = move.topic, move.index
        if leaders.get(one, -1) in (-1, move.to) or one not in epochs:
            continue
        if later[one] > epochs[one] + 1:
            found.append(move)
    return found


async def _not_served(client: ClusterClient, moves: Sequence[Move]) -> list[Move]:
    """Without those that were deleted meanwhile: where a broker knows no such partition, the controller is
    asked for its move once more, which changes nothing of one that has gone."""
    waiting: list[Move] = []
    unknown: list[Move] = []
    for node_id in dict.fromkeys(move.to for move in moves):
        mine = {(move.topic, move.index): move for move in moves if move.to == node_id}
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for topic, index in mine:
            topics.setdefault(topic, []).append(ListOffsetsPartition(index, timestamp=LATEST))
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, parts) for name, parts in topics.items()])
        try:
            response = await client.ask_node(node_id, request)
        except Unavailable:
            waiting += mine.values()
            continue
        codes = {
            (topic.name, one.partition_index): one.error_code
            for topic in response.topics
            for one in topic.partitions
        }
        for partition, move in mine.items():
            code = codes.get(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                unknown.append(move)
            elif code:
                waiting.append(move)
    return [*waiting, *(await _reassign(client, unknown) if unknown else [])]
