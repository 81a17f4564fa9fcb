"""What clients leave unset of a batch's header, beside Apache Kafka: the same batches, the same
answers."""

from __future__ import annotations

import time
from pathlib import Path

from millrace.protocol.apis import NAMED
from millrace.protocol.batches import BatchHeader, Codec
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.compat.peer.apache_kafka import ApacheKafka
from tests.live import LiveBroker
from tests.live.client import VERSION_BY_NAME, Client
from tests.live.stamped import UNSET_BY_CLIENTS, headers_of_clients, stamped
from tests.patience import PATIENCE_S

HOUR_MS = 3_600_000
LIST_OFFSETS_VERSION = 8
NOT_YET = (3, 6)  # a topic that was made just now: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER
MAX_TIMESTAMP, EARLIEST, LATEST = -3, -2, -1
Answers = dict[str, tuple[int, tuple[int, ...] | None, list[tuple[int, int, int]]]]


def batches(now: int) -> dict[str, bytes]:
    """By what they show."""
    made = {}
    for name, (base, largest, times) in headers_of_clients(now).items():
        made[name] = stamped(base, largest, times)
        made[f"{name}, gzip"] = stamped(base, largest, times, Codec.GZIP)
    made["largest later than any record's"] = stamped(now - 10, now + 1000, [now - 10, now - 5])
    for name, unset in UNSET_BY_CLIENTS.items():
        made[name] = stamped(now - 3, now - 3, [now - 3], unset=unset)
    made["one that is too late, behind one without"] = stamped(-1, 0, [-1, now + 2 * HOUR_MS])
    return made


def produce(client: Client, topic: str, batch: bytes) -> int:
    """The code."""
    data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, memoryview(batch))])]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = client.ask("Produce", ProduceRequest(None, -1, 5000, data), VERSION_BY_NAME)
        code = int(answer.responses[0].partition_responses[0].error_code)
        if code not in NOT_YET or time.monotonic() > deadline:
            return code
        time.sleep(0.1)


def offsets(client: Client, topic: str, now: int) -> list[tuple[int, int, int]]:
    assert NAMED["ListOffsets"].max_stable_version >= LIST_OFFSETS_VERSION
    found = []
    for which in (MAX_TIMESTAMP, 0, now - 8, now - 6, LATEST, EARLIEST):
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, which)])])
        answer = client.ask("ListOffsets", asked, LIST_OFFSETS_VERSION).topics[0].partitions[0]
        found.append((answer.error_code, answer.offset, answer.timestamp))
    return found


def others_of(header: BatchHeader) -> tuple[int, ...]:
    """What a client may have left unset, as stored."""
    return (
        header.base_offset,
        header.leader_epoch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.crc,
    )


def answers_of(address: str, sent: dict[str, bytes], now: int, **configs: object) -> Answers:
    """Of each batch in a topic of its own, of these configs: its code, the times in its header as stored, and
    where times are found."""
    answers: Answers = {}
    with Client(address) as client:
        for number, (name, batch) in enumerate(sent.items()):
            topic = f"topic{number}" + "-bounded" * bool(configs)
            client.create(topic, **configs)
            code = produce(client, topic, batch)
            told = None
            if code == 0:
                header = BatchHeader(memoryview(client.fetch([(topic, 0, 0)])[topic, 0].records or b""))
                told = header.base_timestamp, header.max_timestamp, *others_of(header)
            answers[name] = code, told, offsets(client, topic, now)
    return answers


def test_batches_are_stored_and_found_as_by_apache_kafka(tmp_path: Path) -> None:
    """Each form of header that a client library writes where records have no timestamp, or that leaves the
    largest out."""
    now = int(time.time() * 1000)
    sent = batches(now)
    ours, theirs = tmp_path / "millrace", tmp_path / "kafka"
    ours.mkdir()
    theirs.mkdir()
    with LiveBroker(ours, {}, wal="64MiB") as broker, ApacheKafka(theirs) as kafka:
        here, there = answers_of(broker.address, sent, now), answers_of(kafka.address, sent, now)
        # Where topics have bounds, it is the records that are held to them, not what a header left out.
        bounds = {"message_timestamp_before_max_ms": HOUR_MS}
        bounded = [answers_of(address, sent, now, **bounds) for address in (broker.address, kafka.address)]
    # Kept as it came: only where it is found is compared.
    lie = "largest later than any record's"
    for mine, other in ((here, there), bounded):
        mine[lie] = mine[lie][0], other[lie][1], mine[lie][2]
        differing = {name: (mine[name], other[name]) for name in sent if mine[name] != other[name]}
        assert not differing
    print(f"{len(sent)} batches stored and found as by Apache Kafka")
