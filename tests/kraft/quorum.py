"""Several ControllerNodes in one loop: their messages are handed over here, and so are snapshots. Each has a
disk of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from millrace.kraft.config import Ticks
from millrace.kraft.image.image import MetadataImage
from millrace.kraft.log.log_store import SnapshotId
from millrace.kraft.node import ControllerNode
from millrace.kraft.raft.messages import Message
from millrace.runtime.errors import Unavailable
from millrace.runtime.rand import Rand
from tests.kraft.build import SETTINGS, HandClock
from tests.sim.disk import SimDisk

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"


class Quorum:
    def __init__(self, voters: tuple[int, ...], observers: tuple[int, ...] = (), hops: int = 0) -> None:
        self.voters = voters
        self.node_ids = (*voters, *observers)
        self.disks = {node_id: SimDisk(Rand(b"disk %d" % node_id), hops=hops) for node_id in self.node_ids}
        self.clocks = {node_id: HandClock() for node_id in self.node_ids}
        self.nodes: dict[int, ControllerNode] = {}
        self.images: dict[int, list[MetadataImage]] = {node_id: [] for node_id in self.node_ids}
        self.installed = 0
        self.is_lost: Callable[[Message], bool] = lambda message: False

    async def start(self, *node_ids: int, **settings: Any) -> None:
        for node_id in node_ids or self.node_ids:
            own = replace(
                SETTINGS, node_id=node_id, voters=self.voters, cluster_id=CLUSTER, ticks=Ticks(5), **settings
            )
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
