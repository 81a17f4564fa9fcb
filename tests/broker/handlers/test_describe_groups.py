"""DescribeGroups: every version, by state, and groups that are not there."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.requests.operations import GROUP_OPERATIONS
from millrace.protocol.declare import NO_OPERATIONS
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.describe_groups import DescribeGroupsRequest
from millrace.protocol.messages.leave_group import LeaveGroupRequest
from tests.broker.coordinators.build import GroupFixture, group_at, join_request, run, subscription


@pytest.mark.parametrize("version", range(7))
def test_a_stable_group(version: int) -> None:
    """Members with their host as Java writes it, metadata and assignment; operations where they were asked
    for."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g", "client")
        asks = version >= 3
        response = await fixture.ask_for(15, version, DescribeGroupsRequest(["g"], asks))
        (group,) = response.groups
        assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
        assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
        assert group.authorized_operations == (GROUP_OPERATIONS if asks else NO_OPERATIONS)
        (member,) = group.members
        assert (member.member_id, member.client_id, member.client_host) == (
            joined.member_id,
            "client",
            "/127.0.0.1",
        )
        assert (member.member_metadata, member.member_assignment) == (subscription(["t"]), b"all")
        assert member.group_instance_id is None

    run(scenario())


def test_states() -> None:
    """Metadata and protocol are shown of stable groups alone; simple groups and empty ones have no
    members."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=3).start()

        async def described(*names: str) -> list[tuple[str, str, str, int]]:
            response = await fixture.ask_for(15, 5, DescribeGroupsRequest(list(names)))
            assert [group.group_id for group in response.groups] == list(names)
            return [
                (g.group_state, g.protocol_type, g.protocol_data, len(g.members)) for g in response.groups
            ]

        joined = await fixture.join("g")
        assert await described("g") == [("CompletingRebalance", "consumer", "", 1)]
        fixture.later(11, 3, join_request("g"))
        await asyncio.sleep(0.1)
        (state,) = await described("g")
        assert state == ("PreparingRebalance", "consumer", "", 2)
        await fixture.commit("simple", {("t", 0): 1})
        await fixture.stable_member("left")
        await fixture.ask_for(13, 1, LeaveGroupRequest("left", (await _only_member(fixture, "left"))))
        assert joined.member_id
        assert await described("left", "simple", "g") == [
            ("Empty", "consumer", "", 0),
            ("Empty", "", "", 0),
            state,
        ]

    run(scenario())


async def _only_member(fixture: GroupFixture, group_id: str) -> str:
    response = await fixture.ask_for(15, 5, DescribeGroupsRequest([group_id]))
    return str(response.groups[0].members[0].member_id)


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_is_not_there(version: int) -> None:
    """Dead, and from version 6 on an error besides."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        response = await fixture.ask_for(15, version, DescribeGroupsRequest(["none", ""], version >= 3))
        for group, name in zip(response.groups, ["none", ""], strict=True):
            assert (group.group_id, group.group_state) == (name, "Dead")
            if version >= 6:
                assert (group.error_code, group.error_message) == (
                    ErrorCode.GROUP_ID_NOT_FOUND,
                    f"Group {name} not found.",
                )
                assert group.authorized_operations == NO_OPERATIONS
            else:
                assert group.error_code == 0
        assert (await fixture.ask_for(15, version, DescribeGroupsRequest([]))).groups == []

    run(scenario())


def test_groups_of_other_brokers() -> None:
    """Each group has its own code; without an offsets topic nobody coordinates anything."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=2).start()
        fixture.move("__consumer_offsets", 1, 2)
        names = [group_at(0, 2), group_at(1, 2)]
        response = await fixture.ask_for(15, 4, DescribeGroupsRequest(names))
        assert [(g.group_id, g.error_code) for g in response.groups] == [
            (names[0], 0),
            (names[1], ErrorCode.NOT_COORDINATOR),
        ]
        bare = await GroupFixture(offsets_partitions=0).start()
        response = await bare.ask_for(15, 4, DescribeGroupsRequest(["g"]))
        assert response.groups[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = bare.handlers[15].refuse(DescribeGroupsRequest(["a", "b"]), 7)
        assert [(g.group_id, g.error_code) for g in refused.groups] == [("a", 7), ("b", 7)]

    run(scenario())
