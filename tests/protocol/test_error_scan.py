"""Error codes of responses: all of them, of every API that is served."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from millrace.protocol.apis import API, Api
from millrace.protocol.declare import Int32, wire_fields
from millrace.protocol.error_scan import error_scan, error_scan_yielding
from millrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from millrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse


def codes_of(response: object) -> list[int]:
    scan = error_scan(type(response))
    assert scan is not None
    found: list[int] = []
    scan(response, found)
    yielded: list[int] = []
    stops = sum(1 for _ in error_scan_yielding(type(response))(response, yielded))
    assert yielded == found
    assert stops >= len(found) - 1
    return found


def test_codes_within_arrays() -> None:
    """Of partitions in topics; a response without a fault has none."""
    parts = [PartitionProduceResponse(0), PartitionProduceResponse(1, 6), PartitionProduceResponse(2, 87)]
    assert codes_of(ProduceResponse([TopicProduceResponse("t", partition_responses=parts)])) == [6, 87]
    assert codes_of(ProduceResponse([TopicProduceResponse("t", partition_responses=parts[:1])])) == []


def test_a_responses_own_code_comes_first() -> None:
    """An array that is null holds none."""
    topics = [FetchableTopicResponse("t", partitions=[PartitionData(0, 1)])]
    assert codes_of(FetchResponse(error_code=70, responses=topics)) == [70, 1]
    described = API[75].response_type()
    assert codes_of(described) == []


@dataclass(slots=True)
class Plain:
    number: Int32 = 0


def test_a_declaration_without_codes() -> None:
    """Nothing to ask of its values."""
    assert error_scan(Plain) is None


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_every_response_is_scanned(api: Api) -> None:
    """Each served response that declares a code at its top has it found."""
    declared = api.response_type
    if any(field.name == "error_code" for field in wire_fields(declared)):
        assert codes_of(declared(error_code=42)) == [42]
    else:
        assert error_scan(declared) is None or codes_of(declared()) == []
