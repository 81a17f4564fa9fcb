"""What a broker answers to whoever reads, in every version, before and after all of it has left memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millrace.protocol.apis import API
from millrace.protocol.batch_build import build_batch
from millrace.protocol.batches import Codec
from millrace.protocol.messages import (
    describe_producers,
    fetch,
    find_coordinator,
    list_offsets,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from millrace.protocol.records import Record
from tests.live import LiveBroker
from tests.live.client import Client
from tests.live.fitting import fit
from tests.patience import PATIENCE_S

START_MS = 1_700_000_000_000
# Records by topic and partition; what is deleted of them lies inside a batch, at its end, and at the log's
# end.
FILLED = {("kept", 0): 60, ("kept", 1): 35, ("cut", 0): 60, ("emptied", 0): 25, ("never", 0): 0}
DELETED = {("kept", 1): 10, ("cut", 0): 33, ("emptied", 0): 25}
BATCH = 5
GROUPS = ("one", "two")


def filled(client: Client, topic: str, partition: int, first: int, last: int) -> None:
    """Batches of five records in turn in every codec, of a producer with an id, with times that now and then
    go back."""
    for base in range(first, last, BATCH):
        number = base // BATCH
        records = [
            Record(
                b"%d" % each,
                b"value %d of %s " % (each, topic.encode()) * 40,
                START_MS + 10 * each - 70 * (number % 3),
            )
            for each in range(base, base + BATCH)
        ]
        codec = list(Codec)[number % len(Codec)]
        batch = build_batch(records, codec=codec, producer_id=7_000_000, producer_epoch=0, base_sequence=base)
        parts = [produce.PartitionProduceData(partition, memoryview(batch))]
        request = produce.ProduceRequest(
            None, -1, 10_000, [produce.TopicProduceData(topic, partition_data=parts)]
        )
        (answer,) = client.ask("Produce", request, 12).responses[0].partition_responses
        assert (answer.error_code, answer.base_offset) == (0, base), answer


def ready(client: Client) -> None:
    """Coordinators are there and have read their logs."""
    for group in GROUPS:
        asked = offset_fetch.OffsetFetchRequest(group, [])
        deadline = time.monotonic() + PATIENCE_S
        client.ask("FindCoordinator", find_coordinator.FindCoordinatorRequest(group), 3)
        while client.ask("OffsetFetch", asked, 7).error_code:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def committed(client: Client) -> None:
    for number, group in enumerate(GROUPS):
        parts = [
            offset_commit.OffsetCommitRequestPartition(each, 7 * each + number, 0, "text")
            for each in range(2)
        ]
        topics = [offset_commit.OffsetCommitRequestTopic("kept", partitions=parts)]
        answer = client.ask("OffsetCommit", offset_commit.OffsetCommitRequest(group, topics=topics), 9)
        assert not any(part.error_code for topic in answer.topics for part in topic.partitions), answer


def questions(topic_ids: dict[str, bytes]) -> Iterator[tuple[int, Any]]:
    """An API's key, and a request that `fit` makes fit its versions."""
    for place, count in FILLED.items():
        topic, partition = place
        for offset in range(0, count + 2, 4):
            for max_bytes in (1, 3000, 1 << 20):
                part = fetch.FetchPartition(partition, fetch_offset=offset, partition_max_bytes=max_bytes)
                topics = [fetch.FetchTopic(topic, topic_ids[topic], [part])]
                yield 1, fetch.FetchRequest(max_wait_ms=0, min_bytes=1, session_epoch=-1, topics=topics)
    every = [fetch.FetchPartition(each, fetch_offset=12, partition_max_bytes=1 << 20) for each in range(2)]
    yield 1, fetch.FetchRequest(session_epoch=-1, topics=[fetch.FetchTopic("kept", topic_ids["kept"], every)])
    for topic, partition in FILLED:
        for time_ms in (-6, -5, -4, -3, -2, -1, *range(START_MS - 150, START_MS + 650, 17)):
            asked = [list_offsets.ListOffsetsPartition(partition, -1, time_ms)]
            yield (
                2,
                list_offsets.ListOffsetsRequest(-1, 0, [list_offsets.ListOffsetsTopic(topic, asked)], 1000),
            )
        ends = offset_for_leader_epoch
        for epoch in range(-1, 4):
            wanted = [ends.OffsetForLeaderTopic(topic, [ends.OffsetForLeaderPartition(partition, -1, epoch)])]
            yield 23, ends.OffsetForLeaderEpochRequest(-1, wanted)
        yield (
            61,
            describe_producers.DescribeProducersRequest(
                [describe_producers.TopicRequest(topic, [partition])]
            ),
        )
    for group in (*GROUPS, "none"):
        old = [offset_fetch.OffsetFetchRequestTopic("kept", [0, 1])]
        new = [offset_fetch.OffsetFetchRequestTopics("kept", topic_ids["kept"], [0, 1])]
        yield (
            9,
            offset_fetch.OffsetFetchRequest(
                group, old, [offset_fetch.OffsetFetchRequestGroup(group, topics=new)]
            ),
        )


def answers(client: Client, topic_ids: dict[str, bytes]) -> list[tuple[int, int, Any, Any]]:
    """Every question in every version: key, version, request and answer."""
    found = []
    for key, request in questions(topic_ids):
        api = API[key]
        for version in range(api.min_version, api.max_stable_version + 1):
            fitted = fit(request, version)
            found.append((key, version, fitted, client.ask(api.name, fitted, version)))
    return found


def test_what_is_read_is_the_same_from_objects(tmp_path: Path) -> None:
    """Fetch, ListOffsets, OffsetForLeaderEpoch, DescribeProducers and OffsetFetch after records were written
    under two leader epochs and some of them deleted: each answer is the same once the WAL is trimmed and
    nothing is cached."""
    with LiveBroker(tmp_path, {"offsets.topic.num.partitions": "2"}, wal="64MiB") as broker:
        with Client(broker.address) as client:
            for topic in ("kept", "cut", "emptied", "never"):
                client.create(topic, partitions=2)
            for (topic, partition), count in FILLED.items():
                filled(client, topic, partition, 0, count // 2 // BATCH * BATCH)
        broker.restart()
        with Client(broker.address) as client:
            topic_ids = client.topic_ids()
            for (topic, partition), count in FILLED.items():
                filled(client, topic, partition, count // 2 // BATCH * BATCH, count)
            for (topic, partition), offset in DELETED.items():
                assert client.delete_records(topic, offset, partition) == 0
            ready(client)
            committed(client)
            hot = answers(client, topic_ids)
        assert broker.metrics()['millrace_storage_reads_total{source="log_cache"}'] > 0
        with broker.cold_reads(), Client(broker.address) as client:
            ready(client)
            cold = answers(client, topic_ids)
    assert len(hot) > 2000
    for before, after in zip(hot, cold, strict=True):
        assert after == before
