"""DeleteGroups: every version, each group with its own code, across shards."""

from __future__ import annotations

import pytest

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_groups import DeleteGroupsRequest
from millrace.protocol.messages.describe_groups import DescribeGroupsRequest
from millrace.protocol.messages.leave_group import LeaveGroupRequest
from tests.broker.coordinators.build import GroupFixture, group_at, run


@pytest.mark.parametrize("version", range(4))
def test_deleting(version: int) -> None:
    """Groups without members go with their offsets, for good; those with members and those that are not there
    say so."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=3).start()
        joined = await fixture.stable_member("busy")
        left = await fixture.stable_member("left")
        await fixture.commit(
            "left", {("t", 0): 1, ("t", 1): 1, ("u", 0): 1}, generation=1, member_id=left.member_id
        )
        await fixture.ask_for(13, 1, LeaveGroupRequest("left", left.member_id))
        await fixture.commit("simple", {("t", 0): 1})
        names = ["busy", "left", "none", "simple", "left"]
        response = await fixture.ask_for(42, version, DeleteGroupsRequest(names))
        assert [(result.group_id, result.error_code) for result in response.results] == [
            ("busy", ErrorCode.NON_EMPTY_GROUP),
            ("left", 0),
            ("none", ErrorCode.GROUP_ID_NOT_FOUND),
            ("simple", 0),
        ]
        assert all(result.error_message is None for result in response.results)
        await fixture.crash()
        assert await fixture.fetch_offsets("left") == {}
        described = await fixture.ask_for(15, 5, DescribeGroupsRequest(["busy", "left", "simple"]))
        assert [group.group_state for group in described.groups] == ["Stable", "Dead", "Dead"]
        assert joined.member_id

    run(scenario())


def test_elsewhere() -> None:
    """Groups of other brokers, and a broker without an offsets topic."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=2).start()
        fixture.move("__consumer_offsets", 1, 2)
        response = await fixture.ask_for(42, 2, DeleteGroupsRequest([group_at(0, 2), group_at(1, 2)]))
        codes = [result.error_code for result in response.results]
        assert codes == [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR]
        bare = await GroupFixture(offsets_partitions=0).start()
        response = await bare.ask_for(42, 2, DeleteGroupsRequest(["g"]))
        assert response.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = bare.handlers[42].refuse(DeleteGroupsRequest(["a", "a"]), 7)
        assert [(result.group_id, result.error_code) for result in refused.results] == [("a", 7)]

    run(scenario())
