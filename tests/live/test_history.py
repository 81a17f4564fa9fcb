"""The judge of what clients were told: a sound history passes, and each that was broken on purpose fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.live.history import Found, Told, judge

PRODUCERS = 3  # of which the last one sends anew
COUNT = 12


def sound() -> tuple[Told, Found]:
    """Two partitions with four records of each producer, one of them not acknowledged; all was read, half
    committed."""
    records = [[(at, 2 * COUNT * partition + at) for at in range(COUNT)] for partition in range(2)]
    told = Told([{value: offset for offset, value in one if offset != 5} for one in records])
    for partition, one in enumerate(records):
        for offset, value in one:
            told.show(partition, offset, value)
    told.committed = {0: 6, 1: 6}
    return told, Found(records, [6, 6])


def lose_the_last(told: Told, found: Found) -> None:
    del found.records[1][-1]


def lose_one_within(told: Told, found: Found) -> None:
    del found.records[0][3]


def double(told: Told, found: Found) -> None:
    found.records[0].append((COUNT, found.records[0][2][1]))


def double_the_unacknowledged(told: Told, found: Found) -> None:
    found.records[0].append((COUNT, found.records[0][5][1]))


def double_the_offset(told: Told, found: Found) -> None:
    found.records[0].insert(4, (3, 999))


def swap(told: Told, found: Found) -> None:
    """Two of one producer, whose acknowledgements nobody saw."""
    (low, first), (high, second) = found.records[0][0], found.records[0][3]
    found.records[0][0], found.records[0][3] = (low, second), (high, first)
    for value in (first, second):
        del told.acknowledged[0][value]


def move_the_acknowledged(told: Told, found: Found) -> None:
    told.acknowledged[1][found.records[1][7][1]] = 8


def change_the_shown(told: Told, found: Found) -> None:
    """One that nobody acknowledged, as of a leader that was none any more."""
    found.records[0][5] = (5, found.records[0][5][1] + 1000 * PRODUCERS)
    found.records[0] = found.records[0][:6]
    told.acknowledged[0] = {value: offset for value, offset in told.acknowledged[0].items() if offset < 5}
    told.shown = {place: value for place, value in told.shown.items() if place[0] or place[1] <= 5}


def show_two(told: Told, found: Found) -> None:
    told.show(0, 4, 4000)


def read_less(told: Told, found: Found) -> None:
    del told.read[found.records[1][2][1]]


def forget_the_commit(told: Told, found: Found) -> None:
    found.committed[1] = 5


def commit_beyond(told: Told, found: Found) -> None:
    found.committed[0] = COUNT + 1


def hear_nothing(told: Told, found: Found) -> None:
    told.acknowledged = [{}, {}]


def test_a_sound_history_passes() -> None:
    told, found = sound()
    assert judge(told, found, PRODUCERS, sends_anew=2) == 2 * (COUNT - 1)


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lose_the_last, r"partition 1: acknowledged, and not there: \[\(35, 11\)\]"),
        (lose_one_within, "partition 0: offsets have a gap"),
        (double, "partition 0: a record is there twice"),
        (double_the_unacknowledged, "partition 0: a record is there twice"),
        (double_the_offset, "partition 0: offsets have a gap"),
        (swap, "partition 0: producer 0 out of order"),
        (move_the_acknowledged, r"partition 1: acknowledged, and not there: \[\(31, 8\)\]"),
        (change_the_shown, r"shown to the group, and not there: \[\(0, 5\)\]"),
        (show_two, "an offset was given to other bytes: .*offset 4: 4, then 4000"),
        (read_less, r"partition 1: acknowledged, and the group has not read it: \[26\]"),
        (forget_the_commit, "partition 1: a commit is lost"),
        (commit_beyond, "partition 0: committed beyond its end"),
        (hear_nothing, "nothing was acknowledged"),
    ],
)
def test_a_history_that_was_broken_fails(broken: Callable[[Told, Found], None], why: str) -> None:
    told, found = sound()
    broken(told, found)
    with pytest.raises(AssertionError, match=why):
        judge(told, found, PRODUCERS, sends_anew=2)


def test_who_sends_anew_may_be_overtaken_by_what_it_gave_up() -> None:
    """What it was told is in order all the same."""
    told, found = sound()
    late = found.records[0].pop(5)  # the one that was not acknowledged
    found.records[0] = [(at, value) for at, (_, value) in enumerate([*found.records[0], late])]
    told.acknowledged[0] = {value: offset for offset, value in found.records[0][:-1]}
    told.shown = {}
    judge(told, found, PRODUCERS, sends_anew=2)
    with pytest.raises(AssertionError, match="producer 2 out of order"):
        judge(told, found, PRODUCERS)
