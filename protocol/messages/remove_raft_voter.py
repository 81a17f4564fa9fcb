"""RemoveRaftVoter (key 81): removes a voter from the metadata quorum (KIP-853)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Uuid, Versions


@dataclass(slots=True)
class RemoveRaftVoterRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    cluster_id: str | None = ""
    voter_id: Int32 = 0
    voter_directory_id: Uuid = NO_UUID


@dataclass(slots=True)
class RemoveRaftVoterResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
