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

def test_leaves_a_client(kafka):
    from kafka import KafkaConsumer
    consumer = KafkaConsumer("t", bootstrap_servers=kafka.bootstrap_servers, group_id="g", client_id="forgotten")
    kafka.create_topic("t")
    while not consumer.assignment():
        consumer.poll(100)
"""


def test_fixtures_isolate_and_warn(tmp_path: Path) -> None:
    """Settings are overridden by a fixture, each test starts clean, and a client that a test did not close is named."""
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
    ]
    done = subprocess.run(
        [*words, "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert "the test left a client running: forgotten in group g" in done.stdout
