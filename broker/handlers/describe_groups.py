"""DescribeGroups (key 15): state and members of classic groups; assignments and metadata of those that are
stable.

Versions 0 to 6. No field is ignored.

Each group is shown as it was at one moment, and once; many at several: they are looked at in chunks.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable
from typing import Any

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.group import Group
from millrace.broker.coordinators.groups.members import GroupState
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, all_of, unchanged
from millrace.broker.requests.operations import GROUP_OPERATIONS
from millrace.broker.requests.repeated import unmet
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from millrace.runtime.scheduling.chunks import in_chunks

GROUPS_PER_CHUNK = 100
NOT_FOUND_VERSION = 6  # an unknown group is an error; before, it is one that is Dead (KIP-1043)


class DescribeGroups:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> Coroutine[Any, Any, DescribeGroupsResponse]:
        return self._describe_all(context, request)

    async def _describe_all(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        outcomes: list[Outcome[DescribedGroup]] = []
        met: set[Hashable] = set()
        async for part in in_chunks(request.groups, GROUPS_PER_CHUNK, context.work):
            outcomes += [self._describe(group_id, context.api_version) for group_id in unmet(part, met, str)]
        described = await all_of(outcomes, context.work)
        if request.include_authorized_operations:
            for group in described:
                if not group.error_code:
                    group.authorized_operations = GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=described)

    def _describe(self, group_id: str, version: int) -> Outcome[DescribedGroup]:
        def describe(shard: GroupShard) -> Outcome[DescribedGroup]:
            group = shard.machine.groups.get(group_id)
            described = _unknown(group_id, version) if group is None else _described(group)
            deferred: DeferredResponse[DescribedGroup] = DeferredResponse(unchanged, refuse)
            shard.when_durable(deferred, described)
            return deferred.outcome()

        def refuse(code: int) -> DescribedGroup:
            return DescribedGroup(error_code=int(code), group_id=group_id)

        return self._coordinator.ask(group_id, describe, refuse)

    def refuse(self, request: DescribeGroupsRequest, code: int) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(
            groups=[DescribedGroup(error_code=int(code), group_id=group_id) for group_id in request.groups]
        )


def _unknown(group_id: str, version: int) -> DescribedGroup:
    described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if version >= NOT_FOUND_VERSION:
        described.error_code = int(ErrorCode.GROUP_ID_NOT_FOUND)
        described.error_message = f"Group {group_id} not found."
    return described


def _described(group: Group) -> DescribedGroup:
    is_stable = group.state is GroupState.STABLE
    members = [
        DescribedGroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol) if is_stable else b"",
            member.assignment,
        )
        for member in group.members.values()
    ]
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=members,
    )
