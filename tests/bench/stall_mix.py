"""Requests that ask for much at once, one by one, for whoever looks how long each holds a broker's loop.

`steps(count)` gives (name, what to do with a client), to be done in that order: the later ones use what the
earlier ones made. `count` is how many partitions, offsets or groups one names. Every answer's codes are
looked at. Not here: measuring (stalls.py, tests/attack).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.delete_groups import DeleteGroupsRequest
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from millrace.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.protocol.messages.list_groups import ListGroupsRequest
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.bench.stall_wide import wide_steps
from tests.live.client import Client

TIMEOUT_MS = 60_000
WIDE, MANY, GROUP, JOINED = "wide", "many-{}", "stalls", "joined"
TOPIC_RESOURCE = 2
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
TRIES_MAX = 600
JOIN_BYTES_MAX = 4_000_000

Step = Callable[[Client], object]


def steps(count: int, opened: int, offsets: int) -> Iterator[tuple[str, Step]]:
    """`opened`: partitions that are opened and asked one by one; `offsets`: committed ones of a topic that is
    then deleted."""
    yield "CreateTopics, one of many partitions", lambda client: create(client, [(WIDE, count // 2)])
    yield "CreatePartitions", lambda client: widen(client, WIDE, count)
    names = [MANY.format(index) for index in range(count // 2)]
    yield "CreateTopics, many of one partition", lambda client: create(client, [(name, 1) for name in names])
    yield "Metadata, all", metadata
    yield "Metadata, all, again", metadata
    yield "Metadata, one topic", lambda client: metadata_of(client, WIDE)
    yield "DescribeTopicPartitions", describe_partitions
    yield "DescribeConfigs", lambda client: describe_configs(client, names)
    yield "DescribeConfigs, many keys", lambda client: describe_keys(client, 10 * count)
    yield "IncrementalAlterConfigs", lambda client: alter_configs(client, names)
    yield "IncrementalAlterConfigs, many keys", lambda client: remove_keys(client, 10 * count)
    yield "ListOffsets", lambda client: list_offsets(client, opened)
    yield "DeleteRecords", lambda client: delete_records(client, opened)
    yield "DescribeLogDirs", describe_log_dirs
    yield "FindCoordinator", find_coordinator
    yield "OffsetCommit, one group", lambda client: commit(client, GROUP, WIDE, count)
    yield "OffsetFetch, all of it", lambda client: fetch_offsets(client, GROUP)
    yield "OffsetCommit, many groups", lambda client: commit_groups(client, count // 2)
    yield "ListGroups", lambda client: client.ask("ListGroups", ListGroupsRequest())
    yield "OffsetDelete", lambda client: delete_offsets(client, GROUP, WIDE, count)
    yield "DeleteGroups", lambda client: delete_groups(client, count // 2)
    yield "OffsetCommit, one group again", lambda client: commit(client, GROUP, WIDE, count)
    yield "DeleteGroups, one of many offsets", lambda client: delete_named(client, [GROUP])
    yield "JoinGroup and SyncGroup", join
    yield f"{offsets:,} offsets committed", lambda client: commit_often(client, WIDE, count, offsets)
    yield f"DeleteTopics, one with {offsets:,} offsets", lambda client: delete(client, [WIDE])
    yield "what follows the deletion", lambda client: metadata_of(client, names[0])
    yield "DeleteTopics, many", lambda client: delete(client, names)
    yield from wide_steps(offsets)


def create(client: Client, topics: list[tuple[str, int]]) -> None:
    """10,000 partitions a request at most: more is refused whole."""
    configs = [CreatableTopicConfig("retention.ms", "86400000")]
    asked = [CreatableTopic(name, partitions, 1, configs=configs) for name, partitions in topics]
    answer = client.ask("CreateTopics", CreateTopicsRequest(asked, TIMEOUT_MS))
    check(topic.error_code for topic in answer.topics)


def widen(client: Client, topic: str, count: int) -> None:
    request = CreatePartitionsRequest([CreatePartitionsTopic(topic, count, None)], TIMEOUT_MS)
    check(result.error_code for result in client.ask("CreatePartitions", request).results)


def delete(client: Client, names: list[str]) -> None:
    request = DeleteTopicsRequest([DeleteTopicState(name) for name in names], timeout_ms=TIMEOUT_MS)
    check(topic.error_code for topic in client.ask("DeleteTopics", request).responses)


def metadata(client: Client) -> None:
    check(topic.error_code for topic in client.ask("Metadata", MetadataRequest(topics=None), 12).topics)


def metadata_of(client: Client, topic: str) -> None:
    request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    check(found.error_code for found in client.ask("Metadata", request, 12).topics)


def describe_partitions(client: Client) -> None:
    request = DescribeTopicPartitionsRequest([TopicRequest(WIDE)])
    check(topic.error_code for topic in client.ask("DescribeTopicPartitions", request).topics)


def describe_configs(client: Client, names: list[str]) -> None:
    request = DescribeConfigsRequest(
        [DescribeConfigsResource(TOPIC_RESOURCE, name, None) for name in names], True
    )
    check(result.error_code for result in client.ask("DescribeConfigs", request).results)


def alter_configs(client: Client, names: list[str]) -> None:
    changes = [AlterableConfig("retention.ms", 0, "3600000"), AlterableConfig("segment.bytes", 0, "1048576")]
    request = IncrementalAlterConfigsRequest(
        [AlterConfigsResource(TOPIC_RESOURCE, name, changes) for name in names]
    )
    check(response.error_code for response in client.ask("IncrementalAlterConfigs", request).responses)


def describe_keys(client: Client, count: int) -> None:
    """Of one topic, which has none of them."""
    named = DescribeConfigsResource(TOPIC_RESOURCE, WIDE, [f"no.such-{index}" for index in range(count)])
    check(
        result.error_code for result in client.ask("DescribeConfigs", DescribeConfigsRequest([named])).results
    )


def remove_keys(client: Client, count: int) -> None:
    """Unknown ones of one topic, which may be removed."""
    removed = [AlterableConfig(f"no.such-{index}", 1, None) for index in range(count)]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(TOPIC_RESOURCE, WIDE, removed)])
    check(response.error_code for response in client.ask("IncrementalAlterConfigs", request).responses)


def list_offsets(client: Client, count: int) -> None:
    asked = [ListOffsetsPartition(index, -1, -1) for index in range(count)]
    answer = client.ask("ListOffsets", ListOffsetsRequest(-1, 0, [ListOffsetsTopic(WIDE, asked)]))
    check(partition.error_code for topic in answer.topics for partition in topic.partitions)


def delete_records(client: Client, count: int) -> None:
    asked = [DeleteRecordsPartition(index, -1) for index in range(count)]
    answer = client.ask("DeleteRecords", DeleteRecordsRequest([DeleteRecordsTopic(WIDE, asked)], TIMEOUT_MS))
    check(partition.error_code for topic in answer.topics for partition in topic.partitions)


def describe_log_dirs(client: Client) -> None:
    check(result.error_code for result in client.ask("DescribeLogDirs", DescribeLogDirsRequest(None)).results)


def commit(client: Client, group: str, topic: str, count: int) -> None:
    """Again while the shard is being read, or has as much in its line as it takes."""
    asked = [OffsetCommitRequestPartition(index, index, -1, "somewhere") for index in range(count)]
    request = OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(topic, partitions=asked)])
    for _ in range(TRIES_MAX):
        answer = client.ask("OffsetCommit", request, 9)
        codes = {partition.error_code for found in answer.topics for partition in found.partitions}
        if not codes & PASSING:
            break
        time.sleep(0.05)
    check(codes)


def find_coordinator(client: Client) -> None:
    """Makes the topic that offsets are kept in."""
    for _ in range(TRIES_MAX):
        answer = client.ask(
            "FindCoordinator", FindCoordinatorRequest(coordinator_keys=[GROUP]), 4
        ).coordinators[0]
        if answer.error_code not in PASSING:
            break
        time.sleep(0.05)
    check([answer.error_code])


def commit_groups(client: Client, count: int) -> None:
    for index in range(count):
        commit(client, f"{GROUP}-{index}", WIDE, 1)


def commit_often(client: Client, topic: str, count: int, offsets: int) -> None:
    """By groups that each commit the first `count` partitions."""
    for index in range(-(-offsets // count)):
        commit(client, f"wide-{index}", topic, count)


def fetch_offsets(client: Client, group: str) -> None:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
    check(found.error_code for found in client.ask("OffsetFetch", request, 8).groups)


def delete_offsets(client: Client, group: str, topic: str, count: int) -> None:
    asked = [OffsetDeleteRequestPartition(index) for index in range(count)]
    answer = client.ask("OffsetDelete", OffsetDeleteRequest(group, [OffsetDeleteRequestTopic(topic, asked)]))
    check(
        [
            answer.error_code,
            *(partition.error_code for found in answer.topics for partition in found.partitions),
        ]
    )


def delete_groups(client: Client, count: int) -> None:
    delete_named(client, [f"{GROUP}-{index}" for index in range(count)])


def delete_named(client: Client, groups: list[str]) -> None:
    answer = client.ask("DeleteGroups", DeleteGroupsRequest(groups))
    check(result.error_code for result in answer.results)


def join(client: Client) -> None:
    """A member alone with as much text of its own, and of its assignment, as a record takes."""
    text = random.Random(1).randbytes(JOIN_BYTES_MAX // 4)
    protocols = [JoinGroupRequestProtocol("range", text)]
    request = JoinGroupRequest(JOINED, 30_000, 60_000, protocol_type="consumer", protocols=protocols)
    answer = client.ask("JoinGroup", request, 3)
    check([answer.error_code])
    assignments = [SyncGroupRequestAssignment(answer.member_id, text)]
    synced = SyncGroupRequest(JOINED, answer.generation_id, answer.member_id, assignments=assignments)
    check([client.ask("SyncGroup", synced, 2).error_code])


def check(codes: Any) -> None:
    found = sorted({code for code in codes if code})
    assert not found, f"error codes {found}"
