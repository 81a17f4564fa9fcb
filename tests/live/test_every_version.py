"""Every API that a broker shows, in every version that it shows, with real content: it is answered, and the
answer is whole and no accident."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.protocol.apis import API, KAFKA
from millrace.protocol.codec import encode_request
from millrace.protocol.compile import decoder
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.header import decode_response_header, request_header
from millrace.protocol.messages.api_versions import ApiVersionsRequest
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.every_request import CLOSED, NAME, ROWS, SPECIAL, Scene
from tests.live.fitting import codes_in, fit, leaves_of
from tests.live.wire import Wire

TELEMETRY = {71, 72}  # shown by Kafka where a receiver is configured
VERSIONS = [
    (key, version) for key in ROWS for version in range(API[key].min_version, API[key].max_stable_version + 1)
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    settings = {"num.partitions": "1", "offsets.topic.num.partitions": "1"}
    with LiveBroker(tmp_path_factory.mktemp("versions"), settings, wal="64MiB") as running:
        yield running


@pytest.fixture(scope="module")
def scene(broker: LiveBroker) -> Iterator[Scene]:
    with Client(broker.address) as client:
        yield Scene(client)


def test_the_rows_are_what_the_broker_shows(broker: LiveBroker) -> None:
    """No API and no version is left out of the tables below, and none is in them that is not served."""
    with Wire(broker.address) as wire:
        shown = wire.ask(18, 4, ApiVersionsRequest("sweep", "1")).api_keys
    every = [
        (one.api_key, version) for one in shown for version in range(one.min_version, one.max_version + 1)
    ]
    assert sorted(every) == sorted([*VERSIONS, *CLOSED])
    kafkas = {api.key for api in KAFKA if "broker" in api.listeners}
    assert {one.api_key for one in shown} == kafkas - TELEMETRY, (
        "clients guess a broker's release by what it shows"
    )


@pytest.mark.parametrize(("key", "version"), VERSIONS, ids=lambda value: str(value))
def test_a_version_is_answered(broker: LiveBroker, scene: Scene, key: int, version: int) -> None:
    """With the code that is due and no other, nowhere with UNKNOWN_SERVER_ERROR, of what was asked; decoded
    to its last byte."""
    row = ROWS[key]
    with Wire(broker.address) as wire:
        response = ask(wire, key, version, fit(row.make(scene), version))
    codes = set(codes_in(response))
    assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes
    due = SPECIAL.get((key, version), row.code)
    assert codes - {0} == {due} - {0}, response
    said = {
        NAME if value == scene.topic_id else value
        for value in leaves_of(response)
        if isinstance(value, str | bytes)
    }
    assert version < row.told_since or said >= set(row.told)
    if key == 1:
        assert [bool(part.records) for topic in response.responses for part in topic.partitions] == [True]


@pytest.mark.parametrize(("key", "version"), CLOSED, ids=str)
def test_a_version_that_is_shown_and_not_served_ends_the_connection(
    broker: LiveBroker, key: int, version: int
) -> None:
    """Unanswered, since no client that would understand the answer sends it."""
    head = request_header(API[key], version, 7, "sweep")
    body = struct.pack(">hii", -1, 1000, 0)
    with Wire(broker.address) as wire:
        wire.send_bytes(struct.pack(">i", len(head) + len(body)) + head + body)
        assert wire.is_closed_unanswered()


def ask(wire: Wire, key: int, version: int, request: Any) -> Any:
    api = API[key]
    wire.send_bytes(encode_request(api, version, 7, "sweep", request))
    frame = wire.read_frame()
    correlation_id, position = decode_response_header(api, version, frame)
    assert correlation_id == 7
    response, end = decoder(api.response_type, version)(frame, position)
    assert end == len(frame)
    return response
