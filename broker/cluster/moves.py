"""Decides which partitions go to which brokers. Pure.

    drain_moves     all that one leads go to the others, to whoever leads fewest
    spread_moves    each leads as many as every other, or one more; as few go as that takes. What a drained
                    broker leads still goes to the others, too

Not here: how a partition moves (mover.py), how busy one is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from heapq import heapify, heapreplace

from millrace.broker.cluster.view import Partition
from millrace.protocol.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    topic: str
    index: int
    to: int


def drain_moves(leaders: Mapping[Partition, int], takers: Sequence[int], node_id: int) -> list[Move]:
    """`takers`: brokers that may be given partitions. Raises ValueError where there is no other."""
    others = [one for one in takers if one != node_id]
    going = sorted(partition for partition, leader in leaders.items() if leader == node_id)
    if going and not others:
        raise ValueError(f"no other broker serves that could take what broker {node_id} leads")
    counts = Counter(leader for leader in leaders.values() if leader in others)
    heap = [(counts[one], one) for one in others]
    heapify(heap)
    moves = []
    for topic, index in going:
        count, least = heap[0]
        moves.append(Move(topic, index, least))
        heapreplace(heap, (count + 1, least))
    return moves


def spread_moves(
    leaders: Mapping[Partition, int], serving: Sequence[int], drained: Container[int] = ()
) -> list[Move]:
    """Partitions without a leader, or whose leader does not serve, stay: they are being recovered. Of who
    leads too many those go first of whose topic it leads most, so that topics are spread too."""
    led: dict[int, dict[str, list[int]]] = {node_id: {} for node_id in serving}
    for (topic, index), leader in sorted(leaders.items(), reverse=True):
        if leader in led:
            led[leader].setdefault(topic, []).append(index)
    counts = {node_id: sum(map(len, topics.values())) for node_id, topics in led.items()}
    moves: list[Move] = []
    if not counts:
        return moves
    sharing = [node_id for node_id in counts if node_id not in drained] or list(counts)
    least, rest = divmod(sum(counts.values()), len(sharing))
    fullest = sorted(counts, key=lambda node_id: (-counts[node_id], node_id))
    share = dict.fromkeys(fullest, 0)
    for place, node_id in enumerate(one for one in fullest if one in sharing):
        share[node_id] = least + (place < rest)
    takers = [node_id for node_id in fullest if counts[node_id] < share[node_id]]
    for giver in fullest:
        while counts[giver] > share[giver]:
            taker = takers[-1]
            topic = max(
                led[giver], key=lambda one: (len(led[giver][one]) - len(led[taker].get(one, ())), one)
            )
            index = led[giver][topic].pop()
            if not led[giver][topic]:
                del led[giver][topic]
            led[taker].setdefault(topic, []).append(index)
            moves.append(Move(topic, index, taker))
            counts[giver], counts[taker] = counts[giver] - 1, counts[taker] + 1
            if counts[taker] == share[taker]:
                takers.pop()
    return moves
