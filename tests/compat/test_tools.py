"""Kafka's own command-line classes against the live broker.

All run in one JVM, by their `main`; the verifiable producer and consumer, which end by signals, are processes
of their own.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.compat.jvm import Jvm, java_command
from tests.compat.wire import Wire
from tests.live import LiveBroker, free_port
from tests.patience import PATIENCE_S

CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "consumer.group.ConsumerGroupCommand"


class Tools:
    """`tools("TopicCommand", "--list")`: what it prints; the broker's address is added."""

    def __init__(self, jvm: Jvm, address: str) -> None:
        self.jvm = jvm
        self.address = address

    def __call__(self, name: str, *words: str, given: str = "", code: int = 0) -> str:
        full = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
        return self.jvm.tool(full, *words, "--bootstrap-server", self.address, given=given, code=code)

    def without_address(self, name: str, *words: str) -> str:
        return self.jvm.tool(f"org.apache.kafka.tools.{name}", *words)


@pytest.fixture(scope="module")
def tools(jvm: Jvm, broker: LiveBroker) -> Tools:
    return Tools(jvm, broker.address)


def test_topics(tools: Tools) -> None:
    """kafka-topics: create, list, describe, add partitions, delete; and what is refused says why."""
    topics = partial(tools, "TopicCommand")
    topics(
        "--create",
        "--topic",
        "made",
        "--partitions",
        "3",
        "--replication-factor",
        "3",
        "--config",
        "retention.ms=3600000",
    )
    assert "already exists" in topics("--create", "--topic", "made", code=1)
    topics("--create", "--if-not-exists", "--topic", "made")
    assert "made" in topics("--list").split()
    shown = topics("--describe", "--topic", "made")
    assert re.search(r"PartitionCount: 3\s.*retention.ms=3600000", shown), shown
    assert len(re.findall(r"Partition: \d+\s+Leader: 1\s+Replicas: 1\s+Isr: 1", shown)) == 3
    topics("--alter", "--topic", "made", "--partitions", "5")
    assert "would not be an increase" in topics("--alter", "--topic", "made", "--partitions", "2", code=1)
    assert "PartitionCount: 5" in topics("--describe", "--topic", "made")
    assert "made" in topics("--describe", "--topics-with-overrides")
    assert topics("--describe", "--under-replicated-partitions").strip() == ""
    assert topics("--describe", "--unavailable-partitions").strip() == ""
    assert "is invalid" in topics("--create", "--topic", "not/a/name", code=1)
    assert "Invalid value" in topics("--create", "--topic", "odd", "--config", "cleanup.policy=odd", code=1)
    topics("--delete", "--topic", "made")
    assert "made" not in topics("--list").split()
    assert "does not exist" in topics("--describe", "--topic", "made", code=1)


def test_configs(tools: Tools, wire: Wire) -> None:
    """kafka-configs: of topics, of a broker, of all brokers, of groups; kafka-client-metrics; unknown keys
    are refused."""
    wire.create("configured")
    configs, of_topic = partial(tools, CONFIGS), ("--entity-type", "topics", "--entity-name", "configured")
    configs("--alter", *of_topic, "--add-config", "retention.ms=7200000,max.message.bytes=5000000")
    shown = configs("--describe", *of_topic)
    assert "retention.ms=7200000" in shown
    assert (
        "synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=5000000, DEFAULT_CONFIG:message.max.bytes=1048588}"
        in shown
    )
    configs("--alter", *of_topic, "--delete-config", "retention.ms")
    assert "retention.ms=7200000" not in configs("--describe", *of_topic)
    assert configs("--describe", *of_topic, "--all").count("sensitive=false") > 30
    configs("--alter", *of_topic, "--add-config", "nonsense=1", code=1)
    assert f"PLAINTEXT://{tools.address}" in configs("--describe", "--broker", "1", "--all")
    configs("--alter", "--broker-defaults", "--add-config", "log.retention.ms=86400000")
    assert "log.retention.ms=86400000" in configs("--describe", "--broker-defaults")
    configs("--alter", "--broker-defaults", "--delete-config", "log.retention.ms")
    configs(
        "--alter",
        "--entity-type",
        "groups",
        "--entity-name",
        "g",
        "--add-config",
        "consumer.session.timeout.ms=50000",
    )
    assert "50000" in configs("--describe", "--entity-type", "groups", "--entity-name", "g")
    tools("ClientMetricsCommand", "--alter", "--name", "all", "--metrics", "*", "--interval", "1000")
    assert "all" in tools("ClientMetricsCommand", "--list").split()


def test_a_broker_gets_another_listener(tools: Tools) -> None:
    """kafka-configs: it serves when the command ends, also the command that takes it back; what clients are
    told of stays."""
    added = f"127.0.0.1:{free_port()}"
    configs = partial(tools, CONFIGS, "--alter", "--broker", "1")
    names = "listener.security.protocol.map=[PLAINTEXT:PLAINTEXT,ADDED:PLAINTEXT]"
    configs("--add-config", f"listeners=[PLAINTEXT://{tools.address},ADDED://{added}],{names}")
    through = Tools(tools.jvm, added)
    assert f"ADDED://{added}" in through(CONFIGS, "--describe", "--broker", "1")
    configs("--add-config", f"listeners=[ADDED://{added}]", code=1)
    through(
        CONFIGS, "--alter", "--broker", "1", "--delete-config", "listeners,listener.security.protocol.map"
    )
    with pytest.raises(ConnectionRefusedError):
        Wire(added)
    assert "listeners" not in tools(CONFIGS, "--describe", "--broker", "1")


def test_loggers(tools: Tools) -> None:
    """kafka-configs: lists a broker's loggers, sets one and root, gives one back; one that is not there, and
    a level that is none, are refused."""
    of_loggers = "--entity-type", "broker-loggers", "--entity-name", "1"
    configs = partial(tools, CONFIGS, *of_loggers)
    shown = configs("--describe")
    assert "  millrace.wal=INFO " in shown, shown
    assert "  root=INFO " in shown, shown
    configs("--alter", "--add-config", "millrace.wal=DEBUG,root=ERROR")
    shown = configs("--describe")
    assert ("  millrace.wal=DEBUG " in shown, "  millrace.kraft=ERROR " in shown) == (True, True), shown
    configs("--alter", "--add-config", "root=INFO", "--delete-config", "millrace.wal")
    assert configs("--describe").count("=INFO ") == shown.count("sensitive=false")
    configs("--alter", "--add-config", "no.such=DEBUG", code=1)
    configs("--alter", "--add-config", "millrace.wal=LOUD", code=1)
    configs("--alter", "--delete-config", "root", code=1)


def test_console(tools: Tools) -> None:
    """kafka-console-producer makes its topic; kafka-console-consumer reads it as a group and from the
    beginning."""
    tools(
        "ConsoleProducer",
        "--topic",
        "typed",
        "--reader-property",
        "parse.key=true",
        given="a\tone\nb\ttwo\n\tthree\n",
    )
    words = ("--topic", "typed", "--from-beginning", "--max-messages", "3", "--timeout-ms", "20000")
    shown = tools(
        "consumer.ConsoleConsumer", *words, "--group", "typists", "--formatter-property", "print.key=true"
    )
    assert shown.splitlines()[:3] == ["a\tone", "b\ttwo", "\tthree"]
    tools("ConsoleProducer", "--topic", "typed", given="four\n")
    words = ("--topic", "typed", "--group", "typists", "--max-messages", "1", "--timeout-ms", "20000")
    assert tools("consumer.ConsoleConsumer", *words).splitlines()[0] == "four"


def test_groups(tools: Tools) -> None:
    """kafka-consumer-groups: list, describe, reset by offset and by time, delete offsets, delete;
    kafka-groups and its kin."""
    tools("ConsoleProducer", "--topic", "grouped", given="".join(f"{n}\n" for n in range(10)))
    words = (
        "--topic",
        "grouped",
        "--from-beginning",
        "--group",
        "members",
        "--max-messages",
        "4",
        "--timeout-ms",
        "20000",
    )
    tools("consumer.ConsoleConsumer", *words)
    groups, reset = partial(tools, GROUPS), ("--reset-offsets", "--group", "members", "--topic", "grouped")
    assert re.search(r"members\s+grouped\s+0\s+4\s+10\s+6\s", groups("--describe", "--group", "members"))
    assert re.search(r"members\s+Empty", groups("--list", "--state"))
    assert re.search(r"members\s+Classic", groups("--list", "--type"))
    assert re.search(
        r"members\s+\S+\s+\(1\)\s+\S+\s+Empty\s+0", groups("--describe", "--group", "members", "--state")
    )
    assert re.search(r"grouped\s+0\s+2\n", groups(*reset, "--to-offset", "2", "--execute"))
    assert re.search(
        r"grouped\s+0\s+0\n", groups(*reset, "--to-datetime", "2026-01-01T00:00:00.000", "--dry-run")
    )
    assert re.search(r"members\s+grouped\s+0\s+2\s+10\s+8\s", groups("--describe", "--group", "members"))
    assert "Successful" in groups("--delete-offsets", "--group", "members", "--topic", "grouped")
    assert re.search(r"members\s+Classic\s+consumer", tools("GroupsCommand", "--list"))
    assert "successful" in groups("--delete", "--group", "members")
    assert "members" not in groups("--list").split()
    assert "not found" in groups("--describe", "--group", "members")
    assert tools("consumer.group.ShareGroupCommand", "--list").strip() == ""
    assert tools("streams.StreamsGroupCommand", "--list").strip() == ""


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_performance(tools: Tools, wire: Wire, codec: str) -> None:
    """ProducerPerformance and ConsumerPerformance move 20,000 records."""
    topic = f"performance-{codec}"
    wire.create(topic, partitions=3)
    words = ("--topic", topic, "--num-records", "20000", "--record-size", "200", "--throughput", "-1")
    given = (f"bootstrap.servers={tools.address}", "acks=all", f"compression.type={codec}")
    shown = tools.without_address("ProducerPerformance", *words, "--command-property", *given)
    assert shown.splitlines()[-1].startswith("20000 records sent"), (
        shown
    )  # progress stands before it on a slow machine
    shown = tools("ConsumerPerformance", "--topic", topic, "--num-records", "20000", "--group", topic)
    assert shown.splitlines()[1].split(", ")[4] == "20000", shown


def test_end_to_end_latency(tools: Tools, wire: Wire) -> None:
    """EndToEndLatency gets each record back before it sends the next."""
    wire.create("there-and-back")
    words = (
        "--topic",
        "there-and-back",
        "--num-records",
        "100",
        "--producer-acks",
        "all",
        "--record-size",
        "100",
    )
    assert "Avg latency" in tools("EndToEndLatency", *words)


def test_offsets_and_deletions(tools: Tools, tmp_path: Path) -> None:
    """kafka-get-offsets by each of its words, before and after kafka-delete-records."""
    tools("ConsoleProducer", "--topic", "shortened", given="".join(f"{n}\n" for n in range(10)))
    get = partial(tools, "GetOffsetShell", "--topic", "shortened", "--time")
    request = tmp_path / "request.json"
    request.write_text(
        json.dumps({"partitions": [{"topic": "shortened", "partition": 0, "offset": 7}], "version": 1})
    )
    assert "low_watermark: 7" in tools("DeleteRecordsCommand", "--offset-json-file", str(request))
    for word, offset in {"latest": 10, "earliest": 7, "earliest-local": 7, "0": 7}.items():
        assert get(word).split() == [f"shortened:0:{offset}"], word
    assert get("max-timestamp").split()[0] in ("shortened:0:7", "shortened:0:8", "shortened:0:9")
    assert get("latest-tiered").strip() == ""


def test_cluster(tools: Tools, wire: Wire, tmp_path: Path) -> None:
    """What describes the cluster: API versions, ids, quorum, features, log folders, elections, reassignments,
    transactions."""
    wire.create("described")
    versions = tools("BrokerApiVersionsCommand")
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", versions)
    address = ("--bootstrap-server", tools.address)
    assert "Cluster ID: " in tools.without_address("ClusterTool", "cluster-id", *address)
    assert "unfenced" in tools.without_address("ClusterTool", "list-endpoints", *address)
    status = tools.without_address("MetadataQuorumCommand", *address, "describe", "--status")
    assert re.search(r"LeaderId:\s+1", status)
    assert "Leader" in tools.without_address("MetadataQuorumCommand", *address, "describe", "--replication")
    assert "metadata.version" in tools.without_address("FeatureCommand", *address, "describe")
    described = json.loads(
        tools("LogDirsCommand", "--describe", "--topic-list", "described").splitlines()[-1]
    )
    assert described["brokers"][0]["logDirs"][0]["partitions"][0]["partition"] == "described-0"
    tools("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "described", "partition": 0, "replicas": [1]}]})
    )
    reassign = partial(tools, "reassign.ReassignPartitionsCommand")
    assert "Successfully started" in reassign("--reassignment-json-file", str(plan), "--execute")
    assert "is completed" in reassign("--reassignment-json-file", str(plan), "--verify")
    assert "No partition reassignments" in reassign("--list")
    assert "TransactionalId" in tools.without_address("TransactionsCommand", *address, "list")
    words = ("describe-producers", "--topic", "described", "--partition", "0")
    assert "ProducerId" in tools.without_address("TransactionsCommand", *address, *words)


def test_what_is_not_served_is_refused(tools: Tools, wire: Wire, tmp_path: Path) -> None:
    """Access control, delegation tokens, SCRAM users, quotas, transactions and the newer group protocol: an
    error at once, never a wait."""
    nothing = tmp_path / "nothing"
    nothing.touch()
    assert "SecurityDisabledException" in tools("AclCommand", "--list", code=1)
    tools("DelegationTokenCommand", "--describe", "--command-config", str(nothing), code=1)
    user = ("--alter", "--entity-type", "users", "--entity-name", "bob", "--add-config")
    tools(CONFIGS, *user, "SCRAM-SHA-256=[password=x]", code=1)
    tools(CONFIGS, *user, "producer_byte_rate=1000", code=1)
    wire.create("newer-group-of-java")
    newer = (
        "--topic",
        "newer-group-of-java",
        "--group-id",
        "newer",
        "--group-protocol",
        "consumer",
        "--max-messages",
        "1",
    )
    ended = tools("VerifiableConsumer", *newer)  # it would wait for a record for ever
    assert "shutdown_complete" in ended
    assert "records_consumed" not in ended


def test_client_compatibility(tools: Tools) -> None:
    """Kafka's own test of what a broker offers its clients, with everything expected."""
    expected = {
        "num-cluster-nodes": "1",
        "offsets-for-times-supported": "true",
        "cluster-id-supported": "true",
        "expect-record-too-large-exception": "false",
        "create-topics-supported": "true",
        "describe-acls-supported": "true",
        "describe-configs-supported": "true",
        "idempotent-producer-supported": "true",
    }
    words = [word for key, value in expected.items() for word in (f"--{key}", value)]
    assert "SUCCESS" in tools("ClientCompatibilityTest", "--topic", "judged", *words)


def test_verifiable(broker: LiveBroker, wire: Wire) -> None:
    """All that VerifiableProducer calls acknowledged, VerifiableConsumer gets: same values at the same
    places."""
    wire.create("verifiable-records", partitions=3)
    words = ("--bootstrap-server", broker.address, "--topic", "verifiable-records", "--max-messages", "2000")
    sent = events("VerifiableProducer", *words, "--repeating-keys", "7")
    acknowledged = {place(event) for event in sent if event["name"] == "producer_send_success"}
    assert len(acknowledged) == 2000
    got = events("VerifiableConsumer", *words, "--group-id", "verifiers", "--verbose")
    assert {place(event) for event in got if event["name"] == "record_data"} == acknowledged


def events(name: str, *words: str) -> list[dict[str, Any]]:
    command = java_command(f"org.apache.kafka.tools.{name}", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def place(event: dict[str, Any]) -> tuple[int, int, str, str]:
    return event["partition"], event["offset"], event["key"], event["value"]
