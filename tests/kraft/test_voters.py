"""Voters that stand in the log, over real logs and snapshots: what a start makes of them, and what it does
not believe."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from millrace.kraft.config import ControllerSettings
from millrace.kraft.errors import LogCorrupt, SnapshotCorrupt, VotersChanged
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.formatted_log import UNFINISHED, is_formatted, write_formatted_log
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.log.snapshot import load_snapshot
from millrace.kraft.node import ControllerNode
from millrace.kraft.raft.voters import DYNAMIC, Voter, VotersChange, VoterSet
from millrace.protocol.ids import uuid_bytes, uuid_text
from millrace.runtime.rand import Rand
from tests.kraft.build import SETTINGS, Broker, HandClock, create_topic, run, sim_disk
from tests.kraft.quorum import CLUSTER, Quorum, voter_on_first_disk
from tests.patience import PATIENCE_S
from tests.sim.disk import Cut, SimDisk

STATE = "/data/__cluster_metadata-0/quorum-state"


def own_voter(node: ControllerNode) -> Voter:
    return Voter(node.settings.node_id, uuid_bytes(node.meta.directory_id), (), (0, 1))


def ids(node: ControllerNode) -> tuple[int, ...]:
    return node.driver.raft.voters


async def change(leader: ControllerNode, voters: VoterSet) -> None:
    """Returns when it is committed, and applied by the leader."""
    while not leader.driver.raft.may_change_voters:  # noqa: ASYNC110
        await asyncio.sleep(0.002)
    entry = leader.driver.change_voters(VotersChange(voters=voters.voters))
    await leader.driver.news.reach(entry.end)


async def grown(quorum: Quorum) -> ControllerNode:
    """Node 1, formatted alone, with 2 and 3 added."""
    await quorum.format()
    await quorum.start()
    leader = await quorum.leader()
    await quorum.agree()
    for node_id in (2, 3):
        known = leader.driver.raft.voter_set
        await change(leader, known.with_voter(own_voter(quorum.nodes[node_id])))
    return leader


async def state_of(disk: SimDisk) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await disk.read_file(STATE) or b"{}")
    return found


def test_one_becomes_three_and_goes_on_with_any_two() -> None:
    """Metadata of before is there, commands are taken meanwhile, and the first may die."""

    async def main() -> None:
        quorum = Quorum((1,), (2, 3), is_dynamic=True)
        leader = await grown(quorum)
        await Broker.register(leader)
        await create_topic(leader, "kept", 2)
        image = await quorum.agree()
        assert {ids(node) for node in quorum.nodes.values()} == {(1, 2, 3)}
        await quorum.stop(1)
        other = await quorum.leader()
        assert other is not leader
        await create_topic(other, "new", 2)
        assert len(list((await quorum.agree()).topics)) == len(list(image.topics)) + 1
        await quorum.stop()

    run(main())


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_start_finds_the_voters_again(with_snapshot: bool) -> None:
    """In the log, or in the snapshot that took its place; the list that it is told is not asked."""

    async def main() -> None:
        quorum = Quorum((1,), (2, 3), is_dynamic=True)
        leader = await grown(quorum)
        await quorum.agree()
        if with_snapshot:
            for node in quorum.nodes.values():
                await node.snapshot()
            (found,) = [one for one in await leader.log.snapshots() if one.end]
            loaded = await load_snapshot(quorum.disks[1], leader.log.folder, found)
            assert loaded.voters == leader.driver.raft.voter_set
        await quorum.stop()
        await quorum.start(is_dynamic=False)
        await quorum.leader()
        assert {ids(node) for node in quorum.nodes.values()} == {(1, 2, 3)}
        await quorum.agree()
        await quorum.stop()
        assert (await state_of(quorum.disks[2]))["data_version"] == 1
        assert "currentVoters" not in await state_of(quorum.disks[2])

    run(main())


def test_who_was_alone_and_is_not_takes_nothing_for_committed() -> None:
    """A disk that alone was enough for the log up to the record that names another voter is not behind it."""

    async def main() -> None:
        quorum = Quorum((1,), (2,), is_dynamic=True)
        await quorum.format()
        await quorum.start()
        leader = await quorum.leader()
        await quorum.agree()
        quorum.is_lost = lambda message: True
        before = leader.driver.raft.log.end
        leader.driver.change_voters(
            VotersChange(voters=leader.driver.raft.voter_set.with_voter(own_voter(quorum.nodes[2])).voters)
        )
        while leader.log.end == before:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await quorum.stop(1)
        await quorum.start(1)
        again = quorum.nodes[1]
        assert ids(again) == (1, 2)
        assert again.publisher.image.offset == again.driver.raft.high_watermark == before
        quorum.is_lost = lambda message: False
        await quorum.leader()
        await quorum.agree()
        await quorum.stop()

    run(main())


def test_a_change_that_was_cut_off_is_none() -> None:
    """The leader wrote it and died; the others go on with the voters before, and so does it."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3), (4,), is_dynamic=True)
        await quorum.format()
        await quorum.start()
        leader = await quorum.leader()
        await quorum.agree()
        own = leader.settings.node_id
        quorum.is_lost = lambda message: own in (message.source, message.target)
        known, end = leader.driver.raft.voter_set, leader.log.end
        leader.driver.change_voters(VotersChange(voters=known.with_voter(own_voter(quorum.nodes[4])).voters))
        while leader.log.end == end:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        assert ids(leader) == (1, 2, 3, 4)
        await quorum.stop(own)
        await quorum.leader()
        quorum.is_lost = lambda message: False
        await quorum.start(own)
        await quorum.agree()
        assert {ids(node) for node in quorum.nodes.values()} == {(1, 2, 3)}
        await quorum.stop()

    run(main())


def test_a_snapshot_of_the_leaders_brings_its_voters() -> None:
    """A node that knew nobody knows them without the record."""

    async def main() -> None:
        quorum = Quorum((1,), (2, 3), is_dynamic=True)
        await quorum.format()
        await quorum.start(1, segment_bytes=300)
        leader = await quorum.leader()
        await Broker.register(leader)
        for number in range(4):
            await create_topic(leader, f"topic-{number}", 3)
            await leader.snapshot()
        assert leader.driver.raft.log.start > 0
        await quorum.start(2)
        await quorum.agree()
        assert quorum.installed == 1
        assert ids(quorum.nodes[2]) == (1,)
        assert quorum.nodes[2].driver.raft.voter_set == leader.driver.raft.voter_set
        await quorum.stop(2)
        await quorum.start(2)
        assert ids(quorum.nodes[2]) == (1,)
        await quorum.agree()
        await quorum.stop()

    run(main())


def test_a_voter_on_a_new_disk_is_none() -> None:
    """It has the id, and fetches all; nothing is committed by what it holds, and it never stands."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3), is_dynamic=True)
        await quorum.format()
        await quorum.start()
        leader = await quorum.leader()
        await Broker.register(leader)
        await quorum.agree()
        lost, third = (node_id for node_id in quorum.nodes if quorum.nodes[node_id] is not leader)
        await quorum.stop(lost)
        quorum.disks[lost] = SimDisk(Rand(b"another"), hops=0)
        await quorum.start(lost)
        await quorum.agree()
        assert not quorum.nodes[lost].driver.raft.is_voter
        await quorum.stop(third)
        waits = asyncio.ensure_future(create_topic(leader, "not-yet", 1))
        end = leader.driver.raft.high_watermark
        while quorum.nodes[lost].log.end == end:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.02)
        assert leader.driver.raft.high_watermark == end
        await quorum.start(third)
        await asyncio.wait([waits])
        await quorum.agree()
        await quorum.stop()
        waits.exception()

    run(main())


def test_a_list_becomes_voters_of_the_log_while_it_runs() -> None:
    """Level and voters are one batch; each node's vote is remembered with the directory from there on, and a
    snapshot made before does not name them."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start()
        leader = await quorum.leader()
        await quorum.agree()
        assert (await state_of(quorum.disks[1]))["data_version"] == 0
        await leader.snapshot()
        end = leader.driver.raft.log.end
        members = tuple(own_voter(node) for node in quorum.nodes.values())
        entry = leader.driver.change_voters(VotersChange(DYNAMIC, members))
        assert (entry.base, entry.count) == (end, 2)
        await leader.driver.news.reach(entry.end)
        await create_topic(leader, "behind", 1)
        await quorum.agree()
        await quorum.stop()
        for node_id, disk in quorum.disks.items():
            state = await state_of(disk)
            assert state["data_version"] == 1
            voted, directory = state["votedId"], state["votedDirectoryId"]
            if voted == node_id:
                assert uuid_bytes(directory) == members[node_id - 1].directory_id
        await quorum.start()
        leader = await quorum.leader()
        assert leader.driver.raft.voter_set.voters == members
        await quorum.stop()

    run(main())


@pytest.mark.parametrize("write", range(1, 5))
@pytest.mark.parametrize("power_was_cut", [False, True])
def test_a_level_that_was_being_raised_leaves_no_node_without_voters(
    write: int, *, power_was_cut: bool
) -> None:
    """A node that ends at any write of it leads at its next start, by the log or by the list: the file stops
    to name voters behind the record that does."""

    async def main() -> None:
        quorum = Quorum((1,))
        await quorum.start()
        leader = await quorum.leader()
        await quorum.agree()
        disk, driver = quorum.disks[1], leader.driver
        disk.at_write(disk.write_count + write, Cut())
        entry = driver.change_voters(VotersChange(DYNAMIC, (own_voter(leader),)))
        reached = asyncio.ensure_future(driver.news.reach(entry.end))
        await asyncio.wait([reached], timeout=1)
        reached.cancel()
        del quorum.nodes[1]
        quorum.disks[1] = disk.restart(power_was_cut=power_was_cut)
        is_dynamic = (await state_of(quorum.disks[1]))["data_version"] == 1
        await quorum.start(is_dynamic=is_dynamic, voters=() if is_dynamic else (1,))
        async with asyncio.timeout(PATIENCE_S):
            assert ids(await quorum.leader()) == (1,)
        await quorum.stop()

    run(main())


def test_the_word_that_guards_a_list_guards_no_voters_of_the_log() -> None:
    """At kraft.version 0 another list is refused, an empty one too; from 1 on the list says nothing."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start()
        leader = await quorum.leader()
        await quorum.agree()
        await quorum.stop(3)
        own = replace(SETTINGS, node_id=3, cluster_id=CLUSTER, is_dynamic=True)
        with pytest.raises(VotersChanged):
            await ControllerNode.open(
                quorum.disks[3], HandClock(), Rand(b"3"), own, send=lambda message: None
            )
        await quorum.start(3)
        leader = await quorum.leader()
        await quorum.agree()
        members = tuple(own_voter(node) for node in quorum.nodes.values())
        entry = leader.driver.change_voters(VotersChange(DYNAMIC, members))
        await leader.driver.news.reach(entry.end)
        await quorum.agree()
        await quorum.stop()
        node = await ControllerNode.open(
            quorum.disks[3], HandClock(), Rand(b"3"), own, send=lambda message: None
        )
        assert ids(node) == (1, 2, 3)
        await node.close()

    run(main())


def test_commands_beside_a_change_are_folded_once() -> None:
    """A record of the quorum's own between two groups leaves the images that were decided on in use."""

    async def main() -> None:
        quorum = Quorum((1,), (2,), is_dynamic=True)
        await quorum.format()
        await quorum.start()
        leader = await quorum.leader()
        await Broker.register(leader)
        await quorum.agree()
        await change(leader, leader.driver.raft.voter_set.with_voter(own_voter(quorum.nodes[2])))
        adopted: list[int] = []
        adopt = leader.driver.applier.adopt

        def note(delta: MetadataDelta, image: MetadataImage) -> None:
            adopted.append(image.offset)
            adopt(delta, image)

        leader.driver.applier.adopt = note  # type: ignore[method-assign]
        await create_topic(leader, "one", 1)
        await create_topic(leader, "two", 1)
        assert len(adopted) == 2
        await quorum.agree()
        await quorum.stop()

    run(main())


async def format_alone(disk: SimDisk) -> ControllerSettings:
    """As `millrace format --standalone` makes it, of node 1."""
    meta = MetaProperties(CLUSTER, 1, uuid_text(bytes([1]) * 16))
    await write_formatted_log(disk, "/data", meta, VoterSet((voter_on_first_disk(1),), DYNAMIC), 0)
    return replace(SETTINGS, cluster_id=CLUSTER, is_dynamic=True)


def test_a_formatted_directory_whose_voters_cannot_be_read_is_refused() -> None:
    """It would start as who knows no voters, answer nobody, and wait for a leader for ever."""

    async def main() -> None:
        disk = sim_disk()
        own = await format_alone(disk)
        (checkpoint,) = (name for name in disk.files if name.endswith(".checkpoint"))
        in_records = 61  # behind the first batch's header
        disk.flip(checkpoint, in_records)
        with pytest.raises(SnapshotCorrupt) as caught:
            await ControllerNode.open(disk, HandClock(), Rand(b"1"), own, send=lambda one: None)
        assert caught.value.path == checkpoint
        disk.flip(checkpoint, in_records)
        node = await ControllerNode.open(disk, HandClock(), Rand(b"1"), own, send=lambda one: None)
        await node.start()
        assert ids(node) == (1,)
        await node.close()

    run(main())


def test_an_only_voter_whose_segments_are_gone_is_refused() -> None:
    """What lay behind its snapshot was acknowledged, and nobody else has it."""

    async def main() -> None:
        disk = sim_disk()
        own = await format_alone(disk)
        node = await ControllerNode.open(disk, HandClock(), Rand(b"1"), own, send=lambda one: None)
        await node.start()
        await create_topic(node, "below the snapshot")
        await node.snapshot()
        await create_topic(node, "behind it")
        await node.close()
        for name in [name for name in disk.files if name.endswith(".log")]:
            await disk.remove(name)
        for _ in range(2):
            with pytest.raises(LogCorrupt, match="segments are gone"):
                await ControllerNode.open(disk, HandClock(), Rand(b"1"), own, send=lambda one: None)

    run(main())


def test_a_formatted_directory_that_has_lost_its_log_is_refused() -> None:
    """What it was formatted with says nothing of what it knew; an unfinished one is none."""

    async def main() -> None:
        disk = sim_disk()
        own = await format_alone(disk)
        assert await is_formatted(disk, "/data")
        await disk.write_file(f"/data/{UNFINISHED}", b"")
        assert not await is_formatted(disk, "/data")
        await disk.remove(f"/data/{UNFINISHED}")
        segment = "/data/__cluster_metadata-0/00000000000000000000.log"
        for state_is_kept in (False, True):
            await disk.remove(segment)  # as Kafka's tool leaves it
            if state_is_kept:
                with pytest.raises(LogCorrupt, match="segments are gone"):
                    await ControllerNode.open(disk, HandClock(), Rand(b"1"), own, send=lambda one: None)
                break
            node = await ControllerNode.open(disk, HandClock(), Rand(b"1"), own, send=lambda one: None)
            await node.start()
            assert ids(node) == (1,)
            await node.close()

    run(main())
