"""Between a group, its offsets, and the records of __consumer_offsets that say them. Pure.

Not here: the records' layout (protocol/coordinator_records.py), when one is written (state_machine.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.broker.coordinators.groups.group import Group
from millrace.broker.coordinators.groups.members import Member
from millrace.broker.coordinators.groups.offsets import CommittedOffset
from millrace.protocol.coordinator_records import (
    CoordinatorKey,
    CoordinatorValue,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from millrace.protocol.errors import WireError
from millrace.protocol.records import Record

NONE: Final = -1  # Kafka's "not told", for timestamps

# What a member takes in the log beside its names and bytes, and a record beside its members; they err
# upwards.
MEMBER_BYTES = 60
GROUP_RECORD_BYTES = 80
# What a group's value takes in memory, and each of its members beside its bytes.
STORED_BYTES = 400
STORED_MEMBER_BYTES = 500


def encode_record(key: CoordinatorKey, value: CoordinatorValue | None, wall_ms: int) -> Record:
    """One record, or with no value the tombstone of `key`. Raises ValueError for text that no record can
    carry."""
    return Record(encode_key(key), None if value is None else encode_value(value), wall_ms)


def decode_record(record: Record) -> tuple[CoordinatorKey, CoordinatorValue | None] | None:
    """Its key, and its value if it is no tombstone; None for a record of another type, of a later version, or
    that is malformed."""
    try:
        key = None if record.key is None else decode_key(record.key)
        if key is None:
            return None
        return key, None if record.value is None else decode_value(key, record.value)
    except WireError:
        return None


# offsets


def offset_value(offset: CommittedOffset) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset.offset,
        offset.leader_epoch,
        offset.metadata,
        offset.committed_ms,
        NONE if offset.expires_ms is None else offset.expires_ms,
        offset.topic_id,
    )


def committed_offset(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        None if value.expire_timestamp == NONE else value.expire_timestamp,
        value.topic_id,
    )


def offset_record(
    group_id: str, topic: str, partition: int, offset: CommittedOffset | None, wall_ms: int
) -> Record:
    value = None if offset is None else offset_value(offset)
    return encode_record(OffsetCommitKey(group_id, topic, partition), value, wall_ms)


# groups


def group_value(group: Group, assignments: Mapping[str, bytes] | None) -> GroupMetadataValue:
    """The group's generation with these assignments; None: with those that the members hold."""
    members = [
        MemberMetadata(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(group.protocol),
            member.assignment if assignments is None else assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    since_ms = NONE if group.state_since_ms is None else group.state_since_ms
    return GroupMetadataValue(
        group.protocol_type or "", group.generation, group.protocol, group.leader, since_ms, members
    )


def restore_group(group: Group, value: GroupMetadataValue, now_ms: int) -> None:
    """Makes a new `group` what the log says of it."""
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol = value.protocol
    group.state_since_ms = None if value.current_state_timestamp == NONE else value.current_state_timestamp
    group.restore([_restored(member, value.protocol) for member in value.members], value.leader, now_ms)


def _restored(member: MemberMetadata, protocol: str | None) -> Member:
    timeout_ms = member.session_timeout if member.rebalance_timeout == NONE else member.rebalance_timeout
    return Member(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        timeout_ms,
        member.session_timeout,
        [(protocol or "", member.subscription)],
        member.assignment,
    )


def stored_bytes(value: GroupMetadataValue) -> int:
    """What the value takes in memory beside the group's members, more or less."""
    return STORED_BYTES + sum(
        STORED_MEMBER_BYTES + len(member.subscription) + len(member.assignment) for member in value.members
    )


def group_bytes(group_id: str, value: GroupMetadataValue) -> int:
    """What the record takes in the log."""
    return GROUP_RECORD_BYTES + len(group_id) + sum(map(_member_bytes, value.members))


def _member_bytes(member: MemberMetadata) -> int:
    names = (
        len(member.member_id)
        + len(member.group_instance_id or "")
        + len(member.client_id)
        + len(member.client_host)
    )
    return MEMBER_BYTES + names + len(member.subscription) + len(member.assignment)


def group_key(group_id: str) -> GroupMetadataKey:
    return GroupMetadataKey(group_id)
