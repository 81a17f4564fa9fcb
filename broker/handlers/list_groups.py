"""ListGroups (key 16): the groups that this broker coordinates. Shards that nobody asked for yet are loaded
for it.

Versions 0 to 5. No field is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import chain
from operator import attrgetter
from typing import Any

from millrace.broker.coordinators.groups.coordinator import GroupCoordinator, GroupShard
from millrace.broker.coordinators.groups.group import Group
from millrace.broker.coordinators.groups.members import GroupState
from millrace.broker.coordinators.runtime.deferred import DeferredResponse, Outcome, all_of, unchanged
from millrace.broker.requests.request import RequestContext
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millrace.runtime.scheduling.chunks import in_chunks

CLASSIC = "classic"
SHARDS_PER_CHUNK = 5
STATES_PER_CHUNK = 5_000

GROUPS_PER_CHUNK = 1_000

Seen = tuple[str, str | None, GroupState]  # of a group: its id, its protocol type, its state
Part = tuple[int, list[Seen]]  # one shard's: an error code, its groups at one moment
_seen: Callable[[Group], Seen] = attrgetter("group_id", "protocol_type", "state")  # 0.1 us: all in one go


class ListGroups:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    def handle(
        self, context: RequestContext, request: ListGroupsRequest
    ) -> Coroutine[Any, Any, ListGroupsResponse]:
        return self._list(context, request)

    async def _list(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        states: set[str] = set()
        async for part in in_chunks(request.states_filter, STATES_PER_CHUNK, context.work):
            states.update(state.strip().lower() for state in part)
        if request.types_filter and CLASSIC not in map(str.lower, request.types_filter):
            return ListGroupsResponse()

        def act(shard: GroupShard) -> Outcome[Part]:
            deferred: DeferredResponse[Part] = DeferredResponse(unchanged, _refusal)
            shard.when_durable(deferred, (ErrorCode.NONE, list(map(_seen, shard.machine.groups.values()))))
            return deferred.outcome()

        outcomes: list[Outcome[Part]] = []
        async for indexes in in_chunks(self._coordinator.shards_with_data(), SHARDS_PER_CHUNK, context.work):
            outcomes += [self._coordinator.ask_shard(index, act, _refusal) for index in indexes]
        parts = await all_of(outcomes, context.work)
        # A partition that is led elsewhere by now is another broker's to list.
        code = next((code for code, _ in parts if code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)), 0)
        if code:
            return ListGroupsResponse(error_code=int(code))
        groups: list[ListedGroup] = []
        every = chain.from_iterable(seen for _, seen in parts)
        async for some in in_chunks(every, GROUPS_PER_CHUNK, context.work):
            groups += [_listed(*seen) for seen in some if not states or seen[2].value.lower() in states]
        return ListGroupsResponse(groups=groups)


def _listed(group_id: str, protocol_type: str | None, state: GroupState) -> ListedGroup:
    return ListedGroup(group_id, protocol_type or "", state.value, CLASSIC)


def _refusal(code: int) -> Part:
    return code, []
