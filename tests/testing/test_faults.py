"""Faults on request, as the client under test meets them; the test's own requests are spared, and no other
start can be asked for any."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, NotLeaderForPartitionError

from millrace.broker.injection import FAILABLE, SLOWABLE, Faults, Rules, unserved_in
from millrace.protocol.apis import KAFKA
from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.testing import Broker, TopicPartition
from tests.live import LiveBroker
from tests.patience import PATIENCE_S


def producer_of(kafka: Broker, **settings: object) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, retry_backoff_ms=1, **settings)


def test_a_request_is_refused_so_often(kafka: Broker) -> None:
    """A producer without retries is told the code; one with retries gets through. What was refused is not
    there."""
    kafka.create_topic("orders")
    strict = producer_of(kafka, retries=0, enable_idempotence=False)
    kafka.fail("Produce", "NOT_LEADER_OR_FOLLOWER")
    kafka.produce("orders", "the test's own is spared")
    with pytest.raises(NotLeaderForPartitionError):
        strict.send("orders", b"refused").get(10)
    strict.close()
    kafka.fail("Produce", 6, times=2)
    patient = producer_of(kafka)
    patient.send("orders", b"third try").get(10)
    patient.close()
    assert [record.text for record in kafka.records("orders")] == ["the test's own is spared", "third try"]


def test_a_full_disk_lasts_until_it_is_healed(kafka: Broker) -> None:
    """Every producer is refused with Kafka's code for it."""
    kafka.create_topic("orders")
    kafka.fill_disk()
    producer = producer_of(kafka, retries=0, enable_idempotence=False)
    for _ in range(2):
        with pytest.raises(KafkaError) as told:
            producer.send("orders", b"x").get(10)
        assert "KafkaStorageError" in f"{told.value!r}"
    kafka.heal()
    producer.send("orders", b"y").get(10)
    producer.close()
    assert [record.text for record in kafka.records("orders")] == ["y"]


def test_slow_answers_come_later_than_what_they_say(kafka: Broker) -> None:
    """The record is there while its producer still waits."""
    kafka.create_topic("orders")
    producer = producer_of(kafka)
    producer.send("orders", b"a").get(10)
    kafka.slow("Produce", 600_000)
    waiting = producer.send("orders", b"b")
    assert kafka.wait_for_records("orders", 2)[1].text == "b"
    assert not waiting.is_done
    kafka.heal()
    kafka.drop_connections()
    assert waiting.get(10).offset == 1, (
        "it was sent again after the reset, and an idempotent producer's twin is known"
    )
    producer.close()


def test_dropped_connections_are_made_again(kafka: Broker) -> None:
    """They are resets, counted; a client goes on."""
    kafka.create_topic("orders")
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
    )
    deadline = time.monotonic() + PATIENCE_S
    while not kafka.drop_connections() and time.monotonic() < deadline:
        consumer.poll(100)
    assert time.monotonic() < deadline, "it never connected"
    kafka.produce("orders", "x")
    while not (found := consumer.poll(200)) and time.monotonic() < deadline:
        pass
    assert [record.value for batch in found.values() for record in batch] == [b"x"]
    consumer.close()


def test_retention_runs_when_it_is_asked(kafka: Broker) -> None:
    """As of any time: records that are old by then are gone on return, also from partitions that nobody has
    open; others stay."""
    kafka.create_topic("short", config={"retention.ms": "60000"})
    kafka.create_topic("long", config={"retention.ms": "-1"})
    for topic in ("short", "long"):
        kafka.produce(topic, "a", "b")
    assert kafka.run_retention() == 0
    assert kafka.run_retention(as_of=datetime.now(UTC) + timedelta(minutes=2)) == 2
    assert (kafka.records("short"), len(kafka.records("long"))) == ([], 2)
    assert kafka.produce("short", "c")[0].offset == 2


@pytest.mark.parametrize(
    ("api", "code", "times", "reason"),
    [
        ("Nothing", "UNKNOWN_SERVER_ERROR", 1, "api=Nothing is none of Produce, Fetch"),
        ("Metadata", "UNKNOWN_SERVER_ERROR", 1, "api=Metadata is none of"),
        ("Produce", "NONE", 1, "code=NONE is no error"),
        ("Produce", "NO_SUCH", 1, "code=NO_SUCH is no error code"),
        ("Produce", 9_999, 1, "code=9999 is no error code"),
        ("Produce", 6, 0, "times=0 is no whole number from 1"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(
    api: str, code: str | int, times: int, reason: str, kafka: Broker
) -> None:
    """With a sentence, and nothing is injected."""
    with pytest.raises(ValueError, match=reason):
        kafka.fail(api, code, times)
    assert kafka.produce("orders", "x")


def test_each_fault_that_is_offered_can_be_asked_for(kafka: Broker) -> None:
    """All names on the list are the broker's own."""
    for api in FAILABLE:
        kafka.fail(api, "UNKNOWN_SERVER_ERROR", times=None)
    for api in SLOWABLE:
        kafka.slow(api, 0)
    with pytest.raises(ValueError, match="ms=-1"):
        kafka.slow("Fetch", -1)
    kafka.heal()
    assert kafka.topics() == []


def test_control_takes_posts_alone(kafka: Broker) -> None:
    """Other methods, paths and bytes are answered or end their connection, and the broker goes on."""
    url = kafka.process.control_url
    for path, method, status in (
        ("fail", "GET", 405),
        ("nothing", "POST", 404),
        ("slow?api=Fetch", "POST", 400),
    ):
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(urllib.request.Request(f"{url}/{path}", method=method), timeout=PATIENCE_S)
        assert told.value.code == status
        told.value.close()
    with socket.create_connection(("127.0.0.1", kafka.process.control_port), PATIENCE_S) as endless:
        endless.sendall(b"x" * 9_000)
        assert endless.recv(1) in (b"",)
    assert kafka.topics() == []


def test_a_start_without_test_mode_has_no_faults(tmp_path: Path) -> None:
    """No control listener is in its ready line, and its admin listener takes no such thing."""
    with LiveBroker(tmp_path, wal="16MiB") as broker:
        assert "control" not in broker.log_path.read_text()
        request = urllib.request.Request(
            f"http://127.0.0.1:{broker.admin_port}/fail?api=Produce&code=6", method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as told:
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        assert told.value.code == 405
        told.value.close()


def test_rules_count_down() -> None:
    """So many times, none, or always."""
    rules = Rules(code=6, left=2)
    assert [rules.take_failure() for _ in range(3)] == [6, 6, 0]
    always = Rules(code=6, left=None)
    assert [always.take_failure() for _ in range(3)] == [6, 6, 6]
    assert Rules().take_failure() == 0


def test_what_is_unserved_is_noted_once_and_bounded() -> None:
    """And taken by whoever asks first."""
    faults = Faults()
    for number in range(100):
        faults.note_unserved(f"sentence {number % 30}")
    assert len(faults.take_unserved()) == 20
    assert faults.take_unserved() == []


def test_compaction_is_seen_where_it_is_asked_for() -> None:
    """In a new topic's configuration and in a change of it; other values pass."""
    key = {api.name: api.key for api in KAFKA}
    for value, is_told in (("compact", True), ("compact,delete", True), ("delete", False), (None, False)):
        topic = CreatableTopic("a", configs=[CreatableTopicConfig("cleanup.policy", value)])
        change = AlterConfigsResource(2, "a", [AlterableConfig("cleanup.policy", 0, value)])
        assert bool(unserved_in(key["CreateTopics"], CreateTopicsRequest([topic]))) == is_told
        assert (
            bool(unserved_in(key["IncrementalAlterConfigs"], IncrementalAlterConfigsRequest([change])))
            == is_told
        )


def test_a_request_of_a_feature_that_is_turned_off_is_seen() -> None:
    """SASL and the groups that are not served, by the first request that their clients send."""
    key = {api.name: api.key for api in KAFKA}
    names = ("SaslHandshake", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "StreamsGroupHeartbeat")
    told = [unserved_in(key[name], None) for name in names]
    assert [sentence.split(" ")[0] for (sentence,) in told] == [
        "TLS",
        "group.protocol=consumer",
        "share",
        "group.protocol=streams",
    ]
    assert unserved_in(key["ApiVersions"], None) == []


def test_what_is_not_served_is_told(kafka: Broker) -> None:
    """A transactional producer and a client that speaks TLS, each with its sentence; once taken, the test
    passes."""
    from confluent_kafka import KafkaException, Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t"})
    with pytest.raises(KafkaException):
        producer.init_transactions(10)
    host, _, port = kafka.bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as hello:
        hello.sendall(b"\x16\x03\x01\x02\x00\x01" + bytes(100))
        assert hello.recv(1) == b""
    told = kafka.unserved()
    assert any(sentence.startswith("transactions are not served") for sentence in told)
    assert any(sentence.startswith("TLS and SASL are not served") for sentence in told)
    assert kafka.unserved() == []


def test_a_member_that_is_slow_to_be_answered_keeps_its_group(kafka: Broker) -> None:
    """JoinGroup answered late: the group forms all the same, and its offsets are committed."""
    kafka.create_topic("orders")
    kafka.produce("orders", "x")
    kafka.slow("JoinGroup", 100)
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=kafka.bootstrap_servers, group_id="g", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"x"
    consumer.close()
    assert kafka.committed("g") == {TopicPartition("orders", 0): 1}
