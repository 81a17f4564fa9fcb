"""Heartbeat (key 12): a member of a classic group says that it lives, and learns of a rebalance. Always
answered at once.

Versions 0 to 4. No field is ignored.
"""

from __future__ import annotations

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


class Heartbeat:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        if not request.group_id:
            return HeartbeatResponse(error_code=int(ErrorCode.INVALID_GROUP_ID))
        code = self._coordinator.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return HeartbeatResponse(error_code=int(code))
