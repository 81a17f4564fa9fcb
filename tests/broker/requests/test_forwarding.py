"""What a client is told when the controller does not decide: in its own response, for every API that is
passed on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.handlers import ALTER_CONFIGS, FORWARDED
from millrace.broker.handlers.create_topics import CreateTopics
from millrace.broker.handlers.delete_topics import DeleteTopics
from millrace.broker.handlers.forward import Forward
from millrace.broker.requests.dispatch import Dispatcher
from millrace.broker.requests.forwarding import TIMED_OUT, Forwarding
from millrace.broker.requests.request import ConnectionInfo, Handle, Verdict
from millrace.kraft.errors import NotLeader
from millrace.protocol.apis import API
from millrace.protocol.codec import decode_response, encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.patience import PATIENCE_S

CONNECTION = ConnectionInfo(1, "PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1")


class Silent:
    """A controller that never answers."""

    async def send(self, request: Any) -> Any:
        await asyncio.get_running_loop().create_future()


class Refusing:
    async def send(self, request: Any) -> Any:
        raise NotLeader


def handler_of(key: int, forwarding: Forwarding) -> Handle:
    if key == 19:
        return CreateTopics(forwarding).handle
    if key == 20:
        return DeleteTopics(forwarding, True).handle
    return Forward(forwarding).handle


async def ask(key: int, version: int, request: Any, channel: Any) -> Any:
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher({key: handler_of(key, Forwarding(channel, 20))}, loop.create_task, YieldQueue())
    frame = memoryview(encode_request(API[key], version, 7, "test", request))[4:]
    exchange = dispatcher.begin(frame, CONNECTION)
    if exchange.is_pending:
        await asyncio.wait([exchange.outcome])
        outcome = dispatcher.settle(exchange)
    else:
        outcome = exchange.outcome
    assert not isinstance(outcome, Verdict), f"{API[key].name} has no answer"
    reply = dispatcher.encode(exchange, outcome)
    assert reply is not None
    return decode_response(API[key], version, memoryview(b"".join(reply))[4:])[1]


@pytest.mark.parametrize("key", sorted(FORWARDED - set(ALTER_CONFIGS)))
@pytest.mark.parametrize("channel", [Silent(), Refusing()], ids=["silent", "not the leader"])
def test_every_forwarded_api_is_answered(key: int, channel: Any) -> None:
    """In its lowest and its highest version, whether the controller is silent or says it cannot."""
    api = API[key]

    async def scenario() -> None:
        for version in (api.min_version, api.max_stable_version):
            assert isinstance(await ask(key, version, api.request_type(), channel), api.response_type)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))


def test_the_refusal_names_what_was_asked_for() -> None:
    """Each topic of the request has the code, and the text says that the outcome is unknown."""

    async def scenario() -> None:
        asked = CreateTopicsRequest(topics=[CreatableTopic("a", 1, 1), CreatableTopic("b", 1, 1)])
        response = await ask(19, 7, asked, Silent())
        found = [(topic.name, topic.error_code, topic.error_message) for topic in response.topics]
        assert found == [(name, ErrorCode.REQUEST_TIMED_OUT, TIMED_OUT) for name in ("a", "b")]
        gone = DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), DeleteTopicState(topic_id=b"i" * 16)])
        response = await ask(20, 6, gone, Refusing())
        assert [(one.name, one.topic_id, one.error_code) for one in response.responses] == [
            ("a", bytes(16), ErrorCode.REQUEST_TIMED_OUT),
            (None, b"i" * 16, ErrorCode.REQUEST_TIMED_OUT),
        ]

    asyncio.run(scenario())


def test_the_metadata_log_is_held_back_alone() -> None:
    """Of a request that names it among others, the others reach the controller."""
    seen: list[list[str]] = []

    class Recording:
        async def send(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
            seen.append([topic.name for topic in request.topics])
            return CreateTopicsResponse()

    async def scenario() -> None:
        names = ("a", "__cluster_metadata", "b")
        asked = CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1) for name in names])
        response = await ask(19, 7, asked, Recording())
        assert seen == [["a", "b"]]
        (held,) = response.topics
        assert (held.name, held.error_code) == ("__cluster_metadata", ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    asyncio.run(scenario())
