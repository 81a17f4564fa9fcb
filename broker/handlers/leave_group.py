"""LeaveGroup (key 13): members leave a classic group; from version 3 on several at once, also on an
administrator's word.

Versions 0 to 5. Ignored: `reason`.
"""

from __future__ import annotations

import asyncio

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, unchanged
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)

MEMBERS_VERSION = 3


class LeaveGroup:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
        if not request.group_id:
            return _refusal(ErrorCode.INVALID_GROUP_ID)
        version = context.api_version
        return self._coordinator.ask(
            request.group_id, lambda shard: self._leave(shard, version, request), _refusal
        )

    def _leave(
        self, shard: GroupShard, version: int, request: LeaveGroupRequest
    ) -> Outcome[LeaveGroupResponse]:
        members = request.members if version >= MEMBERS_VERSION else [MemberIdentity(request.member_id)]
        leaving = [(member.member_id, member.group_instance_id) for member in members]
        codes, decision = shard.machine.on_leave(request.group_id, leaving, shard.now())
        if version >= MEMBERS_VERSION:
            response = LeaveGroupResponse(
                members=[
                    MemberResponse(member_id, instance_id, int(code))
                    for (member_id, instance_id), code in zip(leaving, codes, strict=True)
                ]
            )
        else:
            response = _refusal(codes[0])
        shard.carry_out(decision)
        if not decision.records:
            return response
        deferred: DeferredResponse[LeaveGroupResponse] = DeferredResponse(unchanged, _refusal)
        shard.when_durable(deferred, response)
        return deferred.outcome()


def _refusal(code: int) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=int(code))
