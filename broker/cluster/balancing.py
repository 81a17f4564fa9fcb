"""Decides which partitions go where so that no broker moves much more bytes than the others. Pure.

A broker is busy, for bytes in or bytes out, that moves more than the threshold, and further above the average
of the brokers that are known than the deviation allows. It gives the partition away after which the busier of
the two is least busy, to the least busy one where that helps, as long as the taker is not made busy in the
other direction; what gains less than `GAIN` stays. (AutoMQ's goals NetworkInUsageDistributionGoal and
NetworkOutUsageDistributionGoal, in one pass each.) Not here: when, and how a partition moves (balancer.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from typing import Final

from millrace.broker.cluster.config import Limits
from millrace.broker.cluster.loads import Load, Rates
from millrace.kraft.commands.spreading import REST, Key
from millrace.protocol.dataclass import dataclass

GAIN: Final = 0.05  # of the threshold, that a transfer has to take off the busier of the two at least
LOOKED_MAX: Final = 300  # partitions of a broker
TAKERS_MAX: Final = 3  # of a giver: the least busy
IN, OUT = 0, 1


@dataclass(frozen=True, slots=True)
class Transfer:
    key: Key
    giver: int
    taker: int


def balancing_transfers(
    loads: Mapping[int, Load], limits: Limits, fixed: Container[Key] = ()
) -> list[Transfer]:
    """`loads`: of brokers that may give and take, each of what it leads. `fixed`: partitions that stay."""
    if len(loads) < 2:
        return []
    held = {who: movable(load, fixed) for who, load in loads.items()}
    totals = {
        who: [sum(rates[way] for rates in load.values()) for way in (IN, OUT)] for who, load in loads.items()
    }
    bounds = [
        max(threshold, (1 + deviation) * sum(one[way] for one in totals.values()) / len(totals))
        for way, threshold, deviation in zip((IN, OUT), limits.thresholds, limits.deviations, strict=True)
    ]
    gains = [max(1.0, GAIN * threshold) for threshold in limits.thresholds]
    found: list[Transfer] = []
    for way in (IN, OUT):
        while len(found) < limits.moves_max:
            transfer = _next_transfer(held, totals, bounds, gains, way)
            if transfer is None:
                break
            rates = held[transfer.giver].pop(transfer.key)
            held[transfer.taker][transfer.key] = rates
            for each in (IN, OUT):
                totals[transfer.giver][each] -= rates[each]
                totals[transfer.taker][each] += rates[each]
            found.append(transfer)
    return _joined(found)


def movable(load: Load, fixed: Container[Key]) -> dict[Key, Rates]:
    """The busiest partitions, of which a few are enough to relieve a broker."""
    free = ((key, rates) for key, rates in load.items() if key != REST and key not in fixed)
    return dict(heapq.nlargest(LOOKED_MAX, free, key=lambda one: max(one[1])))


def _next_transfer(
    held: Mapping[int, Mapping[Key, Rates]],
    totals: Mapping[int, Sequence[float]],
    bounds: Sequence[float],
    gains: Sequence[float],
    way: int,
) -> Transfer | None:
    other = OUT if way == IN else IN
    busy = sorted(who for who in held if totals[who][way] > bounds[way])
    for giver in sorted(busy, key=lambda who: -totals[who][way]):
        for taker in sorted(held, key=lambda who: (totals[who][way], who))[:TAKERS_MAX]:
            fitting = [
                (max(totals[giver][way] - rates[way], totals[taker][way] + rates[way]), key)
                for key, rates in held[giver].items()
                if rates[way] > 0
                and (
                    not rates[other]
                    or totals[taker][other] + rates[other] <= max(bounds[other], totals[giver][other])
                )
            ]
            busier, key = min(fitting, default=(totals[giver][way], (b"", -1)))
            if totals[giver][way] - busier >= gains[way]:
                return Transfer(key, giver, taker)
    return None


def _joined(transfers: Sequence[Transfer]) -> list[Transfer]:
    """One move of each partition: one that went on from its taker goes there at once."""
    joined: dict[Key, Transfer] = {}
    for one in transfers:
        before = joined.get(one.key)
        joined[one.key] = one if before is None else Transfer(one.key, before.giver, one.taker)
    return [one for one in joined.values() if one.giver != one.taker]
