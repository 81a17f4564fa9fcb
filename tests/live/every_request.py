"""A request with real content for each API that a broker shows, and the codes that its answer may hold.

`Scene` makes what the requests are about: a topic with records, a group with a member. A row is made anew for
every version, so that what one version created is not in the next one's way; fields that a version does not
have are taken out by who sends it (fitting.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.protocol.batch_build import build_batch
from millrace.protocol.error_codes import ErrorCode as E
from millrace.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    add_raft_voter,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_share_group_state,
    delete_topics,
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
    end_txn,
    expire_delegation_token,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    initialize_share_group_state,
    join_group,
    leave_group,
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
    read_share_group_state,
    read_share_group_state_summary,
    remove_raft_voter,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    streams_group_topology_description_update,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    unregister_controller,
    update_features,
    write_share_group_state,
    write_txn_markers,
)
from millrace.protocol.records import Record
from tests.live.client import Client
from tests.patience import PATIENCE_S

TOPIC, BROKER = 2, 4
NAME = "swept"


@dataclass(slots=True)
class Member:
    group: str
    member_id: str
    generation: int


class Scene:
    """What is there on a broker, and how more of it is made."""

    def __init__(self, client: Client) -> None:
        self.client = client
        client.create(NAME, partitions=2)
        for partition in range(2):
            client.produce(NAME, [b"one", b"two"], partition)
        asked = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=NAME)])
        self.topic_id: bytes = client.ask("Metadata", asked, 12).topics[0].topic_id
        self.path: str = (
            client.ask("DescribeLogDirs", describe_log_dirs.DescribeLogDirsRequest(None)).results[0].log_dir
        )
        found = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
        deadline = time.monotonic() + PATIENCE_S
        while client.ask("FindCoordinator", found).coordinators[0].error_code:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self._count = 0

    def new(self, what: str) -> str:
        self._count += 1
        return f"{what}-{self._count}"

    def new_topic(self, what: str) -> str:
        name = self.new(what)
        self.client.create(name)
        return name

    def commit(self, group: str) -> offset_commit.OffsetCommitRequest:
        partition = offset_commit.OffsetCommitRequestPartition(0, 1, 0, "text")
        topics = [offset_commit.OffsetCommitRequestTopic(NAME, self.topic_id, [partition])]
        return offset_commit.OffsetCommitRequest(group, retention_time_ms=3_600_000, topics=topics)

    def committed(self, what: str) -> str:
        """A group with an offset and without members."""
        group = self.new(what)
        request = self.commit(group)
        request.retention_time_ms, request.topics[0].topic_id = -1, bytes(16)
        answer = self.client.ask("OffsetCommit", request, 9)
        assert answer.topics[0].partitions[0].error_code == 0, answer
        return group

    def joined(self, what: str) -> Member:
        """The one member of a group that waits for its assignment."""
        request = join(self.new(what))
        request.group_instance_id = None
        deadline = time.monotonic() + PATIENCE_S
        while (
            not request.member_id and time.monotonic() < deadline
        ):  # a coordinator may not be there yet, or load
            request.member_id = self.client.ask("JoinGroup", request).member_id
        answer = self.client.ask("JoinGroup", request)
        assert answer.error_code == 0, answer
        return Member(request.group_id, answer.member_id, answer.generation_id)

    def synced(self, what: str) -> Member:
        member = self.joined(what)
        assert self.client.ask("SyncGroup", sync(member)).error_code == 0
        return member


def join(group: str) -> join_group.JoinGroupRequest:
    protocols = [
        join_group.JoinGroupRequestProtocol("range", b"\0\1"),
        join_group.JoinGroupRequestProtocol("sticky", b""),
    ]
    return join_group.JoinGroupRequest(
        group, 30_000, 600_000, "", "static-1", "consumer", protocols, "why not"
    )


def sync(member: Member) -> sync_group.SyncGroupRequest:
    assignments = [sync_group.SyncGroupRequestAssignment(member.member_id, b"assigned")]
    return sync_group.SyncGroupRequest(
        member.group, member.generation, member.member_id, None, "consumer", "range", assignments
    )


Make = Callable[[Scene], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """`code`: all that the answer holds beside 0, and it does. `told`: names that come back, from a version
    on; a topic's id stands for its name."""

    make: Make
    code: int = 0
    told: tuple[str, ...] = ()
    told_since: int = 0


def batch() -> memoryview:
    return memoryview(build_batch([Record(None, b"swept in", int(time.time() * 1000))]))


def produced(scene: Scene) -> Any:
    part = produce.PartitionProduceData(0, batch())
    return produce.ProduceRequest(None, -1, 10_000, [produce.TopicProduceData(NAME, scene.topic_id, [part])])


def fetched(scene: Scene) -> Any:
    part = fetch.FetchPartition(0, 0, 0, partition_max_bytes=1 << 20)
    topics = [fetch.FetchTopic(NAME, scene.topic_id, [part])]
    return fetch.FetchRequest(
        max_wait_ms=100, min_bytes=1, isolation_level=1, session_epoch=0, topics=topics, rack_id="zone"
    )


def listed_offsets(scene: Scene) -> Any:
    message = list_offsets
    parts = [message.ListOffsetsPartition(0, 0, -1), message.ListOffsetsPartition(1, 0, 1_700_000_000_000)]
    return message.ListOffsetsRequest(-1, 1, [message.ListOffsetsTopic(NAME, parts)], 1000)


def fetched_offsets(scene: Scene) -> Any:
    message, group = offset_fetch, scene.committed("fetched")
    one = message.OffsetFetchRequestGroup(
        group, None, -1, [message.OffsetFetchRequestTopics(NAME, scene.topic_id, [0, 1])]
    )
    topics = [message.OffsetFetchRequestTopic(NAME, [0, 1])]
    return message.OffsetFetchRequest(group, topics, [one], True)


def beaten(scene: Scene) -> Any:
    member = scene.synced("beating")
    return heartbeat.HeartbeatRequest(member.group, member.generation, member.member_id)


def left(scene: Scene) -> Any:
    member = scene.synced("leaving")
    identity = leave_group.MemberIdentity(member.member_id, None, "done")
    return leave_group.LeaveGroupRequest(member.group, member.member_id, [identity])


def created(scene: Scene) -> Any:
    message = create_topics
    configs = [message.CreatableTopicConfig("retention.ms", "1000")]
    assigned = [message.CreatableReplicaAssignment(0, [1])]
    topics = [
        message.CreatableTopic(scene.new("counted"), 2, 3, configs=configs),
        message.CreatableTopic(scene.new("assigned"), -1, -1, assigned),
    ]
    return message.CreateTopicsRequest(topics, 10_000)


def deleted(scene: Scene) -> Any:
    names = [scene.new_topic("deleted") for _ in range(2)]
    topics = [delete_topics.DeleteTopicState(name) for name in names]
    return delete_topics.DeleteTopicsRequest(topics, names, 10_000)


def cut(scene: Scene) -> Any:
    message = delete_records
    topics = [message.DeleteRecordsTopic(NAME, [message.DeleteRecordsPartition(1, 1)])]
    return message.DeleteRecordsRequest(topics, 10_000)


def ended(scene: Scene) -> Any:
    message = offset_for_leader_epoch
    topics = [message.OffsetForLeaderTopic(NAME, [message.OffsetForLeaderPartition(0, 0, 0)])]
    return message.OffsetForLeaderEpochRequest(-1, topics)


def described_configs(scene: Scene) -> Any:
    message = describe_configs
    resources = [
        message.DescribeConfigsResource(TOPIC, NAME, None),
        message.DescribeConfigsResource(BROKER, "1", None),
    ]
    return message.DescribeConfigsRequest(resources, True, True)


def replaced_configs(scene: Scene) -> Any:
    message, name = alter_configs, scene.new_topic("replaced")
    resource = message.AlterConfigsResource(TOPIC, name, [message.AlterableConfig("retention.ms", "1000")])
    return message.AlterConfigsRequest([resource])


def changed_configs(scene: Scene) -> Any:
    message, name = incremental_alter_configs, scene.new_topic("changed")
    resource = message.AlterConfigsResource(TOPIC, name, [message.AlterableConfig("retention.ms", 0, "1000")])
    return message.IncrementalAlterConfigsRequest([resource])


def moved_dirs(scene: Scene) -> Any:
    message = alter_replica_log_dirs
    folder = message.AlterReplicaLogDir(scene.path, [message.AlterReplicaLogDirTopic(NAME, [0])])
    return message.AlterReplicaLogDirsRequest([folder])


def described_dirs(scene: Scene) -> Any:
    message = describe_log_dirs
    return message.DescribeLogDirsRequest([message.DescribableLogDirTopic(NAME, [0, 1])])


def grown(scene: Scene) -> Any:
    message = create_partitions
    topic = message.CreatePartitionsTopic(
        scene.new_topic("grown"), 2, [message.CreatePartitionsAssignment([1])]
    )
    return message.CreatePartitionsRequest([topic], 10_000)


def reassigned(scene: Scene) -> Any:
    message = alter_partition_reassignments
    topic = message.ReassignableTopic(NAME, [message.ReassignablePartition(0, [1])])
    return message.AlterPartitionReassignmentsRequest(topics=[topic])


def quorum(scene: Scene) -> Any:
    message = describe_quorum
    parts = [message.DescribeQuorumRequestPartitionData(0)]
    return message.DescribeQuorumRequest(
        [message.DescribeQuorumRequestTopicData("__cluster_metadata", parts)]
    )


def quotas(scene: Scene) -> Any:
    message = alter_client_quotas
    entity, change = message.EntityData("user", "somebody"), message.OpData("producer_byte_rate", 1000.0)
    return message.AlterClientQuotasRequest([message.AlterClientQuotasRequestEntryData([entity], [change])])


def scram(scene: Scene) -> Any:
    message = alter_user_scram_credentials
    added = message.ScramCredentialUpsertion("one", 1, 4096, b"salt", b"salted")
    return message.AlterUserScramCredentialsRequest([message.ScramCredentialDeletion("other", 1)], [added])


def features(scene: Scene) -> Any:
    asked = api_versions.ApiVersionsRequest("sweep", "1")
    (level,) = (
        found.max_version_level
        for found in scene.client.ask("ApiVersions", asked, 4).finalized_features
        if found.name == "metadata.version"
    )
    return update_features.UpdateFeaturesRequest(
        10_000, [update_features.FeatureUpdateKey("metadata.version", level)]
    )


def tokens(scene: Scene) -> Any:
    message = create_delegation_token
    return message.CreateDelegationTokenRequest(
        "User", "me", [message.CreatableRenewers("User", "you")], 1000
    )


def added_to_transaction(scene: Scene) -> Any:
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic(NAME, [0, 1])]
    transactions = [add_partitions_to_txn.AddPartitionsToTxnTransaction("tx", 1, 0, False, topics)]
    return add_partitions_to_txn.AddPartitionsToTxnRequest(transactions, "tx", 1, 0, topics)


def committed_in_transaction(scene: Scene) -> Any:
    partition = txn_offset_commit.TxnOffsetCommitRequestPartition(0, 1, 0, "text")
    topics = [txn_offset_commit.TxnOffsetCommitRequestTopic(NAME, scene.topic_id, [partition])]
    return txn_offset_commit.TxnOffsetCommitRequest("tx", "g", 1, 0, -1, "", None, topics)


def shared_fetch(scene: Scene) -> Any:
    topics = [share_fetch.FetchTopic(scene.topic_id, [share_fetch.FetchPartition(0)])]
    return share_fetch.ShareFetchRequest("g", "m", 0, 100, 1, topics=topics)


def share_state(module: Any, verb: str, what: str = "") -> Callable[[Scene], Any]:
    """Request of that module about the first partition."""

    def make(scene: Scene) -> Any:
        topic = getattr(module, f"{verb}State{what}Data")(scene.topic_id, [module.PartitionData(0)])
        return getattr(module, f"{verb}ShareGroupState{what}Request")("g", [topic])

    return make


NOT_ALLOWED = E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
ROWS: dict[int, Row] = {
    0: Row(produced, told=(NAME,)),
    1: Row(fetched, told=(NAME,)),
    2: Row(listed_offsets, told=(NAME,)),
    3: Row(
        lambda scene: metadata.MetadataRequest([metadata.MetadataRequestTopic(name=NAME)], True, True, True),
        told=(NAME,),
    ),
    8: Row(lambda scene: scene.commit(scene.new("committing")), told=(NAME,)),
    9: Row(fetched_offsets, told=(NAME,)),
    10: Row(
        lambda scene: find_coordinator.FindCoordinatorRequest("g", 0, ["g", "h"]),
        told=("g", "h"),
        told_since=4,
    ),
    11: Row(lambda scene: join(scene.new("joining"))),
    12: Row(beaten),
    13: Row(left),
    14: Row(lambda scene: sync(scene.joined("syncing"))),
    15: Row(lambda scene: describe_groups.DescribeGroupsRequest([scene.synced("described").group], True)),
    16: Row(lambda scene: list_groups.ListGroupsRequest([], ["classic"])),
    17: Row(lambda scene: sasl_handshake.SaslHandshakeRequest("PLAIN"), E.ILLEGAL_SASL_STATE),
    18: Row(lambda scene: api_versions.ApiVersionsRequest("sweep", "1")),
    19: Row(created),
    20: Row(deleted),
    21: Row(cut, told=(NAME,)),
    22: Row(lambda scene: init_producer_id.InitProducerIdRequest(None, 60_000)),
    23: Row(ended, told=(NAME,)),
    24: Row(added_to_transaction, E.INVALID_PRODUCER_ID_MAPPING, told=(NAME,)),
    25: Row(
        lambda scene: add_offsets_to_txn.AddOffsetsToTxnRequest("tx", 1, 0, "g"),
        E.INVALID_PRODUCER_ID_MAPPING,
    ),
    26: Row(lambda scene: end_txn.EndTxnRequest("tx", 1, 0, True), E.INVALID_PRODUCER_ID_MAPPING),
    27: Row(
        lambda scene: write_txn_markers.WriteTxnMarkersRequest(
            [
                write_txn_markers.WritableTxnMarker(
                    1, 0, True, [write_txn_markers.WritableTxnMarkerTopic(NAME, [0])]
                )
            ]
        ),
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        told=(NAME,),
    ),
    28: Row(committed_in_transaction, E.INVALID_PRODUCER_ID_MAPPING, told=(NAME,)),
    29: Row(
        lambda scene: describe_acls.DescribeAclsRequest(TOPIC, NAME, 3, "User:me", "*", 3, 3),
        E.SECURITY_DISABLED,
    ),
    30: Row(
        lambda scene: create_acls.CreateAclsRequest(
            [create_acls.AclCreation(TOPIC, NAME, 3, "User:me", "*", 3, 3)]
        ),
        E.SECURITY_DISABLED,
    ),
    31: Row(
        lambda scene: delete_acls.DeleteAclsRequest(
            [delete_acls.DeleteAclsFilter(TOPIC, NAME, 3, "User:me", "*", 3, 3)]
        ),
        E.SECURITY_DISABLED,
    ),
    32: Row(described_configs, told=(NAME,)),
    33: Row(replaced_configs),
    34: Row(moved_dirs, told=(NAME,)),
    35: Row(described_dirs, told=(NAME,)),
    36: Row(lambda scene: sasl_authenticate.SaslAuthenticateRequest(b"\0u\0p"), E.ILLEGAL_SASL_STATE),
    37: Row(grown),
    38: Row(tokens, NOT_ALLOWED),
    39: Row(lambda scene: renew_delegation_token.RenewDelegationTokenRequest(b"mac", 1000), NOT_ALLOWED),
    40: Row(lambda scene: expire_delegation_token.ExpireDelegationTokenRequest(b"mac", 1000), NOT_ALLOWED),
    41: Row(
        lambda scene: describe_delegation_token.DescribeDelegationTokenRequest(
            [describe_delegation_token.DescribeDelegationTokenOwner("User", "me")]
        ),
        NOT_ALLOWED,
    ),
    42: Row(lambda scene: delete_groups.DeleteGroupsRequest([scene.committed("deleted")])),
    43: Row(
        lambda scene: elect_leaders.ElectLeadersRequest(0, [elect_leaders.TopicPartitions(NAME, [0])]),
        E.ELECTION_NOT_NEEDED,
        told=(NAME,),
    ),
    44: Row(changed_configs),
    45: Row(reassigned, told=(NAME,)),
    46: Row(
        lambda scene: list_partition_reassignments.ListPartitionReassignmentsRequest(
            topics=[list_partition_reassignments.ListPartitionReassignmentsTopics(NAME, [0])]
        )
    ),
    47: Row(
        lambda scene: offset_delete.OffsetDeleteRequest(
            scene.committed("offsets"),
            [offset_delete.OffsetDeleteRequestTopic(NAME, [offset_delete.OffsetDeleteRequestPartition(0)])],
        )
    ),
    48: Row(
        lambda scene: describe_client_quotas.DescribeClientQuotasRequest(
            [describe_client_quotas.ComponentData("user", 0, "somebody")], True
        )
    ),
    49: Row(quotas, E.UNSUPPORTED_VERSION),
    50: Row(
        lambda scene: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            [describe_user_scram_credentials.UserName("one")]
        ),
        E.RESOURCE_NOT_FOUND,
    ),
    51: Row(scram, E.UNSUPPORTED_SASL_MECHANISM),
    55: Row(quorum, told=("__cluster_metadata",)),
    57: Row(features),
    60: Row(lambda scene: describe_cluster.DescribeClusterRequest(True, 1, True)),
    61: Row(
        lambda scene: describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest(NAME, [0])]
        )
    ),
    64: Row(lambda scene: unregister_broker.UnregisterBrokerRequest(99), E.BROKER_ID_NOT_REGISTERED),
    65: Row(
        lambda scene: describe_transactions.DescribeTransactionsRequest(["nobody's"]),
        E.TRANSACTIONAL_ID_NOT_FOUND,
    ),
    66: Row(lambda scene: list_transactions.ListTransactionsRequest(["Ongoing"], [7], 1000, "a.*")),
    68: Row(
        lambda scene: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            "newer",
            "member",
            0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[NAME],
            topic_partitions=[],
        ),
        E.UNSUPPORTED_VERSION,
    ),
    69: Row(
        lambda scene: consumer_group_describe.ConsumerGroupDescribeRequest(
            [scene.synced("newer").group, "nobody's"]
        ),
        E.GROUP_ID_NOT_FOUND,
        told=("nobody's",),
    ),
    74: Row(lambda scene: list_config_resources.ListConfigResourcesRequest([TOPIC, BROKER])),
    75: Row(
        lambda scene: describe_topic_partitions.DescribeTopicPartitionsRequest(
            [describe_topic_partitions.TopicRequest(NAME)], 1, describe_topic_partitions.Cursor(NAME, 0)
        )
    ),
    76: Row(
        lambda scene: share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m", 0, None, [NAME]),
        E.UNSUPPORTED_VERSION,
    ),
    77: Row(
        lambda scene: share_group_describe.ShareGroupDescribeRequest(["g"]),
        E.UNSUPPORTED_VERSION,
        told=("g",),
    ),
    78: Row(shared_fetch, E.UNSUPPORTED_VERSION),
    79: Row(
        lambda scene: share_acknowledge.ShareAcknowledgeRequest("g", "m", -1, False, []),
        E.UNSUPPORTED_VERSION,
    ),
    80: Row(
        lambda scene: add_raft_voter.AddRaftVoterRequest(None, 1000, 2, bytes(15) + b"2", []),
        E.UNSUPPORTED_VERSION,
    ),
    81: Row(
        lambda scene: remove_raft_voter.RemoveRaftVoterRequest(None, 2, bytes(15) + b"2"),
        E.UNSUPPORTED_VERSION,
    ),
    83: Row(share_state(initialize_share_group_state, "Initialize"), E.UNSUPPORTED_VERSION, told=(NAME,)),
    84: Row(share_state(read_share_group_state, "Read"), E.UNSUPPORTED_VERSION, told=(NAME,)),
    85: Row(share_state(write_share_group_state, "Write"), E.UNSUPPORTED_VERSION, told=(NAME,)),
    86: Row(share_state(delete_share_group_state, "Delete"), E.UNSUPPORTED_VERSION, told=(NAME,)),
    87: Row(
        share_state(read_share_group_state_summary, "Read", "Summary"), E.UNSUPPORTED_VERSION, told=(NAME,)
    ),
    88: Row(
        lambda scene: streams_group_heartbeat.StreamsGroupHeartbeatRequest("g", "m"), E.UNSUPPORTED_VERSION
    ),
    89: Row(
        lambda scene: streams_group_describe.StreamsGroupDescribeRequest(["g"]),
        E.UNSUPPORTED_VERSION,
        told=("g",),
    ),
    90: Row(
        lambda scene: describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
            [describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("g", None)]
        ),
        E.UNSUPPORTED_VERSION,
        told=("g",),
    ),
    91: Row(
        lambda scene: alter_share_group_offsets.AlterShareGroupOffsetsRequest("g", []), E.UNSUPPORTED_VERSION
    ),
    92: Row(
        lambda scene: delete_share_group_offsets.DeleteShareGroupOffsetsRequest("g", []),
        E.UNSUPPORTED_VERSION,
    ),
    93: Row(
        lambda scene: streams_group_topology_description_update.StreamsGroupTopologyDescriptionUpdateRequest(
            "g", "m"
        ),
        E.UNSUPPORTED_VERSION,
    ),
    94: Row(lambda scene: unregister_controller.UnregisterControllerRequest(7), E.UNSUPPORTED_VERSION),
}
# Versions whose answer is Kafka's own and another than the row's.
SPECIAL: dict[tuple[int, int], int] = {
    (11, 4): E.MEMBER_ID_REQUIRED,  # later ones name a static member, earlier ones need no second request
}
# Shown for the sake of librdkafka's older releases, and closed on (protocol/apis.py).
CLOSED = [(0, 0), (0, 1), (0, 2)]
