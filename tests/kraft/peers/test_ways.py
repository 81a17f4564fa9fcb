"""Connections to other nodes: how much is asked at a time, who this node is, what becomes of a node that
moves, ends, refuses or is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millrace.kraft.peers import connection as of_connection
from millrace.kraft.peers.authentication import Ask, AuthenticationRefused
from millrace.kraft.peers.connection import NotAuthenticated, NotSent, PeerLost
from millrace.kraft.peers.table import PeerTable
from millrace.kraft.peers.ways import (
    AGAIN_MAX_S,
    IDLE_S,
    REFUSED_AGAIN_MAX_S,
    RETIRED_S,
    Ways,
)
from millrace.protocol.apis import API
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.api_versions import ApiVersion
from millrace.protocol.messages.describe_quorum import DescribeQuorumRequest
from millrace.protocol.messages.forward_command import ForwardCommandRequest, ForwardCommandResponse
from millrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millrace.protocol.messages.vote import VoteRequest, VoteResponse
from millrace.runtime.errors import Unavailable
from millrace.runtime.net import ConnectFailed
from millrace.runtime.rand import Rand
from tests.kraft.peers.listener import MemberConnection, served
from tests.sim.loop import SimLoop, run_simulation
from tests.sim.net import SimNet

PORT, LONG_S = 9093, 100.0
SASL = (17, 36)


class Peer:
    """Node 2, as others see it. `answer` is a test's; what it was asked, and how many connections came."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.asked: list[Any] = []
        self.connections: list[MemberConnection] = []
        self.answers = asyncio.Event()  # nothing is answered before it is set
        self.answers.set()
        self.holds_ms = 0
        self.refusal = ""
        self.is_hung = False
        self.answer_s = 0.0

    async def listen(self, host: str = "b") -> Any:
        return await self._scene.net.host(host).listen(self._accept, "", PORT)

    def _accept(self) -> MemberConnection:
        versions = served()
        versions.api_keys += [ApiVersion(key, API[key].min_version, API[key].max_version) for key in SASL]
        self.connections.append(MemberConnection(self._answer, versions))
        return self.connections[-1]

    async def _answer(self, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        if isinstance(request, SaslAuthenticateRequest):
            if self.is_hung:
                await asyncio.Event().wait()
            code = ErrorCode.SASL_AUTHENTICATION_FAILED if self.refusal else ErrorCode.NONE
            return SaslAuthenticateResponse(code, self.refusal, session_lifetime_ms=self.holds_ms)
        await self.answers.wait()
        await asyncio.sleep(self.answer_s)
        return VoteResponse() if isinstance(request, VoteRequest) else ForwardCommandResponse()

    def names(self) -> list[str]:
        return [type(one).__name__.removesuffix("Request") for one in self.asked]


class Plain:
    """An authentication as SASL has them: two requests, and for how long that holds. `is_hung`: it does not
    come to ask."""

    is_hung = False

    async def authenticate(self, ask: Ask) -> float | None:
        if self.is_hung:
            await asyncio.Event().wait()
        assert "PLAIN" in (await ask(SaslHandshakeRequest("PLAIN"))).mechanisms
        answer = await ask(SaslAuthenticateRequest(b"\0node\0word"))
        if answer.error_code:
            raise AuthenticationRefused(answer.error_message)
        return answer.session_lifetime_ms / 1000 or None


class Scene:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.net = SimNet(loop, Rand(b"net"), lambda *words: None)
        self.place = ("b", PORT)
        self.unreachable: list[tuple[int, tuple[str, int]]] = []
        self.peer = Peer(self)
        self.plain = Plain()
        self.table = PeerTable(self.net.host("a"))

    def ways(self, table: PeerTable | None = None) -> Ways[int]:
        def say(node: int, place: tuple[str, int]) -> None:
            self.unreachable.append((node, place))

        return (table or self.table).ways("tests", lambda node: self.place, "node 1", on_unreachable=say)

    def authenticated(self) -> tuple[PeerTable, Ways[int]]:
        table = PeerTable(self.net.host("a"), self.plain)
        return table, self.ways(table)


def in_scene(work: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimLoop) -> None:
        async with asyncio.timeout(10_000):
            scene = Scene(loop)
            await work(scene)
            scene.table.close()
            await asyncio.sleep(1)
            assert scene.table.open_counts == {}

    run_simulation(main)


async def outcome_of(work: Coroutine[Any, Any, Any]) -> str:
    try:
        await work
    except (Unavailable, TimeoutError) as error:
        return type(error).__name__
    return "answered"


def test_a_peer_that_reads_nothing_holds_a_bounded_number_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next stand in line, in order; a full line refuses at once. Who was sent does not know what became
    of it when the time is over, who stood in line knows that nothing was sent."""
    monkeypatch.setattr(of_connection, "IN_FLIGHT_MAX", 4)
    monkeypatch.setattr(of_connection, "LINE_MAX", 3)

    async def work(scene: Scene) -> None:
        await scene.peer.listen()
        connection = await scene.ways().connected(2)
        scene.peer.connections[0].transport.pause_reading()
        tasks = [asyncio.create_task(outcome_of(connection.ask(VoteRequest(), 2.0))) for _ in range(8)]
        await asyncio.sleep(1.0)
        assert len(connection._waiting) == 4
        assert [task.done() for task in tasks] == [False] * 7 + [True]
        assert await asyncio.gather(*tasks) == ["PeerLost"] * 4 + ["NotSent"] * 4
        assert not connection.is_open

    in_scene(work)


def test_what_stands_in_line_goes_out_in_order_as_answers_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody in line gives up, and nobody overtakes who stands there."""
    monkeypatch.setattr(of_connection, "IN_FLIGHT_MAX", 2)

    async def work(scene: Scene) -> None:
        await scene.peer.listen()
        connection = await scene.ways().connected(2)
        scene.peer.answers.clear()
        tasks = [
            asyncio.create_task(connection.ask(ForwardCommandRequest(bytes([number])), LONG_S))
            for number in range(40)
        ]
        await asyncio.sleep(1)

        async def ask_behind() -> None:
            await tasks[0]
            await connection.ask(ForwardCommandRequest(bytes([40])), LONG_S)

        behind = asyncio.create_task(ask_behind())
        for number in (2, 3, 9):
            tasks[number].cancel()
        await asyncio.sleep(1)
        scene.peer.answers.set()
        await asyncio.wait([*tasks, behind])
        expected = [number for number in range(41) if number not in (2, 3, 9)]
        assert [request.command[0] for request in scene.peer.asked] == expected

    in_scene(work)


def test_bytes_that_are_not_answered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request that is larger than the bound goes alone."""
    monkeypatch.setattr(of_connection, "IN_FLIGHT_BYTES_MAX", 10_000)

    async def work(scene: Scene) -> None:
        await scene.peer.listen()
        connection = await scene.ways().connected(2)
        scene.peer.answers.clear()
        sizes = [4_000] * 5 + [50_000] * 2
        tasks = [
            asyncio.create_task(connection.ask(ForwardCommandRequest(bytes(size)), LONG_S)) for size in sizes
        ]
        await asyncio.sleep(1)
        assert 10_000 <= connection._waiting_bytes < 14_000
        scene.peer.answers.set()
        most_bytes = 0
        while not all(task.done() for task in tasks):
            most_bytes = max(most_bytes, connection._waiting_bytes)
            await asyncio.sleep(0.000_1)
        assert most_bytes < 10_000 + 50_100
        assert len(scene.peer.asked) == len(sizes)
        assert connection._waiting_bytes == 0

    in_scene(work)


def test_one_attempt_at_a_time_is_made_to_a_dead_peer() -> None:
    """However many ask: the others hear why, at once, and the pauses grow up to a bound."""

    async def work(scene: Scene) -> None:
        ways = scene.ways()
        for _ in range(5_000):
            assert await outcome_of(asyncio.wait_for(ways.connected(2), 1)) == "ConnectFailed"
            await asyncio.sleep(0.01)
        most = 6 + 5_000 * 0.01 / AGAIN_MAX_S
        assert most / 2 < len(scene.unreachable) <= most
        together = await asyncio.gather(*(outcome_of(ways.connected(2)) for _ in range(1_000)))
        assert set(together) == {"ConnectFailed"}
        assert len(scene.unreachable) <= most + 1
        await scene.peer.listen()
        await ways.connected(2, is_patient=True)
        assert len(scene.peer.connections) == 1

    in_scene(work)


def test_who_stands_still_is_tried_once_by_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers ApiVersions; one who gives up takes the attempt from nobody."""

    async def work(scene: Scene) -> None:
        await scene.peer.listen()
        scene.net.sever("b", "a")
        ways = scene.ways()
        impatient = asyncio.create_task(ways.connected(2))
        others = [asyncio.create_task(outcome_of(ways.connected(2))) for _ in range(100)]
        await asyncio.sleep(0.1)
        impatient.cancel()
        assert set(await asyncio.gather(*others)) <= {"PeerLost", "ConnectFailed"}
        assert len(scene.unreachable) == 1

    in_scene(work)


def test_authentication_comes_before_the_first_request() -> None:
    async def work(scene: Scene) -> None:
        table, ways = scene.authenticated()
        await scene.peer.listen()
        await (await ways.connected(2)).ask(VoteRequest(), 1.0)
        assert scene.peer.names() == ["SaslHandshake", "SaslAuthenticate", "Vote"]
        table.close()

    in_scene(work)


def test_who_refuses_is_told_apart_and_not_asked_again_and_again() -> None:
    """Nor by those who would rather wait; where the peer takes this node after all, that is found out."""

    async def work(scene: Scene) -> None:
        table, ways = scene.authenticated()
        await scene.peer.listen()
        scene.peer.refusal = "who are you"
        with pytest.raises(NotAuthenticated, match="authentication was refused: who are you") as refused:
            await ways.connected(2)
        assert refused.value.is_refused
        began_s, count = scene.loop.time(), 0
        while scene.loop.time() - began_s < 300:
            count += await outcome_of(ways.connected(2, is_patient=True)) == "NotAuthenticated"
            await asyncio.sleep(0.05)
        assert count > 1_000
        assert len(scene.peer.connections) < 8 + 300 / REFUSED_AGAIN_MAX_S
        assert not any(
            one.transport is not None and not one.transport.is_closing() for one in scene.peer.connections
        )
        scene.peer.refusal = ""
        await asyncio.sleep(REFUSED_AGAIN_MAX_S)
        await ways.connected(2)
        table.close()

    in_scene(work)


@pytest.mark.parametrize("by_peer", [True, False])
def test_an_exchange_that_hangs_is_given_up_and_told_apart(by_peer: bool) -> None:
    """From a refusal, and from a peer that is not reached."""

    async def work(scene: Scene) -> None:
        table, ways = scene.authenticated()
        await scene.peer.listen()
        scene.peer.is_hung, scene.plain.is_hung = by_peer, not by_peer
        began_s = scene.loop.time()
        with pytest.raises(NotAuthenticated, match="no authentication") as given_up:
            await ways.connected(2)
        assert not given_up.value.is_refused
        assert scene.loop.time() - began_s <= of_connection.AUTHENTICATE_S + 1
        assert table.open_counts == {"tests": 0}
        scene.peer.is_hung = scene.plain.is_hung = False
        await ways.connected(2, is_patient=True)
        scene.place = ("nowhere", PORT)
        ways.drop(2)
        with pytest.raises(ConnectFailed):
            await ways.connected(2)
        table.close()

    in_scene(work)


def test_an_authentication_is_renewed_before_it_expires() -> None:
    """Over the same connection; what is in flight is answered before, what comes meanwhile waits, and nothing
    of it is lost."""

    async def work(scene: Scene) -> None:
        table, ways = scene.authenticated()
        await scene.peer.listen()
        scene.peer.holds_ms = 10_000
        connection = await ways.connected(2)
        await asyncio.sleep(8)
        await connection.ask(VoteRequest(), 1.0)
        assert scene.peer.names().count("SaslAuthenticate") == 1
        scene.peer.answers.clear()
        before = asyncio.create_task(connection.ask(VoteRequest(), LONG_S))
        await asyncio.sleep(1)
        behind = [asyncio.create_task(connection.ask(ForwardCommandRequest(b""), LONG_S)) for _ in range(3)]
        await asyncio.sleep(2 * of_connection.AUTHENTICATE_S)
        assert scene.peer.names()[-1] == "Vote"
        scene.peer.answers.set()
        await asyncio.gather(before, *behind)
        renewed = ["SaslHandshake", "SaslAuthenticate", "ForwardCommand", "ForwardCommand", "ForwardCommand"]
        assert scene.peer.names()[-5:] == renewed
        assert len(scene.peer.connections) == 1
        table.close()

    in_scene(work)


def test_an_authentication_is_renewed_between_requests_that_stand_in_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody asks anything new while it expires; what stood in line is sent behind it, in order, also where
    it holds for no time at all."""
    monkeypatch.setattr(of_connection, "IN_FLIGHT_MAX", 1)

    async def work(scene: Scene) -> None:
        table, ways = scene.authenticated()
        await scene.peer.listen()
        scene.peer.holds_ms, scene.peer.answer_s = 10_000, 3.0
        connection = await ways.connected(2)
        asked = [connection.ask(ForwardCommandRequest(bytes([number])), LONG_S) for number in range(6)]
        await asyncio.gather(*asked)
        sasl = ["SaslHandshake", "SaslAuthenticate"]
        assert scene.peer.names() == [*sasl, *["ForwardCommand"] * 3, *sasl, *["ForwardCommand"] * 3]
        commands = [one.command[0] for one in scene.peer.asked if isinstance(one, ForwardCommandRequest)]
        assert commands == [*range(6)]
        scene.peer.holds_ms = 1
        asked = [connection.ask(VoteRequest(), LONG_S) for _ in range(6)]
        await asyncio.gather(*asked)
        assert scene.peer.names().count("Vote") == 6
        table.close()

    in_scene(work)


@pytest.mark.parametrize("is_hung", [False, True])
def test_who_is_refused_when_it_renews_has_sent_nothing(is_hung: bool) -> None:
    """The connection ends, and the next attempt is the one that is refused."""

    async def work(scene: Scene) -> None:
        table, ways = scene.authenticated()
        await scene.peer.listen()
        scene.peer.holds_ms = 10_000
        connection = await ways.connected(2)
        await asyncio.sleep(9)
        scene.peer.is_hung, scene.peer.refusal = is_hung, "" if is_hung else "no more"
        asked = [asyncio.create_task(outcome_of(connection.ask(VoteRequest(), LONG_S))) for _ in range(3)]
        assert await asyncio.gather(*asked) == ["NotSent"] * 3
        assert not connection.is_open
        assert "Vote" not in scene.peer.names()
        with pytest.raises(NotAuthenticated) as error:
            await ways.connected(2)
        assert error.value.is_refused is not is_hung
        table.close()

    in_scene(work)


def test_a_node_that_moves_is_asked_where_it_is_once_it_answers_there() -> None:
    """What is in flight at the old place is answered still, and then that connection is closed. A place where
    nobody is, however often it is named, ends no connection that works."""

    async def work(scene: Scene) -> None:
        former, ways = scene.peer, scene.ways()
        await former.listen()
        connection = await ways.connected(2)
        for _ in range(200):
            scene.place = ("nowhere", PORT)
            assert await ways.connected(2) is connection
            await asyncio.sleep(0.01)
            scene.place = ("b", PORT)
            assert await ways.connected(2) is connection
            await asyncio.sleep(0.01)
        assert len(scene.unreachable) < 15
        former.answers.clear()
        under_way = asyncio.create_task(connection.ask(VoteRequest(), LONG_S))
        moved = Peer(scene)
        await moved.listen("c")
        scene.place = ("c", PORT)
        await ways.connected(2)
        await asyncio.sleep(1)
        other = await ways.connected(2)
        assert other is not connection
        await other.ask(VoteRequest(), 1.0)
        assert (len(former.asked), len(moved.asked)) == (1, 1)
        former.answers.set()
        await under_way
        await asyncio.sleep(RETIRED_S)
        assert not connection.is_open
        assert ways.open_count == 1

    in_scene(work)


def test_closing_ends_all_with_requests_in_flight_and_attempts_under_way() -> None:
    """Who was sent is lost, who stood in line was not sent, who waits for a connection gets none, and nothing
    is made any more."""

    async def work(scene: Scene) -> None:
        await scene.peer.listen()
        ways, others = scene.ways(), scene.ways()
        connection = await ways.connected(2)
        scene.peer.answers.clear()
        in_flight = asyncio.create_task(outcome_of(connection.ask(VoteRequest(), LONG_S)))
        await asyncio.sleep(0.1)
        scene.net.sever("b", "a")
        connecting = asyncio.create_task(others.connected(3))
        await asyncio.sleep(0.1)
        scene.table.close()
        scene.table.close()
        assert await in_flight == "PeerLost"
        with pytest.raises(NotSent):  # nobody has cancelled it
            await connecting
        with pytest.raises(NotSent):
            await ways.connected(2)
        with pytest.raises(NotSent):
            await scene.ways().connected(2)
        assert (ways.open_count, others.open_count) == (0, 0)
        scene.net.heal()
        await asyncio.sleep(10)
        assert all(one.transport.is_closing() for one in scene.peer.connections)

    in_scene(work)


def test_who_is_not_asked_for_a_while_is_not_held() -> None:
    """Nor is what was known of a node that is gone; a request in flight is no idleness."""

    async def work(scene: Scene) -> None:
        await scene.peer.listen()
        ways = scene.ways()
        connection = await ways.connected(2)
        for _ in range(3):
            await asyncio.sleep(IDLE_S * 0.9)
            await connection.ask(VoteRequest(), 1.0)
        scene.peer.answers.clear()
        asked = asyncio.create_task(connection.ask(DescribeQuorumRequest(), 10 * IDLE_S))
        await asyncio.sleep(3 * IDLE_S)
        assert connection.is_open
        asked.cancel()
        scene.peer.connections[0].transport.abort()
        await asyncio.sleep(0.1)
        connection = await ways.connected(2)
        for node in range(3, 10):
            scene.place = ("nowhere", node)
            await outcome_of(ways.connected(node))
        assert len(ways._ways) == 8
        await asyncio.sleep(3 * IDLE_S)
        assert not connection.is_open
        assert not ways._ways

    in_scene(work)


def test_what_a_lost_connection_was_asked_is_unknown_and_what_comes_behind_is_not_sent() -> None:
    async def work(scene: Scene) -> None:
        await scene.peer.listen()
        connection = await scene.ways().connected(2)
        scene.peer.answers.clear()
        asked = asyncio.create_task(connection.ask(VoteRequest(), LONG_S))
        await asyncio.sleep(0.1)
        scene.peer.connections[0].transport.abort()
        with pytest.raises(PeerLost) as lost:
            await asked
        assert not isinstance(lost.value, NotSent)
        with pytest.raises(NotSent):
            await connection.ask(VoteRequest(), LONG_S)

    in_scene(work)
