"""The plugin in a run of pytest of its own, as a user's tests see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest, sys

@pytest.fixture(scope="session")
def kafka_settings():
    return {"num.partitions": "3"}

@pytest.fixture(scope="module")
def seeded(kafka_session):
    kafka_session.produce("seed", "x")

def test_nothing_is_loaded_before_it_is_asked_for():
    assert "millrace.testing.broker" not in sys.modules

def test_makes_topics(kafka, seeded):
    kafka.produce("mine", "x", key="k")
    kafka.kill()

def test_does_not_see_them(kafka, seeded):
    assert kafka.topics() == ["seed"]

def test_has_a_broker_of_its_own(kafka_broker, kafka):
    assert kafka_broker.bootstrap_servers != kafka.bootstrap_servers
    assert kafka_broker.topics() == []
    assert kafka_broker.produce("a", "x", partition=2)

def compact(kafka):
    from kafka.admin import KafkaAdminClient, NewTopic
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.create_topics([NewTopic("c", 1, 1, topic_configs={"cleanup.policy": "compact"})])
    admin.close()

def test_compacts(kafka):
    compact(kafka)

def test_compacts_and_fails(kafka):
    compact(kafka)
    assert kafka.topics() == []

@pytest.mark.kafka_unserved
def test_may_compact(kafka):
    compact(kafka)

def test_leaves_faults(kafka):
    kafka.fail("Produce", "UNKNOWN_SERVER_ERROR", times=None)

def test_has_none_of_them(kafka):
    from kafka import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send("a", b"x").get(10)
    producer.close()

def test_leaves_a_client(kafka):
    from kafka import KafkaConsumer
    kafka.create_topic("t")
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id="g", client_id="forgotten")
    while not consumer.partitions_for_topic("t"):  # see tests/testing/member.py
        pass
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(1000)
"""


def test_fixtures_isolate_and_warn(tmp_path: Path) -> None:
    """Settings are overridden by a fixture, each test starts clean, a client that a test did not close is named, and what is not served fails the
    test with a sentence, unless it says that it may."""
    (tmp_path / "test_it.py").write_text(TESTS)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "millrace.testing.plugin",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "-rN",  # where CI is set, the summary repeats the sentences
    ]
    done = subprocess.run(
        [*words, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert "2 failed, 8 passed" in done.stdout, done.stdout + done.stderr
    sentence = "log compaction is not done by Millrace yet: a compacted topic keeps everything"
    assert done.stdout.count(sentence) == 2, "one test failed with it, the other one has it as a note"
    assert "the test left a client running: forgotten in group g" in done.stdout
