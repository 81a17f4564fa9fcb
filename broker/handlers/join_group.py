"""JoinGroup (key 11): a member enters its group, or enters it again; answered when the group's next
generation is known.

Versions 0 to 9. Ignored: `reason`.

Not here: when that is (coordinators/groups/group.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.members import JoinAnswer, JoinRequest
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome
from millrace.broker.requests.request import Encoded, RequestContext
from millrace.broker.state_memory import THROTTLE_MS
from millrace.protocol.apis import API
from millrace.protocol.codec import encode_response_yielding
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from millrace.runtime.scheduling.yield_queue import run_yielding

KNOWN_ID_VERSION = 4  # a dynamic member comes back with the id that it is given (KIP-394)
NULL_PROTOCOL_VERSION = 7
NAME_BYTES_MAX = 32_000  # a member id is a name and a UUID, and must be a string of the protocol
# of a member, each looked at in one piece, and once more for each other member; clients have a handful
PROTOCOLS_MAX = 1000
MEMBERS_AT_ONCE = 500  # that an answer may tell in one piece
JOIN_GROUP = 11
SKIP_ASSIGNMENT_VERSION = 9  # a static leader is told not to assign (KIP-814)


class JoinGroup:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        if not request.group_id:
            return _refusal(context, request, ErrorCode.INVALID_GROUP_ID)
        name = request.group_instance_id or context.client_id
        if len(name.encode()) > NAME_BYTES_MAX or len(request.protocols) > PROTOCOLS_MAX:
            return _refusal(context, request, ErrorCode.INVALID_REQUEST)
        settings = self._coordinator.settings
        if (
            not settings.session_timeout_min_ms
            <= request.session_timeout_ms
            <= settings.session_timeout_max_ms
        ):
            return _refusal(context, request, ErrorCode.INVALID_SESSION_TIMEOUT)
        return self._coordinator.ask(
            request.group_id,
            lambda shard: self._join(shard, context, request),
            lambda code: _refusal(context, request, code),
        )

    def _join(
        self, shard: GroupShard, context: RequestContext, request: JoinGroupRequest
    ) -> Outcome[JoinGroupResponse]:
        version = context.api_version
        deferred = DeferredJoin(context, lambda code: _refusal(context, request, code))
        rebalance_ms = request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms
        joining = JoinRequest(
            request.member_id,
            request.group_instance_id,
            context.client_id,
            f"/{context.connection.peer_host}",  # as Java writes an address
            request.protocol_type,
            [(protocol.name, protocol.metadata) for protocol in request.protocols],
            rebalance_ms,
            request.session_timeout_ms,
            version >= KNOWN_ID_VERSION,
            version >= SKIP_ASSIGNMENT_VERSION,
        )
        group_id = request.group_id
        decision = shard.machine.on_join(group_id, joining, deferred, shard.now())
        shard.carry_out(decision)
        return deferred.outcome()

    def refuse(self, request: JoinGroupRequest, code: int) -> JoinGroupResponse:
        """In a form that every version can carry."""
        return JoinGroupResponse(error_code=int(code), member_id=request.member_id)


class DeferredJoin(DeferredResponse[Any]):
    """The leader of many members is told all of them, and may ask for that again and again: such an answer
    is made in chunks, a few at a time, when readers have room for it (broker/requests/work.py)."""

    def __init__(self, context: RequestContext, refusal: Callable[[int], JoinGroupResponse]) -> None:
        super().__init__(lambda answer: _response(answer, context.api_version), refusal)
        self._context = context
        self._encoding: asyncio.Task[None] | None = None

    def complete(self, answer: JoinAnswer) -> None:
        if len(answer.members) <= MEMBERS_AT_ONCE:
            super().complete(answer)
        elif self._encoding is None:
            self._encoding = asyncio.get_running_loop().create_task(
                self._encode(answer), name="encode members"
            )

    async def _encode(self, answer: JoinAnswer) -> None:
        context = self._context
        work = context.work
        try:
            await work.begin()
            steps = encode_response_yielding(
                API[JOIN_GROUP], context.api_version, context.correlation_id, self._form(answer)
            )
            self._resolve(Encoded(await run_yielding(steps, work.yield_now)))
        except Exception as error:
            if self._future is not None and not self._future.done():
                self._future.set_exception(error)
        finally:
            work.end()


def _refusal(context: RequestContext, request: JoinGroupRequest, code: int) -> JoinGroupResponse:
    return _response(JoinAnswer(code, request.member_id), context.api_version)


def _response(answer: JoinAnswer, version: int) -> JoinGroupResponse:
    protocol = answer.protocol
    return JoinGroupResponse(
        error_code=int(answer.error),
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name="" if protocol is None and version < NULL_PROTOCOL_VERSION else protocol,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        throttle_time_ms=THROTTLE_MS if answer.is_short_of_memory else 0,
        members=[JoinGroupResponseMember(*member) for member in answer.members],
    )
