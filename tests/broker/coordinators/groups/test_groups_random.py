"""Groups under random events: whatever happens, in whatever order, some things never do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from millrace.broker.coordinators.groups.config import CoordinatorSettings
from millrace.broker.coordinators.groups.group import Group
from millrace.broker.coordinators.groups.members import (
    GroupState,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine, GroupStored
from millrace.broker.coordinators.runtime.state_machine import NEVER_MS, Decision, Now, Reply
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.records import Record
from tests.broker.coordinators.groups.dialogue import GROUP, metadata_of, reloaded

SESSIONS_MS = (6_000, 10_000, 45_000)
REBALANCES_MS = (-1, 0, 5_000, 20_000, 60_000)
TICKS_MAX = 10  # at one moment: what is due is done, and not due again
PROTOCOLS = (
    [metadata_of("range:t")],
    [metadata_of("range:t"), metadata_of("sticky:t")],
    [metadata_of("sticky:t+u"), metadata_of("range:t+u")],
)


class Client:
    """What one client knows: its ids, and what it was told last."""

    def __init__(self, name: str, instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.leads: list[str] = []  # the members it is to assign to
        self.assignment = b""


class Storm:
    """Clients, some of them static, that join, sync, leave, stay silent and come back; a log that is durable
    when it likes, and crashes. `answered` has the tokens that were given an answer; a token is (client's
    number, serial number)."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.settings = CoordinatorSettings(
            initial_rebalance_delay_ms=self.chance.choice([0, 3000]), members_max=self.chance.choice([2, 100])
        )
        self.now_ms = 1
        self.serial = 0
        self.log: list[Record] = []
        self.durable_count = 0
        self.waiting: list[tuple[int, Any]] = []
        self.open_tokens: dict[tuple[int, int], str] = {}  # to the member id that was asked with
        # generation -> assignment -> who was told that it holds it
        self.owners: dict[int, dict[bytes, str]] = {}
        self.shard = GroupStateMachine(self.settings, self.new_id)
        self.clients = [Client(f"c{number}", f"s{number}" if number < 2 else None) for number in range(5)]

    def new_id(self) -> str:
        self.serial += 1
        return str(self.serial)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    @property
    def group(self) -> Group | None:
        return self.shard.groups.get(GROUP)

    def step(self) -> None:
        number = self.chance.randrange(len(self.clients))
        before = -1 if self.group is None else self.group.generation
        action = self.chance.choices(
            [
                self.join,
                self.sync,
                self.leave,
                self.beat,
                self.commit,
                self.pass_time,
                self.confirm,
                self.crash,
            ],
            [10, 10, 1, 4, 4, 4, 10, 0.2],
        )[0]
        if action == self.crash:
            self.crash()
        else:
            action(number)
            after = -1 if self.group is None else self.group.generation
            assert after >= before, "the generation fell"
        self.check()

    def token(self, number: int) -> tuple[int, int]:
        self.serial += 1
        self.open_tokens[number, self.serial] = self.clients[number].member_id
        return number, self.serial

    def join(self, number: int) -> None:
        client = self.clients[number]
        request = JoinRequest(
            client.member_id if self.chance.random() < 0.9 else "",
            client.instance_id,
            client.name,
            "/h",
            "consumer",
            self.chance.choice(PROTOCOLS),
            self.chance.choice(REBALANCES_MS),
            self.chance.choice(SESSIONS_MS),
            self.chance.random() < 0.8,
            self.chance.random() < 0.8,
        )
        self.carry_out(self.shard.on_join(GROUP, request, self.token(number), self.now))

    def sync(self, number: int) -> None:
        """As the client was told, with assignments that name generation and member; sometimes of a generation
        that is over."""
        client = self.clients[number]
        generation = client.generation - (self.chance.random() < 0.1)
        given = {name: f"{generation}:{name}".encode() for name in client.leads}
        request = SyncRequest(client.member_id, client.instance_id, generation, None, None, given)
        self.carry_out(self.shard.on_sync(GROUP, request, self.token(number), self.now))

    def leave(self, number: int) -> None:
        client = self.clients[number]
        by_instance = client.instance_id is not None and self.chance.random() < 0.5
        leaving = [("" if by_instance else client.member_id, client.instance_id)]
        self.carry_out(self.shard.on_leave(GROUP, leaving, self.now)[1])

    def beat(self, number: int) -> None:
        client = self.clients[number]
        if self.group is not None:
            self.group.on_heartbeat(client.member_id, client.instance_id, client.generation, self.now_ms)

    def commit(self, number: int) -> None:
        """Of positions that are not written here: what is decided by then is durable before it is
        answered."""
        client, group = self.clients[number], self.group
        if group is not None and not group.on_commit(
            client.member_id, client.instance_id, client.generation, self.now_ms
        ):
            member = group.pause_session_timer(client.member_id)
            if member is not None:
                self.waiting.append((len(self.log), (group, member)))

    def pass_time(self, number: int) -> None:
        self.run_until(self.now_ms + self.chance.choice([100, 3_000, 12_000]))

    def run_until(self, end_ms: int) -> None:
        ticks = 0
        while self.group is not None and self.group.next_deadline_ms() <= end_ms:
            due_ms = self.group.next_deadline_ms()
            ticks = 0 if due_ms > self.now_ms else ticks + 1
            assert ticks < TICKS_MAX, "a timer spins"
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.shard.on_timer(GROUP, self.now))
        self.now_ms = end_ms

    def confirm(self, number: int) -> None:
        """More of the log is durable: what waited for it is carried out, in order."""
        self.durable_count = self.chance.randint(self.durable_count, len(self.log))
        while self.waiting and self.waiting[0][0] <= self.durable_count:
            _, outcome = self.waiting.pop(0)
            if isinstance(outcome, GroupStored):
                self.carry_out(self.shard.on_durable(outcome, self.now))
            elif isinstance(outcome, Reply):
                self.give(outcome)
            else:
                group, member = outcome
                group.resume_session_timer(member, self.now_ms)

    def crash(self) -> None:
        """What is durable remains, and perhaps more."""
        self.log = self.log[: self.chance.randint(self.durable_count, len(self.log))]
        self.durable_count = len(self.log)
        self.waiting.clear()
        self.open_tokens.clear()
        self.owners.clear()  # a generation that was never stored comes again
        self.shard = reloaded(self.log, self.settings, self.new_id, self.now)

    def carry_out(self, decision: Decision) -> None:
        for reply in decision.replies:
            self.give(reply)
        self.log += decision.records
        self.waiting += [(len(self.log), outcome) for outcome in decision.deferred]

    def give(self, reply: Reply) -> None:
        assert reply.token in self.open_tokens, "answered twice, or by nobody's asking"
        asked_id = self.open_tokens.pop(reply.token)
        client, answer = self.clients[reply.token[0]], reply.answer
        if isinstance(answer, JoinAnswer):
            self.take_join(client, answer)
        elif not answer.error:
            self.take_assignment(client, asked_id, answer)

    def take_join(self, client: Client, answer: JoinAnswer) -> None:
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""
        elif not answer.error:
            client.member_id, client.generation = answer.member_id, answer.generation
            client.leads = [] if answer.skip_assignment else [member_id for member_id, _, _ in answer.members]
            assert answer.protocol is not None
            assert client.leads == [] or answer.leader == answer.member_id

    def take_assignment(self, client: Client, asked_id: str, answer: SyncAnswer) -> None:
        """One owner a generation: whatever the leader gave to a member is held by that member or its static
        successor alone."""
        if answer.assignment:
            generation, member_id = answer.assignment.decode().split(":")
            owner = client.instance_id or asked_id
            assert self.group is not None
            assert int(generation) == self.group.generation
            assert self.owners.setdefault(int(generation), {}).setdefault(answer.assignment, owner) == owner
            assert client.instance_id is not None or member_id == asked_id

    def check(self) -> None:
        group = self.group
        if group is None:
            return
        assert len(group.members) <= max(self.settings.members_max, 5)
        waiting = [member for member in group.members.values() if member.is_waiting]
        assert group.state is not GroupState.EMPTY or not group.members
        for member in waiting:
            assert member.join_token is None or group.state is GroupState.PREPARING
            assert member.sync_token is None or group.state is GroupState.COMPLETING
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            assert group.leader in group.members
            assert group.protocol is not None
        assert group.membership.joined_count == len(group.membership.joined())
        assert group.next_deadline_ms() == looked_for(group)


def looked_for(group: Group) -> int:
    """The next deadline, found by looking at everybody."""
    sessions = [each.deadline_ms for each in group.members.values() if each.has_session_timer]
    return min([group._phase_deadline_ms, *group._pending.values(), *sessions])


@pytest.mark.parametrize("seed", range(60))
def test_a_storm_breaks_nothing(seed: int) -> None:
    """Random joins, syncs, departures, silences, late writes and crashes: nothing is answered twice, no
    generation falls, nobody holds what another holds in the same generation, and when all falls silent and
    all timers have fired nobody waits."""
    storm = Storm(seed)
    for _ in range(250):
        storm.step()
    while storm.waiting:
        storm.confirm(0)
    storm.run_until(storm.now_ms + 1_000_000)
    while storm.waiting:
        storm.confirm(0)
    assert not storm.open_tokens
    group = storm.group
    if group is not None:
        assert group.state is GroupState.EMPTY
        assert group.next_deadline_ms() == NEVER_MS
