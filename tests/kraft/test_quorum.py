"""A quorum of several nodes where a disk or a moment is against it: what is promised, and what goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from millrace.kraft.config import ControllerSettings, RaftSettings
from millrace.kraft.errors import LogCorrupt, LogFull, NotLeader, ProposalDropped, VotersChanged
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.log.snapshot import receive_snapshot, write_snapshot
from millrace.kraft.node import ControllerNode
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import LogView
from millrace.kraft.raft.messages import EndEpoch, Fetch, FetchReply, Message, VoteReply
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.roles import Leader, Resigned
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.runtime.disk import DiskFull
from millrace.runtime.errors import Unavailable
from millrace.runtime.rand import Rand
from tests.kraft.build import NODE, SETTINGS, Broker, HandClock, create_topic, open_node, run, sim_disk
from tests.kraft.quorum import CLUSTER, Quorum
from tests.patience import PATIENCE_S


async def until_told(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while text not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def with_little_reserve() -> tuple[Quorum, ControllerNode]:
    """Three voters that agree, one leading, with a broker registered and few bytes kept for a full
    disk."""
    quorum = Quorum((1, 2, 3))
    await quorum.start(reserve_bytes=100)
    leader = await quorum.leader()
    await Broker.register(leader)
    await quorum.agree()
    return quorum, leader


def test_what_a_followers_full_disk_did_not_take_is_not_acknowledged() -> None:
    """A fetch says that all below it is durable. With room again the follower goes on where it stands; its
    process never ended."""
    claims: list[tuple[int, int]] = []

    async def main() -> None:
        quorum, leader = await with_little_reserve()
        full = next(node for node in quorum.nodes.values() if node is not leader)
        own, disk = full.meta.node_id, quorum.disks[full.meta.node_id]

        def watch(message: Message) -> bool:
            if isinstance(message, Fetch) and message.source == own:
                claims.append((message.offset, full.log.end))
            return False

        quorum.is_lost = watch
        disk.capacity_bytes = disk.used_bytes() + 50
        for number in range(3):
            await create_topic(leader, f"topic-{number}", 2)
        await asyncio.sleep(0.1)
        assert full.log.end < leader.log.end
        disk.capacity_bytes = 1 << 30
        assert len(list((await quorum.agree()).topics)) == 3
        await quorum.stop()

    run(main())
    assert all(offset <= durable for offset, durable in claims), claims


def test_a_leader_whose_disk_is_full_gives_the_leadership_to_another() -> None:
    """While it leads, the whole quorum would take nothing but deletions. It does not stand again at once; the
    next leader, whose disk is as full, keeps the leadership when nobody else can have it."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start(reserve_bytes=1000)
        leader = await quorum.leader()
        await Broker.register(leader)
        await quorum.agree()
        own = leader.meta.node_id
        quorum.disks[own].capacity_bytes = quorum.disks[own].used_bytes() + 100
        with contextlib.suppress(NotLeader, LogFull, ProposalDropped):
            await create_topic(leader, "that-found-it-full", 20)
        async with asyncio.timeout(PATIENCE_S):
            while (other := await quorum.leader()) is leader:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await create_topic(other, "taken")).topics[0].error_code == 0
        others = {node_id for node_id in quorum.voters if node_id != own}
        for node_id in others:
            quorum.disks[node_id].capacity_bytes = quorum.disks[node_id].used_bytes() + 100
        await asyncio.sleep(1.0)
        last = await quorum.leader()
        await asyncio.sleep(0.5)
        assert await quorum.leader() is last, "the leadership goes round"
        await quorum.stop()

    run(main())


@pytest.mark.parametrize("others", [(1,), (1, 8, 9), (1, 2, 3, 4)])
def test_a_voter_is_not_started_with_other_voters_without_a_word(others: tuple[int, ...]) -> None:
    """Those that it leaves behind may have a majority. Who was the whole quorum may get others at will, and
    so does a node that never voted."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start()
        await quorum.leader()
        await quorum.stop()
        own = replace(SETTINGS, node_id=1, cluster_id=CLUSTER, voters=others)

        async def opened(settings: ControllerSettings) -> ControllerNode:
            return await ControllerNode.open(
                quorum.disks[1], HandClock(), Rand(b"node"), settings, send=lambda message: None
            )

        with pytest.raises(VotersChanged, match=r"of the nodes 1, 2, 3 \("):
            await opened(own)
        await (await opened(replace(own, is_voters_change_accepted=True))).close()
        alone = sim_disk()
        await (await open_node(alone)).close()
        grown = await ControllerNode.open(
            alone, HandClock(), Rand(b"node"), replace(SETTINGS, voters=(NODE, 8, 9)), send=lambda one: None
        )
        await grown.close()

    run(main())


def test_a_leader_that_cannot_write_its_own_record_leads_no_more() -> None:
    """Its disk is full as it is elected: the others are told, and nothing of the record remains."""
    raft = Raft(RaftSettings(1, (1, 2, 3)), QuorumState(), LogView(), lambda bound: 0)
    for _ in range(10):
        raft.tick()
    raft.step(VoteReply(2, 1, 0, is_granted=True, is_pre_vote=True))
    raft.step(VoteReply(2, 1, 1, is_granted=True))
    assert raft.is_leader
    assert [entry.is_control for entry in raft.ready().entries] == [True]
    raft.drop_unstable()
    assert (raft.log.end, isinstance(raft.role, Resigned)) == (0, True)
    assert [message.target for message in raft.ready().messages if isinstance(message, EndEpoch)] == [2, 3]


def test_who_fetches_no_more_is_forgotten() -> None:
    """Observers are whoever asks: what is known of them ends, as in Kafka, five minutes after the last one's
    fetch."""
    raft = Raft(RaftSettings(1, (1, 2, 3), observer_ticks=30), QuorumState(), LogView(), lambda bound: 0)
    for _ in range(10):
        raft.tick()
    raft.step(VoteReply(2, 1, 0, is_granted=True, is_pre_vote=True))
    raft.step(VoteReply(2, 1, 1, is_granted=True))
    assert isinstance(raft.role, Leader)
    for observer in range(100, 200):
        raft.step(Fetch(observer, 1, 1))
    for _ in range(40):
        raft.step(Fetch(2, 1, 1))
        raft.step(Fetch(4, 1, 1))
        raft.tick()
    assert [node_id for node_id, _ in raft.role.observers] == [4]


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_observer_whose_leader_resigned_asks_on(is_answered: bool) -> None:
    """With each tick, where who was asked knows of no leader, as the one that resigned, which a bootstrap
    server may be, or gives no answer."""
    choices = iter((3, 4, 2))
    settings = RaftSettings(4, (1, 2, 3), bootstrap=(-2, -3))
    raft = Raft(settings, QuorumState(1, 1), LogView(), lambda bound: next(choices))

    def asked() -> list[int]:
        raft.tick()
        return [message.target for message in raft.ready().messages]

    raft.start()
    assert [message.target for message in raft.ready().messages] == [1]
    raft.step(FetchReply(1, 4, 1))
    for server in (-2, -3):
        assert asked() == [server]
        if is_answered:
            raft.step(FetchReply(server, 4, 1))
        else:
            raft.on_fetch_lost()
    assert asked() == [3]
    raft.step(FetchReply(3, 4, 2, leader=2))
    assert raft.leader == 2


def test_who_leads_no_more_expires_nothing() -> None:
    """Between the moment that a leader is deposed and the one that its controller hears of it."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start(expiry_interval_ms=60_000)
        leader = await quorum.leader()
        broker = await Broker.register(leader)
        prepared = await leader.channel.send(PrepareObjectsRequest(NODE, broker.epoch, 1, 1))
        assert prepared.error_code == 0
        await quorum.agree()
        quorum.clocks[leader.meta.node_id].now_ms += 1_000
        leader.driver.raft.resign()
        assert leader.controller.expire() is None
        await quorum.stop()

    run(main())


def test_a_node_that_closes_tells_whoever_waits() -> None:
    """A command that no majority took is not left without an answer: its outcome is unknown."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start()
        leader = await quorum.leader()
        await Broker.register(leader)
        await quorum.agree()
        quorum.is_lost = lambda message: True
        lost = asyncio.ensure_future(create_topic(leader, "lost"))
        await asyncio.sleep(0.02)
        await quorum.stop(leader.meta.node_id)
        with pytest.raises(ProposalDropped, match="leads the quorum no more, before a command was committed"):
            await asyncio.wait_for(lost, 1)
        await quorum.stop()

    run(main())


@pytest.mark.parametrize("harm", ["full", "broken off"])
def test_a_snapshot_that_fails_leaves_no_part(harm: str) -> None:
    """What was written of it is in nobody's way: on a full disk it would keep the room, and each try would
    leave another."""

    async def pieces() -> AsyncIterator[bytes]:
        yield bytes(1_000)
        raise Unavailable("the leader is gone")

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        await create_topic(node, "a", 100)
        if harm == "full":
            disk.capacity_bytes = disk.used_bytes() + 500
            with pytest.raises(DiskFull):
                await write_snapshot(disk, node.log.folder, node.publisher.image, 0)
        else:
            with pytest.raises(Unavailable):
                await receive_snapshot(disk, node.log.folder, SnapshotId(7, 1), pieces())
        assert not [name for name in disk.files if name.endswith(".part")]
        await node.close()

    run(main())


def test_a_follower_whose_disk_is_full_asks_for_a_snapshot_again() -> None:
    """It has no room for the one that it is given: its process goes on, and takes it once there is some."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start(segment_bytes=500, reserve_bytes=100)
        leader = await quorum.leader()
        await Broker.register(leader)
        await quorum.agree()
        behind = next(node_id for node_id in quorum.nodes if quorum.nodes[node_id] is not leader)
        await quorum.stop(behind)
        for number in range(4):
            await create_topic(leader, f"topic-{number}", 20)
            await leader.snapshot()
        disk = quorum.disks[behind]
        disk.capacity_bytes = disk.used_bytes() + 300
        await quorum.start(behind)
        while not disk.hits["full"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        disk.capacity_bytes = 1 << 30
        assert len(list((await asyncio.wait_for(quorum.agree(), PATIENCE_S)).topics)) == 4
        await quorum.stop()

    run(main())


def test_a_snapshot_tells_a_new_member_the_time() -> None:
    """Where nothing is behind it that another wrote, by clocks that are right."""

    async def main() -> None:
        quorum = Quorum((1, 2), observers=(3,))
        await quorum.start(1, 2, segment_bytes=500)
        leader = await quorum.leader()
        await Broker.register(leader)
        for number in range(4):
            await create_topic(leader, f"topic-{number}", 20)
            await leader.snapshot()
        quorum.clocks[3].now_ms -= 1_000_000
        await quorum.start(3)
        image = await asyncio.wait_for(quorum.agree(), PATIENCE_S)
        assert (quorum.installed, quorum.nodes[3].log.start) == (1, image.offset)
        assert quorum.nodes[3].newest_ms == quorum.clocks[leader.meta.node_id].now_ms
        await quorum.stop()

    run(main())


def test_a_leader_says_that_nothing_is_committed(caplog: pytest.LogCaptureFixture) -> None:
    """The disks of both followers are full: they ask, and take nothing, which each of them says once. Once
    there is room the leader goes on as such, and what waited is answered."""

    async def main() -> None:
        quorum, leader = await with_little_reserve()
        full = [quorum.disks[node_id] for node_id, node in quorum.nodes.items() if node is not leader]
        for disk in full:
            disk.capacity_bytes = disk.used_bytes() + 300
        waiting = asyncio.ensure_future(create_topic(leader, "waits", 200))
        said = f"controller {leader.meta.node_id} leads, and nothing that it decides is committed: controller"
        await until_told(caplog, said)
        assert not waiting.done()
        assert all(disk.hits["full"] > 3 for disk in full)
        assert caplog.text.count("no room for") == len(full)
        for disk in full:
            disk.capacity_bytes = 1 << 30
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert led(quorum) is leader
        assert len(list((await quorum.agree()).topics)) == 1
        await until_told(caplog, "decides is committed again")
        assert caplog.text.count(said) == 1
        await quorum.stop()

    run(main())


def test_who_is_gone_is_not_told_to_have_no_room(caplog: pytest.LogCaptureFixture) -> None:
    """Of two followers one is gone and the disk of the other is full: that one alone asks, and takes
    nothing."""

    async def main() -> None:
        quorum, leader = await with_little_reserve()
        full, gone = [node_id for node_id, node in quorum.nodes.items() if node is not leader]
        await quorum.stop(gone)
        disk = quorum.disks[full]
        disk.capacity_bytes = disk.used_bytes() + 300
        waiting = asyncio.ensure_future(create_topic(leader, "waits", 200))
        await until_told(caplog, "nothing that it decides is committed")
        assert f"is committed: controller {full} asks for it" in caplog.text
        disk.capacity_bytes = 1 << 30
        await asyncio.wait_for(waiting, PATIENCE_S)
        await quorum.stop()

    run(main())


def test_a_leader_that_loses_its_first_records_becomes_active_later() -> None:
    """What a new cluster begins with is given up with the leadership, and proposed again with the next:
    whoever waits for a leader here goes on waiting meanwhile."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start()
        while (leader := led(quorum)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        quorum.is_lost = lambda message: True
        while leader.driver.leading_epoch >= 0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert not leader.controller.active.done()
        quorum.is_lost = lambda message: False
        await quorum.agree()
        await quorum.stop()

    run(main())


def led(quorum: Quorum) -> ControllerNode | None:
    """The leader, before anything of its first records is committed."""
    nodes = quorum.nodes.values()
    return next((node for node in nodes if node.driver.leading_epoch >= 0), None)


async def far_behind(quorum: Quorum) -> tuple[ControllerNode, int, MetadataImage]:
    """The leader of a quorum whose log begins above what one of the others has, who is down, and the image
    that it had."""
    await quorum.start(segment_bytes=500)
    leader = await quorum.leader()
    await Broker.register(leader)
    image = await quorum.agree()
    behind = next(node_id for node_id in quorum.nodes if quorum.nodes[node_id] is not leader)
    await quorum.stop(behind)
    for number in range(4):
        for topic in range(5):
            await create_topic(leader, f"n{number}-{topic}", 2)
        await leader.snapshot()
    return leader, behind, image


def test_a_follower_is_told_of_the_snapshot_when_its_place_was_trimmed_meanwhile() -> None:
    """The leader had decided to send from there, and was at its disk while a snapshot made it superfluous."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        leader, behind, image = await far_behind(quorum)
        raft, own = leader.driver.raft, leader.meta.node_id
        decided = FetchReply(own, behind, raft.epoch, own, image.offset, image.epoch, raft.log.end)
        leader.log._recent.clear()  # as after a restart, or a megabyte later
        sent = await leader.driver._filled(decided)
        assert isinstance(sent, FetchReply)
        assert (sent.snapshot, sent.end, list(sent.entries)) == (raft.log.snapshot, image.offset, [])
        await quorum.stop()

    run(main())


def test_a_follower_is_given_the_snapshot_where_what_it_asks_for_is_damaged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A segment that is kept for an older snapshot is read for who is behind alone: a leader does not end
    over it, which would go on after its next start, that reads none of it. Of what no snapshot holds it
    does."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        leader, behind, image = await far_behind(quorum)
        raft, own, start = leader.driver.raft, leader.meta.node_id, leader.log.start
        assert raft.log.snapshot is not None
        assert start < raft.log.snapshot[0]
        quorum.disks[own].flip(f"/data/__cluster_metadata-0/{start:020}.log", 40)
        leader.log._recent.clear()  # as after a restart, or a megabyte later

        async def answer() -> Message:
            decided = FetchReply(own, behind, raft.epoch, own, start, image.epoch, raft.log.end)
            return await leader.driver._filled(decided)

        sent = await answer()
        assert isinstance(sent, FetchReply)
        assert (sent.snapshot, sent.end, list(sent.entries)) == (raft.log.snapshot, start, [])
        await quorum.start(behind)
        await quorum.agree()
        raft.log.snapshot = start, image.epoch
        with pytest.raises(LogCorrupt):
            await answer()
        await quorum.stop()

    run(main())
    assert any("as the log is damaged" in record.message for record in caplog.records)


def test_a_snapshot_that_was_outrun_by_the_leaders_changes_nothing() -> None:
    """A follower was writing one of its own while the leader's took the place of its log."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        _, behind, image = await far_behind(quorum)
        await quorum.start(behind)
        await quorum.agree()
        node = quorum.nodes[behind]
        before = node.driver.raft.log.snapshot
        assert before is not None
        assert before[0] > image.offset
        await node._snapshot(image)
        assert node.driver.raft.log.snapshot == before
        await quorum.stop()

    run(main())


def test_who_installed_a_snapshot_makes_none_of_its_own_at_once() -> None:
    """By records and by bytes it counts from the one that it was given."""

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        _, behind, _ = await far_behind(quorum)
        made: list[object] = []
        quorum.disks[behind].on_event = lambda *words: made.append(words[2]) if words[1] == "create" else None
        await quorum.start(behind, snapshot_records=30)
        image = await quorum.agree()
        await asyncio.sleep(0.05)
        node = quorum.nodes[behind]
        assert quorum.installed == 1
        assert len([path for path in made if ".checkpoint" in str(path)]) == 1
        (only,) = await node.log.snapshots()
        assert image.offset - 30 < only.end == node.driver.raft.log.snapshot[0]  # type: ignore[index]
        assert (node._snapshot_offset, node._snapshot_size_bytes) == (only.end, 0)
        await quorum.stop()

    run(main())


class SlowSnapshots(Quorum):
    """Whose snapshots take longer than a leader goes on without a majority."""

    async def fetch(self, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        async for data in super().fetch(leader, snapshot):
            for at in range(0, len(data), 100):
                await asyncio.sleep(0.02)
                if not self.nodes[leader].driver.raft.is_leader:
                    raise Unavailable("it leads no more")
                yield data[at : at + 100]


def test_a_follower_that_is_long_at_a_snapshot_counts_as_there() -> None:
    """With the third voter down it is half of the majority: a leader that resigned meanwhile would give no
    more of the snapshot, and the next one begin anew."""

    async def main() -> None:
        quorum = SlowSnapshots((1, 2, 3))
        leader, behind, _ = await far_behind(quorum)
        epoch = leader.driver.raft.epoch
        third = next(n for n in quorum.nodes if quorum.nodes[n] is not leader)
        await quorum.start(behind)
        await quorum.stop(third)
        began = asyncio.get_running_loop().time()
        image = await asyncio.wait_for(quorum.agree(), PATIENCE_S)
        assert asyncio.get_running_loop().time() - began > 0.3
        assert len(list(image.topics)) == 20
        assert leader.driver.raft.epoch == epoch
        await quorum.stop()

    run(main())
