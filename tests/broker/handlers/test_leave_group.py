"""LeaveGroup: one member up to version 2, several from 3 on, and administrators' removal of static ones."""

from __future__ import annotations

import asyncio

import pytest

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.broker.coordinators.build import GroupFixture, join_request, run
from tests.s3stream.build import World


@pytest.mark.parametrize("version", range(6))
def test_leaving(version: int) -> None:
    """A member goes, once; its group is empty in the log when it is told."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g")

        async def leave(group_id: str, member_id: str) -> int:
            members = [MemberIdentity(member_id)]
            request = (
                LeaveGroupRequest(group_id, "", members)
                if version >= 3
                else LeaveGroupRequest(group_id, member_id)
            )
            response = await fixture.ask_for(13, version, request)
            if version < 3 or not group_id:
                return response.error_code
            assert response.error_code == 0
            (member,) = response.members
            assert member.member_id == member_id
            return member.error_code

        assert await leave("", "m") == ErrorCode.INVALID_GROUP_ID
        assert await leave("other", "m") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await leave("g", "m") == ErrorCode.UNKNOWN_MEMBER_ID
        assert await leave("g", joined.member_id) == 0
        (_, last) = (await fixture.log())[-1]
        assert (last.generation, last.members) == (2, [])
        assert await leave("g", joined.member_id) == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario())


@pytest.mark.parametrize("version", [3, 4, 5])
def test_several_leave_at_once(version: int) -> None:
    """Each has its own code; by instance id alone, by both, by the wrong one; and there is one rebalance."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        first = await fixture.ask_for(11, 5, join_request("g", group_instance_id="i"))
        waiting = [fixture.later(11, 5, join_request("g", group_instance_id=name)) for name in ("j", "k")]
        await asyncio.sleep(0.1)
        await fixture.ask_for(11, 5, join_request("g", first.member_id, group_instance_id="i"))
        second, _ = [await each for each in waiting]
        members = [
            MemberIdentity("", "k", "gone"),
            MemberIdentity(second.member_id, "j"),
            MemberIdentity(second.member_id, "i"),
            MemberIdentity("", "stranger"),
            MemberIdentity("", None),
        ]
        response = await fixture.ask_for(13, version, LeaveGroupRequest("g", "", members))
        assert [(m.member_id, m.group_instance_id, m.error_code) for m in response.members] == [
            ("", "k", 0),
            (second.member_id, "j", 0),
            (second.member_id, "i", ErrorCode.FENCED_INSTANCE_ID),
            ("", "stranger", ErrorCode.UNKNOWN_MEMBER_ID),
            ("", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ]
        again = await fixture.ask_for(11, 5, join_request("g", first.member_id, group_instance_id="i"))
        assert (again.generation_id, len(again.members)) == (3, 1)

    run(scenario())


def test_the_last_one_is_told_when_the_log_says_so() -> None:
    """The empty generation is durable before the answer."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(is_auto=False)).start()
        joining = fixture.later(11, 3, join_request("g"))
        for _ in range(50):
            await asyncio.sleep(0)
            fixture.world.wal.confirm()
        leaving = fixture.later(13, 1, LeaveGroupRequest("g", joining.result().member_id))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not leaving.done()
        fixture.world.wal.confirm()
        assert (await leaving).error_code == 0

    run(scenario())
