"""Metadata, DescribeTopicPartitions, FindCoordinator and DescribeCluster over images of several brokers, on
every version."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.broker.handlers.describe_cluster import DescribeCluster
from millrace.broker.handlers.describe_topic_partitions import PARTITIONS_MAX, DescribeTopicPartitions
from millrace.broker.handlers.find_coordinator import FindCoordinator
from millrace.broker.handlers.metadata import Metadata
from millrace.broker.requests.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from millrace.broker.requests.transaction_refusals import TransactionRefusals
from millrace.broker.topic_creation import TopicCreation
from millrace.kraft.tables.streams import StreamState, stream_record
from millrace.protocol.apis import API
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from millrace.protocol.messages.describe_cluster import DescribeClusterRequest
from millrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol.metadata_records import (
    BrokerRegistrationChangeRecord,
    RecordEndpoint,
    RegisterBrokerRecord,
)
from millrace.protocol.stream_records import EndFailoverRecord, FailoverRecord, OwedRangeRecord
from millrace.runtime.scheduling.yield_queue import YieldQueue
from millrace.s3stream.ids import StreamId, StreamRole
from tests.broker.broker_fixture import LISTENER, NODE, OTHER, BrokerFixture, topic_id
from tests.broker.partitions.build import run

FENCED, ELSEWHERE = 3, 4
NEWEST = API[3].max_version


class CreatingChannel:
    """A controller that only creates topics, in the project's image."""

    def __init__(self, fixture: BrokerFixture) -> None:
        self._fixture = fixture
        self.created: list[str] = []

    async def send(self, request: Any) -> Any:
        results = []
        for topic in request.topics:
            if topic.name == "forbidden":
                results.append(CreatableTopicResult(topic.name, error_code=ErrorCode.POLICY_VIOLATION))
                continue
            self._fixture.make_topic(topic.name, max(1, topic.num_partitions))
            self.created.append(topic.name)
            results.append(CreatableTopicResult(topic.name))
        return CreateTopicsResponse(topics=results)


async def a_fixture() -> BrokerFixture:
    """Two brokers that are up, one that is fenced, one that clients of this listener cannot reach."""
    fixture = await BrokerFixture().start()
    endpoint = RecordEndpoint(LISTENER, "host3", 9092, 0)
    other_listener = RecordEndpoint("INSIDE", "host4", 9093, 0)
    fixture.publish(
        RegisterBrokerRecord(
            broker_id=FENCED, broker_epoch=3, end_points=[endpoint], fenced=True, rack="far"
        ),
        RegisterBrokerRecord(broker_id=ELSEWHERE, broker_epoch=4, end_points=[other_listener], fenced=False),
    )
    fixture.make_topic("mine", 2)
    fixture.make_topic("theirs", 3, leader=OTHER)
    fixture.make_topic("nobodys", 1, leader=-1)
    fixture.make_topic("__consumer_offsets", 4)
    return fixture


def metadata(fixture: BrokerFixture, *, auto_create: bool = True) -> tuple[Metadata, CreatingChannel]:
    channel = CreatingChannel(fixture)
    creation = TopicCreation(channel, {"__consumer_offsets": (4, {})}, YieldQueue())
    return Metadata(fixture.cache, creation, auto_create=auto_create), channel


def named(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_all_topics_and_the_brokers_that_can_be_reached(version: int) -> None:
    """Brokers that are up, at their address on the listener that was used; every topic, internal ones marked;
    a partition without a leader says so. Listing all creates nothing."""

    async def scenario() -> None:
        fixture = await a_fixture()
        handler, channel = metadata(fixture)
        topics = [] if version == 0 else None
        found = await fixture.ask(handler, 3, version, MetadataRequest(topics=topics))
        assert [(one.node_id, one.host, one.port) for one in found.brokers] == [
            (NODE, "127.0.0.1", 9092),
            (OTHER, "host2", 9092),
        ]
        shown = {topic.name: topic for topic in found.topics}
        assert list(shown) == ["__consumer_offsets", "mine", "nobodys", "theirs"]
        assert [part.leader_id for part in shown["theirs"].partitions] == [OTHER] * 3
        (leaderless,) = shown["nobodys"].partitions
        assert (leaderless.leader_id, leaderless.error_code) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
        if version >= 1:
            assert [topic.name for topic in found.topics if topic.is_internal] == ["__consumer_offsets"]
            assert found.controller_id == NODE
        if version >= 2:
            assert found.cluster_id == "cluster"
        if version >= 10:
            assert shown["mine"].topic_id == topic_id("mine")
        assert not channel.created

    run(scenario())


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_no_topics_asked_for_are_none(version: int) -> None:
    """An empty list from version 1 on; it was all before."""

    async def scenario() -> None:
        fixture = await a_fixture()
        found = await fixture.ask(metadata(fixture)[0], 3, version, MetadataRequest(topics=[]))
        assert found.topics == []
        assert len(found.brokers) == 2

    run(scenario())


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_names_are_described_or_created(version: int) -> None:
    """In the order of asking, a name nobody has created on the way, with the controller's code where it would
    not."""

    async def scenario() -> None:
        fixture = await a_fixture()
        handler, channel = metadata(fixture)
        asked = MetadataRequest(topics=named("mine", "new", "forbidden", "a b", "__cluster_metadata"))
        found = await fixture.ask(handler, 3, version, asked)
        assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in found.topics] == [
            ("mine", 0, 2),
            ("new", 0, 1),
            ("forbidden", ErrorCode.POLICY_VIOLATION, 0),
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
            ("__cluster_metadata", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
        ]
        assert channel.created == ["new"]

    run(scenario())


@pytest.mark.parametrize(("by_setting", "by_request"), [(False, True), (True, False)])
def test_creation_on_the_way_takes_both_consents(by_setting: bool, by_request: bool) -> None:
    """The broker's setting and the request's flag."""

    async def scenario() -> None:
        fixture = await a_fixture()
        handler, channel = metadata(fixture, auto_create=by_setting)
        asked = MetadataRequest(topics=named("new"), allow_auto_topic_creation=by_request)
        (found,) = (await fixture.ask(handler, 3, 9, asked)).topics
        assert (found.error_code, channel.created) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])

    run(scenario())


def test_topics_by_id() -> None:
    """From version 12; before, an id in a request is refused; an unknown id has its own code and no name."""

    async def scenario() -> None:
        fixture = await a_fixture()
        handler, _ = metadata(fixture)
        asked = [
            MetadataRequestTopic(topic_id=topic_id("mine"), name=None),
            MetadataRequestTopic(topic_id=b"?" * 16, name=None),
        ]
        for version in (12, 13):
            found = (await fixture.ask(handler, 3, version, MetadataRequest(topics=asked))).topics
            assert [(topic.name, topic.error_code) for topic in found] == [
                ("mine", 0),
                (None, ErrorCode.UNKNOWN_TOPIC_ID),
            ]
        asked = [MetadataRequestTopic(topic_id=topic_id("mine"), name="mine")]
        for version in (10, 11):
            (found,) = (await fixture.ask(handler, 3, version, MetadataRequest(topics=asked))).topics
            assert found.error_code == ErrorCode.INVALID_REQUEST

    run(scenario())


def test_operations_are_told_when_asked() -> None:
    """Of the cluster in versions 8 to 10, of topics from 8 on: those of a name, whether there is such a topic
    or not, but not of an unknown id."""

    async def scenario() -> None:
        fixture = await a_fixture()
        handler, _ = metadata(fixture)
        asked = MetadataRequest(topics=named("mine", "a b"), include_topic_authorized_operations=True)
        asked.include_cluster_authorized_operations = True
        found = await fixture.ask(handler, 3, 8, asked)
        assert found.cluster_authorized_operations == CLUSTER_OPERATIONS
        none = -(1 << 31)
        assert [topic.topic_authorized_operations for topic in found.topics] == [
            TOPIC_OPERATIONS,
            TOPIC_OPERATIONS,
        ]
        unknown = [MetadataRequestTopic(topic_id=bytes([9] * 16), name=None)]
        found = await fixture.ask(
            handler, 3, 12, MetadataRequest(unknown, include_topic_authorized_operations=True)
        )
        assert [topic.topic_authorized_operations for topic in found.topics] == [none]
        found = await fixture.ask(handler, 3, 8, MetadataRequest(topics=named("mine")))
        assert (found.cluster_authorized_operations, found.topics[0].topic_authorized_operations) == (
            none,
            none,
        )

    run(scenario())


def stream_of(topic: str, index: int, node_id: int, *, is_open: bool) -> StreamState:
    """The data stream of the partition, of a number of its own, where 10 records are committed or owed."""
    number = StreamId(100 + index)
    return StreamState(number, topic_id(topic), index, StreamRole.DATA, 1, node_id, is_open, 0, 10)


async def with_held() -> BrokerFixture:
    """Of `theirs`, which another broker leads, the one that is fenced has the first partition open, its log
    owes a range of the second, and the third is whole; its log is to be recovered."""
    fixture = await a_fixture()
    fixture.publish(
        stream_record(stream_of("theirs", 0, FENCED, is_open=True)),
        stream_record(stream_of("theirs", 1, OTHER, is_open=True)),
        OwedRangeRecord(101, 4, 10, FENCED, 1, b"w" * 16),
        stream_record(stream_of("theirs", 2, OTHER, is_open=True)),
        FailoverRecord(FENCED, OTHER),
    )
    return fixture


@pytest.mark.parametrize("version", range(5, NEWEST + 1))
def test_who_is_gone_and_holds_some_of_a_partition_is_a_replica_that_is_offline(version: int) -> None:
    """One that the new leader cannot open, for it is open there still, has no leader. In all topics, too,
    which are told from one reply; once the log is recovered all is as it was."""

    async def scenario() -> None:
        fixture = await with_held()
        handler = metadata(fixture)[0]

        async def told() -> list[tuple[int, list[int], list[int]]]:
            (topic,) = (
                await fixture.ask(handler, 3, version, MetadataRequest(topics=named("theirs")))
            ).topics
            return [(one.leader_id, one.replica_nodes, one.offline_replicas) for one in topic.partitions]

        whole = (OTHER, [OTHER], [])
        assert await told() == [
            (-1, [OTHER, FENCED], [FENCED]),
            (OTHER, [OTHER, FENCED], [FENCED]),
            whole,
        ]
        fixture.publish(stream_record(stream_of("theirs", 0, FENCED, is_open=False)))
        assert (await told())[0] == whole
        fixture.publish(EndFailoverRecord(FENCED))
        assert await told() == [whole] * 3

    run(scenario())


def test_what_cannot_open_for_want_of_small_states_has_no_leader() -> None:
    """The log of a broker that is gone owes them: its next leader waits for that log. One that has it open
    has read them."""

    async def scenario() -> None:
        fixture = await a_fixture()
        handler = metadata(fixture)[0]

        async def told() -> tuple[int, int, list[int]]:
            (topic,) = (await fixture.ask(handler, 3, 12, MetadataRequest(topics=named("theirs")))).topics
            part = topic.partitions[0]
            return part.error_code, part.leader_id, part.replica_nodes

        small = stream_of("theirs", 0, OTHER, is_open=False)._replace(role=StreamRole.META)
        fixture.publish(
            stream_record(small),
            OwedRangeRecord(100, 4, 10, FENCED, 1, b"w" * 16),
            FailoverRecord(FENCED, OTHER),
        )
        assert await told() == (ErrorCode.LEADER_NOT_AVAILABLE, -1, [OTHER, FENCED])
        fixture.publish(stream_record(small._replace(is_open=True)))
        assert await told() == (0, OTHER, [OTHER, FENCED])
        fixture.publish(stream_record(small), EndFailoverRecord(FENCED))
        assert await told() == (0, OTHER, [OTHER])

    run(scenario())


@pytest.mark.parametrize("version", [0, 1, 5, 6, 7, NEWEST])
def test_a_leader_without_the_clients_listener_leads_nothing_for_it(version: int) -> None:
    """It is not among the brokers that are told; from version 6 on the code says what is wrong, as in Kafka,
    and from 5 on its replica is offline. In a reply for all topics, too."""

    async def scenario() -> None:
        fixture = await a_fixture()
        fixture.make_topic("elsewhere", leader=ELSEWHERE)
        handler = metadata(fixture)[0]
        for topics in (named("elsewhere"), None if version else []):
            found = await fixture.ask(handler, 3, version, MetadataRequest(topics=topics))
            (part,) = next(topic for topic in found.topics if topic.name == "elsewhere").partitions
            code = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
            assert (part.error_code, part.leader_id, part.replica_nodes) == (code, -1, [ELSEWHERE])
            assert part.offline_replicas == ([ELSEWHERE] if version >= 5 else [])
        request = DescribeTopicPartitionsRequest([TopicRequest("elsewhere")])
        (topic,) = (await fixture.ask(DescribeTopicPartitions(fixture.cache), 75, 0, request)).topics
        (part,) = topic.partitions
        assert (part.error_code, part.leader_id, part.offline_replicas) == (0, -1, [ELSEWHERE])

    run(scenario())


def test_where_all_are_fenced_who_answers_is_told() -> None:
    """As a lone broker that ends is: kafka-python raises an error for an empty list. Nobody else is named."""

    async def scenario() -> None:
        fixture = await a_fixture()
        for broker in fixture.cache.image.brokers:
            fixture.publish(BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, fenced=1))
        found = await fixture.ask(metadata(fixture)[0], 3, NEWEST, MetadataRequest(topics=[]))
        assert [one.node_id for one in found.brokers] == [NODE]

    run(scenario())


# DescribeCluster


@pytest.mark.parametrize("version", [0, 1, 2])
def test_fenced_brokers_are_told_to_who_asks(version: int) -> None:
    """From version 2; brokers without an address on this listener are not told."""

    async def scenario() -> None:
        fixture = await a_fixture()
        handler = DescribeCluster(fixture.cache)
        found = await fixture.ask(handler, 60, version, DescribeClusterRequest())
        assert [one.broker_id for one in found.brokers] == [NODE, OTHER]
        if version == 2:
            found = await fixture.ask(
                handler, 60, version, DescribeClusterRequest(include_fenced_brokers=True)
            )
            assert [(one.broker_id, one.is_fenced) for one in found.brokers] == [
                (NODE, False),
                (OTHER, False),
                (FENCED, True),
            ]
            assert found.brokers[-1].rack == "far"
        fixture.publish(BrokerRegistrationChangeRecord(broker_id=FENCED, broker_epoch=3, fenced=-1))
        found = await fixture.ask(handler, 60, version, DescribeClusterRequest())
        assert [one.broker_id for one in found.brokers] == [NODE, OTHER, FENCED]

    run(scenario())


# DescribeTopicPartitions


async def pages(fixture: BrokerFixture, names: list[str], limit: int) -> list[list[tuple[str, int, int]]]:
    """(topic, code, partition) page by page; partition -1 for a topic without."""
    handler, cursor, found = DescribeTopicPartitions(fixture.cache), None, []
    while True:
        topics = [TopicRequest(name) for name in names]
        request = DescribeTopicPartitionsRequest(topics, limit, cursor)
        response = await fixture.ask(handler, 75, 0, request)
        found.append(
            [
                (topic.name, topic.error_code, index)
                for topic in response.topics
                for index in ([part.partition_index for part in topic.partitions] or [-1])
            ]
        )
        if response.next_cursor is None:
            return found
        cursor = Cursor(response.next_cursor.topic_name, response.next_cursor.partition_index)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9, 10, 11, 5000])
@pytest.mark.parametrize("names", [[], ["theirs", "mine", "mine", "__consumer_offsets", "nobodys"]])
def test_pages_joined_are_everything_once(limit: int, names: list[str]) -> None:
    """Whatever the page's size: topics by name, each partition once, no page above the limit and none without
    need."""

    async def scenario() -> None:
        fixture = await a_fixture()
        found = await pages(fixture, names, limit)
        sizes = {"__consumer_offsets": 4, "mine": 2, "nobodys": 1, "theirs": 3}
        everything = [entry for page in found for entry in page]
        assert everything == [(name, 0, index) for name, size in sizes.items() for index in range(size)]
        assert [len(page) for page in found[:-1]] == [min(limit, PARTITIONS_MAX)] * (len(found) - 1)

    run(scenario())


def test_who_is_gone_and_holds_some_is_described_as_offline() -> None:
    """A partition without a leader has no error here, as in Kafka, where Metadata has one."""

    async def scenario() -> None:
        fixture = await with_held()
        request = DescribeTopicPartitionsRequest([TopicRequest("theirs")])
        (topic,) = (await fixture.ask(DescribeTopicPartitions(fixture.cache), 75, 0, request)).topics
        assert [(one.leader_id, one.replica_nodes, one.offline_replicas) for one in topic.partitions] == [
            (-1, [OTHER, FENCED], [FENCED]),
            (OTHER, [OTHER, FENCED], [FENCED]),
            (OTHER, [OTHER], []),
        ]
        assert [one.error_code for one in topic.partitions] == [0, 0, 0]

    run(scenario())


def test_topics_that_are_not_there_are_named_with_their_code() -> None:
    """When asked for, with what may be done to them as if they were there; and a topic that went between two
    pages is passed over."""

    async def scenario() -> None:
        fixture = await a_fixture()
        (page,) = await pages(fixture, ["mine", "absent", "a b"], 100)
        assert page == [
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
            ("absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            ("mine", 0, 0),
            ("mine", 0, 1),
        ]
        handler = DescribeTopicPartitions(fixture.cache)
        request = DescribeTopicPartitionsRequest([TopicRequest("absent"), TopicRequest("mine")])
        answered = (await fixture.ask(handler, 75, 0, request)).topics
        assert [topic.topic_authorized_operations for topic in answered] == [
            TOPIC_OPERATIONS,
            TOPIC_OPERATIONS,
        ]
        fixture.delete_topic("__consumer_offsets")
        request = DescribeTopicPartitionsRequest([TopicRequest("__consumer_offsets"), TopicRequest("absent")])
        answered = (await fixture.ask(handler, 75, 0, request)).topics
        assert [topic.is_internal for topic in answered] == [True, False]
        fixture.delete_topic("mine")
        response = await fixture.ask(
            handler, 75, 0, DescribeTopicPartitionsRequest([], 100, Cursor("mine", 1))
        )
        assert [topic.name for topic in response.topics] == ["nobodys", "theirs"]

    run(scenario())


# FindCoordinator


@pytest.mark.parametrize("version", range(1, API[10].max_version + 1))
def test_a_transactions_coordinator_is_refused_for_good(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In a code that the clients of that version end at, with a text; the log names client, address and
    remedy, once a minute."""

    async def scenario() -> None:
        fixture, now_s = await BrokerFixture().start(), [0.0]
        creation = TopicCreation(CreatingChannel(fixture), {}, YieldQueue())
        handler = FindCoordinator(fixture.cache, creation, TransactionRefusals(lambda: now_s[0]))
        request = FindCoordinatorRequest("" if version >= 4 else "t", 1, ["t"] if version >= 4 else [])
        for at_s, line_count in ((0.0, 1), (59.0, 1), (60.0, 2)):
            now_s[0] = at_s
            found = await fixture.ask(handler, 10, version, request)
            one = found.coordinators[0] if version >= 4 else found
            listed, single = ErrorCode.UNSUPPORTED_VERSION, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert one.error_code == (listed if version >= 4 else single)
            assert not ErrorCode(one.error_code).retriable
            assert one.error_message == "transactions are not served by this broker"
            lines = [
                record.getMessage() for record in caplog.records if "transactions: " in record.getMessage()
            ]
            assert len(lines) == line_count
        assert lines[0].startswith("transactions: client 'test' at 127.0.0.1:")
        assert "refused the transactional id 't'" in lines[0]
        assert "leave transactional.id away" in lines[0]
        await fixture.ask(handler, 10, version, request, client_id="other")
        assert caplog.records[-1].getMessage().startswith("transactions: client 'other' at ")

    run(scenario())


@pytest.mark.parametrize("version", range(API[10].max_version + 1))
def test_a_group_is_where_its_partition_is(version: int) -> None:
    """Every key finds the leader of one partition of __consumer_offsets, at its address for this client; the
    topic is made on first need."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        channel = CreatingChannel(fixture)
        creation = TopicCreation(channel, {"__consumer_offsets": (4, {})}, YieldQueue())
        handler = FindCoordinator(fixture.cache, creation, TransactionRefusals(lambda: 0.0))
        keys = ["g", "h"] if version >= 4 else []
        found = await fixture.ask(
            handler, 10, version, FindCoordinatorRequest(key="" if keys else "g", coordinator_keys=keys)
        )
        assert channel.created == ["__consumer_offsets"]
        one = found.coordinators[0] if version >= 4 else found
        assert (one.error_code, one.node_id, one.host, one.port) == (0, NODE, "127.0.0.1", 9092)
        if version >= 4:
            assert [coordinator.key for coordinator in found.coordinators] == keys
        for index in range(4):
            fixture.move("__consumer_offsets", index, OTHER)
        found = await fixture.ask(
            handler, 10, version, FindCoordinatorRequest(key="" if keys else "g", coordinator_keys=keys)
        )
        one = found.coordinators[0] if version >= 4 else found
        assert (one.node_id, one.host) == (OTHER, "host2")
        for index in range(4):
            fixture.move("__consumer_offsets", index, ELSEWHERE)
        found = await fixture.ask(
            handler, 10, version, FindCoordinatorRequest(key="" if keys else "g", coordinator_keys=keys)
        )
        one = found.coordinators[0] if version >= 4 else found
        assert (one.error_code, one.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)

    run(scenario())
