"""DeleteGroups (key 42): deletes groups that have no members, with their offsets."""

from __future__ import annotations

from millrace.protocol.dataclass import dataclass
from millrace.protocol.declare import Int16, Int32, Versions, array, wire


@dataclass(slots=True)
class DeleteGroupsRequest:
    VERSIONS = Versions(0, 3, flexible=2)

    groups_names: list[str] = array()


@dataclass(slots=True)
class DeletableGroupResult:
    group_id: str = ""
    error_code: Int16 = 0  # NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, GROUP_DELETION_FAILED
    error_message: str | None = wire(None, since=3, ignorable=True)


@dataclass(slots=True)
class DeleteGroupsResponse:
    VERSIONS = Versions(0, 3, flexible=2)

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = array()
