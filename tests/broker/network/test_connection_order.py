"""Requests that wait for the one ahead of them on their connection, as all of Kafka's do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.requests.api_traits import Order, keys
from millrace.broker.requests.request import RequestContext
from millrace.protocol.apis import API
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.broker.shell import MIB, Shell
from tests.patience import eventually

PRODUCE, FETCH, METADATA, JOIN, HEARTBEAT = 0, 1, 3, 11, 12
BARRIERS = keys(lambda traits: traits.order is Order.BARRIER)


class Ledger:
    """A change that lasts until the test ends it, and a question that tells whether it was made."""

    def __init__(self, key: int) -> None:
        self._response = API[key].response_type
        self.changes: list[asyncio.Future[Any]] = []
        self.made_count = 0

    def change(self, context: RequestContext, request: Any) -> asyncio.Future[Any]:
        self.changes.append(asyncio.get_running_loop().create_future())
        return self.changes[-1]

    def finish(self) -> None:
        self.made_count += 1
        self.changes.pop(0).set_result(self._response())

    def ask(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=self.made_count)


@pytest.mark.parametrize("key", sorted(BARRIERS), ids=lambda key: API[key].name)
def test_what_follows_a_change_sees_it(key: int) -> None:
    """A question sent behind two changes, without waiting for their answers, is answered as if each had been
    made before the next began; on another connection nothing waits."""

    async def run() -> None:
        ledger = Ledger(key)
        version = API[key].max_stable_version
        async with Shell({key: ledger.change, HEARTBEAT: ledger.ask}) as shell:
            client, other = await shell.client(), await shell.client()
            client.send(key, version)
            client.send(key, version)
            client.send(HEARTBEAT, 4)
            await eventually(lambda: bool(ledger.changes))
            assert (await other.ask(HEARTBEAT, 4)).error_code == 0
            assert len(ledger.changes) == 1, "the second began beside the first"
            ledger.finish()
            await eventually(lambda: bool(ledger.changes))
            assert (await other.ask(HEARTBEAT, 4)).error_code == 1
            ledger.finish()
            await client.receive(key, version)
            await client.receive(key, version)
            assert (await client.receive(HEARTBEAT, 4))[1].error_code == 2

    asyncio.run(run())


def test_a_change_behind_one_who_waits_still_lets_others_begin() -> None:
    """A request that is never done holds back the answers behind it, and nothing else: a change behind it
    ends, and what followed the change begins."""

    async def run() -> None:
        key = min(BARRIERS)
        ledger = Ledger(key)
        begun: list[int] = []

        def wait(context: RequestContext, request: HeartbeatRequest) -> asyncio.Future[Any]:
            begun.append(request.generation_id)
            return asyncio.get_running_loop().create_future()

        async with Shell({key: ledger.change, HEARTBEAT: wait}) as shell:
            client = await shell.client()
            client.send(HEARTBEAT, 4, HeartbeatRequest(generation_id=1))
            client.send(key, API[key].max_stable_version)
            client.send(HEARTBEAT, 4, HeartbeatRequest(generation_id=2))
            await eventually(lambda: bool(ledger.changes))
            assert begun == [1]
            ledger.finish()
            await eventually(lambda: begun == [1, 2])

    asyncio.run(run())


def test_a_connection_has_one_large_answer_at_a_time() -> None:
    """However many it asks for without reading: the next is begun when the one ahead is made. Small ones are
    not waited for."""

    async def run() -> None:
        made: list[asyncio.Future[None]] = []

        def handle(context: RequestContext, request: MetadataRequest) -> Any:
            return MetadataResponse() if request.topics else answer()

        async def answer() -> MetadataResponse:
            made.append(asyncio.get_running_loop().create_future())
            await made[-1]
            return MetadataResponse()

        async with Shell({METADATA: handle}) as shell:
            client = await shell.client()
            small = MetadataRequest([MetadataRequestTopic(name="a")])
            for request in (small, MetadataRequest(topics=None), MetadataRequest(topics=None), small):
                client.send(METADATA, 12, request)
            for number in (1, 2):
                await eventually(lambda: len(made) == number)  # noqa: B023
                await asyncio.sleep(0.02)
                assert len(made) == number
                made[-1].set_result(None)
            for _ in range(4):
                await client.receive(METADATA, 12)

    asyncio.run(run())


def test_a_fetch_waits_until_all_ahead_of_it_has_left() -> None:
    """Its answer could not leave before theirs, and its records would be held meanwhile. What has small
    answers begins behind it."""

    async def run() -> None:
        fetches, produced = Ledger(FETCH), Ledger(PRODUCE)
        asked: list[int] = []

        def ask(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
            asked.append(context.correlation_id)
            return fetches.ask(context, request)

        version = API[FETCH].max_stable_version
        async with Shell({FETCH: fetches.change, PRODUCE: produced.change, HEARTBEAT: ask}) as shell:
            client, other = await shell.client(), await shell.client()
            client.send(PRODUCE, 9)
            for _ in range(3):
                client.send(FETCH, version)
            await eventually(lambda: bool(produced.changes))
            assert (await other.ask(HEARTBEAT, 4)).error_code == 0
            assert not fetches.changes, "one began behind a request that has not left"
            produced.finish()
            await client.receive(PRODUCE, 9)
            for _ in range(3):
                await eventually(lambda: bool(fetches.changes))
                await other.ask(HEARTBEAT, 4)
                assert len(fetches.changes) == 1
                fetches.finish()
                await client.receive(FETCH, version)

            asked_before = len(asked)
            client.send(FETCH, version)
            client.send(HEARTBEAT, 4)
            await eventually(lambda: len(asked) > asked_before)
            fetches.finish()
            await client.receive(FETCH, version)
            await client.receive(HEARTBEAT, 4)

    asyncio.run(run())


@pytest.mark.parametrize("protocols_count", [1, 20_000], ids=["small", "decoded in chunks"])
def test_nothing_begins_behind_one_who_waits_for_its_group(protocols_count: int) -> None:
    """However long its members take: what were done behind it could not leave, and would hold the memory of
    requests all the while. It holds none itself, and what it sent begins when it is answered."""

    async def run() -> None:
        joins, asked = Ledger(JOIN), Ledger(HEARTBEAT)
        protocols = [JoinGroupRequestProtocol(f"p{number}") for number in range(protocols_count)]
        async with Shell({JOIN: joins.change, HEARTBEAT: asked.change}, memory_bytes=16 * MIB) as shell:
            client, other = await shell.client(), await shell.client()
            client.send(JOIN, 7, JoinGroupRequest("g", protocols=protocols))
            for _ in range(3):
                client.send(HEARTBEAT, 4)
            await eventually(lambda: bool(joins.changes))
            other.send(HEARTBEAT, 4)
            await eventually(lambda: bool(asked.changes))
            asked.finish()
            await other.receive(HEARTBEAT, 4)
            assert not asked.changes, "one began behind the join"
            await eventually(lambda: not any(part.used_bytes for part in shell.memory.of_frames))
            joins.finish()
            await client.receive(JOIN, 7)
            await eventually(lambda: len(asked.changes) == 3)
            for _ in range(3):
                asked.finish()
                await client.receive(HEARTBEAT, 4)
            await eventually(lambda: not shell.memory.used_bytes)

    asyncio.run(run())
