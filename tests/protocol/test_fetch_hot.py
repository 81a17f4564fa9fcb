"""Fetch by hand against the compiled codec, on every version."""

from __future__ import annotations

from random import Random

import pytest

from millrace.protocol.apis import API
from millrace.protocol.codec import encode_response, response_encoder
from millrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
    SnapshotId,
)
from tests.protocol.twins import assert_decodes_alike, assert_encodes_alike
from tests.protocol.values import build

FETCH = API[1]
TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("version", FETCH.versions)
def test_requests_decode_alike(version: int) -> None:
    """Any request, cut anywhere, damaged anyhow: the same value, or both refuse."""
    random = Random(version)
    for _ in range(12):
        assert_decodes_alike(FETCH, version, build(random, FetchRequest, version), random)


def consumer_request(version: int, partition_count: int) -> FetchRequest:
    """What consumers send: no tagged field anywhere."""
    name, topic_id = ("", TOPIC_ID) if version >= 13 else ("topic", bytes(16))
    partitions = [
        FetchPartition(
            index,
            current_leader_epoch=4 if version >= 9 else -1,
            fetch_offset=1 << 40,
            last_fetched_epoch=2 if version >= 12 else -1,
            partition_max_bytes=1 << 20,
        )
        for index in range(partition_count)
    ]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchTopic(name, topic_id, partitions)])
    if version >= 7:
        request.session_id, request.session_epoch = 9, 10
        request.forgotten_topics_data = [
            ForgottenTopic(name, topic_id, [1, 2]),
            ForgottenTopic(name, topic_id, []),
        ]
    if version >= 11:
        request.rack_id = "rack-a"
    return request


@pytest.mark.parametrize("version", FETCH.versions)
@pytest.mark.parametrize("partition_count", [0, 1, 2, 40, 130])
def test_consumers_requests_decode_alike(version: int, partition_count: int) -> None:
    """No, one, some and many partitions, with partitions that leave the session."""
    assert_decodes_alike(FETCH, version, consumer_request(version, partition_count), Random(version))


@pytest.mark.parametrize("version", [12, 15, 17, 18])
def test_replicas_requests_decode_alike(version: int) -> None:
    """Every tagged field, for which the twin hands over to the compiled decoder."""
    request = consumer_request(version, 3)
    request.cluster_id = "cluster"
    assert_decodes_alike(FETCH, version, request, Random(version))
    if version >= 15:
        request.cluster_id = None
        request.replica_state = ReplicaState(3, 4)
        assert_decodes_alike(FETCH, version, request, Random(version))
    if version >= 17:
        request = consumer_request(version, 3)
        request.topics[0].partitions[1].replica_directory_id = TOPIC_ID
        assert_decodes_alike(FETCH, version, request, Random(version))
    if version >= 18:
        request = consumer_request(version, 3)
        request.topics[0].partitions[2].high_watermark = 5
        assert_decodes_alike(FETCH, version, request, Random(version))


@pytest.mark.parametrize("version", FETCH.versions)
def test_responses_encode_alike(version: int) -> None:
    """Any response: the twin gives the bytes of the compiled encoder, or hands over to it."""
    random = Random(version)
    for _ in range(50):
        assert_encodes_alike(FETCH, version, build(random, FetchResponse, version))


def response_of(*partitions: PartitionData) -> FetchResponse:
    return FetchResponse(3, 0, 0, [FetchableTopicResponse("topic" * 40, TOPIC_ID, list(partitions))])


@pytest.mark.parametrize("version", FETCH.versions)
def test_common_answers_encode_alike(version: int) -> None:
    """Records in one buffer and in several, small and large, none and null; with and without aborted
    transactions."""
    for aborted in (None, [], [AbortedTransaction(1, 2)], [AbortedTransaction(3, 4)] * 130):
        for records in (
            None,
            b"",
            b"r" * 512,
            memoryview(b"r" * 513),
            [b"a", b"b" * 600, b"c" * 700, b"d"],
            [],
        ):
            partition = PartitionData(1, 0, 10, 11, 12, aborted_transactions=aborted, records=records)
            assert_encodes_alike(FETCH, version, response_of(partition, partition))
    assert_encodes_alike(FETCH, version, FetchResponse())
    assert_encodes_alike(FETCH, version, response_of(*(PartitionData(index) for index in range(130))))


@pytest.mark.parametrize("version", FETCH.versions)
def test_uncommon_answers_encode_alike(version: int) -> None:
    """Each thing that the twin leaves to the compiled encoder, where the version carries it."""
    for field, value, since in (
        ("diverging_epoch", EpochEndOffset(1, 2), 12),
        ("current_leader", LeaderIdAndEpoch(1, 2), 12),
        ("snapshot_id", SnapshotId(1, 2), 12),
        ("preferred_read_replica", 4, 11),
    ):
        partition = PartitionData(1, records=b"r" * 600)
        setattr(partition, field, value)
        check_from(version, since, response_of(PartitionData(0), partition))
    response = response_of(PartitionData(0))
    response.node_endpoints = [NodeEndpoint(1, "host", 9092, "rack")]
    check_from(version, 16, response)
    check_from(version, 7, FetchResponse(session_id=5))


def check_from(version: int, since: int, response: FetchResponse) -> None:
    """Alike from the version on that carries it, and refused before."""
    if version >= since:
        assert_encodes_alike(FETCH, version, response)
    else:
        with pytest.raises(ValueError):
            encode_response(FETCH, version, 1, response)


@pytest.mark.parametrize("version", FETCH.versions)
def test_large_records_are_the_objects_given(version: int) -> None:
    """A view of 513 bytes leaves as itself, and nothing empty is sent along."""
    large = [memoryview(bytes(513)) for _ in range(3)]
    response = response_of(PartitionData(0, records=large[0]), PartitionData(1, records=large[1:]))
    buffers = response_encoder(FETCH, version)(1, response)
    assert [buffer for buffer in buffers if len(buffer) == 513] == large
    assert all(any(buffer is one for buffer in buffers) for one in large)
    assert all(len(buffer) for buffer in buffers)
