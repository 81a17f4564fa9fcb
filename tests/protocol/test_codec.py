"""Whole frames: both sides of a connection agree, and record bytes are passed on as they are."""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import TypeVar

import pytest

from millrace.protocol.apis import ALL, API, Api
from millrace.protocol.codec import (
    decode_request,
    decode_request_yielding,
    decode_response,
    encode_request,
    encode_response,
    encode_response_yielding,
)
from millrace.protocol.compile import encoder
from millrace.protocol.errors import WireError
from millrace.protocol.frame import FrameSplitter, joined_small
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from millrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millrace.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from millrace.protocol.messages.fetch_snapshot import FetchSnapshotResponsePartitionSnapshot as SnapshotPiece
from millrace.protocol.messages.fetch_snapshot import FetchSnapshotResponseTopicSnapshot as SnapshotTopic
from millrace.protocol.messages.heartbeat import HeartbeatResponse
from millrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace.protocol.primitives import GROUP_ELEMENTS_MAX, REQUEST_ELEMENTS_MAX
from tests.protocol.values import build

T = TypeVar("T")


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_both_sides_agree(api: Api) -> None:
    """A request from the client's side is what the broker reads, and a response what the client reads."""
    for version in api.versions:
        random = Random(f"{api.name} {version}")
        request = build(random, api.request_type, version)
        (frame,) = FrameSplitter(1 << 20).feed(encode_request(api, version, 5, "me", request))
        header, pos = decode_request_header(frame)
        assert (header.api_key, header.api_version, header.correlation_id) == (api.key, version, 5)
        assert decode_request(api, version, frame, pos) == request

        response = build(random, api.response_type, version)
        buffers = encode_response(api, version, 6, response)
        (frame,) = FrameSplitter(1 << 20).feed(b"".join(buffers))
        assert decode_response(api, version, frame) == (6, response)


def test_surplus_bytes_are_tolerated() -> None:
    """librdkafka sends three bytes too many behind Metadata v13."""
    api = API[3]
    frame = encode_request(api, 13, 1, None, api.request_type())[4:] + b"\0\0\0"
    assert decode_request(api, 13, frame, decode_request_header(frame)[1]) == api.request_type()


def test_a_cut_request_is_a_wire_error() -> None:
    """One error for the dispatcher, hot twin or not."""
    for key, version in ((0, 9), (1, 12), (3, 13)):
        api = API[key]
        frame = encode_request(api, version, 1, None, api.request_type())[4:]
        with pytest.raises(WireError):
            decode_request(api, version, frame[:-1], decode_request_header(frame)[1])


def test_the_answer_to_an_unknown_api_versions_request() -> None:
    """Version 0, untagged header, UNSUPPORTED_VERSION and the range of key 18: what every client can read
    (KIP-511)."""
    response = ApiVersionsResponse(35, [ApiVersion(18, 0, 5)])
    assert b"".join(encode_response(API[18], 0, 9, response)).hex(" ", 2) == (
        "0000 0010 0000 0009 0023 0000 0001 0012 0000 0005"
    )


def test_small_responses_are_one_buffer() -> None:
    """Nothing is left to writelines where one small buffer will do."""
    assert encode_response(API[12], 4, 3, HeartbeatResponse(0, 27)) == [
        bytes.fromhex("0000000c 00000003 00 00000000 001b 00")
    ]


def test_large_records_are_not_copied() -> None:
    """Records leave as the objects they came as, hot or not; small ones are joined with their neighbours."""
    large, small = memoryview(bytes(5000)), memoryview(bytes(100))
    partitions = [
        PartitionData(0, records=large),
        PartitionData(1, records=[small, large, small]),
        PartitionData(2),
    ]
    fetched = encode_response(
        API[1], 12, 1, FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])
    )
    assert [len(buffer) for buffer in fetched if buffer is large] == [5000, 5000]
    assert len(fetched) == 5

    piece = SnapshotPiece(unaligned_records=large)
    snapshot = encode_response(API[59], 1, 1, FetchSnapshotResponse(topics=[SnapshotTopic("t", [piece])]))
    assert snapshot[1] is large
    assert len(snapshot) == 3


def test_a_response_that_does_not_fit_its_version_is_a_value_error() -> None:
    """The same error from compiled codecs and twins, so that the dispatcher can answer with another."""
    for key, version in ((0, 9), (1, 12), (12, 4)):
        response = build(Random(1), API[key].response_type, version, tame=True)
        response.throttle_time_ms = 1 << 40
        with pytest.raises(ValueError):
            encode_response(API[key], version, 1, response)
    with pytest.raises(ValueError):
        encode_response(API[12], 5, 1, HeartbeatResponse())


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_steps_read_the_same_request(api: Api) -> None:
    """Whatever it holds, at every version; cut short, it is a WireError as it is of the whole."""
    for version in api.versions:
        for seed in range(3):
            raw = encoder(api.request_type, version)(
                build(Random(f"{api.name} {version} {seed}"), api.request_type, version)
            )
            found, _ = whole(decode_request_yielding(api, version, raw, 0))
            assert found == decode_request(api, version, raw, 0)
        for length in range(len(raw)):
            with pytest.raises(WireError):
                whole(decode_request_yielding(api, version, raw[:length], 0))


def test_large_requests_are_decoded_in_small_steps_side_by_side() -> None:
    """Each has its own bound on elements, whatever the other takes of it between two of its steps."""
    requests = [
        MetadataRequest([MetadataRequestTopic(name=f"{which}{n}") for n in range(60_000)]) for which in "ab"
    ]
    frames = [encoder(MetadataRequest, 12)(request) for request in requests]
    decodings = [decode_request_yielding(API[3], 12, frame, 0) for frame in frames]
    found: list[object] = []
    stops = 0
    while decodings:
        decoding = decodings.pop(0)
        try:
            next(decoding)
        except StopIteration as end:
            found.append(end.value)
        else:
            stops += 1
            decodings.append(decoding)
    assert found == requests
    assert stops >= 2 * 30 - 2
    many = MetadataRequest([MetadataRequestTopic()] * (REQUEST_ELEMENTS_MAX + 1))
    with pytest.raises(WireError, match="more elements than a request may hold"):
        whole(decode_request_yielding(API[3], 12, encoder(MetadataRequest, 12)(many), 0))


def test_what_a_group_looks_at_in_one_piece_is_bounded_further() -> None:
    """Assignments beyond the bound end the connection, and are not decoded."""
    for count in (GROUP_ELEMENTS_MAX, GROUP_ELEMENTS_MAX + 1):
        assignments = [SyncGroupRequestAssignment("m", b"")] * count
        request = SyncGroupRequest("g", 1, "m", None, None, None, assignments)
        decoding = decode_request_yielding(API[14], 3, encoder(SyncGroupRequest, 3)(request), 0)
        if count <= GROUP_ELEMENTS_MAX:
            assert whole(decoding)[0] == request
        else:
            with pytest.raises(WireError, match="more elements than a request may hold"):
                whole(decoding)


def whole(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What they come to, and how many stops there were."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_steps_give_the_same_bytes(api: Api) -> None:
    """Whatever a response holds, at every version; one of few elements is there without a stop."""
    for version in api.versions:
        for seed in range(3):
            response = build(Random(f"{api.name} {version} {seed}"), api.response_type, version)
            steps = encode_response_yielding(api, version, 9, response)
            with pytest.raises(StopIteration) as end:
                next(steps)
            assert b"".join(end.value.value) == b"".join(encode_response(api, version, 9, response))


@pytest.mark.parametrize(("topics", "partitions"), [(1, 20_000), (20_000, 1), (140, 140)])
def test_a_large_response_is_encoded_in_small_steps(topics: int, partitions: int) -> None:
    """Wherever its elements are, one step gives no more than its pieces and those of one element."""
    one = MetadataResponseTopic(name="t", partitions=[MetadataResponsePartition() for _ in range(partitions)])
    response = MetadataResponse(topics=[one] * topics)
    steps, count = encode_response_yielding(API[3], 12, 9, response), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            chunks = end.value
            break
        count += 1
    whole = encode_response(API[3], 12, 9, response)
    assert b"".join(chunks) == b"".join(whole)
    assert count >= 10
    assert max(map(len, chunks)) <= 3 * len(whole[0]) // count


def test_a_step_that_does_not_fit_its_version_is_a_value_error() -> None:
    """As of the whole, at whichever element it is."""
    response = MetadataResponse(topics=[MetadataResponseTopic(error_code=code) for code in (0, 1 << 20)])
    with pytest.raises(ValueError, match="Metadata"):
        next(encode_response_yielding(API[3], 12, 9, response))


def test_joining() -> None:
    """Runs of small pieces become one, large ones stay, nothing is reordered."""
    large = bytes(513)
    assert joined_small([b"a", b"b", large, large, b"c", b"d"]) == [b"ab", large, large, b"cd"]
    assert joined_small([b"a", b"b"]) == [b"ab"]
    assert joined_small([large, b""])[0] is large
