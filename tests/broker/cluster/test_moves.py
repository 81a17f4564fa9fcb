"""Which partitions go where, when a broker is emptied and when all get their share."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from millrace.broker.cluster.moves import Move, drain_moves, spread_moves
from millrace.broker.cluster.view import Partition


def after(leaders: dict[Partition, int], moves: list[Move]) -> dict[Partition, int]:
    moved = {(move.topic, move.index): move.to for move in moves}
    assert len(moved) == len(moves), "one move a partition"
    return {**leaders, **moved}


@pytest.mark.parametrize("seed", range(40))
def test_a_spread_is_even_and_moves_no_more_than_it_must(seed: int) -> None:
    rand = Random(seed)
    serving = list(range(1, rand.randint(2, 7)))
    partitions = [(f"t{topic}", index) for topic in range(4) for index in range(rand.randint(1, 30))]
    leaders = {partition: rand.choice([-1, 99, *serving[:3]]) for partition in partitions}
    moves = spread_moves(leaders, serving)
    counts = Counter(dict.fromkeys(serving, 0))
    counts.update(leader for leader in after(leaders, moves).values() if leader in serving)
    assert max(counts.values()) - min(counts.values()) <= 1
    before = Counter(leader for leader in leaders.values() if leader in serving)
    highest = -(-sum(before.values()) // len(serving))
    lowest = sum(before.values()) // len(serving)
    least = max(
        sum(max(0, count - highest) for count in before.values()),
        sum(max(0, lowest - before[node_id]) for node_id in serving),
    )
    assert len(moves) == least
    assert spread_moves(after(leaders, moves), serving) == []
    for partition, leader in leaders.items():
        if leader not in serving:
            assert after(leaders, moves)[partition] == leader, "what waits for its recovery stays"


def test_a_spread_takes_of_the_topics_that_a_broker_leads_most_of() -> None:
    leaders = {("a", index): 1 for index in range(6)} | {("b", index): 1 for index in range(3)}
    moves = spread_moves(leaders, [1, 2, 3])
    led = Counter((move.topic, move.to) for move in moves)
    assert led == {("a", 2): 2, ("a", 3): 2, ("b", 2): 1, ("b", 3): 1}


def test_nobody_serves() -> None:
    assert spread_moves({("a", 0): -1}, []) == []


def test_a_drain_gives_to_whoever_leads_fewest() -> None:
    leaders = {("a", 0): 1, ("a", 1): 1, ("a", 2): 1, ("b", 0): 2, ("c", 0): -1}
    assert drain_moves(leaders, [1, 2, 3], 1) == [Move("a", 0, 3), Move("a", 1, 2), Move("a", 2, 3)]
    assert drain_moves(leaders, [1, 2, 3], 3) == []


def test_the_last_broker_is_not_drained() -> None:
    with pytest.raises(ValueError, match="no other broker"):
        drain_moves({("a", 0): 1}, [1], 1)


def test_a_spread_takes_all_from_a_drained_broker() -> None:
    """And gives it nothing; where all are drained they are as good as each other."""
    leaders: dict[Partition, int] = {("t", index): 1 + index % 2 for index in range(8)}
    moves = spread_moves(leaders, [1, 2, 3], [2])
    assert Counter(after(leaders, moves).values()) == {1: 4, 3: 4}
    assert not spread_moves(leaders, [1, 2], [1, 2])
