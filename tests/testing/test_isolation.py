"""Each test has its own topics and groups; and nothing is left of a broker when whoever started it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer

from millrace.testing import Broker
from tests.patience import PATIENCE_S
from tests.testing.member import joined


def test_what_came_with_a_test_goes_with_it() -> None:
    """Also of a client that still runs, which is named; what existed stays, with what was added to it."""
    with Broker({"auto.create.topics.enable": "false"}) as broker:  # the client cannot make its topic again
        broker.create_topic("before")
        broker.produce("before", "kept")
        snapshot = broker.snapshot()
        broker.produce("before", "added")
        broker.create_topic("made")
        with joined(broker, "made", "workers", "left"):
            assert broker.restore(snapshot) == ["left in group workers"]
            assert (broker.topics(), broker.groups()) == (["before"], {})
        assert [record.text for record in broker.records("before")] == ["kept", "added"]


def test_what_a_client_left_running_makes_again_is_gone_for_the_next_test(kafka_broker: Broker) -> None:
    """It did not exist before that test, neither the topic nor the group; what else was made between two
    tests stays."""
    snapshot = kafka_broker.snapshot()
    kafka_broker.create_topic("made")
    with joined(kafka_broker, "made", "workers", "left"):
        assert kafka_broker.restore(snapshot) == ["left in group workers"]
    kafka_broker.create_topic("of-a-fixture")
    kafka_broker.produce("made", "again")
    with joined(kafka_broker, "made", "workers", "left") as consumer:
        consumer.commit()
    before = kafka_broker.snapshot()
    assert (kafka_broker.topics(), kafka_broker.groups()) == (["of-a-fixture"], {})
    kafka_broker.produce("made", "by the next test")
    assert kafka_broker.restore(before) == []
    assert kafka_broker.topics() == ["of-a-fixture"]


def test_what_a_client_without_a_group_makes_again_is_gone_for_the_next_test(kafka_broker: Broker) -> None:
    """Its fetch of a topic that is gone makes it anew, as soon as the test is over."""
    before = kafka_broker.snapshot()
    kafka_broker.produce("made", "x")
    consumer = KafkaConsumer(
        "made", bootstrap_servers=kafka_broker.bootstrap_servers, auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"x"
    assert kafka_broker.restore(before) == [], "it is in no group, and may well be the application's"
    deadline = time.monotonic() + PATIENCE_S
    while kafka_broker.topics() != ["made"]:
        assert time.monotonic() < deadline, "it never made it again"
        consumer.poll(100)
    consumer.close()
    kafka_broker.snapshot()
    while kafka_broker.topics():  # by a request that was under way when it closed
        assert time.monotonic() < deadline, "it is not gone"
        kafka_broker.snapshot()


def test_what_a_closed_client_asked_for_last_makes_no_topic(kafka_broker: Broker) -> None:
    """Its request for metadata stands behind its long poll, which ends when the topic is deleted: by then
    both are over."""
    snapshot = kafka_broker.snapshot()
    kafka_broker.create_topic("made")
    with joined(kafka_broker, "made", "workers", "closed"):
        kafka_broker.expire_member("workers", "closed")  # so that it asks for metadata
    assert kafka_broker.restore(snapshot) == []
    time.sleep(0.1)
    assert kafka_broker.topics() == []


def test_a_broker_that_a_test_killed_or_paused_is_there_for_the_next(kafka_session: Broker) -> None:
    """And it has what existed before."""
    kafka_session.produce("before", "kept")
    snapshot = kafka_session.snapshot()
    kafka_session.kill()
    kafka_session.restore(snapshot)
    kafka_session.pause()
    kafka_session.restore(snapshot)
    assert kafka_session.records("before")


OWNER = """
import os, signal, sys, time
from millrace.testing import Broker
broker = Broker()
broker.start()
if sys.argv[1] == "paused":
    broker.pause()
print(broker.process.pid, broker.process._folder, flush=True)
if sys.argv[1] == "left":
    sys.exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["running", "paused", "left"])
def test_nothing_is_left_of_whoever_started_it(how: str) -> None:
    """Killed with kill -9 while the broker runs or is paused, or ended without closing it: neither a process
    nor a folder stays."""
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, how], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert owner.returncode == (0 if how == "left" else -signal.SIGKILL), owner.stderr
    pid, folder = owner.stdout.split()
    deadline = time.monotonic() + PATIENCE_S
    while (is_alive(int(pid)) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(int(pid))
    assert not Path(folder).exists()


def test_a_closed_broker_leaves_nothing() -> None:
    """On return of the context, and of a second close."""
    with Broker() as broker:
        pid, folder = broker.process.pid, Path(broker.process._folder)
        assert (folder / "data").is_dir()
    broker.close()
    assert not is_alive(pid)
    assert not folder.exists()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it has gone meanwhile, or there is no such file here
        return Path("/proc/self").exists() is False
