"""ApiVersions: what is shown, to whom, and the answer to a version we do not know."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from millrace.broker.handlers.api_versions import ApiVersions, shown_ranges
from millrace.broker.requests.request import ConnectionInfo, RequestContext
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.tables.features import Features
from millrace.protocol.apis import ALL, API
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.broker.shell import Shell
from tests.broker.work import new_work

IMAGE = replace(EMPTY_IMAGE, offset=7, features=Features({"metadata.version": 30}))
CLUSTER_ID = "bWlsbHJhY2UtdGVzdC0wMQ"
PRIVATE = [api.key for api in ALL if api.is_private]
NAMED = {"client_software_name": "kafka-python", "client_software_version": "3.0.12"}


def handler() -> ApiVersions:
    return ApiVersions([0, 3, 22, 52, *PRIVATE], CLUSTER_ID, 1, lambda: IMAGE)


def ask(version: int, **fields: object) -> tuple[ApiVersionsResponse, ConnectionInfo]:
    connection = ConnectionInfo(1, "PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1")
    request = ApiVersionsRequest(**fields)  # type: ignore[arg-type]
    return handler().handle(RequestContext(18, version, 1, "", connection, new_work), request), connection


def test_what_is_in_the_table_is_shown() -> None:
    """The handler table's client APIs are listed in key order, Produce from 0, unstable tops and private keys
    left out."""
    answer, _ = ask(4, **NAMED)
    ranges = [(entry.api_key, entry.min_version, entry.max_version) for entry in answer.api_keys]
    assert ranges == [(0, 0, 13), (3, 0, 13), (18, 0, 5), (22, 0, 5)]


def test_every_client_api_can_be_shown() -> None:
    """Given every key, the list holds exactly those that Kafka serves on a broker listener."""
    shown = {entry.api_key for entry in shown_ranges({api.key for api in ALL})}
    assert shown == {api.key for api in ALL if "broker" in api.listeners and not api.is_private}
    assert not shown & {52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}


def test_features_are_those_of_the_image() -> None:
    """Finalized levels come from the current image with its offset as their epoch; features at level 0 are
    not shown."""
    answer, _ = ask(4, **NAMED)
    assert [(shown.name, shown.max_version_level) for shown in answer.finalized_features] == [
        ("metadata.version", 30)
    ]
    assert answer.finalized_features_epoch == 7
    assert [shown.name for shown in answer.supported_features] == [
        "metadata.version",
        "millrace.version",
        "kraft.version",
    ]


def test_software_is_noted_or_refused() -> None:
    """Since version 3 a client names its software, which the connection keeps; a name out of bounds is
    INVALID_REQUEST."""
    _, connection = ask(3, **NAMED)
    assert (connection.software_name, connection.software_version) == ("kafka-python", "3.0.12")
    for name in ("", "-a", "a-", "a b", "ä"):
        answer, _ = ask(3, client_software_name=name, client_software_version="1")
        assert answer.error_code == ErrorCode.INVALID_REQUEST, name
        assert not answer.api_keys
    answer, connection = ask(2)
    assert answer.error_code == 0
    assert connection.software_name == "unknown"


def test_one_who_meant_another_broker_is_sent_back() -> None:
    """A version 5 request that names another cluster or node gets REBOOTSTRAP_REQUIRED; one that names
    nobody, or us, does not."""
    cases = [
        (CLUSTER_ID, 1, 0),
        (None, -1, 0),
        (None, 9, 0),
        ("x", -1, 0),
        ("x", 1, 129),
        (CLUSTER_ID, 2, 129),
    ]
    for cluster_id, node_id, code in cases:
        answer, _ = ask(5, cluster_id=cluster_id, node_id=node_id, **NAMED)
        assert answer.error_code == code, (cluster_id, node_id)


def test_an_unknown_version_is_answered_in_version_0() -> None:
    """Version 99 with any body gets UNSUPPORTED_VERSION and key 18's range as version 0, and the connection
    goes on."""

    async def run() -> None:
        async with Shell({18: handler().handle}) as shell:
            client = await shell.client()
            head = b"\0\x12\0\x63\0\0\0\x2a" + b"\xff\xff" + b"\x99" * 20
            client.writer.write(len(head).to_bytes(4, "big") + head)
            correlation_id, answer = await client.receive(18, 0)
            assert correlation_id == 42
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert [(entry.api_key, entry.min_version, entry.max_version) for entry in answer.api_keys] == [
                (18, 0, 5)
            ]
            for version in range(API[18].max_version + 1):
                assert (await client.ask(18, version, ApiVersionsRequest(**NAMED))).error_code == 0  # type: ignore[arg-type]

    asyncio.run(run())
