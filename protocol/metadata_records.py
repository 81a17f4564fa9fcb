"""Kafka's own records of the metadata log, declared like messages. Ours, from key 501 on, are in
stream_records.py.

Each class has KEY, the record's number, and VERSIONS. In the log a record stands in an envelope
(kraft/image/records.py): frame version, key and version as unsigned varints, then the body declared here. All
versions are flexible.

Not here: which version is written (kraft/image/records.py), what a record does to the image
(kraft/image/delta.py). Kept true: numbers, field order and tags are Kafka's, so that Kafka's tools read the
log.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import (
    NO_UUID,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt16,
    Uuid,
    Versions,
    array,
    wire,
)


@dataclass(slots=True)
class RecordEndpoint:
    """A listener of a registered broker or controller.

    `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.
    """

    name: str = ""
    host: str = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


@dataclass(slots=True)
class RecordFeature:
    name: str = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@dataclass(slots=True)
class RegisterBrokerRecord:
    """A broker process took this id. Its epoch is the offset of this record."""

    KEY = 0
    VERSIONS = Versions(0, 4, flexible=0)

    broker_id: Int32 = 0
    is_migrating_zk_broker: bool = wire(False, since=2)
    incarnation_id: Uuid = NO_UUID
    broker_epoch: Int64 = 0
    end_points: list[RecordEndpoint] = array()
    features: list[RecordFeature] = array()
    rack: str | None = ""
    fenced: bool = True
    in_controlled_shutdown: bool = wire(False, since=1)
    log_dirs: list[Uuid] = array(since=3, tag=0)
    cordoned_log_dirs: list[Uuid] | None = wire(None, since=4, tag=1)


@dataclass(slots=True)
class UnregisterBrokerRecord:
    KEY = 1
    VERSIONS = Versions(0, 0, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


@dataclass(slots=True)
class TopicRecord:
    KEY = 2
    VERSIONS = Versions(0, 0, flexible=0)

    name: str = ""
    topic_id: Uuid = NO_UUID


@dataclass(slots=True)
class PartitionRecord:
    """A partition as it now is, whole. `leader` -1: none. The preferred replica comes first."""

    KEY = 3
    VERSIONS = Versions(0, 2, flexible=0)

    partition_id: Int32 = -1
    topic_id: Uuid = NO_UUID
    replicas: list[Int32] = array()
    isr: list[Int32] = array()
    removing_replicas: list[Int32] = array()
    adding_replicas: list[Int32] = array()
    leader: Int32 = -1
    leader_recovery_state: Int8 = wire(0, tag=0)
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: list[Uuid] = array(since=1)
    eligible_leader_replicas: list[Int32] | None = wire(None, since=2, tag=1)
    last_known_elr: list[Int32] | None = wire(None, since=2, tag=2)


@dataclass(slots=True)
class ConfigRecord:
    """One key of one resource; a null value removes it.

    Types: 2 topic, 4 broker ("" for all brokers), 16 client metrics, 32 group.
    """

    KEY = 4
    VERSIONS = Versions(0, 0, flexible=0)

    resource_type: Int8 = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = ""


@dataclass(slots=True)
class PartitionChangeRecord:
    """What changed of a partition: null, or -2 for the leader, leaves a field as it was.

    A leader that is given raises the leader epoch by one, any change the partition epoch.
    """

    KEY = 5
    VERSIONS = Versions(0, 2, flexible=0)

    partition_id: Int32 = -1
    topic_id: Uuid = NO_UUID
    isr: list[Int32] | None = wire(None, tag=0)
    leader: Int32 = wire(-2, tag=1)
    replicas: list[Int32] | None = wire(None, tag=2)
    removing_replicas: list[Int32] | None = wire(None, tag=3)
    adding_replicas: list[Int32] | None = wire(None, tag=4)
    leader_recovery_state: Int8 = wire(-1, tag=5)
    directories: list[Uuid] | None = wire(None, since=1, tag=8)
    eligible_leader_replicas: list[Int32] | None = wire(None, since=2, tag=6)
    last_known_elr: list[Int32] | None = wire(None, since=2, tag=7)


@dataclass(slots=True)
class FenceBrokerRecord:
    KEY = 7
    VERSIONS = Versions(0, 0, flexible=0)

    id: Int32 = 0
    epoch: Int64 = 0


@dataclass(slots=True)
class UnfenceBrokerRecord:
    KEY = 8
    VERSIONS = Versions(0, 0, flexible=0)

    id: Int32 = 0
    epoch: Int64 = 0


@dataclass(slots=True)
class RemoveTopicRecord:
    """The topic, its partitions and its configuration go."""

    KEY = 9
    VERSIONS = Versions(0, 0, flexible=0)

    topic_id: Uuid = NO_UUID


@dataclass(slots=True)
class DelegationTokenRecord:
    KEY = 10
    VERSIONS = Versions(0, 0, flexible=0)

    owner: str = ""
    requester: str = ""
    renewers: list[str] = array()
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: str = ""


@dataclass(slots=True)
class UserScramCredentialRecord:
    KEY = 11
    VERSIONS = Versions(0, 0, flexible=0)

    name: str = ""
    mechanism: Int8 = 0
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: Int32 = 0


@dataclass(slots=True)
class FeatureLevelRecord:
    """A feature's finalized level; 0 removes it. A log's first is metadata.version, which says how the rest
    is read."""

    KEY = 12
    VERSIONS = Versions(0, 0, flexible=0)

    name: str = ""
    feature_level: Int16 = 0


@dataclass(slots=True)
class ClientQuotaEntity:
    entity_type: str = ""
    entity_name: str | None = ""


@dataclass(slots=True)
class ClientQuotaRecord:
    KEY = 14
    VERSIONS = Versions(0, 0, flexible=0)

    entity: list[ClientQuotaEntity] = array()
    key: str = ""
    value: Float64 = 0.0
    remove: bool = False


@dataclass(slots=True)
class ProducerIdsRecord:
    """A broker took the block of producer ids that ends before `next_producer_id`."""

    KEY = 15
    VERSIONS = Versions(0, 0, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@dataclass(slots=True)
class BrokerRegistrationChangeRecord:
    """`fenced`: -1 unfenced, 0 no change, 1 fenced. `in_controlled_shutdown`: 1 entered it."""

    KEY = 17
    VERSIONS = Versions(0, 3, flexible=0)

    broker_id: Int32 = 0
    broker_epoch: Int64 = 0
    fenced: Int8 = wire(0, tag=0)
    in_controlled_shutdown: Int8 = wire(0, since=1, tag=1)
    log_dirs: list[Uuid] = array(since=2, tag=2)
    cordoned_log_dirs: list[Uuid] | None = wire(None, since=3, tag=3)


@dataclass(slots=True)
class AccessControlEntryRecord:
    KEY = 18
    VERSIONS = Versions(0, 0, flexible=0)

    id: Uuid = NO_UUID
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 0
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@dataclass(slots=True)
class RemoveAccessControlEntryRecord:
    KEY = 19
    VERSIONS = Versions(0, 0, flexible=0)

    id: Uuid = NO_UUID


@dataclass(slots=True)
class NoOpRecord:
    KEY = 20
    VERSIONS = Versions(0, 0, flexible=0)


@dataclass(slots=True)
class ZkMigrationStateRecord:
    KEY = 21
    VERSIONS = Versions(0, 0, flexible=0)

    zk_migration_state: Int8 = 0


@dataclass(slots=True)
class RemoveUserScramCredentialRecord:
    KEY = 22
    VERSIONS = Versions(0, 0, flexible=0)

    name: str = ""
    mechanism: Int8 = 0


@dataclass(slots=True)
class BeginTransactionRecord:
    KEY = 23
    VERSIONS = Versions(0, 0, flexible=0)

    name: str | None = wire(None, tag=0)


@dataclass(slots=True)
class EndTransactionRecord:
    KEY = 24
    VERSIONS = Versions(0, 0, flexible=0)


@dataclass(slots=True)
class AbortTransactionRecord:
    KEY = 25
    VERSIONS = Versions(0, 0, flexible=0)

    reason: str | None = wire(None, tag=0)


@dataclass(slots=True)
class RemoveDelegationTokenRecord:
    KEY = 26
    VERSIONS = Versions(0, 0, flexible=0)

    token_id: str = ""


@dataclass(slots=True)
class RegisterControllerRecord:
    KEY = 27
    VERSIONS = Versions(0, 0, flexible=0)

    controller_id: Int32 = 0
    incarnation_id: Uuid = NO_UUID
    zk_migration_ready: bool = False
    end_points: list[RecordEndpoint] = array()
    features: list[RecordFeature] = array()


@dataclass(slots=True)
class ClearElrRecord:
    KEY = 28
    VERSIONS = Versions(0, 0, flexible=0)

    topic_name: str = ""


@dataclass(slots=True)
class UnregisterControllerRecord:
    KEY = 29
    VERSIONS = Versions(0, 0, flexible=0)

    controller_id: Int32 = 0


METADATA_RECORDS: tuple[type, ...] = (
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    PartitionRecord,
    ConfigRecord,
    PartitionChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    RemoveTopicRecord,
    DelegationTokenRecord,
    UserScramCredentialRecord,
    FeatureLevelRecord,
    ClientQuotaRecord,
    ProducerIdsRecord,
    BrokerRegistrationChangeRecord,
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    NoOpRecord,
    ZkMigrationStateRecord,
    RemoveUserScramCredentialRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    AbortTransactionRecord,
    RemoveDelegationTokenRecord,
    RegisterControllerRecord,
    ClearElrRecord,
    UnregisterControllerRecord,
)
