"""What a test asks of its broker, as conversations without sockets: generators that yield requests and take
responses.

Each is run by wire.py, blocking or on a loop, so that it is written once. It yields a `Call`, and is sent the
response; or seconds to wait. The versions are those that name topics by name. Kept true: a partition's
refusal is an exception that names the partition.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.protocol.error_codes import ErrorCode
from millrace.testing.errors import NotEnoughRecords, Refused
from millrace.testing.values import Place, Record, TopicPartition, Value, encoded, partition_of

if TYPE_CHECKING:
    from millrace.protocol.records import Record as WireRecord

T = TypeVar("T")
LATEST, EARLIEST = -1, -2
TIMEOUT_MS = 30_000
FETCH_BYTES = 8 << 20
RETRY_S = 0.02
OFFSETS_TOPIC = "__consumer_offsets"
COORDINATOR_COMING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
CREATION_S = 10.0  # for a topic that was asked for to have leaders


@dataclass(frozen=True, slots=True)
class Call:
    """`api`: as protocol/apis.py names it."""

    api: str
    version: int
    request: Any


Conversation = Generator[Call | float, Any, T]


def message(api: str, kind: str, **fields: Any) -> Any:
    """A request or a part of one, by the name of its class: modules of messages are loaded when they are
    needed."""
    from importlib import import_module

    return getattr(import_module(f"millrace.protocol.messages.{api}"), kind)(**fields)


def refused(what: str, code: int, text: str | None = None) -> Refused:
    name = ErrorCode(code).name if code in list(ErrorCode) else "unknown code"
    return Refused(what, code, name, text)


def check(what: str, code: int, text: str | None = None) -> None:
    if code:
        raise refused(what, code, text)


# Topics


def describe_topics(names: Sequence[str] | None, *, creates: bool = False) -> Conversation[list[Any]]:
    topics = None
    if names is not None:
        topics = [message("metadata", "MetadataRequestTopic", name=name) for name in names]
    request = message("metadata", "MetadataRequest", topics=topics, allow_auto_topic_creation=creates)
    response = yield Call("Metadata", 12, request)
    found: list[Any] = response.topics
    return found


def topics() -> Conversation[list[str]]:
    found = yield from describe_topics(None)
    return sorted(topic.name for topic in found if not topic.is_internal)


def partitions_of(topic: str, *, creates: bool = False) -> Conversation[list[int] | None]:
    """Its partitions; None for a topic that there is not. `creates`: waits until it has leaders."""
    deadline = time.monotonic() + CREATION_S
    while True:
        (found,) = yield from describe_topics([topic], creates=creates)
        has_leaders = found.partitions and all(each.leader_id >= 0 for each in found.partitions)
        if not found.error_code and has_leaders:
            return sorted(each.partition_index for each in found.partitions)
        is_coming = found.error_code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.LEADER_NOT_AVAILABLE,
            0,
        )
        if not creates and found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if not is_coming or time.monotonic() > deadline:
            check(f"topic {topic}", found.error_code or ErrorCode.LEADER_NOT_AVAILABLE)
        yield RETRY_S


def create_topic(topic: str, partitions: int, config: Mapping[str, str]) -> Conversation[None]:
    made = message(
        "create_topics",
        "CreatableTopic",
        name=topic,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[
            message("create_topics", "CreatableTopicConfig", name=key, value=text)
            for key, text in config.items()
        ],
    )
    request = message("create_topics", "CreateTopicsRequest", topics=[made], timeout_ms=TIMEOUT_MS)
    response = yield Call("CreateTopics", 7, request)
    for result in response.topics:
        check(f"create topic {topic}", result.error_code, result.error_message)
    yield from partitions_of(topic, creates=True)


def delete_topics(names: Sequence[str]) -> Conversation[None]:
    """Those that are gone already are no error."""
    states = [message("delete_topics", "DeleteTopicState", name=name) for name in names]
    request = message("delete_topics", "DeleteTopicsRequest", topics=states, timeout_ms=TIMEOUT_MS)
    response = yield Call("DeleteTopics", 6, request)
    for result in response.responses:
        if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(f"delete topic {result.name}", result.error_code, result.error_message)


# Records


def produce(
    topic: str,
    values: Sequence[Value],
    key: Value,
    headers: Mapping[str, Value],
    partition: int | None,
    timestamp: int | None,
) -> Conversation[list[Place]]:
    """All in one batch; they are durable, as far as test mode goes, on return."""
    from millrace.protocol.records import Record as WireRecord

    if not values:
        return []
    raw_key = encoded(key)
    indexes = yield from partitions_of(topic, creates=True)
    assert indexes is not None
    index = place_of(raw_key, indexes) if partition is None else partition
    now = now_ms() if timestamp is None else timestamp
    raw_headers = tuple((name.encode(), encoded(text)) for name, text in headers.items())
    base = yield from write_batch(
        topic, index, [WireRecord(raw_key, encoded(value), now, raw_headers) for value in values]
    )
    return [Place(topic, index, base + place) for place in range(len(values))]


def place_of(key: bytes | None, indexes: Sequence[int]) -> int:
    return 0 if key is None else partition_of(key, len(indexes))


def now_ms() -> int:
    return int(time.time() * 1000)


def write_batch(topic: str, index: int, records: Sequence[WireRecord]) -> Conversation[int]:
    """The offset of the first."""
    from millrace.protocol.batch_build import build_batch

    data = message("produce", "PartitionProduceData", index=index, records=build_batch(records))
    request = message(
        "produce",
        "ProduceRequest",
        acks=-1,
        timeout_ms=TIMEOUT_MS,
        topic_data=[message("produce", "TopicProduceData", name=topic, partition_data=[data])],
    )
    response = yield Call("Produce", 12, request)
    part = response.responses[0].partition_responses[0]
    check(f"produce to {topic}-{index}", part.error_code, part.error_message)
    base: int = part.base_offset
    return base


def offsets(places: Iterable[TopicPartition], timestamp: int) -> Conversation[dict[TopicPartition, int]]:
    """The offset at `timestamp` of each: LATEST or EARLIEST."""
    request = message("list_offsets", "ListOffsetsRequest", replica_id=-1)
    for topic, index in places:
        part = message("list_offsets", "ListOffsetsPartition", partition_index=index, timestamp=timestamp)
        request.topics.append(message("list_offsets", "ListOffsetsTopic", name=topic, partitions=[part]))
    response = yield Call("ListOffsets", 7, request)
    found = {}
    for answer in response.topics:
        for each in answer.partitions:
            check(f"offsets of {answer.name}-{each.partition_index}", each.error_code)
            found[TopicPartition(answer.name, each.partition_index)] = each.offset
    return found


def records(topic: str) -> Conversation[list[Record]]:
    """All that the topic holds, by partition and offset; none of a topic that there is not."""
    found = yield from read(topic, {}, 0)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def wait_for_records(topic: str, count: int, timeout_s: float) -> Conversation[list[Record]]:
    """All that the topic holds, once that is `count` records. NotEnoughRecords when the time is over."""
    deadline = time.monotonic() + timeout_s
    positions: dict[int, int] = {}
    found: list[Record] = []
    while True:
        left_s = deadline - time.monotonic()
        wait_s = 0.0 if len(found) >= count else max(0.0, left_s)
        found += yield from read(topic, positions, int(wait_s * 1000))
        if len(found) >= count:
            return sorted(found, key=lambda record: (record.partition, record.offset))
        if left_s <= 0:
            shown = "".join(f"\n  {each.partition}@{each.offset}: {each.value!r}" for each in found[:20])
            raise NotEnoughRecords(
                f"after {timeout_s:g} s topic {topic} holds {len(found)} of {count} records{shown}"
            )
        if not positions:  # there is no such topic yet
            yield min(RETRY_S, left_s)


def read(topic: str, positions: dict[int, int], wait_ms: int) -> Conversation[list[Record]]:
    """What follows `positions`, to the end; they move on. Without any, from the beginning. Waits that long
    while there is nothing."""
    if not positions:
        indexes = yield from partitions_of(topic)
        if indexes is None:
            return []
        starts = yield from offsets([TopicPartition(topic, index) for index in indexes], EARLIEST)
        positions |= {place.partition: offset for place, offset in starts.items()}
    found: list[Record] = []
    is_behind = True
    while is_behind:
        response = yield Call("Fetch", 12, fetch_request(topic, positions, 0 if found else wait_ms))
        check(f"read topic {topic}", response.error_code)
        is_behind = False
        for answer in response.responses:
            for part in answer.partitions:
                check(f"read {topic}-{part.partition_index}", part.error_code)
                before = positions[part.partition_index]
                found += take_records(topic, part, positions)
                has_moved = positions[part.partition_index] > before
                is_behind |= has_moved and positions[part.partition_index] < part.high_watermark
        wait_ms = 0
    return found


def fetch_request(topic: str, positions: Mapping[int, int], wait_ms: int) -> Any:
    parts = [
        message(
            "fetch", "FetchPartition", partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        for index, offset in positions.items()
    ]
    return message(
        "fetch",
        "FetchRequest",
        max_wait_ms=wait_ms,
        min_bytes=1,
        topics=[message("fetch", "FetchTopic", topic=topic, partitions=parts)],
    )


def take_records(topic: str, part: Any, positions: dict[int, int]) -> list[Record]:
    """Of one partition's answer; its position moves behind them. What lies before the position is left out,
    and so is half a batch. Raises ValueError where the first batch cannot be read."""
    from millrace.protocol.batches import iter_headers
    from millrace.protocol.errors import WireError
    from millrace.protocol.records import iter_records

    index = part.partition_index
    view = memoryview(part.records or b"")
    found = []
    try:
        for start, header in iter_headers(view):
            if start + header.size_bytes > len(view):
                break
            for each in [] if header.is_control else iter_records(view[start : start + header.size_bytes]):
                if each.offset >= positions[index]:
                    headers = tuple((name.decode(errors="replace"), value) for name, value in each.headers)
                    found.append(
                        Record(topic, index, each.offset, each.timestamp, each.key, each.value, headers)
                    )
            positions[index] = max(positions[index], header.last_offset + 1)
    except WireError as error:
        if not found:
            raise ValueError(f"{topic}-{index} at {positions[index]} cannot be read: {error}") from error
    return found


# Groups


def groups() -> Conversation[dict[str, str]]:
    """Their states by name."""
    response = yield Call("ListGroups", 4, message("list_groups", "ListGroupsRequest"))
    check("list groups", response.error_code)
    return {group.group_id: group.group_state for group in response.groups}


def committed(group: str) -> Conversation[dict[TopicPartition, int]]:
    """The group's offsets; none of a group that there is not."""
    asked = message("offset_fetch", "OffsetFetchRequestGroup", group_id=group, topics=None)
    request = message("offset_fetch", "OffsetFetchRequest", groups=[asked])
    deadline = time.monotonic() + CREATION_S
    while True:
        response = yield Call("OffsetFetch", 8, request)
        (answer,) = response.groups
        if answer.error_code not in COORDINATOR_COMING or time.monotonic() > deadline:
            break
        (internal,) = yield from describe_topics([OFFSETS_TOPIC])
        if internal.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return {}  # no group has committed anything here
        yield RETRY_S
    check(f"offsets of group {group}", answer.error_code)
    found = {}
    for topic in answer.topics:
        for part in topic.partitions:
            check(f"offset of group {group} in {topic.name}-{part.partition_index}", part.error_code)
            if part.committed_offset >= 0:
                found[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
    return found


def lag(group: str, topic: str | None) -> Conversation[int]:
    """Records behind what the group committed, of `topic` or of every topic that it committed offsets of. A
    partition without an offset counts whole."""
    positions = yield from committed(group)
    names = {place.topic for place in positions} if topic is None else {topic}
    total = 0
    for name in sorted(names):
        indexes = yield from partitions_of(name)
        places = [TopicPartition(name, index) for index in indexes or []]
        starts = yield from offsets(places, EARLIEST)
        ends = yield from offsets(places, LATEST)
        total += sum(ends[place] - max(starts[place], positions.get(place, 0)) for place in places)
    return total


def members(group: str) -> Conversation[list[Any]]:
    request = message("describe_groups", "DescribeGroupsRequest", groups=[group])
    response = yield Call("DescribeGroups", 5, request)
    (described,) = response.groups
    check(f"group {group}", described.error_code)
    found: list[Any] = described.members
    return found


def expire_member(group: str, member: str) -> Conversation[None]:
    """As if its session had timed out: it is out of the group, which rebalances. `member`: its member id,
    group.instance.id or client.id. Raises LookupError where the group has no such member."""
    present = yield from members(group)
    names = [(each.member_id, each.group_instance_id, each.client_id) for each in present]
    leaving = [each for each, own in zip(present, names, strict=True) if member in own]
    if not leaving:
        raise LookupError(f"group {group} has no member {member!r}: its members are {names}")
    yield from remove_members(group, leaving)


def remove_members(group: str, leaving: Sequence[Any]) -> Conversation[None]:
    identities = [message("leave_group", "MemberIdentity", member_id=each.member_id) for each in leaving]
    response = yield Call(
        "LeaveGroup", 5, message("leave_group", "LeaveGroupRequest", group_id=group, members=identities)
    )
    check(f"members of group {group}", response.error_code)
