"""ControllerRegistration (key 70): a controller makes itself known to the leader of the quorum (KIP-919)."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, UInt16, Uuid, Versions, array


@dataclass(slots=True)
class Listener:
    name: str = ""
    host: str = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


@dataclass(slots=True)
class Feature:
    name: str = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@dataclass(slots=True)
class ControllerRegistrationRequest:
    VERSIONS = Versions(0, 0, flexible=0)

    controller_id: Int32 = 0
    incarnation_id: Uuid = NO_UUID
    zk_migration_ready: bool = False
    listeners: list[Listener] = array()
    features: list[Feature] = array()


@dataclass(slots=True)
class ControllerRegistrationResponse:
    VERSIONS = Versions(0, 0, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
