"""Sessions of brokers: who is fenced, when, and by whom never."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.kraft.errors import NotLeader
from millrace.kraft.sessions import Sessions
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tests.kraft.build import create_topic
from tests.kraft.peers.members import CLUSTER, Member, Members, name
from tests.sim.loop import SimLoop, run_simulation

SESSION_MS = 3000
BROKER = 9


def looked(sessions: Sessions, until_s: float, from_s: float = 0.0) -> list[tuple[float, int]]:
    """Who is found gone, and when first, with looks on time."""
    found: dict[int, float] = {}
    now_s = from_s
    while now_s < until_s:
        now_s += sessions.look_every_s
        for broker_id in sessions.look(now_s):
            found.setdefault(broker_id, now_s)
    return [(now_s, broker_id) for broker_id, now_s in found.items()]


def test_a_broker_that_says_nothing_for_a_session_is_gone() -> None:
    sessions = Sessions(4.0)
    sessions.begin([1, 2], 0.0)
    sessions.hear(2, 2.5)
    sessions.hear(3, 2.5)
    assert looked(sessions, 10.0) == [(4.0, 1), (7.0, 2), (7.0, 3)]


def test_a_look_is_due_when_a_session_ends() -> None:
    """Not at the next of the regular ones: nobody waits longer for a failover than a session."""
    sessions = Sessions(4.0)
    sessions.begin([1, 2], 0.0)
    sessions.hear(2, 0.3)
    now_s, found = 0.0, dict[int, float]()
    while len(found) < 2:
        now_s += sessions.wait_s(now_s)
        for broker_id in sessions.look(now_s):
            found.setdefault(broker_id, now_s)
        assert now_s < 10.0
    assert 4.0 <= found[1] < 4.01
    assert 4.3 <= found[2] < 4.31
    assert sessions.wait_s(now_s) == sessions.look_every_s
    assert sessions.wait_s(now_s + 60.0) == sessions.look_every_s, "where nobody looked, as while others lead"


def test_who_is_gone_is_told_again_until_it_is_forgotten_or_heard() -> None:
    sessions = Sessions(4.0)
    sessions.begin([1, 2], 0.0)
    looked(sessions, 3.0)
    assert sessions.look(4.0) == sessions.look(5.0) == [1, 2]
    sessions.forget(1)
    sessions.hear(2, 5.5)
    assert sessions.look(6.0) == []
    assert sessions.alive() == {2}


def test_who_is_found_gone_is_not_alive_and_may_be_heard_before_it_is_forgotten() -> None:
    """Fencing takes a commit, and may be refused: until then it is found again by each look."""
    sessions = Sessions(4.0)
    sessions.begin([1, 2], 0.0)
    looked(sessions, 3.0)
    assert sessions.alive() == {1, 2}
    assert sessions.look(4.0) == [1, 2]
    assert sessions.alive() == frozenset()
    sessions.hear(2, 4.1)
    for broker_id in (1, 2):
        sessions.forget(broker_id)
    assert sessions.alive() == {2}


def test_a_controller_that_was_late_itself_finds_nobody_gone() -> None:
    """A look that comes long after it was due: heartbeats may lie unread, and everybody has a whole session
    from then on."""
    sessions = Sessions(4.0)
    sessions.begin([1], 0.0)
    looked(sessions, 2.0)
    assert sessions.look(6.0) == []
    assert looked(sessions, 20.0, 6.0) == [(10.0, 1)]


@pytest.mark.parametrize("stood_s", [0.5, 1.0, 1.5, 2.0, 2.2])
@pytest.mark.parametrize("every_s", [1.0, 1.5])
def test_who_could_not_be_heard_is_not_found_gone(every_s: float, stood_s: float) -> None:
    """The controller stood still, and looks before it reads what came meanwhile, which may take as long as it
    stood, or until a look is due anyway. Who is gone is found soon after, or a session later where it stood
    for long."""
    soon_s = 0.75 if stood_s <= 1.5 else 3.01
    for step in range(100):
        sessions, began_s = Sessions(3.0), 3.0 + step * 0.015
        sessions.begin([1, 2], 0.0)
        now_s = said_s = 0.0
        found: dict[int, float] = {}
        while now_s < began_s:
            now_s += sessions.wait_s(now_s)
            while said_s + every_s < min(now_s, began_s):
                said_s += every_s
                sessions.hear(1, said_s)
            due_s, now_s = now_s, now_s if now_s < began_s else max(now_s, began_s + stood_s)
            found = dict.fromkeys(sessions.look(now_s), now_s) | found
        read_s = now_s + 0.9 * min(now_s - due_s, sessions.look_every_s)
        while (now_s := now_s + sessions.wait_s(now_s)) < read_s:
            found = dict.fromkeys(sessions.look(now_s), now_s) | found
        assert 1 not in found, (began_s, now_s)
        sessions.hear(1, read_s)
        found = dict.fromkeys(sessions.look(now_s), now_s) | found
        while 2 not in found:
            now_s += sessions.wait_s(now_s)
            found = dict.fromkeys(sessions.look(now_s), now_s) | found
        assert found[2] <= began_s + stood_s + soon_s


async def register(member: Member, incarnation: int = 1) -> int:
    request = BrokerRegistrationRequest(BROKER, CLUSTER, incarnation.to_bytes(16, "big"))
    return int((await member.transport.channel.send(request)).broker_epoch)


async def heartbeat(member: Member, epoch: int, **words: Any) -> Any:
    request = BrokerHeartbeatRequest(BROKER, epoch, member.node.publisher.image.offset, **words)
    return await member.transport.channel.send(request)


def is_fenced(member: Member) -> bool:
    broker = member.node.publisher.image.brokers.get(BROKER)
    assert broker is not None
    return broker.is_fenced


async def started(loop: SimLoop) -> tuple[Members, Member]:
    members = Members(loop, observers=(BROKER,))
    await members.start(session_ms=SESSION_MS)
    return members, members.all[BROKER]


def test_a_broker_is_fenced_until_its_first_heartbeat_and_when_it_is_silent() -> None:
    async def main(loop: SimLoop) -> None:
        members, broker = await started(loop)
        epoch = await register(broker)
        assert is_fenced(broker)
        response = await create_topic(broker.node, "early")
        assert response.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert not (await heartbeat(broker, epoch)).is_fenced
        await members.agree()
        assert not is_fenced(broker)
        for _ in range(6):
            await asyncio.sleep(SESSION_MS / 2000)
            await heartbeat(broker, epoch)
            assert not is_fenced(broker)
        await members.until(lambda: is_fenced(broker))
        assert not (await heartbeat(broker, epoch)).is_fenced
        await members.agree()
        assert (await heartbeat(broker, epoch, want_shut_down=True)).should_shut_down
        await members.agree()
        assert is_fenced(broker)

    run_simulation(main)


def test_a_broker_that_starts_is_not_unregistered() -> None:
    """It is fenced as one that is gone is, and lives. One that has ended in order is forgotten at once, and
    so is one that is silent, once its session is over."""

    async def main(loop: SimLoop) -> None:
        broker = (await started(loop))[1]

        async def unregister() -> int:
            return int((await broker.transport.channel.send(UnregisterBrokerRequest(BROKER))).error_code)

        epoch = await register(broker)
        assert await unregister() == ErrorCode.INVALID_REQUEST
        assert (await heartbeat(broker, epoch, want_fence=True)).error_code == 0
        await asyncio.sleep(2 * SESSION_MS / 1000)
        assert await unregister() == 0
        epoch = await register(broker, incarnation=2)
        assert not (await heartbeat(broker, epoch)).is_fenced
        assert await unregister() == ErrorCode.INVALID_REQUEST
        assert (await heartbeat(broker, epoch, want_shut_down=True)).should_shut_down
        assert await unregister() == 0

    run_simulation(main)


def test_a_new_leader_gives_everybody_a_session() -> None:
    """Whoever was heard by the one before it: nobody is fenced for an election."""

    async def main(loop: SimLoop) -> None:
        members, broker = await started(loop)
        epoch = await register(broker)
        await heartbeat(broker, epoch)
        await asyncio.sleep(SESSION_MS * 0.9 / 1000)
        first = await members.leader()
        began_s = loop.time()
        for other in members.all:
            if other != first.node_id:
                members.net.sever(name(first.node_id), name(other))
                members.net.sever(name(other), name(first.node_id))
        await members.until(lambda: members.leading() not in (None, first))
        second = await members.leader()
        led_s = loop.time()
        assert led_s - began_s > SESSION_MS * 0.1 / 1000  # the session would have been over
        await members.until(lambda: is_fenced(second))
        assert loop.time() - led_s > SESSION_MS * 0.9 / 1000
        assert first.node.controller.watch.look() is None or isinstance(
            first.node.controller._why_not_now(), NotLeader
        )

    run_simulation(main)


def test_an_earlier_incarnation_is_not_heard() -> None:
    """Its heartbeats keep nobody alive, and tell it that it was replaced."""

    async def main(loop: SimLoop) -> None:
        members, broker = await started(loop)
        old = await register(broker)
        await heartbeat(broker, old)
        new = await register(broker, 2)
        assert is_fenced(broker)
        await heartbeat(broker, new)
        await members.agree()
        assert not is_fenced(broker)
        refused = []

        async def go_on() -> None:
            while True:
                refused.append((await heartbeat(broker, old)).error_code)
                await asyncio.sleep(0.2)

        task = asyncio.ensure_future(go_on())
        await members.until(lambda: is_fenced(broker))
        task.cancel()
        assert set(refused) == {ErrorCode.STALE_BROKER_EPOCH}

    run_simulation(main)


def test_who_led_before_and_went_silent_has_what_is_left_of_its_session() -> None:
    """Its silence counts from when the new leader heard of it last; something is always left, in which one
    that lives is heard."""
    sessions = Sessions(3.0)
    sessions.begin([1, 2], 10.0, silent_id=1, silent_s=1.5)
    assert looked(sessions, 20.0, 10.0) == [(11.5, 1), (13.0, 2)]
    sessions.begin([1, 2], 30.0, silent_id=1, silent_s=9.0)
    assert looked(sessions, 40.0, 30.0) == [(31.5, 1), (33.0, 2)]
    sessions.begin([1, 2], 50.0, silent_id=1, silent_s=9.0)
    sessions.hear(1, 50.9)
    assert looked(sessions, 60.0, 50.0) == [(53.0, 2), (54.5, 1)]
    sessions.begin([1, 2], 70.0, silent_id=7, silent_s=9.0)
    assert looked(sessions, 80.0, 70.0) == [(73.0, 1), (73.0, 2)]


async def led_by_a_broker(loop: SimLoop) -> tuple[Members, Member, int]:
    """Voters that are brokers too; the broker of the one that leads serves, in this epoch of it."""
    members = Members(loop)
    await members.start(session_ms=SESSION_MS)
    first = await members.leader()
    request = BrokerRegistrationRequest(first.node_id, CLUSTER, b"i" * 16)
    epoch = int((await first.node.channel.send(request)).broker_epoch)
    await beat(first, first.node_id, epoch)
    return members, first, epoch


async def beat(member: Member, broker_id: int, epoch: int) -> Any:
    request = BrokerHeartbeatRequest(broker_id, epoch, member.node.publisher.image.offset)
    return await member.node.channel.send(request)


def is_down(member: Member, broker_id: int) -> bool:
    broker = member.node.publisher.image.brokers.get(broker_id)
    assert broker is not None
    return broker.is_fenced


def test_a_leader_that_is_gone_is_fenced_a_session_after_its_last_word() -> None:
    """And not a session after the election: its broker is the same process."""

    async def main(loop: SimLoop) -> None:
        members, first, _ = await led_by_a_broker(loop)
        await asyncio.sleep(1)
        began_s = loop.time()
        members.net.reset(first.life)
        for other in members.all:
            members.net.sever(name(first.node_id), name(other))
            members.net.sever(name(other), name(first.node_id))
        del members.all[first.node_id]
        second = await members.leader()
        led_s = loop.time()
        await members.until(lambda: is_down(second, first.node_id))
        took_s, session_s = loop.time() - began_s, SESSION_MS / 1000
        assert session_s - 0.1 < took_s
        assert loop.time() - led_s < session_s - 0.1

    run_simulation(main)


def test_a_leader_that_is_replaced_and_lives_is_not_fenced() -> None:
    """Cut off for most of a session; then its broker says that it is there as soon as it hears who leads."""

    async def main(loop: SimLoop) -> None:
        members, first, epoch = await led_by_a_broker(loop)
        others = [other for other in members.all if other != first.node_id]
        for other in others:
            members.net.sever(name(first.node_id), name(other))
            members.net.sever(name(other), name(first.node_id))
        await asyncio.sleep(SESSION_MS * 0.7 / 1000)
        members.net.heal()
        news = first.node.driver.news
        await members.until(lambda: news.leader in others)
        await beat(first, first.node_id, epoch)
        second = await members.leader()
        await asyncio.sleep(SESSION_MS * 0.9 / 1000)
        assert not is_down(second, first.node_id)

    run_simulation(main)
