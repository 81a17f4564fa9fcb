"""Records of __consumer_offsets and consumers' metadata against bytes that Kafka 4.3.1's own serializers
wrote."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment as TheirAssignment
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription as TheirSubscription

from millrace.protocol.coordinator_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_assignment,
    decode_key,
    decode_subscription,
    decode_value,
    encode_assignment,
    encode_key,
    encode_subscription,
    encode_value,
    subscribed_topics,
)
from millrace.protocol.errors import WireError

COMMIT_KEY = OffsetCommitKey("grp", "top", 5)
GROUP_KEY = GroupMetadataKey("grp")
TOPIC_ID = bytes(range(1, 17))
NOW_MS = 1_700_000_000_000


def commit(**changes: Any) -> OffsetCommitValue:
    fields: dict[str, Any] = {
        "offset": 1234567890123,
        "leader_epoch": 7,
        "metadata": "meta é",
        "commit_timestamp": NOW_MS,
        "expire_timestamp": NOW_MS + 9999,
        "topic_id": TOPIC_ID,
    }
    return OffsetCommitValue(**fields | changes)


def group(**changes: Any) -> GroupMetadataValue:
    static = MemberMetadata("m-1", "inst", "cl", "/1.2.3.4", 300_000, 45_000, b"\1\2\3", b"\4\5")
    dynamic = MemberMetadata("m-2", None, "", "", 1, 2, b"", b"")
    for member in (static, dynamic):
        member.rebalance_timeout = changes.get("rebalance_timeout", member.rebalance_timeout)
    if not changes.pop("has_instance", True):
        static.group_instance_id = None
    changes.pop("rebalance_timeout", None)
    return GroupMetadataValue(**{
        "protocol_type": "consumer",
        "generation": 3,
        "protocol": "range",
        "leader": "m-1",
        "current_state_timestamp": NOW_MS,
        "members": [static, dynamic],
    } | changes)  # fmt: skip


KEYS = [
    (COMMIT_KEY, "0001 0003 677270 0003 746f70 00000005"),
    (GROUP_KEY, "0002 0003 677270"),
]

OFFSET = "0000011f71fb04cb"
METADATA = "0007 6d65746120c3a9"
TIMESTAMP = "0000018bcfe56800"
# version, bytes, and what the version cannot say
COMMITS = [
    (
        0,
        f"0000 {OFFSET} {METADATA} {TIMESTAMP}",
        commit(leader_epoch=-1, expire_timestamp=-1, topic_id=bytes(16)),
    ),
    (
        1,
        f"0001 {OFFSET} {METADATA} {TIMESTAMP} 0000018bcfe58f0f",
        commit(leader_epoch=-1, topic_id=bytes(16)),
    ),
    (
        2,
        f"0002 {OFFSET} {METADATA} {TIMESTAMP}",
        commit(leader_epoch=-1, expire_timestamp=-1, topic_id=bytes(16)),
    ),
    (3, f"0003 {OFFSET} 00000007 {METADATA} {TIMESTAMP}", commit(expire_timestamp=-1, topic_id=bytes(16))),
    (
        4,
        f"0004 {OFFSET} 00000007 08 6d65746120c3a9 {TIMESTAMP} 01 00 10 {TOPIC_ID.hex()}",
        commit(expire_timestamp=-1),
    ),
]

HEAD = "0008 636f6e73756d6572 00000003 0005 72616e6765 0003 6d2d31"
CLIENT = "0002 636c 0008 2f312e322e332e34"
TAIL = "0000afc8 00000003 010203 00000002 0405"
EMPTY_TAIL = "00000002 00000000 00000000"
GROUPS = [
    (
        0,
        f"0000 {HEAD} 00000002 0003 6d2d31 {CLIENT} {TAIL} 0003 6d2d32 0000 0000 {EMPTY_TAIL}",
        group(current_state_timestamp=-1, rebalance_timeout=-1, has_instance=False),
    ),
    (
        1,
        f"0001 {HEAD} 00000002 0003 6d2d31 {CLIENT} 000493e0 {TAIL} 0003 6d2d32 0000 0000 00000001 "
        f"{EMPTY_TAIL}",
        group(current_state_timestamp=-1, has_instance=False),
    ),
    (
        2,
        f"0002 {HEAD} {TIMESTAMP} 00000002 0003 6d2d31 {CLIENT} 000493e0 {TAIL}"
        f"0003 6d2d32 0000 0000 00000001 {EMPTY_TAIL}",
        group(has_instance=False),
    ),
    (
        3,
        f"0003 {HEAD} {TIMESTAMP} 00000002 0003 6d2d31 0004 696e7374 {CLIENT} 000493e0 {TAIL}"
        f"0003 6d2d32 ffff 0000 0000 00000001 {EMPTY_TAIL}",
        group(),
    ),
    (
        4,
        f"0004 09 636f6e73756d6572 00000003 06 72616e6765 04 6d2d31 {TIMESTAMP} 03"
        "04 6d2d31 05 696e7374 03 636c 09 2f312e322e332e34 000493e0 0000afc8 04 010203 03 0405 00"
        "04 6d2d32 00 01 01 00000001 00000002 01 01 00 00",
        group(),
    ),
]
VALUES = [(COMMIT_KEY, *row) for row in COMMITS] + [(GROUP_KEY, *row) for row in GROUPS]


@pytest.mark.parametrize(("key", "written"), KEYS)
def test_keys_are_kafkas(key: Any, written: str) -> None:
    """Keys are the bytes that Kafka writes, and are read back."""
    assert encode_key(key) == bytes.fromhex(written)
    assert decode_key(memoryview(bytes.fromhex(written))) == key


def test_old_offset_commits_are_read() -> None:
    """Type 0, which only very old brokers wrote, is the same key, and its value a version 0."""
    assert decode_key(bytes.fromhex("0000 0003 677270 0003 746f70 00000005")) == COMMIT_KEY


@pytest.mark.parametrize("key_type", [3, 17, 99, -1])
def test_keys_of_other_types_are_stepped_over(key_type: int) -> None:
    """What the newer group protocols write beside ours is no error."""
    assert decode_key(key_type.to_bytes(2, "big", signed=True) + b"whatever") is None


@pytest.mark.parametrize(("key", "version", "written", "value"), VALUES)
def test_values_are_kafkas_in_every_version(key: Any, version: int, written: str, value: Any) -> None:
    """Each version of each value is the bytes that Kafka writes, and is read back less what it cannot say."""
    data = bytes.fromhex(written)
    full = commit() if key is COMMIT_KEY else group()
    assert encode_value(full, version) == data
    assert decode_value(key, memoryview(data)) == value
    assert encode_value(value, version) == data


def test_an_empty_group_is_kafkas() -> None:
    """A group whose members have gone has no protocol and no leader, and is written as Kafka writes it."""
    value = GroupMetadataValue()
    data = bytes.fromhex("0003 0000 00000000 ffff ffff ffffffffffffffff 00000000")
    assert encode_value(value) == data
    assert decode_value(GROUP_KEY, data) == value


def test_the_version_written_is_kafkas() -> None:
    """A commit is version 4, with an expiry 1, which alone can say it; a group is version 3."""
    assert encode_value(commit())[:2] == b"\0\1"
    assert encode_value(commit(expire_timestamp=-1))[:2] == b"\0\4"
    assert encode_value(group())[:2] == b"\0\3"
    without_id = OffsetCommitValue(1, commit_timestamp=NOW_MS)
    assert encode_value(without_id).hex() == "00040000000000000001ffffffff010000018bcfe5680000"


@pytest.mark.parametrize("key", [COMMIT_KEY, GROUP_KEY])
@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_values_of_unknown_versions_are_refused(key: Any, version: int) -> None:
    """A value whose version we do not know is not guessed at."""
    with pytest.raises(WireError):
        decode_value(key, version.to_bytes(2, "big", signed=True) + bytes(100))


def test_a_record_cut_anywhere_is_malformed() -> None:
    """No prefix of a key or a value is read as one."""
    for key, written in KEYS:
        for size in range(len(bytes.fromhex(written))):
            with pytest.raises(WireError):
                decode_key(encode_key(key)[:size])
    for key, _version, written, _value in VALUES:
        data = bytes.fromhex(written)
        for size in range(len(data)):
            with pytest.raises(WireError):
                decode_value(key, data[:size])


TEXT = st.text(max_size=20)
INT32 = st.integers(min_value=-(2**31), max_value=2**31 - 1)
INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)


@given(TEXT, TEXT, INT32, INT64, INT32, TEXT, INT64, st.binary(min_size=16, max_size=16))
def test_any_commit_is_read_back(
    name: str,
    topic: str,
    partition: int,
    offset: int,
    epoch: int,
    metadata: str,
    timestamp: int,
    topic_id: bytes,
) -> None:
    """Whatever is committed comes back from the bytes that are written by default."""
    key = OffsetCommitKey(name, topic, partition)
    value = OffsetCommitValue(offset, epoch, metadata, timestamp, topic_id=topic_id)
    assert decode_key(encode_key(key)) == key
    assert decode_value(key, encode_value(value)) == value


SUBSCRIPTIONS = [
    (0, "0000 00000002 0001 61 0005 746f706963 00000002 0908"),
    (1, "0001 00000002 0001 61 0005 746f706963 00000002 0908 00000001 0001 61 00000002 00000000 00000003"),
    (
        2,
        "0002 00000002 0001 61 0005 746f706963 00000002 0908 00000001 0001 61 00000002 00000000 00000003 "
        "00000004",
    ),
    (
        3,
        "0003 00000002 0001 61 0005 746f706963 00000002 0908 00000001 0001 61 00000002 00000000 00000003 "
        "00000004"
        "0002 7231",
    ),
]


def subscription(version: int) -> ConsumerProtocolSubscription:
    value = ConsumerProtocolSubscription(["a", "topic"], b"\x09\x08")
    if version >= 1:
        value.owned_partitions = [ConsumerProtocolTopicPartition("a", [0, 3])]
    if version >= 2:
        value.generation_id = 4
    if version >= 3:
        value.rack_id = "r1"
    return value


@pytest.mark.parametrize(("version", "written"), SUBSCRIPTIONS)
def test_subscriptions_are_kafkas(version: int, written: str) -> None:
    """Each version of a subscription is the bytes that Java's consumer sends."""
    data = bytes.fromhex(written)
    assert encode_subscription(subscription(3), version) == data
    assert decode_subscription(memoryview(data)) == subscription(version)
    assert subscribed_topics(data) == ["a", "topic"]


@pytest.mark.parametrize("version", range(4))
def test_assignments_are_kafkas(version: int) -> None:
    """Each version of an assignment is the bytes that Java's leader gives, null user data included."""
    data = bytes.fromhex(f"{version:04x} 00000001 0001 61 00000002 00000000 00000003 ffffffff")
    value = ConsumerProtocolAssignment([ConsumerProtocolTopicPartition("a", [0, 3])])
    assert encode_assignment(value, version) == data
    assert decode_assignment(data) == value


def test_a_member_that_was_given_nothing_has_no_bytes() -> None:
    """Before its first sync a member's assignment is empty bytes, which assign nothing."""
    assert decode_assignment(b"") == ConsumerProtocolAssignment()


def test_later_versions_are_read_as_the_last_we_know() -> None:
    """A version from the future has what ours has, and more behind it."""
    later = b"\x00\x09" + encode_subscription(subscription(3))[2:] + b"more"
    assert decode_subscription(later) == subscription(3)
    assert subscribed_topics(later) == ["a", "topic"]
    assignment = ConsumerProtocolAssignment([ConsumerProtocolTopicPartition("a", [1])], b"u")
    assert decode_assignment(b"\x00\x04" + encode_assignment(assignment)[2:] + b"more") == assignment


def test_topics_are_found_where_the_rest_is_broken() -> None:
    """The topics of a subscription are read although fields of its version are missing; what is none has no
    topics."""
    data = encode_subscription(subscription(0), 0)
    assert subscribed_topics(b"\x00\x01" + data[2:]) == ["a", "topic"]
    with pytest.raises(WireError):
        decode_subscription(b"\x00\x01" + data[2:])
    for other in (b"", b"\x00", b"\xff\xff" + data[2:], data[:-1], b"connect metadata", bytes(3)):
        assert subscribed_topics(other) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_metadata_or_malformed(data: bytes) -> None:
    """What clients put into a group's metadata is theirs; reading it raises nothing but WireError."""
    for decode in (decode_subscription, decode_assignment, decode_key):
        try:
            decode(data)
        except WireError:
            pass
    subscribed_topics(data)


@pytest.mark.parametrize("version", range(4))
def test_kafka_python_and_we_agree(version: int) -> None:
    """kafka-python's consumer reads our subscriptions and assignments, and we read its, in every version."""
    theirs = TheirSubscription.decode(encode_subscription(subscription(version), version))
    assert (theirs.topics, theirs.user_data) == (["a", "topic"], b"\x09\x08")
    assert decode_subscription(theirs.encode()) == subscription(version)
    value = ConsumerProtocolAssignment([ConsumerProtocolTopicPartition("a", [0, 3])], b"u")
    their_assignment = TheirAssignment.decode(encode_assignment(value, version))
    assert [(part.topic, part.partition) for part in their_assignment.partitions()] == [("a", 0), ("a", 3)]
    assert decode_assignment(their_assignment.encode()) == value


def test_aiokafka_and_we_agree() -> None:
    """aiokafka's consumer, which writes version 0, is read, and reads ours."""
    assert decode_subscription(
        ConsumerProtocolMemberMetadata(0, ["a", "topic"], b"\x09\x08").encode()
    ) == subscription(0)
    theirs = ConsumerProtocolMemberAssignment(0, [("a", [0, 3])], b"")
    value = ConsumerProtocolAssignment([ConsumerProtocolTopicPartition("a", [0, 3])], b"")
    assert decode_assignment(theirs.encode()) == value
    assert ConsumerProtocolMemberAssignment.decode(encode_assignment(value, 0)).assignment == [("a", [0, 3])]
