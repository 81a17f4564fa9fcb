"""Records were read, then lost with their write-ahead log, and the operator accepted it: new records have
their offsets.

A consumer stands at an offset above where the log goes on, and the new records have grown past it when it
asks again. Those that check leader epochs (KIP-320) notice; those that do not continue at their position, and
never see the new records below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.test_swapped_places import (
    UPLOADS_NEVER,
    UPLOADS_OFTEN,
    broker_on,
    produce,
    values,
    wait_uploaded,
    wal_at,
)
from tests.compat.following import (
    AioKafkaFollower,
    ConfluentFollower,
    Follower,
    JavaFollower,
    KafkaPythonFollower,
    Read,
)
from tests.compat.jvm import Jvm
from tests.live import LiveBroker
from tests.live.client import Client

KEPT, READ, NEW_END = (
    10,
    20,
    35,
)  # what objects have; what was read, and lost above KEPT; where the new records end
NEW = [(offset, f"record {offset + 80}".encode()) for offset in range(KEPT, NEW_END)]


def lose(broker: LiveBroker, settings: dict[str, str]) -> None:
    """Kills it, and has its loss accepted and new records written where no consumer reaches it: at another
    address."""
    broker.kill()
    (broker.folder / "wal").unlink()
    with broker_on(broker.folder, settings, {"wal.lost.accept": "true"}) as elsewhere:
        produce(elsewhere, range(KEPT + 80, NEW_END + 80))
        assert elsewhere.stop() == 0
    broker.start()


@pytest.fixture(scope="module")
def read_on(tmp_path_factory: pytest.TempPathFactory, jvm: Jvm) -> Iterator[dict[tuple[str, str], Read]]:
    """By client and what it is to do where its position is gone: what it read after the loss. One loss for
    all of them."""
    folder: Path = tmp_path_factory.mktemp("loss")
    settings = {**wal_at(folder / "wal"), **UPLOADS_OFTEN}
    followers: dict[tuple[str, str], Follower] = {}
    with broker_on(folder, settings) as broker:
        with Client(broker.address) as client:
            client.create("kept")
        produce(broker, range(KEPT))
        wait_uploaded(broker)
        broker.kill()
    with broker_on(folder, settings, UPLOADS_NEVER) as broker:
        produce(broker, range(KEPT, READ))
        address = broker.address
        try:
            for reset in ("none", "earliest"):
                followers["kafka-python", reset] = KafkaPythonFollower(address, "kept", reset)
                followers["aiokafka", reset] = AioKafkaFollower(address, "kept", reset)
                followers["confluent-kafka", reset] = ConfluentFollower(address, "kept", reset)
                followers["java", reset] = JavaFollower(jvm, address, "kept", reset)
            for follower in followers.values():
                assert follower.follow(READ).records == list(enumerate(values(range(READ))))
            lose(broker, settings)
            yield {name: follower.follow(NEW_END) for name, follower in followers.items()}
        finally:
            for follower in followers.values():
                follower.close()


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("java", "LogTruncationException"),
        ("confluent-kafka", "Partition log truncation detected at offset 20"),
        ("kafka-python", "LogTruncationError"),
    ],
)
def test_a_client_that_checks_epochs_is_told(
    read_on: dict[tuple[str, str], Read], client: str, told: str
) -> None:
    """Where it may not choose another position by itself it says so, and gets no record."""
    found = read_on[client, "none"]
    assert found.records == []
    assert told in found.error


@pytest.mark.parametrize("client", ["java", "confluent-kafka", "kafka-python"])
def test_a_client_that_checks_epochs_passes_over_nothing(
    read_on: dict[tuple[str, str], Read], client: str
) -> None:
    """Where it may, it goes back to where the logs part, and gets every new record."""
    assert read_on[client, "earliest"] == Read(NEW, "")


@pytest.mark.parametrize("reset", ["none", "earliest"])
def test_a_client_that_does_not_check_continues_at_its_position(
    read_on: dict[tuple[str, str], Read], reset: str
) -> None:
    """aiokafka sends no leader epoch: it has the new records from where it stood, and nothing of those
    below."""
    assert read_on["aiokafka", reset] == Read(NEW[READ - KEPT :], "")
