"""The same odd requests to Apache Kafka and to the broker: a short form of `make compare`."""

from __future__ import annotations

from pathlib import Path

from tests.compat.peer.__main__ import SETTINGS
from tests.compat.peer.apache_kafka import ApacheKafka
from tests.compat.peer.requests import Difference, compare, difference
from tests.live import LiveBroker


def test_codes_are_kafkas_or_differ_for_a_known_reason(tmp_path: Path) -> None:
    """Of 150 requests, with the fields of some changed."""
    ours, theirs = tmp_path / "millrace", tmp_path / "kafka"
    ours.mkdir()
    theirs.mkdir()
    with LiveBroker(ours, SETTINGS, wal="64MiB") as broker, ApacheKafka(theirs, SETTINGS) as kafka:
        found = list(compare(broker.address, kafka.address, 7, 150))
    assert found.count(None) > 100
    assert [str(one) for one in found if one is not None and not one.why] == []


def test_a_difference_that_nobody_knows_is_told() -> None:
    """Reasons are of an API and of codes: another code, or another API, has none."""

    def of(key: int, ours: str, kafkas: str) -> Difference:
        return difference(key, 1, (frozenset({ours}), frozenset({kafkas})), "a request")

    assert of(0, "NONE", "CORRUPT_MESSAGE").why == ""
    assert "CORRUPT_MESSAGE from Kafka" in str(of(0, "NONE", "CORRUPT_MESSAGE"))
    assert of(32, "NONE", "INVALID_REQUEST").why
    assert of(33, "NONE", "INVALID_REQUEST").why == ""
