"""A shard in conversation: what transcripts say to it and how they print what comes back. Nothing is awaited;
time is a number.

group delay=3s size=9            a new shard; the group of all commands is `g`
join NAME [id=ID] [static=X] [v=5] [type=consumer] [protocols=range:a+b,other] [session=10s] [rebalance=60s]
                                 NAME is the client id; ids given out are NAME-1, NAME-2, ...; metadata lists
                                 topics
sync ID gen=N [static=X] [protocol=P] [A=x B=y]       bytes for members, as the leader says them
heartbeat ID gen=N [static=X]
commit [ID] [gen=N] [static=X]   answered with a code; nothing is committed
leave ID... | static=X           at once
durable                          the log has everything decided so far
hold / flow                      from here on records become durable when `durable` says so / at once
wait 5s                          time passes; deadlines come in their order
group_size N                     the limit after the next restart
restart                          the shard is dropped and read again from its log
state
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from millrace.broker.coordinators.groups.config import CoordinatorSettings
from millrace.broker.coordinators.groups.group import Group
from millrace.broker.coordinators.groups.members import JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine, GroupStored
from millrace.broker.coordinators.runtime.state_machine import NEVER_MS, Decision, Now, Reply
from millrace.protocol.coordinator_records import (
    ConsumerProtocolSubscription,
    GroupMetadataValue,
    decode_key,
    decode_value,
    encode_subscription,
)
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.records import Record

START_MS = 1_000_000
WALL_MS = 1_700_000_000_000
GROUP = "g"


def metadata_of(text: str) -> tuple[str, bytes]:
    """`range:a+b` is the protocol range with a consumer's subscription to a and b; `range` alone is
    opaque."""
    name, _, topics = text.partition(":")
    return name, encode_subscription(ConsumerProtocolSubscription(topics.split("+"))) if topics else b"?"


class Dialogue:
    def __init__(self) -> None:
        self.settings = CoordinatorSettings(initial_rebalance_delay_ms=3000)
        self.now_ms = START_MS
        self.log: list[Record] = []
        # (length of the log that is waited for, what waits)
        self.waiting: list[tuple[int, Reply | GroupStored]] = []
        self.is_held = False
        self.ids_count = 0
        self.shard = GroupStateMachine(self.settings, self.new_id)

    def new_id(self) -> str:
        self.ids_count += 1
        return str(self.ids_count)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    @property
    def group(self) -> Group | None:
        return self.shard.groups.get(GROUP)

    def say(self, line: str) -> Iterator[str]:
        words = line.split()
        values = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        plain = [word for word in words[1:] if "=" not in word]
        yield from getattr(self, f"say_{words[0]}")(plain, values)

    # -- commands

    def say_group(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        delay_ms = duration_ms(values.get("delay", "3s"))
        self.__init__()  # type: ignore[misc]
        self.settings = CoordinatorSettings(
            initial_rebalance_delay_ms=delay_ms, members_max=int(values.get("size", 1000))
        )
        self.shard = GroupStateMachine(self.settings, self.new_id)
        yield from ()

    def say_join(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        version = int(values.get("v", 9))
        request = JoinRequest(
            values.get("id", ""),
            values.get("static"),
            plain[0],
            "/10.0.0.1",
            values.get("type", "consumer"),
            [metadata_of(text) for text in values.get("protocols", "range:t").split(",") if text],
            duration_ms(values.get("rebalance", "60s")),
            duration_ms(values.get("session", "10s")),
            version >= 4,
            version >= 9,
        )
        decision = self.shard.on_join(GROUP, request, plain[0], self.now)
        yield from self.carry_out(decision)
        yield from self.state()

    def say_sync(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        generation = int(values.pop("gen"))
        static, protocol = values.pop("static", None), values.pop("protocol", None)
        given = {name: text.encode() for name, text in values.items()}
        request = SyncRequest(plain[0], static, generation, "consumer" if protocol else None, protocol, given)
        yield from self.carry_out(self.shard.on_sync(GROUP, request, plain[0], self.now))
        yield from self.state()

    def say_heartbeat(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        group = self.group
        code: int = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None:
            code = group.on_heartbeat(plain[0], values.get("static"), int(values["gen"]), self.now_ms)
        yield name_of(code)

    def say_commit(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        member_id = plain[0] if plain else ""
        yield name_of(
            self.shard.refusal_of_commit(
                GROUP, member_id, values.get("static"), int(values.get("gen", -1)), self.now
            )
        )

    def say_leave(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        leaving = [(member_id, None) for member_id in plain] + [("", text) for text in values.values()]
        codes, decision = self.shard.on_leave(GROUP, leaving, self.now)
        yield from (
            f"{each[0] or each[1]}: {name_of(code)}" for each, code in zip(leaving, codes, strict=True)
        )
        yield from self.carry_out(decision)
        yield from self.state()

    def say_hold(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        self.is_held = True
        yield from ()

    def say_flow(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        self.is_held = False
        yield from self.say_durable([], {})

    def say_durable(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        yield from self.release()
        yield from self.state()

    def say_wait(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        end_ms = self.now_ms + duration_ms(plain[0])
        while (group := self.group) is not None and (due_ms := group.next_deadline_ms()) <= end_ms:
            self.now_ms = max(due_ms, self.now_ms)
            said = list(self.carry_out(self.shard.on_timer(GROUP, self.now)))
            if said:
                yield f"at {(self.now_ms - START_MS) / 1000:g}s"
                yield from said
        self.now_ms = end_ms
        yield from self.state()

    def say_restart(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        self.shard = reloaded(self.log, self.settings, self.new_id, self.now)
        self.waiting.clear()
        yield from self.state()

    def say_group_size(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        self.settings = replace(self.settings, members_max=int(plain[0]))
        yield from ()

    def say_state(self, plain: list[str], values: dict[str, str]) -> Iterator[str]:
        yield from self.state()
        group = self.group
        if group is not None:
            subscribed = None if group.subscribed is None else sorted(group.subscribed)
            due_ms = group.next_deadline_ms()
            due = "never" if due_ms == NEVER_MS else f"{(due_ms - START_MS) / 1000:g}s"
            yield f"type {group.protocol_type}, subscribed {subscribed}, due {due}"
            for member in group.members.values():
                yield f"{member.member_id} holds {member.assignment.decode() or 'nothing'}"

    # -- what a driver does

    def carry_out(self, decision: Decision) -> Iterator[str]:
        for reply in decision.replies:
            yield shown_reply(reply)
        for record in decision.records:
            self.log.append(record)
            yield f"log: {shown_record(record)}"
        for outcome in decision.deferred:
            self.waiting.append((len(self.log), outcome))
        if not self.is_held:
            yield from self.release()

    def release(self) -> Iterator[str]:
        waiting, self.waiting = self.waiting, []
        for _, outcome in waiting:
            if isinstance(outcome, GroupStored):
                yield from self.carry_out(self.shard.on_durable(outcome, self.now))
            else:
                yield shown_reply(outcome)

    def state(self) -> Iterator[str]:
        yield "no group" if self.group is None else repr(self.group)


def reloaded(log: list[Record], settings: CoordinatorSettings, new_id: Any, now: Now) -> GroupStateMachine:
    """What the next owner makes of a log."""
    shard = GroupStateMachine(settings, new_id)
    for record in log:
        assert shard.apply(record)
    for _ in shard.on_loaded(now):
        pass
    return shard


def duration_ms(text: str) -> int:
    return int(text[:-2]) if text.endswith("ms") else int(float(text.removesuffix("s")) * 1000)


def name_of(code: int) -> str:
    return "ok" if not code else ErrorCode(code).name


def shown_reply(reply: Reply) -> str:
    answer = reply.answer
    if answer.error:
        held = f" {answer.member_id}" if isinstance(answer, JoinAnswer) and answer.member_id else ""
        return f"-> {reply.token}: {name_of(answer.error)}{held}"
    if isinstance(answer, SyncAnswer):
        return (
            f"-> {reply.token}: {answer.protocol_type}/{answer.protocol} holds "
            f"{answer.assignment.decode() or 'nothing'}"
        )
    members = ", ".join(
        f"{member_id}{'' if instance_id is None else f'/{instance_id}'}"
        for member_id, instance_id, _ in answer.members
    )
    listed = f" of [{members}]" if answer.members else ""
    skips = " skip" if answer.skip_assignment else ""
    return (
        f"-> {reply.token}: {answer.member_id} g{answer.generation} {answer.protocol} led by "
        f"{answer.leader}{skips}{listed}"
    )


def shown_record(record: Record) -> str:
    assert record.key is not None
    key = decode_key(record.key)
    assert key is not None
    if record.value is None:
        return f"{key} gone"
    value = decode_value(key, record.value)
    assert isinstance(value, GroupMetadataValue)
    members = " ".join(f"{member.member_id}={member.assignment.decode()}" for member in value.members)
    return (
        f"g{value.generation} {value.protocol_type or '-'}/{value.protocol or '-'} led by {value.leader} "
        f"[{members}]"
    )
