"""One row an API: in what order its requests are begun and answered, what they may weigh, who may ask, and
what they are counted against.

The course of a request (connection.py, dispatch.py):

    frame -> admit (memory) -> authenticated? -> decode -> authorise -> quota -> handle -> encode -> send

Authentication, authorization and quotas have nothing to ask yet: their gates (gates.py) let everything pass.
Not here: versions (protocol/apis.py), which handler serves an API (handlers/__init__.py). Pure.

Columns are Kafka's where it has them: permissions as its documentation lists them for each protocol message
(Security, Authorization and ACLs), of the resource by which a request as a whole is judged; a handler judges
what it names (topics, groups) one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeAlias

from millrace.protocol.apis import ALL
from millrace.protocol.dataclass import dataclass


class Order(Enum):
    """When a request may begin, beside others of its connection."""

    FREE = auto()  # as soon as it is there
    # likewise; nothing behind it begins before it is done, since it changes what a later request can see, as
    # in Kafka
    BARRIER = auto()
    # when nothing ahead of it waits: its answer may be large, or a long time coming, and could not leave
    # before
    HEAD = auto()


class Answer(Enum):
    """How large it may be."""

    BRIEF = auto()  # about as small as its request: never waits for clients that do not read
    SHARED = auto()  # as large as the memory for replies allows: Fetch
    PLAIN = auto()  # may be larger than its request
    WIDE = (
        auto()
    )  # may be large where the request is small: encoded in chunks, and nothing behind it is begun meanwhile


class Work(Enum):
    """What a request weighs while it is decoded and served."""

    RECORDS = auto()  # carries records: charged as bulk, of any size that socket.request.max.bytes allows
    WHOLE = auto()  # decoded in one go, but for one that holds many elements
    # names things by the thousand: from CHUNKED_FROM_BYTES on decoded in chunks, few at a time until they are
    # answered
    CHUNKED = auto()
    KEPT = auto()  # what it brings is a group's from then on


class Resource(Enum):
    """Kafka's resource types; NAMED: what the request names."""

    CLUSTER = auto()
    TOPIC = auto()
    GROUP = auto()
    TRANSACTIONAL_ID = auto()
    DELEGATION_TOKEN = auto()
    NAMED = auto()


class Operation(Enum):
    """Kafka's operations."""

    READ = auto()
    WRITE = auto()
    CREATE = auto()
    DELETE = auto()
    ALTER = auto()
    DESCRIBE = auto()
    CLUSTER_ACTION = auto()
    DESCRIBE_CONFIGS = auto()
    ALTER_CONFIGS = auto()
    IDEMPOTENT_WRITE = auto()


class Quota(Enum):
    """What a request is counted against beside the time that it takes (request_percentage)."""

    TIME = auto()  # that alone
    NONE = auto()  # not even that
    PRODUCE = auto()
    FETCH = auto()
    MUTATION = auto()  # of metadata: controller_mutation_rate


Permission: TypeAlias = tuple[Resource, Operation]


@dataclass(frozen=True, slots=True)
class Traits:
    """`permission` None: anybody may ask. `is_open`: also who has not authenticated. `is_forwarded`: the
    controller answers it."""

    key: int
    order: Order
    work: Work
    answer: Answer
    permission: Permission | None
    quota: Quota = Quota.TIME
    is_open: bool = False
    is_forwarded: bool = False


FREE, BARRIER, HEAD = Order
BRIEF, SHARED, PLAIN, WIDE = Answer
RECORDS, WHOLE, CHUNKED, KEPT = Work
TIME, NONE, BYTES_IN, BYTES_OUT, MUTATION = Quota
_KEYS: Final = {api.name: api.key for api in ALL}


def _row(
    name: str,
    order: Order,
    work: Work,
    answer: Answer,
    permission: str = "",
    quota: Quota = TIME,
    *,
    is_open: bool = False,
    is_forwarded: bool = False,
) -> Traits:
    """`permission`: RESOURCE OPERATION, or nothing."""
    resource, _, operation = permission.partition(" ")
    needed = (Resource[resource], Operation[operation]) if permission else None
    return Traits(_KEYS[name], order, work, answer, needed, quota, is_open, is_forwarded)


_ROWS: Final = (
    _row("Produce", FREE, RECORDS, BRIEF, "TOPIC WRITE", BYTES_IN),
    _row("Fetch", HEAD, WHOLE, SHARED, "TOPIC READ", BYTES_OUT),
    _row("ListOffsets", HEAD, CHUNKED, PLAIN, "TOPIC DESCRIBE"),
    _row("Metadata", HEAD, CHUNKED, WIDE, "TOPIC DESCRIBE"),
    _row("OffsetCommit", BARRIER, CHUNKED, BRIEF, "GROUP READ"),
    _row("OffsetFetch", HEAD, CHUNKED, WIDE, "GROUP DESCRIBE"),
    _row("FindCoordinator", FREE, CHUNKED, BRIEF, "GROUP DESCRIBE"),
    _row("JoinGroup", HEAD, KEPT, BRIEF, "GROUP READ"),
    _row("Heartbeat", FREE, WHOLE, BRIEF, "GROUP READ"),
    _row("LeaveGroup", FREE, CHUNKED, BRIEF, "GROUP READ"),
    _row("SyncGroup", HEAD, KEPT, BRIEF, "GROUP READ"),
    _row("DescribeGroups", HEAD, CHUNKED, WIDE, "GROUP DESCRIBE"),
    _row("ListGroups", HEAD, WHOLE, WIDE, "CLUSTER DESCRIBE"),
    _row("SaslHandshake", FREE, WHOLE, BRIEF, quota=NONE, is_open=True),
    _row("ApiVersions", FREE, WHOLE, BRIEF, quota=NONE, is_open=True),
    _row("CreateTopics", BARRIER, CHUNKED, PLAIN, "CLUSTER CREATE", MUTATION, is_forwarded=True),
    _row("DeleteTopics", BARRIER, CHUNKED, BRIEF, "TOPIC DELETE", MUTATION, is_forwarded=True),
    _row("DeleteRecords", BARRIER, CHUNKED, BRIEF, "TOPIC DELETE"),
    _row("InitProducerId", FREE, WHOLE, BRIEF, "CLUSTER IDEMPOTENT_WRITE"),
    _row("OffsetForLeaderEpoch", HEAD, CHUNKED, WIDE, "TOPIC DESCRIBE"),
    _row("AddPartitionsToTxn", FREE, WHOLE, BRIEF, "TRANSACTIONAL_ID WRITE"),
    _row("AddOffsetsToTxn", FREE, WHOLE, BRIEF, "TRANSACTIONAL_ID WRITE"),
    _row("EndTxn", FREE, WHOLE, BRIEF, "TRANSACTIONAL_ID WRITE"),
    _row("WriteTxnMarkers", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("TxnOffsetCommit", FREE, WHOLE, BRIEF, "TRANSACTIONAL_ID WRITE"),
    _row("DescribeAcls", FREE, WHOLE, PLAIN, "CLUSTER DESCRIBE"),
    _row("CreateAcls", FREE, WHOLE, PLAIN, "CLUSTER ALTER"),
    _row("DeleteAcls", FREE, WHOLE, PLAIN, "CLUSTER ALTER"),
    _row("DescribeConfigs", HEAD, CHUNKED, WIDE, "NAMED DESCRIBE_CONFIGS"),
    _row("AlterConfigs", BARRIER, CHUNKED, PLAIN, "NAMED ALTER_CONFIGS", is_forwarded=True),
    _row("AlterReplicaLogDirs", HEAD, CHUNKED, WIDE, "CLUSTER ALTER"),
    _row("DescribeLogDirs", HEAD, CHUNKED, WIDE, "CLUSTER DESCRIBE"),
    _row("SaslAuthenticate", FREE, WHOLE, BRIEF, quota=NONE, is_open=True),
    _row("CreatePartitions", BARRIER, CHUNKED, PLAIN, "TOPIC ALTER", MUTATION, is_forwarded=True),
    _row("CreateDelegationToken", FREE, WHOLE, PLAIN, "DELEGATION_TOKEN CREATE"),
    _row("RenewDelegationToken", FREE, WHOLE, PLAIN, "DELEGATION_TOKEN ALTER"),
    _row("ExpireDelegationToken", FREE, WHOLE, PLAIN, "DELEGATION_TOKEN ALTER"),
    _row("DescribeDelegationToken", FREE, WHOLE, PLAIN, "DELEGATION_TOKEN DESCRIBE"),
    _row("DeleteGroups", BARRIER, CHUNKED, PLAIN, "GROUP DELETE"),
    _row("ElectLeaders", HEAD, CHUNKED, PLAIN, "CLUSTER ALTER", is_forwarded=True),
    _row("IncrementalAlterConfigs", BARRIER, CHUNKED, PLAIN, "NAMED ALTER_CONFIGS", is_forwarded=True),
    _row("AlterPartitionReassignments", HEAD, CHUNKED, PLAIN, "CLUSTER ALTER", is_forwarded=True),
    _row("ListPartitionReassignments", FREE, WHOLE, PLAIN, "CLUSTER DESCRIBE", is_forwarded=True),
    _row("OffsetDelete", BARRIER, CHUNKED, PLAIN, "GROUP DELETE"),
    _row("DescribeClientQuotas", FREE, WHOLE, PLAIN, "CLUSTER DESCRIBE_CONFIGS"),
    _row("AlterClientQuotas", FREE, WHOLE, PLAIN, "CLUSTER ALTER_CONFIGS"),
    _row("DescribeUserScramCredentials", FREE, WHOLE, PLAIN, "CLUSTER DESCRIBE"),
    _row("AlterUserScramCredentials", FREE, WHOLE, PLAIN, "CLUSTER ALTER"),
    _row("DescribeQuorum", FREE, WHOLE, PLAIN, "CLUSTER DESCRIBE", is_forwarded=True),
    _row("UpdateFeatures", FREE, WHOLE, PLAIN, "CLUSTER ALTER", is_forwarded=True),
    _row("DescribeCluster", FREE, WHOLE, PLAIN, "CLUSTER DESCRIBE"),
    _row("DescribeProducers", HEAD, CHUNKED, WIDE, "TOPIC READ"),
    _row("UnregisterBroker", FREE, WHOLE, PLAIN, "CLUSTER ALTER", is_forwarded=True),
    _row("DescribeTransactions", FREE, WHOLE, PLAIN, "TRANSACTIONAL_ID DESCRIBE"),
    _row("ListTransactions", FREE, WHOLE, PLAIN, "TRANSACTIONAL_ID DESCRIBE"),
    _row("ConsumerGroupHeartbeat", FREE, WHOLE, BRIEF, "GROUP READ"),
    _row("ConsumerGroupDescribe", FREE, WHOLE, PLAIN, "GROUP DESCRIBE"),
    _row("ListConfigResources", HEAD, WHOLE, WIDE, "CLUSTER DESCRIBE_CONFIGS"),
    _row("DescribeTopicPartitions", HEAD, CHUNKED, WIDE, "TOPIC DESCRIBE"),
    _row("ShareGroupHeartbeat", FREE, WHOLE, PLAIN, "GROUP READ"),
    _row("ShareGroupDescribe", FREE, WHOLE, PLAIN, "GROUP DESCRIBE"),
    _row("ShareFetch", FREE, WHOLE, PLAIN, "GROUP READ"),
    _row("ShareAcknowledge", FREE, WHOLE, PLAIN, "GROUP READ"),
    _row("AddRaftVoter", FREE, WHOLE, PLAIN, "CLUSTER ALTER", is_forwarded=True),
    _row("RemoveRaftVoter", FREE, WHOLE, PLAIN, "CLUSTER ALTER", is_forwarded=True),
    _row("InitializeShareGroupState", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("ReadShareGroupState", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("WriteShareGroupState", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("DeleteShareGroupState", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("ReadShareGroupStateSummary", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("StreamsGroupHeartbeat", FREE, WHOLE, PLAIN, "GROUP READ"),
    _row("StreamsGroupDescribe", FREE, WHOLE, PLAIN, "GROUP DESCRIBE"),
    _row("DescribeShareGroupOffsets", FREE, WHOLE, PLAIN, "GROUP DESCRIBE"),
    _row("AlterShareGroupOffsets", FREE, WHOLE, PLAIN, "GROUP READ"),
    _row("DeleteShareGroupOffsets", FREE, WHOLE, PLAIN, "GROUP DELETE"),
    _row("StreamsGroupTopologyDescriptionUpdate", FREE, WHOLE, PLAIN, "GROUP READ"),
    _row("UnregisterController", FREE, WHOLE, PLAIN, "CLUSTER ALTER"),
    # Of a controller listener alone.
    _row("Vote", FREE, WHOLE, BRIEF, "CLUSTER CLUSTER_ACTION"),
    _row("BeginQuorumEpoch", FREE, WHOLE, BRIEF, "CLUSTER CLUSTER_ACTION"),
    _row("EndQuorumEpoch", FREE, WHOLE, BRIEF, "CLUSTER CLUSTER_ACTION"),
    _row("FetchSnapshot", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("UpdateRaftVoter", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    _row("ForwardCommand", FREE, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
    # Of other brokers.
    _row("ReadOwedRange", HEAD, WHOLE, PLAIN, "CLUSTER CLUSTER_ACTION"),
)
TRAITS: Final = {traits.key: traits for traits in _ROWS}


def keys(is_asked: Callable[[Traits], bool]) -> frozenset[int]:
    """Of all APIs of which it is true: for questions that are asked of a frame before its API is looked
    up."""
    return frozenset(key for key, traits in TRAITS.items() if is_asked(traits))
