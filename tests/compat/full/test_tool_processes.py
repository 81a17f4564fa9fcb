"""Kafka's command-line classes as processes, as their scripts start them: exit codes and output pipes of
their own."""

from __future__ import annotations

import subprocess

import pytest

from tests.compat.jvm import java_command
from tests.compat.wire import Wire
from tests.live import LiveBroker
from tests.patience import PATIENCE_S

# What each prints when all is well. TOPIC is a topic with ten records.
TEN = "--topic TOPIC --from-beginning --max-messages 10"
MANY = "--topic TOPIC --num-records 1000 --record-size 100 --throughput -1"
TOOLS = {
    "TopicCommand --describe --topic TOPIC": "PartitionCount: 1",
    "kafka.admin.ConfigCommand --describe --entity-type topics --entity-name TOPIC --all": "retention.ms",
    "consumer.group.ConsumerGroupCommand --list": "",
    f"consumer.ConsoleConsumer {TEN}": "9",
    f"consumer.ConsoleConsumer {TEN} --isolation-level read_committed": "9",
    "ConsumerPerformance --topic TOPIC --num-records 10": ", 10, ",
    "GetOffsetShell --topic TOPIC": ":0:10",
    f"ProducerPerformance {MANY}": "1000 records sent",
    "EndToEndLatency --topic latency --num-records 20 --producer-acks all --record-size 10": "Avg latency",
    "VerifiableProducer --topic verified --max-messages 20": '"acked":20',
    "VerifiableConsumer --topic TOPIC --group-id g --max-messages 10": "shutdown_complete",
    "BrokerApiVersionsCommand": "Fetch(1)",
    "LogDirsCommand --describe": '"version":1',
    "GroupsCommand --list": "",
    "LeaderElectionCommand --election-type preferred --all-topic-partitions": "",
}


@pytest.mark.parametrize("line", TOOLS)
def test_a_tool_ends_well(broker: LiveBroker, wire: Wire, line: str, request: pytest.FixtureRequest) -> None:
    """Exit code 0, what it is for on standard output, no stack trace on the other."""
    topic = f"tool-{list(TOOLS).index(line)}"
    wire.create(topic)
    wire.produce(topic, [b"%d" % number for number in range(10)])
    name, *words = line.replace("TOPIC", topic).split()
    full = name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}"
    command = java_command(full, *words, "--bootstrap-server", broker.address)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert TOOLS[line] in done.stdout
    assert "Exception" not in done.stderr


def test_a_line_goes_through_pipes(broker: LiveBroker) -> None:
    """Console producer and console consumer, joined by a topic that neither made before."""
    words = ("--bootstrap-server", broker.address, "--topic", "piped")
    producer = java_command("org.apache.kafka.tools.ConsoleProducer", *words)
    subprocess.run(producer, input=b"hello\n", check=True, timeout=PATIENCE_S, capture_output=True)
    consumer = java_command("org.apache.kafka.tools.consumer.ConsoleConsumer", *words, "--from-beginning")
    done = subprocess.run(
        [*consumer, "--max-messages", "1"], capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == b"hello\n"
