"""What a producer was told, and whether a later reading of the log agrees with it.

A value is unique to its record. Findings are named as in Jepsen's Kafka workload: lost-write, inconsistent-offsets, duplicate, nonmonotonic-send.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

Place = tuple[int, int]  # partition, offset


@dataclass
class History:
    """`acknowledged`: value -> place. `sent` is in order of sending, per partition."""

    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    sent: dict[int, list[bytes]] = field(default_factory=dict)

    def on_sent(self, partition: int, value: bytes) -> None:
        self.sent.setdefault(partition, []).append(value)

    def on_acknowledged(self, value: bytes, place: Place) -> None:
        self.acknowledged[value] = place

    def findings(self, read: Iterable[tuple[int, int, bytes]]) -> list[str]:
        """`read`: (partition, offset, value) of everything in the log. Empty when all is well."""
        at_place: dict[Place, bytes] = {}
        of_value: dict[bytes, list[Place]] = {}
        found = []
        for partition, offset, value in read:
            place = partition, offset
            if at_place.setdefault(place, value) != value:
                found.append(f"inconsistent-offsets: {place} holds {at_place[place]!r} and {value!r}")
            of_value.setdefault(value, []).append(place)
        for value, places in of_value.items():
            if len(places) > 1:
                found.append(f"duplicate: {value!r} at {places}")
        for value, place in self.acknowledged.items():
            if at_place.get(place) != value:
                found.append(f"lost-write: {value!r} was acknowledged at {place}, which holds {at_place.get(place)!r}")
        return found + self._order_findings(of_value)

    def _order_findings(self, of_value: dict[bytes, list[Place]]) -> list[str]:
        found = []
        for partition, values in self.sent.items():
            last = -1
            for value in values:
                offset = of_value.get(value, [(partition, -1)])[0][1]
                if offset < 0:
                    continue
                if offset < last:
                    found.append(f"nonmonotonic-send: {value!r} at {offset} after {last} in partition {partition}")
                last = offset
        return found
