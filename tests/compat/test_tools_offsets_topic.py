"""`__consumer_offsets` as Kafka's own readers of it have it: the console consumer with the formatters of its
coordinator records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from millrace.broker.coordinators.runtime.partitioning import partition_for
from millrace.protocol.messages.metadata import MetadataRequest
from tests.compat.jvm import Jvm
from tests.compat.wire import Wire
from tests.live import LiveBroker

TOPIC = "__consumer_offsets"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PARTITIONS = 3


def consume(jvm: Jvm, broker: LiveBroker, wire: Wire, group: str) -> None:
    """One member of the group reads all of a topic of its name: two records of partition 0, three of 1, four
    of 2."""
    wire.create(group, PARTITIONS)
    for partition in range(PARTITIONS):
        wire.produce(group, [b"%d" % number for number in range(partition + 2)], partition)
    words = (
        "--topic",
        group,
        "--group",
        group,
        "--from-beginning",
        "--max-messages",
        "9",
        "--timeout-ms",
        "30000",
    )
    jvm.tool(
        CONSOLE,
        "--bootstrap-server",
        broker.address,
        *words,
        "--command-property",
        f"client.id={group}-reader",
    )


def read(jvm: Jvm, broker: LiveBroker, wire: Wire, formatter: str, group: str) -> list[dict[str, Any]]:
    """What the formatter prints of the group's partition, from its beginning to its end."""
    partition, count = partition_of(wire, group)
    words = (
        "--topic",
        TOPIC,
        "--partition",
        str(partition),
        "--offset",
        "earliest",
        "--max-messages",
        str(count),
    )
    full = ("--formatter", f"org.apache.kafka.tools.consumer.{formatter}", "--timeout-ms", "30000")
    shown = jvm.tool(CONSOLE, "--bootstrap-server", broker.address, *words, *full)
    return [record for record in documents(shown) if record["key"]["data"]["group"] == group]


def documents(shown: str) -> Iterator[dict[str, Any]]:
    """These formatters put nothing between one record and the next."""
    decoder = json.JSONDecoder()
    while shown.startswith("{"):
        found, end = decoder.raw_decode(shown)
        yield found
        shown = shown[end:]


def partition_of(wire: Wire, group: str) -> tuple[int, int]:
    """The partition that has the group's records, and how many records there are in it."""
    (topic,) = [
        topic for topic in wire.ask("Metadata", MetadataRequest(topics=None)).topics if topic.name == TOPIC
    ]
    partition = partition_for(group, len(topic.partitions))
    return partition, sum(len(batch.records) for batch in wire.batches(TOPIC, partition))


def test_offsets(jvm: Jvm, broker: LiveBroker, wire: Wire) -> None:
    """OffsetsMessageFormatter tells group, topic, partition and offset of what a member committed, what was
    reset, and what was deleted."""
    group = "told"
    consume(jvm, broker, wire, group)
    of_group = ("--bootstrap-server", broker.address, "--group", group)
    jvm.tool(GROUPS, *of_group, "--reset-offsets", "--topic", f"{group}:1", "--to-offset", "1", "--execute")
    jvm.tool(GROUPS, *of_group, "--delete-offsets", "--topic", f"{group}:0")
    told: dict[tuple[str, str, int], list[int | None]] = {}
    for record in read(jvm, broker, wire, "OffsetsMessageFormatter", group):
        assert record["key"]["type"] == 1
        key = record["key"]["data"]
        offset = record["value"] and record["value"]["data"]["offset"]
        told.setdefault((key["group"], key["topic"], key["partition"]), []).append(offset)
    ends = {place: offsets[-2:] for place, offsets in told.items()}
    assert ends.pop((group, group, 2))[-1] == 4
    assert ends == {(group, group, 0): [2, None], (group, group, 1): [3, 1]}


def test_group_metadata(jvm: Jvm, broker: LiveBroker, wire: Wire) -> None:
    """GroupMetadataMessageFormatter tells who was in a classic group, and at the end that nobody is."""
    consume(jvm, broker, wire, "told-members")
    records = read(jvm, broker, wire, "GroupMetadataMessageFormatter", "told-members")
    assert {record["key"]["type"] for record in records} == {2}
    told = [record["value"]["data"] for record in records]
    (joined,) = [value for value in told if value["members"]]
    (member,) = joined["members"]
    assert (joined["protocolType"], joined["generation"], joined["protocol"]) == ("consumer", 1, "range")
    assert joined["leader"] == member["memberId"]
    assert (member["clientId"], member["clientHost"]) == ("told-members-reader", "/127.0.0.1")
    assert (told[-1]["members"], told[-1]["leader"], told[-1]["generation"]) == ([], None, 2)
