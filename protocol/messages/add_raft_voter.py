"""AddRaftVoter (key 80): adds a voter to the metadata quorum (KIP-853)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, UInt16, Uuid, Versions, array, wire


@dataclass(slots=True)
class Listener:
    name: str = ""
    host: str = ""
    port: UInt16 = 0


@dataclass(slots=True)
class AddRaftVoterRequest:
    VERSIONS = Versions(0, 1, flexible=0)

    cluster_id: str | None = ""
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID
    listeners: list[Listener] = array()
    ack_when_committed: bool = wire(True, since=1)  # False: answered when the leader has written it


@dataclass(slots=True)
class AddRaftVoterResponse:
    VERSIONS = Versions(0, 1, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
