"""Topics made on the way, with a channel that answers by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from millrace.broker.config import load
from millrace.broker.requests.request import ConnectionInfo, RequestContext
from millrace.broker.settings.of_parts import internal_topics
from millrace.broker.settings.source import gather
from millrace.broker.settings.table import all_keys
from millrace.broker.topic_creation import NAMES_A_REQUEST, REFUSAL_PERIOD_S, TopicCreation
from millrace.kraft.errors import NotLeader, TooManyCommands
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.partitions.stopped import turns
from tests.broker.work import new_work
from tests.kraft.test_replay import Machine
from tests.patience import PATIENCE_S

CONTEXT = RequestContext(3, 12, 1, "asker", ConnectionInfo(1, "PLAINTEXT", "h", 1, "10.0.0.7", 555), new_work)
INTERNAL = {"__consumer_offsets": (50, {"cleanup.policy": "compact"})}


class HandChannel:
    """Keeps each request until the test answers it."""

    def __init__(self) -> None:
        self.requests: list[CreateTopicsRequest] = []
        self.replies: list[asyncio.Future[Any]] = []

    async def send(self, request: Any) -> Any:
        self.requests.append(request)
        self.replies.append(asyncio.get_running_loop().create_future())
        return await self.replies[-1]

    def names(self) -> list[list[str]]:
        return [[topic.name for topic in request.topics] for request in self.requests]

    def answer(
        self, place: int, code_of: Callable[[str], int] = lambda name: 0, why: str | None = None
    ) -> None:
        names = [topic.name for topic in self.requests[place].topics]
        results = [CreatableTopicResult(name, error_code=code_of(name), error_message=why) for name in names]
        self.replies[place].set_result(CreateTopicsResponse(topics=results))


class ControllerOfOne:
    """Decides at once, as the controller does."""

    async def send(self, request: Any) -> Any:
        return Machine().do(request)


def run(scenario: Callable[[HandChannel, TopicCreation], Any]) -> None:
    async def main() -> None:
        channel = HandChannel()
        await asyncio.wait_for(scenario(channel, TopicCreation(channel, INTERNAL, YieldQueue())), PATIENCE_S)

    asyncio.run(main())


def test_what_was_made_is_told_once_with_who_asked() -> None:
    """Not what was there by then, nor what was refused; who only waits for it made nothing."""

    async def scenario(channel: HandChannel, creation: TopicCreation) -> None:
        told: list[tuple[str | None, Any]] = []
        creation.on_created = lambda context, names: told.append((context.client_id, names))
        codes = {"there": ErrorCode.TOPIC_ALREADY_EXISTS, "bad": ErrorCode.INVALID_CONFIG}
        first = asyncio.ensure_future(creation.ensure(["a", "there", "bad", "b"], CONTEXT))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(creation.ensure(["a"], replace(CONTEXT, client_id="other")))
        await turns(20)
        channel.answer(0, lambda name: codes.get(name, ErrorCode.NONE))
        await asyncio.gather(first, second)
        assert told == [("asker", ["a", "b"])]

    run(scenario)


def test_a_name_is_asked_for_once_however_many_want_it() -> None:
    """Two askers that overlap share the creation of what both want; each hears of all it asked for."""

    async def scenario(channel: HandChannel, creation: TopicCreation) -> None:
        first = asyncio.ensure_future(creation.ensure(["a", "b", "a"], CONTEXT))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(creation.ensure(["b", "c"], CONTEXT))
        await turns(20)
        assert channel.names() == [["a", "b"], ["c"]]
        channel.answer(0, lambda name: {"a": 0, "b": ErrorCode.TOPIC_ALREADY_EXISTS}[name])
        channel.answer(1, lambda name: ErrorCode.INVALID_CONFIG)
        assert await first == {"a": 0, "b": 0}
        assert await second == {"b": 0, "c": ErrorCode.INVALID_CONFIG}
        third = asyncio.ensure_future(creation.ensure(["a"], CONTEXT))
        await turns(20)
        assert channel.names()[2:] == [["a"]]
        third.cancel()

    run(scenario)


def test_many_names_go_in_few_requests() -> None:
    """A hundred a request, so that neither the requests nor one of them grow without bound."""

    async def scenario(channel: HandChannel, creation: TopicCreation) -> None:
        names = [f"t{number}" for number in range(2 * NAMES_A_REQUEST + 1)]
        asked = asyncio.ensure_future(creation.ensure(names, CONTEXT))
        await turns(20)
        assert list(map(len, channel.names())) == [NAMES_A_REQUEST, NAMES_A_REQUEST, 1]
        for place in range(3):
            channel.answer(place)
        assert list(await asked) == names

    run(scenario)


def test_who_stops_waiting_does_not_stop_the_others() -> None:
    """A cancelled asker leaves the creation to whoever else wants it."""

    async def scenario(channel: HandChannel, creation: TopicCreation) -> None:
        first = asyncio.ensure_future(creation.ensure(["a"], CONTEXT))
        second = asyncio.ensure_future(creation.ensure(["a"], CONTEXT))
        await turns(20)
        first.cancel()
        await turns(20)
        channel.answer(0)
        assert await second == {"a": 0}

    run(scenario)


def test_a_controller_that_cannot_now_is_asked_again_by_the_client() -> None:
    """Unavailable and Exhausted become LEADER_NOT_AVAILABLE, which every client retries; the next asking goes
    out anew."""

    async def scenario(channel: HandChannel, creation: TopicCreation) -> None:
        for place, error in enumerate((NotLeader(), TooManyCommands(1))):
            asked = asyncio.ensure_future(creation.ensure(["a"], CONTEXT))
            await turns(20)
            channel.replies[place].set_exception(error)
            assert await asked == {"a": ErrorCode.LEADER_NOT_AVAILABLE}

    run(scenario)


def test_internal_topics_have_their_own_shape_or_are_not_made() -> None:
    """__consumer_offsets with its partitions and configuration, others with the defaults; an internal topic
    without a shape of its own is no client's to make."""

    async def scenario(channel: HandChannel, creation: TopicCreation) -> None:
        asked = asyncio.ensure_future(creation.ensure(["__consumer_offsets", "plain"], CONTEXT))
        await turns(20)
        offsets, plain = channel.requests[0].topics
        assert (offsets.num_partitions, [(c.name, c.value) for c in offsets.configs]) == (
            50,
            [("cleanup.policy", "compact")],
        )
        assert (plain.num_partitions, plain.replication_factor, plain.configs) == (-1, -1, [])
        asked.cancel()
        assert creation.may_create("__consumer_offsets")
        assert creation.may_create("plain")
        assert not creation.may_create("__transaction_state")
        assert not creation.may_create("__share_group_state")
        assert not creation.may_create("__cluster_metadata")
        assert not creation.may_create("no good")

    run(scenario)


def test_an_internal_topic_that_is_refused_is_told_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """One line a period, however many groups ask; a name of a client's that is refused is the client's to
    hear of."""

    async def refused(channel: HandChannel, creation: TopicCreation, name: str) -> None:
        asked = asyncio.ensure_future(creation.ensure([name], CONTEXT))
        await turns(20)
        channel.answer(-1, lambda _: ErrorCode.INVALID_CONFIG, "segment.bytes is too small")
        assert await asked == {name: ErrorCode.INVALID_CONFIG}

    async def scenario(channel: HandChannel, creation: TopicCreation) -> None:
        await refused(channel, creation, "plain")
        for _ in range(3):
            await refused(channel, creation, "__consumer_offsets")
        (line,) = caplog.messages
        assert (
            line
            == "the internal topic __consumer_offsets cannot be made: error 40, segment.bytes is too small"
        )
        creation._told["__consumer_offsets"] -= REFUSAL_PERIOD_S
        await refused(channel, creation, "__consumer_offsets")
        assert len(caplog.messages) == 2

    run(scenario)


@pytest.mark.parametrize("name", ["offsets.topic.num.partitions", "offsets.topic.segment.bytes"])
def test_the_controller_takes_internal_topics_at_the_bounds_of_their_settings(name: str) -> None:
    """Whatever a start accepts for __consumer_offsets can be made: the least and the most that the table
    allows."""
    key = all_keys()[name]

    async def made(bound: int) -> dict[str, int]:
        given, _ = gather([f"{name}={bound}"], {}, None, "")
        settings = load(given, data_dir="/data", machine_bytes=4 << 30).settings
        creation = TopicCreation(ControllerOfOne(), internal_topics(settings), YieldQueue())
        return await creation.ensure(["__consumer_offsets"], CONTEXT)

    for bound in (key.low, key.high or 2**31 - 1):
        assert bound is not None
        assert asyncio.run(made(int(bound))) == {"__consumer_offsets": 0}
