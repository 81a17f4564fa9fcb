"""BrokerRegistration (key 62): a broker makes itself known to the controller and is given an epoch.

Not here: what the epoch fences (kraft/tables/brokers.py).
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import NO_UUID, Int16, Int32, Int64, UInt16, Uuid, Versions, array, wire


@dataclass(slots=True)
class Listener:
    name: str = ""
    host: str = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


@dataclass(slots=True)
class Feature:
    name: str = ""
    min_supported_version: Int16 = 0  # up to version 3 features with a minimum of 0 are left out
    max_supported_version: Int16 = 0


@dataclass(slots=True)
class BrokerRegistrationRequest:
    VERSIONS = Versions(0, 4, flexible=0)

    broker_id: Int32 = 0
    cluster_id: str = ""
    incarnation_id: Uuid = NO_UUID  # of this run of the process
    listeners: list[Listener] = array()
    features: list[Feature] = array()
    rack: str | None = ""
    is_migrating_zk_broker: bool = wire(False, since=1)  # of the past; never set
    log_dirs: list[Uuid] = array(since=2, ignorable=True)
    previous_broker_epoch: Int64 = wire(
        -1, since=3, ignorable=True
    )  # of a clean shutdown before; -1: there was none


@dataclass(slots=True)
class BrokerRegistrationResponse:
    VERSIONS = Versions(0, 4, flexible=0)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1  # offset of the registration in the metadata log; -1: refused
