"""Handlers that begin a task for each partition: how many at once, and whose are next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millrace.broker.handlers.delete_records import DeleteRecords
from millrace.broker.handlers.describe_producers import DescribeProducers
from millrace.broker.handlers.offset_for_leader_epoch import OffsetForLeaderEpoch
from millrace.broker.requests.request import ConnectionInfo, RequestContext
from millrace.broker.requests.work import LARGE_AT_ONCE, RequestWork, WideRequests
from millrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millrace.runtime.scheduling.semaphore import Owner, Semaphore
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.broker_fixture import BrokerFixture
from tests.broker.partitions.build import run
from tests.patience import eventually

# Each opens partitions that are not open, 64 at a time.
HandlerOf = Callable[[BrokerFixture], Any]
RequestFor = Callable[[list[int]], Any]
HANDLERS: dict[str, tuple[HandlerOf, RequestFor]] = {
    "DeleteRecords": (
        lambda fixture: DeleteRecords(fixture.directory, fixture.clock),
        lambda indexes: DeleteRecordsRequest(
            [DeleteRecordsTopic("a", [DeleteRecordsPartition(index, 0) for index in indexes])], 60_000
        ),
    ),
    "OffsetForLeaderEpoch": (
        lambda fixture: OffsetForLeaderEpoch(fixture.directory),
        lambda indexes: OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic("a", [OffsetForLeaderPartition(index) for index in indexes])]
        ),
    ),
    "DescribeProducers": (
        lambda fixture: DescribeProducers(fixture.directory),
        lambda indexes: DescribeProducersRequest([TopicRequest("a", indexes)]),
    ),
}
each_api = pytest.mark.parametrize("api", HANDLERS)


class Clients:
    """Requests of one API, as the dispatcher serves them."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self._permits = Semaphore(LARGE_AT_ONCE)
        self._queue = YieldQueue()

    async def ask(self, owner: int, address: str, request: Any) -> Any:
        who = ConnectionInfo(owner, "PLAINTEXT", "127.0.0.1", 9092, address)
        context = RequestContext(0, 0, 1, "test", who, self._new_work)
        try:
            return await self._handler.handle(context, request)
        finally:
            context.work.end()

    def _new_work(self, owner: Owner) -> RequestWork:
        return RequestWork(self._queue, self._permits, WideRequests(1 << 20), owner)


@each_api
def test_few_requests_of_many_tasks_are_at_work(api: str) -> None:
    """Forty requests for a hundred partitions each, one chunk: no more tasks than those of two requests at
    any time, and all are answered."""
    make, request = HANDLERS[api]

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 100)
        clients, loop = Clients(make(fixture)), asyncio.get_running_loop()
        most = 0

        def look() -> None:
            nonlocal most
            most = max(most, len(asyncio.all_tasks()))
            if not asked.done():
                loop.call_soon(look)

        before = len(asyncio.all_tasks())
        asked = asyncio.gather(*(clients.ask(n, "many", request(list(range(100)))) for n in range(40)))
        look()
        responses = await asked
        assert all(len(response.topics[0].partitions) == 100 for response in responses)
        assert most - before <= 40 + LARGE_AT_ONCE * (100 + 64), most  # 64 partitions are being opened

    run(scenario())


@each_api
def test_who_asks_for_one_partition_does_not_wait_for_a_crowd(api: str) -> None:
    """Three hundred connections of one address wait for partitions to be opened, each for one; one of another
    address is served when the first of them is, not behind all."""
    make, request = HANDLERS[api]

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 301)
        fixture.opener.gate = asyncio.Event()
        clients, order = Clients(make(fixture)), list[int]()

        async def ask(number: int, address: str) -> None:
            await clients.ask(number, address, request([number]))
            order.append(number)

        crowd = [asyncio.create_task(ask(number, "many")) for number in range(300)]
        await eventually(lambda: bool(fixture.opener.opened))
        other = asyncio.create_task(ask(300, "other"))
        for _ in range(5):
            await asyncio.sleep(0)
        fixture.opener.gate.set()
        await asyncio.gather(other, *crowd)
        assert order.index(300) < 150, order.index(300)

    run(scenario())
