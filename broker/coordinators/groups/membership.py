"""Who is in a classic group: members by id and by instance id, the leader, and which protocols they share.
Pure.

Not here: phases, generations, answers (group.py), deadlines (deadlines.py). Keeps true: an instance id names
a member that is here; there is a leader when there are members; the count of a protocol is the number of
members that have it, and `joined_count` of those that wait for the end of the join phase. So a question about
all members is one about a count, and costs the same in a group of any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millrace.broker.coordinators.groups.members import Described, Member
from millrace.protocol.coordinator_records import subscribed_topics
from millrace.protocol.error_codes import ErrorCode

# What a member takes in memory beside its protocols: itself, its names, its entries in the membership; and
# each protocol.
MEMBER_BYTES = 1000
PROTOCOL_BYTES = 200


def protocols_bytes(protocols: Sequence[tuple[str, bytes]]) -> int:
    return sum(PROTOCOL_BYTES + len(name) + len(metadata) for name, metadata in protocols)


class Membership:
    """In order of joining. `size_bytes`: what the members take in memory, more or less. A member's join token
    is changed here alone."""

    __slots__ = ("_described", "_static", "_support", "joined_count", "leader", "members", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.members: dict[str, Member] = {}
        self.joined_count = 0  # members that have a join token
        self.leader: str | None = None
        self._static: dict[str, str] = {}  # instance id -> member id
        self._support: dict[str, int] = {}  # protocol -> how many members have it
        self._described: tuple[str | None, list[Described]] | None = None  # until somebody changes

    def insert(self, member: Member) -> None:
        """The first one leads. It does not wait for anything yet."""
        assert member.join_token is None
        self.members[member.member_id] = member
        self.size_bytes += _member_bytes(member)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._count(member.protocols, 1)
        self.leader = self.leader or member.member_id

    def remove(self, member: Member) -> None:
        """If it led, the one that joined first among the others does. It waits for nothing any more."""
        assert member.join_token is None
        del self.members[member.member_id]
        self.size_bytes -= _member_bytes(member)
        self._count(member.protocols, -1)
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old: Member, new: Member) -> None:
        """The same static member under a new id; it leads if it did."""
        was_leader = self.leader == old.member_id
        self.remove(old)
        self.insert(new)
        if was_leader:
            self.leader = new.member_id

    def change_protocols(self, member: Member, protocols: list[tuple[str, bytes]]) -> None:
        self._count(member.protocols, -1)
        self.size_bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        self._count(protocols, 1)

    def _count(self, protocols: Sequence[tuple[str, bytes]], change: int) -> None:
        self._described = None
        for name in dict.fromkeys(name for name, _ in protocols):
            self._support[name] = self._support.get(name, 0) + change
            if not self._support[name]:
                del self._support[name]

    def begin_join(self, member: Member, token: object) -> None:
        """It waits for the end of the join phase, and for nothing of the kind already."""
        assert token is not None
        assert member.join_token is None
        member.join_token = token
        self.joined_count += 1

    def end_join(self, member: Member) -> Any:
        """Its join token, or None if it does not wait; it does not any more."""
        token, member.join_token = member.join_token, None
        self.joined_count -= token is not None
        return token

    # questions

    def static_id(self, instance_id: str | None) -> str | None:
        """The member id that an instance id stands for."""
        return None if instance_id is None else self._static.get(instance_id)

    def error_of(self, member_id: str, instance_id: str | None) -> int:
        """NONE if this id (and instance id, if given) is a member's; Kafka's order of refusals else."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def joined(self) -> list[Member]:
        """Members that wait for the end of the join phase."""
        return [member for member in self.members.values() if member.join_token is not None]

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def is_shared(self, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Whether any of these is a protocol of every member."""
        return any(self._support.get(name, 0) == len(self.members) for name, _ in protocols)

    def choose_protocol(self) -> str:
        """The shared protocol with most votes, each member voting for the first of its own that all have;
        ties by name."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(name for name, _ in member.protocols if self._support[name] == len(self.members))
            votes[vote] = votes.get(vote, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name))

    def described(self, protocol: str | None) -> list[Described]:
        """What the leader is told of each. The same list as long as nobody changes: however often it asks,
        and however many of its answers wait."""
        if self._described is None or self._described[0] != protocol:
            members = self.members.values()
            self._described = (
                protocol,
                [(each.member_id, each.instance_id, each.metadata(protocol)) for each in members],
            )
        return self._described[1]

    def subscriptions(self, protocol: str | None) -> frozenset[str] | None:
        """The topics that consumers ask for under `protocol`; None when one of them cannot be read."""
        found: dict[str, None] = {}
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(protocol))
            if topics is None:
                return None
            found.update(dict.fromkeys(topics))
        return frozenset(found)


def _member_bytes(member: Member) -> int:
    names = (
        len(member.member_id)
        + len(member.instance_id or "")
        + len(member.client_id)
        + len(member.client_host)
    )
    return MEMBER_BYTES + names + protocols_bytes(member.protocols)
