"""What brokers report, and which partitions go where for it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from millrace.broker.cluster.balancing import balancing_transfers
from millrace.broker.cluster.config import Limits
from millrace.broker.cluster.loads import Load, LoadTable, Rates, report_of
from millrace.kraft.commands.spreading import FRESH_S, PARTITIONS_MAX, REST, Key
from millrace.protocol.messages.report_load import LoadedPartition, LoadedTopic, ReportLoadRequest

MIB = 1 << 20
LIMITS = Limits((MIB, MIB), (0.2, 0.2), 50)
A, B = b"a" * 16, b"b" * 16


def loads_of(**brokers: list[tuple[float, float]]) -> dict[int, Load]:
    """`_1=[(in, out), ...]` in MiB a second: partitions are numbered across all."""
    found: dict[int, Load] = {}
    index = 0
    for name, rates in brokers.items():
        load: dict[Key, Rates] = {}
        for in_rate, out_rate in rates:
            load[A, index] = Rates(in_rate * MIB, out_rate * MIB)
            index += 1
        found[int(name[1:])] = load
    return found


def after(loads: dict[int, Load], limits: Limits = LIMITS) -> dict[int, tuple[float, float]]:
    """What each moves then, in MiB a second."""
    held = {who: dict(load) for who, load in loads.items()}
    for one in balancing_transfers(loads, limits):
        held[one.taker][one.key] = held[one.giver].pop(one.key)
    return {
        who: (sum(r.in_rate for r in load.values()) / MIB, sum(r.out_rate for r in load.values()) / MIB)
        for who, load in held.items()
    }


def test_an_empty_broker_gets_its_share() -> None:
    loads = loads_of(_1=[(2, 0)] * 6, _2=[(2, 0)] * 6, _3=[])
    assert {who: total for who, (total, _) in after(loads).items()} == {1: 8, 2: 8, 3: 8}


def test_what_is_below_the_threshold_stays() -> None:
    assert not balancing_transfers(loads_of(_1=[(0.3, 0.3)] * 3, _2=[], _3=[]), LIMITS)


def test_a_little_above_the_average_stays() -> None:
    assert not balancing_transfers(loads_of(_1=[(1.0, 1.0)] * 11, _2=[(1.0, 1.0)] * 10), LIMITS)


@pytest.mark.parametrize("way", [0, 1])
def test_how_far_above_the_average_is_set_for_each_way(way: int) -> None:
    loads = loads_of(_1=[(1.0, 1.0)] * 14, _2=[(1.0, 1.0)] * 10)
    assert not balancing_transfers(loads, LIMITS)
    deviations = (0.1, 0.2) if way == 0 else (0.2, 0.1)
    assert balancing_transfers(loads, replace(LIMITS, deviations=deviations))


def test_one_partition_that_is_all_of_it_stays() -> None:
    """It would be the same elsewhere."""
    assert not balancing_transfers(loads_of(_1=[(40, 40)], _2=[]), LIMITS)


def test_readers_are_spread_too() -> None:
    found = after(loads_of(_1=[(0, 8), (0, 8), (0, 8)], _2=[(2, 0)], _3=[(2, 0)]))
    assert sorted(out for _, out in found.values()) == [8, 8, 8]


def test_no_more_than_so_many_at_a_time() -> None:
    loads = loads_of(_1=[(1, 0)] * 40, _2=[])
    assert len(balancing_transfers(loads, replace(LIMITS, moves_max=3))) == 3


def test_what_is_excluded_stays() -> None:
    loads = loads_of(_1=[(4, 0)] * 4, _2=[])
    fixed = {(A, 0), (A, 1), (A, 2)}
    assert [one.key for one in balancing_transfers(loads, LIMITS, fixed)] == [(A, 3)]


@pytest.mark.parametrize("seed", range(60))
def test_nobody_is_made_busier_than_somebody_was(seed: int) -> None:
    """And what is balanced once is left alone: partitions do not go back and forth."""
    rand = Random(seed)
    drawn = {
        f"_{who}": [(rand.expovariate(1), rand.expovariate(1)) for _ in range(rand.randint(0, 20))]
        for who in range(1, rand.randint(3, 7))
    }
    loads = loads_of(**drawn)
    before = after(loads, replace(LIMITS, moves_max=0))
    found = after(loads)
    for way in (0, 1):
        bound = max(1.0, (1 + 0.2) * sum(one[way] for one in before.values()) / len(before))
        highest = max(bound, *(one[way] for one in before.values()))
        assert max(one[way] for one in found.values()) <= highest + 1e-6
    held = {who: dict(load) for who, load in loads.items()}
    for _ in range(20):
        transfers = balancing_transfers(held, LIMITS)
        for one in transfers:
            held[one.taker][one.key] = held[one.giver].pop(one.key)
        if not transfers:
            break
    else:
        pytest.fail("it moves for ever")


def test_a_report_tells_of_what_moved() -> None:
    """A partition that was opened between the looks, or again, is left out, as is what moves next to
    nothing."""
    before = {(A, 0): (0, 0), (A, 1): (100, 100), (B, 0): (5_000, 0), (B, 2): (0, 0)}
    now = {
        (A, 0): (20_480, 40_960),
        (A, 1): (200, 100),
        (B, 0): (0, 0),
        (B, 1): (9_999_999, 0),
        (B, 2): (0, 20_480),
    }
    report = report_of(7, 70, before, now, 10.0)
    assert report == ReportLoadRequest(
        7,
        70,
        [LoadedTopic(A, [LoadedPartition(0, 2_048, 4_096)]), LoadedTopic(B, [LoadedPartition(2, 0, 2_048)])],
    )


def test_many_partitions_are_told_together() -> None:
    """The busiest one by one; the rest counts for the broker, and cannot be moved."""
    before = {(A, index): (0, 0) for index in range(PARTITIONS_MAX + 500)}
    now = {key: (20_480 + key[1], 10_240) for key in before}
    table = LoadTable(lambda: 0.0)
    table.take(report_of(1, 1, before, now, 1.0))
    (load,) = table.fresh().values()
    assert len(load) == PARTITIONS_MAX + 1
    assert load[REST] == (sum(20_480 + index for index in range(500)), 500 * 10_240)
    heavy = {1: {REST: Rates(40 * MIB, 0)}, 2: {}}
    assert not balancing_transfers(heavy, LIMITS)


def test_an_old_report_counts_no_more() -> None:
    now_s = 0.0
    table = LoadTable(lambda: now_s)
    table.take(ReportLoadRequest(1, 1, [LoadedTopic(A, [LoadedPartition(3, 5, 6)])]))
    assert table.fresh() == {1: {(A, 3): (5, 6)}}
    now_s = FRESH_S + 1
    assert table.fresh() == {}
    table.take(ReportLoadRequest(1, 1))
    assert table.fresh() == {1: {}}, "who moves nothing is there"
    table.forget()
    assert table.fresh() == {}
