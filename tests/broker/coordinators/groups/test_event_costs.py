"""What an event of a group costs: the same in a small group and in a large one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from millrace.broker.coordinators.groups.deadlines import DUE_PER_TICK
from millrace.broker.coordinators.groups.members import GroupState
from tests.broker.coordinators.groups.events import EVENTS, REBALANCE_MS, SESSION_MS, Event, ManyMembers

FEW, MANY = 10, 1000
COUNTED = 8  # events, of FEW members
RATIO_MAX = 1.5


def steps_of(act: Callable[[], object]) -> int:
    """How many steps Python's own machine takes for it, with all that it calls: the same on every machine."""
    taken = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal taken
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return taken


def steps_of_events(event: Event, members_count: int) -> int:
    many = ManyMembers(members_count)
    event.prepare(many)
    taken = 0
    for number in range(COUNTED):
        many.now_ms += 1
        taken += steps_of(lambda number=number: event.act(many, number))  # type: ignore[misc]
    return taken


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_looks_at_few_members(name: str) -> None:
    """Whatever a member asks, and when one expires: a hundred times as many members make it no dearer."""
    few, many = (steps_of_events(EVENTS[name], count) for count in (FEW, MANY))
    assert many <= RATIO_MAX * few, f"{few} steps in a group of {FEW}, {many} in one of {MANY}"


@pytest.mark.parametrize("is_at_the_phase_end", [False, True])
def test_sessions_that_end_at_one_moment_end_in_chunks(is_at_the_phase_end: bool) -> None:
    """All but one of very many members fall silent: each timer ends so many sessions at most, the next one
    comes at once, and the generation behind them has who is left; also where the phase ends at that
    moment."""
    many = ManyMembers(2 * DUE_PER_TICK + 500)
    many.begin_rebalance()
    if is_at_the_phase_end:
        many.now_ms += REBALANCE_MS - SESSION_MS
        for member_id in many.ids[1:]:
            many.beat(member_id)
    group, left, times_ms = many.group, [], []
    while group.state is GroupState.PREPARING:
        many.expire()
        left.append(len(group.members))
        times_ms.append(many.now_ms)
    assert left[-3:] == [DUE_PER_TICK + 500, 500, 1]
    assert (len(dict.fromkeys(times_ms[-3:])), group.generation, list(group.members)) == (1, 2, [many.ids[0]])
