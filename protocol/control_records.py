"""The values of control records in the metadata log: who leads an epoch, where a snapshot begins and ends,
who votes.

A control record's key says which of these its value is (records.py: ControlType). The first field of each is
its own version, as Kafka has it. Not here: when they are written (kraft/).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import (
    NO_UUID,
    Int16,
    Int32,
    Int64,
    UInt16,
    Uuid,
    Versions,
    array,
    struct,
    wire,
)


@dataclass(slots=True)
class ChangeVoter:
    voter_id: Int32 = 0
    voter_directory_id: Uuid = wire(NO_UUID, since=1)


@dataclass(slots=True)
class LeaderChangeMessage:
    """The first record of every epoch. Nobody writes version 1; earlier releases of this project did, at
    kraft.version 1, and no controller of Kafka can read a log with one."""

    VERSIONS = Versions(0, 1, flexible=0)

    version: Int16 = 0
    leader_id: Int32 = 0
    voters: list[ChangeVoter] = array()
    granting_voters: list[ChangeVoter] = array()


@dataclass(slots=True)
class SnapshotHeaderRecord:
    VERSIONS = Versions(0, 0, flexible=0)

    version: Int16 = 0
    last_contained_log_timestamp: Int64 = 0


@dataclass(slots=True)
class SnapshotFooterRecord:
    """The last record of a snapshot that is whole."""

    VERSIONS = Versions(0, 0, flexible=0)

    version: Int16 = 0


@dataclass(slots=True)
class KRaftVersionRecord:
    VERSIONS = Versions(0, 0, flexible=0)

    version: Int16 = 0
    kraft_version: Int16 = wire(0)


@dataclass(slots=True)
class VoterEndpoint:
    name: str = ""
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class KRaftVersionFeature:
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@dataclass(slots=True)
class VotersVoter:
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID
    endpoints: list[VoterEndpoint] = array()
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature)


@dataclass(slots=True)
class VotersRecord:
    VERSIONS = Versions(0, 0, flexible=0)

    version: Int16 = 0
    voters: list[VotersVoter] = array()
