"""Consumers read what objects hold of partitions that nobody can lead, for a log that nobody reaches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.cluster import FIRST_BROKER, LiveCluster
from tests.live.test_brokers import PARTITIONS, TOPIC, leaders, producer
from tests.live.test_controllers import QUICK
from tests.live.test_failover import moved_from, send, values
from tests.patience import until

SECOND = FIRST_BROKER + 1
UPLOADED, IN_LOG, WITHOUT_KEY = 120, 60, 20
LATEST, EARLIEST = -1, -2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    """What it is sent first is in objects, what follows in logs of blocks alone."""
    with LiveCluster(tmp_path, 1, 3, {**QUICK, "s3.wal.upload.interval.ms": "20000"}) as started:
        with Client(started.addresses[0]) as client:
            client.create(TOPIC, PARTITIONS)
        yield started


def readers(broker: LiveBroker) -> dict[int, int]:
    """Whom consumers are told to fetch from."""
    with Client(broker.address, client_id="consumer") as client:
        answer = client.ask("Metadata", MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
    return {one.partition_index: one.leader_id for one in answer.topics[0].partitions}


def offset_of(broker: LiveBroker, index: int, which: int) -> tuple[int, int]:
    """The error code, and the offset."""
    asked = ListOffsetsTopic(TOPIC, [ListOffsetsPartition(index, timestamp=which)])
    with Client(broker.address) as client:
        answer = client.ask("ListOffsets", ListOffsetsRequest(topics=[asked])).topics[0].partitions[0]
    return answer.error_code, answer.offset


def test_what_was_uploaded_is_read_while_nobody_leads(cluster: LiveCluster, tmp_path: Path) -> None:
    """By a consumer that goes on with the rest, each record once, when the log is back; nothing is written
    meanwhile, and nobody is told where the partition ends. What may go to any partition goes to others."""
    send(cluster, values(0, UPLOADED))
    until(lambda: all_uploaded(cluster), "nothing is uploaded")
    send(cluster, values(UPLOADED, IN_LOG))
    witness = cluster.brokers[FIRST_BROKER]
    waiting = [index for index, leader in leaders(witness).items() if leader == SECOND]
    assert waiting
    gone = cluster.brokers.pop(SECOND)
    gone.kill()
    wal = next((tmp_path / f"broker{SECOND}").rglob("wal"))
    wal.rename(tmp_path / "away")
    until(lambda: all(readers(witness)[index] not in (-1, SECOND) for index in waiting), "nobody reads")
    assert {leaders(witness)[index] for index in waiting} == {-1}
    consumer = KafkaConsumer(bootstrap_servers=cluster.addresses, auto_offset_reset="earliest")
    found: dict[int, list[int]] = {index: [] for index in waiting}

    def has(count: int) -> bool:
        for place, records in consumer.poll(timeout_ms=500).items():
            found[place.partition] += [int(record.value) for record in records]
        return all(len(one) >= count // PARTITIONS for one in found.values())

    try:
        consumer.assign([TopicPartition(TOPIC, index) for index in waiting])
        until(lambda: has(UPLOADED), "history is not read")
        reader = cluster.brokers[readers(witness)[waiting[0]]]
        assert offset_of(reader, waiting[0], EARLIEST) == (0, 0)
        assert offset_of(reader, waiting[0], LATEST)[0] == ErrorCode.LEADER_NOT_AVAILABLE
        sender = producer(cluster, max_block_ms=3_000, request_timeout_ms=1_000, delivery_timeout_ms=3_000)
        with pytest.raises(KafkaTimeoutError):
            sender.send(TOPIC, b"999999", partition=waiting[0]).get(20)
        for _ in range(WITHOUT_KEY):
            assert sender.send(TOPIC, b"999999").get(20).partition not in waiting
        sender.close(timeout=0)
        assert not has(UPLOADED + PARTITIONS), found  # what is in the log alone nobody has
        (tmp_path / "away").rename(wal)
        until(lambda: moved_from(cluster, SECOND), "the log is not recovered")
        until(lambda: has(UPLOADED + IN_LOG), "the rest is not read")
    finally:
        consumer.close()
    count = UPLOADED + IN_LOG
    assert found == {index: [*range(index, count, PARTITIONS)] for index in waiting}


def all_uploaded(cluster: LiveCluster) -> bool:
    return all(broker.metrics()["millrace_upload_lag_seconds"] == 0 for broker in cluster.brokers.values())
