"""What the actors of a workload ask of a broker, in requests of the protocol, with the retries that a Kafka
client makes.

Each function says what it does when an answer is lost. Codes in PASSING are told while a partition opens, a
coordinator loads, a disk is full, or a producer's state cannot be had: they are asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from millrace.protocol.batches import iter_headers
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.init_producer_id import InitProducerIdRequest
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
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
from millrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.records import iter_records
from millrace.runtime.errors import Unavailable
from tests.sim.client import SimClient
from tests.sim.history import Place

PAUSE_S = 0.05
PASSING = (
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)
GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def patiently(client: SimClient, key: int, request: Any, version: int | None = None) -> Any:
    """Asks until there is an answer: only for what may be done twice."""
    while True:
        try:
            return await client.ask(key, request, version=version)
        except Unavailable:
            await asyncio.sleep(PAUSE_S)


async def create_topic(client: SimClient, name: str, partitions: int, configs: Mapping[str, str]) -> bytes:
    """Its id. A name that exists is taken for one that an earlier, lost answer had made."""
    settings = [CreatableTopicConfig(key, value) for key, value in configs.items()]
    request = CreateTopicsRequest([CreatableTopic(name, partitions, 1, configs=settings)])
    while True:
        (answer,) = (await patiently(client, 19, request)).topics
        if answer.error_code == ErrorCode.NONE:
            return bytes(answer.topic_id)
        if answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            found = await topics_of(client, [name])
            if name in found:
                return found[name][0]
        assert answer.error_code in (*PASSING, ErrorCode.TOPIC_ALREADY_EXISTS), answer
        await asyncio.sleep(PAUSE_S)


async def delete_topic(client: SimClient, topic_id: bytes) -> None:
    """On return nobody has that id any more."""
    while True:
        (answer,) = (
            await patiently(client, 20, DeleteTopicsRequest([DeleteTopicState(None, topic_id)]))
        ).responses
        if answer.error_code in (ErrorCode.NONE, *GONE):
            return
        assert answer.error_code in PASSING, answer
        await asyncio.sleep(PAUSE_S)


async def topics_of(client: SimClient, names: list[str] | None = None) -> dict[str, tuple[bytes, int]]:
    """name -> (id, partitions), of all or of those named that exist; internal ones are left out."""
    wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
    response = await patiently(client, 3, MetadataRequest(wanted, allow_auto_topic_creation=False))
    return {
        topic.name: (bytes(topic.topic_id), len(topic.partitions))
        for topic in response.topics
        if not topic.error_code and not topic.is_internal
    }


async def init_producer_id(client: SimClient) -> tuple[int, int]:
    while True:
        answer = await patiently(client, 22, InitProducerIdRequest(None, 60_000))
        if not answer.error_code:
            return answer.producer_id, answer.producer_epoch
        assert answer.error_code in PASSING, answer
        await asyncio.sleep(PAUSE_S)


def produce_request(place: Place, batch: bytes, acks: int = -1) -> ProduceRequest:
    part = PartitionProduceData(place[1], memoryview(batch))
    return ProduceRequest(None, acks, 5_000, [TopicProduceData(topic_id=place[0], partition_data=[part])])


async def fetch(
    client: SimClient,
    place: Place,
    offset: int,
    max_wait_ms: int = 0,
    max_bytes: int = 8_000,
    *,
    leader_epoch: int = -1,
) -> PartitionData:
    """One answer, whatever its error code; raises Unavailable. `leader_epoch`: as the client knows it, -1: it
    is not checked."""
    part = FetchPartition(place[1], leader_epoch, offset, partition_max_bytes=max_bytes)
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20)
    request.topics = [FetchTopic(topic_id=place[0], partitions=[part])]
    response = await client.ask(1, request)
    assert not response.error_code, response
    found = response.responses[0].partitions[0]
    assert isinstance(found, PartitionData)
    return found


async def fetch_patiently(client: SimClient, place: Place, offset: int) -> PartitionData:
    """Much at once, and no answer that passes by itself."""
    while True:
        try:
            part = await fetch(client, place, offset, max_bytes=200_000)
            if part.error_code not in PASSING:
                return part
        except Unavailable:
            pass
        await asyncio.sleep(PAUSE_S)


def records_of(part: PartitionData, offset: int) -> list[tuple[int, bytes]]:
    """(offset, value) from `offset` on."""
    return [(found, value) for found, value, _ in timed_records_of(part, offset)]


def last_epoch_of(part: PartitionData) -> int:
    """The leader epoch of its last batch; -1: it has none."""
    return max((header.leader_epoch for _, header in iter_headers(_bytes_of(part))), default=-1)


def _bytes_of(part: PartitionData) -> memoryview:
    if part.records is None:
        return memoryview(b"")
    return memoryview(b"".join(part.records) if isinstance(part.records, list) else part.records)  # type: ignore[arg-type]


def timed_records_of(part: PartitionData, offset: int) -> list[tuple[int, bytes, int]]:
    """(offset, value, timestamp) from `offset` on: a batch may begin below what was asked for."""
    view, found = _bytes_of(part), []
    for position, header in iter_headers(view):
        for record in iter_records(view[position : position + header.size_bytes]):
            if record.offset >= offset:
                found.append((record.offset, bytes(record.value or b""), record.timestamp))
    return found


async def list_offsets(client: SimClient, name: str, partition: int) -> tuple[int, int]:
    """The log's start and its high watermark."""
    return await list_offset(client, name, partition, -2), await list_offset(client, name, partition, -1)


async def list_offset(client: SimClient, name: str, partition: int, timestamp: int) -> int:
    asked = ListOffsetsTopic(name, [ListOffsetsPartition(partition, timestamp=timestamp)])
    while True:
        response = await patiently(client, 2, ListOffsetsRequest(-1, topics=[asked], timeout_ms=5_000))
        answer = response.topics[0].partitions[0]
        if not answer.error_code:
            return int(answer.offset)
        assert answer.error_code in PASSING, answer
        await asyncio.sleep(PAUSE_S)


async def leader_epoch(client: SimClient, name: str, partition: int) -> int:
    """As metadata has it now."""
    request = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    while True:
        (topic,) = (await patiently(client, 3, request)).topics
        for found in topic.partitions:
            if found.partition_index == partition and not found.error_code:
                return int(found.leader_epoch)
        await asyncio.sleep(PAUSE_S)


async def end_of_epoch(client: SimClient, name: str, partition: int, epoch: int) -> int:
    """Where that leader epoch, or the one before it, ended; -1: unknown."""
    asked = OffsetForLeaderTopic(name, [OffsetForLeaderPartition(partition, leader_epoch=epoch)])
    while True:
        response = await patiently(client, 23, OffsetForLeaderEpochRequest(-1, [asked]))
        answer = response.topics[0].partitions[0]
        if not answer.error_code:
            return int(answer.end_offset)
        assert answer.error_code in PASSING, answer
        await asyncio.sleep(PAUSE_S)


async def delete_records(
    client: SimClient, name: str, partition: int, offset: int, is_cut: Callable[[], bool] = lambda: False
) -> int | None:
    """The start afterwards; None when the topic is gone, or the log ends below the offset and `is_cut` says
    that it may. A start that was reached already is reached again. One who was replaced and does not know it
    knows no offset that its successor gave: the successor is asked."""
    topic = DeleteRecordsTopic(name, [DeleteRecordsPartition(partition, offset)])
    while True:
        response = await patiently(client, 21, DeleteRecordsRequest([topic], 5_000))
        answer = response.topics[0].partitions[0]
        if not answer.error_code:
            return int(answer.low_watermark)
        if answer.error_code in GONE:
            return None
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and is_cut():
            return None
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            client.drop()
        else:
            assert answer.error_code in PASSING, answer
        await asyncio.sleep(PAUSE_S)


async def find_coordinator(client: SimClient, group: str) -> None:
    """Returns when there is one; with one node it is that node."""
    while True:
        response = await patiently(client, 10, FindCoordinatorRequest(coordinator_keys=[group]))
        if not response.coordinators[0].error_code:
            return
        assert response.coordinators[0].error_code in PASSING, response
        await asyncio.sleep(PAUSE_S)


async def commit_offset(client: SimClient, group: str, place: Place, offset: int) -> bool:
    """Whether it is committed; False: unknown, or refused for now. Not asked again: it may have taken
    effect."""
    part = OffsetCommitRequestPartition(place[1], offset, committed_metadata=str(offset))
    topic = OffsetCommitRequestTopic(topic_id=place[0], partitions=[part])
    try:
        response = await client.ask(8, OffsetCommitRequest(group, topics=[topic]))
    except Unavailable:
        return False
    code = response.topics[0].partitions[0].error_code
    assert code in (ErrorCode.NONE, *PASSING), response
    return bool(code == ErrorCode.NONE)


async def committed_offset(client: SimClient, group: str, place: Place) -> int:
    """-1: none."""
    topic = OffsetFetchRequestTopics(topic_id=place[0], partition_indexes=[place[1]])
    while True:
        asked = OffsetFetchRequestGroup(group, topics=[topic])
        (found,) = (await patiently(client, 9, OffsetFetchRequest(groups=[asked]))).groups
        if not found.error_code and not found.topics[0].partitions[0].error_code:
            return int(found.topics[0].partitions[0].committed_offset)
        assert found.error_code in PASSING or found.topics[0].partitions[0].error_code in PASSING, found
        await find_coordinator(client, group)
        await asyncio.sleep(PAUSE_S)
