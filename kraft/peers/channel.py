"""QuorumChannel: a node's way to the active controller, wherever that is (ControllerChannel).

The node's own controller decides where it leads. Else the command goes over a connection to who leads, many
under way at a time; the reply is given when this node's image has reached what the reply holds in.
Where nobody leads, or who is asked says that it does not, the command waits for news and is sent again:
nothing was decided. Once it was sent and no answer came, CommandLost says that the outcome is unknown; a
question, which changes nothing, is asked again.

Who led may still say what became of a command when another is known to lead: one that is stopped gives the
leadership away first, and its word is on its way. It is waited for, for a moment.

Answers come in the order of asking. So a broker's registration and its heartbeats have a connection of their
own, as in Kafka: a wide command, or the answer to one, would keep the controller from hearing of a broker
that lives. So have changes of voters, which may take long. The answer to a heartbeat is given as it comes,
however far behind this node's image is; one that takes most of a session is not waited for, and
the connection is closed: it may let nothing pass any more, and the broker says that it lives over another.

Not here: how long a caller waits, whether it asks again (broker/controller_client.py). Kept true: a command
that may have been decided, and changes something, is never sent again from here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from millrace.kraft.commands.table import is_question
from millrace.kraft.errors import CommandLost, CommandNotTaken, NotLeader, ProposalDropped
from millrace.kraft.news import QuorumNews
from millrace.kraft.peers.connection import NotSent, PeerConnection, PeerLost
from millrace.kraft.peers.voter_changes import is_of_voters
from millrace.kraft.peers.ways import Ways
from millrace.protocol.apis import api_of
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.forward_command import ForwardCommandRequest, ForwardCommandResponse
from millrace.runtime.errors import Unavailable, in_words

log = logging.getLogger(__name__)
ANSWER_S: Final = 30.0  # controller.socket.timeout.ms
BACKOFF_MIN_S: Final = 0.02  # after an answer that decided nothing, doubled with each
BACKOFF_MAX_S: Final = 1.0
FORMER_ANSWER_S: Final = 0.5  # of who led, from the news of another on: it may stand still for ever
NOT_TAKEN: Final = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
COMMANDS: Final = "commands"
SESSIONS: Final = "sessions"
VOTERS: Final = "voters"


def lane_of(request: Any) -> str:
    """Commands of one lane share a connection."""
    if isinstance(request, BrokerRegistrationRequest | BrokerHeartbeatRequest):
        return SESSIONS
    return VOTERS if is_of_voters(request) else COMMANDS


class QuorumChannel:
    """`decide` asks the node's own controller, `ways` makes those to controller listeners of others, for what
    goes in one lane. `heartbeat_s`: for the answer to a heartbeat."""

    def __init__(
        self,
        node_id: int,
        decide: Callable[[Any], Awaitable[Any]],
        news: QuorumNews,
        ways: Callable[[str], Ways[int]],
        answer_s: float = ANSWER_S,
        heartbeat_s: float = ANSWER_S,
        lane: str = COMMANDS,
    ) -> None:
        self._node_id = node_id
        self._decide = decide
        self._news = news
        self._new_ways = ways
        self._ways = ways(lane)
        self._answer_s = answer_s
        self._heartbeat_s = heartbeat_s
        self._leader = -1  # who was asked last
        self._failure = ""  # the last one that was logged; "" while commands are answered
        self._lane = lane
        self._beside: dict[str, QuorumChannel] = {}  # by lane, once something was sent in it
        self._change_count = 0  # of what is known of the quorum
        self._waiting: dict[asyncio.Future[None], None] = {}  # for the next, each with its own
        self._is_closed = False
        news.on_change.append(self._on_change)

    async def send(self, request: Any) -> Any:
        """The reply, once what it says is committed and, but for a heartbeat's, in this node's image.
        Cancelling gives up the wait, not the command. Raises CommandLost, ProposalDropped (unknown);
        CommandNotTaken, LogFull, TooManyCommands (not done); KafkaError where the active controller knows no
        such command."""
        lane = lane_of(request)
        if lane not in (COMMANDS, self._lane) and not self._news.is_active:
            return await self._beside_in(lane).send(request)
        backoff_s = BACKOFF_MIN_S
        while True:
            news, seen = self._news, self._change_count
            if news.is_active:
                try:
                    return await self._decide(request)
                except NotLeader:
                    pass
                except ProposalDropped:
                    if not is_question(request):
                        raise
            elif self._is_closed:
                raise CommandLost(news.leader, "this node closes its connections")
            elif news.leader >= 0 and news.leader != self._node_id:
                try:
                    found = await self._forward(news.leader, request)
                    if found is not None:
                        return await self._reply(request, *found)
                except CommandLost:
                    if not is_question(request):
                        raise
            else:
                await self._next_change(seen)
                continue
            await self._next_change(seen, backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def close(self) -> None:
        """Commands that are not answered are lost, also those that wait to be sent. Idempotent."""
        self._is_closed = True
        self._ways.close()
        self._wake()
        for beside in self._beside.values():
            beside.close()

    async def _next_change(self, seen: int, within_s: float | None = None) -> None:
        """Returns at the first change behind those that were `seen`, when this closes, or when the time is
        over. Thousands may wait: of a future that they share each would be taken by a look at all others."""
        if seen != self._change_count or self._is_closed:
            return
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[change] = None
        try:
            async with asyncio.timeout(within_s):
                await change
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(change, None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for change in waiting:
            if not change.done():
                change.set_result(None)

    def _beside_in(self, lane: str) -> QuorumChannel:
        """Over another connection."""
        beside = self._beside.get(lane)
        if beside is None:
            own = self._node_id, self._decide, self._news, self._new_ways
            beside = self._beside[lane] = QuorumChannel(*own, self._answer_s, self._heartbeat_s, lane)
            if self._is_closed:
                beside.close()
        return beside

    async def _forward(self, leader: int, request: Any) -> tuple[int, int, ForwardCommandResponse] | None:
        """Who answered, in which version of the command's API, and what; None where nothing was decided."""
        api = api_of(request)
        try:
            connection = await self._connected(leader)
        except (Unavailable, WireError) as error:
            self._on_failure(leader, in_words(error))
            return None
        if connection is None:
            return None
        try:
            version = connection.version_of(api)
            data = encode_request(api, version, 0, None, request)[4:]
            is_heartbeat = isinstance(request, BrokerHeartbeatRequest)
            answer_s = self._heartbeat_s if is_heartbeat else self._answer_s
            response = await connection.ask(ForwardCommandRequest(data), answer_s)
        except NotSent as error:
            self._on_failure(leader, error.why)
            return None
        except PeerLost as error:
            raise CommandLost(leader, error.why) from None
        except (WireError, ValueError) as error:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, in_words(error)) from None
        assert isinstance(response, ForwardCommandResponse)
        if response.error_code == ErrorCode.NOT_CONTROLLER:
            return None
        if self._failure:
            log.info("%s: the active controller, node %d, answers", self._lane, leader)
            self._failure = ""
        return leader, version, response

    async def _reply(self, request: Any, leader: int, version: int, response: ForwardCommandResponse) -> Any:
        code = response.error_code
        if code in NOT_TAKEN:
            raise CommandNotTaken(leader, ErrorCode(code).name)
        if code == ErrorCode.REQUEST_TIMED_OUT:
            raise CommandLost(leader, "it lost the command, or its leadership")
        if code or response.reply is None:
            raise KafkaError(code or ErrorCode.UNKNOWN_SERVER_ERROR, f"by the controller of node {leader}")
        api = api_of(request)
        try:
            reply = decode_response(api, version, response.reply)[1]
        except WireError as error:
            raise CommandLost(leader, in_words(error)) from None
        if not isinstance(request, BrokerHeartbeatRequest):
            await self._news.reach(response.metadata_offset)
        return reply

    async def _connected(self, leader: int) -> PeerConnection | None:
        """None where another leads by now: who waited for a connection in vain would try the same once more,
        while who leads hears nothing of this node. Raises Unavailable, WireError."""
        self._leader = leader
        connection = await self._ways.connected(leader)
        return connection if self._news.leader == leader else None

    def _on_change(self) -> None:
        """Who led and does no more may never answer: what it was asked is unknown after a moment."""
        is_other = self._news.leader not in (-1, self._leader)
        if is_other or self._news.is_active:
            self._ways.retire(self._leader, FORMER_ANSWER_S)
        self._change_count += 1
        self._wake()

    def _on_failure(self, leader: int, failure: str) -> None:
        """Logged once for as long as it stays the same."""
        if failure != self._failure:
            log.warning("%s: no way to the active controller, node %d: %s", self._lane, leader, failure)
            self._failure = failure
