"""DeleteGroups (key 42): groups without members go, with their offsets."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from millrace.broker.coordinators.coordinator import GroupCoordinator
from millrace.broker.coordinators.shard_loop import Outcome, ShardLoop
from millrace.broker.coordinators.tickets import Ticket, all_of, as_it_is
from millrace.broker.request import RequestContext
from millrace.broker.slices import in_slices
from millrace.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

GROUPS_A_SLICE = 100


class DeleteGroups:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> Coroutine[Any, Any, DeleteGroupsResponse]:
        return self._delete_all(request)

    async def _delete_all(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        outcomes: list[Outcome[DeletableGroupResult]] = []
        async for part in in_slices(dict.fromkeys(request.groups_names), GROUPS_A_SLICE):
            outcomes += [self._delete(group_id) for group_id in part]
        return DeleteGroupsResponse(results=await all_of(outcomes))

    def _delete(self, group_id: str) -> Outcome[DeletableGroupResult]:
        def delete(shard: ShardLoop) -> Outcome[DeletableGroupResult]:
            code, decision = shard.shard.delete_group(group_id, shard.now())
            if code:
                return refuse(code)
            shard.carry_out(decision)
            ticket: Ticket[DeletableGroupResult] = Ticket(as_it_is, refuse)
            shard.when_durable(ticket, DeletableGroupResult(group_id))
            return ticket.outcome()

        def refuse(code: int) -> DeletableGroupResult:
            return DeletableGroupResult(group_id, int(code))

        return self._coordinator.ask(group_id, delete, refuse)

    def refuse(self, request: DeleteGroupsRequest, code: int) -> DeleteGroupsResponse:
        group_ids = dict.fromkeys(request.groups_names)
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id, int(code)) for group_id in group_ids])
