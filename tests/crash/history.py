"""What a producer was told, and whether a later reading of the log agrees with it.

A value is unique to its record. Findings are named as in Jepsen's Kafka workload: lost-write,
inconsistent-offsets, duplicate, nonmonotonic-send; and two that it has no names for: never-sent, and gap,
since a log of plain records that was never trimmed holds each offset from 0 on.
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
                found.append(
                    f"lost-write: {value!r} was acknowledged at {place}, which holds {at_place.get(place)!r}"
                )
        return (
            found + self._foreign_findings(of_value) + gap_findings(at_place) + self._order_findings(of_value)
        )

    def _foreign_findings(self, of_value: dict[bytes, list[Place]]) -> list[str]:
        """What was not acknowledged may be there, too; but it was sent, and to that partition."""
        sent = {(partition, value) for partition, values in self.sent.items() for value in values}
        return [
            f"never-sent: {value!r} at {place}"
            for value, places in of_value.items()
            for place in places
            if (place[0], value) not in sent
        ]

    def _order_findings(self, of_value: dict[bytes, list[Place]]) -> list[str]:
        found = []
        for partition, values in self.sent.items():
            last = -1
            for value in values:
                offset = of_value.get(value, [(partition, -1)])[0][1]
                if offset < 0:
                    continue
                if offset < last:
                    found.append(
                        f"nonmonotonic-send: {value!r} at {offset} after {last} in partition {partition}"
                    )
                last = offset
        return found


def gap_findings(at_place: Iterable[Place]) -> list[str]:
    found, ends = [], {}
    for partition, offset in sorted(at_place):
        end = ends.get(partition, 0)
        if offset != end:
            found.append(f"gap: nothing at {end} to {offset - 1} of partition {partition}")
        ends[partition] = offset + 1
    return found
