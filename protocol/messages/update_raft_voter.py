"""UpdateRaftVoter (key 82): a voter of the metadata quorum tells of its new addresses (KIP-853)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, UInt16, Uuid, Versions, array, struct


@dataclass(slots=True)
class Listener:
    name: str = ""
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class KRaftVersionFeature:
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@dataclass(slots=True)
class UpdateRaftVoterRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    cluster_id: str | None = ""
    current_leader_epoch: Int32 = 0  # another than that of who is asked is refused
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID
    listeners: list[Listener] = array()
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature)


@dataclass(slots=True)
class CurrentLeader:
    leader_id: Int32 = -1  # -1: unknown
    leader_epoch: Int32 = -1
    host: str = ""
    port: Int32 = 0


@dataclass(slots=True)
class UpdateRaftVoterResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    current_leader: CurrentLeader = struct(CurrentLeader, tag=0)
