"""Members of a classic consumer group, as actors: they join, are given partitions, beat, leave and come
again.

The leader gives each partition to one member. What a member is told goes into the history: a partition has
one owner a generation (invariant 11), also when the coordinator came back from its log in between, so no
generation may be given twice with another meaning.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.heartbeat import HeartbeatRequest
from millrace.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from millrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace.runtime.errors import Unavailable
from tests.sim import asking
from tests.sim.asking import PASSING, PAUSE_S
from tests.sim.workload import Actor

AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
BEAT_S = 0.03


class Member(Actor):
    member_id = ""

    async def run(self, group: str, partitions: int, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                await self._take_part(group, partitions, is_over)
            except Unavailable:
                await asyncio.sleep(PAUSE_S)

    async def _take_part(self, group: str, partitions: int, is_over: Callable[[], bool]) -> None:
        """One generation, from joining to the end of it. Raises Unavailable."""
        joined = await self._join(group)
        if joined is None:
            return
        shares: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id:
            names = sorted(member.member_id for member in joined.members)
            for place, name in enumerate(names):
                share = [index for index in range(partitions) if index % len(names) == place]
                shares.append(SyncGroupRequestAssignment(name, json.dumps(share).encode()))
        request = SyncGroupRequest(
            group, joined.generation_id, self.member_id, None, "consumer", "any", shares
        )
        synced = await self.client.ask(14, request)
        if not self._is_fine(synced.error_code):
            return
        for index in json.loads(bytes(synced.assignment) or b"[]"):
            self.history.on_owned(group, joined.generation_id, index, self.member_id)
        await self._beat(group, joined.generation_id, is_over)

    async def _join(self, group: str) -> JoinGroupResponse | None:
        await asking.find_coordinator(self.client, group)
        request = JoinGroupRequest(group, 6_000, 3_000, self.member_id, None, "consumer")
        request.protocols = [JoinGroupRequestProtocol("any", b"")]
        joined = await self.client.ask(11, request)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return None
        if not self._is_fine(joined.error_code):
            await asyncio.sleep(PAUSE_S)
            return None
        self.member_id = joined.member_id
        assert isinstance(joined, JoinGroupResponse)
        return joined

    async def _beat(self, group: str, generation: int, is_over: Callable[[], bool]) -> None:
        """Until the group wants to be joined anew, or the member has had enough."""
        for _ in range(3 + self.rand.below(12)):
            await asyncio.sleep(BEAT_S)
            beat = await self.client.ask(12, HeartbeatRequest(group, generation, self.member_id))
            if is_over() or not self._is_fine(beat.error_code):
                return
        await self.client.ask(13, LeaveGroupRequest(group, members=[MemberIdentity(self.member_id)]))
        self.member_id = ""

    def _is_fine(self, code: Any) -> bool:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif code and code not in (*AGAIN, *PASSING):
            self.history.find("member-refused", f"{self.client.name} {ErrorCode(code).name}")
        return not code
