"""Keys and values of __consumer_offsets, and what a consumer's embedded metadata says, declared like
messages.

    key      int16 type (1 offset commit, 2 classic group), then the key's fields; type 0 is an old offset
             commit
    value    int16 version, then the value's fields; no value at all is a tombstone
    member   int16 version, then ConsumerProtocolSubscription or ConsumerProtocolAssignment, inside a group's
             bytes

Not here: what a record does to a group (broker/coordinators/), the batch that it stands in (batches.py). The
newer groups' records have types from 3 on and are kept as they are.

Kept true: types, versions, field order and tags are Kafka's, so that its tools read the topic and we read its
topics; the version written is the one that Kafka 4.3 writes.
"""

from __future__ import annotations

import struct
from typing import Any, Final, TypeAlias, overload

from millrace.protocol.compile import decoder, encoder
from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int32, Int64, Uuid, Versions, array, wire
from millrace.protocol.errors import WireError
from millrace.protocol.primitives import Buffer

LEGACY_OFFSET_COMMIT: Final = 0  # the layout of type 1; only very old brokers wrote it

_INT16 = struct.Struct(">h")


@dataclass(slots=True)
class OffsetCommitKey:
    """Whose position in which partition."""

    KEY = 1
    VERSIONS = Versions(0, 0)

    group: str = ""
    topic: str = ""
    partition: Int32 = 0


@dataclass(slots=True)
class OffsetCommitValue:
    """A committed position."""

    VERSIONS = Versions(0, 4, flexible=4)

    offset: Int64 = 0  # the next one to read
    leader_epoch: Int32 = wire(-1, since=3, ignorable=True)  # of the last record read
    metadata: str = ""  # the client's own
    commit_timestamp: Int64 = 0
    expire_timestamp: Int64 = wire(
        -1, since=1, until=1, ignorable=True
    )  # when the commit asked for a retention
    topic_id: Uuid = wire(NO_UUID, since=4, tag=0, ignorable=True)


@dataclass(slots=True)
class GroupMetadataKey:
    """A classic group."""

    KEY = 2
    VERSIONS = Versions(0, 0)

    group: str = ""


@dataclass(slots=True)
class MemberMetadata:
    """A member of a classic group, as of the generation."""

    member_id: str = ""
    group_instance_id: str | None = wire(None, since=3, ignorable=True)  # of static members
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: Int32 = wire(-1, since=1, ignorable=True)
    session_timeout: Int32 = 0
    subscription: bytes = b""  # of the generation's protocol; for consumers a ConsumerProtocolSubscription
    assignment: bytes = b""


@dataclass(slots=True)
class GroupMetadataValue:
    """A generation of a classic group. One without members is an empty group that keeps its offsets."""

    VERSIONS = Versions(0, 4, flexible=4)

    protocol_type: str = ""  # "consumer" for consumers; Connect and others have their own
    generation: Int32 = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: Int64 = wire(-1, since=2, ignorable=True)
    members: list[MemberMetadata] = array()


@dataclass(slots=True)
class ConsumerProtocolTopicPartition:
    topic: str = ""
    partitions: list[Int32] = array()


@dataclass(slots=True)
class ConsumerProtocolSubscription:
    """What a consumer asks of its group's assignor."""

    VERSIONS = Versions(0, 3)

    topics: list[str] = array()
    user_data: bytes | None = None
    owned_partitions: list[ConsumerProtocolTopicPartition] = array(since=1, ignorable=True)
    generation_id: Int32 = wire(-1, since=2, ignorable=True)
    rack_id: str | None = wire(None, since=3, ignorable=True)


@dataclass(slots=True)
class ConsumerProtocolAssignment:
    """What the assignor gives it."""

    VERSIONS = Versions(0, 3)

    assigned_partitions: list[ConsumerProtocolTopicPartition] = array()
    user_data: bytes | None = None


CoordinatorKey: TypeAlias = OffsetCommitKey | GroupMetadataKey
CoordinatorValue: TypeAlias = OffsetCommitValue | GroupMetadataValue

_KEY_TYPES: Final[dict[int, type[CoordinatorKey]]] = {
    LEGACY_OFFSET_COMMIT: OffsetCommitKey,
    OffsetCommitKey.KEY: OffsetCommitKey,
    GroupMetadataKey.KEY: GroupMetadataKey,
}


def encode_key(key: CoordinatorKey) -> bytes:
    """The key of a record, its type before it."""
    return _INT16.pack(key.KEY) + encoder(type(key), 0)(key)


def decode_key(data: Buffer) -> CoordinatorKey | None:
    """The key of a record; None for one of a type we do not know."""
    key_type = _KEY_TYPES.get(_read_int16(data))
    return None if key_type is None else decoder(key_type, 0)(data, _INT16.size)[0]


def encode_value(value: CoordinatorValue, version: int | None = None) -> bytes:
    """The value of a record, its version before it: the one that Kafka writes unless another is asked for."""
    return _with_version(value, _written_version(value) if version is None else version)


@overload
def decode_value(key: OffsetCommitKey, data: Buffer) -> OffsetCommitValue: ...
@overload
def decode_value(key: GroupMetadataKey, data: Buffer) -> GroupMetadataValue: ...
def decode_value(key: CoordinatorKey, data: Buffer) -> CoordinatorValue:
    """The value that stands under `key`. A later version than we know is malformed: its meaning cannot be
    guessed. Raises WireError."""
    version = _read_int16(data)
    versions = OffsetCommitValue.VERSIONS if isinstance(key, OffsetCommitKey) else GroupMetadataValue.VERSIONS
    if version not in versions:
        raise WireError(f"value of version {version} under {key}")
    if isinstance(key, OffsetCommitKey):
        return decoder(OffsetCommitValue, version)(data, _INT16.size)[0]
    return decoder(GroupMetadataValue, version)(data, _INT16.size)[0]


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int = 3) -> bytes:
    return _with_version(subscription, version)


def decode_subscription(data: Buffer) -> ConsumerProtocolSubscription:
    """A member's subscription. Later versions only add fields at the end, by Kafka's promise, and are read as
    ours."""
    return decoder(ConsumerProtocolSubscription, _known_version(data))(data, _INT16.size)[0]


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int = 3) -> bytes:
    return _with_version(assignment, version)


def decode_assignment(data: Buffer) -> ConsumerProtocolAssignment:
    """A member's assignment; versions as with subscriptions. No bytes at all, as before a sync, assign
    nothing."""
    if not len(data):
        return ConsumerProtocolAssignment()
    return decoder(ConsumerProtocolAssignment, _known_version(data))(data, _INT16.size)[0]


def subscribed_topics(data: Buffer) -> list[str] | None:
    """The topics of a member's subscription, None when it is not a consumer's.

    Read as version 0 whatever it says, as Kafka does: some clients write a version whose later fields they
    leave out.
    """
    try:
        _known_version(data)
        return decoder(ConsumerProtocolSubscription, 0)(data, _INT16.size)[0].topics
    except WireError:
        return None


def _written_version(value: CoordinatorValue) -> int:
    if isinstance(value, GroupMetadataValue):
        return 3
    return 1 if value.expire_timestamp != -1 else 4  # later versions cannot say when a commit expires


def _with_version(value: Any, version: int) -> bytes:
    return _INT16.pack(version) + encoder(type(value), version)(value)


def _read_int16(data: Buffer) -> int:
    if len(data) < _INT16.size:
        raise WireError(f"no version in {len(data)} bytes")
    return int(_INT16.unpack_from(data)[0])


def _known_version(data: Buffer) -> int:
    version = _read_int16(data)
    if version < 0:
        raise WireError(f"consumer protocol of version {version}")
    return min(version, 3)
