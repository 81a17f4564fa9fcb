"""What both brokers are asked once they hold the same: a list of questions by name, each a request of a
describing API.

`History` makes what the answers are about: topics with records of fixed times, an idempotent producer, a
group with offsets alone, one with a member.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from millrace.protocol.batch_build import build_batch
from millrace.protocol.messages import (
    api_versions,
    consumer_group_describe,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    share_group_describe,
    streams_group_describe,
)
from millrace.protocol.records import Record
from tests.live.client import VERSION_BY_NAME, Client
from tests.live.every_request import Member, join, sync
from tests.patience import PATIENCE_S

SETTLES_S = 1.0  # until a change is seen everywhere in Kafka
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
PLAIN, WIDE, OWN, MISSING, INTERNAL = "plain", "wide", "own", "missing", "__consumer_offsets"
COMMITTED, MEMBERS, METERED = "committed", "members", "metered"
UNKNOWN_ID = b"unknown topic id"
SPECIAL_OFFSETS = (-1, -2, -3, -4, -5, -6, -7, 0)


class Question(NamedTuple):
    name: str
    key: int
    request: Any
    since: int = 0  # not in versions before


class History:
    def __init__(self, client: Client, base_ms: int) -> None:
        """`base_ms`: the time of the first record, the same for both brokers."""
        self._client = client
        self.base_ms = base_ms
        client.create(PLAIN)
        client.create(WIDE, 3)
        client.create(OWN, 1, **{"retention.ms": "-1", "cleanup.policy": "compact"})
        self._ready()
        self.ids: Mapping[str, bytes] = client.topic_ids()
        for number in range(3):
            client.produce(PLAIN, [b"a", b"b"], time_ms=base_ms + 1000 * number)
        client.produce(WIDE, [b"c"], 1, time_ms=base_ms)
        self._produce_as_one()
        self._commit()
        self._join()
        self._configure()
        self.ids = client.topic_ids()

    def _ready(self) -> None:
        """Leaders and the coordinator of groups are there."""
        deadline = time.monotonic() + PATIENCE_S
        asked = find_coordinator.FindCoordinatorRequest(coordinator_keys=[COMMITTED, MEMBERS])
        while (
            any(one.error_code for one in self._client.ask("FindCoordinator", asked).coordinators)
            or self._has_no_leader()
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _has_no_leader(self) -> bool:
        topics = self._client.ask("Metadata", metadata.MetadataRequest(topics=None), 12).topics
        return any(partition.leader_id < 0 for topic in topics for partition in topic.partitions)

    def _produce_as_one(self) -> None:
        request = init_producer_id.InitProducerIdRequest(None, 60_000)
        deadline = time.monotonic() + PATIENCE_S
        while (given := self._client.ask("InitProducerId", request, 4)).error_code:
            assert time.monotonic() < deadline, given
            time.sleep(0.1)
        batch = build_batch(
            [Record(None, b"v", self.base_ms)],
            producer_id=given.producer_id,
            producer_epoch=given.producer_epoch,
            base_sequence=0,
        )
        data = [
            produce.TopicProduceData(
                WIDE, partition_data=[produce.PartitionProduceData(2, memoryview(batch))]
            )
        ]
        answer = self._client.ask("Produce", produce.ProduceRequest(None, -1, 10_000, data), VERSION_BY_NAME)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def _commit(self) -> None:
        partitions = [
            offset_commit.OffsetCommitRequestPartition(number, 1 + number, -1, "text") for number in range(2)
        ]
        topics = [offset_commit.OffsetCommitRequestTopic(WIDE, bytes(16), partitions)]
        request = offset_commit.OffsetCommitRequest(COMMITTED, topics=topics)
        deadline = time.monotonic() + PATIENCE_S
        while any(
            one.error_code for one in self._client.ask("OffsetCommit", request, 9).topics[0].partitions
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def _configure(self) -> None:
        configs = {
            (GROUP, MEMBERS): ("consumer.session.timeout.ms", "50000"),
            (METRICS, METERED): ("interval.ms", "1000"),
        }
        change = incremental_alter_configs
        resources = [
            change.AlterConfigsResource(*resource, [change.AlterableConfig(key, 0, value)])
            for resource, (key, value) in configs.items()
        ]
        answer = self._client.ask("IncrementalAlterConfigs", change.IncrementalAlterConfigsRequest(resources))
        assert not any(one.error_code for one in answer.responses), answer
        time.sleep(SETTLES_S)

    def _join(self) -> None:
        request = join(MEMBERS)
        request.group_instance_id = None
        request.member_id = self._client.ask("JoinGroup", request).member_id
        answer = self._client.ask("JoinGroup", request)
        assert answer.error_code == 0, answer
        member = Member(MEMBERS, answer.member_id, answer.generation_id)
        assert self._client.ask("SyncGroup", sync(member)).error_code == 0


def questions(history: History) -> list[Question]:
    """In an order in which none changes another's answer."""
    return [
        *of_cluster(),
        *of_topics(history),
        *of_offsets(history),
        *of_groups(history),
        *of_configs(),
        *of_the_rest(),
    ]


def of_cluster() -> list[Question]:
    cluster = describe_cluster.DescribeClusterRequest
    quorum = describe_quorum.DescribeQuorumRequest
    log = describe_quorum.DescribeQuorumRequestTopicData
    partition = describe_quorum.DescribeQuorumRequestPartitionData
    return [
        Question("versions", 18, api_versions.ApiVersionsRequest("compare", "1")),
        Question("versions: a bad name", 18, api_versions.ApiVersionsRequest("com pare", "1")),
        Question("cluster", 60, cluster()),
        Question("cluster: everything", 60, cluster(True, 1, True)),
        Question("cluster: controllers", 60, cluster(True, 2, False)),
        Question("cluster: nothing known", 60, cluster(False, 3, False)),
        Question("quorum", 55, quorum([log("__cluster_metadata", [partition(0)])])),
        Question(
            "quorum: unknown",
            55,
            quorum([log("__cluster_metadata", [partition(1)]), log(MISSING, [partition(0)])]),
        ),
    ]


def of_topics(history: History) -> list[Question]:
    asked = metadata.MetadataRequest
    named = [
        metadata.MetadataRequestTopic(name=name)
        for name in (WIDE, MISSING, PLAIN, "not/a/name", INTERNAL, PLAIN)
    ]
    by_id = [metadata.MetadataRequestTopic(topic_id, None) for topic_id in (history.ids[OWN], UNKNOWN_ID)]
    described = describe_topic_partitions.DescribeTopicPartitionsRequest
    topics = [
        describe_topic_partitions.TopicRequest(name)
        for name in (WIDE, MISSING, PLAIN, "not/a/name", INTERNAL)
    ]
    place = describe_topic_partitions.Cursor
    dirs = describe_log_dirs.DescribableLogDirTopic
    made = describe_producers.TopicRequest
    return [
        Question("metadata: all", 3, asked(None, False, False, False)),
        Question("metadata: all, authorized", 3, asked(None, False, True, True)),
        Question("metadata: none", 3, asked([], False, False, False)),
        Question(
            "metadata: named", 3, asked(named, False, False, False), 4
        ),  # before, what is asked for is made
        Question("metadata: those that are there", 3, asked([named[0], named[2]], False, False, False)),
        Question("metadata: by id", 3, asked(by_id, False, False, False)),
        Question("topics: all", 75, described([])),
        Question("topics: named", 75, described(topics)),
        Question("topics: at most 2", 75, described(topics, 2)),
        Question("topics: from a cursor", 75, described(topics, 2, place(WIDE, 1))),
        Question("topics: from a bad cursor", 75, described(topics, 2, place(WIDE, -1))),
        Question("topics: from a topic that is not there", 75, described(topics, 2, place("nope", 0))),
        Question("log dirs: all", 35, describe_log_dirs.DescribeLogDirsRequest(None)),
        Question(
            "log dirs: named",
            35,
            describe_log_dirs.DescribeLogDirsRequest([dirs(WIDE, [0, 2, 7]), dirs(MISSING, [0])]),
        ),
        Question(
            "producers",
            61,
            describe_producers.DescribeProducersRequest([made(WIDE, [0, 2, 7]), made(MISSING, [0])]),
        ),
    ]


def of_offsets(history: History) -> list[Question]:
    asked, of_topic, place = (
        list_offsets.ListOffsetsRequest,
        list_offsets.ListOffsetsTopic,
        list_offsets.ListOffsetsPartition,
    )

    def at(topic: str, partition: int, timestamp: int, epoch: int = -1) -> Any:
        return asked(-1, 0, [of_topic(topic, [place(partition, epoch, timestamp)])], 1000)

    epochs, of_epochs = (
        offset_for_leader_epoch.OffsetForLeaderPartition,
        offset_for_leader_epoch.OffsetForLeaderTopic,
    )
    places = [epochs(0, -1, epoch) for epoch in (0,)] + [epochs(7, -1, 0)]
    return [
        *(Question(f"offsets: {special}", 2, at(PLAIN, 0, special)) for special in SPECIAL_OFFSETS),
        *(Question(f"offsets: {special}, empty", 2, at(WIDE, 0, special)) for special in SPECIAL_OFFSETS),
        Question("offsets: of a record", 2, at(PLAIN, 0, history.base_ms + 1000)),
        Question("offsets: between records", 2, at(PLAIN, 0, history.base_ms + 1500)),
        Question("offsets: behind all", 2, at(PLAIN, 0, history.base_ms + 9_000)),
        Question("offsets: committed alone", 2, asked(-1, 1, [of_topic(PLAIN, [place(0, -1, -1)])], 1000)),
        Question(
            "offsets: unknown",
            2,
            asked(
                -1,
                0,
                [of_topic(WIDE, [place(7, -1, -1), place(1, -1, -1)]), of_topic(MISSING, [place(0, -1, -1)])],
                1000,
            ),
        ),
        Question("offsets: a newer epoch", 2, at(PLAIN, 0, -1, 99)),
        Question(
            "epochs",
            23,
            offset_for_leader_epoch.OffsetForLeaderEpochRequest(
                -2, [of_epochs(PLAIN, places), of_epochs(MISSING, [epochs(0, -1, 0)])]
            ),
        ),
        Question(
            "epochs: undefined",
            23,
            offset_for_leader_epoch.OffsetForLeaderEpochRequest(-2, [of_epochs(PLAIN, [epochs(0, -1, -1)])]),
        ),
        Question(
            "epochs: newer",
            23,
            offset_for_leader_epoch.OffsetForLeaderEpochRequest(-2, [of_epochs(PLAIN, [epochs(0, -1, 99)])]),
        ),
    ]


def of_groups(history: History) -> list[Question]:
    described = describe_groups.DescribeGroupsRequest
    group, topic = offset_fetch.OffsetFetchRequestGroup, offset_fetch.OffsetFetchRequestTopics
    asked = [topic(WIDE, history.ids[WIDE], [0, 2, 7]), topic(MISSING, UNKNOWN_ID, [0])]
    one = [
        offset_fetch.OffsetFetchRequestTopic(WIDE, [0, 2, 7]),
        offset_fetch.OffsetFetchRequestTopic(MISSING, [0]),
    ]
    fetched = offset_fetch.OffsetFetchRequest
    find = find_coordinator.FindCoordinatorRequest
    shares = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup
    names = [COMMITTED, MEMBERS, MISSING, ""]
    return [
        Question("groups: described", 15, described(names)),
        Question("groups: described, authorized", 15, described(names, True)),
        Question("groups: all", 16, list_groups.ListGroupsRequest()),
        Question("groups: stable", 16, list_groups.ListGroupsRequest(["stable"])),
        Question("groups: of a state that is none", 16, list_groups.ListGroupsRequest(["nonsense"])),
        Question("groups: classic", 16, list_groups.ListGroupsRequest([], ["Classic"])),
        Question("groups: of a type that is none", 16, list_groups.ListGroupsRequest([], ["nonsense"])),
        Question("groups: consumer", 16, list_groups.ListGroupsRequest([], ["consumer"])),
        Question(
            "committed",
            9,
            fetched(COMMITTED, one, [group(COMMITTED, topics=asked), group(MISSING, topics=asked)]),
        ),
        Question(
            "committed: all",
            9,
            fetched(COMMITTED, None, [group(COMMITTED, topics=None), group(MISSING, topics=None)]),
        ),
        Question(
            "committed: of a member that is none",
            9,
            fetched(MEMBERS, one, [group(MEMBERS, "nobody", 3, asked)]),
        ),
        Question("coordinator", 10, find(COMMITTED, 0, names)),
        Question("coordinator: of a type that is none", 10, find(COMMITTED, 7, names)),
        Question("consumer groups", 69, consumer_group_describe.ConsumerGroupDescribeRequest(names)),
        Question("share groups", 77, share_group_describe.ShareGroupDescribeRequest(names)),
        Question("streams groups", 89, streams_group_describe.StreamsGroupDescribeRequest(names)),
        Question(
            "share groups: offsets",
            90,
            describe_share_group_offsets.DescribeShareGroupOffsetsRequest([shares(MISSING, None)]),
        ),
        Question("offsets deleted of nobody", 47, offset_delete.OffsetDeleteRequest(MISSING)),
    ]


def of_configs() -> list[Question]:
    """Values are compared in describing.py; here what else an answer says."""
    asked, resource = describe_configs.DescribeConfigsRequest, describe_configs.DescribeConfigsResource
    some = ["retention.ms", "no.such", "cleanup.policy"]
    odd = {
        "no topic": (TOPIC, MISSING),
        "a topic without a name": (TOPIC, ""),
        "a bad name": (TOPIC, "not/a/name"),
        "another broker": (BROKER, "7"),
        "a broker that is no number": (BROKER, "x"),
        "loggers without a name": (LOGGER, ""),
        "another broker's loggers": (LOGGER, "7"),
        "loggers of no number": (LOGGER, "x"),
        "client metrics": (METRICS, MISSING),
        "client metrics without a name": (METRICS, ""),
        "a group": (GROUP, COMMITTED),
        "a group that is not there": (GROUP, MISSING),
        "a group without a name": (GROUP, ""),
        "a group that has some": (GROUP, MEMBERS),
        "client metrics that have some": (METRICS, METERED),
    }
    return [
        *(Question(f"configs: {name}", 32, asked([resource(*one, None)], True)) for name, one in odd.items()),
        Question("configs: some of a topic", 32, asked([resource(TOPIC, OWN, some)], True)),
        Question("configs: two", 32, asked([resource(TOPIC, OWN, some), resource(TOPIC, PLAIN, some[:1])])),
        Question("configs: root logger", 32, asked([resource(LOGGER, "1", ["root", "no.such"])], True)),
        Question("config resources", 74, list_config_resources.ListConfigResourcesRequest()),
        Question("config resources: topics", 74, list_config_resources.ListConfigResourcesRequest([TOPIC])),
        Question("config resources: unknown", 74, list_config_resources.ListConfigResourcesRequest([99])),
    ]


def of_the_rest() -> list[Question]:
    quotas, component = (
        describe_client_quotas.DescribeClientQuotasRequest,
        describe_client_quotas.ComponentData,
    )
    moves, moved = (
        list_partition_reassignments.ListPartitionReassignmentsRequest,
        list_partition_reassignments.ListPartitionReassignmentsTopics,
    )
    elect, elected = elect_leaders.ElectLeadersRequest, elect_leaders.TopicPartitions
    scram = describe_user_scram_credentials
    return [
        Question("quotas: all", 48, quotas()),
        Question("quotas: of a user", 48, quotas([component("user", 0, "u")], True)),
        Question("acls: all", 29, describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1)),
        Question("scram: all", 50, scram.DescribeUserScramCredentialsRequest(None)),
        Question("scram: one", 50, scram.DescribeUserScramCredentialsRequest([scram.UserName("u")])),
        Question("tokens", 41, describe_delegation_token.DescribeDelegationTokenRequest(None)),
        Question("transactions: all", 66, list_transactions.ListTransactionsRequest()),
        Question(
            "transactions: of a state that is none",
            66,
            list_transactions.ListTransactionsRequest(["nonsense"]),
        ),
        Question("transactions: described", 65, describe_transactions.DescribeTransactionsRequest(["t", ""])),
        Question("reassignments: all", 46, moves()),
        Question("reassignments: named", 46, moves(topics=[moved(WIDE, [0, 7]), moved(MISSING, [0])])),
        Question("elections: all", 43, elect(0, None)),
        Question("elections: named", 43, elect(0, [elected(WIDE, [0, 7]), elected(MISSING, [0])])),
        Question("elections: unclean", 43, elect(1, [elected(PLAIN, [0])])),
    ]
