"""QuorumTransport: joins the core of one node with the other members of the quorum.

    transport = QuorumTransport(net, {1: ("a", 9093), 2: ("b", 9093), 3: ("c", 9093)})
    node = await ControllerNode.open(..., send=transport.send, snapshots=transport)
    transport.start(node)                   before `node.start()`, which lets the core speak
    response = await transport.answer(request)      of the controller listener
    reply = await transport.channel.send(command)   to whoever leads
    await node.close(), await transport.close()

Where the members are: places.py. Not here: the listener.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final

from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.authentication import Authentication
from millrace.kraft.peers.channel import ANSWER_S, QuorumChannel
from millrace.kraft.peers.commands import CommandService
from millrace.kraft.peers.lane import Lane
from millrace.kraft.peers.places import Places
from millrace.kraft.peers.service import QuorumService
from millrace.kraft.peers.snapshots import SnapshotFetcher, SnapshotPieces
from millrace.kraft.peers.table import PeerTable
from millrace.kraft.peers.twins import IsThere
from millrace.kraft.peers.voter_changes import OwnNode, VoterChanges
from millrace.kraft.peers.voter_update import VoterUpdate
from millrace.kraft.peers.ways import Ways
from millrace.kraft.peers.wire import Member, Place, leader_answering, places_in
from millrace.kraft.raft.messages import NOBODY, Fetch, Message, Reply
from millrace.kraft.raft.voters import Endpoint
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.ids import uuid_bytes
from millrace.protocol.messages.forward_command import ForwardCommandRequest
from millrace.protocol.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from millrace.runtime.errors import Unavailable
from millrace.runtime.net import Net
from millrace.runtime.tasks import Tasks

REQUEST_S: Final = 2.0  # controller.quorum.request.timeout.ms
# Of a session: a heartbeat that is not answered by then is sent again. With a third before it, between two
# heartbeats, there is time left for another connection; a way of nearly two seconds is not taken for none.
HEARD_WITHIN: Final = 0.6
Endpoints = Mapping[int, Place]  # by node id


class QuorumTransport:
    """`authentication`: what this node's connections to others begin with."""

    def __init__(
        self,
        net: Net,
        endpoints: Endpoints,
        request_s: float = REQUEST_S,
        authentication: Authentication | None = None,
    ) -> None:
        self.peers = PeerTable(net, authentication)  # of the whole node
        self._endpoints = endpoints
        self._request_s = request_s
        self._tasks = Tasks()
        self._lanes: dict[tuple[int, bool], Lane] = {}  # of a peer, for fetches and for what is not one
        self._running: dict[tuple[int, bool], asyncio.Task[None]] = {}  # the same lanes
        self._is_closed = False
        self._node: ControllerNode
        self._member: Member
        self._asking: dict[bool, Ways[int]]  # for fetches, and for what is not one
        self._service: QuorumService
        self.places: Places  # once it is started
        self._fetcher: SnapshotFetcher
        self._changes: VoterChanges
        self.commands: CommandService  # once it is started, as the channel
        self.channel: QuorumChannel  # once it is started

    def start(self, node: ControllerNode) -> None:
        """From now on the node's channel leads to whoever leads."""
        settings, raft = node.settings, node.driver.raft
        self._node = node
        self._member = Member(
            node.cluster_id,
            settings.node_id,
            uuid_bytes(node.meta.directory_id),
            raft.settings.park_ticks * settings.ticks.ms,
            tuple(Endpoint(*endpoint) for endpoint in settings.endpoints),
        )
        listener = settings.endpoints[0][0] if settings.endpoints else ""
        self.places = Places(self._endpoints, settings.bootstrap_servers, lambda: raft.voter_set, listener)
        pieces = SnapshotPieces(self._member, node.log, raft.on_snapshot_asked)
        self._service = QuorumService(
            self._member, pieces, node.driver.step, lambda: (raft.epoch, raft.leader), self.places
        )
        self._asking = {
            is_fetch: self._ways("fetches" if is_fetch else "votes") for is_fetch in (True, False)
        }
        snapshots = self._ways("snapshots")
        self._fetcher = SnapshotFetcher(
            self._member, snapshots, lambda: raft.epoch, raft.on_snapshot_piece, self._request_s
        )
        own = OwnNode(
            settings.node_id,
            node.cluster_id,
            self._member.endpoints,
            {node_id: Endpoint(*one) for node_id, one in settings.voter_endpoints.items()},
        )
        driver, submit = node.driver, node.controller.submit
        levels: Ways[Place] = self.peers.ways("levels", lambda place: place, self._client_id)
        self._changes = VoterChanges(own, driver, node.publisher, self.places, levels, submit)
        update = VoterUpdate(own, driver, self._ways("addresses"), self._changes.decide)
        self._tasks.start("addresses of this voter", update.run)
        self.commands = CommandService(node.controller, node.publisher, self._changes.decide)
        self.channel = self.new_channel()
        node.channel = self.channel

    def new_channel(self) -> QuorumChannel:
        """Connections of its own, for what may wait long: answers come in the order of asking. Whoever asked
        closes it."""
        node, session_ms = self._node, self._node.settings.session_ms
        own = node.settings.node_id, self.commands.decide, node.driver.news, self._ways
        heartbeat_s = ANSWER_S if session_ms is None else session_ms / 1000 * HEARD_WITHIN
        return QuorumChannel(*own, heartbeat_s=heartbeat_s)

    def send(self, message: Message) -> None:
        """What the core says: a request goes to its peer, an answer to who waits for it."""
        if isinstance(message, Reply):
            self._service.deliver(message)
        elif not self._is_closed and self.places.of(message.target) is not None:
            self._lane(message.target, isinstance(message, Fetch)).post(message)

    @property
    def failure(self) -> str:
        """Why a member does not answer, of those that were asked; "" where all do."""
        return next((lane.failure for lane in self._lanes.values() if lane.failure), "")

    async def answer(self, request: Any, is_there: IsThere = lambda: True) -> Any:
        """The response to what another member asks, or another node of the active controller. `is_there`:
        whether the connection of who asks is open. Raises TimeoutError for what will not be answered."""
        if isinstance(request, ForwardCommandRequest):
            return await self.commands.answer(request)
        if isinstance(request, UpdateRaftVoterRequest):
            return await self._answer_update(request)
        return await self._service.answer(request, is_there)

    async def _answer_update(self, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse:
        """Nobody passes it on: a voter asks who leads."""
        try:
            response: UpdateRaftVoterResponse = await self.commands.decide(request)
        except Unavailable:
            raft = self._node.driver.raft
            place = self.places.of(raft.leader) or ("", 0)
            leader = CurrentLeader(raft.leader, raft.epoch, *place)
            return UpdateRaftVoterResponse(0, ErrorCode.NOT_LEADER_OR_FOLLOWER, leader)
        return response

    def fetch(self, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        """The leader's snapshot, in pieces (SnapshotSource). Raises Unavailable, as the iterator does."""
        return self._fetcher.fetch(leader, snapshot)

    async def close(self) -> None:
        """What the core said last, when its node was closed, has been sent, where that takes no longer than a
        request may. Then connections to peers are closed; what they were asked is not answered."""
        self._is_closed = True
        lanes = [lane for (_, is_fetch), lane in self._lanes.items() if not is_fetch]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._request_s):
                for lane in lanes:
                    await lane.is_idle.wait()
        await self._tasks.stop()
        self.channel.close()
        self.peers.close()

    def _lane(self, peer_id: int, is_fetch: bool) -> Lane:
        lane = self._lanes.get((peer_id, is_fetch))
        if lane is None:
            self._end_lanes_to_nowhere()
            name, place = f"node {peer_id}", self.places.of(peer_id)
            if peer_id < NOBODY and place is not None:
                name = f"bootstrap server {place[0]}:{place[1]}"
            lane = Lane(
                peer_id,
                name,
                self._member,
                partial(self._asking[is_fetch].connected, peer_id),
                self._node.driver.step,
                self._on_lost,
                self._on_answer,
                self._request_s,
            )
            self._lanes[peer_id, is_fetch] = lane
            task = self._tasks.start(f"quorum requests to {name}", lane.run)
            self._running[peer_id, is_fetch] = task
        return lane

    def _end_lanes_to_nowhere(self) -> None:
        """Of who was a voter, or was said to lead once, and is nowhere by now: whoever says so of ever new
        nodes would have one kept for each."""
        for key in [key for key in self._lanes if self.places.of(key[0]) is None]:
            del self._lanes[key]
            self._running.pop(key).cancel()
            self._asking[key[1]].drop(key[0])

    def _on_lost(self, message: Message) -> None:
        if isinstance(message, Fetch):
            self._node.driver.raft.on_fetch_lost()

    def _on_answer(self, peer_id: int, response: Any) -> None:
        """Where nodes are, as it says; at kraft.version 0 none does, but a bootstrap server that leads is
        where it was asked."""
        own, places = self._member.node_id, places_in(response)
        asked = self.places.of(peer_id)
        if peer_id < NOBODY and not places and asked is not None:
            leader = leader_answering(response)
            places = {leader: asked} if leader != NOBODY else {}
        for node_id, place in places.items():
            if node_id != own and place != self.places.of(node_id):
                self.places.learn(node_id, place)

    @property
    def _client_id(self) -> str:
        return f"quorum node {self._member.node_id}"

    def _ways(self, purpose: str) -> Ways[int]:
        """To other nodes; where nobody answers it is forgotten that one was said to be there."""
        return self.peers.ways(purpose, self._place_of, self._client_id, on_unreachable=self.places.forget)

    def _place_of(self, peer_id: int) -> Place:
        """Raises Unavailable where nobody knows."""
        place = self.places.of(peer_id)
        if place is None:
            raise Unavailable(f"nobody knows where node {peer_id} of the quorum is")
        return place
