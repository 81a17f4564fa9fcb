"""The rows of APIs, and the gates that every API's requests pass: what may be asked of each, and that nothing
is refused yet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from millrace.broker.quorum.listener import OF_MEMBERS
from millrace.broker.requests.api_traits import (
    TRAITS,
    Answer,
    Operation,
    Order,
    Quota,
    Resource,
    Traits,
    Work,
    keys,
)
from millrace.broker.requests.dispatch import Dispatcher
from millrace.broker.requests.gates import Gates
from millrace.broker.requests.request import CLOSE, ConnectionInfo, RequestContext
from millrace.protocol.apis import ALL, API, NAMED, Api
from millrace.protocol.codec import encode_request
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import WireError
from millrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from millrace.runtime.scheduling.yield_queue import YieldQueue

CONNECTION = ConnectionInfo(1, "PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1")
TELEMETRY = {NAMED["GetTelemetrySubscriptions"].key, NAMED["PushTelemetry"].key}  # not served
SERVED = sorted(TRAITS, key=lambda key: API[key].name)


def frame(api: Api) -> bytes:
    return bytes(memoryview(encode_request(api, api.max_stable_version, 1, "c", api.request_type()))[4:])


def answered(api: Api, gates: Gates) -> tuple[Any, list[Any]]:
    """What comes of a request, and what its handler saw."""
    seen: list[Any] = []

    def handle(context: RequestContext, request: Any) -> Any:
        seen.append(request)
        return api.response_type()

    async def main() -> Any:
        dispatcher = Dispatcher(
            {api.key: handle}, asyncio.get_running_loop().create_task, YieldQueue(), gates
        )
        exchange = dispatcher.begin(frame(api), CONNECTION)
        if exchange.is_pending:
            await asyncio.wait([exchange.outcome])
            return dispatcher.settle(exchange)
        return exchange.outcome

    return asyncio.run(main()), seen


def test_each_api_that_a_node_may_serve_has_a_row() -> None:
    """Those of Kafka's broker listeners, but for what is not served at all, and what controllers and brokers
    are asked by other nodes."""
    of_brokers = {api.key for api in ALL if "broker" in api.listeners and not api.is_private}
    assert set(TRAITS) == (of_brokers - TELEMETRY) | {*OF_MEMBERS, NAMED["ReadOwedRange"].key}


@pytest.mark.parametrize("key", SERVED, ids=lambda key: API[key].name)
def test_every_api_passes_the_gates_in_order(key: int) -> None:
    """Each gate is asked once, with the API's own row, before the handler; the broker's own gates let it
    pass."""
    asked: list[tuple[str, Traits]] = []

    def is_authenticated(context: RequestContext, traits: Traits) -> bool:
        asked.append(("authenticated", traits))
        return True

    def authorise(context: RequestContext, traits: Traits, request: Any) -> None:
        asked.append(("authorise", traits))

    def count(context: RequestContext, traits: Traits, request: Any) -> None:
        asked.append(("count", traits))

    _, seen = answered(API[key], Gates(is_authenticated, authorise, count))
    assert asked == [(name, TRAITS[key]) for name in ("authenticated", "authorise", "count")]
    assert len(seen) == 1
    assert len(answered(API[key], Gates())[1]) == 1


@pytest.mark.parametrize("key", SERVED, ids=lambda key: API[key].name)
def test_what_a_gate_refuses_reaches_no_handler(key: int) -> None:
    """It is refused in the API's own form, or the connection ends; so it does before authentication."""
    api = API[key]
    refusing = Gates(authorise=lambda context, traits, request: ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    outcome, seen = answered(api, refusing)
    assert seen == []
    assert outcome is CLOSE or outcome == api.response_type(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(WireError, match=f"{api.name} before authentication"):
        answered(api, Gates(is_authenticated=lambda context, traits: False))


def test_a_large_request_passes_them_too() -> None:
    """One that is decoded in chunks."""
    api = NAMED["Metadata"]
    asked = []

    def authorise(context: RequestContext, traits: Traits, request: Any) -> ErrorCode:
        asked.append(len(request.topics))
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    async def main() -> Any:
        dispatcher = Dispatcher(
            {api.key: lambda context, request: api.response_type()},
            asyncio.get_running_loop().create_task,
            YieldQueue(),
            Gates(authorise=authorise),
        )
        many = MetadataRequest([MetadataRequestTopic(name=f"t{one}") for one in range(5_000)])
        exchange = dispatcher.begin(bytes(memoryview(encode_request(api, 13, 1, "c", many))[4:]), CONNECTION)
        assert exchange.is_pending
        await asyncio.wait([exchange.outcome])
        return dispatcher.settle(exchange)

    outcome = asyncio.run(main())
    assert asked == [5_000]
    assert outcome.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def names(found: frozenset[int]) -> set[str]:
    return {API[key].name for key in found}


def test_the_rows_say_what_kafka_does() -> None:
    """Who may ask before authentication, what later requests of a connection can see, what is limited, and
    what changes metadata."""
    assert names(keys(lambda one: one.is_open)) == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
    assert (
        keys(lambda one: one.is_open)
        == keys(lambda one: one.permission is None)
        == keys(lambda one: one.quota is Quota.NONE)
    )
    by_quota: Mapping[Quota, set[str]] = {
        quota: names(keys(lambda one, q=quota: one.quota is q)) for quota in Quota
    }
    assert by_quota[Quota.PRODUCE] == {"Produce"}
    assert by_quota[Quota.FETCH] == {"Fetch"}
    assert by_quota[Quota.MUTATION] == {"CreateTopics", "CreatePartitions", "DeleteTopics"}
    assert TRAITS[NAMED["Produce"].key].permission == (Resource.TOPIC, Operation.WRITE)
    assert TRAITS[NAMED["JoinGroup"].key].permission == (Resource.GROUP, Operation.READ)
    assert names(keys(lambda one: one.work is Work.KEPT)) == {"JoinGroup", "SyncGroup"}


def test_traits_that_go_together() -> None:
    """What is answered wide, or is kept by a group, waits for its turn, and so does what names things by the
    thousand and is answered by more than a word of each; what changes something is no wide answer; what only
    the controller can change is forwarded."""
    for traits in TRAITS.values():
        name = API[traits.key].name
        if traits.answer in (Answer.WIDE, Answer.SHARED) or traits.work is Work.KEPT:
            assert traits.order is Order.HEAD, name
        if traits.work is Work.CHUNKED and traits.answer is not Answer.BRIEF:
            assert traits.order is not Order.FREE, name
        if traits.quota is Quota.MUTATION:
            assert traits.order is Order.BARRIER, name
            assert traits.is_forwarded, name
