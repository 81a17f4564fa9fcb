"""One classic consumer group: joining, syncing, leaving, expiring. Pure: time comes in as `now_ms`, what to
do goes out as effects.

    Empty --join--> PreparingRebalance --all joined, or time is up--> CompletingRebalance
    CompletingRebalance --leader's assignment is durable--> Stable
    CompletingRebalance, Stable --somebody joins, leaves, expires or changes--> PreparingRebalance

Not responsible for who is in it (membership.py), which of its deadlines is next (deadlines.py), offsets
(offsets.py), timers and durability (state_machine.py), nor for wire forms. Protocol metadata and assignments
are opaque bytes, so Connect and registries work as consumers do; only a consumer's topics are looked at.

Keeps true: a member holds an assignment of the current generation only once that assignment is durable; at
most one generation has members that may commit; the generation never falls; a waiting JoinGroup or SyncGroup
is answered by some `on_tick` at the latest. An event looks at all members only where the group goes from one
phase to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millrace.broker.coordinators.groups.deadlines import Deadlines
from millrace.broker.coordinators.groups.members import (
    Effect,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Member,
    Store,
    SyncAnswer,
    SyncRequest,
)
from millrace.broker.coordinators.groups.membership import MEMBER_BYTES, Membership, protocols_bytes
from millrace.broker.coordinators.runtime.state_machine import NEVER_MS, Reply
from millrace.broker.state_memory import Holder
from millrace.protocol.error_codes import ErrorCode

CONSUMER = "consumer"  # the protocol type of consumers
NEW_MEMBER_JOIN_MS = 300_000  # a new member whose JoinGroup waits longer is dropped: its client may be gone
# a rebalance timeout of zero or less, which members may say, would have it looked for all the time
AWAY_MS_MIN = 1000
# ids given out and not used yet; beyond it the oldest is forgotten, its client asks for another
PENDING_MAX = 10_000


# What a group takes in memory beside its members, offsets and record, and an id that was given out.
GROUP_BYTES = 800
PENDING_BYTES = 300


class Group:
    """State of one group. Every event returns the effects in the order in which they must be carried out.
    `holder` is charged for it (broker/state_memory.py), so far `charged_bytes`; both are the state
    machine's."""

    __slots__ = (
        "_deadlines",
        "_has_newcomer",
        "_initial_delay_left_ms",
        "_initial_delay_ms",
        "_is_storing",
        "_new_id",
        "_pending",
        "_phase_deadline_ms",
        "_size_max",
        "_unsynced",
        "charged_bytes",
        "generation",
        "group_id",
        "holder",
        "members",
        "membership",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "subscribed",
    )

    def __init__(
        self, group_id: str, *, initial_delay_ms: int, size_max: int, new_id: Callable[[], str]
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None  # None: a simple group, or one that nobody has joined yet
        self.protocol: str | None = None
        self.membership = Membership()
        self.members = self.membership.members
        # topics of the current generation's consumers; None: not known
        self.subscribed: frozenset[str] | None = None
        # wall clock; written by the state machine, which is told the time
        self.state_since_ms: int | None = None
        # Member ids given out (MEMBER_ID_REQUIRED) -> deadline. No id is here and a member's.
        self._pending: dict[str, int] = {}
        self._deadlines = Deadlines(self.members, self._pending)
        self._unsynced: dict[str, None] = {}  # members of this generation that have not sent SyncGroup yet
        self._phase_deadline_ms = NEVER_MS
        self._initial_delay_left_ms: int | None = None  # not None: in the first join phase of an empty group
        self._has_newcomer = False  # somebody joined during the running part of that delay
        self._is_storing = False  # the leader's assignment is on its way to the log
        self._initial_delay_ms = initial_delay_ms
        self._size_max = size_max
        self._new_id = new_id
        self.holder: Holder | None = None
        self.charged_bytes = 0

    def __repr__(self) -> str:
        names = " ".join(
            f"{'*' if name == self.leader else ''}{name}{'(join)' if member.join_token is not None else ''}"
            f"{'(sync)' if member.sync_token is not None else ''}"
            for name, member in self.members.items()
        )
        pending = f" pending {' '.join(self._pending)}" if self._pending else ""
        return (
            f"{self.group_id} {self.state.value} g{self.generation} {self.protocol or '-'} [{names}]{pending}"
        )

    @property
    def leader(self) -> str | None:
        return self.membership.leader

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, more or less: itself, its members, ids that were given out."""
        return (
            GROUP_BYTES + len(self.group_id) + self.membership.size_bytes + PENDING_BYTES * len(self._pending)
        )

    def growth_bytes(self, request: JoinRequest) -> int:
        """How much larger it may be after this JoinGroup, with what its record and its assignment may take; 0
        for a member that asks for no more than it has."""
        member = self.members.get(request.member_id or self.membership.static_id(request.instance_id) or "")
        asked_bytes = protocols_bytes(request.protocols)
        if member is not None:
            return max(0, asked_bytes - protocols_bytes(member.protocols))
        return MEMBER_BYTES + 2 * asked_bytes

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    # joining

    def on_join(self, request: JoinRequest, token: object, now_ms: int) -> list[Effect]:
        """Answers now, or keeps `token` until the generation is complete."""
        member_id = request.member_id
        if not self._has_capacity(request):
            effects = self._forget(member_id, now_ms)
            return [*effects, Reply(token, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED))]
        if self.state is GroupState.DEAD:
            return [Reply(token, JoinAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id))]
        if not self._is_supported(request):
            return [Reply(token, JoinAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))]
        if not member_id:
            return self._join_unknown(request, token, now_ms)
        if member_id in self._pending and request.instance_id is None:
            return self._add_and_rebalance(request, member_id, token, now_ms)
        error = self.membership.error_of(member_id, request.instance_id)
        if error:
            return [Reply(token, JoinAnswer(error, member_id))]
        return self._rejoin(self.members[member_id], request, token, now_ms)

    def _has_capacity(self, request: JoinRequest) -> bool:
        """Kafka counts those who wait while a join phase runs (the last to come back are dropped), and
        members else. A static member that comes back takes the place of its old self."""
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        member = self.members.get(request.member_id or self.membership.static_id(request.instance_id) or "")
        if self.state is GroupState.PREPARING:
            is_waiting = member is not None and member.join_token is not None
            return is_waiting or self.membership.joined_count < self._size_max
        return member is not None or len(self.members) < self._size_max

    def _is_supported(self, request: JoinRequest) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type and request.protocols)
        return request.protocol_type == self.protocol_type and self.membership.is_shared(request.protocols)

    def _join_unknown(self, request: JoinRequest, token: object, now_ms: int) -> list[Effect]:
        instance_id = request.instance_id
        member_id = f"{request.client_id if instance_id is None else instance_id}-{self._new_id()}"
        static_id = self.membership.static_id(instance_id)
        if static_id is not None:
            return self._replace_static(self.members[static_id], request, member_id, token, now_ms)
        if instance_id is None and request.requires_known_id:
            if len(self._pending) >= PENDING_MAX:
                self._forget_pending(next(iter(self._pending)))
            due_ms = self._pending[member_id] = now_ms + request.session_timeout_ms
            self._deadlines.set(member_id, due_ms)
            return [Reply(token, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id))]
        return self._add_and_rebalance(request, member_id, token, now_ms)

    def _rejoin(self, member: Member, request: JoinRequest, token: object, now_ms: int) -> list[Effect]:
        unchanged = member.protocols == request.protocols
        stays = (self.state is GroupState.COMPLETING and unchanged) or (
            self.state is GroupState.STABLE and unchanged and member.member_id != self.leader
        )
        if stays:
            return [Reply(token, self._join_answer(member))]
        # its client asked again elsewhere
        released = self._release_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        self._update(member, request)
        self.membership.begin_join(member, token)
        return [*released, *self._rebalance(now_ms)]

    def _add_and_rebalance(
        self, request: JoinRequest, member_id: str, token: object, now_ms: int
    ) -> list[Effect]:
        member = Member(
            member_id, request.instance_id, request.client_id, request.client_host, 0, 0, [], is_new=True
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self._has_newcomer = self._initial_delay_left_ms is not None
        self._forget_pending(member_id)
        self.membership.insert(member)
        self._update(member, request)
        self.membership.begin_join(member, token)
        member.deadline_ms = now_ms + NEW_MEMBER_JOIN_MS
        self._deadlines.set(member_id, member.deadline_ms)
        return self._rebalance(now_ms)

    def _replace_static(
        self, old: Member, request: JoinRequest, member_id: str, token: object, now_ms: int
    ) -> list[Effect]:
        """A static member came back: its new id takes the old one's place, without a rebalance when nothing
        changed."""
        code = ErrorCode.FENCED_INSTANCE_ID
        released = [*self._release_join(old, code), *_release_sync(old, code)]
        new = Member(
            member_id, old.instance_id, old.client_id, old.client_host, 0, 0, old.protocols, old.assignment
        )
        was_leader = self.leader == old.member_id
        self.membership.replace(old, new)
        self._deadlines.forget(old.member_id)
        self._unsynced.pop(old.member_id, None)
        self._update(new, request)
        self._restart_session(new, now_ms)
        if self.state is not GroupState.STABLE or self.membership.choose_protocol() != self.protocol:
            self.membership.begin_join(new, token)
            return [*released, *self._rebalance(now_ms)]
        answer = self._join_answer(new)
        if was_leader and request.supports_skipping_assignment:
            answer.skip_assignment = True
        elif was_leader:  # it must not assign: it is told that somebody else leads
            answer.members, answer.leader = [], old.member_id
        new.in_flight_writes += 1
        return [*released, Store(self.generation, None, new), Reply(token, answer)]

    # rebalancing

    def _rebalance(self, now_ms: int) -> list[Effect]:
        """Goes to PreparingRebalance if it is not there, and ends the join phase if everybody has joined."""
        effects: list[Effect] = []
        if self.state is not GroupState.PREPARING:
            for member in self.members.values():
                if member.sync_token is not None:
                    effects += _release_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
                    self._restart_session(member, now_ms)
            is_first = self.state is GroupState.EMPTY
            self.state = GroupState.PREPARING
            self._unsynced, self._is_storing = {}, False
            if is_first:
                return effects + self._begin_initial_delay(now_ms)
            self._phase_deadline_ms = now_ms + self.membership.rebalance_timeout_ms()
        return effects + self._end_join_if_complete(now_ms)

    def _begin_initial_delay(self, now_ms: int) -> list[Effect]:
        """An empty group gives others time to come along; newcomers extend it, up to the rebalance
        timeout."""
        if self._initial_delay_ms <= 0:
            return self._end_join(now_ms)
        self._initial_delay_left_ms = max(self.membership.rebalance_timeout_ms() - self._initial_delay_ms, 0)
        self._phase_deadline_ms = now_ms + self._initial_delay_ms
        return []

    def _end_join_if_complete(self, now_ms: int) -> list[Effect]:
        if self.state is not GroupState.PREPARING or self._initial_delay_left_ms is not None:
            return []
        if self._pending or self.membership.joined_count < len(self.members):
            return []
        return self._end_join(now_ms)

    def _end_join(self, now_ms: int) -> list[Effect]:
        """The join phase is over: a new generation, or an empty group."""
        self._initial_delay_left_ms = None
        for member in [m for m in self.members.values() if m.join_token is None and m.instance_id is None]:
            self._remove(member)
        joined = self.membership.joined()
        if self.members and not joined:  # static ones that are away: their sessions decide
            self._phase_deadline_ms = now_ms + max(AWAY_MS_MIN, self.membership.rebalance_timeout_ms())
            return []
        self.generation += 1
        if not joined:
            return self._become_empty()
        if self.leader is None or self.members[self.leader].join_token is None:
            self.membership.leader = joined[0].member_id
        self.protocol = self.membership.choose_protocol()
        self._read_subscriptions()
        self.state = GroupState.COMPLETING
        self._phase_deadline_ms = now_ms + self.membership.rebalance_timeout_ms()
        self._unsynced = dict.fromkeys(self.members)
        for member in self.members.values():
            member.assignment, member.is_new = b"", False
            self._restart_session(member, now_ms)
        return [Reply(self.membership.end_join(member), self._join_answer(member)) for member in joined]

    def _become_empty(self) -> list[Effect]:
        self.state = GroupState.EMPTY
        self.protocol = None
        self._read_subscriptions()
        self._phase_deadline_ms = NEVER_MS
        return [Store(self.generation, {})]

    def _read_subscriptions(self) -> None:
        self.subscribed = (
            self.membership.subscriptions(self.protocol) if self.protocol_type == CONSUMER else None
        )

    # syncing

    def on_sync(self, request: SyncRequest, token: object, now_ms: int) -> list[Effect]:
        """The leader's assignment is stored first; the others wait for it."""
        error = self._refusal_of_sync(request)
        if error:
            return [Reply(token, SyncAnswer(error))]
        member = self.members[request.member_id]
        self._unsynced.pop(member.member_id, None)
        if not self._unsynced:
            self._phase_deadline_ms = NEVER_MS
        if self.state is GroupState.STABLE:
            return [Reply(token, self._sync_answer(member))]
        effects: list[Effect] = [
            *_release_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        ]  # its client asked again
        member.sync_token = token
        if member.member_id == self.leader and not self._is_storing:
            self._is_storing = True
            given = {name: request.assignments.get(name, b"") for name in self.members}
            effects.append(Store(self.generation, given))
        return effects

    def _refusal_of_sync(self, request: SyncRequest) -> int:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.membership.error_of(request.member_id, request.instance_id)
        if error:
            return error
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        type_differs = request.protocol_type is not None and request.protocol_type != self.protocol_type
        if type_differs or (request.protocol is not None and request.protocol != self.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def on_stored(self, store: Store, error: int, now_ms: int) -> list[Effect]:
        """A Store effect is durable, or was refused (`error`). A late one, of a generation that is over,
        changes nothing but that nobody waits for it any more."""
        if store.returned is not None:
            self.resume_session_timer(store.returned, now_ms)
        if (
            self.state is not GroupState.COMPLETING
            or store.generation != self.generation
            or store.assignments is None
        ):
            return []
        if not error:
            self.state, self._is_storing = GroupState.STABLE, False
        effects: list[Effect] = []
        for member in self.members.values():
            member.assignment = b"" if error else store.assignments.get(member.member_id, b"")
            if member.sync_token is not None:
                effects.append(
                    Reply(member.sync_token, SyncAnswer(error) if error else self._sync_answer(member))
                )
                member.sync_token = None
                self._restart_session(member, now_ms)
        return [*effects, *self._rebalance(now_ms)] if error else effects

    # heartbeats, commits, leaving, expiry

    def on_heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """An error code; the session is extended also while rebalancing."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.membership.error_of(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._restart_session(self.members[member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else ErrorCode.NONE

    def on_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> int:
        """May these commit offsets? Without a generation only while the group has no members. A member's
        session is extended."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        error = self.membership.error_of(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._restart_session(self.members[member_id], now_ms)
        return ErrorCode.NONE

    def pause_session_timer(self, member_id: str) -> Member | None:
        """A commit of the member is in flight to the log: the heartbeats behind it on the connection are not
        handled before it is answered (dispatch.py), so none is expected. `resume_session_timer` ends it; the
        count lives and dies with the member."""
        member = self.members.get(member_id)
        if member is not None:
            member.in_flight_writes += 1
        return member

    def resume_session_timer(self, member: Member, now_ms: int) -> None:
        """A write of the member is durable and answered: its session starts anew, if it has not left or been
        replaced in the meantime."""
        member.in_flight_writes -= 1
        if self.members.get(member.member_id) is member:
            self._restart_session(member, now_ms)

    def on_leave(
        self, leaving: Iterable[tuple[str, str | None]], now_ms: int
    ) -> tuple[list[int], list[Effect]]:
        """(member id, instance id) of each; a code for each. A static member may be named by its instance id
        alone: how administrators remove one. One rebalance, however many leave."""
        errors: list[int] = []
        effects: list[Effect] = []
        left_count = len(self.members)
        for member_id, instance_id in leaving:
            if self._forget_pending(member_id):
                errors.append(ErrorCode.NONE)
                continue
            member_id = member_id or self.membership.static_id(instance_id) or ""
            error = self.membership.error_of(member_id, instance_id)
            errors.append(error)
            if not error:
                effects += self._drop(self.members[member_id])
        return errors, effects + self._after_departure(left_count - len(self.members), now_ms)

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Expires what is due: given-out ids, sessions, the phase. Of very many sessions it ends some, and
        the next deadline is not behind `now_ms`; the phase, which asks who is here, ends behind the last of
        them."""
        effects: list[Effect] = []
        members_count = len(self.members)
        for name in self._deadlines.take_due(now_ms):
            if self._pending.pop(name, None) is None:
                effects += self._drop(self.members[name])
        effects += self._after_departure(members_count - len(self.members), now_ms)
        if self._phase_deadline_ms <= now_ms and not self._deadlines.has_due(now_ms):
            effects += self._on_phase_deadline(now_ms)
        return effects

    def _on_phase_deadline(self, now_ms: int) -> list[Effect]:
        if self.state is GroupState.PREPARING:
            left_ms = self._initial_delay_left_ms
            if left_ms and self._has_newcomer:
                delay_ms = min(self._initial_delay_ms, left_ms)
                self._initial_delay_left_ms = left_ms - delay_ms
                self._phase_deadline_ms = now_ms + delay_ms
                self._has_newcomer = False
                return []
            return self._end_join(now_ms)
        self._phase_deadline_ms = NEVER_MS
        late = [self.members[name] for name in self._unsynced]
        for member in late:
            self._remove(member)
        return self._rebalance(now_ms) if late else []

    def next_deadline_ms(self) -> int:
        """When on_tick must run next, NEVER_MS if nothing is due ever. It may be told early where very many
        sessions were extended since it was asked last."""
        return min(self._phase_deadline_ms, self._deadlines.next_ms())

    def _forget(self, member_id: str, now_ms: int) -> list[Effect]:
        """The group is full for one that was a member, or had an id already."""
        self._forget_pending(member_id)
        member = self.members.get(member_id)
        if member is None:
            return self._after_departure(0, now_ms)
        return self._drop(member) + self._after_departure(1, now_ms)

    def _forget_pending(self, member_id: str) -> bool:
        """Whether the id had been given out, and was not used."""
        if self._pending.pop(member_id, None) is None:
            return False
        self._deadlines.forget(member_id)
        return True

    def _drop(self, member: Member) -> list[Effect]:
        code = ErrorCode.UNKNOWN_MEMBER_ID
        effects: list[Effect] = [*self._release_join(member, code), *_release_sync(member, code)]
        self._unsynced.pop(member.member_id, None)
        self._remove(member)
        return effects

    def _remove(self, member: Member) -> None:
        """A member that waits for nothing."""
        self.membership.remove(member)
        self._deadlines.forget(member.member_id)

    def _after_departure(self, members_count: int, now_ms: int) -> list[Effect]:
        """So many members left, and perhaps some that only had an id."""
        if members_count and self.state in (GroupState.STABLE, GroupState.COMPLETING):
            return self._rebalance(now_ms)
        return self._end_join_if_complete(now_ms)

    # questions, beginning and end

    def is_subscribed(self, topic: str) -> bool:
        """While a consumer group's topics are not known, every topic counts as one of them."""
        return self.protocol_type == CONSUMER if self.subscribed is None else topic in self.subscribed

    def restore(self, members: Iterable[Member], leader: str | None, now_ms: int) -> None:
        """Members as the log has them, after a restart (generation and protocol were set before): each gets a
        full session to be heard from. If there are more than are allowed now, all join again, and the last to
        come are refused."""
        for member in members:
            self.membership.insert(member)
            self._restart_session(member, now_ms)
        if leader in self.members:
            self.membership.leader = leader
        self.state = GroupState.STABLE if self.members else GroupState.EMPTY
        self._read_subscriptions()
        if len(self.members) > self._size_max:
            self._rebalance(now_ms)

    def close(self, error: int) -> list[Reply]:
        """Deleted, or its coordinator ends: whoever waits is told to look again."""
        replies: list[Reply] = []
        for member in self.members.values():
            replies += self._release_join(member, error) + _release_sync(member, error)
        self.state = GroupState.DEAD
        self._phase_deadline_ms = NEVER_MS
        return replies

    # small parts

    def _restart_session(self, member: Member, now_ms: int) -> None:
        """Also where its timer was paused and runs from now on."""
        due_ms = member.deadline_ms = now_ms + member.session_timeout_ms
        self._deadlines.set(member.member_id, due_ms)

    def _release_join(self, member: Member, error: int) -> list[Reply]:
        token = self.membership.end_join(member)
        member_id = "" if error == ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        return [] if token is None else [Reply(token, JoinAnswer(error, member_id))]

    def _update(self, member: Member, request: JoinRequest) -> None:
        self.membership.change_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def _join_answer(self, member: Member) -> JoinAnswer:
        answer = JoinAnswer(
            ErrorCode.NONE, member.member_id, self.generation, self.protocol_type, self.protocol
        )
        answer.leader = self.leader or ""
        if member.member_id == self.leader:
            answer.members = self.membership.described(self.protocol)
        return answer

    def _sync_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)


def _release_sync(member: Member, error: int) -> list[Reply]:
    token, member.sync_token = member.sync_token, None
    return [] if token is None else [Reply(token, SyncAnswer(error))]
