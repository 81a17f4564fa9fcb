"""Members of a quorum that talk over a simulated network, each with a disk of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace.kraft.config import Ticks
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.formatted_log import write_formatted_log
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.node import ControllerNode
from millrace.kraft.peers.transport import QuorumTransport
from millrace.kraft.raft.voters import DYNAMIC, KRAFT_VERSIONS, Endpoint, Voter, VoterSet
from millrace.protocol.ids import uuid_text
from millrace.protocol.messages.api_versions import ApiVersionsResponse
from millrace.runtime.rand import Rand
from tests.kraft.build import NODE, SETTINGS, Broker, HandClock, create_topic
from tests.kraft.peers.listener import MemberConnection
from tests.sim.disk import SimDisk
from tests.sim.loop import Life, SimLoop
from tests.sim.net import SimNet

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
PORT = 9093
LOOKS_MAX = 100_000


class Member:
    """One process at a time."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.disk = SimDisk(Rand(b"disk %d" % node_id), hops=0)
        self.seed = b"node %d" % node_id  # also of its directory
        self.life: Life  # that its connections belong to
        self.node: ControllerNode
        self.transport: QuorumTransport
        self.listening: Any


class Members:
    def __init__(
        self,
        loop: SimLoop,
        voters: tuple[int, ...] = (1, 2, 3),
        observers: tuple[int, ...] = (),
        *,
        is_dynamic: bool = False,
    ) -> None:
        self.is_dynamic = is_dynamic
        self.is_told_a_list = True
        self.loop = loop
        self.net = SimNet(loop, Rand(b"net"), lambda *words: None)
        self.voters = voters
        self.all = {node_id: Member(node_id) for node_id in (*voters, *observers)}
        self.versions: ApiVersionsResponse | None = None  # that members serve; None: all
        self.asked: list[Any] = []  # requests, in the order of arrival

    async def format(self) -> None:
        """The voters' disks, for kraft.version 1."""
        first = VoterSet(tuple(voter_at(node_id) for node_id in self.voters), DYNAMIC)
        for node_id in self.voters:
            meta = MetaProperties(CLUSTER, node_id, uuid_text(first.directory_of(node_id)))
            await write_formatted_log(self.all[node_id].disk, "/data", meta, first, 0)

    def places(self) -> dict[str, Any]:
        """What members are told of one another."""
        if self.is_dynamic:
            bootstrap = (("nowhere", PORT), *((name(voter), PORT) for voter in self.voters))
            return {"is_dynamic": True, "bootstrap_servers": bootstrap, "voters": ()}
        return {"voter_endpoints": {voter: voter_at(voter).endpoints[0] for voter in self.voters}}

    async def start(self, *node_ids: int, **settings: Any) -> None:
        settings = self.places() | settings
        for node_id in node_ids or tuple(self.all):
            member = self.all[node_id]
            member.life = Life(name(node_id))
            host = self.net.host(name(node_id), member.life)
            is_told = not self.is_dynamic and self.is_told_a_list
            voters = {voter: (name(voter), PORT) for voter in self.voters} if is_told else {}
            member.transport = QuorumTransport(host, voters)
            own = replace(
                SETTINGS,
                node_id=node_id,
                cluster_id=CLUSTER,
                **{"endpoints": voter_at(node_id).endpoints, "voters": self.voters, "ticks": Ticks(20)}
                | settings,
            )
            member.node = await ControllerNode.open(
                member.disk,
                HandClock(),
                Rand(member.seed),
                own,
                send=member.transport.send,
                snapshots=member.transport,
            )
            member.transport.start(member.node)
            member.listening = await host.listen(
                lambda one=member: MemberConnection(self.answer_of(one), self.versions), "", PORT
            )  # type: ignore[misc]
            await member.node.start()

    async def stop(self, node_id: int) -> None:
        member = self.all[node_id]
        member.listening.close()
        await member.node.close()
        await member.transport.close()
        self.net.reset(member.life)

    def answer_of(self, member: Member) -> Any:
        async def answer(request: Any) -> Any:
            self.asked.append(request)
            return await member.transport.answer(request)

        return answer

    async def create(self, topic: str, partitions: int = 1) -> None:
        """By whoever leads; the first one registers a broker for it."""
        node = (await self.leader()).node
        if not node.publisher.image.brokers.get(NODE):
            await Broker.register(node)
        response = await create_topic(node, topic, partitions)
        assert response.topics[0].error_code == 0, response

    def leading(self) -> Member | None:
        """Who takes commands."""
        for member in self.all.values():
            driver = getattr(getattr(member, "node", None), "driver", None)
            if driver is not None and driver.leading_epoch >= 0 and driver.raft.is_leader:
                return member
        return None

    async def leader(self) -> Member:
        """Once there is one."""
        await self.until(lambda: self.leading() is not None)
        found = self.leading()
        assert found is not None
        return found

    async def until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(LOOKS_MAX):
            if is_so():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it never is so")

    async def agree_of(self, *node_ids: int) -> None:
        """The same of these."""
        end = (await self.leader()).node.driver.raft.log.end
        await self.until(lambda: all(self.all[one].node.publisher.image.offset >= end for one in node_ids))

    async def agree(self) -> MetadataImage:
        """Returns when everybody has applied all that the leader has."""
        while True:
            end = (await self.leader()).node.driver.raft.log.end
            images = [member.node.publisher.image for member in self.all.values()]
            if all(image.offset == end for image in images):
                assert all(image == images[0] for image in images), "equal offset, unequal image"
                return images[0]
            await asyncio.sleep(0.01)


def voter_at(node_id: int) -> Voter:
    """With its first disk."""
    endpoints = (Endpoint("CONTROLLER", name(node_id), PORT),)
    return Voter(node_id, bytes([node_id]) * 16, endpoints, KRAFT_VERSIONS)


def name(node_id: int) -> str:
    return f"controller-{node_id}"
