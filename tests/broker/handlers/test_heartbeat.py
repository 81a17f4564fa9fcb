"""Heartbeat: every version, every code, always at once."""

from __future__ import annotations

import asyncio

import pytest

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.broker.coordinators.build import GroupFixture, join_request, run


@pytest.mark.parametrize("version", range(5))
def test_codes(version: int) -> None:
    """Well in its generation, in another one not, and told when a rebalance begins; never a future."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g")

        def beat(group_id: str = "g", generation: int = 1, member_id: str = joined.member_id) -> int:
            response = fixture.call(12, version, HeartbeatRequest(group_id, generation, member_id))
            assert isinstance(response, HeartbeatResponse)
            return response.error_code

        assert beat() == 0
        assert beat(generation=2) == ErrorCode.ILLEGAL_GENERATION
        assert beat(member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
        assert beat(group_id="other") == ErrorCode.UNKNOWN_MEMBER_ID
        assert beat(group_id="") == ErrorCode.INVALID_GROUP_ID
        fixture.later(11, 3, join_request("g"))
        await asyncio.sleep(0.1)
        assert beat() == ErrorCode.REBALANCE_IN_PROGRESS
        await fixture.join("g", "c", joined.member_id)
        assert beat(generation=2) == 0
        assert beat() == ErrorCode.ILLEGAL_GENERATION

    run(scenario())


@pytest.mark.parametrize("version", [3, 4])
def test_static_members(version: int) -> None:
    """An instance id must be the member's; one that another has taken is fenced."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.ask_for(11, 5, join_request("g", group_instance_id="i"))

        def beat(instance_id: str | None, member_id: str = joined.member_id) -> int:
            return fixture.call(12, version, HeartbeatRequest("g", 1, member_id, instance_id)).error_code

        assert (beat("i"), beat(None)) == (0, 0)
        assert beat("other") == ErrorCode.UNKNOWN_MEMBER_ID
        assert beat("i", "stranger") == ErrorCode.FENCED_INSTANCE_ID

    run(scenario())


def test_without_a_coordinator() -> None:
    """No topic, or a partition that another broker leads."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=0).start()
        assert (
            fixture.call(12, 4, HeartbeatRequest("g", 1, "m")).error_code
            == ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        fixture.make_topic("__consumer_offsets", 1, leader=2)
        assert fixture.call(12, 4, HeartbeatRequest("g", 1, "m")).error_code == ErrorCode.NOT_COORDINATOR

    run(scenario())
