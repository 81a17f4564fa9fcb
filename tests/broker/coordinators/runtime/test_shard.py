"""A shard at work over a real partition: what is durable when, batches, loads, ends, deadlines, retention."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC
from millrace.broker.coordinators.runtime.shard import WAITING_PER_ITERATION
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.heartbeat import HeartbeatRequest
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millrace.protocol.metadata_records import PartitionRecord, RemoveTopicRecord, TopicRecord
from tests.broker.broker_fixture import NODE, OTHER, topic_id
from tests.broker.coordinators.build import (
    GroupFixture,
    NarrowWal,
    codes_of,
    commit_request,
    fetch_offsets_request,
    join_request,
    run,
    snapshot,
)
from tests.patience import PATIENCE_S
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_a_commit_is_answered_when_it_is_durable": "reads nothing",
    "test_a_load_that_takes_long_is_not_waited_for": "reads nothing",
    "test_a_partition_that_does_not_open_is_tried_again_later": "reads nothing",
    "test_what_failed_before_a_partition_moved_is_not_held_against_it": "reads nothing",
    "test_a_topic_that_is_made_anew_knows_nothing_of_its_namesake": "reads nothing",
    "test_when_the_log_is_another_nodes_nobody_is_acknowledged": "reads nothing",
    "test_commits_wait_for_room": "reads nothing",
    "test_commits_are_taken_while_producers_wait_for_room": "reads nothing",
    "test_what_waits_is_bounded": "reads nothing",
    "test_those_who_wait_for_a_load_are_served_some_at_a_time": "reads nothing",
    "test_a_member_that_joins_first_has_a_session_from_its_heartbeat_on": "reads nothing",
    "test_session_timer_is_paused_while_a_commit_is_in_flight": "reads nothing",
    "test_in_flight_commit_does_not_extend_a_replaced_members_session": "reads nothing",
    "test_many_groups_that_are_due_together_are_taken_in_turns": "reads nothing",
    "test_retention_takes_many_groups_in_turns": "reads nothing",
    "test_a_jump_of_the_wall_clock_expires_nothing": "reads nothing",
}


async def unconfirmed() -> GroupFixture:
    """Loaded. From here on its log confirms what it is told to."""
    fixture = await GroupFixture(World(is_auto=False)).start()
    await fixture.confirmed(asyncio.ensure_future(fixture.loaded()))
    return fixture


def test_a_commit_is_answered_when_it_is_durable() -> None:
    """Nothing is acknowledged, and nothing is read, before the WAL has it; a read behind a commit sees it."""

    async def scenario() -> None:
        fixture = await unconfirmed()
        commit = fixture.call(8, 9, commit_request("g", {("t", 0): 7}, 9))
        read = fixture.call(9, 7, fetch_offsets_request(7, {"g": [("t", 0)]}))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not commit.done()
        assert not read.done()
        fixture.world.wal.confirm()
        assert commit.done()
        assert commit.result().topics[0].partitions[0].error_code == 0
        assert read.result().topics[0].partitions[0].committed_offset == 7
        again = fixture.call(9, 7, fetch_offsets_request(7, {"g": [("t", 0)]}))
        assert again.topics[0].partitions[0].committed_offset == 7

    run(scenario())


def test_commits_share_batches() -> None:
    """What comes in one iteration of the loop is one batch, and what comes while that is on its way is the
    next."""

    async def scenario() -> None:
        fixture = await unconfirmed()
        partition = await fixture.partition(OFFSETS_TOPIC)
        futures = [fixture.call(8, 9, commit_request(f"g{n}", {("t", 0): n}, 9)) for n in range(10)]
        await asyncio.sleep(0)
        assert len(fixture.world.wal.records) == 1
        futures += [fixture.call(8, 9, commit_request(f"g{n}", {("t", 0): n}, 9)) for n in range(10, 30)]
        await asyncio.sleep(0)
        assert len(fixture.world.wal.records) == 1
        fixture.world.wal.confirm()
        assert [future.done() for future in futures] == [True] * 10 + [False] * 20
        await asyncio.sleep(0)
        fixture.world.wal.confirm()
        assert all(future.done() for future in futures)
        entries = await partition.data.fetch(0, 30, 1 << 20)
        assert [entry.count for entry in entries] == [10, 20]

    run(scenario())


def test_large_decisions_are_split_into_batches() -> None:
    """A commit of thousands of partitions, and the deletion of their group, go in batches of bounded size,
    answered at the last."""

    async def scenario() -> None:
        fixture = GroupFixture()
        fixture.make_topic("wide", 5000)
        await fixture.start()
        codes = await fixture.commit("g", {("wide", n): n for n in range(5000)}, metadata="m" * 200)
        assert set(codes.values()) == {0}
        partition = await fixture.partition(OFFSETS_TOPIC)
        sizes = [len(entry.data) for entry in await partition.data.fetch(0, 5000, 1 << 30)]
        assert len(sizes) > 3
        assert max(sizes) < 300_000
        before = snapshot(await fixture.loaded())
        await fixture.crash()
        assert snapshot(await fixture.loaded()) == before

    run(scenario())


def test_nothing_is_larger_than_the_log_takes() -> None:
    """Where a record of the WAL is smaller than a batch or a group may be, batches are smaller, and a group
    that needs more is refused its generation: it alone, and that one alone."""

    async def scenario() -> None:
        world = World()
        world.wal = NarrowWal(200_000)
        fixture = GroupFixture(world)
        fixture.make_topic("wide", 5000)
        await fixture.start()
        joined = await fixture.join("g")

        async def sync(generation: int, size_bytes: int) -> int:
            given = [SyncGroupRequestAssignment(joined.member_id, b"x" * size_bytes)]
            request = SyncGroupRequest("g", generation, joined.member_id, None, None, None, given)
            async with asyncio.timeout(PATIENCE_S):
                return int((await fixture.ask_for(14, 3, request)).error_code)

        assert await sync(1, 300_000) == ErrorCode.UNKNOWN_SERVER_ERROR
        codes = await fixture.commit("other", {("wide", n): n for n in range(5000)}, metadata="m" * 200)
        assert set(codes.values()) == {0}
        again = await fixture.join("g", member_id=joined.member_id)
        assert await sync(again.generation_id, 198_000) == 0
        await fixture.settle()
        assert (fixture.failures, world.failures) == ([], [])
        before = snapshot(await fixture.loaded())
        await fixture.crash()
        assert snapshot(await fixture.loaded()) == before

    run(scenario())


def test_who_comes_during_a_load_waits_for_it() -> None:
    """Requests wait for the load and are run in their order; heartbeats are answered well at once."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 7})
        await fixture.crash()
        fixture.opener.gate = asyncio.Event()
        read = fixture.call(9, 7, fetch_offsets_request(7, {"g": [("t", 0)]}))
        commit = fixture.call(8, 9, commit_request("g", {("t", 0): 8}, 9))
        late = fixture.call(9, 7, fetch_offsets_request(7, {"g": [("t", 0)]}))
        assert fixture.call(12, 4, HeartbeatRequest("g", 1, "nobody")).error_code == 0
        await asyncio.sleep(1)
        assert not read.done()
        fixture.opener.gate.set()
        assert (await read).topics[0].partitions[0].committed_offset == 7
        assert (await commit).topics[0].partitions[0].error_code == 0
        assert (await late).topics[0].partitions[0].committed_offset == 8
        assert (
            fixture.call(12, 4, HeartbeatRequest("g", 1, "nobody")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        )

    run(scenario())


def test_a_load_that_takes_long_is_not_waited_for() -> None:
    """After ten seconds those who wait are told to try again, as is whoever comes; the load goes on and
    ends."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.opener.gate = asyncio.Event()
        waiting = fixture.later(8, 9, commit_request("g", {("t", 0): 8}, 9))
        await asyncio.sleep(9)
        assert not waiting.done()
        await asyncio.sleep(2)
        assert (await waiting).topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        fixture.opener.gate.set()
        await asyncio.sleep(1)
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): 0}

    run(scenario())


def test_a_partition_that_does_not_open_is_tried_again_later() -> None:
    """Who asks is told to ask again; a second later it is tried anew."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.opener.error = RuntimeError("no")
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        asked = len(fixture.opener.opened)
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert len(fixture.opener.opened) == asked
        fixture.opener.error = None
        await asyncio.sleep(1.1)
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): 0}
        assert fixture.failures == []

    run(scenario())


def test_what_failed_before_a_partition_moved_is_not_held_against_it() -> None:
    """It comes back, and is opened for the first who asks, without a pause."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        fixture.opener.error = RuntimeError("no")
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        fixture.opener.error = None
        fixture.move(OFFSETS_TOPIC, 0, OTHER)
        fixture.move(OFFSETS_TOPIC, 0, NODE)
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): 0}

    run(scenario())


def test_a_topic_that_is_made_anew_knows_nothing_of_its_namesake() -> None:
    """Both in one step of the metadata, led here before and after."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 7})
        made = b"made anew".ljust(16, b".")
        fixture.publish(
            RemoveTopicRecord(topic_id(OFFSETS_TOPIC)),
            TopicRecord(OFFSETS_TOPIC, made),
            PartitionRecord(0, made, [NODE], [NODE], leader=NODE, leader_epoch=0, partition_epoch=0),
        )
        assert await fixture.fetch_offsets("g", ("t", 0)) == {("t", 0): -1}
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): 0}

    run(scenario())


def test_when_the_log_is_another_nodes_nobody_is_acknowledged() -> None:
    """A commit whose streams were taken meanwhile is refused, and so is a member that waits; the shard is
    read again when asked for."""

    async def scenario() -> None:
        fixture = await unconfirmed()
        commit = fixture.later(8, 9, commit_request("g", {("t", 0): 7}, 9))
        await asyncio.sleep(0)
        partition = await fixture.partition(OFFSETS_TOPIC)
        partition.data.is_fenced = True
        fixture.world.wal.confirm()
        assert (await commit).topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
        assert fixture.coordinator._shards._shards == {}

    run(scenario())


def test_a_partition_led_elsewhere_ends_its_shard() -> None:
    """Who waits there is told at once to look again, whoever comes too; when it comes back its log is read
    again."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 7})
        first = await fixture.stable_member("h")
        joining = fixture.later(11, 3, join_request("h"))
        await asyncio.sleep(0.1)
        fixture.move(OFFSETS_TOPIC, 0, 2)
        assert (await joining).error_code == ErrorCode.NOT_COORDINATOR
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): ErrorCode.NOT_COORDINATOR}
        beat = HeartbeatRequest("h", first.generation_id, first.member_id)
        assert fixture.call(12, 4, beat).error_code == ErrorCode.NOT_COORDINATOR
        fixture.move(OFFSETS_TOPIC, 0, 1)
        await asyncio.sleep(1.1)
        assert await fixture.fetch_offsets("g", ("t", 0)) == {("t", 0): 7}
        assert fixture.call(12, 4, beat).error_code == 0

    run(scenario())


def test_an_error_in_a_decision_drops_the_shard() -> None:
    """What was half decided is not kept: the shard is read again, and only the request that met the error
    fails."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 7})

        def half_decided(loop: object) -> int:
            fixture.shard().machine.offsets.apply("g", "t", 0, None)
            raise AssertionError("defect")

        with pytest.raises(AssertionError, match="defect"):
            fixture.coordinator.ask("g", half_decided, lambda code: code)
        assert await fixture.fetch_offsets("g", ("t", 0)) == {("t", 0): 7}

    run(scenario())


def test_commits_wait_for_room() -> None:
    """With the WAL full, commits wait in their order, then go on; none is lost."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(wal_bytes=300_000), upload_threshold_bytes=10**9).start()
        await fixture.commit("g", {("t", 0): 0})
        other = await fixture.partition("t")
        while fixture.engine.room_bytes > 3000:
            other.data.append(1, [b"f" * min(4096, fixture.engine.room_bytes - 2000)])
        futures = [
            fixture.later(8, 9, commit_request("g", {("t", 0): n, ("t", 1): n}, 9, metadata="m" * 3000))
            for n in range(5)
        ]
        for future in futures:
            assert (await future).topics[0].partitions[0].error_code == 0
        assert await fixture.fetch_offsets("g", ("t", 0)) == {("t", 0): 4}

    run(scenario())


def test_commits_are_taken_while_producers_wait_for_room() -> None:
    """The store is away and a producer waits for room: commits are durable at once, as long as what is kept
    for coordinators lasts; small states have theirs after that still, and all goes on when the store is
    back."""

    async def scenario() -> None:
        world = World(wal_bytes=4 << 20)
        away = asyncio.Event()
        world.store.fault = lambda operation, key: away.wait() if operation == "put" else None
        fixture = await GroupFixture(world).start()
        await fixture.commit("g", {("t", 0): 0})
        other = await fixture.partition("t")
        while (room_bytes := fixture.engine.room_bytes) > 0:
            other.data.append(1, [b"f" * min(4096, room_bytes)])
        producer = fixture.engine.wait_for_room(5000)
        taken = 0
        while True:
            commit = fixture.later(8, 9, commit_request("g", {("t", 0): taken}, 9, metadata="m" * 500))
            await asyncio.wait([commit], timeout=1)
            if not commit.done():
                break
            assert codes_of(commit.result()) == {("t", 0): 0}
            taken += 1
        print(f"{taken} commits while the store was away")
        assert 20 < taken < 2000
        assert not producer.done()
        assert fixture.engine.state_room.room_bytes > 10_000
        away.set()
        assert codes_of(await commit) == {("t", 0): 0}
        await producer
        assert await fixture.fetch_offsets("g", ("t", 0)) == {("t", 0): taken}

    run(scenario())


def test_what_waits_is_bounded() -> None:
    """While nothing gets into the log, commands are taken up to a bound, then told to try again; all that
    were taken are answered. So is with those who wait for a load."""

    async def scenario() -> None:
        fixture = await GroupFixture(World(is_auto=False)).start()
        fixture.opener.gate = asyncio.Event()
        read = fetch_offsets_request(7, {"g": [("t", 0)]})
        waiting = [fixture.call(9, 7, read) for _ in range(10_001)]
        assert not asyncio.isfuture(waiting[-1])
        assert waiting.pop().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        fixture.opener.gate.set()
        assert {(await future).error_code for future in waiting} == {0}
        commit = commit_request("g", {("t", n): 1 for n in range(4)}, 9, metadata="m" * 4000)
        taken = []
        for _ in range(1500):
            outcome = fixture.call(8, 9, commit)
            if not asyncio.isfuture(outcome):
                break
            taken.append(outcome)
        assert 1000 < len(taken) < 1100
        assert outcome.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await fixture.confirmed(taken[-1])
        assert {future.result().topics[0].partitions[3].error_code for future in taken} == {0}

    run(scenario())


def test_those_who_wait_for_a_load_are_served_some_at_a_time() -> None:
    """In order; who asks meanwhile comes behind them, and an end of the shard answers those that are left."""

    async def scenario(is_ended: bool) -> None:
        fixture = await GroupFixture().start()
        fixture.opener.gate = asyncio.Event()
        served: list[int] = []
        count = 3 * WAITING_PER_ITERATION
        for number in range(count):
            joining = fixture.call(11, 5, join_request(f"g{number}"))
            joining.add_done_callback(lambda _, number=number: served.append(number))
        fixture.opener.gate.set()
        counts = [0]
        behind: asyncio.Future[Any] | None = None
        for _ in range(1000):
            await asyncio.sleep(0)
            if len(served) > counts[-1]:
                counts.append(len(served))
            if behind is None and served:
                behind = fixture.call(11, 5, join_request("behind"))
                assert asyncio.isfuture(behind)
                behind.add_done_callback(lambda _: served.append(count))
                if is_ended:
                    (shard,) = fixture.coordinator._shards._shards.values()
                    shard.end(ErrorCode.NOT_COORDINATOR)
        assert served == list(range(count + 1))
        assert behind is not None
        if is_ended:
            assert behind.result().error_code == ErrorCode.NOT_COORDINATOR
        else:
            assert max(after - before for before, after in pairwise(counts)) <= WAITING_PER_ITERATION

    for is_ended in (False, True):
        run(scenario(is_ended))


def test_a_silent_member_expires_without_being_asked() -> None:
    """One timer a shard: a session ends when it is due, and the group is empty in the log."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g", session_timeout_ms=10_000)
        for _ in range(5):
            await asyncio.sleep(8)
            beat = HeartbeatRequest("g", joined.generation_id, joined.member_id)
            assert fixture.call(12, 4, beat).error_code == 0
        await asyncio.sleep(9.9)
        assert repr(fixture.shard().machine.groups["g"]).startswith("g Stable g1")
        await asyncio.sleep(0.2)
        assert repr(fixture.shard().machine.groups["g"]) == "g Empty g2 - []"
        (_, last) = (await fixture.log())[-1]
        assert (last.generation, last.members, last.protocol_type) == (2, [], "consumer")

    run(scenario())


def test_a_member_that_joins_first_has_a_session_from_its_heartbeat_on() -> None:
    """A newcomer that waits has five minutes; if it beats while it waits, its session counts."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        first = await fixture.stable_member("g", session_timeout_ms=600_000, rebalance_timeout_ms=900_000)
        required = await fixture.ask_for(11, 5, join_request("g"))
        assert required.error_code == ErrorCode.MEMBER_ID_REQUIRED
        waiting = fixture.later(11, 5, join_request("g", required.member_id))
        await asyncio.sleep(15)
        beat = HeartbeatRequest("g", first.generation_id, required.member_id)
        assert fixture.call(12, 4, beat).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        await asyncio.sleep(9.9)
        assert not waiting.done()
        await asyncio.sleep(0.2)
        assert waiting.done()
        assert waiting.result().error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario())


async def member_of_a_log_that_stops() -> tuple[GroupFixture, str]:
    """A static member `i` of generation 1, stable, whose session is ten seconds; from now on nothing is
    durable before the WAL is told."""
    fixture = await GroupFixture(World(is_auto=False)).start()
    joining = fixture.later(11, 5, join_request("g", group_instance_id="i"))
    member_id = (await fixture.confirmed(joining)).member_id
    given = [SyncGroupRequestAssignment(member_id, b"all")]
    syncing = fixture.later(14, 3, SyncGroupRequest("g", 1, member_id, "i", None, None, given))
    assert (await fixture.confirmed(syncing)).assignment == b"all"
    return fixture, member_id


def test_session_timer_is_paused_while_a_commit_is_in_flight() -> None:
    """The heartbeats behind a commit on its connection are not handled before it is answered: however long
    the log takes nothing, the member stays, and has a session from then on, which counts as any other."""

    async def scenario() -> None:
        fixture, member_id = await member_of_a_log_that_stops()
        first = fixture.later(8, 7, commit_request("g", {("t", 0): 5}, 7, generation=1, member_id=member_id))
        await asyncio.sleep(1)
        second = fixture.later(8, 7, commit_request("g", {("t", 0): 6}, 7, generation=1, member_id=member_id))
        await asyncio.sleep(25)
        fixture.world.wal.confirm()
        assert codes_of(await first) == {("t", 0): 0}
        await asyncio.sleep(25)
        fixture.world.wal.confirm()
        assert codes_of(await second) == {("t", 0): 0}
        await asyncio.sleep(9)
        assert fixture.call(12, 4, HeartbeatRequest("g", 1, member_id)).error_code == 0
        await asyncio.sleep(11)
        assert (
            fixture.call(12, 4, HeartbeatRequest("g", 1, member_id)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        )

    run(scenario())


def test_in_flight_commit_does_not_extend_a_replaced_members_session() -> None:
    """A static member that comes back while its old self's commit is on its way, and is silent then, is gone
    after its session."""

    async def scenario() -> None:
        fixture, old_id = await member_of_a_log_that_stops()
        committing = commit_request(
            "g", {("t", 0): 5}, 7, generation=1, member_id=old_id, group_instance_id="i"
        )
        commit = fixture.later(8, 7, committing)
        back = fixture.later(11, 5, join_request("g", group_instance_id="i"))
        await asyncio.sleep(0)
        for _ in range(3):
            fixture.world.wal.confirm()
            await asyncio.sleep(0)
        assert codes_of(await commit) == {("t", 0): 0}
        beat = HeartbeatRequest("g", 1, (await back).member_id, "i")
        assert fixture.call(12, 4, beat).error_code == 0
        await asyncio.sleep(11)
        assert fixture.call(12, 4, beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    run(scenario())


def test_sessions_begin_anew_after_a_load() -> None:
    """Members that the log names are given a whole session, and no more."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        joined = await fixture.stable_member("g", session_timeout_ms=10_000)
        await asyncio.sleep(9)
        await fixture.crash()
        await fixture.loaded()
        await asyncio.sleep(9.9)
        beat = HeartbeatRequest("g", joined.generation_id, joined.member_id)
        assert fixture.call(12, 4, beat).error_code == 0
        await asyncio.sleep(10.1)
        assert repr(fixture.shard().machine.groups["g"]) == "g Empty g2 - []"

    run(scenario())


def test_a_load_waits_for_what_is_on_its_way() -> None:
    """A shard that ended with an append in flight: its successor reads that append too."""

    async def scenario() -> None:
        fixture = await unconfirmed()
        commit = fixture.later(8, 9, commit_request("g", {("t", 0): 7}, 9))
        await asyncio.sleep(0)
        fixture.shard().end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert (await commit).topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        read = fixture.later(9, 7, fetch_offsets_request(7, {"g": [("t", 0)]}))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not read.done()
        fixture.world.wal.confirm()
        assert (await read).topics[0].partitions[0].committed_offset == 7

    run(scenario())


def test_a_log_that_cannot_be_read_is_tried_again_later() -> None:
    """The store is away: who asks is told to ask again, and the store is not asked at every request."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 7})
        await fixture.crash()
        await fixture.partition(OFFSETS_TOPIC)
        fixture.engine.drop_caches()

        def fail(operation: str, key: str) -> None:
            raise TimeoutError

        fixture.world.store.fault = fail
        away = {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await fixture.commit("g", {("t", 0): 8}) == away
        asked = len(fixture.world.store.calls)
        assert await fixture.commit("g", {("t", 0): 8}) == away
        assert (
            fixture.call(12, 4, HeartbeatRequest("g", 1, "m")).error_code
            == ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        assert len(fixture.world.store.calls) == asked
        fixture.world.store.fault = lambda operation, key: None
        await asyncio.sleep(1.1)
        assert await fixture.commit("g", {("t", 0): 8}) == {("t", 0): 0}

    run(scenario())


def test_many_groups_that_are_due_together_are_taken_in_turns() -> None:
    """Two thousand sessions that end at the same moment end in four iterations of the loop."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        futures = [fixture.later(11, 3, join_request(f"g{n}")) for n in range(2000)]
        for future in futures:
            assert not (await future).error_code
        await asyncio.sleep(11)
        assert {group.state.value for group in fixture.shard().machine.groups.values()} == {"Empty"}

    run(scenario())


def test_retention_expires_offsets_and_then_their_group() -> None:
    """Checked at its interval: tombstones of offsets, and of a group that has none left and nobody in it."""

    async def scenario() -> None:
        fixture = GroupFixture()
        fixture.set(offsets_retention_ms=3_600_000, offsets_retention_check_interval_ms=600_000)
        await fixture.start()
        await fixture.commit("simple", {("t", 0): 1})
        await fixture.commit("explicit", {("t", 0): 1}, 2, retention_time_ms=60_000)
        joined = await fixture.stable_member("member", topics=["t"], session_timeout_ms=1_800_000)
        own = {"generation": joined.generation_id, "member_id": joined.member_id}
        await fixture.commit("member", {("t", 0): 1, ("u", 0): 1}, **own)

        async def pass_time(minutes: int) -> list[str]:
            for _ in range(minutes):
                await asyncio.sleep(60)
                fixture.clock.now_ms += 60_000
                fixture.call(12, 4, HeartbeatRequest("member", joined.generation_id, joined.member_id))
            return sorted(fixture.shard().machine.groups)

        assert await pass_time(9) == ["explicit", "member", "simple"]
        assert await pass_time(2) == ["member", "simple"]
        assert await pass_time(45) == ["member", "simple"]
        assert await fixture.fetch_offsets("member") == {("t", 0): 1, ("u", 0): 1}
        assert await pass_time(15) == ["member"]
        assert await fixture.fetch_offsets("member") == {("t", 0): 1}
        log = await fixture.log()
        gone = [(key.KEY, key.group) for key, value in log if value is None]
        assert gone == [(1, "explicit"), (2, "explicit"), (1, "simple"), (2, "simple"), (1, "member")]
        before = snapshot(fixture.shard().machine)
        await fixture.crash()
        assert snapshot(await fixture.loaded()) == before

    run(scenario())


def test_retention_takes_many_groups_in_turns() -> None:
    """More groups than one iteration of the loop looks at: all of them expire."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        for number in range(1200):
            fixture.later(8, 2, commit_request(f"g{number}", {("t", 0): 1}, 2, retention_time_ms=1000))
        await asyncio.sleep(1)
        assert len(fixture.shard().machine.groups) == 1200
        fixture.clock.now_ms += 600_000
        await asyncio.sleep(601)
        assert fixture.shard().machine.groups == {}

    run(scenario())


def test_a_jump_of_the_wall_clock_expires_nothing() -> None:
    """A clock set a month ahead suspends retention; set right again, it goes on."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("g", {("t", 0): 1})
        fixture.clock.now_ms += 30 * 86_400_000
        await asyncio.sleep(1300)
        assert await fixture.fetch_offsets("g") == {("t", 0): 1}
        fixture.clock.now_ms -= 30 * 86_400_000 - 1_300_000
        for _ in range(8 * 24):
            await asyncio.sleep(3600)
            fixture.clock.now_ms += 3_600_000
        assert await fixture.fetch_offsets("g") == {}

    run(scenario())
