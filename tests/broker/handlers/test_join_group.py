"""JoinGroup: every version, what is refused before a group is asked, what a member and its leader are
told."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.coordinators.groups.members import JoinAnswer
from millrace.broker.handlers.join_group import MEMBERS_AT_ONCE, DeferredJoin
from millrace.broker.requests.request import Encoded, RequestContext
from millrace.broker.requests.work import LARGE_AT_ONCE
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.join_group import JoinGroupRequestProtocol, JoinGroupResponse
from millrace.protocol.messages.sync_group import SyncGroupRequest
from millrace.runtime.scheduling.semaphore import Owner
from tests.broker.coordinators.build import SETTINGS, GroupFixture, join_request, run, subscription
from tests.broker.work import new_work


@pytest.mark.parametrize("version", range(10))
def test_a_group_of_two(version: int) -> None:
    """In every version: the first is a group by itself, the second's coming is a rebalance, the leader alone
    is told the members."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()

        async def enter(client_id: str) -> asyncio.Task[object]:
            member_id = ""
            if version >= 4:
                refused = await fixture.ask_for(11, version, join_request("g"), client_id)
                assert refused.error_code == ErrorCode.MEMBER_ID_REQUIRED
                assert (refused.generation_id, refused.leader, refused.members) == (-1, "", [])
                member_id = refused.member_id
                assert member_id.startswith(f"{client_id}-")
                assert len(member_id) == len(client_id) + 37
            return fixture.later(11, version, join_request("g", member_id), client_id)

        first = await (await enter("one"))
        assert (first.error_code, first.generation_id, first.leader) == (0, 1, first.member_id)
        second_waits = await enter("two")
        await asyncio.sleep(1)
        assert not second_waits.done()
        again = await fixture.ask_for(11, version, join_request("g", first.member_id), "one")
        second = await second_waits
        assert (again.generation_id, second.generation_id) == (2, 2)
        assert again.leader == second.leader == first.member_id
        assert second.members == []
        assert [member.member_id for member in again.members] == [first.member_id, second.member_id]
        assert {member.metadata for member in again.members} == {subscription(["t"])}
        assert (again.protocol_name, again.skip_assignment) == ("range", False)
        assert again.protocol_type == ("consumer" if version >= 7 else None)

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": "", "session_timeout_ms": 1}, ErrorCode.INVALID_GROUP_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "i" * 32_001}, ErrorCode.INVALID_REQUEST),
        (
            {"protocols": [JoinGroupRequestProtocol(f"p{number}", b"") for number in range(1001)]},
            ErrorCode.INVALID_REQUEST,
        ),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
@pytest.mark.parametrize("version", [5, 6, 7, 9])
def test_refusals(fields: dict[str, object], code: int, version: int) -> None:
    """What may not join is told why, at once, and which member id it said; the protocol is null where it may
    be."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.loaded()
        request = join_request(**{"group_id": "g", **fields})  # type: ignore[arg-type]
        response = await fixture.ask_for(11, version, request)
        assert response.error_code == code
        assert (response.member_id, response.generation_id, response.members) == (
            fields.get("member_id", ""),
            -1,
            [],
        )
        assert response.protocol_name == (None if version >= 7 else "")

    run(scenario())


def test_no_offsets_topic_yet() -> None:
    """Clients that did not ask for the coordinator first are told to."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=0).start()
        for version, protocol in ((3, ""), (9, None)):
            answer = await fixture.ask_for(11, version, join_request("g"))
            assert (answer.error_code, answer.protocol_name) == (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                protocol,
            )

    run(scenario())


def test_version_0_has_one_timeout() -> None:
    """Its session timeout is its rebalance timeout: who does not come back within it is left behind."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        first = await fixture.ask_for(
            11, 0, join_request("g", session_timeout_ms=30_000, rebalance_timeout_ms=-1), "one"
        )
        waiting = fixture.later(
            11, 0, join_request("g", session_timeout_ms=30_000, rebalance_timeout_ms=-1), "two"
        )
        await asyncio.sleep(29)
        assert not waiting.done()
        await asyncio.sleep(2)
        assert waiting.done()
        assert waiting.result().leader != first.member_id

    run(scenario())


def test_the_initial_delay_is_waited_for_by_a_timer() -> None:
    """Nobody has to ask: the first generation comes when its delay ends, with all who came in time."""

    async def scenario() -> None:
        fixture = GroupFixture()
        fixture.set(initial_rebalance_delay_ms=3000)
        await fixture.start()
        first = fixture.later(11, 3, join_request("g"), "one")
        await asyncio.sleep(2)
        second = fixture.later(11, 3, join_request("g"), "two")
        await asyncio.sleep(3.9)
        assert not first.done()
        await asyncio.sleep(0.2)
        assert len((await first).members) == 2
        assert (await second).generation_id == 1

    run(scenario())


@pytest.mark.parametrize("version", [5, 7, 9])
def test_a_static_leader_comes_back(version: int) -> None:
    """It is told not to assign in the way of its version; its answer waits for the log."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        first = await fixture.ask_for(11, version, join_request("g", group_instance_id="i"))
        protocol = ("consumer", "range") if version >= 7 else (None, None)
        sync = SyncGroupRequest("g", 1, first.member_id, "i", *protocol)
        assert (await fixture.ask_for(14, 5 if version >= 7 else 3, sync)).error_code == 0
        again = await fixture.ask_for(11, version, join_request("g", group_instance_id="i"))
        assert (again.error_code, again.generation_id) == (0, 1)
        assert again.member_id != first.member_id
        assert again.member_id.startswith("i-")
        if version >= 9:
            assert (again.skip_assignment, again.leader, len(again.members)) == (True, again.member_id, 1)
            assert again.members[0].group_instance_id == "i"
        else:
            assert (again.leader, again.members) == (first.member_id, [])

    run(scenario())


def test_a_full_group_refuses() -> None:
    """One member more than group.max.size is told so."""

    async def scenario() -> None:
        fixture = GroupFixture(settings=SETTINGS)
        fixture.set(members_max=1)
        await fixture.start()
        await fixture.stable_member("g")
        assert (await fixture.join("g")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED

    run(scenario())


def test_metadata_is_opaque() -> None:
    """Connect's and registries' groups work as consumers' do: bytes in, the same bytes to the leader."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        protocols = [JoinGroupRequestProtocol("v1", b"\x00\xff"), JoinGroupRequestProtocol("v0", b"")]
        joined = await fixture.join("sr", protocol_type="sr", protocols=protocols)
        assert (joined.protocol_name, joined.members[0].metadata) == ("v1", b"\x00\xff")

    run(scenario())


def test_the_leader_of_many_is_told_them_in_chunks() -> None:
    """When there is room for a large answer: until then nothing of it is made, and it is what a small one
    would be."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.loaded()
        members = MEMBERS_AT_ONCE + 1
        first = await fixture.ask_for(11, 2, join_request("g"), "c")
        joining = [fixture.later(11, 2, join_request("g"), f"c{number}") for number in range(1, members)]
        await asyncio.sleep(1)
        again = await fixture.ask_for(11, 2, join_request("g", first.member_id), "c")
        others = [await one for one in joining]
        assert [member.member_id for member in again.members] == [
            first.member_id,
            *(other.member_id for other in others),
        ]
        assert {member.metadata for member in again.members} == {subscription(["t"])}
        assert not any(other.members for other in others)

        context = RequestContext(11, 2, 7, "", fixture.connection, new_work)
        deferred = DeferredJoin(
            context := RequestContext(11, 2, 7, "", fixture.connection, new_work), refused
        )
        outcome = deferred.outcome()
        assert asyncio.isfuture(outcome)
        held = [new_work() for _ in range(LARGE_AT_ONCE)]
        for one in held:
            one._permits = context.work._permits
            await one.begin()
        described = [(f"m{number}", None, b"x") for number in range(members)]
        deferred.complete(JoinAnswer(0, "m0", 1, "consumer", "range", "m0", members=described))
        await asyncio.sleep(1)
        assert not outcome.done()
        held[0].end()
        await outcome
        assert isinstance(outcome.result(), Encoded)
        assert context.work._permits.held_count == LARGE_AT_ONCE - 1

    run(scenario())


def test_one_that_ends_while_it_waits_for_readers_keeps_no_permit() -> None:
    """It has its permit by then."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        work, waits = new_work(), asyncio.Event()

        async def wait(owner: Owner) -> None:
            waits.set()
            await asyncio.get_running_loop().create_future()

        work._wide.wait_for_readers = wait
        deferred = DeferredJoin(RequestContext(11, 2, 7, "", fixture.connection, lambda _: work), refused)
        described = [("m", None, b"x")] * (MEMBERS_AT_ONCE + 1)
        deferred.complete(JoinAnswer(0, "m", 1, "consumer", "range", "m", members=described))
        await waits.wait()
        assert work._permits.held_count == 1
        assert deferred._encoding is not None
        deferred._encoding.cancel()
        await asyncio.wait([deferred._encoding])
        assert work._permits.held_count == 0

    run(scenario())


def test_members_that_cannot_be_told_are_an_error() -> None:
    """Of an answer that is made in chunks, too: nobody waits for ever."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        deferred = DeferredJoin(RequestContext(11, 2, 7, "", fixture.connection, new_work), refused)
        outcome = deferred.outcome()
        assert asyncio.isfuture(outcome)
        described = [("m" * 40_000, None, b"x")] * (MEMBERS_AT_ONCE + 1)
        deferred.complete(JoinAnswer(0, "m", 1, "consumer", "range", "m", members=described))
        with pytest.raises(ValueError, match="string of 40000 bytes"):
            await outcome

    run(scenario())


def refused(code: int) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code)
