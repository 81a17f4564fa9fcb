"""The admin clients of the three Python libraries: the life of a topic, of its configuration, of a group and
its offsets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.compat.wire import Wire
from tests.live import LiveBroker
from tests.patience import PATIENCE_S


@pytest.fixture
def group(broker: LiveBroker, wire: Wire, request: pytest.FixtureRequest) -> str:
    """A group with committed positions and no members; its topic has the same name, three partitions, ten
    records in the first."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    name = f"of-{request.node.name}"
    wire.create(name, partitions=3)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(10):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": name})
    consumer.commit(offsets=[TopicPartition(name, 0, 4)], asynchronous=False)
    consumer.close()
    return name


def test_kafka_python(broker: LiveBroker, group: str) -> None:
    """kafka-python's KafkaAdminClient."""
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        admin.create_topics([NewTopic("kp", num_partitions=2, replication_factor=1)])
        (described,) = admin.describe_topics(["kp"])
        assert len(described["partitions"]) == 2
        admin.create_partitions({"kp": 4})
        assert len(admin.describe_topics(["kp"])[0]["partitions"]) == 4
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "kp", {"retention.ms": "7200000"})])
        assert "7200000" in str(admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "kp")]))
        assert group in str(admin.list_groups())
        assert "Empty" in str(admin.describe_groups([group]))
        offsets = admin.list_group_offsets({group: [TopicPartition(group, 0)]})
        assert "offset=4" in str(offsets), offsets
        assert admin.delete_records({TopicPartition(group, 0): 3})
        assert admin.describe_cluster()["brokers"]
        assert admin.describe_log_dirs()
        admin.delete_groups([group])
        assert group not in str(admin.list_groups())
        admin.delete_topics(["kp"])
        assert "kp" not in admin.list_topics()
    finally:
        admin.close()


def test_aiokafka(broker: LiveBroker, group: str) -> None:
    """aiokafka's AIOKafkaAdminClient."""
    asyncio.run(_aiokafka(broker.address, group))


async def _aiokafka(address: str, group: str) -> None:
    from aiokafka import TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("aio", num_partitions=2, replication_factor=1)])
        await admin.create_partitions({"aio": NewPartitions(4)})
        assert len((await admin.describe_topics(["aio"]))[0]["partitions"]) == 4
        await admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, "aio", {"retention.ms": "7200000"})]
        )
        assert "7200000" in str(
            await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "aio")])
        )
        assert (group, "") in await admin.list_consumer_groups()
        assert "Empty" in str(await admin.describe_consumer_groups([group]))
        place = TopicPartition(group, 0)
        assert (await admin.list_consumer_group_offsets(group))[place].offset == 4
        assert await admin.delete_records({place: RecordsToDelete(3)}) == {place: 3}
        assert (await admin.describe_cluster())["brokers"]
        await admin.delete_topics(["aio"])
        assert "aio" not in await admin.list_topics()
    finally:
        await admin.close()


def test_confluent(broker: LiveBroker, group: str) -> None:
    """confluent-kafka's AdminClient."""
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
    )

    admin = AdminClient({"bootstrap.servers": broker.address})
    done(admin.create_topics([NewTopic("ck", num_partitions=2, replication_factor=1)]))
    done(admin.create_partitions([NewPartitions("ck", 4)]))
    assert len(done(admin.describe_topics(TopicCollection(["ck"]))).partitions) == 4
    entry = ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
    done(admin.incremental_alter_configs([ConfigResource("topic", "ck", incremental_configs=[entry])]))
    assert done(admin.describe_configs([ConfigResource("topic", "ck")]))["retention.ms"].value == "7200000"
    assert group in {found.group_id for found in admin.list_consumer_groups().result(PATIENCE_S).valid}
    described = done(admin.describe_consumer_groups([group]))
    assert (described.state.name, described.members) == ("EMPTY", [])
    place = TopicPartition(group, 0)
    offsets = done(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [place])]))
    assert offsets.topic_partitions[0].offset == 4
    done(
        admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, [TopicPartition(group, 0, 6)])]
        )
    )
    assert done(admin.list_offsets({place: OffsetSpec.latest()})).offset == 10
    assert done(admin.delete_records([TopicPartition(group, 0, 3)])).low_watermark == 3
    assert done(admin.list_offsets({place: OffsetSpec.earliest()})).offset == 3
    assert [node.id for node in admin.describe_cluster().result(PATIENCE_S).nodes] == [1]
    done(admin.delete_consumer_groups([group]))
    done(admin.delete_topics(["ck"]))
    assert "ck" not in admin.list_topics(timeout=PATIENCE_S).topics


def done(futures: Any) -> Any:
    """The one result of a call that gives futures by name."""
    (future,) = futures.values()
    return future.result(PATIENCE_S)
