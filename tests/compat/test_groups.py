"""A group of three of each client that has groups: one member is killed, its partitions are taken over, every
record is seen."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError

from tests.compat.takeover import PARTITIONS, Story, tell_all
from tests.compat.wire import Wire
from tests.live import LiveBroker

CLIENTS = ("kafka-python", "aiokafka", "confluent-kafka", "kcat", "java")


@pytest.fixture(scope="module")
def stories(broker: LiveBroker) -> dict[str, Story]:
    """All groups at once: most of a takeover is waiting for the session's end."""
    with Wire(broker.address) as wire:
        for client in CLIENTS:
            wire.create(f"group-of-{client}", PARTITIONS)
    return tell_all(broker.address, {client: f"group-of-{client}" for client in CLIENTS})


@pytest.mark.parametrize("client", CLIENTS)
def test_a_killed_members_partitions_are_taken_over(stories: dict[str, Story], client: str) -> None:
    """SIGKILL, so that it leaves without a word; the others go on with its partitions, from where it
    committed or before."""
    story = stories[client]
    assert not story.problem, story.problem
    assert story.record_count > 100
    assert story.takeover_s > 1, "faster than a session can end: was it killed at all?"


def test_the_newer_protocol_is_refused_at_once(broker: LiveBroker, wire: Wire) -> None:
    """A client that finds no such API waits for one and says nothing; the code of a cluster where it is
    turned off is fatal to it."""
    wire.create("newer-group")
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": "newer",
        "group.protocol": "consumer",
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["newer-group"])
    polled = (consumer.poll(1.0) for _ in range(10))
    error = next((message.error() for message in polled if message is not None), None)
    consumer.close()
    assert error is not None, "nothing was said for ten seconds"
    assert error.code() == KafkaError._FATAL
    assert "API version not supported" in error.str()
