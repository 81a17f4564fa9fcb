"""Questions about one thing, asked again and again in one request: a few bytes each, and each answer would be
kilobytes or megabytes.

15 KB of DescribeConfigs made a reply of 180 MB, beside `memory.max.bytes` of 256 MiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.handlers.describe_configs import NEVER_MISSING_MAX, RESOURCES_PER_CHUNK, TOO_MANY
from millrace.protocol.apis import NAMED
from millrace.protocol.batch_build import build_batch
from millrace.protocol.codec import encode_request
from millrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.protocol.messages.describe_groups import DescribeGroupsRequest
from millrace.protocol.messages.describe_producers import DescribeProducersRequest
from millrace.protocol.messages.describe_producers import TopicRequest as ProducersOf
from millrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace.protocol.records import Record
from tests.bench.stall_mix import commit, find_coordinator
from tests.live import LiveBroker
from tests.live.client import Client

TIMES = 1100  # more than a slice
PARTITIONS = 50
PRODUCERS = 10
TEXT = "x" * 1000
NAME_BYTES_MAX = 64  # what a further mention may cost in the reply


def metadata(times: int) -> Any:
    return MetadataRequest([MetadataRequestTopic(name="wide")] * times)


def offsets_of_groups(times: int) -> Any:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup("stalls", topics=None)] * times)


def offsets_of_partitions(times: int) -> Any:
    named = OffsetFetchRequestTopics("wide", partition_indexes=[0] * times)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup("noted", topics=[named])])


def configs(times: int) -> Any:
    return DescribeConfigsRequest([DescribeConfigsResource(4, "1", None)] * times, True, True)


def groups(times: int) -> Any:
    return DescribeGroupsRequest(["joined"] * times)


def producers(times: int) -> Any:
    return DescribeProducersRequest([ProducersOf("wide", [0] * times)])


def reply_bytes(client: Client, name: str, version: int, request: Any) -> int:
    client.socket.sendall(encode_request(NAMED[name], version, 1, "attack", request))
    return len(client.read_frame())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("named-again")
    with LiveBroker(folder, {"node.id": "1"}, wal="64MiB") as broker, Client(broker.address, 120.0) as client:
        client.create("wide", PARTITIONS)
        find_coordinator(client)
        commit(client, "stalls", "wide", PARTITIONS)
        note_offset(client)
        join(client)
        for producer_id in range(PRODUCERS):
            send_as(client, producer_id)
        yield client


def note_offset(client: Client) -> None:
    """With a text beside it."""
    asked = OffsetCommitRequestPartition(0, 0, -1, TEXT)
    request = OffsetCommitRequest("noted", topics=[OffsetCommitRequestTopic("wide", partitions=[asked])])
    assert client.ask("OffsetCommit", request, 9).topics[0].partitions[0].error_code == 0


def join(client: Client) -> None:
    """A member alone, with a text of its own and one of its assignment."""
    protocols = [JoinGroupRequestProtocol("range", TEXT.encode())]
    request = JoinGroupRequest("joined", 30_000, 600_000, protocol_type="consumer", protocols=protocols)
    joined = client.ask("JoinGroup", request, 3)
    assert joined.error_code == 0
    assignments = [SyncGroupRequestAssignment(joined.member_id, TEXT.encode())]
    synced = SyncGroupRequest("joined", joined.generation_id, joined.member_id, assignments=assignments)
    assert client.ask("SyncGroup", synced, 2).error_code == 0


def send_as(client: Client, producer_id: int) -> None:
    batch = build_batch(
        [Record(None, b"x", int(time.time() * 1000))],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
    )
    data = [TopicProduceData("wide", partition_data=[PartitionProduceData(0, memoryview(batch))])]
    answer = client.ask("Produce", ProduceRequest(None, -1, 10_000, data), 12)
    assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize(
    ("name", "version", "ask"),
    [
        ("Metadata", 12, metadata),
        ("OffsetFetch", 8, offsets_of_groups),
        ("OffsetFetch", 8, offsets_of_partitions),
        ("DescribeConfigs", 4, configs),
        ("DescribeGroups", 5, groups),
        ("DescribeProducers", 0, producers),
    ],
)
def test_what_is_named_again_is_not_answered_again(
    client: Client, name: str, version: int, ask: Callable[[int], Any]
) -> None:
    """The reply to a thousand mentions is about that to one."""
    once = reply_bytes(client, name, version, ask(1))
    assert reply_bytes(client, name, version, ask(TIMES)) < once + NAME_BYTES_MAX * TIMES / 2


def test_of_what_need_not_exist_only_so_much_is_described(client: Client) -> None:
    """Any group has configurations: 2 MB of names made replies of 280 MB. What does exist is described beside
    it all the same."""
    named = [DescribeConfigsResource(32, f"g{number}", None) for number in range(2 * NEVER_MISSING_MAX)]
    request = DescribeConfigsRequest([*named, DescribeConfigsResource(2, "wide", None)], True, True)
    results = client.ask("DescribeConfigs", request).results
    refused = [result for result in results if result.error_code]
    assert len(results) == len(named) + 1
    assert {result.error_message for result in refused} == {TOO_MANY}
    assert NEVER_MISSING_MAX <= len(refused) < NEVER_MISSING_MAX + RESOURCES_PER_CHUNK
    assert (results[0].configs, results[-1].error_code) == (results[1].configs, 0)
