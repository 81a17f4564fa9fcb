"""Broker settings that are changed while a broker runs, as clients see it: at once, and past a restart."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from millrace.protocol.apis import NAMED
from millrace.protocol.codec import encode_request
from millrace.protocol.messages import (
    alter_configs,
    describe_configs,
    describe_producers,
    fetch,
    incremental_alter_configs,
)
from tests.live import LiveBroker, free_port
from tests.live.client import Client
from tests.live.wire import Wire
from tests.patience import PATIENCE_S, until

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
SET, DELETE = 0, 1


def alter(
    address: str, *changes: tuple[str, int, str | None], node: str = "1", validate_only: bool = False
) -> tuple[int, str]:
    """The code and the message."""
    configs = [incremental_alter_configs.AlterableConfig(*one) for one in changes]
    resource = incremental_alter_configs.AlterConfigsResource(BROKER, node, configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], validate_only)
    with Wire(address) as wire:
        (result,) = wire.ask(44, 1, request).responses
    return result.error_code, result.error_message or ""


def producers_of(address: str, topic: str) -> list[Any]:
    request = describe_producers.DescribeProducersRequest([describe_producers.TopicRequest(topic, [0])])
    with Wire(address) as wire:
        found: list[Any] = wire.ask(61, 0, request).topics[0].partitions[0].active_producers
    return found


def send_idempotently(address: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
    producer.send(topic, b"v").get(20)
    producer.close()


def test_quiet_producers_are_forgotten_by_what_holds_now(tmp_path: Path) -> None:
    """producer.id.expiration.ms is a day at the start; set dynamically it counts from then on, also past a
    restart, until it is taken back."""
    settings = {"producer.id.expiration.check.interval.ms": "100"}
    with LiveBroker(tmp_path, settings, wal="16MiB") as broker:
        send_idempotently(broker.address, "t")
        assert len(producers_of(broker.address, "t")) == 1
        assert alter(broker.address, ("producer.id.expiration.ms", SET, "1")) == (0, "")
        until(lambda: not producers_of(broker.address, "t"))
        broker.restart()
        send_idempotently(broker.address, "t")
        until(lambda: not producers_of(broker.address, "t"))
        assert alter(broker.address, ("producer.id.expiration.ms", DELETE, None)) == (0, "")
        send_idempotently(broker.address, "t")
        time.sleep(0.5)
        assert len(producers_of(broker.address, "t")) == 1
        assert alter(broker.address, ("producer.id.expiration.ms", SET, "0")) == (
            42,
            "Invalid value 0 for configuration producer.id.expiration.ms: it is below 1",
        )


# What is logged


def logger_levels(address: str) -> dict[str, str]:
    resource = describe_configs.DescribeConfigsResource(BROKER_LOGGER, "1", None)
    with Wire(address) as wire:
        (result,) = wire.ask(32, 4, describe_configs.DescribeConfigsRequest([resource])).results
    assert result.error_code == 0, result
    assert {(one.config_source, one.config_type, one.read_only) for one in result.configs} == {(6, 0, False)}
    return {one.name: one.value for one in result.configs}


def set_logger(address: str, name: str, operation: int, level: str | None) -> None:
    changes = [incremental_alter_configs.AlterableConfig(name, operation, level)]
    resource = incremental_alter_configs.AlterConfigsResource(BROKER_LOGGER, "1", changes)
    with Wire(address) as wire:
        (result,) = wire.ask(
            44, 1, incremental_alter_configs.IncrementalAlterConfigsRequest([resource])
        ).responses
    assert result.error_code == 0, result


def test_how_much_is_logged_changes_while_a_broker_runs(tmp_path: Path) -> None:
    """log.level from the start on and dynamically, past a restart; a logger's own level over it until it is
    given back, or until the restart."""

    def told(topic: str) -> bool:
        with Client(broker.address) as client:
            client.create(topic)
        return "change_log: topics created by client 'live' at 127.0.0.1" in log.read_text().splitlines()[-1]

    with LiveBroker(tmp_path, {"log.level": "WARN,wal=DEBUG"}, wal="16MiB") as broker:
        log = broker.log_path
        levels = logger_levels(broker.address)
        assert (levels["root"], levels["millrace.wal"], levels["millrace.broker.requests.change_log"]) == (
            "WARN",
            "DEBUG",
            "WARN",
        )
        assert not told("a")
        set_logger(broker.address, "millrace.broker.requests.change_log", SET, "INFO")
        assert told("b")
        assert alter(broker.address, ("log.level", SET, "ERROR")) == (0, "")
        levels = logger_levels(broker.address)
        assert (levels["root"], levels["millrace.wal"], levels["millrace.broker.requests.change_log"]) == (
            "ERROR",
            "ERROR",
            "INFO",
        )
        set_logger(broker.address, "millrace.broker.requests.change_log", DELETE, None)
        assert not told("c")
        set_logger(broker.address, "millrace.kraft", SET, "TRACE")
        broker.restart()
        assert {logger_levels(broker.address)[name] for name in ("root", "millrace.kraft")} == {"ERROR"}
        assert alter(broker.address, ("log.level", DELETE, None), node="1") == (0, "")
        assert logger_levels(broker.address)["millrace.wal"] == "DEBUG"
        code, said = alter(broker.address, ("log.level", SET, "INFO,java=DEBUG"))
        assert (code, "the name begins with none of broker, kraft" in said) == (42, True), said


# Listeners


def is_served(address: str) -> bool:
    try:
        with Wire(address) as wire:
            return bool(wire.ask(3, 9).brokers)
    except (OSError, EOFError):
        return False


def listening(*extra: tuple[str, str], of: LiveBroker) -> tuple[tuple[str, int, str], tuple[str, int, str]]:
    """`extra`: names and addresses beside the broker's own."""
    texts = [f"PLAINTEXT://{of.address}", *(f"{name}://{address}" for name, address in extra)]
    names = ["PLAINTEXT:PLAINTEXT", *(f"{name}:PLAINTEXT" for name, _ in extra)]
    return ("listeners", SET, ",".join(texts)), ("listener.security.protocol.map", SET, ",".join(names))


def test_a_listener_comes_and_goes_while_a_broker_runs(tmp_path: Path) -> None:
    """By kafka-python: bound when the change is accepted, served past a restart to clients that are told its
    own address; when it is taken back, what waits there is answered before its connections end, and the
    others stay."""
    extra = f"127.0.0.1:{free_port()}"
    with LiveBroker(tmp_path, wal="16MiB") as broker, Wire(broker.address) as other:
        with KafkaAdminClient(bootstrap_servers=broker.address) as admin:
            configs = {key: value for key, _, value in listening(("EXTRA", extra), of=broker)}
            admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", configs=configs)])
        with Wire(extra) as wire:
            (told,) = wire.ask(3, 9).brokers
            assert f"{told.host}:{told.port}" == extra
        broker.restart()
        send_idempotently(extra, "t")
        patience_ms = int(PATIENCE_S * 1000)
        consumer = KafkaConsumer(
            "t", bootstrap_servers=extra, auto_offset_reset="earliest", consumer_timeout_ms=patience_ms
        )
        assert next(consumer).value == b"v"
        with Wire(extra) as waiting, Wire(broker.address) as staying:
            waiting.send_bytes(parked_fetch())
            time.sleep(0.3)
            assert alter(broker.address, ("listeners", DELETE, None)) == (0, "")
            assert waiting.read_frame()
            assert waiting.is_closed_unanswered()
            assert not is_served(extra)
            assert staying.ask(3, 9).brokers
        consumer.close()
        assert other.is_closed_unanswered()  # by the restart


def parked_fetch() -> bytes:
    """For more than there is, with a long wait."""
    topic = fetch.FetchTopic(
        "t", partitions=[fetch.FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)]
    )
    request = fetch.FetchRequest(
        max_wait_ms=600_000, min_bytes=1000, max_bytes=1000, session_epoch=-1, topics=[topic]
    )
    return encode_request(NAMED["Fetch"], 12, 1, "waits", request)


def test_a_listener_that_cannot_be_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    """An address that is taken, a protocol that is not spoken or not said, what clients are told of left out,
    a default for all brokers."""
    extra = f"127.0.0.1:{free_port()}"
    with LiveBroker(tmp_path, wal="16MiB") as broker, socket.create_server(("127.0.0.1", 0)) as taken:
        busy = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = alter(broker.address, *listening(("EXTRA", extra), ("BUSY", busy), of=broker))
        assert (code, said.endswith(f"{busy} cannot be listened on: Address already in use")) == (42, True), (
            said
        )
        wanted, _ = listening(("EXTRA", extra), of=broker)
        code, said = alter(broker.address, wanted)
        assert (code, "gives no protocol" in said) == (42, True), said
        code, said = alter(
            broker.address, wanted, ("listener.security.protocol.map", SET, "PLAINTEXT:PLAINTEXT,EXTRA:SSL")
        )
        assert (code, "wants SSL for EXTRA" in said) == (42, True), said
        code, said = alter(broker.address, ("listeners", SET, f"PLAINTEXT://{extra}"))
        assert (code, "moves PLAINTEXT, which clients are told of" in said) == (42, True), said
        code, said = alter(broker.address, wanted, node="")
        assert (code, said.startswith("Cannot update these configs at default cluster level")) == (
            42,
            True,
        ), said
        assert alter(broker.address, *listening(("EXTRA", extra), of=broker), validate_only=True) == (0, "")
        assert not is_served(extra)
        wanted = listening(("EXTRA", extra), ("BUSY", busy), of=broker)
        code, said = alter(broker.address, *wanted, validate_only=True)
        assert (code, said.endswith(f"{busy} cannot be listened on: Address already in use")) == (42, True), (
            said
        )
        assert alter(broker.address, ("listeners", DELETE, None)) == (0, "")
        assert is_served(broker.address)


def test_two_listeners_swap_their_addresses(tmp_path: Path) -> None:
    """In one change, which is accepted also when it is only validated: each is served where the other was; so
    is a listener that moves to another host's address on its own port."""
    one, two = (f"127.0.0.1:{free_port()}" for _ in range(2))
    everywhere = f"0.0.0.0:{one.partition(':')[2]}"
    with LiveBroker(tmp_path, wal="16MiB") as broker:
        assert alter(broker.address, *listening(("ONE", one), ("TWO", two), of=broker)) == (0, "")
        swapped = listening(("ONE", two), ("TWO", one), of=broker)
        assert alter(broker.address, *swapped, validate_only=True) == (0, "")
        assert alter(broker.address, *swapped) == (0, "")
        moved = listening(("ONE", two), ("TWO", everywhere), of=broker)
        for served in (f"listener ONE://{one} is closed", f"listener TWO://{two} is closed"):
            until(lambda served=served: served in broker.log_path.read_text())  # type: ignore[misc]
        until(lambda: is_served(one) and is_served(two))
        assert alter(broker.address, *moved) == (0, "")
        until(lambda: f"listener TWO://{one} is closed" in broker.log_path.read_text())
        until(lambda: is_served(one) and is_served(two))
        assert "is not served" not in broker.log_path.read_text()


def test_each_resource_stands_alone_and_answers_keep_their_order(tmp_path: Path) -> None:
    """Of one request: another broker's settings, which it alone can judge, a logger that is there and one
    that is not, a listener that cannot be, and what the controller decides."""
    change = incremental_alter_configs
    asked = [
        (BROKER, "7", "log.retention.ms", "1000", (42, "Unexpected broker id, expected 1, but received 7")),
        (TOPIC, "t", "retention.ms", "1000", (0, "")),
        (BROKER_LOGGER, "7", "root", "INFO", (42, "Unexpected node id. Expected 1, but received 7")),
        (BROKER_LOGGER, "1", "no.such", "INFO", (40, "Logger no.such does not exist!")),
        (BROKER, "1", "listeners", "nonsense", (42, "it 'nonsense' is not NAME://HOST:PORT")),
        (TOPIC, "gone", "retention.ms", "1000", (3, "The topic 'gone' does not exist.")),
    ]
    resources = [
        change.AlterConfigsResource(one[0], one[1], [change.AlterableConfig(one[2], 0, one[3])])
        for one in asked
    ]
    with LiveBroker(tmp_path, wal="16MiB") as broker, Client(broker.address) as client:
        client.create("t")
        responses = client.ask(
            "IncrementalAlterConfigs", change.IncrementalAlterConfigsRequest(resources)
        ).responses
    assert [(one.resource_type, one.resource_name) for one in responses] == [
        (one[0], one[1]) for one in asked
    ]
    for said, (code, ending) in zip(responses, (one[4] for one in asked), strict=True):
        assert (said.error_code, (said.error_message or "").endswith(ending)) == (code, True), said


def test_values_of_groups_and_client_metrics_are_judged(tmp_path: Path) -> None:
    """In both APIs, with Apache Kafka's codes, by the bounds that the broker was started with; what is
    refused is not stored."""
    asked = (
        (32, "consumer.session.timeout.ms", "x", 40),
        (32, "consumer.session.timeout.ms", "61000", 0),
        (32, "consumer.session.timeout.ms", "71000", 40),
        (16, "interval.ms", "0", 42),
        (16, "match", "client_id", 40),
    )
    settings = {"group.consumer.max.session.timeout.ms": "70000"}
    with LiveBroker(tmp_path, settings) as broker, Wire(broker.address) as wire:
        for kind, key, value, code in asked:
            change = incremental_alter_configs.AlterConfigsResource(
                kind, "r", [incremental_alter_configs.AlterableConfig(key, SET, value)]
            )
            request = incremental_alter_configs.IncrementalAlterConfigsRequest([change])
            assert wire.ask(44, 1, request).responses[0].error_code == code, (key, value)
            whole = alter_configs.AlterConfigsResource(kind, "r", [alter_configs.AlterableConfig(key, value)])
            assert wire.ask(33, 2, alter_configs.AlterConfigsRequest([whole])).responses[0].error_code == code
        named = [describe_configs.DescribeConfigsResource(kind, "r", None) for kind in (32, 16)]
        found = wire.ask(32, 4, describe_configs.DescribeConfigsRequest(named)).results
        values = {config.name: config.value for result in found for config in result.configs}
        assert values["consumer.session.timeout.ms"] == "61000"
        assert values["interval.ms"] == "300000"


def test_an_address_that_is_taken_at_a_start_stops_nothing(tmp_path: Path) -> None:
    """Of a listener that was set dynamically: it is told in the log, and can be changed."""
    extra = f"127.0.0.1:{free_port()}"
    with LiveBroker(tmp_path, wal="16MiB") as broker:
        assert alter(broker.address, *listening(("EXTRA", extra), of=broker)) == (0, "")
        assert broker.stop() == 0
        host, port = extra.split(":")
        with socket.create_server((host, int(port))):
            broker.start()
            assert (
                f"listener EXTRA://{extra} is not served: Address already in use"
                in broker.log_path.read_text()
            )
            assert alter(broker.address, ("listeners", DELETE, None)) == (0, "")
