"""Requests that name things by the thousands: others have the loop meanwhile, and the answer is that of the
same things asked for a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from millrace.broker.handlers.alter_configs import AlterConfigs
from millrace.broker.handlers.alter_replica_log_dirs import AlterReplicaLogDirs
from millrace.broker.handlers.delete_records import DeleteRecords
from millrace.broker.handlers.describe_configs import DescribeConfigs
from millrace.broker.handlers.describe_producers import DescribeProducers
from millrace.broker.handlers.describe_topic_partitions import DescribeTopicPartitions
from millrace.broker.handlers.find_coordinator import FindCoordinator
from millrace.broker.handlers.list_config_resources import ListConfigResources
from millrace.broker.handlers.list_offsets import ListOffsets
from millrace.broker.handlers.metadata import Metadata
from millrace.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from millrace.broker.requests.forwarding import Forwarding
from millrace.broker.requests.request import Encoded
from millrace.broker.requests.transaction_refusals import TransactionRefusals
from millrace.broker.settings.log_levels import LogLevels
from millrace.broker.topic_creation import TopicCreation
from millrace.kraft.tables.configs import ResourceType
from millrace.kraft.topic_configs import ConfigLookup
from millrace.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millrace.protocol.messages.delete_groups import DeleteGroupsRequest
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millrace.protocol.messages.describe_groups import DescribeGroupsRequest
from millrace.protocol.messages.describe_producers import DescribeProducersRequest
from millrace.protocol.messages.describe_producers import TopicRequest as ProducersOf
from millrace.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from millrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millrace.protocol.metadata_records import ConfigRecord
from millrace.protocol.stream_records import FailoverRecord
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import NODE
from tests.broker.coordinators.build import GroupFixture, run
from tests.broker.others import Others

LOG_DIR = "/data/metadata"
Flat = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Case:
    """`ask` makes the request for some of the things, named by numbers; `flat`: what its answer says of each;
    `turns`: at least so many of others. `is_ready`: a request for few is answered without a task."""

    key: int
    version: int
    handler: Callable[[GroupFixture], Any]
    count: int
    ask: Callable[[Sequence[int]], Any]
    flat: Flat
    turns: int
    is_ready: bool = True


class NoChannel:
    async def send(self, request: Any) -> Any:
        raise AssertionError("nothing is created here")


def of_topics(name: str = "topics") -> Flat:
    return lambda response: [
        (getattr(topic, "name", ""), part) for topic in getattr(response, name) for part in topic.partitions
    ]


def topics_by_number(numbers: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Thing 3 is a partition that is there, all others are not."""
    return [
        ("t", [number for number in numbers if number < 4]),
        ("none", [number for number in numbers if number >= 4]),
    ]


def list_offsets(numbers: Sequence[int]) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(name, [ListOffsetsPartition(index, timestamp=-2) for index in indexes])
            for name, indexes in topics_by_number(numbers)
        ]
    )


def offset_fetch(numbers: Sequence[int]) -> OffsetFetchRequest:
    topics = [
        OffsetFetchRequestTopics(name, partition_indexes=indexes)
        for name, indexes in topics_by_number(numbers)
    ]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=topics)])


CASES = {
    "ListOffsets": Case(
        2,
        7,
        lambda fixture: ListOffsets(fixture.directory, fixture.unpacking),
        5000,
        list_offsets,
        of_topics(),
        20,
    ),
    "Metadata of names": Case(
        3,
        12,
        lambda fixture: Metadata(
            fixture.cache, TopicCreation(NoChannel(), {}, YieldQueue()), auto_create=False
        ),
        4500,
        lambda numbers: MetadataRequest(
            [MetadataRequestTopic(name="t" if n == 3 else f"n{n}") for n in numbers]
        ),
        lambda response: response.topics,
        8,
    ),
    "OffsetFetch": Case(
        9,
        9,
        lambda fixture: fixture.handlers[9],
        4500,
        offset_fetch,
        lambda response: of_topics()(response.groups[0]),
        4,
    ),
    "FindCoordinator": Case(
        10,
        6,
        lambda fixture: FindCoordinator(
            fixture.cache, TopicCreation(NoChannel(), {}, YieldQueue()), TransactionRefusals(lambda: 0.0)
        ),
        450,
        lambda numbers: FindCoordinatorRequest(coordinator_keys=[f"g{n}" for n in numbers]),
        lambda response: response.coordinators,
        4,
    ),
    "DescribeGroups": Case(
        15,
        6,
        lambda fixture: fixture.handlers[15],
        450,
        lambda numbers: DescribeGroupsRequest([f"g{n}" for n in numbers]),
        lambda response: response.groups,
        4,
        is_ready=False,
    ),
    "DeleteRecords": Case(
        21,
        2,
        lambda fixture: DeleteRecords(fixture.directory, fixture.clock),
        450,
        lambda numbers: DeleteRecordsRequest(
            [DeleteRecordsTopic("none", [DeleteRecordsPartition(index, 0) for index in numbers])], 1000
        ),
        of_topics(),
        8,
        is_ready=False,
    ),
    "OffsetForLeaderEpoch": Case(
        23,
        4,
        lambda fixture: OffsetForLeaderEpoch(fixture.directory),
        450,
        lambda numbers: OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic("none", [OffsetForLeaderPartition(index) for index in numbers])]
        ),
        of_topics(),
        8,
        is_ready=False,
    ),
    "DescribeConfigs": Case(
        32,
        4,
        lambda fixture: DescribeConfigs(fixture.cache, ConfigLookup(NODE), {}, dict),
        90,
        lambda numbers: DescribeConfigsRequest(
            [DescribeConfigsResource(2, ("t", "u")[n] if n < 2 else f"none-{n}", None) for n in numbers],
            True,
            True,
        ),
        lambda response: response.results,
        5,
    ),
    "AlterReplicaLogDirs": Case(
        34,
        2,
        lambda fixture: AlterReplicaLogDirs(fixture.cache, LOG_DIR),
        4500,
        lambda numbers: AlterReplicaLogDirsRequest(
            [AlterReplicaLogDir(LOG_DIR, [AlterReplicaLogDirTopic("t", list(numbers))])]
        ),
        of_topics("results"),
        4,
    ),
    "DeleteGroups": Case(
        42,
        2,
        lambda fixture: fixture.handlers[42],
        450,
        lambda numbers: DeleteGroupsRequest([f"g{n}" for n in numbers]),
        lambda response: response.results,
        4,
        is_ready=False,
    ),
    "DescribeProducers": Case(
        61,
        0,
        lambda fixture: DescribeProducers(fixture.directory),
        450,
        lambda numbers: DescribeProducersRequest([ProducersOf("none", list(numbers))]),
        of_topics(),
        8,
        is_ready=False,
    ),
    "DescribeTopicPartitions": Case(
        75,
        0,
        lambda fixture: DescribeTopicPartitions(fixture.cache),
        2250,
        lambda numbers: DescribeTopicPartitionsRequest([TopicRequest(f"n{n:04}") for n in numbers]),
        lambda response: response.topics,
        4,
    ),
}


async def turns_meanwhile(fixture: GroupFixture, handler: Any, case: tuple[int, int, Any]) -> tuple[Any, int]:
    """The answer, and how often another had the loop before it was there."""
    async with Others() as others:
        outcome = fixture.begin(handler, *case)
        if asyncio.iscoroutine(outcome) or asyncio.isfuture(outcome):
            outcome = await outcome
    return await fixture.finish(outcome, case[0], case[1]), others.turns


@pytest.mark.parametrize("name", CASES)
def test_others_have_the_loop_and_the_answer_is_the_same(name: str) -> None:
    """Of everything at once, and of fifteen things a request: the same, in the same order; between chunks
    others run."""
    case = CASES[name]

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 3): 33, ("t", 1): 11})
        await fixture.partition("t", 3)
        handler = case.handler(fixture)
        numbers = list(range(case.count))
        large, turns = await turns_meanwhile(fixture, handler, (case.key, case.version, case.ask(numbers)))
        assert turns >= case.turns
        singly: list[Any] = []
        for first in range(0, case.count, 15):
            few = case.ask(numbers[first : first + 15])
            outcome = fixture.begin(handler, case.key, case.version, few)
            if first and case.is_ready:
                assert not asyncio.iscoroutine(outcome)
            singly += case.flat(await fixture.finish(outcome, case.key, case.version))
        assert len(singly) == case.count
        assert case.flat(large) == singly

    run(scenario())


def test_all_there_is() -> None:
    """Metadata of all topics and the list of all resources, where there is more than a chunk: in chunks, each
    once and in order."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        for number in range(2100):
            fixture.make_topic(f"n{number:04}")
        names = [topic.name for topic in fixture.cache.image.topics]
        metadata = Metadata(fixture.cache, TopicCreation(NoChannel(), {}, YieldQueue()), auto_create=True)
        found, turns = await turns_meanwhile(fixture, metadata, (3, 12, MetadataRequest(topics=None)))
        assert [topic.name for topic in found.topics] == names
        assert sum(len(topic.partitions) for topic in found.topics) == 2109
        assert turns >= 3
        resources = ListConfigResources(fixture.cache)
        found, turns = await turns_meanwhile(fixture, resources, (74, 1, ListConfigResourcesRequest([2])))
        assert [resource.resource_name for resource in found.config_resources] == names
        assert turns >= 1

    run(scenario())


@pytest.mark.parametrize("is_recovering", [False, True])
def test_clients_share_what_all_topics_come_to(is_recovering: bool) -> None:
    """Wide Metadata is encoded once for clients of one listener and version; another version, or a topic
    more, is another reply. So it is while the log of a broker that is gone is recovered, or waits for that:
    until it is given up, where nobody reaches it."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.make_topic("wide", 3500)
        if is_recovering:
            fixture.publish(FailoverRecord(7, -1, [], "nobody reaches it"))
        metadata = Metadata(fixture.cache, TopicCreation(NoChannel(), {}, YieldQueue()), auto_create=True)
        ask = (3, 12, MetadataRequest(topics=None))
        first, _ = await turns_meanwhile(fixture, metadata, ask)
        again = await fixture.begin(metadata, *ask)
        assert isinstance(again, Encoded)
        assert len(again) == 2
        assert await fixture.finish(again, 3, 12) == first
        older, _ = await turns_meanwhile(fixture, metadata, (3, 9, MetadataRequest(topics=None)))
        assert [topic.name for topic in older.topics] == [topic.name for topic in first.topics]
        fixture.make_topic("more")
        more, _ = await turns_meanwhile(fixture, metadata, ask)
        assert [topic.name for topic in more.topics] == sorted(
            ["more", *(topic.name for topic in first.topics)]
        )
        one, turns = await turns_meanwhile(
            fixture, metadata, (3, 12, MetadataRequest([MetadataRequestTopic(name="wide")]))
        )
        assert [part.partition_index for part in one.topics[0].partitions] == list(range(3500))
        assert turns >= 4

    run(scenario())


def test_what_a_group_has_is_of_one_moment() -> None:
    """A commit between two chunks of a large OffsetFetch shows in none of its partitions or in all: here in
    none."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 1, ("t", 3): 1})
        asked = offset_fetch(range(4))
        topic = asked.groups[0].topics
        assert topic is not None
        topic[0].partition_indexes = [0, *range(4, 5000), 3]
        fetching = asyncio.ensure_future(fixture.ask(fixture.handlers[9], 9, 9, asked))
        for _ in range(4):
            await asyncio.sleep(0)
        await fixture.commit("g", {("t", 0): 2, ("t", 3): 2})
        assert not fetching.done()
        parts = (await fetching).groups[0].topics[0].partitions
        assert (parts[0].committed_offset, parts[-1].committed_offset) == (1, 1)

    run(scenario())


def test_a_large_offset_fetch_of_a_group_that_is_elsewhere() -> None:
    """It is refused as a small one is."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.move("__consumer_offsets", 0, 2)
        few, many = [
            (await fixture.ask(fixture.handlers[9], 9, 9, offset_fetch(range(count)))).groups[0]
            for count in (10, 5000)
        ]
        assert few == many
        assert few.error_code

    run(scenario())


def test_one_thing_of_which_much_is_asked() -> None:
    """DescribeConfigs that names thousands of keys of one topic or broker gives those that there are, and
    others have the loop."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        handler = DescribeConfigs(fixture.cache, ConfigLookup(NODE), {}, dict)
        fixture.publish(ConfigRecord(ResourceType.BROKER, "", "another.release", "1"))
        names = [f"no.such-{number}" for number in range(40_000)]
        for kind, resource, there in (
            (ResourceType.TOPIC, "t", ["retention.ms", "segment.ms"]),
            (ResourceType.BROKER, "", ["another.release"]),
            (ResourceType.TOPIC, "t", []),
        ):
            asked = DescribeConfigsResource(kind, resource, [*names, *there, *names[:10], *there])
            found, turns = await turns_meanwhile(
                fixture, handler, (32, 4, DescribeConfigsRequest([asked, asked]))
            )
            (result,) = found.results
            assert [config.name for config in result.configs] == there
            assert turns >= 5

    run(scenario())


def test_many_resources_are_altered() -> None:
    """What this broker answers itself stands in its place among thousands that the controller answers, and
    others have the loop."""

    class Granting:
        async def send(self, request: Any) -> Any:
            return IncrementalAlterConfigsResponse(
                responses=[
                    AlterConfigsResourceResponse(0, None, one.resource_type, one.resource_name)
                    for one in request.resources
                ]
            )

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        rules: Any = None
        handler = AlterConfigs(Forwarding(Granting(), 10_000), fixture.cache, rules, rules, LogLevels("INFO"))
        resources = [AlterConfigsResource(2, f"n{number}", []) for number in range(20_000)]
        resources[9_999] = AlterConfigsResource(4, "77", [])
        found, turns = await turns_meanwhile(
            fixture, handler, (44, 1, IncrementalAlterConfigsRequest(resources))
        )
        assert [one.resource_name for one in found.responses] == [one.resource_name for one in resources]
        assert [place for place, one in enumerate(found.responses) if one.error_code] == [9_999]
        assert turns >= 40

    run(scenario())


def test_topics_share_what_they_do_not_say_themselves() -> None:
    """One description serves all topics until a broker-wide value changes; a topic's own value is its own."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        handler = DescribeConfigs(fixture.cache, ConfigLookup(NODE), {}, dict)
        request = DescribeConfigsRequest(
            [DescribeConfigsResource(2, name, None) for name in ("t", "u")], True, True
        )

        def described() -> list[dict[str, Any]]:
            response = fixture.begin(handler, 32, 4, request)
            return [{config.name: config for config in result.configs} for result in response.results]

        fixture.set_config("t", "segment.ms", "77")
        one, other = described()
        assert {name for name in one if one[name] is not other[name]} == {"segment.ms"}
        assert (one["segment.ms"].value, other["segment.ms"].value) == ("77", "604800000")
        assert described()[1]["retention.ms"] is other["retention.ms"]
        fixture.publish(ConfigRecord(ResourceType.BROKER, "", "log.retention.ms", "2000"))
        assert [topic["retention.ms"].value for topic in described()] == ["2000", "2000"]
        request.include_synonyms = request.include_documentation = False
        bare = described()[0]["retention.ms"]
        assert (bare.value, bare.synonyms, bare.documentation) == ("2000", [], None)

    run(scenario())
