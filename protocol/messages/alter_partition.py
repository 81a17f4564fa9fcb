"""AlterPartition (key 56): a leader tells the controller of another in-sync set. Of one replica here, and so
never sent by our brokers."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int8, Int16, Int32, Int64, Uuid, Versions, array


@dataclass(slots=True)
class BrokerState:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1  # -1: not checked


@dataclass(slots=True)
class AlterPartitionRequestPartitionData:
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: list[Int32] = array(until=2)
    new_isr_with_epochs: list[BrokerState] = array(since=3)
    leader_recovery_state: Int8 = 0  # 1: recovering from an unclean election
    partition_epoch: Int32 = 0  # what the sender believes; another one is refused


@dataclass(slots=True)
class AlterPartitionRequestTopicData:
    topic_id: Uuid = NO_UUID
    partitions: list[AlterPartitionRequestPartitionData] = array()


@dataclass(slots=True)
class AlterPartitionRequest:
    VERSIONS = Versions(2, 3, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[AlterPartitionRequestTopicData] = array()


@dataclass(slots=True)
class AlterPartitionResponsePartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = array()
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32 = 0


@dataclass(slots=True)
class AlterPartitionResponseTopicData:
    topic_id: Uuid = NO_UUID
    partitions: list[AlterPartitionResponsePartitionData] = array()


@dataclass(slots=True)
class AlterPartitionResponse:
    VERSIONS = Versions(2, 3, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[AlterPartitionResponseTopicData] = array()
