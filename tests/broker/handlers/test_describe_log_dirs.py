"""Sizes of partitions from metadata alone, and of open ones from what they took; AlterReplicaLogDirs, whose
only way is to stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.config import BrokerSettings
from millrace.broker.handlers.alter_replica_log_dirs import AlterReplicaLogDirs
from millrace.broker.handlers.describe_log_dirs import PARTITIONS_PER_CHUNK, CommittedSizes, DescribeLogDirs
from millrace.kraft.tables.packing import pack_ranges
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millrace.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from millrace.protocol.stream_records import (
    CommitObjectRecord,
    RemoveStreamsRecord,
    StreamRecord,
    TrimStreamRecord,
)
from millrace.runtime.disk import Disk
from millrace.runtime.objectstore.address import parse_address
from millrace.s3stream.ids import StreamRole
from tests.broker.broker_fixture import NODE, OTHER, BrokerFixture, topic_id
from tests.broker.partitions.build import batch, run
from tests.broker.work import new_work

LOG_DIR = "/data/metadata"
META, DATA, TIME = StreamRole.META, StreamRole.DATA, StreamRole.TIME


class Volume:
    """A disk of which only the room is asked."""

    def total_bytes(self, path: str) -> int:
        assert path == "/objects"
        return 1000

    def free_bytes(self, path: str) -> int:
        return 400


def handler(fixture: BrokerFixture, bucket: str = "0@file:///objects") -> DescribeLogDirs:
    settings = cast(BrokerSettings, SimpleNamespace(metadata_dir=LOG_DIR, data=parse_address(bucket)))
    return DescribeLogDirs(fixture.cache, fixture.directory, cast(Disk, Volume()), settings)


def stream(stream_id: int, name: str, index: int, role: StreamRole, end: int) -> StreamRecord:
    return StreamRecord(stream_id, topic_id(name), index, role, 0, NODE, 0, 0, end)


def committed(object_id: int, size_bytes: int, *ranges: tuple[int, int, int]) -> CommitObjectRecord:
    """Alone on its group."""
    packed = pack_ranges(ranges)
    return CommitObjectRecord(object_id, 0, size_bytes, object_id, 0, NODE, object_id, 0, packed)


async def sizes(
    fixture: BrokerFixture, asked: Mapping[str, Sequence[int]] | None = None
) -> dict[tuple[str, int], int]:
    topics = (
        None
        if asked is None
        else [DescribableLogDirTopic(name, list(found)) for name, found in asked.items()]
    )
    response = await fixture.ask(handler(fixture), 35, 4, DescribeLogDirsRequest(topics))
    (result,) = response.results
    assert (result.error_code, result.log_dir) == (0, LOG_DIR)
    return {
        (topic.name, one.partition_index): one.partition_size
        for topic in result.topics
        for one in topic.partitions
    }


def test_an_object_is_divided_among_the_records_in_it() -> None:
    """By the data streams' offsets alone (a time stream's are bytes); what is trimmed counts no more, a
    deleted stream's share falls to those that keep the object."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        fixture.make_topic("b")
        fixture.publish(
            stream(1, "a", 0, DATA, 0), stream(2, "a", 0, TIME, 0), stream(3, "a", 0, META, 0),
            stream(4, "a", 1, DATA, 0), stream(5, "b", 0, DATA, 0),
            committed(0, 1000, (1, 0, 30), (2, 0, 50_000), (3, 0, 10), (4, 0, 10), (5, 0, 60)),
            committed(1, 500, (1, 30, 80)),
        )  # fmt: skip
        assert await sizes(fixture) == {("a", 0): 800, ("a", 1): 100, ("b", 0): 600}
        fixture.publish(TrimStreamRecord(1, 15, 0))
        assert await sizes(fixture) == {("a", 0): 650, ("a", 1): 100, ("b", 0): 600}
        fixture.delete_topic("b")
        fixture.publish(RemoveStreamsRecord([5], 0))
        assert await sizes(fixture) == {("a", 0): 875, ("a", 1): 250}
        whole = CommittedSizes(fixture.cache.image)
        await whole.count(new_work())
        assert [whole.of_partition(topic_id("a"), index) for index in (0, 1, 7)] == [875, 250, 0]

    run(scenario())


def test_an_open_partition_says_what_it_holds() -> None:
    """Uploaded or not, exactly."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        one = batch(3, value=b"v" * 100)
        await fixture.produce({("a", 0): one})
        await fixture.produce({("a", 0): one})
        assert await sizes(fixture) == {("a", 0): 2 * len(one), ("a", 1): 0}

    run(scenario())


def test_only_what_is_here_and_was_asked_for() -> None:
    """Partitions of other brokers, and names and numbers that are not there, are left out; each partition
    comes once."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 3)
        fixture.make_topic("away", 2, leader=OTHER)
        asked = {"a": [2, 2, 0, 9, -1], "away": [0], "absent": [0]}
        assert list(await sizes(fixture, asked)) == [("a", 2), ("a", 0)]
        assert list(await sizes(fixture)) == [("a", 0), ("a", 1), ("a", 2)]
        assert await sizes(fixture, {}) == {}

    run(scenario())


def test_many_partitions_leave_turns_to_others() -> None:
    """A topic of several turns' worth of partitions is described whole."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("wide", 2 * PARTITIONS_PER_CHUNK + 1)
        assert len(await sizes(fixture)) == 2 * PARTITIONS_PER_CHUNK + 1

    run(scenario())


@pytest.mark.parametrize(
    ("bucket", "room"), [("0@file:///objects", (1000, 400)), ("0@s3://bucket", (-1, -1))]
)
def test_the_room_is_that_of_the_bucket(bucket: str, room: tuple[int, int]) -> None:
    """A directory's file system; unknown for an object store."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        (result,) = (await fixture.ask(handler(fixture, bucket), 35, 4, DescribeLogDirsRequest(None))).results
        assert (result.total_bytes, result.usable_bytes) == room

    run(scenario())


@pytest.mark.parametrize("version", [1, 2])
def test_a_partition_stays_where_it_is(version: int) -> None:
    """Sent to its own directory it is there already, however that is written; every other directory is not
    found. Of one that another broker holds the code is the one at which Kafka's tool asks again."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        fixture.make_topic("away", leader=OTHER)

        async def codes(path: str) -> list[tuple[str, int, int]]:
            topics = [AlterReplicaLogDirTopic("a", [0, 7]), AlterReplicaLogDirTopic("away", [0])]
            request = AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, topics)])
            response: Any = await fixture.ask(
                AlterReplicaLogDirs(fixture.cache, LOG_DIR), 34, version, request
            )
            return [
                (t.topic_name, p.partition_index, p.error_code)
                for t in response.results
                for p in t.partitions
            ]

        for path in (LOG_DIR, LOG_DIR + "/", "/data/../data/metadata"):
            assert await codes(path) == [
                ("a", 0, 0),
                ("a", 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                ("away", 0, ErrorCode.REPLICA_NOT_AVAILABLE),
            ]
        for path in ("/data", "data/metadata", "", "/data/metadata2"):
            assert {code for _, _, code in await codes(path)} == {ErrorCode.LOG_DIR_NOT_FOUND}

    run(scenario())
