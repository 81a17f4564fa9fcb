"""Sequences of group requests on connections of several clients: one line a request, and what is answered by
then, the same from any broker.

ACTOR join [member=M] [instance=I] [protocols=A,B] [type=T] [session=MS] [rebalance=MS] [said=TEXT]
ACTOR sync [member=M] [instance=I] [generation=N] [type=T] [protocol=P] [give=M:TEXT,M:TEXT]
ACTOR heartbeat | commit [member=M] [instance=I] [generation=N] [at=OFFSET] [text=TEXT] [topic=T]
ACTOR leave [member=M,M] [instance=I,I]
ACTOR offsets [topic=T] [all=1] | describe | delete | forget [topic=T]
ACTOR gone                     its connection is closed
wait MS

Any request takes v=VERSION. M is an actor, whose last member id is meant, `A.1` its first, `-` none, `!text`
that text. A generation `+N` or `~-N` is so far from the actor's own. Ids are shown as `A.1`: the first that A
was told. What is not answered soon is answered below a later line; its actor asks nothing meanwhile, for
Kafka begins nothing behind it.
"""

from __future__ import annotations

import re
import select
import struct
import time
from typing import Any

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tests.live.fitting import fit
from tests.live.wire import Wire

TOPIC = "sequences"
NO_ID = bytes(16)
QUIET_S = 1.0  # who joins or syncs, and is not answered by then, waits for others
ANSWER_S = 10.0
MAY_WAIT = ("join", "sync")
# Later versions name topics by id, or are in no release of Kafka yet.
VERSIONS = {"OffsetCommit": 9, "OffsetFetch": 9, "DeleteGroups": 2}
UNTOLD = re.compile(
    r"[\w!.]*-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)  # a member id that nobody was told yet

Values = dict[str, str]


class Actor:
    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.wire = Wire(address)
        self.ids: list[str] = []
        self.generation = -1
        self.protocol: str | None = None
        self.instance: str | None = None
        self.waits_for: tuple[str, int] | None = None  # the answer to this request, of this version


class GroupDialogue:
    """About the group of that name."""

    def __init__(self, address: str, group: str) -> None:
        self._address = address
        self._group = group
        self._actors: dict[str, Actor] = {}
        self._names = {"": "-"}  # of member ids

    def close(self) -> None:
        for actor in self._actors.values():
            actor.wire.close()

    def say(self, line: str) -> list[str]:
        name, *words = line.split()
        if name == "wait":
            time.sleep(int(words[0]) / 1000)
            return self._answers()
        if words[0] == "gone":
            self._actors.pop(name).wire.close()
            return self._answers()
        actor = self._actors.get(name) or self._actors.setdefault(name, Actor(self._address, name))
        if actor.waits_for is None:
            self._ask(actor, words[0], dict(word.split("=", 1) for word in words[1:]))
            if words[0] not in MAY_WAIT:
                select.select([actor.wire.socket], [], [], ANSWER_S)
        return self._answers()

    def _ask(self, actor: Actor, verb: str, values: Values) -> None:
        api_name, request = getattr(self, f"_{verb}")(actor, values)
        api = NAMED[api_name]
        version = int(values.get("v", VERSIONS.get(api_name, api.max_stable_version)))
        actor.wire.send_bytes(encode_request(api, version, 1, actor.name, fit(request, version)))
        actor.waits_for = api_name, version

    # -- requests

    def _member(self, actor: Actor, text: str | None) -> str:
        if text is None:
            return actor.ids[-1] if actor.ids else ""
        if text == "-" or text.startswith("!"):
            return text[1:]
        name, _, number = text.partition(".")
        ids = self._actors[name].ids
        return ids[int(number or 0) - 1] if ids else f"{name} has none"

    def _generation(self, actor: Actor, values: Values) -> int:
        text = values.get("generation", "+0")
        return actor.generation + int(text.lstrip("~")) if text[0] in "+~" else int(text)

    def _instance(self, actor: Actor, values: Values) -> str | None:
        found = values.get("instance", actor.instance)
        return None if found == "-" else found

    def _join(self, actor: Actor, values: Values) -> tuple[str, Any]:
        actor.instance = self._instance(actor, values)
        text = f"{actor.name}'s {{}}{values.get('said', '')}"
        protocols = [
            join_group.JoinGroupRequestProtocol(name, subscription(text.format(name)))
            for name in values.get("protocols", "range,sticky").split(",")
            if name
        ]
        return "JoinGroup", join_group.JoinGroupRequest(
            self._group,
            int(values.get("session", 30_000)),
            int(values.get("rebalance", 30_000)),
            self._member(actor, values.get("member")),
            actor.instance,
            values.get("type", "consumer"),
            protocols,
        )

    def _sync(self, actor: Actor, values: Values) -> tuple[str, Any]:
        given = [one.split(":") for one in values.get("give", "").split(",") if one]
        return "SyncGroup", sync_group.SyncGroupRequest(
            self._group,
            self._generation(actor, values),
            self._member(actor, values.get("member")),
            self._instance(actor, values),
            values.get("type", "consumer"),
            values.get("protocol", actor.protocol),
            [
                sync_group.SyncGroupRequestAssignment(self._member(actor, to), text.encode())
                for to, text in given
            ],
        )

    def _heartbeat(self, actor: Actor, values: Values) -> tuple[str, Any]:
        member, instance = self._member(actor, values.get("member")), self._instance(actor, values)
        return "Heartbeat", heartbeat.HeartbeatRequest(
            self._group, self._generation(actor, values), member, instance
        )

    def _commit(self, actor: Actor, values: Values) -> tuple[str, Any]:
        part = offset_commit.OffsetCommitRequestPartition(
            0, int(values.get("at", 1)), -1, values.get("text", "")
        )
        topic = offset_commit.OffsetCommitRequestTopic(values.get("topic", TOPIC), NO_ID, [part])
        member, instance = self._member(actor, values.get("member")), self._instance(actor, values)
        generation = self._generation(actor, values)
        return "OffsetCommit", offset_commit.OffsetCommitRequest(
            self._group, generation, member, instance, topics=[topic]
        )

    def _leave(self, actor: Actor, values: Values) -> tuple[str, Any]:
        instances = values["instance"].split(",") if "instance" in values else None
        names: list[str | None] = (
            [*values["member"].split(",")] if "member" in values else ["-"] * len(instances or ())
        )
        leaving = [
            leave_group.MemberIdentity(self._member(actor, name), instances[place] if instances else None)
            for place, name in enumerate(names or [None])
        ]
        return "LeaveGroup", leave_group.LeaveGroupRequest(self._group, leaving[0].member_id, leaving)

    def _offsets(self, actor: Actor, values: Values) -> tuple[str, Any]:
        named = [offset_fetch.OffsetFetchRequestTopics(values.get("topic", TOPIC), NO_ID, [0, 1])]
        group = offset_fetch.OffsetFetchRequestGroup(self._group, topics=None if "all" in values else named)
        return "OffsetFetch", offset_fetch.OffsetFetchRequest(groups=[group])

    def _describe(self, actor: Actor, values: Values) -> tuple[str, Any]:
        return "DescribeGroups", describe_groups.DescribeGroupsRequest([self._group])

    def _delete(self, actor: Actor, values: Values) -> tuple[str, Any]:
        return "DeleteGroups", delete_groups.DeleteGroupsRequest([self._group])

    def _forget(self, actor: Actor, values: Values) -> tuple[str, Any]:
        parts = [offset_delete.OffsetDeleteRequestPartition(0)]
        topic = offset_delete.OffsetDeleteRequestTopic(values.get("topic", TOPIC), parts)
        return "OffsetDelete", offset_delete.OffsetDeleteRequest(self._group, [topic])

    # -- answers

    def _answers(self) -> list[str]:
        """All that come until it is quiet, by actor."""
        found: dict[str, tuple[str, Any]] = {}
        while waiting := {one.wire.socket: one for one in self._actors.values() if one.waits_for}:
            ready, _, _ = select.select(list(waiting), [], [], QUIET_S)
            if not ready:
                break
            for socket in ready:
                found[waiting[socket].name] = self._take(waiting[socket])
        for name, (api_name, response) in sorted(found.items()):
            if api_name == "JoinGroup":
                self._learn(self._actors[name], response)
        told = (
            f"{name}: {getattr(self, f'_told_{api}')(said)}" for name, (api, said) in sorted(found.items())
        )
        return [UNTOLD.sub("untold", line) for line in told]

    def _take(self, actor: Actor) -> tuple[str, Any]:
        assert actor.waits_for is not None
        (api_name, version), actor.waits_for = actor.waits_for, None
        try:
            return api_name, decode_response(NAMED[api_name], version, memoryview(actor.wire.read_frame()))[1]
        except EOFError:
            actor.wire = Wire(self._address)
            return "closed", None

    def _learn(self, actor: Actor, response: Any) -> None:
        if response.member_id and response.member_id not in self._names:
            actor.ids.append(response.member_id)
            self._names[response.member_id] = f"{actor.name}.{len(actor.ids)}"
        if not response.error_code:
            actor.generation, actor.protocol = response.generation_id, response.protocol_name

    def _name(self, member_id: str) -> str:
        return self._names.get(member_id, member_id)

    def _told_closed(self, said: None) -> str:
        return "the connection was closed"

    def _told_JoinGroup(self, said: Any) -> str:
        members = ", ".join(
            sorted(
                f"{self._name(one.member_id)}/{one.group_instance_id} {text_of(one.metadata)}"
                for one in said.members
            )
        )
        protocol = f"{said.protocol_type}/{said.protocol_name}"
        leader = f"leader {self._name(said.leader)}{' skips' if said.skip_assignment else ''}"
        return (
            f"{code(said)} {self._name(said.member_id)} g{said.generation_id} {protocol} {leader} [{members}]"
        )

    def _told_SyncGroup(self, said: Any) -> str:
        return f"{code(said)} {said.protocol_type}/{said.protocol_name} {bytes(said.assignment)!r}"

    def _told_Heartbeat(self, said: Any) -> str:
        return code(said)

    def _told_LeaveGroup(self, said: Any) -> str:
        each = (f"{self._name(one.member_id)}/{one.group_instance_id} {code(one)}" for one in said.members)
        return f"{code(said)} [{', '.join(each)}]"

    def _told_OffsetCommit(self, said: Any) -> str:
        return ", ".join(code(part) for topic in said.topics for part in topic.partitions)

    def _told_OffsetFetch(self, said: Any) -> str:
        (group,) = said.groups
        each = sorted(
            f"{topic.name}-{part.partition_index} {part.committed_offset} {part.metadata!r} {code(part)}"
            for topic in group.topics
            for part in topic.partitions
        )
        return f"{code(group)} [{', '.join(each)}]"

    def _told_DescribeGroups(self, said: Any) -> str:
        (group,) = said.groups
        members = ", ".join(
            sorted(
                (
                    f"{self._name(one.member_id)}/{one.group_instance_id} {text_of(one.member_metadata)}: "
                    f"{bytes(one.member_assignment)!r}"
                )
                for one in group.members
            )
        )
        return f"{code(group)} {group.group_state} {group.protocol_type}/{group.protocol_data} [{members}]"

    def _told_DeleteGroups(self, said: Any) -> str:
        return code(said.results[0])

    def _told_OffsetDelete(self, said: Any) -> str:
        return f"{code(said)} [{', '.join(code(part) for topic in said.topics for part in topic.partitions)}]"


def subscription(text: str) -> bytes:
    """A consumer's, to the topic: Kafka completes no generation of consumers that say anything else. The text
    is its user data."""
    data = text.encode()
    return struct.pack(f">hih{len(TOPIC)}si", 0, 1, len(TOPIC), TOPIC.encode(), len(data)) + data


def text_of(metadata: Any) -> str:
    return bytes(metadata)[len(subscription("")) :].decode()


def code(said: Any) -> str:
    return ErrorCode(said.error_code).name
