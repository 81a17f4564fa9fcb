"""Commands from any node of a cluster to whoever leads its quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.kraft import controller, node
from millrace.kraft.commands.spreading import PARTITIONS_MAX
from millrace.kraft.errors import CommandLost, CommandNotTaken, ProposalDropped
from millrace.kraft.news import QuorumNews
from millrace.kraft.peers.channel import QuorumChannel
from millrace.kraft.peers.connection import PeerConnection, PeerLost
from millrace.kraft.peers.ways import Ways
from millrace.protocol.apis import NAMED, api_of
from millrace.protocol.codec import encode_request, encode_response
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from millrace.protocol.messages.envelope import EnvelopeRequest
from millrace.protocol.messages.forward_command import ForwardCommandRequest, ForwardCommandResponse
from millrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from millrace.protocol.messages.report_load import LoadedPartition, LoadedTopic, ReportLoadRequest
from millrace.protocol.messages.update_features import UpdateFeaturesRequest
from millrace.runtime.rand import Rand
from tests.kraft.peers.members import CLUSTER, Member, Members, name
from tests.patience import PATIENCE_S
from tests.sim.loop import SimLoop, run_simulation

OBSERVER = 9
SLOW_US = (15_000, 20_000)  # a commit takes some looks
Work = Callable[[Members], Coroutine[Any, Any, None]]


def with_members(work: Work) -> Callable[[SimLoop], Coroutine[Any, Any, None]]:
    async def main(loop: SimLoop) -> None:
        members = Members(loop, observers=(OBSERVER,))
        await members.start()
        await members.leader()
        await work(members)

    return main


def registration(broker_id: int = OBSERVER, incarnation: int = 1) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(broker_id, CLUSTER, incarnation.to_bytes(16, "big"))


def topics(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(one, 1, 1) for one in names])


async def create(member: Member, topic: str) -> None:
    response = await member.transport.channel.send(topics(topic))
    assert response.topics[0].error_code == 0, response


def forwarded(members: Members) -> int:
    return sum(isinstance(one, ForwardCommandRequest) for one in members.asked)


def cut(members: Members, node_id: int) -> None:
    for other in members.all:
        if other != node_id:
            members.net.sever(name(node_id), name(other))
            members.net.sever(name(other), name(node_id))


def test_a_command_of_any_node_holds_in_its_own_image() -> None:
    """Of an observer, of a follower and of who leads: at once on return, wherever it was decided."""

    async def work(members: Members) -> None:
        await members.all[OBSERVER].transport.channel.send(registration())
        for node_id, member in members.all.items():
            await create(member, f"t{node_id}")
            assert member.node.publisher.image.topics.by_name(f"t{node_id}") is not None
        assert forwarded(members) == 1 + 3  # who leads asks nobody

    run_simulation(with_members(work))


def test_a_node_with_a_slow_disk_writes_what_has_come_meanwhile_at_once() -> None:
    """Each command was a batch and a sync of who leads; one that takes a second for a sync is not a second
    behind for each, and answers commands as soon as two of them are over."""

    async def work(members: Members) -> None:
        observer, leader = members.all[OBSERVER], await members.leader()
        await observer.transport.channel.send(registration())
        loop = asyncio.get_running_loop()

        async def slow() -> None:
            await asyncio.sleep(1.0)

        observer.node.driver.before_commit = slow
        for number in range(40):
            await create(leader, f"t{number}")
        began_s = loop.time()
        await create(observer, "last")
        assert observer.node.publisher.image.topics.by_name("t39") is not None
        assert loop.time() - began_s < 4.0

    run_simulation(with_members(work))


def test_a_command_waits_for_somebody_to_lead() -> None:
    """And is decided once."""

    async def work(members: Members) -> None:
        observer = members.all[OBSERVER]
        await observer.transport.channel.send(registration())
        first = await members.leader()
        cut(members, first.node_id)
        await members.until(lambda: observer.node.driver.news.leader not in (first.node_id,))
        await create(observer, "t")
        assert observer.node.publisher.image.topics.by_name("t") is not None
        members.net.heal()
        await members.agree()

    run_simulation(with_members(work))


def test_what_was_sent_and_not_answered_is_lost_and_never_sent_again() -> None:
    """Who leads is cut off behind the command: the outcome is unknown as soon as another leads."""

    async def work(members: Members) -> None:
        observer = members.all[OBSERVER]
        await observer.transport.channel.send(registration())
        await create(observer, "before")  # its connection is there
        first = await members.leader()
        sent = forwarded(members)
        for other in members.all:
            members.net.sever(name(first.node_id), name(other))
        sending = asyncio.ensure_future(observer.transport.channel.send(topics("t")))
        await members.until(lambda: forwarded(members) > sent)
        began_s = members.loop.time()
        with pytest.raises(CommandLost, match=f"node {first.node_id}"):
            await sending
        assert members.loop.time() - began_s < 5  # and not after the time that an answer may take
        await create(observer, "u")
        assert forwarded(members) == sent + 2

    run_simulation(with_members(work))


def test_who_does_not_lead_says_so_and_the_command_is_sent_to_who_does() -> None:
    async def work(members: Members) -> None:
        observer = members.all[OBSERVER]
        await observer.transport.channel.send(registration())
        leader = (await members.leader()).node_id
        other = next(voter for voter in members.voters if voter != leader)
        news = observer.node.driver.news
        news.leader, sent = other, forwarded(members)
        sending = asyncio.ensure_future(observer.transport.channel.send(topics("t")))
        await members.until(lambda: forwarded(members) > sent)
        assert not sending.done()
        await sending
        assert forwarded(members) > sent + 1

    run_simulation(with_members(work))


def test_a_controller_without_room_is_told_apart_from_one_that_lost_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(members: Members) -> None:
        channel = members.all[OBSERVER].transport.channel
        await channel.send(registration())
        monkeypatch.setattr(controller, "PENDING_MAX", 0)
        with pytest.raises(CommandNotTaken, match="THROTTLING_QUOTA_EXCEEDED"):
            await channel.send(topics("t"))
        monkeypatch.undo()
        leader = await members.leader()
        members.net.delay_us = SLOW_US
        sending = asyncio.ensure_future(channel.send(topics("t")))
        await members.until(lambda: bool(leader.node.controller._groups))
        leader.node.driver.resign()
        with pytest.raises(CommandLost, match="lost the command"):
            await sending

    run_simulation(with_members(work))


def command_frame(api_name: str, version: int, request: Any) -> bytes:
    return encode_request(NAMED[api_name], version, 7, None, request)[4:]


def loads(count: int) -> ReportLoadRequest:
    partitions = [LoadedPartition(index, 1, 1) for index in range(count)]
    return ReportLoadRequest(1, 1, [LoadedTopic(bytes(16), partitions)])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "INVALID_REQUEST"),
        (b"\x7f\xff" + bytes(8), "INVALID_REQUEST"),
        (command_frame("CreateTopics", 7, topics("t"))[:-4], "INVALID_REQUEST"),
        (command_frame("ListGroups", 5, NAMED["ListGroups"].request_type()), "INVALID_REQUEST"),
        (
            b"\0\x13\0\x63" + command_frame("CreateTopics", 7, topics("t"))[4:],
            "UNSUPPORTED_VERSION",
        ),
        (command_frame("Envelope", 0, EnvelopeRequest(b"", None)), "INVALID_REQUEST"),
        (command_frame("ReportLoad", 0, loads(PARTITIONS_MAX + 2)), "INVALID_REQUEST"),
        (command_frame("ReportLoad", 0, loads(PARTITIONS_MAX + 1)), "NOT_CONTROLLER"),  # it does no duties
    ],
)
def test_what_is_no_command_is_refused(data: bytes, code: str) -> None:
    async def work(members: Members) -> None:
        leader = await members.leader()
        answer = await leader.transport.answer(ForwardCommandRequest(data))
        assert answer == ForwardCommandResponse(ErrorCode[code])

    run_simulation(with_members(work))


def test_an_unknown_command_is_refused_to_who_asked() -> None:
    """An active controller of an earlier version knows no such command."""

    async def work(members: Members) -> None:
        observer, leader = members.all[OBSERVER], await members.leader()

        async def refuse(request: Any) -> ForwardCommandResponse:
            return ForwardCommandResponse(ErrorCode.UNSUPPORTED_VERSION)

        leader.transport.commands.answer = refuse  # type: ignore[method-assign]
        with pytest.raises(KafkaError) as refused:
            await observer.transport.channel.send(topics("t"))
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION

    run_simulation(with_members(work))


@pytest.mark.parametrize("delays", [b"net", b"a", b"b", b"c"])
def test_a_leader_that_closes_hands_over(delays: bytes) -> None:
    """What was proposed is committed, the others hear of it, and the first that was named leads; an observer
    finds it."""

    async def work(members: Members) -> None:
        members.net.rand = Rand(delays)
        observer, first = members.all[OBSERVER], await members.leader()
        await observer.transport.channel.send(registration())
        members.net.delay_us = SLOW_US
        sending = asyncio.ensure_future(observer.transport.channel.send(topics("t")))
        await members.until(lambda: bool(first.node.controller._groups))
        members.net.delay_us = (50, 300)
        began_s = members.loop.time()
        await first.node.close()
        await first.transport.close()
        members.net.reset(first.life)
        assert members.loop.time() - began_s < node.HAND_OVER_S
        assert (await sending).topics[0].error_code == 0
        del members.all[first.node_id]
        await members.until(lambda: members.leading() is not None)
        settings = first.node.driver.raft.settings
        took_ticks = (members.loop.time() - began_s) * 1000 / first.node.settings.ticks.ms
        assert took_ticks < settings.election_ticks
        await create(observer, "u")

    run_simulation(with_members(work))


def test_a_leader_that_has_lost_the_others_closes_all_the_same() -> None:
    async def work(members: Members) -> None:
        first = await members.leader()
        await first.transport.channel.send(registration())
        cut(members, first.node_id)
        sending = asyncio.ensure_future(first.transport.channel.send(topics("t")))
        await members.until(lambda: bool(first.node.controller._groups))
        await first.node.close()
        await first.transport.close()
        assert isinstance(sending.exception(), Exception)

    run_simulation(with_members(work))


def test_who_waited_for_a_connection_asks_who_leads_by_then() -> None:
    """Commands stand in line for one connection, to a leader that is gone: once another leads it is the next
    that is tried, and not the dead one once more for each of them."""

    async def main(loop: SimLoop) -> None:
        news, tried = QuorumNews(), list[tuple[float, int]]()

        async def decide(request: object) -> object:
            raise AssertionError("it does not lead")

        async def connect(place: tuple[str, int]) -> PeerConnection:
            tried.append((loop.time() - began, place[1]))
            await asyncio.sleep(2)
            raise PeerLost(f"node{place[1]}:9093", "no connection within 2.0 s")

        def ways(lane: str) -> Ways[int]:
            return Ways(lane, lambda node_id: ("node", node_id), connect)

        channel, began = QuorumChannel(OBSERVER, decide, news, ways), loop.time()
        news.tell(1, 1, 0, is_active=False)
        sending = [asyncio.create_task(channel.send(topics(f"t{number}"))) for number in range(5)]
        await asyncio.sleep(1)
        news.tell(2, 3, 0, is_active=False)
        await asyncio.sleep(2)
        assert tried == [(0, 1), (2, 3)]
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    run_simulation(main)


class Asked:
    """A connection whose answers a test gives, by hand."""

    def __init__(self) -> None:
        self.is_open, self.used_at_s = True, 0.0
        self.answers: list[asyncio.Future[ForwardCommandResponse]] = []

    @property
    def is_idle(self) -> bool:
        return all(answer.done() for answer in self.answers)

    def version_of(self, api: Any) -> int:
        return int(api.max_stable_version)

    async def ask(self, request: Any, timeout_s: float) -> ForwardCommandResponse:
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def close(self) -> None:
        self.is_open = False
        for answer in self.answers:
            if not answer.done():
                answer.set_exception(PeerLost("node:9093", "closed"))


class TwoLeaders:
    """Node 1 leads, and then node 2: a channel, and the connections to both."""

    def __init__(self) -> None:
        self.news, self.to = QuorumNews(), {1: Asked(), 2: Asked()}
        self.channel = QuorumChannel(OBSERVER, self._decide, self.news, self._ways)
        self.news.tell(1, 1, 0, is_active=False)

    async def _decide(self, request: object) -> object:
        raise AssertionError("it does not lead")

    def _ways(self, lane: str) -> Ways[int]:
        async def connect(place: tuple[str, int]) -> Asked:
            return self.to[place[1]]

        return Ways(lane, lambda node_id: ("node", node_id), connect)  # type: ignore[arg-type]

    async def sent(self, request: Any) -> asyncio.Task[Any]:
        """To node 1; then node 2 leads."""
        sending = asyncio.create_task(self.channel.send(request))
        await asyncio.sleep(0.1)
        assert len(self.to[1].answers) == 1
        self.news.tell(2, 2, 0, is_active=False)
        await asyncio.sleep(0.1)
        return sending


def reply_to(request: Any) -> ForwardCommandResponse:
    api = api_of(request)
    response = encode_response(api, api.max_stable_version, 0, api.response_type())
    return ForwardCommandResponse(reply=b"".join(response)[4:], metadata_offset=0)


@pytest.mark.parametrize("is_decided", [True, False])
def test_who_led_may_still_answer_what_it_was_asked_before(is_decided: bool) -> None:
    """A leader that is stopped gives the leadership away and says what became of each command: that word may
    come behind the news of the next leader. A command of which it decided nothing goes to that one."""

    async def main(loop: SimLoop) -> None:
        both, asked = TwoLeaders(), topics("t")
        sending = await both.sent(asked)
        assert not sending.done()
        told = reply_to(asked) if is_decided else ForwardCommandResponse(ErrorCode.NOT_CONTROLLER)
        both.to[1].answers[0].set_result(told)
        await asyncio.sleep(1)
        assert len(both.to[2].answers) == int(not is_decided)
        if not is_decided:
            both.to[2].answers[0].set_result(reply_to(asked))
        await sending
        assert not both.to[1].is_open
        both.channel.close()

    run_simulation(main)


def test_who_led_and_says_nothing_has_lost_what_it_was_asked() -> None:
    """It may stand still, or be cut off: after half a second the outcome is unknown."""

    async def main(loop: SimLoop) -> None:
        both, began = TwoLeaders(), loop.time()
        with pytest.raises(CommandLost, match="node 1"):
            await (await both.sent(topics("t")))
        assert loop.time() - began < 1
        both.channel.close()

    run_simulation(main)


def test_a_closed_channel_waits_for_nobody() -> None:
    """Nor for who led before."""

    async def main(loop: SimLoop) -> None:
        both = TwoLeaders()
        sending = await both.sent(topics("t"))
        both.channel.close()
        await asyncio.sleep(0)
        assert not both.to[1].is_open
        with pytest.raises(CommandLost):
            await sending

    run_simulation(main)


@pytest.mark.parametrize("leader", [-1, 1, 2])
def test_what_waits_to_be_sent_is_over_when_the_channel_is_closed(leader: int) -> None:
    """For somebody to lead, for a connection that is being made (to node 1), or for the pause behind one that
    failed (to node 2); and so is what is asked later. It was sent nowhere, and nobody who waits is
    cancelled."""

    async def main(loop: SimLoop) -> None:
        news = QuorumNews()

        async def decide(request: object) -> object:
            raise AssertionError("it does not lead")

        async def connect(place: tuple[str, int]) -> PeerConnection:
            if place[1] == 1:
                await asyncio.Event().wait()
            raise PeerLost("node:9093", "nobody is there")

        def ways(lane: str) -> Ways[int]:
            return Ways(lane, lambda node_id: ("node", node_id), connect)

        channel = QuorumChannel(OBSERVER, decide, news, ways)
        if leader >= 0:
            news.tell(1, leader, 0, is_active=False)
        asked = [topics("t"), DescribeQuorumRequest(), registration()]
        sending = [asyncio.create_task(channel.send(one)) for one in asked]
        await asyncio.sleep(1)
        channel.close()
        sending += [asyncio.create_task(channel.send(one)) for one in asked]
        _, waiting = await asyncio.wait(sending, timeout=PATIENCE_S)
        assert not waiting
        assert [type(one.exception()) for one in sending] == [CommandLost] * 6

    run_simulation(main)


@pytest.mark.parametrize(
    "asked",
    [
        DescribeQuorumRequest(),
        ListPartitionReassignmentsRequest(),
        CreateTopicsRequest(validate_only=True),
        UpdateFeaturesRequest(validate_only=True),
    ],
    ids=lambda asked: api_of(asked).name,
)
def test_a_question_that_was_lost_is_asked_again(asked: Any) -> None:
    """It changes nothing, however often it is decided; nor does what is only to be validated."""

    async def main(loop: SimLoop) -> None:
        both = TwoLeaders()
        sending = await both.sent(asked)
        await asyncio.sleep(1)  # node 1 says nothing
        (answer,) = both.to[2].answers
        answer.set_result(reply_to(asked))
        assert await sending == api_of(asked).response_type()
        both.channel.close()

    run_simulation(main)


@pytest.mark.parametrize("validate_only", [True, False])
def test_what_this_node_dropped_is_asked_of_who_leads_next_where_it_changes_nothing(
    validate_only: bool,
) -> None:
    """It leads, and loses that before it has a majority for what it decided: so is a question lost."""

    async def main(loop: SimLoop) -> None:
        both, asked, dropped = (
            TwoLeaders(),
            CreateTopicsRequest(validate_only=validate_only),
            loop.create_future(),
        )
        both.channel._decide = lambda request: dropped
        both.news.tell(OBSERVER, 1, 0, is_active=True)
        sending = asyncio.create_task(both.channel.send(asked))
        await asyncio.sleep(0.1)
        both.news.tell(2, 2, 0, is_active=False)
        dropped.set_exception(ProposalDropped(2))
        await asyncio.sleep(1)
        if validate_only:
            (answer,) = both.to[2].answers
            answer.set_result(reply_to(asked))
            assert await sending == api_of(asked).response_type()
        else:
            with pytest.raises(ProposalDropped):
                await sending
            assert not both.to[2].answers
        both.channel.close()

    run_simulation(main)


def test_news_wake_in_the_order_of_offsets_and_for_each_change() -> None:
    async def main() -> None:
        news, woken = QuorumNews(5), list[object]()

        async def wait(offset: int) -> None:
            await news.reach(offset)
            woken.append(offset)

        async def watch() -> None:
            await news.changed()
            woken.append("changed")

        await news.reach(5)
        tasks = [asyncio.ensure_future(wait(offset)) for offset in (9, 7, 8)]
        tasks += [asyncio.ensure_future(watch()), asyncio.ensure_future(watch())]
        await asyncio.sleep(0)
        news.tell(0, -1, 6, is_active=False)
        await asyncio.sleep(0)
        assert woken == []
        news.tell(0, -1, 8, is_active=False)
        await asyncio.sleep(0)
        assert woken == [7, 8]
        tasks[0].cancel()
        news.tell(1, 2, 8, is_active=False)
        await asyncio.sleep(0)
        assert woken == [7, 8, "changed", "changed"]
        news.tell(1, 2, 20, is_active=False)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert woken == [7, 8, "changed", "changed"]

    asyncio.run(main())
