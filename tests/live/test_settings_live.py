"""Settings that clients feel, each on a broker of its own: what is advertised, what is not created, what is
not deleted."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer
from kafka import KafkaAdminClient

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest
from millrace.protocol.messages.describe_cluster import DescribeClusterRequest
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.live import LiveBroker, free_port
from tests.live.wire import Wire
from tests.patience import PATIENCE_S


def told(wire: Wire) -> set[tuple[str, int]]:
    """Where Metadata, DescribeCluster and FindCoordinator send this client."""
    (broker,) = wire.ask(3, 12, MetadataRequest(topics=[])).brokers
    (described,) = wire.ask(60, 1, DescribeClusterRequest()).brokers
    (found,) = wire.ask(10, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])).coordinators
    return {(one.host, one.port) for one in (broker, described, found)}


def test_a_broker_on_every_address_tells_each_client_the_one_it_used(tmp_path: Path) -> None:
    """Bound to 0.0.0.0 and nothing advertised: who came by 127.0.0.2 is sent there again, and a real client
    works that way."""
    port = free_port()
    with LiveBroker(tmp_path, {"listeners": f"PLAINTEXT://0.0.0.0:{port}"}, wal="16MiB"):
        for host in ("127.0.0.1", "127.0.0.2"):
            with Wire(f"{host}:{port}") as wire:
                assert told(wire) == {(host, port)}
        errors: list[object] = []
        producer = Producer({"bootstrap.servers": f"127.0.0.2:{port}", "log_level": 0})
        producer.produce("t", b"v", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE_S) == 0
        assert errors == [None]


def test_advertised_listeners_are_what_clients_are_told(tmp_path: Path) -> None:
    """Each listener its own; one that is not named is where it is bound."""
    inner, outer = free_port(), free_port()
    settings = {
        "listeners": f"INNER://127.0.0.1:{inner},OUTER://127.0.0.1:{outer}",
        "advertised.listeners": "OUTER://kafka.example.org:19092",
        "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
    }
    with LiveBroker(tmp_path, settings, wal="16MiB"):
        with Wire(f"127.0.0.1:{outer}") as wire:
            assert told(wire) == {("kafka.example.org", 19092)}
        with Wire(f"127.0.0.1:{inner}") as wire:
            assert told(wire) == {("127.0.0.1", inner)}


def test_what_is_turned_off_stays_off(tmp_path: Path) -> None:
    """auto.create.topics.enable=false: naming a topic does not make it, producing to it fails.
    delete.topic.enable=false: a deletion is refused with the code its version knows, and the topic stays."""
    settings = {"auto.create.topics.enable": "false", "delete.topic.enable": "false"}
    with LiveBroker(tmp_path, settings, wal="16MiB") as broker, Wire(broker.address) as wire:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="absent")], allow_auto_topic_creation=True)
        for _ in range(2):
            (topic,) = wire.ask(3, 12, asked).topics
            assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        made = wire.ask(19, 7, CreateTopicsRequest(topics=[CreatableTopic("kept", 1, 1)]))
        assert [result.error_code for result in made.topics] == [0]
        for version, code in ((5, ErrorCode.TOPIC_DELETION_DISABLED), (2, ErrorCode.INVALID_REQUEST)):
            gone = wire.ask(20, version, DeleteTopicsRequest(topic_names=["kept"]))
            assert [(result.name, result.error_code) for result in gone.responses] == [("kept", code)]
        client = KafkaAdminClient(bootstrap_servers=broker.address)
        assert client.list_topics() == ["kept"]
        client.close()
