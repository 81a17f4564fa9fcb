"""Offsets by the thousands are committed, deleted, read and forgotten some at a time: others have the loop between."""

from __future__ import annotations

import asyncio

from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.leave_group import LeaveGroupRequest
from millrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millrace.protocol.metadata_records import PartitionRecord, TopicRecord
from tests.broker.coordinators.build import GroupHouse, codes_of, commit_request, run
from tests.broker.others import Others
from tests.s3stream.build import World

WIDE = 3000
PLACES = {("w", partition): partition for partition in range(WIDE)}
HOT_ONLY = {
    "test_a_member_that_loses_its_place_meanwhile": "reads nothing",
    "test_a_topic_that_is_made_again_meanwhile_keeps_its_offsets": "reads nothing",
}


def delete_request(group_id: str) -> OffsetDeleteRequest:
    asked = [OffsetDeleteRequestPartition(partition) for partition in range(WIDE)]
    return OffsetDeleteRequest(group_id, [OffsetDeleteRequestTopic("w", asked), OffsetDeleteRequestTopic("t")])


def test_others_have_the_loop_and_all_is_done() -> None:
    """A wide commit, a read of all and a wide deletion, each over several turns; partitions that there are not are told as ever."""

    async def scenario() -> None:
        house = await GroupHouse().start()
        house.make_topic("w", WIDE)
        asked = {**PLACES, ("w", WIDE): 1, ("t", 1): 5, ("none", 0): 1}
        async with Others() as others:
            codes = await house.commit("g", asked)
        assert others.turns > 8
        assert list(codes) == list(asked)
        wrong = {place: code for place, code in codes.items() if code}
        assert wrong == dict.fromkeys([("w", WIDE), ("none", 0)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await house.crash()
        await house.loaded()
        async with Others() as others:
            assert await house.fetch_offsets("g") == {**PLACES, ("t", 1): 5}
        assert others.turns > 2
        async with Others() as others:
            deleted = await house.ask_for(47, 0, delete_request("g"))
        assert others.turns > 8
        assert [topic.name for topic in deleted.topics] == ["w", "t"]
        assert codes_of(deleted) == dict.fromkeys(PLACES, 0)
        await house.crash()
        assert await house.fetch_offsets("g") == {("t", 1): 5}

    run(scenario())


def test_a_member_that_loses_its_place_meanwhile() -> None:
    """It is removed between two slices: what it was told is committed is, and all behind is refused."""

    async def scenario() -> None:
        house = await GroupHouse(World(is_auto=False)).start()
        house.make_topic("w", WIDE)
        member = await house.confirmed(asyncio.ensure_future(house.stable_member("g", topics=("w",))))
        fields = {"member_id": member.member_id, "generation": member.generation_id}
        committing = house.later(8, 9, commit_request("g", PLACES, 9, **fields))
        for _ in range(3):
            await asyncio.sleep(0)
        house.later(13, 2, LeaveGroupRequest("g", member.member_id))
        codes = codes_of(await house.confirmed(committing))
        assert list(codes) == list(PLACES)
        taken = [place for place, code in codes.items() if not code]
        assert 0 < len(taken) < WIDE
        assert {code for code in codes.values() if code} == {ErrorCode.UNKNOWN_MEMBER_ID}
        found = await house.confirmed(asyncio.ensure_future(house.fetch_offsets("g")))
        assert found == {place: PLACES[place] for place in taken}

    run(scenario())


def test_a_topic_is_forgotten_over_many_turns() -> None:
    """With thousands of offsets in several groups; a restart in the midst, and one that finds the topic gone, forget the rest."""

    async def scenario() -> None:
        house = await GroupHouse().start()
        house.make_topic("w", WIDE)
        for group_id in ("g", "h"):
            await house.commit(group_id, {**PLACES, ("t", 0): 1})
        house.delete_topic("w")
        count = (await house.loaded()).offsets.count
        assert 2 < count < 2 * WIDE + 2
        await house.crash()
        shard = await house.loaded()
        turns = 0
        while shard.offsets.count > 2:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 10
        for group_id in ("g", "h"):
            assert await house.fetch_offsets(group_id) == {("t", 0): 1}
        await house.crash()
        assert (await house.loaded()).offsets.count == 2
        assert not house.failures

    run(scenario())


def test_a_topic_that_is_made_again_meanwhile_keeps_its_offsets() -> None:
    """What is committed for the new topic of the name is not taken for the old one's; a second deletion is not forgotten behind the first."""

    async def scenario() -> None:
        house = await GroupHouse().start()
        house.make_topic("w", WIDE)
        await house.commit("g", PLACES)
        await house.commit("h", {("t", 0): 1, ("u", 0): 2})
        house.delete_topic("w")
        made = b"another id of w!"
        partitions = [
            PartitionRecord(index, made, [1], [1], leader=1, leader_epoch=0, partition_epoch=0) for index in range(WIDE)
        ]
        house.publish(TopicRecord("w", made), *partitions)
        late = {("w", WIDE - 1): 77}
        assert await house.commit("g", late) == {("w", WIDE - 1): 0}
        house.delete_topic("u")
        shard, turns = await house.loaded(), 0
        while shard.offsets.count > 2:
            turns += 1
            await asyncio.sleep(0)
        assert turns
        assert await house.fetch_offsets("g") == late
        assert await house.fetch_offsets("h") == {("t", 0): 1}

    run(scenario())
