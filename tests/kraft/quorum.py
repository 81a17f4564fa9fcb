"""Several ControllerNodes in one loop: their messages are handed over here, and so are snapshots. Each has a
disk of its own.

A dynamic one is at kraft.version 1: its voters' disks are formatted, and all are told to ask node 1 and 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import copy
from dataclasses import replace
from typing import Any

from millrace.kraft.config import Ticks
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.formatted_log import write_formatted_log
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.log.meta_properties import MetaProperties
from millrace.kraft.node import ControllerNode
from millrace.kraft.raft.messages import Message, Reply
from millrace.kraft.raft.voters import DYNAMIC, Endpoint, Voter, VoterSet
from millrace.protocol.ids import uuid_text
from millrace.runtime.errors import Unavailable
from millrace.runtime.rand import Rand
from tests.kraft.build import SETTINGS, HandClock
from tests.sim.disk import SimDisk

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"


BOOTSTRAP = (("one", 1), ("two", 2))


def voter_on_first_disk(node_id: int) -> Voter:
    return Voter(node_id, bytes([node_id]) * 16, (Endpoint("CONTROLLER", "host", node_id),), (0, 1))


def addressed(message: Message) -> Message:
    """What goes to a bootstrap server is taken by whoever is there; its answer is one of that server's."""
    if message.target < 0:
        message = copy(message)
        message.request_id, message.target = message.target, BOOTSTRAP[-2 - message.target][1]
    elif isinstance(message, Reply) and message.request_id < 0:
        message = copy(message)
        message.source, message.request_id = message.request_id, 0
    return message


class Quorum:
    def __init__(
        self,
        voters: tuple[int, ...],
        observers: tuple[int, ...] = (),
        hops: int = 0,
        *,
        is_dynamic: bool = False,
    ) -> None:
        self.voters = voters
        self.is_dynamic = is_dynamic
        self.node_ids = (*voters, *observers)
        self.disks = {node_id: SimDisk(Rand(b"disk %d" % node_id), hops=hops) for node_id in self.node_ids}
        self.clocks = {node_id: HandClock() for node_id in self.node_ids}
        self.nodes: dict[int, ControllerNode] = {}
        self.images: dict[int, list[MetadataImage]] = {node_id: [] for node_id in self.node_ids}
        self.installed = 0
        self.is_lost: Callable[[Message], bool] = lambda message: False

    async def format(self) -> None:
        """The voters' disks, as `--initial-controllers` does."""
        known = VoterSet(tuple(voter_on_first_disk(node_id) for node_id in self.voters), DYNAMIC)
        for node_id in self.voters:
            meta = MetaProperties(CLUSTER, node_id, uuid_text(known.directory_of(node_id)))
            await write_formatted_log(self.disks[node_id], "/data", meta, known, 0)

    async def start(self, *node_ids: int, **settings: Any) -> None:
        if self.is_dynamic:
            settings = {"is_dynamic": True, "bootstrap_servers": BOOTSTRAP, "voters": ()} | settings
        for node_id in node_ids or self.node_ids:
            common: dict[str, Any] = {"voters": self.voters, "cluster_id": CLUSTER, "ticks": Ticks(5)}
            own = replace(SETTINGS, node_id=node_id, **common | settings)
            node = await ControllerNode.open(
                self.disks[node_id],
                self.clocks[node_id],
                Rand(b"node %d" % node_id),
                own,
                send=self.deliver,
                snapshots=self,
            )
            node.publisher.subscribe(lambda delta, image, seen=self.images[node_id]: seen.append(image))
            self.nodes[node_id] = node
            await node.start()

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.nodes):
            await self.nodes.pop(node_id).close()

    def deliver(self, message: Message) -> None:
        message = addressed(message)
        target = self.nodes.get(message.target)
        if target is not None and not self.is_lost(message):
            asyncio.get_running_loop().call_soon(target.driver.step, message)

    async def fetch(self, leader: int, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        """SnapshotSource: straight from the leader's disk."""
        path = f"/data/__cluster_metadata-0/{snapshot.name}"
        data = await self.disks[leader].read_file(path) if leader in self.nodes else None
        if data is None:
            raise Unavailable(path)
        self.installed += 1
        for at in range(0, len(data), 1000):
            yield data[at : at + 1000]

    async def leader(self) -> ControllerNode:
        while True:
            for node in self.nodes.values():
                if (
                    node.driver.leading_epoch >= 0
                    and node.driver.raft.is_leader
                    and node.controller.active.done()
                ):
                    return node
            await asyncio.sleep(0.005)

    async def agree(self) -> MetadataImage:
        """Returns when everybody has applied all that the leader has."""
        while True:
            end = (await self.leader()).driver.raft.log.end
            images = [node.publisher.image for node in self.nodes.values()]
            if all(image.offset == end for image in images):
                assert all(image == images[0] for image in images), "equal offset, unequal image"
                return images[0]
            await asyncio.sleep(0.002)
