"""FindCoordinator (key 10): which broker coordinates a group, a transactional id or a share partition.

Up to version 3 one key, from 4 on many.
"""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int8, Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class FindCoordinatorRequest:
    VERSIONS = Versions(0, 6, flexible=3)

    key: str = wire("", until=3)
    key_type: Int8 = wire(
        0, since=1
    )  # 0 group, 1 transactional id, 2 share partition (group:topic id:partition)
    coordinator_keys: list[str] = array(since=4)


@dataclass(slots=True)
class Coordinator:
    key: str = ""
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


@dataclass(slots=True)
class FindCoordinatorResponse:
    VERSIONS = Versions(0, 6, flexible=3)

    throttle_time_ms: Int32 = wire(0, since=1, ignorable=True)
    error_code: Int16 = wire(0, until=3)  # COORDINATOR_NOT_AVAILABLE while the internal topic is being made
    error_message: str | None = wire("", since=1, until=3, ignorable=True)
    node_id: Int32 = wire(0, until=3)
    host: str = wire("", until=3)
    port: Int32 = wire(0, until=3)
    coordinators: list[Coordinator] = array(since=4)
