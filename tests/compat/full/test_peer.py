"""The same to Apache Kafka and to the broker: whole answers of describing APIs, and a short form of the odd
requests of `make compare`."""

from __future__ import annotations

import time
from pathlib import Path

from tests.compat.peer.__main__ import SETTINGS
from tests.compat.peer.answers import answers_of, compare_answers, shared_versions
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


def test_whole_answers_are_kafkas_or_differ_on_purpose(tmp_path: Path) -> None:
    """In every version that both have, value by value and in order; and each purpose is needed."""
    ours, theirs = tmp_path / "millrace", tmp_path / "kafka"
    ours.mkdir()
    theirs.mkdir()
    base_ms = int(time.time()) * 1000
    with LiveBroker(ours, SETTINGS, wal="64MiB") as broker, ApacheKafka(theirs, SETTINGS) as kafka:
        versions = shared_versions(broker.address, kafka.address)
        mine, others = (answers_of(address, base_ms, versions) for address in (broker.address, kafka.address))
    assert len(others) > 500
    assert [str(one) for one in compare_answers(mine, others) if not one.why] == []


def test_a_difference_that_nobody_knows_is_told() -> None:
    """Reasons are of an API and of codes: another code, or another API, has none."""

    def of(key: int, ours: str, kafkas: str) -> Difference:
        return difference(key, 1, (frozenset({ours}), frozenset({kafkas})), "a request")

    assert of(0, "NONE", "CORRUPT_MESSAGE").why == ""
    assert "CORRUPT_MESSAGE from Kafka" in str(of(0, "NONE", "CORRUPT_MESSAGE"))
    assert of(32, "NONE", "INVALID_REQUEST").why
    assert of(33, "NONE", "INVALID_REQUEST").why == ""
