"""What clients of a topic were told, what is there at the end, and whether that can be.

What must hold: what was acknowledged is in its partition once, each producer's in the order of sending; what
was not acknowledged is there once at most; offsets have no gaps; the group read all that was acknowledged; an
offset that it was shown has the same record at the end; what it was told is committed is no further back at
the end.

Values are numbers: those of one producer rise, and tell it by their remainder. Not here: who asks and reads
(traffic.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Told:
    """What clients were told. `errors`: of applications; a client's own retries are none."""

    acknowledged: list[dict[int, int]]  # by partition: value and offset
    errors: list[str] = field(default_factory=list)
    read: dict[int, int] = field(default_factory=dict)  # value: how often the group has read it
    shown: dict[tuple[int, int], int] = field(default_factory=dict)  # partition and offset: value
    shown_other: list[str] = field(default_factory=list)  # of offsets that were shown with two values
    committed: dict[int, int] = field(default_factory=dict)
    assigned: dict[str, list[int]] = field(default_factory=dict)  # by member: partitions, as of its last poll
    send_s: list[float] = field(default_factory=list)
    read_at_s: list[float] = field(default_factory=list)

    def show(self, partition: int, offset: int, value: int) -> None:
        """The group read it."""
        self.read[value] = self.read.get(value, 0) + 1
        before = self.shown.setdefault((partition, offset), value)
        if before != value:
            self.shown_other.append(f"partition {partition}, offset {offset}: {before}, then {value}")

    def has_read_all(self) -> bool:
        return all(value in self.read for one in self.acknowledged for value in one)


@dataclass
class Found:
    """What is there at the end, by partition."""

    records: list[list[tuple[int, int]]]  # offsets and values, as they were read from the beginning
    committed: list[int]


def judge(told: Told, found: Found, producers: int, sends_anew: int = -1) -> int:
    """How many records were acknowledged. `producers`: how many there are, of which the one with the number
    `sends_anew` does not wait for what it gave up: only what was acknowledged to it is in order. Raises
    AssertionError for what must not be."""
    assert not told.shown_other, f"an offset was given to other bytes: {told.shown_other[:5]}"
    count = 0
    for partition, acknowledged in enumerate(told.acknowledged):
        where, records = f"partition {partition}", found.records[partition]
        at = {value: offset for offset, value in records}
        assert len(at) == len(records), f"{where}: a record is there twice"
        offsets = [offset for offset, _ in records]
        assert offsets == list(range(len(records))), f"{where}: offsets have a gap"
        lost = [(value, offset) for value, offset in acknowledged.items() if at.get(value) != offset]
        assert not lost, f"{where}: acknowledged, and not there: {lost[:5]}"
        for number in range(producers):
            own = [value for _, value in records if value % producers == number]
            own = [value for value in own if number != sends_anew or value in acknowledged]
            assert own == sorted(own), f"{where}: producer {number} out of order"
        unread = [value for value in acknowledged if value not in told.read]
        assert not unread, f"{where}: acknowledged, and the group has not read it: {unread[:5]}"
        committed = found.committed[partition]
        assert committed >= told.committed.get(partition, 0), f"{where}: a commit is lost"
        assert committed <= len(records), f"{where}: committed beyond its end"
        count += len(acknowledged)
    values = {(at, offset): value for at, one in enumerate(found.records) for offset, value in one}
    gone = [place for place, value in told.shown.items() if values.get(place) != value]
    assert not gone, f"shown to the group, and not there: {gone[:5]}"
    assert count, "nothing was acknowledged"
    return count
