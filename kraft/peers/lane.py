"""Lane: requests of one kind to one peer, one at a time, over a connection of its own.

The core sends a request again when it is not answered for a while, and what it sends says all that there is
to say now. So the lane keeps the newest message that waits, and forgets those before it; what cannot be
delivered is dropped. Fetches, which a leader keeps for half a second, stand in a lane apart from votes.

Not here: what messages are as bytes (wire.py), connections (ways.py). Kept true: at most one request is under
way and one waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from millrace.kraft.peers.connection import PeerConnection
from millrace.kraft.peers.wire import Member, for_version, reply_of, request_of
from millrace.kraft.raft.messages import Message, Reply
from millrace.protocol.errors import KafkaError, WireError
from millrace.runtime.errors import Unavailable, in_words

log = logging.getLogger(__name__)
BACKOFF_MIN_S: Final = 0.05  # after a failure, doubled with each
BACKOFF_MAX_S: Final = 1.0


class Lane:
    """`peer` is its name for who reads the log. `connect` gives the connection to it, `on_reply` is told its
    answers, `on_lost` what it did not answer, `on_answer` the answer as it came, before it is judged."""

    def __init__(
        self,
        peer_id: int,
        peer: str,
        member: Member,
        connect: Callable[[], Awaitable[PeerConnection]],
        on_reply: Callable[[Reply], None],
        on_lost: Callable[[Message], None],
        on_answer: Callable[[int, Any], None],
        timeout_s: float,
    ) -> None:
        self._peer_id = peer_id
        self._peer = peer
        self._member = member
        self._connect = connect
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._on_answer = on_answer
        self._timeout_s = timeout_s
        self._message: Message | None = None
        self._has_message = asyncio.Event()
        self.is_idle = asyncio.Event()  # nothing waits, and nothing is under way
        self.is_idle.set()
        self.failure = ""  # the last one, with the peer it is of; "" while that answers
        self._said = ""

    def post(self, message: Message) -> None:
        self._message = message
        self._has_message.set()
        self.is_idle.clear()

    async def run(self) -> None:
        """For ever."""
        backoff_s = BACKOFF_MIN_S
        while True:
            await self._has_message.wait()
            self._has_message.clear()
            message, self._message = self._message, None
            if message is not None and await self._ask(message):
                backoff_s = BACKOFF_MIN_S
                self._settle()
            elif message is not None:
                self._settle()
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def _settle(self) -> None:
        if self._message is None:
            self.is_idle.set()

    async def _ask(self, message: Message) -> bool:
        """Whether the peer answered."""
        connection = None
        try:
            connection = await self._connect()
            request = request_of(message, self._member)
            response = await connection.ask(request, self._timeout_s, for_version)
            self._on_answer(self._peer_id, response)
            reply = reply_of(message, response)
        except (Unavailable, WireError, KafkaError) as error:
            if connection is not None:
                connection.close()
            self._on_failure(in_words(error))
            self._on_lost(message)
            return False
        if self._said:
            log.info("quorum: %s answers again", self._peer)
            self._said = self.failure = ""
        if reply is not None:
            self._on_reply(reply)
        return True

    def _on_failure(self, failure: str) -> None:
        """Logged once for as long as it stays the same."""
        self.failure = f"no answer from {self._peer}: {failure}"
        if failure != self._said:
            log.warning("quorum: %s", self.failure)
            self._said = failure
