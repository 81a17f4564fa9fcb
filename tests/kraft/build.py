"""Where the tests of this package construct nodes, images and commands, every option defaulted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from millrace.kraft.commands.decision import BrokerConfigCheck
from millrace.kraft.config import ControllerSettings
from millrace.kraft.node import ControllerNode
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.commit_upload import CommitUploadRequest, UploadedRange, UploadedStreamObject
from millrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.runtime.disk import Disk
from millrace.runtime.rand import Rand
from tests.sim.disk import SimDisk

T = TypeVar("T")
NODE = 1
SETTINGS = ControllerSettings("/data", NODE, reserve_bytes=1 << 16)


class HandClock:
    """A wall clock that stands still until it is set."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def asleep_ms(self) -> int:
        return 0

    def elapsed_ms(self) -> int:
        return 0


def sim_disk(**options: Any) -> SimDisk:
    return SimDisk(Rand(b"kraft"), hops=0, **options)


async def open_node(
    disk: Disk,
    *,
    clock: HandClock | None = None,
    seed: bytes = b"node",
    check_broker_config: BrokerConfigCheck | None = None,
    on_failed: Callable[[BaseException], None] | None = None,
    **settings: Any,
) -> ControllerNode:
    """A node that leads."""
    options: dict[str, Any] = {}
    if check_broker_config is not None:
        options["check_broker_config"] = check_broker_config
    if on_failed is not None:
        options["on_failed"] = on_failed
    node = await ControllerNode.open(
        disk, clock or HandClock(), Rand(seed), replace(SETTINGS, **settings), **options
    )
    await node.start()
    return node


def run(work: Awaitable[T]) -> T:
    async def main() -> T:
        return await work

    return asyncio.run(main())


class Broker:
    """A registered broker's requests."""

    def __init__(self, node: ControllerNode, epoch: int) -> None:
        self.node = node
        self.epoch = epoch

    @classmethod
    async def register(cls, node: ControllerNode, incarnation: int = 1) -> Broker:
        request = BrokerRegistrationRequest(NODE, node.cluster_id, incarnation.to_bytes(16, "big"))
        response = await node.channel.send(request)
        assert response.error_code == 0, response
        return cls(node, response.broker_epoch)

    async def create(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        response = await create_topic(self.node, name, partitions, configs)
        assert response.topics[0].error_code == 0, response
        topic_id: bytes = response.topics[0].topic_id
        return topic_id

    async def open(
        self, topic_id: bytes, partition: int = 0, roles: tuple[int, ...] = (0, 1), epoch: int = 0
    ) -> Any:
        request = OpenPartitionStreamsRequest(NODE, self.epoch, topic_id, partition, epoch, list(roles))
        return await self.node.channel.send(request)

    async def prepare(self, count: int = 1, ttl_ms: int = 60_000) -> int:
        response = await self.node.channel.send(PrepareObjectsRequest(NODE, self.epoch, count, ttl_ms))
        assert response.error_code == 0, response
        first: int = response.first_object_id
        return first

    def upload(
        self,
        object_id: int,
        ranges: list[tuple[int, int, int]],
        own: list[tuple[int, int, int, int]] | None = None,
    ) -> CommitUploadRequest:
        """`own`: (object id, stream, start, end) of stream objects."""
        return CommitUploadRequest(
            NODE,
            self.epoch,
            object_id,
            1000,
            [UploadedRange(*range_) for range_ in ranges],
            [UploadedStreamObject(made[0], 500, *made[1:]) for made in own or ()],
        )

    async def commit(self, *args: Any) -> int:
        response = await self.node.channel.send(self.upload(*args))
        code: int = response.error_code
        return code


async def create_topic(
    node: ControllerNode,
    name: str,
    partitions: int = 1,
    configs: dict[str, str] | None = None,
    factor: int = 1,
) -> CreateTopicsResponse:
    values = [CreatableTopicConfig(key, value) for key, value in (configs or {}).items()]
    topic = CreatableTopic(name, partitions, factor, configs=values)
    response: CreateTopicsResponse = await node.channel.send(CreateTopicsRequest([topic]))
    return response
