"""A client of our own codec on a plain socket, for tests that look at a broker's codes: one request at a
time, nothing retried.

Topics are named, not numbered, so that a request needs no look-up before it. Values are bytes; a record's
time is now unless given.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from millrace.protocol.apis import NAMED
from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import iter_headers
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from millrace.protocol.messages.metadata import MetadataRequest
from millrace.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from millrace.protocol.records import Record, iter_records
from tests.patience import PATIENCE_S

VERSION_BY_NAME = 12  # of Produce and Fetch, the last one
EARLIEST, LATEST = -2, -1
MIB = 1 << 20


class Client:
    """`with Client(address) as client: client.ask("Metadata", MetadataRequest(...))`."""

    def __init__(self, address: str, timeout_s: float = PATIENCE_S, *, client_id: str = "live") -> None:
        self._client_id = client_id
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)

    def ask(self, name: str, request: Any, version: int | None = None) -> Any:
        api = NAMED[name]
        version = api.max_stable_version if version is None else version
        self.socket.sendall(encode_request(api, version, 1, self._client_id, request))
        return self.take_answer(name, version)

    def take_answer(self, name: str, version: int) -> Any:
        """The answer to the oldest request that was sent without one."""
        return decode_response(NAMED[name], version, self.read_frame())[1]

    def read_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def _read(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            chunk = self.socket.recv(count - len(found))
            if not chunk:
                raise ConnectionError("the broker closed the connection")
            found += chunk
        return bytes(found)

    # -- topics

    def create(self, topic: str, partitions: int = 1, **configs: object) -> None:
        texts = [CreatableTopicConfig(name.replace("_", "."), str(value)) for name, value in configs.items()]
        made = CreatableTopic(topic, partitions, 1, configs=texts)
        answer = self.ask("CreateTopics", CreateTopicsRequest([made], int(PATIENCE_S * 1000))).topics[0]
        assert answer.error_code == 0, answer

    def move(self, topic: str, partitions: Sequence[int], to: int) -> None:
        """To another broker; refused or not."""
        asked = [ReassignableTopic(topic, [ReassignablePartition(index, [to]) for index in partitions])]
        answer = self.ask("AlterPartitionReassignments", AlterPartitionReassignmentsRequest(topics=asked))
        assert not answer.error_code, answer

    def moves(self) -> dict[tuple[str, int], tuple[list[int], list[int], list[int]]]:
        """That are under way: replicas, those added and those removed."""
        answer = self.ask("ListPartitionReassignments", ListPartitionReassignmentsRequest())
        assert not answer.error_code, answer
        return {
            (topic.name, one.partition_index): (one.replicas, one.adding_replicas, one.removing_replicas)
            for topic in answer.topics
            for one in topic.partitions
        }

    def topic_ids(self) -> dict[str, bytes]:
        topics = self.ask("Metadata", MetadataRequest(topics=None), 12).topics
        return {topic.name: topic.topic_id for topic in topics}

    def delete(self, topic: str) -> int:
        """The error code."""
        request = DeleteTopicsRequest([DeleteTopicState(topic)], timeout_ms=int(PATIENCE_S * 1000))
        return int(self.ask("DeleteTopics", request).responses[0].error_code)

    def delete_records(self, topic: str, offset: int, partition: int = 0, timeout_ms: int = 10_000) -> int:
        """The error code."""
        topics = [DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])]
        answer = self.ask("DeleteRecords", DeleteRecordsRequest(topics, timeout_ms))
        return int(answer.topics[0].partitions[0].error_code)

    def offset(self, topic: str, which: int, partition: int = 0) -> int:
        topics = [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, which)])]
        answer = self.ask("ListOffsets", ListOffsetsRequest(-1, 0, topics)).topics[0].partitions[0]
        assert answer.error_code == 0, answer
        return int(answer.offset)

    # -- records

    def send(
        self,
        topic: str,
        values: Sequence[bytes],
        partition: int = 0,
        *,
        time_ms: int | None = None,
        timeout_ms: int = 10_000,
        key: bytes | None = None,
    ) -> PartitionProduceResponse:
        """One batch; the answer whatever it says."""
        self.begin_send(topic, values, partition, time_ms=time_ms, timeout_ms=timeout_ms, key=key)
        return self.end_send()

    def begin_send(
        self,
        topic: str,
        values: Sequence[bytes],
        partition: int = 0,
        *,
        time_ms: int | None = None,
        timeout_ms: int = 10_000,
        key: bytes | None = None,
    ) -> None:
        """Sends a batch; `end_send` takes the answer."""
        batch = batch_of(values, time_ms, key)
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(partition, memoryview(batch))])]
        request = ProduceRequest(None, -1, timeout_ms, data)
        self.socket.sendall(encode_request(NAMED["Produce"], VERSION_BY_NAME, 1, "live", request))

    def end_send(self) -> PartitionProduceResponse:
        answer = decode_response(NAMED["Produce"], VERSION_BY_NAME, self.read_frame())[1]
        found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return found

    def produce(self, topic: str, values: Sequence[bytes], partition: int = 0, **options: Any) -> int:
        """One batch that is taken; its base offset."""
        answer = self.send(topic, values, partition, **{"timeout_ms": int(PATIENCE_S * 1000), **options})
        assert answer.error_code == 0, answer
        return answer.base_offset

    def fetch(
        self, places: Sequence[tuple[str, int, int]], *, max_wait_ms: int = 500, max_bytes: int = 8 * MIB
    ) -> dict[tuple[str, int], PartitionData]:
        """`places`: (topic, partition, offset). What the broker says of each."""
        topics: dict[str, FetchTopic] = {}
        for topic, partition, offset in places:
            asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
            topics.setdefault(topic, FetchTopic(topic=topic)).partitions.append(asked)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_epoch=-1,
            topics=list(topics.values()),
        )
        answer = self.ask("Fetch", request, VERSION_BY_NAME)
        assert answer.error_code == 0, answer
        return {
            (topic.topic, data.partition_index): data
            for topic in answer.responses
            for data in topic.partitions
        }

    def read(self, topic: str, partition: int = 0, start: int = 0) -> list[bytes]:
        """Every value from `start` to the high watermark."""
        values: list[bytes] = []
        offset, end = start, start + 1
        while offset < end:
            answer = self.fetch([(topic, partition, offset)])[topic, partition]
            assert answer.error_code == 0, answer.error_code
            end = answer.high_watermark
            found = answer.records or b""
            view = memoryview(found if isinstance(found, bytes | bytearray | memoryview) else b"".join(found))
            for position, header in iter_headers(view):
                for record in iter_records(view[position : position + header.size_bytes]):
                    if record.offset >= offset:
                        assert record.value is not None
                        values.append(record.value)
                offset = header.last_offset + 1
        return values

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def batch_of(values: Sequence[bytes], time_ms: int | None = None, key: bytes | None = None) -> bytes:
    stamp = int(time.time() * 1000) if time_ms is None else time_ms
    return build_batch([Record(key, value, stamp) for value in values])
