"""A broker that lives is heard, however long something else takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.quorum.heartbeats import Heartbeats
from millrace.kraft.config import Ticks
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.forward_command import ForwardCommandRequest
from tests.kraft.peers.members import CLUSTER, Member, Members
from tests.sim.loop import SimLoop, run_simulation

BROKER = 9
SESSION_MS = 3000
INTERVAL_S = 1.0
SLOW_S = 6.0  # of one command: two sessions
CREATE_TOPICS, HEARTBEAT = 19, 63
PATIENT = Ticks(20, election=500, fetch=1000)  # no election while a disk is slow
Slow = Callable[[Member, Member], None]


@asynccontextmanager
async def serving(members: Members) -> AsyncIterator[ControllerClient]:
    """The broker is registered, serves, and says so every second."""
    node = members.all[BROKER].node
    client = ControllerClient(node.channel, MetadataCache(node.publisher, CLUSTER, BROKER), BROKER)
    await client.register(b"i" * 16, [], [])
    heartbeats = Heartbeats(BROKER, client, node.driver.news, INTERVAL_S)
    node.publisher.subscribe(heartbeats.on_image)
    await heartbeats.begin(node.publisher.image)
    task = asyncio.ensure_future(heartbeats.run())
    try:
        yield client
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def is_fenced(member: Member) -> bool:
    broker = member.node.publisher.image.brokers.get(BROKER)
    assert broker is not None
    return broker.is_fenced


def slow_command(leader: Member, broker: Member) -> None:
    """The answer to one command takes long, and answers of one connection come in order."""
    answer = leader.transport.commands.answer

    async def answer_late(request: ForwardCommandRequest) -> Any:
        if decode_request_header(request.command)[0].api_key == CREATE_TOPICS:
            await asyncio.sleep(SLOW_S)
        return await answer(request)

    leader.transport.commands.answer = answer_late  # type: ignore[method-assign]


async def slow_once() -> None:
    await asyncio.sleep(SLOW_S)


def slow_commit(leader: Member, broker: Member) -> None:
    """The disk of who leads takes long, and what is decided meanwhile waits for it."""
    leader.node.driver.before_commit = slow_once


def slow_image(leader: Member, broker: Member) -> None:
    """The broker's own copy of the metadata is behind: the disk below it takes long."""
    broker.node.driver.before_commit = slow_once


@pytest.mark.parametrize("slow", [slow_command, slow_commit, slow_image])
def test_a_broker_beside_a_slow_command_is_not_fenced(slow: Slow) -> None:
    """Its session is half as long as the command takes."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, observers=(BROKER,))
        await members.start(session_ms=SESSION_MS, ticks=PATIENT)
        broker, leader = members.all[BROKER], await members.leader()
        seen: list[bool] = []
        async with serving(members):
            leader.node.publisher.subscribe(lambda delta, image: seen.append(is_fenced(leader)))
            slow(leader, broker)
            began_s = loop.time()
            request = CreateTopicsRequest([CreatableTopic("t", 1, 1)])
            created = asyncio.ensure_future(broker.node.channel.send(request))
            await asyncio.sleep(SLOW_S + 1)
            assert (await created).topics[0].error_code == 0
            assert loop.time() - began_s >= SLOW_S
            await asyncio.sleep(SESSION_MS / 1000)
            assert seen
            assert not any(seen), "it was fenced"

    run_simulation(main)


def test_a_broker_whose_heartbeat_is_not_answered_asks_again_within_its_session() -> None:
    """Over another connection: the one that it had lets nothing pass any more, and nobody closes it."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, observers=(BROKER,))
        await members.start(session_ms=SESSION_MS)
        leader, stuck = await members.leader(), asyncio.Event()
        seen: list[bool] = []
        async with serving(members):
            leader.node.publisher.subscribe(lambda delta, image: seen.append(is_fenced(leader)))
            answer = leader.transport.commands.answer

            async def answer_once_never(request: ForwardCommandRequest) -> Any:
                if not stuck.is_set() and decode_request_header(request.command)[0].api_key == HEARTBEAT:
                    stuck.set()
                    await asyncio.Event().wait()
                return await answer(request)

            leader.transport.commands.answer = answer_once_never  # type: ignore[method-assign]
            await stuck.wait()
            await asyncio.sleep(2 * SESSION_MS / 1000)
            assert True not in seen, "it was fenced"

    run_simulation(main)


def test_a_broker_whose_controller_is_far_away_is_not_fenced() -> None:
    """Each answer takes more than half a session, and nothing is lost."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, observers=(BROKER,))
        await members.start(session_ms=SESSION_MS, ticks=PATIENT)
        leader = await members.leader()
        seen: list[bool] = []
        async with serving(members):
            leader.node.publisher.subscribe(lambda delta, image: seen.append(is_fenced(leader)))
            members.net.delay_us = 820_000, 850_000
            await asyncio.sleep(10 * SESSION_MS / 1000)
            assert True not in seen, "it was fenced"

    run_simulation(main)


def test_a_broker_that_serves_has_an_image_that_says_so() -> None:
    """The answer to a heartbeat runs ahead of the images; `begin` returns when one has what it says."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, observers=(BROKER,))
        await members.start(session_ms=SESSION_MS)
        await members.leader()
        async with serving(members):
            assert not is_fenced(members.all[BROKER])

    run_simulation(main)


def test_a_new_controller_is_told_at_once() -> None:
    """And not an interval later."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, observers=(BROKER,))
        await members.start(session_ms=SESSION_MS)
        first = await members.leader()
        async with serving(members):
            await asyncio.sleep(INTERVAL_S / 2)
            await members.stop(first.node_id)
            del members.all[first.node_id]
            second = await members.leader()
            heard: list[float] = []
            answer = second.transport.commands.decide

            async def noted(command: Any) -> Any:
                if isinstance(command, BrokerHeartbeatRequest):
                    heard.append(loop.time())
                return await answer(command)

            second.transport.commands.decide = noted  # type: ignore[method-assign]
            news = members.all[BROKER].node.driver.news
            await members.until(lambda: news.leader == second.node_id)
            known_s = loop.time()
            await members.until(lambda: bool(heard))
            assert heard[0] - known_s < INTERVAL_S / 10

    run_simulation(main)
