"""SyncGroup (key 14): the leader hands in the assignments of a generation, every member gets its own once
they are durable.

Versions 0 to 5. No field is ignored.
"""

from __future__ import annotations

import asyncio

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.members import SyncAnswer, SyncRequest
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome
from millrace.broker.requests.request import RequestContext
from millrace.broker.state_memory import THROTTLE_MS
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

PROTOCOL_VERSION = 5  # protocol type and name must be there (KIP-559)


class SyncGroup:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        has_protocol = request.protocol_type is not None and request.protocol_name is not None
        if context.api_version >= PROTOCOL_VERSION and not has_protocol:
            return _refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if not request.group_id:
            return _refusal(ErrorCode.INVALID_GROUP_ID)
        return self._coordinator.ask(request.group_id, lambda shard: self._sync(shard, request), _refusal)

    def _sync(self, shard: GroupShard, request: SyncGroupRequest) -> Outcome[SyncGroupResponse]:
        deferred = DeferredSync(_response, _refusal)
        syncing = SyncRequest(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {each.member_id: each.assignment for each in request.assignments},
        )
        group_id = request.group_id
        decision = shard.machine.on_sync(group_id, syncing, deferred, shard.now())
        shard.carry_out(decision)
        return deferred.outcome()


class DeferredSync(DeferredResponse[SyncGroupResponse]):
    """One who is refused for want of memory has to wait a while before it joins again. It is told so, and
    answered that late too: librdkafka takes no notice of a throttle time, and would come back at once, for
    ever."""

    def complete(self, answer: SyncAnswer) -> None:
        if answer.is_short_of_memory:
            asyncio.get_running_loop().call_later(THROTTLE_MS / 1000, super().complete, answer)
        else:
            super().complete(answer)


def _response(answer: SyncAnswer) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=int(answer.error),
        throttle_time_ms=THROTTLE_MS if answer.is_short_of_memory else 0,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


def _refusal(code: int) -> SyncGroupResponse:
    """Clients give up at COORDINATOR_LOAD_IN_PROGRESS here, so they are told to join again, as Kafka did up
    to 3.x: a join is repeated until there is an answer."""
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        code = ErrorCode.REBALANCE_IN_PROGRESS
    return SyncGroupResponse(error_code=int(code))
