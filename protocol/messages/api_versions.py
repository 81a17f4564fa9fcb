"""ApiVersions (key 18): what a broker speaks; the first request on a connection.

The response's header is never tagged, and a request of a version we do not know is answered in version 0, so
that both sides can agree on anything at all (KIP-511).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Int64, Versions, array, wire


@dataclass(slots=True)
class ApiVersionsRequest:
    """From version 5 on the client says whom it believes it is talking to (KIP-1242)."""

    VERSIONS = Versions(0, 5, flexible=3)

    client_software_name: str = wire("", since=3, ignorable=True)
    client_software_version: str = wire("", since=3, ignorable=True)
    cluster_id: str | None = wire(None, since=5, ignorable=True)  # another cluster's: REBOOTSTRAP_REQUIRED
    node_id: Int32 = wire(-1, since=5, ignorable=True)


@dataclass(slots=True)
class ApiVersion:
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(slots=True)
class SupportedFeatureKey:
    name: str = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


@dataclass(slots=True)
class FinalizedFeatureKey:
    name: str = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


@dataclass(slots=True)
class ApiVersionsResponse:
    VERSIONS = Versions(0, 5, flexible=3)

    error_code: Int16 = 0  # UNSUPPORTED_VERSION, INVALID_REQUEST, REBOOTSTRAP_REQUIRED
    api_keys: list[ApiVersion] = array()
    throttle_time_ms: Int32 = wire(0, since=1, ignorable=True)
    # up to version 3 without those whose minimum is 0
    supported_features: list[SupportedFeatureKey] = array(since=3, tag=0, ignorable=True)
    # -1: unknown; offset of the metadata log otherwise
    finalized_features_epoch: Int64 = wire(-1, since=3, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = array(since=3, tag=2, ignorable=True)
    zk_migration_ready: bool = wire(
        False, since=3, tag=3, ignorable=True
    )  # of controllers of the past; never set
