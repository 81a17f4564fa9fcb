"""Offsets by the thousands are committed, deleted, read and forgotten some at a time: others have the loop
between."""

from __future__ import annotations

import asyncio

from millrace.broker.coordinators.groups.config import CoordinatorSettings
from millrace.broker.coordinators.groups.offsets import CommittedOffset
from millrace.broker.coordinators.groups.state_machine import (
    EXPIRED_PER_CHUNK,
    RESTORED_PER_CHUNK,
    GroupStateMachine,
    Position,
)
from millrace.broker.coordinators.runtime.state_machine import Now
from millrace.broker.handlers.delete_groups import OFFSETS_PER_CHUNK
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_groups import DeleteGroupsRequest
from millrace.protocol.messages.leave_group import LeaveGroupRequest
from millrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millrace.protocol.metadata_records import PartitionRecord, TopicRecord
from tests.broker.coordinators.build import GroupFixture, codes_of, commit_request, run
from tests.broker.others import Others
from tests.s3stream.build import World

WIDE = 3000
PLACES = {("w", partition): partition for partition in range(WIDE)}
HOT_ONLY = {
    "test_the_offsets_of_a_wide_group_expire_over_many_turns": "reads nothing",
    "test_a_member_that_loses_its_place_meanwhile": "reads nothing",
    "test_groups_are_restored_a_few_at_a_time": "reads nothing",
    "test_a_topic_that_is_made_again_meanwhile_keeps_its_offsets": "reads nothing",
}


def delete_request(group_id: str) -> OffsetDeleteRequest:
    asked = [OffsetDeleteRequestPartition(partition) for partition in range(WIDE)]
    return OffsetDeleteRequest(
        group_id, [OffsetDeleteRequestTopic("w", asked), OffsetDeleteRequestTopic("t")]
    )


async def until(shard: GroupStateMachine, count_max: int) -> int:
    """Returns when the shard has so many offsets at most, after how many iterations of the loop."""
    turns = 0
    while shard.offsets.count > count_max:
        turns += 1
        await asyncio.sleep(0)
    return turns


def test_others_have_the_loop_and_all_is_done() -> None:
    """A wide commit, a read of all and a wide deletion, each over several turns; partitions that there are
    not are told as ever."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.make_topic("w", WIDE)
        asked = {**PLACES, ("w", WIDE): 1, ("t", 1): 5, ("none", 0): 1}
        async with Others() as others:
            codes = await fixture.commit("g", asked)
        assert others.turns > 8
        assert list(codes) == list(asked)
        wrong = {place: code for place, code in codes.items() if code}
        assert wrong == dict.fromkeys([("w", WIDE), ("none", 0)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await fixture.crash()
        await fixture.loaded()
        async with Others() as others:
            assert await fixture.fetch_offsets("g") == {**PLACES, ("t", 1): 5}
        assert others.turns > 2
        async with Others() as others:
            deleted = await fixture.ask_for(47, 0, delete_request("g"))
        assert others.turns > 8
        assert [topic.name for topic in deleted.topics] == ["w", "t"]
        assert codes_of(deleted) == dict.fromkeys(PLACES, 0)
        await fixture.crash()
        assert await fixture.fetch_offsets("g") == {("t", 1): 5}

    run(scenario())


def test_a_member_that_loses_its_place_meanwhile() -> None:
    """It is removed between two chunks: what it was told is committed is, and all behind is refused."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(is_auto=False)).start()
        fixture.make_topic("w", WIDE)
        member = await fixture.confirmed(asyncio.ensure_future(fixture.stable_member("g", topics=("w",))))
        fields = {"member_id": member.member_id, "generation": member.generation_id}
        committing = fixture.later(8, 9, commit_request("g", PLACES, 9, **fields))
        for _ in range(3):
            await asyncio.sleep(0)
        fixture.later(13, 2, LeaveGroupRequest("g", member.member_id))
        codes = codes_of(await fixture.confirmed(committing))
        assert list(codes) == list(PLACES)
        taken = [place for place, code in codes.items() if not code]
        assert 0 < len(taken) < WIDE
        assert {code for code in codes.values() if code} == {ErrorCode.UNKNOWN_MEMBER_ID}
        found = await fixture.confirmed(asyncio.ensure_future(fixture.fetch_offsets("g")))
        assert found == {place: PLACES[place] for place in taken}

    run(scenario())


def test_a_group_of_many_offsets_is_deleted_over_many_turns() -> None:
    """Whoever commits to it meanwhile, or deletes it, is told to ask again; then it is gone for good, and
    other groups are as they were."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(is_auto=False)).start()
        fixture.make_topic("w", WIDE)
        for group_id in ("g", "h"):
            await fixture.confirmed(asyncio.ensure_future(fixture.commit(group_id, PLACES)))
        async with Others() as others:
            deleting = fixture.later(42, 2, DeleteGroupsRequest(["g", "none"]))
            await until(await fixture.loaded(), 2 * WIDE - 1)
            again = await fixture.ask_for(42, 2, DeleteGroupsRequest(["g"]))
            assert again.results[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            refused = await fixture.commit("g", {("t", 0): 7})
            assert refused == {("t", 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            deleted = await fixture.confirmed(deleting)
        assert others.turns > 2
        assert [result.error_code for result in deleted.results] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
        assert "g" not in (await fixture.loaded()).groups
        committing = asyncio.ensure_future(fixture.commit("g", {("t", 0): 7}))
        assert await fixture.confirmed(committing) == {("t", 0): 0}
        await fixture.crash()
        for group_id, left in (("g", {("t", 0): 7}), ("h", PLACES)):
            assert await fixture.confirmed(asyncio.ensure_future(fixture.fetch_offsets(group_id))) == left
        assert not fixture.failures

    run(scenario())


def test_a_wide_deletion_ends_with_its_shard() -> None:
    """Whenever the shard is unloaded, before the first part or between two: the client is told to look for
    the coordinator, and no defect is met."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.make_topic("w", WIDE)
        for turns in range(6):
            await fixture.commit("g", PLACES)
            (shard,) = fixture.coordinator._shards.loaded()
            deleting = fixture.later(42, 2, DeleteGroupsRequest(["g"]))
            for _ in range(turns):
                await asyncio.sleep(0)
            shard.end(ErrorCode.NOT_COORDINATOR)
            code = (await deleting).results[0].error_code
            assert code in (0, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE), turns

    run(scenario())


def test_a_group_that_was_deleted_in_part_is_there_with_the_rest() -> None:
    """A crash between two parts; the client was not answered, and asks again."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.make_topic("w", WIDE)
        await fixture.commit("g", PLACES)
        deleting = fixture.later(42, 2, DeleteGroupsRequest(["g"]))
        shard = await fixture.loaded()
        await until(
            shard, WIDE - 2 * OFFSETS_PER_CHUNK
        )  # the second part is decided when the first is durable
        assert 0 < shard.offsets.count < WIDE
        await fixture.crash()
        assert (await deleting).results[0].error_code
        assert 0 < len(await fixture.fetch_offsets("g")) < WIDE
        deleted = await fixture.ask_for(42, 2, DeleteGroupsRequest(["g"]))
        assert not deleted.results[0].error_code
        assert await fixture.fetch_offsets("g") == {}
        assert not fixture.failures

    run(scenario())


def test_the_offsets_of_a_wide_group_expire_over_many_turns() -> None:
    """The group goes with the last of them; a group of a few is not held up behind it, and one that is not
    due stays."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.make_topic("w", WIDE)
        await fixture.ask_for(8, 2, commit_request("g", PLACES, 2, retention_time_ms=1000))
        await fixture.ask_for(8, 2, commit_request("h", {("t", 0): 1}, 2, retention_time_ms=1000))
        await fixture.commit("kept", {("t", 0): 1})
        shard = await fixture.loaded()
        fixture.clock.now_ms += 2000
        turns, groups = 0, list(shard.groups)
        while groups:
            turns += 1
            decision, done = shard.expire(groups, fixture.shard().now())
            assert len(decision.records) <= EXPIRED_PER_CHUNK + 1
            groups = groups[done:]
        assert turns == -(-WIDE // EXPIRED_PER_CHUNK) + 1
        assert list(shard.groups) == ["kept"]

    run(scenario())


def test_a_topic_is_forgotten_over_many_turns() -> None:
    """With thousands of offsets in several groups; a restart in the midst, and one that finds the topic gone,
    forget the rest."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.make_topic("w", WIDE)
        for group_id in ("g", "h"):
            await fixture.commit(group_id, {**PLACES, ("t", 0): 1})
        fixture.delete_topic("w")
        shard = await fixture.loaded()
        assert shard.offsets.count == 2 * WIDE + 2, "nothing is decided by whoever tells of the deletion"
        for _ in range(20):
            await asyncio.sleep(0)
        assert 2 < shard.offsets.count < 2 * WIDE + 2
        await fixture.crash()
        shard = await fixture.loaded()
        assert await until(shard, 2) > 10
        for group_id in ("g", "h"):
            assert await fixture.fetch_offsets(group_id) == {("t", 0): 1}
        await fixture.crash()
        assert (await fixture.loaded()).offsets.count == 2
        assert not fixture.failures

    run(scenario())


def test_a_topic_that_is_made_again_meanwhile_keeps_its_offsets() -> None:
    """What is committed for the new topic of the name is not taken for the old one's; a second deletion is
    not forgotten behind the first."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.make_topic("w", WIDE)
        await fixture.commit("g", PLACES)
        await fixture.commit("h", {("t", 0): 1, ("u", 0): 2})
        fixture.delete_topic("w")
        made = b"another id of w!"
        partitions = [
            PartitionRecord(index, made, [1], [1], leader=1, leader_epoch=0, partition_epoch=0)
            for index in range(WIDE)
        ]
        fixture.publish(TopicRecord("w", made), *partitions)
        late = {("w", WIDE - 1): 77}
        assert await fixture.commit("g", late) == {("w", WIDE - 1): 0}
        fixture.delete_topic("u")
        assert await until(await fixture.loaded(), 2)
        assert await fixture.fetch_offsets("g") == late
        assert await fixture.fetch_offsets("h") == {("t", 0): 1}

    run(scenario())


def test_groups_are_restored_a_few_at_a_time() -> None:
    """Of a log that names thousands: others have the loop between two steps, and each group has its timer."""
    source, now = GroupStateMachine(CoordinatorSettings(), str), Now(0, 0)
    count = 3 * RESTORED_PER_CHUNK - 1
    log = []
    for number in range(count):
        position = Position("t", 0, CommittedOffset(number, 0, "", 0))
        log += source.commit(f"group {number}", [position], now).records
    loaded = GroupStateMachine(CoordinatorSettings(), str)
    assert all(map(loaded.apply, log))
    steps = [decision.timers for decision in loaded.on_loaded(now)]
    assert max(map(len, steps)) <= RESTORED_PER_CHUNK
    assert sorted(name for timers in steps for name, _ in timers) == sorted(source.groups)
    assert loaded.groups.keys() == source.groups.keys()
