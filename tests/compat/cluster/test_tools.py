"""Kafka's command-line classes while nodes are restarted: each ends well, and says what it says when all is
quiet.

They are processes, as their scripts start them, and know all three addresses.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compat.cluster.conftest import RolledCluster
from tests.compat.jvm import java_command
from tests.compat.rolled.roller import PAUSE_S
from tests.compat.test_tools import CONFIGS, GROUPS
from tests.compat.wire import Wire
from tests.patience import PATIENCE_S

TEN = "--topic TOPIC --from-beginning --max-messages 10"
# What each prints when all is well, as a pattern. TOPIC has one partition with ten records.
TOOLS = {
    "TopicCommand --create --topic TOPIC-made --partitions 6": "Created topic TOPIC-made",
    "TopicCommand --alter --topic TOPIC --partitions 5": "",
    "TopicCommand --describe --topic TOPIC": "PartitionCount: 1",
    "TopicCommand --delete --topic TOPIC": "",
    f"{CONFIGS} --alter --entity-type topics --entity-name TOPIC --add-config retention.ms=9000": "Completed",
    f"{CONFIGS} --describe --entity-type topics --entity-name TOPIC --all": "retention.ms",
    f"{CONFIGS} --describe --entity-type brokers --entity-default": "",
    f"{GROUPS} --list": "",
    f"{GROUPS} --group g-TOPIC --topic TOPIC --reset-offsets --to-earliest --execute": "TOPIC +0 +0",
    f"{GROUPS} --describe --all-groups": "",
    f"consumer.ConsoleConsumer {TEN}": "^9$",
    f"consumer.ConsoleConsumer {TEN} --group g-TOPIC": "^9$",
    "ConsumerPerformance --topic TOPIC --num-records 10": ", 10, ",
    "GetOffsetShell --topic TOPIC": "TOPIC:0:10",
    "LogDirsCommand --describe": '"version":1',
    "GroupsCommand --list": "",
    "BrokerApiVersionsCommand": r"Fetch\(1\)",
    "MetadataQuorumCommand describe --status": r"LeaderId: +[123]\s",
    "MetadataQuorumCommand describe --replication": "Leader",
    "ClusterTool cluster-id": "Cluster ID: ",
    "FeatureCommand describe": "metadata.version",
    "LeaderElectionCommand --election-type preferred --topic TOPIC --partition 0": "",
}
ADDRESS_FIRST = ("MetadataQuorumCommand", "FeatureCommand")
AWAY = re.compile(r"Unknown broker id [123]\b|contains broker [123] that is fenced, or shutting down")
MESSAGES, PER_SECOND = 12_000, 400


def run(broker: RolledCluster, name: str, *words: str, given: bytes | None = None) -> str:
    """What it prints; it has to end with 0, and to tell of no exception but in the client's own warnings
    of what it tries again."""
    full = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
    address = ("--bootstrap-server", broker.address)
    given_words = (*address, *words) if name in ADDRESS_FIRST else (*words, *address)
    done = subprocess.run(
        java_command(full, *given_words), input=given, capture_output=True, timeout=2 * PATIENCE_S
    )
    said = f"{name} {' '.join(words)}\n{done.stdout.decode()[-3000:]}\n{done.stderr.decode()[-3000:]}"
    assert done.returncode == 0, said
    assert not re.search(rb"^(?!WARN ).*Exception", done.stderr, re.MULTILINE), said
    return done.stdout.decode()


def filled(broker: RolledCluster, topic: str) -> None:
    """A topic of one partition with ten records, by kafka-console-producer."""
    with Wire(broker.address) as wire:
        wire.create(topic)
    given = "".join(f"{number}\n" for number in range(10)).encode()
    run(broker, "ConsoleProducer", "--topic", topic, given=given)


@pytest.mark.parametrize("line", TOOLS)
def test_a_tool_ends_well(broker: RolledCluster, line: str) -> None:
    """Each is run while a node goes, and until one has come back: at least three times."""
    before, runs = broker.roller.count, 0
    while runs < 3 or broker.roller.count == before:
        topic = f"tool-{list(TOOLS).index(line)}-{runs}"
        filled(broker, topic)
        name, *words = line.replace("TOPIC", topic).split()
        printed = run(broker, name, *words)
        assert re.search(TOOLS[line].replace("TOPIC", topic), printed, re.MULTILINE), printed
        runs += 1


def test_performance_tools_count_right(broker: RolledCluster) -> None:
    """kafka-producer-perf-test says how many were sent, without a word of an error; as many are there, and
    kafka-consumer-perf-test reads as many."""
    with Wire(broker.address) as wire:
        wire.create("perf", 6)
    sent = run(
        broker, "ProducerPerformance", "--topic", "perf", "--num-records", "20000", "--record-size", "500",
        "--throughput", "2000",
    )  # fmt: skip
    assert "20000 records sent" in sent
    with Wire(broker.address) as wire:
        assert sum(wire.end("perf", partition) for partition in range(6)) == 20_000
    many = ("--num-records", "20000", "--timeout", "60000")
    read = run(broker, "ConsumerPerformance", "--topic", "perf", *many)
    (line,) = [line.split(", ") for line in read.splitlines() if line[:2] == "20"]
    assert int(line[4]) == 20_000


def is_moved(broker: RolledCluster, *plan: str) -> bool:
    """kafka-reassign-partitions. Refused in words where a broker of the plan is away: by the tool itself, or
    by the controller, since a partition's one replica has to lead."""
    try:
        printed = run(broker, "reassign.ReassignPartitionsCommand", "--execute", *plan)
    except AssertionError as error:
        if AWAY.search(str(error)):
            return False
        raise
    assert "Successfully started partition reassignments" in printed
    return True


def moves(path: Path, topic: str, number: int) -> list[str]:
    """A plan that gives each of six partitions to another node than the plan before."""
    places = [{"topic": topic, "partition": at, "replicas": [1 + (at + number) % 3]} for at in range(6)]
    path.write_text(json.dumps({"version": 1, "partitions": places}))
    return ["--reassignment-json-file", str(path)]


def test_verifiable_producer_and_consumer_agree(broker: RolledCluster, tmp_path: Path) -> None:
    """All that the producer calls sent is read by the consumer, once, and is in the log in order, while nodes
    are restarted and kafka-reassign-partitions moves what they lead. Neither tells an error."""
    with Wire(broker.address) as wire:
        wire.create("verified", 6)
    settings = tmp_path / "settings"
    settings.write_text("retries=2147483647\n")  # it retries nothing unless told
    address = ("--bootstrap-server", broker.address)
    producer = java_command(
        "org.apache.kafka.tools.VerifiableProducer", *address, "--topic", "verified", "--max-messages",
        str(MESSAGES), "--throughput", str(PER_SECOND), "--command-config", str(settings),
    )  # fmt: skip
    consumer = java_command(
        "org.apache.kafka.tools.VerifiableConsumer", *address, "--topic", "verified", "--group-id",
        "verified", "--max-messages", str(MESSAGES), "--verbose",
    )  # fmt: skip
    outputs = [tmp_path / "sent", tmp_path / "read"]
    processes = []
    for command, output in zip((producer, consumer), outputs, strict=True):
        with output.open("wb") as file:
            processes.append(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT))
    before, number = broker.roller.count, 0
    broker.roller.pause_s = 10.0  # a plan is refused while one of its brokers is away
    try:
        while processes[0].poll() is None:
            number += is_moved(broker, *moves(tmp_path / "plan", "verified", number))
        assert number > 0, "partitions were not moved"
        assert [one.wait(PATIENCE_S) for one in processes] == [0, 0], outputs[1].read_text()[-3000:]
    finally:
        for one in processes:
            one.kill()
            one.wait()
        broker.roller.pause_s = PAUSE_S
    assert broker.roller.count > before, "no node was restarted meanwhile"
    sent, read = (events(output) for output in outputs)
    assert not [event for event in sent if event["name"] == "producer_send_error"]
    assert not [event for event in read if event.get("success") is False]
    acknowledged = [event for event in sent if event["name"] == "producer_send_success"]
    values = [int(event["value"]) for event in read if event["name"] == "record_data"]
    assert sorted(values) == sorted(int(event["value"]) for event in acknowledged) == list(range(MESSAGES))
    with Wire(broker.address) as wire:
        for partition in range(6):
            batches = wire.batches("verified", partition)
            stored = [int(each.value or b"-1") for batch in batches for each in batch.records]
            assert stored == sorted(set(stored))
            assert stored == [
                int(event["value"]) for event in read
                if event["name"] == "record_data" and event["partition"] == partition
            ]  # fmt: skip


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
