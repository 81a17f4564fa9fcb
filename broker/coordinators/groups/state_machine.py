"""The classic groups that one partition of __consumer_offsets coordinates: a StateMachine. Pure: events in,
decisions out.

    stored, offsets    what the log says: changed by `_apply` alone, in the order of the log, live and at a
                       load alike
    groups             what is going on: made of the former at a load, then moved by events

A decision's records are applied as it is made: the next decision builds on them, and they go to the log in
the order of the decisions. What a client is told of them waits until they are durable
(runtime/state_machine.py says what else is promised).

What the state takes in memory is charged to the client address that made the group (broker/state_memory.py).
At the bound new groups, members and offsets are refused to whoever holds most; commits of offsets that are
there, leaving and deleting never are.

Not here: appending, timers, loading (coordinators/runtime); the rules of groups and of retention (group.py,
offsets.py). Keeps true: whatever the log has a group's metadata or offsets of is in `groups`; so is, until
retention looks, a group that lost its last offset, or that somebody was given a member id of; one that is
deleted is nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from millrace.broker.coordinators.groups.config import CoordinatorSettings
from millrace.broker.coordinators.groups.group import CONSUMER, GROUP_BYTES, Group
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
from millrace.broker.coordinators.groups.offsets import (
    OFFSET_BYTES,
    CommittedOffset,
    CommittedOffsets,
    OffsetKey,
)
from millrace.broker.coordinators.groups.records import (
    committed_offset,
    decode_record,
    encode_record,
    group_bytes,
    group_key,
    group_value,
    offset_record,
    restore_group,
    stored_bytes,
)
from millrace.broker.coordinators.runtime.records import record_bytes
from millrace.broker.coordinators.runtime.state_machine import Decision, Now, Reply
from millrace.broker.state_memory import GROWTH_FACTOR, HOLDER_FACTOR, RESTORED, Charges, Holder, StateMemory
from millrace.protocol.coordinator_records import (
    CoordinatorKey,
    CoordinatorValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from millrace.protocol.dataclass import dataclass
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.records import Record

# A group whose generation takes more, or more than the log takes, is refused it: its leader is told
# UNKNOWN_SERVER_ERROR, as Kafka does above max.message.bytes.
GROUP_RECORD_BYTES_MAX = 8 << 20
EXPIRED_PER_CHUNK = 1000  # looked at by retention
RESTORED_PER_CHUNK = 500  # two milliseconds
# What is never refused for memory: text beside an offset that is there, and an assignment of each member that
# was let in.
TEXT_ALWAYS_MAX = 64
ASSIGNMENT_ALWAYS_BYTES = 1024
# Of an assignment for which there is no memory: its members look for their coordinator, and join again.
SHORT_OF_MEMORY = ErrorCode.COORDINATOR_NOT_AVAILABLE


class GroupStored(NamedTuple):
    """A deferred effect: the group is told that its `store` is durable."""

    group: Group
    store: Store


@dataclass(slots=True)
class CommitStored:
    """A deferred effect: the session timer of the member that made a commit runs again."""

    group: Group
    member: Member


class Position(NamedTuple):
    """One partition's part of a commit."""

    topic: str
    partition: int
    offset: CommittedOffset


class GroupStateMachine:
    """`record_bytes_max`: what its log takes of one record."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        new_id: Callable[[], str],
        record_bytes_max: int = GROUP_RECORD_BYTES_MAX,
        memory: StateMemory | None = None,
    ) -> None:
        self._memory = StateMemory() if memory is None else memory
        self.charges = Charges(self._memory)
        self.stored: dict[str, GroupMetadataValue] = {}
        self.offsets = CommittedOffsets()
        self.groups: dict[str, Group] = {}
        self._settings = settings
        self._new_id = new_id
        self._group_record_bytes_max = min(GROUP_RECORD_BYTES_MAX, record_bytes_max)
        self._stored_bytes = 0

    def __repr__(self) -> str:
        return (
            f"shard of {len(self.groups)} groups, {self.offsets.count} offsets, {self.live_bytes} bytes live"
        )

    @property
    def live_bytes(self) -> int:
        """What all that lives takes in the log, more or less."""
        return self._stored_bytes + self.offsets.live_bytes

    # -- the log

    def apply(self, record: Record) -> bool:
        decoded = decode_record(record)
        if decoded is None:
            return False
        self._apply(*decoded)
        return True

    def _apply(self, key: CoordinatorKey, value: CoordinatorValue | None) -> None:
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            offset = None if value is None else committed_offset(value)
            self._charge(key.group, self.offsets.apply(key.group, key.topic, key.partition, offset))
        else:
            assert value is None or isinstance(value, GroupMetadataValue)
            self._apply_group(key.group, value)

    def _apply_group(self, group_id: str, value: GroupMetadataValue | None) -> None:
        before = self.stored.pop(group_id, None)
        grown_bytes = 0
        if before is not None:
            self._stored_bytes -= group_bytes(group_id, before)
            grown_bytes -= stored_bytes(before)
        if value is not None:
            self.stored[group_id] = value
            self._stored_bytes += group_bytes(group_id, value)
            grown_bytes += stored_bytes(value)
        self._charge(group_id, grown_bytes)

    def on_loaded(self, now: Now) -> Iterator[Decision]:
        group_ids = iter(dict.fromkeys((*self.stored, *self.offsets.groups())))
        while some := list(islice(group_ids, RESTORED_PER_CHUNK)):
            for group_id in some:
                group, value = self._add_group(group_id), self.stored.get(group_id)
                if value is not None:
                    restore_group(group, value, now.tick_ms)
                    self._recharge(group)
            yield Decision(timers=[(one, self.groups[one].next_deadline_ms()) for one in some])

    def abort(self, code: int) -> list[Reply]:
        """Of members that wait for others of their group; the groups end."""
        return [reply for group in self.groups.values() for reply in group.close(code)]

    def release_memory(self) -> None:
        self.charges.release()

    # -- memory

    def _charge(self, group_id: str, size_bytes: int) -> None:
        group = self.groups.get(group_id)
        holder = None if group is None else group.holder
        self.charges.add(self._memory.restored if holder is None else holder, size_bytes)

    def _recharge(self, group: Group) -> None:
        """What the group itself takes has changed."""
        size_bytes = group.size_bytes if self.groups.get(group.group_id) is group else 0
        holder = self._memory.restored if group.holder is None else group.holder
        self.charges.add(holder, size_bytes - group.charged_bytes)
        group.charged_bytes = size_bytes

    def _charged_holder(self, group: Group, client_host: str) -> Holder:
        """Who is charged for the group: the first client that uses it after it was made or loaded."""
        holder = group.holder
        if holder is None:
            stored = self.stored.get(group.group_id)
            size_bytes = group.charged_bytes + self.offsets.size_bytes(group.group_id)
            size_bytes += 0 if stored is None else stored_bytes(stored)
            holder = group.holder = self._memory.holder(client_host)
            self.charges.add(self._memory.restored, -size_bytes)
            self.charges.add(holder, size_bytes)
        return holder

    def _has_room(self, holder: Holder, grown_bytes: int, factor: int, what: str) -> bool:
        if grown_bytes <= 0 or self._memory.has_place(holder, grown_bytes, factor):
            return True
        self._memory.refuse(holder, what)
        return False

    def refusal_of_positions(
        self, group_id: str, positions: Sequence[Position], client_host: str
    ) -> list[bool]:
        """Which of these a commit may not have, since memory for states is short and they take more of it. An
        offset that is there may always be committed again, with a short text."""
        group = self.groups.get(group_id)
        growth = self.offsets.growth_bytes
        grown = [growth(group_id, one.topic, one.partition, one.offset.metadata) for one in positions]
        for number, one in enumerate(positions):
            if grown[number] < OFFSET_BYTES and len(one.offset.metadata) <= TEXT_ALWAYS_MAX:
                grown[number] = 0
        if group is None:
            holder, factor, what = self._memory.holder(client_host), HOLDER_FACTOR, "a group"
            needed_bytes = GROUP_BYTES + sum(grown)
        else:
            holder, factor, what = self._charged_holder(group, client_host), GROWTH_FACTOR, "a further offset"
            needed_bytes = sum(grown)
        if self._has_room(holder, needed_bytes, factor, what):
            return [False] * len(positions)
        return [group is None or each > 0 for each in grown]

    def snapshot(self, wall_ms: int) -> Iterator[Record]:
        """All that lives, as records. Events may come between two of them: what is given then is as it is
        then."""
        for group_id in list(dict.fromkeys([*self.stored, *self.offsets.groups()])):
            value = self.stored.get(group_id)
            if value is not None:
                yield encode_record(group_key(group_id), value, wall_ms)
            for topic in list(self.offsets.of_group(group_id)):
                for partition in list(self.offsets.of_topic(group_id, topic)):
                    offset = self.offsets.of_topic(group_id, topic).get(partition)
                    if offset is not None:
                        yield offset_record(group_id, topic, partition, offset, wall_ms)

    def _emit(
        self, decision: Decision, key: CoordinatorKey, value: CoordinatorValue | None, now: Now
    ) -> None:
        """Raises ValueError, with nothing changed, for what no record can carry."""
        decision.records.append(encode_record(key, value, now.wall_ms))
        self._apply(key, value)

    # -- members

    def on_join(self, group_id: str, request: JoinRequest, token: object, now: Now) -> Decision:
        group = self.groups.get(group_id)
        client_host = request.client_host.removeprefix("/")
        if group is not None:
            grown_bytes = group.growth_bytes(request)
            if not self._has_room(
                self._charged_holder(group, client_host), grown_bytes, GROWTH_FACTOR, "a further member"
            ):
                return _refused_for_memory(token, request)
            return self._run(group, now, lambda: group.on_join(request, token, now.tick_ms))
        if request.member_id:
            return Decision(
                replies=[Reply(token, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))]
            )
        holder = self._memory.holder(client_host)
        made = self._make_group(group_id)
        needed_bytes = made.size_bytes + made.growth_bytes(request)
        if not self._has_room(holder, needed_bytes, HOLDER_FACTOR, "a group"):
            return _refused_for_memory(token, request)
        self._insert_group(made, holder)
        made.state_since_ms = now.wall_ms
        decision = self._run(made, now, lambda: made.on_join(request, token, now.tick_ms))
        if not made.members and not made.has_pending:
            del self.groups[group_id]
            self._recharge(made)
        elif not decision.records:
            empty = GroupMetadataValue(current_state_timestamp=now.wall_ms)  # Kafka's first word on a group
            self._emit(decision, group_key(group_id), empty, now)
        return decision

    def on_sync(self, group_id: str, request: SyncRequest, token: object, now: Now) -> Decision:
        group = self.groups.get(group_id)
        if group is None:
            return Decision(replies=[Reply(token, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))])
        return self._run(group, now, lambda: group.on_sync(request, token, now.tick_ms))

    def on_leave(
        self, group_id: str, leaving: Sequence[tuple[str, str | None]], now: Now
    ) -> tuple[list[int], Decision]:
        """A code for each."""
        group = self.groups.get(group_id)
        if group is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving), Decision()
        errors: list[int] = []

        def leave() -> list[Effect]:
            codes, effects = group.on_leave(leaving, now.tick_ms)
            errors.extend(codes)
            return effects

        decision = self._run(group, now, leave)
        return errors, decision

    def on_heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, tick_ms: int
    ) -> tuple[int, Decision | None]:
        """A Kafka error code; a decision where a timer is earlier now."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID, None
        return group.on_heartbeat(member_id, instance_id, generation, tick_ms), _timer_if_earlier(group)

    def on_timer(self, key: str, now: Now) -> Decision:
        group = self.groups.get(key)
        return Decision() if group is None else self._run(group, now, lambda: group.on_tick(now.tick_ms))

    def on_durable(self, event: GroupStored | CommitStored, now: Now) -> Decision:
        if isinstance(event, CommitStored):
            event.group.resume_session_timer(event.member, now.tick_ms)
            return Decision(timers=[(event.group.group_id, event.member.deadline_ms)])
        group, store = event
        return self._run(group, now, lambda: group.on_stored(store, ErrorCode.NONE, now.tick_ms))

    def _run(self, group: Group, now: Now, event: Callable[[], list[Effect]]) -> Decision:
        before = group.state, group.generation
        effects = event()
        self._recharge(group)
        if (group.state, group.generation) != before:
            group.state_since_ms = now.wall_ms
        decision = Decision()
        self._apply_effects(decision, group, effects, now)
        decision.timers.append(_timer_of(group))
        return decision

    def _apply_effects(self, decision: Decision, group: Group, effects: Iterable[Effect], now: Now) -> None:
        """What an effect means; what stands behind a Store waits for it, or is refused with it."""
        refusal = 0
        for effect in effects:
            if isinstance(effect, Reply):
                if refusal and isinstance(effect.answer, JoinAnswer):
                    is_short = refusal == SHORT_OF_MEMORY
                    effect = replace(effect, answer=JoinAnswer(refusal, is_short_of_memory=is_short))
                (decision.deferred if decision.deferred else decision.replies).append(effect)
                continue
            refusal = self._store(decision, group, effect, now)
            if refusal:
                after = group.on_stored(effect, refusal, now.tick_ms)
                self._apply_effects(decision, group, [_with_throttle(each, refusal) for each in after], now)
            else:
                decision.deferred.append(GroupStored(group, effect))

    def _store(self, decision: Decision, group: Group, store: Store, now: Now) -> int:
        key, value = group_key(group.group_id), group_value(group, store.assignments)
        try:
            record = encode_record(key, value, now.wall_ms)
        except ValueError:  # a member's name is longer than a record can carry
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if record_bytes(record) > self._group_record_bytes_max:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        before = self.stored.get(group.group_id)
        grown_bytes = stored_bytes(value) - (0 if before is None else stored_bytes(before))
        grown_bytes -= ASSIGNMENT_ALWAYS_BYTES * len(
            value.members
        )  # who was let in may have something to read
        holder = group.holder or self._memory.restored
        if not self._has_room(holder, grown_bytes, GROWTH_FACTOR, "an assignment"):
            return SHORT_OF_MEMORY
        decision.records.append(record)
        self._apply(key, value)
        return ErrorCode.NONE

    def _make_group(self, group_id: str) -> Group:
        settings = self._settings
        return Group(
            group_id,
            initial_delay_ms=settings.initial_rebalance_delay_ms,
            size_max=settings.members_max,
            new_id=self._new_id,
        )

    def _insert_group(self, group: Group, holder: Holder | None) -> None:
        group.holder = holder
        self.groups[group.group_id] = group
        self._recharge(group)

    def _add_group(self, group_id: str, holder: Holder | None = None) -> Group:
        group = self._make_group(group_id)
        self._insert_group(group, holder)
        return group

    # -- offsets

    def refusal_of_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now: Now
    ) -> int:
        """GROUP_ID_NOT_FOUND where clients before OffsetCommit version 9 expect ILLEGAL_GENERATION. Extends
        the member's session."""
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
        return group.on_commit(member_id, instance_id, generation, now.tick_ms)

    def on_session_extended(self, group_id: str) -> Decision | None:
        """Behind a commit that was not refused: a decision where a timer is earlier now."""
        group = self.groups.get(group_id)
        return None if group is None else _timer_if_earlier(group)

    def commit(
        self,
        group_id: str,
        positions: Iterable[Position],
        now: Now,
        client_host: str = RESTORED,
        member_id: str = "",
    ) -> Decision:
        """Whoever asks was not refused, nor were these positions. A group that there is not becomes a simple
        one, of `client_host`. The session timer of the member is paused until the commit is durable."""
        decision = Decision()
        records, offsets = decision.records, self.offsets
        wall_ms = now.wall_ms
        positions = list(positions)
        for topic, partition, offset in positions:
            records.append(offset_record(group_id, topic, partition, offset, wall_ms))
        if records and group_id not in self.groups:
            self._add_group(group_id, self._memory.holder(client_host))
        grown_bytes = sum([offsets.apply(group_id, *position) for position in positions])
        if grown_bytes:
            self._charge(group_id, grown_bytes)
        if records:
            group = self.groups[group_id]
            member = group.pause_session_timer(member_id)
            if member is not None:
                decision.deferred.append(CommitStored(group, member))
        return decision

    def refusal_of_offset_delete(self, group_id: str) -> int:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        is_free = group.state is GroupState.EMPTY or group.protocol_type == CONSUMER
        return ErrorCode.NONE if is_free else ErrorCode.NON_EMPTY_GROUP

    def delete_offsets(self, keys: Iterable[OffsetKey], now: Now) -> Decision:
        """Tombstones for these (group, topic, partition), as far as there are offsets."""
        decision = Decision()
        for group_id, topic, partition in keys:
            if partition in self.offsets.of_topic(group_id, topic):
                self._emit(decision, OffsetCommitKey(group_id, topic, partition), None, now)
        return decision

    # -- whole groups

    def delete_group(self, group_id: str, now: Now) -> tuple[int, Decision]:
        """All at once: see delete_some_offsets for a group of many offsets."""
        code = self.refusal_of_group_delete(group_id)
        if code:
            return code, Decision()
        decision = self.delete_offsets(list(self._offset_keys_of(group_id)), now)
        self._remove_group(decision, self.groups[group_id], now)
        return ErrorCode.NONE, decision

    def refusal_of_group_delete(self, group_id: str) -> int:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is GroupState.DEAD:  # its shard ends: the next one knows it
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def delete_some_offsets(self, group_id: str, count_max: int, now: Now) -> Decision:
        """Tombstones for so many of a group's offsets at most."""
        return self.delete_offsets(list(islice(self._offset_keys_of(group_id), count_max)), now)

    def cleanup(self, now: Now) -> Iterator[Decision]:
        """Retention: offsets that have expired, and groups that have nothing left."""
        group_ids = list(self.groups)
        while group_ids:
            decision, done = self.expire(group_ids, now)
            yield decision
            group_ids = group_ids[done:]

    def expire(self, group_ids: Sequence[str], now: Now) -> tuple[Decision, int]:
        """Retention of the offsets of as many of these groups, from the first on, as one step has time for;
        gives how many are done. A group that has no offset left, and nobody in it, goes too."""
        decision = Decision()
        looked = 0
        for done, group_id in enumerate(group_ids):
            looked += 1 + self.offsets.count_of(group_id)
            if done and looked > EXPIRED_PER_CHUNK:
                return decision, done
            group = self.groups.get(group_id)
            if group is None:
                continue
            expired = self.offsets.plan_expiry(group, now.wall_ms, self._settings.offsets_retention_ms)
            for topic, partition in expired[:EXPIRED_PER_CHUNK]:
                self._emit(decision, OffsetCommitKey(group_id, topic, partition), None, now)
            if len(expired) > EXPIRED_PER_CHUNK:
                return decision, done
            is_idle = group.state is GroupState.EMPTY and not group.has_pending
            if is_idle and not self.offsets.of_group(group_id):
                self._remove_group(decision, group, now)
        return decision, len(group_ids)

    def _offset_keys_of(self, group_id: str) -> Iterator[OffsetKey]:
        by_topic = self.offsets.of_group(group_id)
        return (
            (group_id, topic, partition) for topic, partitions in by_topic.items() for partition in partitions
        )

    def _remove_group(self, decision: Decision, group: Group, now: Now) -> None:
        self._emit(decision, GroupMetadataKey(group.group_id), None, now)
        del self.groups[group.group_id]
        self._recharge(group)
        group.close(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _refused_for_memory(token: object, request: JoinRequest) -> Decision:
    """Clients look for their coordinator's state to be loaded, and ask again."""
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    answer = JoinAnswer(code, request.member_id, is_short_of_memory=True)
    return Decision(replies=[Reply(token, answer)])


def _with_throttle(effect: Effect, refusal: int) -> Effect:
    """A member whose assignment there is no memory for is to wait before it joins again."""
    if refusal == SHORT_OF_MEMORY and isinstance(effect, Reply) and isinstance(effect.answer, SyncAnswer):
        return replace(effect, answer=replace(effect.answer, is_short_of_memory=True))
    return effect


def _timer_if_earlier(group: Group) -> Decision | None:
    """Behind an extended session: a member that joins for the first time had a later deadline until then; no
    other's becomes earlier."""
    return Decision(timers=[_timer_of(group)]) if group.state is GroupState.PREPARING else None


def _timer_of(group: Group) -> tuple[str, int]:
    return group.group_id, group.next_deadline_ms()
