"""ListGroups (key 16): the groups that this broker coordinates."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class ListGroupsRequest:
    VERSIONS = Versions(0, 5, flexible=3)

    states_filter: list[str] = array(since=4)  # empty: any
    types_filter: list[str] = array(since=5)  # empty: any; classic, consumer, share, streams


@dataclass(slots=True)
class ListedGroup:
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = wire("", since=4, ignorable=True)
    group_type: str = wire("", since=5, ignorable=True)


@dataclass(slots=True)
class ListGroupsResponse:
    VERSIONS = Versions(0, 5, flexible=3)

    throttle_time_ms: Int32 = wire(0, since=1, ignorable=True)
    error_code: Int16 = 0
    groups: list[ListedGroup] = array()
