"""A broker that lives is heard, however long something else takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace.broker.controller_client import ControllerClient
from millrace.broker.metadata_cache import MetadataCache
from millrace.broker.quorum.heartbeats import AGAIN_S, UNDER_WAY_MAX, Heartbeats, Word
from millrace.kraft.config import Ticks
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.news import QuorumNews
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.forward_command import ForwardCommandRequest
from millrace.runtime.errors import Unavailable
from millrace.s3stream.errors import StreamFenced
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
async def serving(members: Members, interval_s: float = INTERVAL_S) -> AsyncIterator[ControllerClient]:
    """The broker is registered, serves, and says so at each interval."""
    node = members.all[BROKER].node
    client = ControllerClient(node.channel, MetadataCache(node.publisher, CLUSTER, BROKER), BROKER)
    await client.register(b"i" * 16, [], [])
    heartbeats = Heartbeats(BROKER, client, node.driver.news, interval_s)
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


@pytest.mark.parametrize("interval_s", [INTERVAL_S, SESSION_MS / 2000])
def test_a_broker_whose_controller_is_far_away_is_not_fenced(interval_s: float) -> None:
    """Each answer takes more than half a session, and nothing is lost. With the longer interval an answer and
    an interval are more than a session."""

    async def main(loop: SimLoop) -> None:
        members = Members(loop, observers=(BROKER,))
        await members.start(session_ms=SESSION_MS, ticks=PATIENT)
        leader = await members.leader()
        seen: list[bool] = []
        async with serving(members, interval_s):
            leader.node.publisher.subscribe(lambda delta, image: seen.append(is_fenced(leader)))
            members.net.delay_us = 860_000, 890_000
            await asyncio.sleep(20 * SESSION_MS / 1000)
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


class Answers:
    """A controller whose answers are given by hand, in any order."""

    def __init__(self, leader: int = 1) -> None:
        self.news = QuorumNews(0)
        self.news.leader = leader
        self.broker_epoch = 0
        self.asked: list[tuple[dict[str, bool], asyncio.Future[BrokerHeartbeatResponse]]] = []
        self.heartbeats = Heartbeats(BROKER, self, self.news, INTERVAL_S)  # type: ignore[arg-type]

    async def heartbeat(self, **words: bool) -> BrokerHeartbeatResponse:
        answer: asyncio.Future[BrokerHeartbeatResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((words, answer))
        return await answer

    def answer(self, number: int, *, is_fenced: bool) -> None:
        self.asked[number][1].set_result(BrokerHeartbeatResponse(is_fenced=is_fenced))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Future[None]]:
        """It serves."""
        task = asyncio.ensure_future(self.heartbeats.run())
        begun = asyncio.ensure_future(self.heartbeats.begin(EMPTY_IMAGE))
        await asyncio.sleep(0.01)
        self.heartbeats._is_seen.set()
        self.answer(0, is_fenced=False)
        await begun
        self.asked.clear()
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_a_start_waits_until_the_broker_is_taken_for_one_that_serves() -> None:
    """Who makes a topic as soon as the node is ready would be told that no broker is there."""

    async def main(loop: SimLoop) -> None:
        answers = Answers()
        task = asyncio.ensure_future(answers.heartbeats.run())
        begun = asyncio.ensure_future(answers.heartbeats.begin(EMPTY_IMAGE))
        await asyncio.sleep(0.01)
        answers.answer(0, is_fenced=True)
        await asyncio.sleep(1.5 * INTERVAL_S)
        assert len(answers.asked) == 2
        answers.answer(1, is_fenced=False)
        await asyncio.sleep(0.01)
        assert not begun.done()
        answers.heartbeats._is_seen.set()  # an image came
        await begun
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_simulation(main)


def test_few_are_under_way() -> None:
    """Each interval one, until so many are not answered; none beside one while nobody leads. Cancelled, none
    goes on."""

    async def main(loop: SimLoop) -> None:
        answers = Answers()
        async with answers.running():
            await asyncio.sleep(2.5 * INTERVAL_S)
            assert len(answers.asked) == 2
            await asyncio.sleep(10 * INTERVAL_S)
            assert len(answers.asked) == UNDER_WAY_MAX
            answers.answer(1, is_fenced=False)
            await asyncio.sleep(1.1 * INTERVAL_S)
            assert len(answers.asked) == UNDER_WAY_MAX + 1
        assert all(answer.done() for _, answer in answers.asked)
        answers = Answers(leader=-1)
        async with answers.running():
            await asyncio.sleep(10 * INTERVAL_S)
            assert len(answers.asked) == 1

    run_simulation(main)


def test_a_late_answer_moves_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    """Of who led before: a later word has been answered by then."""

    async def main(loop: SimLoop) -> None:
        answers = Answers()
        async with answers.running():
            await asyncio.sleep(3.5 * INTERVAL_S)
            answers.answer(1, is_fenced=False)
            await asyncio.sleep(0.01)
            answers.answer(0, is_fenced=True)
            await asyncio.sleep(0.01)
            assert "fenced: " not in caplog.text
            answers.answer(2, is_fenced=True)
            await asyncio.sleep(0.01)
            assert caplog.text.count("fenced: True") == 1

    run_simulation(main)


def test_one_that_is_lost_is_followed_by_another_at_once() -> None:
    """Which says what holds by then: one that was to say that the broker starts is not said again once it
    serves. That the broker was replaced is believed whenever it is told."""

    async def main(loop: SimLoop) -> None:
        answers = Answers()
        async with answers.running() as task:
            await asyncio.sleep(1.1 * INTERVAL_S)
            answers.heartbeats._word = Word.ENDS
            answers.asked[0][1].set_exception(Unavailable("away"))
            await asyncio.sleep(2 * AGAIN_S)
            said = [(words["want_shut_down"], words["is_repeated"]) for words, _ in answers.asked]
            assert said == [(False, False), (True, False)]
            await asyncio.sleep(1.1 * INTERVAL_S)
            answers.answer(2, is_fenced=False)
            answers.asked[1][1].set_exception(StreamFenced(-1, 0))
            with pytest.raises(StreamFenced):
                await task

    run_simulation(main)
