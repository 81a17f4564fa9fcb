"""Topics made and deleted by the Python libraries' admin clients at three nodes: whichever is asked, and in
whichever version, the controller hears all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.live.client import Client
from tests.live.cluster import LiveCombined
from tests.patience import PATIENCE_S, until


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCombined]:
    with LiveCombined(tmp_path_factory.mktemp("nodes"), 3) as started:
        yield started


def of_kafka_python(address: str, topic: str, is_made: bool) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        if is_made:
            admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
        else:
            admin.delete_topics([topic])
    finally:
        admin.close()


def of_aiokafka(address: str, topic: str, is_made: bool) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def ask() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            if is_made:
                await admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
            else:
                await admin.delete_topics([topic])
        finally:
            await admin.close()

    asyncio.run(ask())


def of_confluent(address: str, topic: str, is_made: bool) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    if is_made:
        asked = admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1)])
    else:
        asked = admin.delete_topics([topic])
    asked[topic].result(PATIENCE_S)


@pytest.mark.parametrize("ask", [of_kafka_python, of_aiokafka, of_confluent])
def test_topics_come_and_go_by_any_node(nodes: LiveCombined, ask: Callable[[str, str, bool], None]) -> None:
    """Each client asks the node that the cluster names as its controller, which may be any: so several are
    made, and each is gone everywhere once its client was told so."""
    for number, address in enumerate(2 * nodes.addresses):
        topic = f"{ask.__name__}-{number}"
        for is_made in (True, False):
            ask(address, topic, is_made)
            until(lambda made=is_made, name=topic: known(nodes, name) == {made}, f"{topic} {is_made}")  # type: ignore[misc]


def known(nodes: LiveCombined, topic: str) -> set[bool]:
    """What the nodes say of it."""
    said = set()
    for address in nodes.addresses:
        with Client(address) as client:
            said.add(topic in client.topic_ids())
    return said
