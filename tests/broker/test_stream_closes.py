"""Closes of streams on their way to the controller: how many requests they take, and who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millrace.broker.stream_closes import CLOSES_MAX, Close, StreamCloses
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.close_streams import ClosedStream
from millrace.s3stream.errors import StreamFenced
from millrace.s3stream.ids import StreamId
from tests.patience import eventually


class Controller:
    """Answers when it is let; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[Close]] = []
        self.may_answer = asyncio.Event()
        self.codes: dict[StreamId, int] = {}
        self.errors: list[Exception] = []  # to be raised, one a request
        self.under_way = 0

    async def send(self, streams: Sequence[Close]) -> Sequence[ClosedStream]:
        self.asked.append(list(streams))
        self.under_way += 1
        assert self.under_way == 1, "one request at a time"
        try:
            await self.may_answer.wait()
        finally:
            self.under_way -= 1
        if self.errors:
            raise self.errors.pop(0)
        return [ClosedStream(stream_id, self.codes.get(stream_id, 0)) for stream_id, _ in streams]


def closing(closes: StreamCloses, *streams: Close) -> list[asyncio.Task[int]]:
    loop = asyncio.get_running_loop()
    return [loop.create_task(closes.close(*one)) for one in streams]


def ids(start: int, end: int, epoch: int = 1) -> list[Close]:
    return [(StreamId(number), epoch) for number in range(start, end)]


def test_thousands_of_closes_take_few_requests() -> None:
    """What is asked for together goes together, in requests of bounded size, one after the other."""

    async def scenario() -> None:
        controller = Controller()
        closes = StreamCloses(controller.send)
        controller.may_answer.set()
        controller.codes = {StreamId(7): int(ErrorCode.FENCED_LEADER_EPOCH)}
        codes = await asyncio.gather(*closing(closes, *ids(0, 3_000)))
        assert [len(request) for request in controller.asked] == [CLOSES_MAX] * (3_000 // CLOSES_MAX)
        assert [index for index, code in enumerate(codes) if code] == [7]

    asyncio.run(scenario())


def test_closes_that_come_meanwhile_go_with_the_next_request() -> None:
    """Also the same stream once more: under its epoch with the one that waits, under another by itself."""

    async def scenario() -> None:
        controller = Controller()
        closes = StreamCloses(controller.send)
        first = closing(closes, *ids(0, 1))
        await eventually(lambda: len(controller.asked) == 1)
        later = closing(closes, *ids(1, 3), *ids(1, 2), *ids(1, 2, epoch=2))
        await asyncio.sleep(0)
        controller.may_answer.set()
        assert await asyncio.gather(*first, *later) == [0] * 5
        assert controller.asked == [ids(0, 1), ids(1, 3), ids(1, 2, epoch=2)]

    asyncio.run(scenario())


def test_an_error_is_told_to_those_whose_request_it_was() -> None:
    """The next request is sent all the same."""

    async def scenario() -> None:
        controller = Controller()
        closes = StreamCloses(controller.send)
        first = closing(closes, *ids(0, 2))
        await eventually(lambda: len(controller.asked) == 1)
        later = closing(closes, *ids(2, 3))
        await asyncio.sleep(0)
        controller.errors = [StreamFenced(-1, 1)]
        controller.may_answer.set()
        found = await asyncio.gather(*first, *later, return_exceptions=True)
        assert [type(one) for one in found] == [StreamFenced, StreamFenced, int]
        assert [len(request) for request in controller.asked] == [2, 1]

    asyncio.run(scenario())


def test_a_request_that_nobody_waits_for_is_given_up() -> None:
    """One of two who wait goes: the request stays. Both go: it ends, and who comes then is served."""

    async def scenario() -> None:
        controller = Controller()
        closes = StreamCloses(controller.send)
        one, other = closing(closes, *ids(0, 2))
        await eventually(lambda: controller.under_way == 1)
        one.cancel()
        await asyncio.sleep(0.01)
        assert controller.under_way == 1
        other.cancel()
        await eventually(lambda: controller.under_way == 0)
        controller.may_answer.set()
        assert await closes.close(StreamId(5), 1) == 0
        assert controller.asked == [ids(0, 2), ids(5, 6)]

    asyncio.run(scenario())
