"""The log of a shard stays a few times what lives in it, and nothing is lost by that, whenever a crash
comes."""

from __future__ import annotations

import asyncio
import random

import pytest

from millrace.broker.coordinators.groups.config import OFFSETS_TOPIC
from millrace.broker.coordinators.groups.offsets import CommittedOffset
from millrace.broker.coordinators.groups.state_machine import GroupStateMachine, Position
from millrace.broker.coordinators.runtime.append_queue import AppendQueue
from millrace.broker.coordinators.runtime.deferred import Callback
from millrace.broker.coordinators.runtime.log_reader import read_log
from millrace.broker.coordinators.runtime.log_rewriter import REWRITE_BYTES_MIN, REWRITE_RATIO, LogRewriter
from millrace.broker.coordinators.runtime.state_machine import Now
from millrace.broker.coordinators.runtime.unknown_records import UnknownRecords
from millrace.broker.partitions.partition import Partition
from millrace.broker.state_memory import StateMemory
from millrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.broker.coordinators.build import SETTINGS, GroupFixture, NarrowWal, commit_request, run, snapshot
from tests.broker.partitions.build import Fixture
from tests.patience import PATIENCE_S
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_a_log_of_nothing_but_tombstones_is_given_up": "reads nothing",
}


def test_the_log_does_not_grow_without_bound() -> None:
    """However often few groups commit, the log start follows, and all that lives comes back after a crash."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.commit("quiet", {("u", 3): 1})
        member = await fixture.stable_member("member", session_timeout_ms=1_800_000)
        partition = await fixture.partition(OFFSETS_TOPIC)
        for number in range(100):
            futures = [
                fixture.later(8, 9, commit_request(f"g{n}", {("t", 0): number}, 9, metadata="m" * 4000))
                for n in range(20)
            ]
            assert [codes.topics[0].partitions[0].error_code for codes in await asyncio.gather(*futures)] == [
                0
            ] * 20
            live_bytes = fixture.shard().machine.live_bytes
            rewriter = fixture.shard()._rewriter
            assert rewriter is not None
            assert (
                rewriter.log_bytes
                < max(REWRITE_BYTES_MIN, REWRITE_RATIO * live_bytes) + 3 * live_bytes + 300_000
            )
        await fixture.settle()
        assert partition.log_start_offset > 900
        size_bytes = sum(
            len(e.data) for e in await partition.data.fetch(partition.log_start_offset, 1 << 40, 1 << 30)
        )
        assert size_bytes < REWRITE_BYTES_MIN + 4 * live_bytes
        assert await fixture.fetch_offsets("quiet") == {("u", 3): 1}
        before = snapshot(fixture.shard().machine)
        await fixture.crash()
        shard = await fixture.loaded()
        assert snapshot(shard) == before
        assert await fixture.fetch_offsets("g7") == {("t", 0): 99}
        assert repr(shard.groups["member"]) == f"member Stable g1 range [*{member.member_id}]"

    run(scenario())


def test_a_piece_that_is_split_keeps_all_its_parts() -> None:
    """A group whose record is larger than a batch is rewritten with its neighbours, and none of them is left
    below the log start."""

    async def scenario() -> None:
        fixture = await GroupFixture().start()
        await fixture.stable_member("a", session_timeout_ms=1_800_000)
        joined = await fixture.join("b", session_timeout_ms=1_800_000)
        given = [SyncGroupRequestAssignment(joined.member_id, b"x" * 600_000)]
        request = SyncGroupRequest("b", joined.generation_id, joined.member_id, None, None, None, given)
        assert (await fixture.ask_for(14, 3, request)).error_code == 0
        for number in range(60):
            await asyncio.gather(
                *(
                    fixture.later(8, 9, commit_request(f"c{n}", {("t", 0): number}, 9, metadata="m" * 4000))
                    for n in range(20)
                )
            )
        await fixture.settle()
        assert (await fixture.partition(OFFSETS_TOPIC)).log_start_offset > 0
        before = snapshot(fixture.shard().machine)
        assert sorted(before[0]) == ["a", "b"]
        await fixture.crash()
        assert snapshot(await fixture.loaded()) == before

    run(scenario())


def test_a_record_that_the_log_takes_no_more_stays_where_it_is() -> None:
    """A group was stored when records of the WAL could be larger: no rewriting can carry it along, so the log
    start stays, and all goes on."""

    async def scenario() -> None:
        world = World()
        world.wal = NarrowWal(1 << 20)
        fixture = await GroupFixture(world).start()
        joined = await fixture.join("b", session_timeout_ms=1_800_000)
        given = [SyncGroupRequestAssignment(joined.member_id, b"x" * 600_000)]
        request = SyncGroupRequest("b", joined.generation_id, joined.member_id, None, None, None, given)
        assert (await fixture.ask_for(14, 3, request)).error_code == 0
        world.wal.max_record_bytes = 300_000
        offsets = {("t", n): 0 for n in range(4)}
        for number in range(80):
            commits = (fixture.commit(f"c{n}", offsets, metadata="m" * 4000) for n in range(5))
            async with asyncio.timeout(PATIENCE_S):
                assert {code for codes in await asyncio.gather(*commits) for code in codes.values()} == {0}, (
                    number
                )
        await fixture.settle()
        assert fixture.failures == []
        assert (await fixture.partition(OFFSETS_TOPIC)).log_start_offset == 0
        before = snapshot(fixture.shard().machine)
        await fixture.crash()
        assert snapshot(await fixture.loaded()) == before

    run(scenario())


NOTHING = 0  # and below: a deletion


class Rig:
    """A shard, its queue and its rewriting over a partition, with bounds so small that a rewriting is nearly
    always under way."""

    def __init__(
        self, fixture: Fixture, partition: Partition, read_bytes: int, shard: GroupStateMachine
    ) -> None:
        self.fixture = fixture
        self.shard = shard
        self.partition = partition
        self.lost: list[BaseException] = []
        self.acknowledged: dict[tuple[str, int], int] = {}
        loop = asyncio.get_running_loop()
        self.queue = AppendQueue(
            partition,
            fixture.engine,
            fixture.clock,
            lambda: self.rewriter.begin_if_due(),
            self.lost.append,
            self.lost.append,
        )
        self.rewriter = LogRewriter(
            shard,
            UnknownRecords(StateMemory()),
            partition,
            self.queue,
            fixture.engine,
            fixture.clock,
            read_bytes,
            loop.call_soon,
            bytes_min=2000,
            chunk_bytes=150,
        )
        self.rewriter.begin_if_due()

    @staticmethod
    async def opened(fixture: Fixture) -> Rig:
        opening = asyncio.ensure_future(fixture.open())
        while not opening.done():
            await asyncio.sleep(0)
            fixture.world.wal.confirm()
        partition = opening.result()
        shard = GroupStateMachine(SETTINGS, str)
        reading = asyncio.ensure_future(read_log(partition, shard.apply))
        while not reading.done():
            await asyncio.sleep(0)
            fixture.world.wal.confirm()
        for _ in shard.on_loaded(Now(0, 0)):
            pass
        return Rig(fixture, partition, reading.result(), shard)

    def commit(self, group_id: str, partition: int, value: int) -> None:
        position = Position("t", partition, CommittedOffset(value, 0, "m" * (value % 40), 0))
        decision = self.shard.commit(group_id, [position], Now(0, 0))
        self.queue.add(
            decision.records, [(Callback(lambda _: self.acknowledge(group_id, partition, value)), None)]
        )

    def delete(self, group_id: str, value: int = NOTHING) -> None:
        error, decision = self.shard.delete_group(group_id, Now(0, 0))
        if not error:
            places = [(group_id, partition) for partition in range(3)]
            self.queue.add(decision.records, [(Callback(lambda _: self.forget(places, value)), None)])

    def acknowledge(self, group_id: str, partition: int, value: int) -> None:
        self.acknowledged[group_id, partition] = value

    def forget(self, places: list[tuple[str, int]], value: int) -> None:
        for place in places:
            self.acknowledged[place] = value

    def places(self) -> dict[tuple[str, int], int]:
        """What is committed, by group and partition."""
        offsets = self.shard.offsets
        return {
            (group_id, partition): found.offset
            for group_id in offsets.groups()
            for partition, found in offsets.of_topic(group_id, "t").items()
        }


def test_a_log_of_nothing_but_tombstones_is_given_up() -> None:
    """When nothing lives the log start moves to the end."""

    async def scenario() -> None:
        fixture = await Fixture(World(is_auto=False)).start()
        rig = await Rig.opened(fixture)
        for number in range(30):
            rig.commit("g", 0, number)
            rig.delete("g")
            await asyncio.sleep(0)
            fixture.world.wal.confirm()
        for _ in range(3):
            await asyncio.sleep(0)
            fixture.world.wal.confirm()
        assert rig.shard.live_bytes == 0
        assert (
            rig.partition.log_end_offset - 20 < rig.partition.log_start_offset <= rig.partition.log_end_offset
        )

    run(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_no_acknowledged_commit_is_lost_to_a_rewriting(seed: int) -> None:
    """Commits and deletions among rewritings, confirmed in bits, and crashes at any place between: what was
    acknowledged is there, or something later of the same place; what was deleted does not come back."""

    async def scenario() -> None:
        chance = random.Random(seed)
        fixture = await Fixture(World(is_auto=False)).start()
        value, starts = 0, [0]
        rig = await Rig.opened(fixture)
        for _ in range(6):
            begun = {
                place: [found] for place, found in rig.places().items()
            }  # what a place may hold, the latest last
            for _ in range(chance.randrange(400)):
                value += 1
                group_id = f"g{chance.randrange(4)}"
                if chance.random() < 0.05:
                    for place in [place for place in begun if place[0] == group_id]:
                        begun[place].append(-value)
                    rig.delete(group_id, -value)
                else:
                    place = group_id, chance.randrange(3)
                    begun.setdefault(place, [NOTHING]).append(value)
                    rig.commit(*place, value)
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
                if chance.random() < 0.7:
                    fixture.world.wal.confirm(chance.choice([1, 2, None]))
            acknowledged = dict(rig.acknowledged)
            await fixture.crash(unconfirmed_count=chance.randrange(5))
            rig = await Rig.opened(fixture)
            assert rig.lost == []
            found = rig.places()
            assert list(found) == [place for place in found if place in begun]
            for place, history in begun.items():
                since = history.index(acknowledged[place]) if acknowledged.get(place) in history else 0
                allowed = history[since:]
                assert found[place] in allowed if place in found else min(allowed) <= 0
            starts.append(rig.partition.log_start_offset)
        assert starts == sorted(starts)
        assert starts[-1] > 0

    run(scenario())
