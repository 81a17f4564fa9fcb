"""Deadlines of a group's members: against the plain minimum, and what one look may cost."""

from __future__ import annotations

import random

from millrace.broker.coordinators.groups.deadlines import DUE_PER_TICK, MOVED_PER_EVENT, Deadlines
from millrace.broker.coordinators.groups.members import Member
from millrace.broker.coordinators.runtime.state_machine import NEVER_MS


def member_of(number: int, deadline_ms: int) -> Member:
    return Member(f"m{number}", None, "c", "h", 60_000, 10_000, [], deadline_ms=deadline_ms)


class Group:
    """Members with deadlines, as a group keeps them."""

    def __init__(self, deadlines_ms: list[int]) -> None:
        self.members = {f"m{n}": member_of(n, due_ms) for n, due_ms in enumerate(deadlines_ms)}
        self.pending: dict[str, int] = {}
        self.deadlines = Deadlines(self.members, self.pending)
        for name, member in self.members.items():
            self.deadlines.set(name, member.deadline_ms)

    def move(self, name: str, deadline_ms: int) -> None:
        self.members[name].deadline_ms = deadline_ms
        self.deadlines.set(name, deadline_ms)

    def looked_for_ms(self) -> int:
        running = [each.deadline_ms for each in self.members.values() if each.has_session_timer]
        return min([NEVER_MS, *self.pending.values(), *running])


def test_the_next_deadline_is_that_of_a_plain_look_at_all() -> None:
    """Members that are heard from, pause, go on and leave, ids that are given out: the next deadline is the
    least of those that run, and what is due is what has come."""
    chance = random.Random(11)
    group, now = Group([1000] * 20), 0
    for step in range(20_000):
        name = f"m{chance.randrange(30)}"
        member = group.members.get(name)
        kind = chance.randrange(8)
        if member is None:
            group.members[name] = member_of(int(name[1:]), now + 500)
            group.deadlines.set(name, now + 500)
        elif kind == 0:
            del group.members[name]
            group.deadlines.forget(name)
        elif kind == 1:
            member.in_flight_writes += 1
        elif kind == 2 and member.in_flight_writes:
            member.in_flight_writes -= 1
            group.move(name, now + chance.randrange(1, 1000))
        elif kind == 3:
            group.pending[f"p{step}"] = now + 100
            group.deadlines.set(f"p{step}", now + 100)
        else:
            group.move(name, now + chance.randrange(1, 1000))
        assert group.deadlines.next_ms() == group.looked_for_ms()
        now += chance.randrange(20)
        due = group.deadlines.take_due(now)
        ids = [p for p, due_ms in group.pending.items() if due_ms <= now]
        late = [n for n, each in group.members.items() if each.has_session_timer and each.deadline_ms <= now]
        assert sorted(due) == sorted(ids + late)
        for name in due:
            group.pending.pop(name, None)
            group.members.pop(name, None)
        assert len(group.deadlines) <= len(group.members) + len(group.pending)


def test_an_event_moves_so_many_timers_and_is_told_a_time_that_is_early() -> None:
    """All of very many were heard from, one that was not is behind them: each look moves a part, tells a time
    before the next deadline, and comes to it in the end."""
    count = 10 * MOVED_PER_EVENT
    group = Group([1000] * count + [5000])
    for number in range(count):
        group.move(f"m{number}", 9000)
    for _ in range(10):
        assert group.deadlines.next_ms() == 1000 or group.looked_for_ms() == 5000
    assert group.deadlines.next_ms() == 5000
    assert group.deadlines.take_due(4999) == []
    assert group.deadlines.take_due(5000) == [f"m{count}"]


def test_a_tick_takes_so_many_and_tells_that_there_are_more() -> None:
    """More sessions end at one moment than one tick looks at: the rest is taken by the next ones."""
    group = Group([1000] * (2 * DUE_PER_TICK + 1))
    taken = [group.deadlines.take_due(1000) for _ in range(2)]
    assert [len(each) for each in taken] == [DUE_PER_TICK] * 2
    assert group.deadlines.has_due(1000)
    assert len(group.deadlines.take_due(1000)) == 1
    assert not group.deadlines.has_due(1000)
    assert group.deadlines.next_ms() == NEVER_MS
