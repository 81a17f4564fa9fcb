"""Our codec against two that others wrote: kio (Aiven) and kafka-python.

Each is given our bytes, must read all of them, and must write the same bytes from what it read. Both build on
Kafka 4.3, so what came with 4.4 is left out by asking them. Values are tame: kio turns some numbers into
times and error codes.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Iterator
from random import Random
from typing import Any

import kio.index as kio_index
import kio.serial as kio_serial
import pytest

from millrace.protocol.apis import KAFKA, Api
from millrace.protocol.compile import encoder
from tests.protocol.values import build, case_name

# Of 309 versions of each side, those that kio 0.6.5 does not know: what came with 4.4.
NEW_IN_44 = {
    ("ApiVersions", 5),
    ("TxnOffsetCommit", 6),
    ("DeleteGroups", 3),
    ("StreamsGroupHeartbeat", 1),
    ("StreamsGroupDescribe", 1),
    ("StreamsGroupTopologyDescriptionUpdate", 0),
    ("UnregisterController", 0),
}
# kafka-python decodes this response in a way of its own, and cannot re-encode this request once decoded.
ODD_IN_KAFKA_PYTHON = {"ApiVersionsResponse", "DeleteTopicsRequest"}


def sides(api: Api) -> Iterator[tuple[type[Any], Any]]:
    yield api.request_type, kio_index.load_request_schema
    yield api.response_type, kio_index.load_response_schema


@pytest.mark.parametrize("api", KAFKA, ids=lambda api: api.name)
def test_kio_reads_and_writes_the_same_bytes(api: Api) -> None:
    """Every message that kio knows, at every version, in both directions."""
    for kind, load in sides(api):
        for version in api.versions:
            if (api.name, version) in NEW_IN_44:
                continue
            schema = load(api.key, version)
            raw = encoder(kind, version)(
                build(Random(f"{kind.__name__} {version}"), kind, version, tame=True)
            )
            entity, read_bytes = kio_serial.entity_reader(schema)(raw, 0)
            assert read_bytes == len(raw), (kind, version)
            written = io.BytesIO()
            kio_serial.entity_writer(schema)(written, entity)
            assert written.getvalue() == raw, (kind, version)


def kafka_python_kinds() -> dict[str, Any]:
    """Its message classes by name. It reads its schemas in a way that newer Pythons warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        kafka_messages = importlib.import_module("kafka.protocol.api_message")
        for package in ("admin", "consumer", "metadata", "producer", "sasl"):
            importlib.import_module(f"kafka.protocol.{package}")
    found = {}
    pending = kafka_messages.ApiMessage.__subclasses__()
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind._class_version is None and kind._json:
            found[kind.__name__] = kind
    return found


KAFKA_PYTHON = kafka_python_kinds()
SHARED = [
    kind
    for api in KAFKA
    for kind in (api.request_type, api.response_type)
    if kind.__name__ in KAFKA_PYTHON and kind.__name__ not in ODD_IN_KAFKA_PYTHON
]


def test_kafka_python_has_what_is_compared_below() -> None:
    """Fifty-two APIs, less the two odd messages: the comparison cannot shrink to nothing unseen."""
    assert len(SHARED) >= 102


@pytest.mark.parametrize("kind", SHARED, ids=case_name)
def test_kafka_python_reads_and_writes_the_same_bytes(kind: type[Any]) -> None:
    """Every message that kafka-python knows, at every version, in both directions."""
    theirs = KAFKA_PYTHON[kind.__name__]
    for version in kind.VERSIONS:
        if version > theirs.max_version:
            continue
        raw = encoder(kind, version)(build(Random(f"{kind.__name__} {version}"), kind, version, tame=True))
        assert bytes(theirs.decode(raw, version=version).encode()) == raw, version
