"""DeleteGroups (key 42): groups without members go, with their offsets.

Versions 0 to 3. No field is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, all_of, unchanged
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from millrace.runtime.scheduling.chunks import in_chunks
from millrace.runtime.scheduling.yield_queue import YieldQueue

GROUPS_PER_CHUNK = 100
OFFSETS_PER_CHUNK = 1000  # of one group


class DeleteGroups:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> Coroutine[Any, Any, DeleteGroupsResponse]:
        return self._delete_all(context, request)

    async def _delete_all(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        outcomes: list[Outcome[DeletableGroupResult]] = []
        async for part in in_chunks(dict.fromkeys(request.groups_names), GROUPS_PER_CHUNK, context.work):
            outcomes += [self._delete(group_id, context.work.yield_queue) for group_id in part]
        return DeleteGroupsResponse(results=await all_of(outcomes, context.work))

    def _delete(self, group_id: str, yield_queue: YieldQueue) -> Outcome[DeletableGroupResult]:
        def delete(shard: GroupShard) -> Outcome[DeletableGroupResult]:
            if shard.machine.offsets.count_of(group_id) > OFFSETS_PER_CHUNK:
                work = self._delete_wide(shard, group_id, yield_queue)
                return asyncio.get_running_loop().create_task(work, name=f"deletion of group {group_id}")
            return _delete_rest(shard, group_id)

        return self._coordinator.ask(group_id, delete, partial(_refused, group_id))

    async def _delete_wide(
        self, shard: GroupShard, group_id: str, yield_queue: YieldQueue
    ) -> DeletableGroupResult:
        """Deletes the offsets some at a time, each part durable before the next, then the group with the last
        of them. After a crash between two parts the group is there with the offsets that are left, and the
        client was not answered."""
        code = shard.machine.refusal_of_group_delete(group_id)
        if code:
            return _refused(group_id, code)
        self._coordinator.deleting.add(group_id)
        try:
            while not shard.is_ended and shard.machine.offsets.count_of(group_id) > OFFSETS_PER_CHUNK:
                shard.carry_out(shard.machine.delete_some_offsets(group_id, OFFSETS_PER_CHUNK, shard.now()))
                await shard.drained()
                await yield_queue.yield_now()
            if shard.is_ended:
                return _refused(group_id, ErrorCode.NOT_COORDINATOR)
            outcome = _delete_rest(shard, group_id)
        finally:
            self._coordinator.deleting.discard(group_id)
        return await outcome if asyncio.isfuture(outcome) else outcome

    def refuse(self, request: DeleteGroupsRequest, code: int) -> DeleteGroupsResponse:
        group_ids = dict.fromkeys(request.groups_names)
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id, int(code)) for group_id in group_ids]
        )


def _delete_rest(shard: GroupShard, group_id: str) -> Outcome[DeletableGroupResult]:
    code, decision = shard.machine.delete_group(group_id, shard.now())
    if code:
        return _refused(group_id, code)
    shard.carry_out(decision)
    deferred: DeferredResponse[DeletableGroupResult] = DeferredResponse(
        unchanged, partial(_refused, group_id)
    )
    shard.when_durable(deferred, DeletableGroupResult(group_id))
    return deferred.outcome()


def _refused(group_id: str, code: int) -> DeletableGroupResult:
    return DeletableGroupResult(group_id, int(code))
