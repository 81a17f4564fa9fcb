"""SyncGroup: every version, what is refused, and that an assignment is durable before it is handed out."""

from __future__ import annotations

import asyncio

import pytest

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.coordinators.build import GroupFixture, codes_of, commit_request, join_request, run
from tests.s3stream.build import World


@pytest.mark.parametrize("version", range(6))
def test_everybody_gets_what_the_leader_gave(version: int) -> None:
    """In every version; whoever is not named gets nothing, which is an answer too."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        first = await fixture.join("g", "one")
        second_waits = fixture.later(11, 3, join_request("g"), "two")
        await asyncio.sleep(0.1)
        await fixture.join("g", "one", first.member_id)
        second = await second_waits
        protocol = ("consumer", "range") if version >= 5 else (None, None)
        follower = fixture.later(14, version, SyncGroupRequest("g", 2, second.member_id, None, *protocol))
        await asyncio.sleep(0.1)
        assert not follower.done()
        given = [
            SyncGroupRequestAssignment(second.member_id, b"\x00two"),
            SyncGroupRequestAssignment("stranger", b"x"),
        ]
        leader = await fixture.ask_for(
            14, version, SyncGroupRequest("g", 2, first.member_id, None, *protocol, given)
        )
        assert (leader.error_code, leader.assignment) == (0, b"")
        assert (await follower).assignment == b"\x00two"
        if version >= 5:
            assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_name": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_refusals(fields: dict[str, object], code: int) -> None:
    """Strangers, other generations and other protocols; from version 5 on the protocol must be named."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.join("g")
        values = {
            "group_id": "g",
            "generation_id": 1,
            "member_id": joined.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            **fields,
        }
        response = await fixture.ask_for(14, 5, SyncGroupRequest(**values))  # type: ignore[arg-type]
        assert (response.error_code, response.assignment) == (code, b"")

    run(scenario())


def test_an_assignment_is_in_the_log_before_it_is_told() -> None:
    """The leader's answer waits for the WAL."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(is_auto=False)).start()
        member_id = (await fixture.confirmed(fixture.later(11, 3, join_request("g")))).member_id
        for _ in range(5):
            await asyncio.sleep(0)
            fixture.world.wal.confirm()
        given = [SyncGroupRequestAssignment(member_id, b"all")]
        syncing = fixture.later(14, 3, SyncGroupRequest("g", 1, member_id, None, None, None, given))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not syncing.done()
        fixture.world.wal.confirm()
        assert (await syncing).assignment == b"all"

    run(scenario())


def test_what_is_full_or_slow_to_load_asks_for_another_join() -> None:
    """Clients take COORDINATOR_LOAD_IN_PROGRESS as the end here: they are told to join again, which they
    repeat until it is answered."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(is_auto=False)).start()
        member_id = (await fixture.confirmed(fixture.later(11, 3, join_request("g")))).member_id
        other = commit_request("other", {("t", n): 1 for n in range(4)}, 9, metadata="m" * 4096)
        while asyncio.isfuture(outcome := fixture.call(8, 9, other)):
            pass
        assert set(codes_of(outcome).values()) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        given = [SyncGroupRequestAssignment(member_id, b"all")]
        request = SyncGroupRequest("g", 1, member_id, None, None, None, given)
        assert fixture.call(14, 3, request).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        await fixture.crash()
        fixture.opener.gate = asyncio.Event()
        waiting = fixture.later(14, 3, request)
        assert (await waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert fixture.call(14, 3, request).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        fixture.opener.gate.set()
        await asyncio.sleep(1)

    run(scenario())


def test_no_offsets_topic_yet() -> None:
    """Answered as by a broker that coordinates nothing yet."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=0).start()
        response = await fixture.ask_for(14, 3, SyncGroupRequest("g", 1, "m"))
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario())
