"""A group of so many members, and its events one by one: what tests and benchmarks of their cost ask.

Nothing is awaited, time is a number, and what is decided is durable at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace.broker.coordinators.groups.config import CoordinatorSettings
from millrace.broker.coordinators.groups.group import Group
from millrace.broker.coordinators.groups.members import GroupState, JoinRequest, SyncRequest
from millrace.broker.coordinators.groups.offsets import CommittedOffset
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine, Position
from millrace.broker.coordinators.runtime.state_machine import Decision, Now, Reply
from tests.broker.coordinators.groups.dialogue import GROUP, metadata_of

PROTOCOLS = [metadata_of("range:t")]
SESSION_MS, REBALANCE_MS = 45_000, 300_000


class ManyMembers:
    """`ids` are the members', the leader's first."""

    def __init__(self, count: int) -> None:
        self.now_ms = 1_000_000
        self.serial = 0
        self.machine = GroupStateMachine(CoordinatorSettings(initial_rebalance_delay_ms=3000), self.new_id)
        self.ids: list[str] = []
        for number in range(count):
            self.join("", f"c{number}")
        while self.group.state is GroupState.PREPARING:
            self.expire()
        self.ids = list(self.group.members)
        self.settle()

    def new_id(self) -> str:
        self.serial += 1
        return f"{self.serial:08}"

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    @property
    def group(self) -> Group:
        return self.machine.groups[GROUP]

    # -- events

    def join(self, member_id: str, client_id: str = "c", protocols: Sequence[tuple[str, bytes]] = ()) -> None:
        request = JoinRequest(
            member_id, None, client_id, "/h", "consumer", list(protocols or PROTOCOLS), REBALANCE_MS,
            SESSION_MS, False,
        )  # fmt: skip
        self.carry_out(self.machine.on_join(GROUP, request, client_id, self.now))

    def sync(self, member_id: str) -> None:
        generation = self.group.generation
        given = dict.fromkeys(self.ids, b"x") if member_id == self.group.leader else {}
        request = SyncRequest(member_id, None, generation, None, None, given)
        self.carry_out(self.machine.on_sync(GROUP, request, member_id, self.now))

    def beat(self, member_id: str, generation: int | None = None) -> int:
        told = self.group.generation if generation is None else generation
        code, decision = self.machine.on_heartbeat(GROUP, member_id, None, told, self.now_ms)
        if decision is not None:
            self.carry_out(decision)
        return code

    def leave(self, member_id: str) -> None:
        self.carry_out(self.machine.on_leave(GROUP, [(member_id, None)], self.now)[1])

    def commit(self, member_id: str) -> int:
        machine, generation = self.machine, self.group.generation
        code = machine.refusal_of_commit(GROUP, member_id, None, generation, self.now)
        if not code:
            offset = CommittedOffset(1, -1, "", self.now_ms)
            self.carry_out(machine.commit(GROUP, [Position("t", 0, offset)], self.now, "h", member_id))
        return code

    def expire(self) -> None:
        """The next deadline comes."""
        self.now_ms = max(self.now_ms, self.group.next_deadline_ms())
        self.carry_out(self.machine.on_timer(GROUP, self.now))

    # -- phases

    def settle(self) -> None:
        """All sync: the group is stable."""
        for member_id in reversed(self.ids):  # the leader last, so that each of the others waits
            self.sync(member_id)
        assert self.group.state is GroupState.STABLE

    def begin_rebalance(self) -> None:
        """The leader joins again, and waits for the others."""
        self.join(self.ids[0])
        assert self.group.state is GroupState.PREPARING

    def spread(self) -> None:
        """Each member is heard from a millisecond after the one before it, and in that order they expire; the
        first one has, so that the group rebalances."""
        for member_id in self.ids:
            self.now_ms += 1
            self.beat(member_id)
        first_ms = min(member.deadline_ms for member in self.group.members.values())
        while self.group.next_deadline_ms() < first_ms:
            self.expire()
        self.expire()
        assert self.group.state is GroupState.PREPARING

    # -- what a driver does

    def carry_out(self, decision: Decision) -> None:
        for effect in decision.deferred:
            if not isinstance(effect, Reply):
                self.carry_out(self.machine.on_durable(effect, self.now))


def nothing(_: ManyMembers) -> None: ...


class Event(NamedTuple):
    """`act` is asked with numbers from 0 on, up to EVENTS_SHARE of the members."""

    prepare: Callable[[ManyMembers], None]
    act: Callable[[ManyMembers, int], object]


EVENTS_SHARE = 0.8  # so that no phase ends by them
EVENTS = {
    "heartbeat": Event(nothing, lambda many, n: many.beat(many.ids[n])),
    "heartbeat while it rebalances": Event(
        ManyMembers.begin_rebalance, lambda many, n: many.beat(many.ids[n])
    ),
    "heartbeat, refused": Event(nothing, lambda many, n: many.beat(many.ids[n], 0)),
    "commit": Event(nothing, lambda many, n: many.commit(many.ids[n])),
    "join": Event(ManyMembers.begin_rebalance, lambda many, n: many.join(many.ids[n + 1])),
    "join of one that stays": Event(nothing, lambda many, n: many.join(many.ids[n + 1])),
    "join of nobody, refused": Event(nothing, lambda many, n: many.join(f"nobody-{n}")),
    "join of another protocol, refused": Event(
        nothing, lambda many, n: many.join(many.ids[n], protocols=[("other", b"")])
    ),
    "sync": Event(nothing, lambda many, n: many.sync(many.ids[n + 1])),
    "sync, refused": Event(ManyMembers.begin_rebalance, lambda many, n: many.sync(many.ids[n])),
    "leave": Event(ManyMembers.begin_rebalance, lambda many, n: many.leave(many.ids[n])),
    "leave, refused": Event(nothing, lambda many, n: many.leave(f"nobody-{n}")),
    "expiry": Event(ManyMembers.spread, lambda many, n: many.expire()),
}
