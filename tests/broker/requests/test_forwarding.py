"""What a client is told when the controller does not decide: in its own response, for every API that is
passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from millrace.broker.handlers import ALTER_CONFIGS, FORWARDED
from millrace.broker.handlers.create_topics import CreateTopics
from millrace.broker.handlers.delete_topics import DeleteTopics
from millrace.broker.handlers.forward import Forward
from millrace.broker.handlers.update_features import UpdateFeatures
from millrace.broker.quorum.listener import command_handlers
from millrace.broker.requests.dispatch import Dispatcher, Late
from millrace.broker.requests.forwarding import COMMANDS_AT_ONCE, NAMES_AT_ONCE, TIMED_OUT, Forwarding
from millrace.broker.requests.request import ConnectionInfo, Handle, RequestContext, Verdict
from millrace.kraft.errors import NotLeader
from millrace.protocol.apis import API, api_of
from millrace.protocol.codec import decode_request, decode_response, encode_request, encode_response
from millrace.protocol.declare import wire_fields
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.header import decode_request_header
from millrace.protocol.messages.add_raft_voter import AddRaftVoterRequest
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from millrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from millrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from millrace.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.work import new_work
from tests.patience import PATIENCE_S
from tests.sim.loop import SimLoop, run_simulation

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
    if key == 57:
        return UpdateFeatures(forwarding).handle
    return Forward(forwarding).handle


def of_controller(key: int, forwarding: Forwarding) -> Handle | Late:
    return command_handlers(forwarding, is_deletable=True)[key]


LISTENERS = pytest.mark.parametrize("handler", [handler_of, of_controller], ids=["broker", "controller"])


async def ask(
    key: int,
    version: int,
    request: Any,
    channel: Any,
    handler: Callable[[int, Forwarding], Handle | Late] = handler_of,
) -> Any:
    loop = asyncio.get_running_loop()
    dispatcher = Dispatcher({key: handler(key, Forwarding(channel, 20))}, loop.create_task, YieldQueue())
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
    """Each topic of the request has the code, and the text says that the outcome is unknown; of partitions
    each. Kafka's AdminClient takes a response that leaves some out for a broken one."""

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
        moved = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic("a", [ReassignablePartition(one, [1]) for one in (0, 3)])]
        )
        response = await ask(45, 0, moved, Silent())
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        (topic,) = response.responses
        told = [(one.partition_index, one.error_code, one.error_message) for one in topic.partitions]
        assert (topic.name, told) == (
            "a",
            [(one, ErrorCode.REQUEST_TIMED_OUT, TIMED_OUT) for one in (0, 3)],
        )

    asyncio.run(scenario())


class Distant:
    """A controller of another node: asked, and answering, in the newest version."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer
        self.asked: list[Any] = []

    async def send(self, request: Any) -> Any:
        api = api_of(request)
        frame = memoryview(encode_request(api, api.max_stable_version, 1, "node 1", request))[4:]
        _, start = decode_request_header(frame)
        self.asked.append(decode_request(api, api.max_stable_version, frame, start))
        reply = encode_response(api, api.max_stable_version, 1, self._answer(self.asked[-1]))
        return decode_response(api, api.max_stable_version, memoryview(b"".join(reply))[4:])[1]


@LISTENERS
@pytest.mark.parametrize("version", range(API[20].min_version, API[20].max_stable_version + 1))
def test_topics_are_deleted_by_whichever_node_leads(version: int, handler: Any) -> None:
    """Whatever version a client asks in, and at which listener. Up to version 5 names stand elsewhere: a node
    that does not lead passed none on, and answered without a word that none was deleted."""

    def delete(request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        return DeleteTopicsResponse(responses=[DeletableTopicResult(one.name) for one in request.topics])

    async def scenario() -> None:
        names = ["a", "b"]
        asked = DeleteTopicsRequest(topic_names=names)
        if version >= 6:
            asked = DeleteTopicsRequest(topics=[DeleteTopicState(name) for name in names])
        response = await ask(20, version, asked, Distant(delete), handler)
        assert [(one.name, one.error_code) for one in response.responses] == [("a", 0), ("b", 0)]

    asyncio.run(scenario())


@LISTENERS
@pytest.mark.parametrize(
    ("version", "fields", "kind"),
    [(0, {}, 1), (0, {"allow_downgrade": True}, 2), (1, {"upgrade_type": 3}, 3)],
)
def test_features_are_updated_by_whichever_node_leads(
    version: int, fields: Any, kind: int, handler: Any
) -> None:
    """Up to version 1 each feature is answered, and Kafka's AdminClient takes one that is left out for a
    broken answer; version 0 says otherwise that a downgrade is meant."""

    async def scenario() -> None:
        controller = Distant(lambda request: UpdateFeaturesResponse())
        asked = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey("metadata.version", 7, **fields)])
        response = await ask(57, version, asked, controller, handler)
        assert [(one.feature, one.error_code) for one in response.results] == [("metadata.version", 0)]
        (update,) = controller.asked[0].feature_updates
        assert (update.max_version_level, update.upgrade_type) == (7, kind)

    asyncio.run(scenario())


@LISTENERS
def test_what_is_asked_as_if_is_passed_on_so_and_a_refusal_names_no_results(handler: Any) -> None:
    """Levels do not come down again."""

    async def scenario() -> None:
        refusal = UpdateFeaturesResponse(error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message="no")
        controller = Distant(lambda request: refusal)
        asked = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey("kraft.version", 1)])
        for is_asked_only in (True, False):
            asked.validate_only = is_asked_only
            response = await ask(57, 1, asked, controller, handler)
            assert (response.error_code, response.results) == (ErrorCode.INVALID_UPDATE_VERSION, [])
        assert [one.validate_only for one in controller.asked] == [True, False]

    asyncio.run(scenario())


@pytest.mark.parametrize("version", [1, 2, 3, 6])
def test_a_controller_deletes_no_topics_where_that_is_turned_off(version: int) -> None:
    async def scenario() -> None:
        controller = Distant(lambda request: pytest.fail("it was passed on"))

        def handler(key: int, forwarding: Forwarding) -> Handle | Late:
            return command_handlers(forwarding, is_deletable=False)[key]

        asked = DeleteTopicsRequest(topic_names=["a"])
        if version >= 6:
            asked = DeleteTopicsRequest(topics=[DeleteTopicState("a")])
        response = await ask(20, version, asked, controller, handler)
        code = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        assert [(one.name, one.error_code) for one in response.responses] == [("a", code)]

    asyncio.run(scenario())


def test_nothing_else_that_is_passed_on_is_said_in_older_versions_alone() -> None:
    """What the newest version does not carry is lost between nodes, unless a handler puts it elsewhere."""

    def gone(kind: Any, newest: int) -> Iterator[str]:
        for one in wire_fields(kind):
            if one.presence.until is not None and one.presence.until < newest:
                yield f"{kind.__name__}.{one.name}"
            inner = one.type.element or one.type
            if inner.structure is not None:
                yield from gone(inner.structure, newest)

    apis = [API[key] for key in sorted(FORWARDED)]
    kinds = [(kind, api.max_stable_version) for api in apis for kind in (api.request_type, api.response_type)]
    assert [name for kind, newest in kinds for name in gone(kind, newest)] == [
        "DeleteTopicsRequest.topic_names",
        "FeatureUpdateKey.allow_downgrade",
        "UpdateFeaturesResponse.results",
    ]


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
        assert (held.name, held.error_code) == ("__cluster_metadata", ErrorCode.INVALID_REQUEST)

    asyncio.run(scenario())


def test_one_who_asks_for_much_lets_others_pass() -> None:
    """The controller is given some commands at once; of those that wait another address's is next."""
    waiting: list[tuple[str, asyncio.Future[CreateTopicsResponse]]] = []

    class Slow:
        async def send(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
            waiting.append((request.topics[0].name, asyncio.get_running_loop().create_future()))
            return await waiting[-1][1]

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        handler = CreateTopics(Forwarding(Slow(), 60_000))
        for number in range(3 * COMMANDS_AT_ONCE):
            name, address = ("other", "10.0.0.2") if number == 2 * COMMANDS_AT_ONCE else ("much", "10.0.0.1")
            connection = replace(CONNECTION, id=number, peer_host=address)
            context = RequestContext(19, 7, number, "", connection, new_work)
            request = CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1)])
            tasks.append(loop.create_task(handler.handle(context, request)))
        await asyncio.sleep(0.01)
        assert [name for name, _ in waiting] == ["much"] * COMMANDS_AT_ONCE
        waiting[0][1].set_result(CreateTopicsResponse())
        await asyncio.sleep(0.01)
        assert [name for name, _ in waiting][COMMANDS_AT_ONCE:] == ["other"]
        for task in tasks:
            task.cancel()

    tasks: list[asyncio.Task[CreateTopicsResponse]] = []
    asyncio.run(scenario())


def test_changes_of_voters_keep_no_other_command_waiting() -> None:
    """They wait for nodes that may never answer, each for half a minute."""
    asked: list[type] = []

    class Waiting:
        async def send(self, request: Any) -> Any:
            asked.append(type(request))
            if isinstance(request, AddRaftVoterRequest):
                await asyncio.get_running_loop().create_future()
            return CreateTopicsResponse()

    async def scenario() -> None:
        forwarding, loop = Forwarding(Waiting(), 60_000), asyncio.get_running_loop()
        context = RequestContext(19, 7, 1, "", CONNECTION, new_work)
        added = [
            loop.create_task(forwarding.ask(AddRaftVoterRequest(), context))
            for _ in range(2 * COMMANDS_AT_ONCE)
        ]
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await forwarding.ask(CreateTopicsRequest(topics=[CreatableTopic("a", 1, 1)]), context)
        assert asked == [AddRaftVoterRequest] * COMMANDS_AT_ONCE + [CreateTopicsRequest]
        for task in added:
            task.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [NAMES_AT_ONCE, NAMES_AT_ONCE + 1])
def test_what_names_much_has_a_permit_before_its_answer_is_built(count: int) -> None:
    """Answers that wait to be encoded would be held by all who asked; a small one waits for nothing."""
    asked: list[bool] = []

    async def scenario() -> None:
        work = new_work()
        context = RequestContext(19, 7, 1, "", CONNECTION, lambda _: work)

        class Channel:
            async def send(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
                asked.append(work._has_permit)
                return CreateTopicsResponse()

        request = CreateTopicsRequest(topics=[CreatableTopic(f"t{number}", 1, 1) for number in range(count)])
        await CreateTopics(Forwarding(Channel(), 60_000)).handle(context, request)
        assert asked == [count > NAMES_AT_ONCE]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("key", "asked"),
    [(46, ListPartitionReassignmentsRequest()), (57, UpdateFeaturesRequest(validate_only=True))],
)
def test_of_a_question_nothing_is_said_to_be_carried_out(key: int, asked: Any) -> None:
    """It changes nothing, whether it was answered or not; nor does what is only to be validated."""

    async def scenario() -> None:
        response = await ask(key, API[key].max_stable_version, asked, Silent())
        told = response.error_code, response.error_message
        assert told == (ErrorCode.REQUEST_TIMED_OUT, "the controller did not answer in time")

    asyncio.run(scenario())


@pytest.mark.parametrize("timeout_ms", [300, 30_000])
def test_a_command_is_waited_for_as_long_as_the_setting_says(timeout_ms: int) -> None:
    """`request.timeout.ms`, to the millisecond of the loop's clock, and whatever the request names itself."""

    class Silent:
        async def send(self, request: Any) -> Any:
            await asyncio.Event().wait()

    async def scenario(loop: SimLoop) -> None:
        context, began_s = RequestContext(19, 7, 1, "", CONNECTION, new_work), loop.time()
        with pytest.raises(TimeoutError):
            await Forwarding(Silent(), timeout_ms).ask(CreateTopicsRequest(timeout_ms=5), context)
        assert loop.time() - began_s == pytest.approx(timeout_ms / 1000)

    run_simulation(scenario)
