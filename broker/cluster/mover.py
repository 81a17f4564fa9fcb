"""Moves partitions, a bounded number at a time: the next go once these are served where they went.

A move is a reassignment (AlterPartitionReassignments): its new leader opens the partition when the one before
has closed it. That it serves is asked of it (ListOffsets). Not here: which partitions go (moves.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from millrace.broker.cluster.client import ClusterClient
from millrace.broker.cluster.moves import Move
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
from millrace.runtime.errors import Unavailable

LATEST: Final = -1
LOOK_AGAIN_S: Final = 0.05
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
) -> None:
    """`on_served` is told how many of them are served, or deleted; `choose` is asked, before a group goes,
    which of it still go: the others are left where they are, and not counted. Raises NotServed when some of a
    group are not within `patience_s`; KafkaError for what is refused, with nothing of its group moved or
    some; Unavailable."""
    count = 0
    for start in range(0, len(moves), at_once):
        group = moves[start : start + at_once]
        if choose is not None and not (group := await choose(group)):
            continue
        await _until_served(client, await _reassign(client, group), patience_s)
        count += len(group)
        on_served(count)


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


async def _until_served(client: ClusterClient, group: Sequence[Move], patience_s: float) -> None:
    waiting = list(group)
    try:
        async with asyncio.timeout(patience_s):
            while waiting := await _not_served(client, waiting):  # noqa: ASYNC110 (of other processes)
                await asyncio.sleep(LOOK_AGAIN_S)
    except TimeoutError:
        late = NotServed("what moved is not served where it went")
        late.moves = tuple(waiting)
        raise late from None


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
