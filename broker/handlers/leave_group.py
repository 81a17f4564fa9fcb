"""LeaveGroup (key 13): members leave a classic group; from version 3 on several at once, also on an
administrator's word.

Versions 0 to 5. Ignored: `reason`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

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
from millrace.runtime.scheduling.chunks import in_chunks

MEMBERS_VERSION = 3
MEMBERS_PER_CHUNK = 1_000


class LeaveGroup:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> Outcome[LeaveGroupResponse] | Coroutine[Any, Any, LeaveGroupResponse]:
        if not request.group_id:
            return _refusal(ErrorCode.INVALID_GROUP_ID)
        if context.api_version < MEMBERS_VERSION:
            return self._ask(context, request.group_id, [MemberIdentity(request.member_id)])
        if len(request.members) > MEMBERS_PER_CHUNK:
            return self._leave_in_chunks(context, request)
        return self._ask(context, request.group_id, request.members)

    async def _leave_in_chunks(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse:
        """Those that leave in one chunk leave together; others are answered between."""
        whole = LeaveGroupResponse()
        async for members in in_chunks(request.members, MEMBERS_PER_CHUNK, context.work):
            outcome = self._ask(context, request.group_id, members)
            response = await outcome if isinstance(outcome, asyncio.Future) else outcome
            if response.error_code:
                return response
            whole.members += response.members
        return whole

    def _ask(
        self, context: RequestContext, group_id: str, members: Sequence[MemberIdentity]
    ) -> Outcome[LeaveGroupResponse]:
        version = context.api_version
        return self._coordinator.ask(
            group_id, lambda shard: self._leave(shard, version, group_id, members), _refusal
        )

    def _leave(
        self, shard: GroupShard, version: int, group_id: str, members: Sequence[MemberIdentity]
    ) -> Outcome[LeaveGroupResponse]:
        leaving = [(member.member_id, member.group_instance_id) for member in members]
        codes, decision = shard.machine.on_leave(group_id, leaving, shard.now())
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
