"""ClusterClient: as SimClient, of a cluster: each request goes to whom it is for, as its metadata says now.

A partition's leader, a group's coordinator, any broker for the rest. Who that is, is remembered as Kafka's
clients do: until an answer tells of an error, or none comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from millrace.protocol.apis import API
from millrace.protocol.error_scan import ErrorScan, error_scan
from millrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.runtime.errors import Unavailable
from tests.sim.asking import PAUSE_S
from tests.sim.client import Lost, SimClient
from tests.sim.history import Place
from tests.sim.loop import Life
from tests.sim.world import World

LOOK_S = 2.0  # for an answer of metadata
TRIES = 40  # for somebody to lead
Subject = tuple[Any, ...]  # topic (its id or name) and partition, or a group; (): any broker


def subject_of(key: int, request: Any) -> Subject:
    """What a request is about: whoever leads or coordinates it is asked."""
    name = API[key].name
    if name == "Produce":
        topic = request.topic_data[0]
        return topic.topic_id, topic.partition_data[0].index
    if name == "Fetch":
        topic = request.topics[0]
        return topic.topic_id, topic.partitions[0].partition
    if name in ("ListOffsets", "DeleteRecords"):
        topic = request.topics[0]
        return topic.name, topic.partitions[0].partition_index
    if name == "OffsetFetch":
        return (request.groups[0].group_id,)
    return (request.group_id,) if hasattr(request, "group_id") else ()


class ClusterClient(SimClient):
    """`place`: whose leader `wire` leads to."""

    def __init__(
        self, world: World, addresses: Mapping[int, tuple[str, int]], name: str, place: Place | None = None
    ) -> None:
        self.name = name
        self.place = place
        host = world.net.host(name, Life(name))
        self._of = {node_id: SimClient(host, address, name) for node_id, address in addresses.items()}
        self._order = list(self._of)
        self._rand = world.rand.split(f"routes of {name}")
        # By topic and partition, or group. `wire` does not look here: whoever has it judges answers itself.
        self._known: dict[Subject, int] = {}
        self._led: dict[Place, bool] = {}  # whether who was named last leads, or serves readers of history
        self._scans: dict[int, ErrorScan | None] = {}  # by API

    @property
    def connections_count(self) -> int:  # type: ignore[override]
        return sum(client.connections_count for client in self._of.values())

    async def ask(
        self, key: int, request: Any, *, version: int | None = None, timeout_s: float = 30.0
    ) -> Any:
        subject = subject_of(key, request)
        target = await self._target(subject)
        try:
            answer = await self._of[target].ask(key, request, version=version, timeout_s=timeout_s)
        except Unavailable:
            self._known.pop(subject, None)
            raise
        if self._has_error(key, answer):
            self._known.pop(subject, None)
        return answer

    def _has_error(self, key: int, answer: Any) -> bool:
        if key not in self._scans:
            self._scans[key] = error_scan(API[key].response_type)
        scan, found = self._scans[key], list[int]()
        if scan is not None:
            scan(answer, found)
        return bool(found)

    def knows_end(self, place: Place) -> bool:
        return self._led.get(place, True)

    async def wire(self) -> Any:
        assert self.place is not None
        return await self._of[await self._leader(topic_id=self.place[0], index=self.place[1])].wire()

    def drop(self) -> None:
        self._known.clear()
        for client in self._of.values():
            client.drop()

    async def _target(self, subject: Subject) -> int:
        if not subject:
            return self._any()
        if subject not in self._known:
            self._known[subject] = (
                await self._coordinator(subject[0]) if len(subject) == 1 else await self._leader_of(*subject)
            )
        return self._known[subject]

    async def _leader_of(self, topic: bytes | str, index: int) -> int:
        if isinstance(topic, str):
            return await self._leader(name=topic, index=index)
        return await self._leader(topic_id=topic, index=index)

    def _any(self) -> int:
        return self._order[self._rand.below(len(self._order))]

    async def _leader(self, *, topic_id: bytes = bytes(16), name: str | None = None, index: int) -> int:
        request = MetadataRequest(
            [MetadataRequestTopic(topic_id=topic_id, name=name)], allow_auto_topic_creation=False
        )
        for _ in range(TRIES):
            asked = self._of[self._any()]
            try:
                (topic,) = (await asked.ask(3, request, timeout_s=LOOK_S)).topics
            except Unavailable:
                topic = None
            if topic is not None and topic.error_code:
                return self._any()  # which says the same
            for one in () if topic is None else topic.partitions:
                if one.partition_index == index and one.leader_id in self._of:
                    self._led[topic_id, index] = one.leader_id in one.isr_nodes
                    return int(one.leader_id)
            await asyncio.sleep(PAUSE_S)
        raise Lost(self.name, "nobody leads")

    async def _coordinator(self, group: str) -> int:
        for _ in range(TRIES):
            asked = self._of[self._any()]
            try:
                answer = await asked.ask(
                    10, FindCoordinatorRequest(coordinator_keys=[group]), timeout_s=LOOK_S
                )
                found = answer.coordinators[0]
                if not found.error_code and found.node_id in self._of:
                    return int(found.node_id)
            except Unavailable:
                pass
            await asyncio.sleep(PAUSE_S)
        raise Lost(self.name, "nobody coordinates")
