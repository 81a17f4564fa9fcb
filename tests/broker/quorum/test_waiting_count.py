"""How many partitions wait for the log of a broker that is gone: who counts them, and when."""

from __future__ import annotations

import asyncio

from millrace.broker.quorum.waiting_count import COUNT_S, WaitingCount
from millrace.kraft.commands.decision import Decision
from millrace.kraft.commands.refusals import refuse_whole
from millrace.kraft.commands.table import Command
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.metadata_records import FeatureLevelRecord
from tests.kraft.peers.members import CLUSTER, Member, Members
from tests.sim.loop import SimLoop, run_simulation

BROKER, SESSION_MS = 9, 3_000


async def lose_a_broker(member: Member) -> None:
    """Which led two partitions, and had them open."""
    send, controller = member.transport.channel.send, member.node.controller
    level = Command(
        lambda context, _: Decision(None, [FeatureLevelRecord("millrace.version", 2)]), refuse_whole
    )
    await controller.take(level, None)
    registered = await send(BrokerRegistrationRequest(BROKER, CLUSTER, bytes(16)))
    epoch, end = registered.broker_epoch, member.node.publisher.image.offset
    beat = await send(BrokerHeartbeatRequest(BROKER, epoch, end))
    assert not beat.is_fenced
    created = await send(CreateTopicsRequest([CreatableTopic("t", 2, 1)]))
    topic_id = created.topics[0].topic_id
    for index in range(2):
        opened = await send(OpenPartitionStreamsRequest(BROKER, epoch, topic_id, index, 0, [0]))
        assert opened.error_code == 0, opened


def test_who_is_active_counts_what_waits_and_nobody_else_does() -> None:
    """A follower would count for nobody; who is active next begins to, though no image comes."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop)
        await members.start(session_ms=SESSION_MS)
        first = await members.leader()
        nodes = {node_id: member.node for node_id, member in members.all.items()}
        counts = {node_id: WaitingCount(one, lambda: asyncio.sleep(0)) for node_id, one in nodes.items()}
        tasks = {node_id: asyncio.create_task(count.run()) for node_id, count in counts.items()}
        await lose_a_broker(first)
        await asyncio.sleep(SESSION_MS / 1000 + 3 * COUNT_S)
        counted = {node_id: count._count for node_id, count in counts.items()}
        assert counted == {1: 0, 2: 0, 3: 0} | {first.node_id: 2}
        await members.stop(first.node_id)
        second = await members.leader()
        assert second is not first
        await asyncio.sleep(3 * COUNT_S)
        assert counts[second.node_id].shown == 2
        assert sorted(count._count for count in counts.values()) == [0, 2, 2]  # one of them has ended
        await second.transport.channel.send(BrokerRegistrationRequest(BROKER, CLUSTER, bytes(15) + b"1"))
        await asyncio.sleep(COUNT_S + 0.5)  # less than a session
        assert counts[second.node_id].shown == 0
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        assert not any(
            isinstance(getattr(call, "__self__", None), WaitingCount)
            for one in nodes.values()
            for call in one.driver.news.on_change
        )
        for node_id in members.all:
            if node_id != first.node_id:
                await members.stop(node_id)

    run_simulation(main)
