"""QuorumService: answers what other members of the quorum ask of this one.

    Vote (key 52), versions 0 to 2; BeginQuorumEpoch (53), 0 to 1; EndQuorumEpoch (54), 0 to 1;
    Fetch (1) of the metadata log, 4 to 18, from replicas; FetchSnapshot (59), 0 to 1
    Ignored: a fetch's wait and sizes (a leader's own hold), endpoints of a leader that resigns.

A request becomes a message for the core; its answer comes back by the request's number, at once, or for a
fetch that finds nothing when there is something.

Not here: the core (kraft/raft/core.py), connections (broker/network). Kept true: what is answered was said by
the core after what it says was durable; a request whose connection is gone is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from millrace.kraft.peers.places import Places
from millrace.kraft.peers.snapshots import SnapshotPieces
from millrace.kraft.peers.twins import IsThere, Twins
from millrace.kraft.peers.wire import Member, leader_place, message_of, name_leader, refusal_of, response_of
from millrace.kraft.raft.messages import NOBODY, EndEpoch, Fetch, Message, Reply
from millrace.protocol.errors import KafkaError
from millrace.protocol.ids import uuid_text
from millrace.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from millrace.protocol.messages.fetch_snapshot import FetchSnapshotRequest

log = logging.getLogger(__name__)
ANSWER_S: Final = 30.0  # a fetch that another of the same replica took the place of is given up then


class QuorumService:
    """`step` takes a message to the core; `now` is the epoch that it is in and who leads it; `places` knows
    where nodes are."""

    def __init__(
        self,
        member: Member,
        pieces: SnapshotPieces,
        step: Callable[[Message], None],
        now: Callable[[], tuple[int, int]],
        places: Places,
    ) -> None:
        self._member = member
        self._pieces = pieces
        self._step = step
        self._now = now
        self._places = places
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._request_id = 0
        self._twins = Twins()

    async def answer(self, request: Any, is_there: IsThere = lambda: True) -> Any:
        """The response, for any request of the quorum. `is_there`: whether the connection of who asks is
        open. Cancelled, it forgets the request. Raises TimeoutError for one that will not be answered: the
        connection is to be closed."""
        if isinstance(request, FetchSnapshotRequest):
            epoch, leader = self._now()
            return self._named(await self._pieces.answer(request, epoch, leader), leader)
        try:
            message = message_of(request, self._member)
        except KafkaError as error:
            return refusal_of(request, error.code)
        if isinstance(message, EndEpoch):
            self._step(message)
            epoch, leader = self._now()
            reply = Reply(self._member.node_id, message.source, epoch, leader=leader)
            return response_of(request, message, reply)
        if isinstance(request, BeginQuorumEpochRequest) and self._may_lead(message):
            place = leader_place(request, self._places.listener)
            if place is not None:
                self._places.learn(message.source, place)
        reply = await self._reply(message, is_there)
        return self._named(response_of(request, message, reply), reply.leader)

    def _may_lead(self, message: Message) -> bool:
        """Not one of an earlier epoch, whose word comes late, nor another beside the leader that is known:
        where the leader is, they do not know."""
        epoch, leader = self._now()
        return message.epoch > epoch or (message.epoch == epoch and leader in (NOBODY, message.source))

    def _named(self, response: Any, leader: int) -> Any:
        """Where the leader is needs to be told where voters come and go."""
        return name_leader(response, leader, self._places.of(leader)) if self._places.may_move else response

    async def _reply(self, message: Message, is_there: IsThere) -> Reply:
        self._request_id += 1
        message.request_id = number = self._request_id
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        if isinstance(message, Fetch):
            self._look_for_twins(message, is_there)
        try:
            self._step(message)
            async with asyncio.timeout(ANSWER_S):
                return await answer
        finally:
            del self._waiting[number]
            if isinstance(message, Fetch):
                self._twins.on_end((message.source, message.directory_id), number)

    def _look_for_twins(self, message: Fetch, is_there: IsThere) -> None:
        replica, now_s = (message.source, message.directory_id), asyncio.get_running_loop().time()
        if self._twins.on_fetch(replica, message.request_id, is_there, now_s):
            log.error(
                "quorum: two processes fetch as node %d with directory %s, or its network fails every few "
                "seconds: where one runs on a copy of the other's log directory both count as one: end the "
                "copy, and give it a node.id and a log directory of its own (log.dirs)",
                message.source,
                uuid_text(message.directory_id),
            )

    def deliver(self, reply: Reply) -> None:
        """What the core answers; a request that nobody waits for any more is none."""
        answer = self._waiting.get(reply.request_id)
        if answer is not None and not answer.done():
            answer.set_result(reply)
