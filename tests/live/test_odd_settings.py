"""One broker with an odd value in many settings at once, each seen by what it does; and the topic
configurations that only a codec or a roll sees."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from millrace.broker.config import reference
from millrace.broker.settings.dynamic_configs import LIMITS, PRODUCER_EXPIRATION, TOPIC_DEFAULTS
from millrace.broker.settings.listener_rules import KEYS as LISTENER_KEYS
from millrace.broker.settings.log_levels import KEY as LOG_LEVEL
from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import Codec, iter_headers
from millrace.protocol.compression import recompress
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.protocol.messages.describe_producers import DescribeProducersRequest
from millrace.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.protocol.messages.init_producer_id import InitProducerIdRequest
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.protocol.records import Record
from tests.live.client import EARLIEST, Client, batch_of
from tests.live.stuck import StuckBroker
from tests.patience import until

TOPIC, BROKER, SET = 2, 4, 0
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
BACKLOG = 3
DEFAULT_TIMEOUT_S = 30.0  # of request.timeout.ms: a broker that does not know what it was told answers later
ODD = {
    "metadata.log.segment.bytes": "8388608",
    "max.incremental.fetch.session.cache.slots": "1",
    "offset.metadata.max.bytes": "5",
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "200",
    "offsets.topic.num.partitions": "3",
    "offsets.topic.segment.bytes": "1048576",
    "producer.id.expiration.ms": "400",
    "producer.id.expiration.check.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "request.timeout.ms": "3000",
    "socket.listen.backlog.size": str(BACKLOG),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StuckBroker]:
    folder = tmp_path_factory.mktemp("odd")
    with StuckBroker(folder, {**ODD, "metadata.log.dir": str(folder / "elsewhere")}, wal="64MiB") as running:
        yield running


@pytest.fixture
def client(broker: StuckBroker) -> Iterator[Client]:
    with Client(broker.address) as found:
        yield found


def test_the_metadata_log_is_where_and_as_large_as_it_is_told(broker: StuckBroker, client: Client) -> None:
    """metadata.log.dir has it and no other folder; 9 MiB of changes fill a segment of
    metadata.log.segment.bytes and begin another."""
    client.create("described")
    replicas = [f"{number}:1" for number in range(10_000, 14_000)]
    for number in range(9 * (1 << 20) // (8 * len(replicas))):
        listed = ",".join([f"{number}:1", *replicas])
        change(client, "described", "leader.replication.throttled.replicas", listed)
    logs = sorted((broker.folder / "elsewhere" / "__cluster_metadata-0").glob("*.log"))
    assert len(logs) == 2
    assert 8 << 20 <= logs[0].stat().st_size < 9 << 20
    assert not list((broker.folder / "data").rglob("__cluster_metadata-0"))


def change(client: Client, topic: str, name: str, text: str) -> None:
    resource = AlterConfigsResource(TOPIC, topic, [AlterableConfig(name, SET, text)])
    answer = client.ask("IncrementalAlterConfigs", IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == 0, answer


def test_only_so_many_clients_have_a_fetch_session(broker: StuckBroker, client: Client) -> None:
    """max.incremental.fetch.session.cache.slots=1: the second client is answered in full and gets none."""
    client.create("fetched")
    topic = FetchTopic(topic="fetched", partitions=[FetchPartition(partition=0, partition_max_bytes=1000)])
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=0, topics=[topic])
    with Client(broker.address) as second:
        first, late = (one.ask("Fetch", request, 12) for one in (client, second))
    assert first.session_id > 0
    assert late.session_id == 0
    assert [part.error_code for one in late.responses for part in one.partitions] == [0]


def test_offsets_are_kept_as_told(broker: StuckBroker, client: Client) -> None:
    """offsets.topic.* shape the topic; offset.metadata.max.bytes refuses a longer text;
    offsets.retention.minutes forgets a group by the wall clock, within
    offsets.retention.check.interval.ms."""
    client.create("committed")
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    until(lambda: client.ask("FindCoordinator", asked).coordinators[0].error_code == 0)
    offsets = MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")])
    assert len(client.ask("Metadata", offsets, 12).topics[0].partitions) == 3
    assert config_of(client, "__consumer_offsets", "segment.bytes") == "1048576"
    assert commit(client, "123456") == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(client, "12345") == 0
    assert committed(client) == 7
    broker.shift(MINUTE_MS // 2)
    time.sleep(0.5)
    assert committed(client) == 7
    broker.shift(2 * MINUTE_MS)
    until(lambda: committed(client) == -1)
    broker.shift(0)


def config_of(client: Client, topic: str, name: str) -> str | None:
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(TOPIC, topic, [name])])
    (found,) = client.ask("DescribeConfigs", request).results[0].configs
    text: str | None = found.value
    return text


def commit(client: Client, text: str) -> int:
    """The error code."""
    partition = OffsetCommitRequestPartition(0, committed_offset=7, committed_metadata=text)
    topics = [OffsetCommitRequestTopic("committed", partitions=[partition])]
    answer = client.ask("OffsetCommit", OffsetCommitRequest("g", topics=topics), 9)
    return int(answer.topics[0].partitions[0].error_code)


def committed(client: Client) -> int:
    request = OffsetFetchRequest("g", [OffsetFetchRequestTopic("committed", [0])])
    return int(client.ask("OffsetFetch", request, 7).topics[0].partitions[0].committed_offset)


def test_a_quiet_producer_is_forgotten_when_it_is_looked_for(client: Client) -> None:
    """producer.id.expiration.check.interval.ms: it goes from what DescribeProducers shows, without another
    append."""
    client.create("produced")
    made = client.ask("InitProducerId", InitProducerIdRequest(transactional_id=None), 5)
    record = Record(None, b"v", int(time.time() * 1000))
    batch = build_batch([record], producer_id=made.producer_id, producer_epoch=0, base_sequence=0)
    data = [TopicProduceData("produced", partition_data=[PartitionProduceData(0, memoryview(batch))])]
    answer = client.ask("Produce", ProduceRequest(None, -1, 5000, data), 12)
    assert answer.responses[0].partition_responses[0].error_code == 0
    asked = DescribeProducersRequest([ProducersTopic("produced", [0])])
    until(lambda: not client.ask("DescribeProducers", asked).topics[0].partitions[0].active_producers)


def test_who_waits_for_a_hanging_controller_is_told_in_time(broker: StuckBroker, client: Client) -> None:
    """request.timeout.ms: a topic that the metadata log does not take is refused with REQUEST_TIMED_OUT, long
    before half a minute; it is made all the same once the log goes on."""
    asked = CreateTopicsRequest([CreatableTopic("late", 1, 1)], 600_000)
    broker.stuck_path.touch()
    began = time.monotonic()
    try:
        result = client.ask("CreateTopics", asked).topics[0]
    finally:
        broker.stuck_path.unlink()
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert time.monotonic() - began < DEFAULT_TIMEOUT_S
    found = MetadataRequest(topics=[MetadataRequestTopic(name="late")], allow_auto_topic_creation=False)
    until(lambda: client.ask("Metadata", found, 12).topics[0].error_code == 0)


def test_the_system_holds_so_many_connections(broker: StuckBroker) -> None:
    """socket.listen.backlog.size: while the broker is stopped the system makes that many connections and one
    more; the next are served later."""
    host, port = broker.address.split(":")
    os.kill(broker.pid, signal.SIGSTOP)
    with ExitStack() as opened:
        try:
            waiting = [opened.enter_context(socket.socket()) for _ in range(4 * BACKLOG)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex((host, int(port)))
            until(lambda: len(made_of(waiting)) > BACKLOG)
            time.sleep(0.3)
            assert len(made_of(waiting)) == BACKLOG + 1
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        until(lambda: len(made_of(waiting)) == len(waiting))


def made_of(connections: list[socket.socket]) -> list[socket.socket]:
    return select.select([], connections, [], 0)[1]


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 17), (Codec.ZSTD, 1, 19)],
    ids=lambda value: str(value),
)
def test_the_level_of_a_topic_reaches_its_codec(client: Client, codec: Codec, low: int, high: int) -> None:
    """compression.*.level: the same records are stored as the codec makes them at that level, the higher one
    in fewer bytes."""
    name = codec.name.lower()
    values = [
        f"{number * 7919 % 1000} of {number % 37} went to {number * 31 % 101}".encode()
        for number in range(2000)
    ]
    sizes = []
    for level in (low, high):
        topic = f"{name}-{level}"
        client.create(topic, **{"compression_type": name, f"compression_{name}_level": level})
        client.produce(topic, values, time_ms=1_700_000_000_000)
        answer = client.fetch([(topic, 0, 0)])[topic, 0]
        ((_, header),) = iter_headers(memoryview(answer.records or b""))
        plain = batch_of(values, 1_700_000_000_000)
        assert header.size_bytes == len(recompress(memoryview(plain), codec, level))
        sizes.append(header.size_bytes)
    assert sizes[0] > sizes[1]


def test_jitter_shortens_the_lives_of_segments(client: Client) -> None:
    """segment.jitter.ms: of two records an hour less a minute apart the first has a segment of its own, and
    is old enough to go, in partitions whose share of the jitter says so; without jitter they stay together
    and both stay."""
    now_ms = int(time.time() * 1000)
    first_ms, second_ms = now_ms - 3 * HOUR_MS, now_ms - 2 * HOUR_MS - MINUTE_MS
    client.create("together", 4, segment_ms=HOUR_MS, retention_ms=-1)
    client.create("apart", 4, segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS, retention_ms=-1)
    for topic in ("together", "apart"):
        for partition in range(4):
            client.produce(topic, [b"first"], partition, time_ms=first_ms)
            client.produce(topic, [b"second"], partition, time_ms=second_ms)
        change(client, topic, "retention.ms", str(2 * HOUR_MS + HOUR_MS // 2))
    until(lambda: any(client.offset("apart", EARLIEST, partition) == 1 for partition in range(4)))
    assert [client.offset("together", EARLIEST, partition) for partition in range(4)] == [0] * 4


ODD_DEFAULTS = {
    "compression.gzip.level": "2",
    "compression.lz4.level": "5",
    "compression.type": "zstd",
    "compression.zstd.level": "7",
    "log.cleanup.policy": "compact,delete",
    "log.index.interval.bytes": "5000",
    "log.message.timestamp.after.max.ms": "1111111",
    "log.message.timestamp.before.max.ms": "2222222",
    "log.message.timestamp.type": "LogAppendTime",
    "log.retention.bytes": "3333333",
    "log.retention.ms": "4444444",
    "log.roll.jitter.ms": "5555",
    "log.roll.ms": "6666666",
    "log.segment.bytes": "7777777",
    "message.max.bytes": "8888",
    "record.validation": "records",
}


def test_the_settings_that_the_page_calls_changeable_are(broker: StuckBroker, client: Client) -> None:
    """Each that docs/settings.md lists, changed while the broker runs, is what holds for a topic that says
    nothing itself: for the next batch, and after a restart."""
    others = {
        *LIMITS,
        *LISTENER_KEYS,
        PRODUCER_EXPIRATION,
        LOG_LEVEL,
    }  # by test_dynamic_live.py and test_admin_live.py
    assert {*ODD_DEFAULTS, *others} == set(re.findall(r"^- `(.*)`$", reference(), re.MULTILINE))
    client.create("changeable")
    client.produce("changeable", [b"v" * 10_000])
    changes = [AlterableConfig(name, SET, value) for name, value in ODD_DEFAULTS.items()]
    for restarts in (False, True):
        if restarts:
            broker.restart()
            client = Client(broker.address)
        else:
            request = IncrementalAlterConfigsRequest(resources=[AlterConfigsResource(BROKER, "1", changes)])
            assert client.ask("IncrementalAlterConfigs", request).responses[0].error_code == 0
        for name, value in ODD_DEFAULTS.items():
            assert config_of(client, "changeable", TOPIC_DEFAULTS[name]) == value
        assert client.send("changeable", [b"v" * 10_000]).error_code == ErrorCode.MESSAGE_TOO_LARGE
    client.socket.close()
