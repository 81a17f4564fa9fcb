"""Memory for groups and offsets: what is charged and given back, who is refused at the bound, what always
goes on."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from millrace.broker.coordinators.groups.records import stored_bytes
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine
from millrace.broker.requests.request import ConnectionInfo
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_groups import DeleteGroupsRequest
from millrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.coordinators.build import GroupFixture, codes_of, commit_request, join_request, run

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_whoever_makes_most_groups_is_refused_first": "reads nothing",
    "test_what_exists_grows_further_and_not_without_end": "reads nothing",
    "test_members_are_charged_and_refused": "reads nothing",
    "test_a_shard_that_ends_gives_everything_back": "reads nothing",
}
NOT_NOW = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
LIMIT_BYTES = 1 << 20


async def commit_from(
    fixture: GroupFixture, address: str, group_id: str, partition: int = 0, **fields: Any
) -> Any:
    """The response to a commit of one offset by a client at that address."""
    fixture.connection = ConnectionInfo(1, "PLAINTEXT", "127.0.0.1", 9092, address)
    return await fixture.ask_for(8, 9, commit_request(group_id, {("t", partition): 1}, 9, **fields))


async def fill(fixture: GroupFixture, address: str, prefix: str) -> int:
    """Makes groups of one offset until one is refused; how many there are then."""
    for number in range(10_000):
        response = await commit_from(fixture, address, f"{prefix}{number}")
        (code,) = codes_of(response).values()
        if code:
            assert (code, response.throttle_time_ms) == (NOT_NOW, 1000)
            return number
    raise AssertionError("no group was refused")


def sizes_of(shard: GroupStateMachine) -> int:
    """What the shard should be charged for, counted anew."""
    groups = sum(group.size_bytes for group in shard.groups.values())
    offsets = sum(shard.offsets.size_bytes(group_id) for group_id in shard.offsets.groups())
    return groups + offsets + sum(stored_bytes(value) for value in shard.stored.values())


def test_whoever_makes_most_groups_is_refused_first() -> None:
    """One address makes groups until it is refused, with a code that clients take for "ask again" and a time
    to wait; its groups go on committing, another address makes new ones, and a group that was deleted makes
    room."""

    async def scenario() -> None:
        fixture = await GroupFixture(states_bytes=LIMIT_BYTES).start()
        taken = await fill(fixture, "10.0.0.1", "greedy")
        assert 0.7 < fixture.memory.used_bytes / LIMIT_BYTES < 0.8
        for number in range(taken):
            assert codes_of(await commit_from(fixture, "10.0.0.1", f"greedy{number}")) == {("t", 0): 0}
        for number in range(50):
            assert codes_of(await commit_from(fixture, "10.0.0.2", f"modest{number}")) == {("t", 0): 0}
        assert codes_of(await commit_from(fixture, "10.0.0.1", "greedy-more")) == {("t", 0): NOT_NOW}
        names = [f"greedy{number}" for number in range(taken)]
        assert {
            result.error_code for result in (await fixture.ask_for(42, 2, DeleteGroupsRequest(names))).results
        } == {0}
        assert codes_of(await commit_from(fixture, "10.0.0.1", "greedy-more")) == {("t", 0): 0}
        assert fixture.memory.used_bytes == sizes_of(await fixture.loaded())

    run(scenario())


def test_what_exists_grows_further_and_not_without_end() -> None:
    """Where new groups are refused, groups that are there still take offsets of further partitions for a
    while, then only those that they have; a commit of both keeps what it may."""

    async def scenario() -> None:
        fixture = await GroupFixture(states_bytes=LIMIT_BYTES).start()
        taken = await fill(fixture, "10.0.0.1", "g")
        codes = [
            codes_of(await commit_from(fixture, "10.0.0.1", f"g{number}", partition))["t", partition]
            for partition in (1, 2, 3)
            for number in range(taken)
        ]
        assert codes[0] == 0
        assert codes[-1] == NOT_NOW
        assert fixture.memory.used_bytes < LIMIT_BYTES
        last = f"g{taken - 1}"
        both = await fixture.ask_for(8, 9, commit_request(last, {("t", 0): 5, ("t", 3): 5}, 9))
        assert codes_of(both) == {("t", 0): 0, ("t", 3): NOT_NOW}
        assert await fixture.fetch_offsets(last, ("t", 0)) == {("t", 0): 5}
        assert codes_of(await commit_from(fixture, "10.0.0.1", "g0", metadata="m" * 64)) == {("t", 0): 0}
        assert codes_of(await commit_from(fixture, "10.0.0.1", "g0", metadata="m" * 4000)) == {
            ("t", 0): NOT_NOW
        }

    run(scenario())


def test_members_are_charged_and_refused() -> None:
    """Ids that are given out, members with what they bring, and assignments count; at the bound a join is
    told to ask again, and members that are there join again, sync and leave."""

    async def scenario() -> None:
        fixture = await GroupFixture(states_bytes=LIMIT_BYTES).start()
        first = await fixture.stable_member("g", session_timeout_ms=1_800_000)
        taken = 0
        while True:
            joined = await fixture.ask_for(11, 9, join_request(f"idle{taken}", session_timeout_ms=1_800_000))
            if joined.error_code == NOT_NOW:
                break
            assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
            taken += 1
        assert joined.throttle_time_ms == 1000
        assert 100 < taken < 1000
        fixture.connection = replace(fixture.connection, peer_host="10.0.0.9")
        again = await fixture.join("g", member_id=first.member_id, session_timeout_ms=1_800_000)
        assert again.error_code == 0
        large = SyncGroupRequestAssignment(first.member_id, b"x" * 600_000)
        sync = SyncGroupRequest("g", again.generation_id, first.member_id, None, None, None, [large])
        asked_s = asyncio.get_running_loop().time()
        refused = await fixture.ask_for(14, 3, sync)
        assert asyncio.get_running_loop().time() - asked_s >= 1, "not every client waits for a throttle time"
        assert (refused.error_code, refused.throttle_time_ms) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 1000)
        again = await fixture.join("g", member_id=first.member_id, session_timeout_ms=1_800_000)
        small = SyncGroupRequestAssignment(first.member_id, b"x" * 900)
        sync = SyncGroupRequest("g", again.generation_id, first.member_id, None, None, None, [small])
        assert (await fixture.ask_for(14, 3, sync)).error_code == 0
        leaving = LeaveGroupRequest("g", members=[MemberIdentity(first.member_id)])
        assert (await fixture.ask_for(13, 4, leaving)).error_code == 0
        assert fixture.memory.used_bytes == sizes_of(await fixture.loaded())

    run(scenario())


def test_what_was_accepted_is_loaded_beyond_the_bound() -> None:
    """After a restart with a quarter of the bound all groups are there and commit; new ones are refused,
    until enough are gone. Whoever uses a group that was loaded is charged for it."""

    async def scenario() -> None:
        fixture = await GroupFixture(states_bytes=LIMIT_BYTES).start()
        taken = await fill(fixture, "10.0.0.1", "g")
        used_bytes = fixture.memory.used_bytes
        fixture.states_bytes = LIMIT_BYTES // 4
        await fixture.crash()
        assert (await fixture.loaded()).offsets.count == taken
        assert fixture.memory.used_bytes == used_bytes
        assert codes_of(await commit_from(fixture, "10.0.0.2", "new")) == {("t", 0): NOT_NOW}
        for number in range(taken):
            assert codes_of(await commit_from(fixture, "10.0.0.1", f"g{number}")) == {("t", 0): 0}
        assert fixture.memory.used_bytes == used_bytes == fixture.memory.holder("10.0.0.1").held_bytes
        names = [f"g{number}" for number in range(taken * 9 // 10)]
        assert {
            result.error_code for result in (await fixture.ask_for(42, 2, DeleteGroupsRequest(names))).results
        } == {0}
        assert codes_of(await commit_from(fixture, "10.0.0.2", "new")) == {("t", 0): 0}

    run(scenario())


def test_a_shard_that_ends_gives_everything_back() -> None:
    """Its partition is led elsewhere: nothing is charged for it any more."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.stable_member("member")
        await commit_from(fixture, "10.0.0.1", "simple")
        assert fixture.memory.used_bytes > 3000
        fixture.shard().end(ErrorCode.NOT_COORDINATOR)
        assert fixture.memory.used_bytes == 0

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_any_history_is_charged_as_counted_anew(seed: int) -> None:
    """Commits, members that come and go, deletions, expiry and restarts: the charge is always what a fresh
    count gives."""

    async def scenario() -> None:
        chance = random.Random(seed)
        fixture = await GroupFixture().start()
        members: dict[str, str] = {}
        for _ in range(150):
            group_id = f"g{chance.randrange(8)}"
            action = chance.random()
            if action < 0.5:
                text = "m" * chance.randrange(200)
                await commit_from(
                    fixture, f"10.0.0.{chance.randrange(3)}", group_id, chance.randrange(4), metadata=text
                )
            elif action < 0.7 and group_id not in members:
                joined = await fixture.join(group_id, session_timeout_ms=1_800_000)
                members[group_id] = joined.member_id
            elif action < 0.85 and group_id in members:
                leaving = LeaveGroupRequest(group_id, members=[MemberIdentity(members.pop(group_id))])
                await fixture.ask_for(13, 4, leaving)
            elif action < 0.95:
                await fixture.ask_for(42, 2, DeleteGroupsRequest([group_id]))
            else:
                await fixture.crash()
                members.clear()
                await fixture.loaded()
            assert fixture.memory.used_bytes == sizes_of(await fixture.loaded())

    run(scenario())
