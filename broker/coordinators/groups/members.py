"""A member of a classic group, and the values that the group's events and answers carry. Values only; the
rules are in group.py."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Any, TypeAlias

from millrace.broker.coordinators.runtime.state_machine import Reply
from millrace.protocol.dataclass import dataclass

NO_GENERATION = -1


class GroupState(Enum):
    """Kafka's names, as DescribeGroups and ListGroups show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class Member:
    """`protocols` are (name, opaque metadata) in the member's order of preference. Tokens are the handlers':
    who waits for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""  # durable, and of the current generation
    deadline_ms: int = 0
    is_new: bool = False  # has never had an answer to JoinGroup: it cannot send heartbeats yet
    join_token: Any = None
    sync_token: Any = None
    # commits, and a static member's return, that are not durable yet: they pause its session timer
    in_flight_writes: int = 0

    @property
    def is_waiting(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    @property
    def has_session_timer(self) -> bool:
        """Whether its session timer runs: it is paused while the coordinator owes the member a response, and
        a member that joins for the first time has a deadline for the wait itself."""
        return self.is_new or not (self.is_waiting or self.in_flight_writes)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class JoinRequest:
    """What a JoinGroup asks, apart from its wire form."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    requires_known_id: bool = True
    supports_skipping_assignment: bool = False


Described: TypeAlias = tuple[str, str | None, bytes]
"""Of a member its id, its instance id, its metadata for the group's protocol."""


@dataclass(slots=True)
class JoinAnswer:
    error: int
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: list[Described] = field(default_factory=list)
    is_short_of_memory: bool = False  # memory for states is short: its client is throttled


@dataclass(slots=True)
class SyncRequest:
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


@dataclass(slots=True)
class SyncAnswer:
    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""
    is_short_of_memory: bool = False  # as in JoinAnswer


@dataclass(slots=True)
class Store:
    """An effect: make the group's state durable, then call `Group.on_stored`. Effects behind it wait for
    that.

    `assignments` are the leader's, which members hold only once they are durable; None: as the members hold
    them already. `returned` is who waits for nothing else: a static member that came back.
    """

    generation: int
    assignments: dict[str, bytes] | None
    returned: Member | None = None


Effect = Reply | Store
