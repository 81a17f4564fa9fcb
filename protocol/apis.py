"""The list of APIs: key, name, versions, first flexible version, and on which listeners Kafka serves it.

The ranges are Kafka 4.4's. Keys 4 to 7 went with ZooKeeper. Keys from 501 up are private: broker to
controller, never advertised to clients, and no other broker's keys of those numbers.

Not here: what this broker answers (broker/handlers/__init__.py), the messages themselves (messages/, imported
when a type is first asked for, so that a start pays for nothing it does not serve).
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from millrace.protocol.declare import Versions

BROKER: Final = frozenset({"broker"})
CONTROLLER: Final = frozenset({"controller"})
BOTH: Final = BROKER | CONTROLLER

PRIVATE_KEY_MIN: Final = 501


@dataclass(frozen=True)
class Api:
    """One API. Its types live in messages/<name in snake case>.py as <name>Request and <name>Response."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int | None = None
    listeners: frozenset[str] = BROKER
    unstable_since: int | None = None  # versions from here on are served only where the operator allows them
    advertised_min: int | None = None  # where the range shown to clients starts below min_version

    @property
    def is_private(self) -> bool:
        return self.key >= PRIVATE_KEY_MIN

    @property
    def versions(self) -> Versions:
        return Versions(self.min_version, self.max_version, self.flexible_since)

    @property
    def max_stable_version(self) -> int:
        return self.max_version if self.unstable_since is None else self.unstable_since - 1

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    @property
    def module(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    @cached_property
    def request_type(self) -> type[Any]:
        return self._type("Request")

    @cached_property
    def response_type(self) -> type[Any]:
        return self._type("Response")

    def _type(self, suffix: str) -> type[Any]:
        module = importlib.import_module(f"millrace.protocol.messages.{self.module}")
        return cast("type[Any]", getattr(module, self.name + suffix))


KAFKA: tuple[Api, ...] = (
    # Versions 0-2 are refused, and yet shown: releases of librdkafka compress nothing when the range starts
    # above 0.
    Api(0, "Produce", 3, 13, 9, advertised_min=0),
    Api(1, "Fetch", 4, 18, 12, BOTH),
    Api(2, "ListOffsets", 1, 11, 6),
    Api(3, "Metadata", 0, 13, 9),
    Api(8, "OffsetCommit", 2, 10, 8),
    Api(9, "OffsetFetch", 1, 10, 6),
    Api(10, "FindCoordinator", 0, 6, 3),
    Api(11, "JoinGroup", 0, 9, 6),
    Api(12, "Heartbeat", 0, 4, 4),
    Api(13, "LeaveGroup", 0, 5, 4),
    Api(14, "SyncGroup", 0, 5, 4),
    Api(15, "DescribeGroups", 0, 6, 5),
    Api(16, "ListGroups", 0, 5, 3),
    Api(17, "SaslHandshake", 0, 1, None, BOTH),
    Api(18, "ApiVersions", 0, 5, 3, BOTH),
    Api(19, "CreateTopics", 2, 7, 5, BOTH),
    Api(20, "DeleteTopics", 1, 6, 4, BOTH),
    Api(21, "DeleteRecords", 0, 2, 2),
    Api(22, "InitProducerId", 0, 6, 2, unstable_since=6),
    Api(23, "OffsetForLeaderEpoch", 2, 4, 4),
    Api(24, "AddPartitionsToTxn", 0, 5, 3),
    Api(25, "AddOffsetsToTxn", 0, 4, 3),
    Api(26, "EndTxn", 0, 5, 3),
    Api(27, "WriteTxnMarkers", 1, 2, 1),
    Api(28, "TxnOffsetCommit", 0, 6, 3),
    Api(29, "DescribeAcls", 1, 3, 2, BOTH),
    Api(30, "CreateAcls", 1, 3, 2, BOTH),
    Api(31, "DeleteAcls", 1, 3, 2, BOTH),
    Api(32, "DescribeConfigs", 1, 4, 4, BOTH),
    Api(33, "AlterConfigs", 0, 2, 2, BOTH),
    Api(34, "AlterReplicaLogDirs", 1, 2, 2),
    Api(35, "DescribeLogDirs", 1, 5, 2),
    Api(36, "SaslAuthenticate", 0, 2, 2, BOTH),
    Api(37, "CreatePartitions", 0, 3, 2, BOTH),
    Api(38, "CreateDelegationToken", 1, 3, 2, BOTH),
    Api(39, "RenewDelegationToken", 1, 2, 2, BOTH),
    Api(40, "ExpireDelegationToken", 1, 2, 2, BOTH),
    Api(41, "DescribeDelegationToken", 1, 3, 2, BOTH),
    Api(42, "DeleteGroups", 0, 3, 2),
    Api(43, "ElectLeaders", 0, 2, 2, BOTH),
    Api(44, "IncrementalAlterConfigs", 0, 1, 1, BOTH),
    Api(45, "AlterPartitionReassignments", 0, 1, 0, BOTH),
    Api(46, "ListPartitionReassignments", 0, 0, 0, BOTH),
    Api(47, "OffsetDelete", 0, 0),
    Api(48, "DescribeClientQuotas", 0, 1, 1),
    Api(49, "AlterClientQuotas", 0, 1, 1, BOTH),
    Api(50, "DescribeUserScramCredentials", 0, 0, 0, BOTH),
    Api(51, "AlterUserScramCredentials", 0, 0, 0, BOTH),
    Api(52, "Vote", 0, 2, 0, CONTROLLER),
    Api(53, "BeginQuorumEpoch", 0, 1, 1, CONTROLLER),
    Api(54, "EndQuorumEpoch", 0, 1, 1, CONTROLLER),
    Api(55, "DescribeQuorum", 0, 2, 0, BOTH),
    Api(56, "AlterPartition", 2, 3, 0, CONTROLLER),
    Api(57, "UpdateFeatures", 0, 2, 0, BOTH),
    Api(58, "Envelope", 0, 0, 0, CONTROLLER),
    Api(59, "FetchSnapshot", 0, 1, 0, CONTROLLER),
    Api(60, "DescribeCluster", 0, 2, 0, BOTH),
    Api(61, "DescribeProducers", 0, 0, 0),
    Api(62, "BrokerRegistration", 0, 4, 0, CONTROLLER),
    Api(63, "BrokerHeartbeat", 0, 2, 0, CONTROLLER),
    Api(64, "UnregisterBroker", 0, 0, 0, BOTH),
    Api(65, "DescribeTransactions", 0, 0, 0),
    Api(66, "ListTransactions", 0, 2, 0),
    Api(67, "AllocateProducerIds", 0, 0, 0, CONTROLLER),
    Api(68, "ConsumerGroupHeartbeat", 0, 1, 0),
    Api(69, "ConsumerGroupDescribe", 0, 1, 0),
    Api(70, "ControllerRegistration", 0, 0, 0, CONTROLLER),
    Api(71, "GetTelemetrySubscriptions", 0, 0, 0),
    Api(72, "PushTelemetry", 0, 0, 0),
    Api(73, "AssignReplicasToDirs", 0, 0, 0, CONTROLLER),
    Api(74, "ListConfigResources", 0, 1, 0),
    Api(75, "DescribeTopicPartitions", 0, 0, 0),
    Api(76, "ShareGroupHeartbeat", 1, 1, 0),
    Api(77, "ShareGroupDescribe", 1, 1, 0),
    Api(78, "ShareFetch", 1, 2, 0),
    Api(79, "ShareAcknowledge", 1, 2, 0),
    Api(80, "AddRaftVoter", 0, 1, 0, BOTH),
    Api(81, "RemoveRaftVoter", 0, 0, 0, BOTH),
    Api(82, "UpdateRaftVoter", 0, 0, 0, CONTROLLER),
    Api(83, "InitializeShareGroupState", 0, 0, 0),
    Api(84, "ReadShareGroupState", 0, 0, 0),
    Api(85, "WriteShareGroupState", 0, 1, 0),
    Api(86, "DeleteShareGroupState", 0, 0, 0),
    Api(87, "ReadShareGroupStateSummary", 0, 1, 0),
    Api(88, "StreamsGroupHeartbeat", 0, 1, 0),
    Api(89, "StreamsGroupDescribe", 0, 1, 0),
    Api(90, "DescribeShareGroupOffsets", 0, 1, 0),
    Api(91, "AlterShareGroupOffsets", 0, 0, 0),
    Api(92, "DeleteShareGroupOffsets", 0, 0, 0),
    Api(93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0),
    Api(94, "UnregisterController", 0, 0, 0, BOTH),
)

# Each is declared beside the others under messages/.
PRIVATE: tuple[Api, ...] = (
    Api(501, "OpenPartitionStreams", 0, 0, 0, CONTROLLER),
    Api(502, "GetOpeningStreams", 0, 0, 0, CONTROLLER),
    Api(503, "TrimStreams", 0, 0, 0, CONTROLLER),
    Api(504, "CloseStreams", 0, 0, 0, CONTROLLER),
    Api(505, "PrepareObjects", 0, 0, 0, CONTROLLER),
    Api(506, "CommitUpload", 0, 0, 0, CONTROLLER),
    Api(507, "RemoveObjects", 0, 0, 0, CONTROLLER),
    Api(508, "CommitCompaction", 0, 0, 0, CONTROLLER),
    Api(521, "ClaimNode", 0, 0, 0, CONTROLLER),
    Api(522, "RegisterNodeWal", 0, 0, 0, CONTROLLER),
    Api(523, "AcceptWalLoss", 0, 0, 0, CONTROLLER),
    Api(524, "ForwardCommand", 0, 0, 0, CONTROLLER),
    Api(525, "BeginFailover", 0, 0, 0, CONTROLLER),
    Api(526, "EndFailover", 0, 0, 0, CONTROLLER),
    Api(527, "AwaitBackup", 0, 0, 0, CONTROLLER),
    Api(528, "ReportLoad", 0, 0, 0, CONTROLLER),
    Api(529, "SealStreams", 0, 0, 0, CONTROLLER),
    Api(530, "ReadOwedRange", 0, 0, 0, CONTROLLER),  # served by brokers, and shown to none
)

ALL: tuple[Api, ...] = KAFKA + PRIVATE
API: dict[int, Api] = {api.key: api for api in ALL}
NAMED: dict[str, Api] = {api.name: api for api in ALL}


def api_of(message: object) -> Api:
    """The API that a request or response belongs to."""
    return NAMED[type(message).__name__.removesuffix("Request").removesuffix("Response")]
