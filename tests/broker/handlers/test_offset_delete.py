"""OffsetDelete: what is forgotten, and what a group still reads."""

from __future__ import annotations

from typing import Any

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.leave_group import LeaveGroupRequest
from millrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.broker.coordinators.build import GroupFixture, codes_of, run


async def delete(fixture: GroupFixture, group_id: str, *places: tuple[str, int]) -> Any:
    topics: dict[str, OffsetDeleteRequestTopic] = {}
    for name, partition in places:
        topics.setdefault(name, OffsetDeleteRequestTopic(name)).partitions.append(
            OffsetDeleteRequestPartition(partition)
        )
    return await fixture.ask_for(47, 0, OffsetDeleteRequest(group_id, list(topics.values())))


def test_offsets_of_a_simple_group() -> None:
    """Those named go, for good; what was never committed is no error, what there is not is one."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 1, ("t", 1): 2, ("u", 0): 3})
        response = await delete(fixture, "g", ("t", 0), ("t", 2), ("t", 4), ("none", 0))
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert response.error_code == 0
        assert codes_of(response) == {("t", 0): 0, ("t", 2): 0, ("t", 4): gone, ("none", 0): gone}
        await fixture.crash()
        assert await fixture.fetch_offsets("g") == {("t", 1): 2, ("u", 0): 3}

    run(scenario())


def test_topics_that_are_still_read() -> None:
    """A consumer group with members keeps the topics that it subscribes to, and gives up others; empty, it
    gives up all."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g", topics=["t"])
        own = {"generation": 1, "member_id": joined.member_id}
        await fixture.commit("g", {("t", 0): 1, ("u", 0): 2}, **own)
        response = await delete(fixture, "g", ("t", 0), ("u", 0))
        assert codes_of(response) == {("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ("u", 0): 0}
        assert await fixture.fetch_offsets("g") == {("t", 0): 1}
        await fixture.ask_for(13, 1, LeaveGroupRequest("g", joined.member_id))
        assert codes_of(await delete(fixture, "g", ("t", 0))) == {("t", 0): 0}
        assert await fixture.fetch_offsets("g") == {}

    run(scenario())


def test_refusals_of_the_whole() -> None:
    """No id, no such group, a group with members that is none of consumers, no coordinator."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.stable_member("connect", protocol_type="connect")
        for group_id, code in [
            ("", ErrorCode.INVALID_GROUP_ID),
            ("none", ErrorCode.GROUP_ID_NOT_FOUND),
            ("connect", ErrorCode.NON_EMPTY_GROUP),
        ]:
            response = await delete(fixture, group_id, ("t", 0))
            assert (response.error_code, response.topics) == (code, [])
        bare = await GroupFixture(offsets_partitions=0).start()
        assert (await delete(bare, "g", ("t", 0))).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario())
