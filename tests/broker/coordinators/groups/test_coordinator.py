"""The coordinator over its shards: which there are, when they load and end, topics that go, a stop, and
restarts."""

from __future__ import annotations

import asyncio
import random

import pytest

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine
from millrace.protocol.coordinator_records import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.delete_groups import DeleteGroupsRequest
from millrace.protocol.messages.heartbeat import HeartbeatRequest
from millrace.protocol.messages.leave_group import LeaveGroupRequest
from millrace.protocol.messages.list_groups import ListGroupsRequest
from millrace.s3stream.damaged_reads import Damage
from millrace.s3stream.errors import ObjectCorrupt
from tests.broker.coordinators.build import (
    GroupFixture,
    commit_request,
    group_at,
    join_request,
    run,
    snapshot,
)
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_a_group_log_that_is_damaged_is_told_as_a_damaged_read": "what reads is replaced",
    "test_a_deleted_offsets_topic_ends_its_shards": "reads nothing",
    "test_a_stop_does_not_wait_for_ever": "reads nothing",
}


def test_each_group_lives_in_the_shard_of_its_partition() -> None:
    """Shards load when one of their groups is asked for, and only they."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=5).start()
        assert repr(fixture.coordinator) == "group coordinator, shards []"
        for index in (3, 1):
            assert await fixture.commit(group_at(index, 5), {("t", 0): index}) == {("t", 0): 0}
        assert repr(fixture.coordinator) == "group coordinator, shards [1, 3]"
        assert [key.group for key, _ in await fixture.log(3)] == [group_at(3, 5)]
        assert repr(fixture.shard(3)).startswith("shard of 1 groups, 1 offsets, ")

    run(scenario())


def test_the_log_is_what_kafka_would_write() -> None:
    """A group's first word, its generations, commits, its end: keys, values and their order."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g")
        await fixture.commit("g", {("t", 1): 7}, generation=1, member_id=joined.member_id, metadata="hello")
        await fixture.commit("simple", {("t", 2): 8}, 2, retention_time_ms=1000)
        await fixture.ask_for(13, 2, LeaveGroupRequest("g", joined.member_id))
        await fixture.ask_for(42, 2, DeleteGroupsRequest(["g"]))
        log = await fixture.log()
        assert [key for key, _ in log] == [
            GroupMetadataKey("g"),
            GroupMetadataKey("g"),
            OffsetCommitKey("g", "t", 1),
            OffsetCommitKey("simple", "t", 2),
            GroupMetadataKey("g"),
            OffsetCommitKey("g", "t", 1),
            GroupMetadataKey("g"),
        ]
        values = [value for _, value in log]
        now_ms = fixture.clock.now_ms
        assert values[0] == GroupMetadataValue(current_state_timestamp=now_ms)
        stable = values[1]
        assert (stable.protocol_type, stable.generation, stable.protocol, stable.leader) == (
            "consumer",
            1,
            "range",
            joined.member_id,
        )
        (member,) = stable.members
        assert (member.client_id, member.client_host, member.session_timeout) == ("c", "/127.0.0.1", 10_000)
        assert (member.rebalance_timeout, member.assignment) == (60_000, b"all")
        commit = values[2]
        assert (commit.offset, commit.leader_epoch, commit.metadata, commit.commit_timestamp) == (
            7,
            5,
            "hello",
            now_ms,
        )
        assert (commit.topic_id, commit.expire_timestamp) == (b"t".ljust(16, b"."), -1)
        assert values[3].expire_timestamp == now_ms + 1000
        assert values[4] == GroupMetadataValue("consumer", 2, None, None, now_ms, [])
        assert values[5:] == [None, None]

    run(scenario())


def test_deleted_topics_take_their_offsets_with_them() -> None:
    """At once in shards that are loaded, at the load in others; a new topic of the name starts without
    offsets."""

    async def scenario() -> None:
        fixture = await GroupFixture(offsets_partitions=2).start()
        loaded, unloaded = group_at(0, 2), group_at(1, 2)
        for group_id in (loaded, unloaded):
            await fixture.commit(group_id, {("t", 0): 1, ("u", 0): 2})
        await fixture.crash()
        assert await fixture.fetch_offsets(loaded) == {("t", 0): 1, ("u", 0): 2}
        fixture.delete_topic("t")
        assert await fixture.fetch_offsets(loaded) == {("u", 0): 2}
        fixture.publish(*_topic_again())
        assert await fixture.fetch_offsets(unloaded) == {("u", 0): 2}
        assert [key for key, value in await fixture.log(1) if value is None] == [
            OffsetCommitKey(unloaded, "t", 0)
        ]
        assert await fixture.commit(unloaded, {("t", 0): 5}) == {("t", 0): 0}
        await fixture.crash()
        assert await fixture.fetch_offsets(unloaded) == {("t", 0): 5, ("u", 0): 2}
        fixture.coordinator.on_image(None, fixture.publisher.image)
        assert await fixture.fetch_offsets(unloaded) == {("t", 0): 5, ("u", 0): 2}

    run(scenario())


def _topic_again() -> list[object]:
    from millrace.protocol.metadata_records import PartitionRecord, TopicRecord

    made = b"another id of t!"
    return [
        TopicRecord("t", made),
        PartitionRecord(0, made, [1], [1], leader=1, leader_epoch=0, partition_epoch=0),
    ]


def test_a_stop_answers_everybody() -> None:
    """Who waits for others of the group is sent away at once, what is on its way to the log is answered when
    it is there, and who comes later is sent away too."""

    async def scenario() -> None:
        world = World(is_auto=False)
        fixture = await GroupFixture(world).start()
        member = asyncio.ensure_future(fixture.stable_member("g"))
        while not member.done():
            await asyncio.sleep(0)
            world.wal.confirm()
        joining = fixture.later(11, 3, join_request("g"))
        commit = fixture.later(8, 9, commit_request("h", {("t", 0): 7}, 9))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(fixture.coordinator.stop())
        assert (await joining).error_code == ErrorCode.NOT_COORDINATOR
        assert not commit.done()
        world.wal.confirm()
        assert (await commit).topics[0].partitions[0].error_code == 0
        await stopping
        await fixture.coordinator.stop()
        assert await fixture.commit("h", {("t", 0): 8}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert (await fixture.join("g")).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.wal.is_auto = True
        await fixture.crash()
        assert await fixture.fetch_offsets("h") == {("t", 0): 7}

    run(scenario())


def test_a_stop_does_not_wait_for_ever() -> None:
    """A log that takes nothing more is given up after a few seconds; a load under way is, too."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(is_auto=False), offsets_partitions=2).start()
        loading = asyncio.ensure_future(fixture.loaded(0))
        await fixture.confirmed(loading)
        commit = fixture.later(8, 9, commit_request(group_at(0, 2), {("t", 0): 7}, 9))
        fixture.opener.gate = asyncio.Event()
        other = fixture.later(8, 9, commit_request(group_at(1, 2), {("t", 0): 7}, 9))
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        await fixture.coordinator.stop()
        assert asyncio.get_running_loop().time() - began < 6
        assert (await commit).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert (await other).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR

    run(scenario())


def test_a_deleted_offsets_topic_ends_its_shards() -> None:
    """Deleted and made anew, it begins without groups."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 7})
        fixture.delete_topic(OFFSETS_TOPIC)
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}

    run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_a_restart_finds_what_was_there(seed: int) -> None:
    """Random members, commits, departures, deletions and pauses; after a crash the logs say what they said,
    groups that were stable or empty are so again, and their members go on."""

    async def scenario() -> None:
        chance = random.Random(seed)
        fixture = await GroupFixture(offsets_partitions=2).start()
        members: dict[str, tuple[str, int]] = {}
        for _ in range(4):
            for _ in range(60):
                group_id = f"g{chance.randrange(6)}"
                member_id, generation = members.get(group_id, ("", -1))
                action = chance.randrange(6)
                if action == 0 and not member_id:
                    joined = await fixture.stable_member(
                        group_id, f"c{chance.randrange(3)}", session_timeout_ms=60_000
                    )
                    members[group_id] = joined.member_id, joined.generation_id
                elif action == 1 and member_id:
                    await fixture.ask_for(13, 2, LeaveGroupRequest(group_id, member_id))
                    del members[group_id]
                elif action == 2:
                    code = (
                        (await fixture.ask_for(42, 2, DeleteGroupsRequest([group_id]))).results[0].error_code
                    )
                    assert code in (0, ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND)
                else:
                    places = {
                        (chance.choice("tu"), chance.randrange(4)): chance.randrange(100) for _ in range(3)
                    }
                    own = {"generation": generation, "member_id": member_id}
                    assert set((await fixture.commit(group_id, places, **own)).values()) == {0}
            before = [_state(await fixture.loaded(index)) for index in (0, 1)]
            listed = await fixture.ask_for(16, 5, ListGroupsRequest())
            await fixture.crash()
            again = await fixture.ask_for(16, 5, ListGroupsRequest())
            assert sorted(map(str, again.groups)) == sorted(map(str, listed.groups))
            assert [_state(await fixture.loaded(index)) for index in (0, 1)] == before
            for group_id, (member_id, generation) in members.items():
                assert fixture.call(12, 3, HeartbeatRequest(group_id, generation, member_id)).error_code == 0

    run(scenario())


def _state(shard: GroupStateMachine) -> object:
    return snapshot(shard), sorted(map(repr, shard.groups.values()))


def test_a_group_log_that_is_damaged_is_told_as_a_damaged_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask again every second, each time it is read anew: each read counts, and the broker logs one
    line of it a minute, not one a load."""
    told: list[Damage] = []

    async def damaged(*_: object) -> None:
        raise ObjectCorrupt("entry checksum differs", 7, "objects/9")

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        assert await fixture.commit("g", {("t", 0): 1}) == {("t", 0): 0}
        await fixture.crash()
        await fixture.partition(OFFSETS_TOPIC)
        monkeypatch.setattr(fixture.engine, "fetch", damaged)
        fixture.engine.damaged.on_damage = lambda damage, now_s: told.append(damage)
        for _ in range(3):
            assert await fixture.commit("g", {("t", 0): 1}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
            await asyncio.sleep(1.5)
        assert fixture.engine.damaged.failed_count == 3

    run(scenario())
    assert [(damage.start, damage.end) for damage in told] == [(0, None)]
    assert not [record for record in caplog.records if "not loaded" in record.getMessage()]


def test_a_group_log_that_lost_an_object_serves_again_once_it_is_back() -> None:
    """No checkpoint tells of what the object held, so that the log takes no batch meanwhile: groups wait, and
    go on without a restart."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        assert await fixture.commit("g", {("t", 0): 1}) == {("t", 0): 0}
        assert await fixture.engine.upload_all(60_000)
        await fixture.crash()
        store = fixture.world.store
        away, store.objects = store.objects, {}
        for _ in range(2):
            assert await fixture.commit("g", {("t", 0): 2}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
            await asyncio.sleep(5)
        store.objects |= away
        codes: list[int] = []
        while 0 not in codes:
            codes += (await fixture.commit("g", {("t", 0): 2})).values()
            assert len(codes) < 5, codes
            await asyncio.sleep(5)
        assert await fixture.fetch_offsets("g", ("t", 0)) == {("t", 0): 2}
        assert not fixture.failures

    run(scenario())
