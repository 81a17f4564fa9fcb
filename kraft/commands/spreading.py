"""Says which of the brokers that are there takes which partitions of those that are gone, or end. Pure.

    of what moves bytes, the busiest first      to who would move the least bytes; ties by number
    of what is not known to move any            to who leads fewest; ties by bytes

Bytes are those in and out of record batches, a second, as brokers reported them last. Where one of the takers
has not reported, nothing is known of it, and all go by number. Cost: a step of a heap each, and a sort of
those that move bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID
from millrace.runtime.scheduling.yielding import Yielding

TAKEN_PER_CHUNK: Final = 1_000
FRESH_S: Final = 60.0  # a broker that is there and has reported nothing for so long is not known
PARTITIONS_MAX: Final = 1_000  # of a report: the busiest; the others are told together, as REST

Key = tuple[bytes, int]  # topic id, index

REST: Final[Key] = (NO_UUID, -1)  # what all other partitions of the broker move


@dataclass(frozen=True, slots=True)
class KnownLoads:
    """Bytes a second. `by_broker`: of those that report, what they lead now."""

    by_partition: Mapping[Key, int]
    by_broker: Mapping[int, int]


NOT_KNOWN: Final = KnownLoads({}, {})


def plan_spread(keys: Sequence[Key], led: Mapping[int, int], loads: KnownLoads) -> Yielding[dict[Key, int]]:
    """The broker of each, in the order of keys. `led`: how many partitions each taker leads; one at least."""
    is_known = all(broker_id in loads.by_broker for broker_id in led)
    bytes_of = loads.by_partition if is_known else {}
    moved = {broker_id: loads.by_broker[broker_id] if is_known else 0 for broker_id in led}
    counts = dict(led)
    found: dict[Key, int] = {}
    busy: list[Key] = []
    for number, key in enumerate(keys, 1):
        found[key] = -1
        if bytes_of.get(key, 0):
            busy.append(key)
        if number % TAKEN_PER_CHUNK == 0:
            yield
    busy.sort(key=lambda key: (-bytes_of[key], key))  # at once: reports name a thousand of a broker
    by_bytes = [(moved[broker_id], counts[broker_id], broker_id) for broker_id in counts]
    heapify(by_bytes)
    for number, key in enumerate(busy, 1):
        rate, count, broker_id = by_bytes[0]
        heapreplace(by_bytes, (rate + bytes_of[key], count + 1, broker_id))
        found[key] = broker_id
        if number % TAKEN_PER_CHUNK == 0:
            yield
    by_number = [(count, rate, broker_id) for rate, count, broker_id in by_bytes]
    heapify(by_number)
    for number, key in enumerate(keys, 1):
        if found[key] < 0:
            count, rate, broker_id = by_number[0]
            heapreplace(by_number, (count + 1, rate, broker_id))
            found[key] = broker_id
        if number % TAKEN_PER_CHUNK == 0:
            yield
    return found
