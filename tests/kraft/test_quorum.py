"""A quorum of several nodes where a disk or a moment is against it: what is promised, and what goes on."""

from __future__ import annotations

import asyncio

import pytest

from millrace.kraft.config import RaftSettings
from millrace.kraft.errors import ProposalDropped
from millrace.kraft.raft.core import Raft
from millrace.kraft.raft.log_view import LogView
from millrace.kraft.raft.messages import EndEpoch, Fetch, Message, VoteReply
from millrace.kraft.raft.ready import QuorumState
from millrace.kraft.raft.roles import Resigned
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from tests.kraft.build import NODE, Broker, create_topic, run
from tests.kraft.quorum import Quorum


def test_what_a_followers_full_disk_did_not_take_is_not_acknowledged() -> None:
    """A fetch says that all below it is durable. With room again the follower goes on where it stands; its
    process never ended."""
    claims: list[tuple[int, int]] = []

    async def main() -> None:
        quorum = Quorum((1, 2, 3))
        await quorum.start(reserve_bytes=100)
        leader = await quorum.leader()
        await Broker.register(leader)
        await quorum.agree()
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
        with pytest.raises(ProposalDropped):
            await asyncio.wait_for(lost, 1)
        await quorum.stop()

    run(main())
