"""The list of APIs against what Kafka 4.4 is known to have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millrace.protocol.apis import ALL, API, KAFKA, NAMED, PRIVATE, api_of
from millrace.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.patience import PATIENCE_S


def test_kafka_4_4_has_91_apis_in_309_versions() -> None:
    """Keys 0 to 94 without the four that went with ZooKeeper."""
    assert [api.key for api in KAFKA] == [key for key in range(95) if key not in (4, 5, 6, 7)]
    assert sum(api.max_version - api.min_version + 1 for api in KAFKA) == 309


def test_private_keys_are_marked() -> None:
    """What must never be advertised to clients can be told by its key."""
    assert all(api.is_private and api.listeners == {"controller"} for api in PRIVATE)
    assert not any(api.is_private for api in KAFKA)
    assert len(API) == len(NAMED) == len(ALL)


def test_odd_ranges() -> None:
    """Produce is shown from 0 for the sake of librdkafka; InitProducerId 6 is unstable in 4.4."""
    assert (API[0].min_version, API[0].advertised_min) == (3, 0)
    assert (API[22].max_version, API[22].max_stable_version) == (6, 5)
    assert [api.key for api in ALL if api.flexible_since is None] == [17, 47]
    assert {api.key for api in KAFKA if "broker" not in api.listeners} == {
        52,
        53,
        54,
        56,
        58,
        59,
        62,
        63,
        67,
        70,
        73,
        82,
    }


@pytest.mark.parametrize(
    ("name", "module"), [("OffsetForLeaderEpoch", "offset_for_leader_epoch"), ("Fetch", "fetch")]
)
def test_modules_are_named_as_their_api(name: str, module: str) -> None:
    """A reader finds the declaration without a search."""
    assert NAMED[name].module == module


def test_messages_know_their_api() -> None:
    """Requests and responses lead back to the API."""
    assert api_of(FetchRequest()) is api_of(FetchResponse()) is API[1]


def test_types_are_imported_when_asked_for() -> None:
    """A start pays only for the messages that it serves."""
    code = (
        "import sys; from millrace.protocol.apis import API; from millrace.protocol import codec;"
        "assert not [m for m in sys.modules if m.startswith('millrace.protocol.messages.')];"
        "API[3].request_type; assert 'millrace.protocol.messages.metadata' in sys.modules;"
        "assert 'millrace.protocol.messages.vote' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
