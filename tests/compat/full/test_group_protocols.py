"""Groups with other assignors, static members, and members that are stopped and come back."""

from __future__ import annotations

import signal

import pytest

from tests.compat.takeover import PARTITIONS, tell_all
from tests.compat.wire import Wire
from tests.live import LiveBroker

JAVA_ASSIGNOR = "--assignment-strategy org.apache.kafka.clients.consumer"
ASSIGNORS = (
    "kafka-python assignor=RoundRobinPartitionAssignor",
    "kafka-python assignor=StickyPartitionAssignor",
    "kafka-python assignor=CooperativeStickyAssignor",
    "aiokafka assignor=StickyPartitionAssignor",
    "confluent-kafka partition.assignment.strategy=roundrobin",
    "confluent-kafka partition.assignment.strategy=cooperative-sticky",
    "kcat partition.assignment.strategy=cooperative-sticky",
    f"java {JAVA_ASSIGNOR}.CooperativeStickyAssignor",
    f"java {JAVA_ASSIGNOR}.StickyAssignor",
)
STATIC = (
    "kafka-python group_instance_id=member-{n}",
    "confluent-kafka group.instance.id=member-{n}",
    "kcat group.instance.id=member-{n}",
    "java --group-instance-id member-{n}",
)
PAUSED = ("kafka-python", "aiokafka", "confluent-kafka", "kcat", "java")
# Three at a time: each is three processes, and a machine that is late makes members late.
CHUNKS = [
    (signal.SIGKILL, clients[at : at + 3])
    for clients in (ASSIGNORS, STATIC)
    for at in range(0, len(clients), 3)
]
CHUNKS += [(signal.SIGSTOP, PAUSED[at : at + 3]) for at in range(0, len(PAUSED), 3)]


@pytest.mark.parametrize(
    ("silence", "clients"), CHUNKS, ids=lambda given: None if isinstance(given, tuple) else given.name
)
def test_partitions_are_taken_over(
    broker: LiveBroker,
    wire: Wire,
    silence: signal.Signals,
    clients: tuple[str, ...],
    request: pytest.FixtureRequest,
) -> None:
    """As in test_groups.py; one that was stopped is fenced, joins again and gets partitions."""
    topics = {client: f"{request.node.callspec.indices['clients']}-{n}" for n, client in enumerate(clients)}
    for topic in topics.values():
        wire.create(topic, PARTITIONS)
    stories = tell_all(broker.address, topics, silence)
    assert {client: story.problem for client, story in stories.items()} == dict.fromkeys(clients, "")
