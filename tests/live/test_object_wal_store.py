"""A start on an object WAL whose own store is away, or denies: it is waited for and the reason is told, or
the right place is blamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.runtime.objectstore.rounds import ROUNDS_MAX
from tests.live import LiveBroker
from tests.live.bad_s3 import BadS3
from tests.live.client import Client
from tests.live.test_s3 import ready_page
from tests.live.test_s3_lacking import running
from tests.patience import until


@pytest.fixture
def store() -> Iterator[BadS3]:
    with running() as store:
        yield store


def broker_on(folder: Path, store: BadS3) -> LiveBroker:
    return LiveBroker(folder, {"s3.wal.path": f"{store.address}&capacity=64MiB&hedge=off"})


def check_waiting(broker: LiveBroker) -> None:
    """The reason and how often it was tried, on the ready page and in the log of this start."""
    until(lambda: "the WAL's store does not answer" in ready_page(broker))
    assert ": 503)" in ready_page(broker)
    assert ", attempt " in ready_page(broker)
    until(lambda: "the WAL's store does not answer" in broker.log_path.read_text())
    assert broker.is_running()


@pytest.mark.parametrize("options", ["", "&fence=reservation"])
def test_a_restart_waits_for_the_logs_store_and_says_so(tmp_path: Path, store: BadS3, options: str) -> None:
    """Killed, and its store is away when it starts again, before the log is opened: told, waited for, and
    what was acknowledged is there."""
    path = f"{store.address}&capacity=64MiB&hedge=off{options}"
    with LiveBroker(tmp_path, {"s3.wal.path": path, "s3.wal.upload.interval.ms": "3600000"}) as broker:
        with Client(broker.address) as client:
            client.create("kept")
            client.produce("kept", [b"before"])
        broker.kill()
        store.faults.add("away")
        os.truncate(broker.log_path, 0)
        broker.begin()
        check_waiting(broker)
        until(lambda: "not ready: looking at the WAL (the WAL's store" in broker.log_path.read_text())
        store.faults.clear()
        broker.wait_ready()
        assert ready_page(broker) == "ready\n"
        with Client(broker.address) as client:
            assert client.read("kept") == [b"before"]


def test_a_first_start_waits_for_the_logs_store(tmp_path: Path, store: BadS3) -> None:
    """As for the data bucket, whose address is not blamed."""
    store.faults.add("away")
    broker = broker_on(tmp_path, store)
    broker.begin()
    with broker:
        check_waiting(broker)
        store.faults.clear()
        broker.wait_ready()
        assert broker.log_path.read_text().count("data bucket") == 1  # where the places are named


def test_a_store_that_denies_is_named(tmp_path: Path, store: BadS3) -> None:
    """At the first start and at a later one: the WAL's setting and address, not the data bucket's."""
    store.faults.add("denies")
    first = broker_on(tmp_path / "first", store)
    first.begin()
    check_blame(first)
    store.faults.clear()
    with broker_on(tmp_path / "later", store) as later:
        later.kill()
        store.faults.add("denies")
        later.begin()
        check_blame(later)


def test_a_store_that_contradicts_itself_ends_the_start(tmp_path: Path, store: BadS3) -> None:
    """In one sentence with key, both answers and the remedy, after a bounded number of requests."""
    store.faults.add("contradicts")
    broker = broker_on(tmp_path, store)
    broker.begin()
    with broker:
        assert broker.wait_end() == 1
    told = broker.log_path.read_text()
    [sentence] = [line for line in told.splitlines() if line.startswith("millrace: ")]
    assert sentence.startswith("millrace: cannot start: the store of the WAL 0@s3://lake?")
    for part in (
        "millrace-wal-1: a put is told that it exists",
        "a read that there is no such object",
        "`millrace doctor`",
    ):
        assert part in sentence
    assert "Traceback" not in told
    assert sum(request.startswith("PUT") for request in store.requests) < 3 * ROUNDS_MAX


def check_blame(broker: LiveBroker) -> None:
    assert broker.wait_end() == 1
    told = broker.log_path.read_text().splitlines()
    [sentence] = [line for line in told if line.startswith("millrace: cannot start: ")]
    assert "403" in sentence
    assert "s3.wal.path" in sentence
    assert "0@s3://lake?" in sentence
    assert "data bucket" not in sentence, sentence
    assert "s3.data.buckets" not in sentence, sentence
    assert told[-1] == sentence
    assert not [line for line in told if "Traceback" in line or "never retrieved" in line]
