"""Dispatch: from a frame to the handler, from what it gives back to a reply, and what becomes of errors."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import millrace
from millrace.broker.errors import CODES, code_of
from millrace.broker.injection import Faults, FaultyHandle
from millrace.broker.requests.api_traits import TRAITS
from millrace.broker.requests.dispatch import (
    OTHER_REQUEST_BYTES_MAX,
    Dispatcher,
    Exchange,
    Late,
    Route,
    has_error_code,
)
from millrace.broker.requests.gates import Gates
from millrace.broker.requests.request import CLOSE, NO_REPLY, ConnectionInfo, RequestContext
from millrace.broker.requests.work import CHUNK_BYTES, FREE_CHUNKS, LARGE_AT_ONCE, WideRequests
from millrace.protocol.apis import API, NAMED
from millrace.protocol.codec import decode_response, encode_request, encode_response
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError, WireError
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from millrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.runtime.errors import Closed, Corrupt, Exhausted, Fenced, MillraceError, Unavailable
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.work import new_work

PRODUCE, FETCH, METADATA, JOIN_GROUP, HEARTBEAT = 0, 1, 3, 11, 12
CONNECTION = ConnectionInfo(1, "PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1")
LIMIT_CHUNKS = 8


def frame(key: int, version: int, request: Any = None, client_id: str | None = "c") -> bytes:
    return encode_request(API[key], version, 7, client_id, request or API[key].request_type())[4:]


def never(coroutine: Any) -> Any:
    raise AssertionError("no task was due")


def begin(
    handle: Any, key: int = HEARTBEAT, version: int = 4, request: Any = None
) -> tuple[Dispatcher, Exchange]:
    dispatcher = Dispatcher({key: handle}, never, YieldQueue())
    return dispatcher, dispatcher.begin(frame(key, version, request), CONNECTION)


def reply(dispatcher: Dispatcher, exchange: Exchange, outcome: Any) -> Any:
    """The reply's response, through the bytes."""
    buffers = dispatcher.encode(exchange, outcome)
    assert buffers is not None
    raw = b"".join(buffers)
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    correlation_id, response = decode_response(exchange.route.api, exchange.version, raw[4:])
    assert correlation_id == 7
    return response


def test_a_request_reaches_its_handler_and_its_response_the_wire() -> None:
    """Header and body are decoded for the handler; the response carries the correlation id."""
    seen: list[tuple[RequestContext, HeartbeatRequest]] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        seen.append((context, request))
        return HeartbeatResponse(error_code=27)

    dispatcher, exchange = begin(handle, request=HeartbeatRequest(group_id="g", generation_id=3))
    ((context, request),) = seen
    assert (context.api_key, context.api_version, context.correlation_id, context.client_id) == (
        12,
        4,
        7,
        "c",
    )
    assert context.connection is CONNECTION
    assert (request.group_id, request.generation_id) == ("g", 3)
    assert not exchange.is_pending
    assert reply(dispatcher, exchange, exchange.outcome).error_code == 27


def test_a_null_client_id_is_empty() -> None:
    """Clients that send no client id are seen as ""."""
    seen: list[str] = []
    dispatcher = Dispatcher(
        {12: lambda context, _: seen.append(context.client_id) or HeartbeatResponse()}, never, YieldQueue()
    )
    dispatcher.begin(frame(12, 0, client_id=None), CONNECTION)
    assert seen == [""]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0",
        b"\0\x0c\0\4\0\0\0",
        frame(12, 4)[:-3],
        frame(12, 4)[:12],
        b"\x7f\xff" + frame(12, 4)[2:],
        frame(3, 9),
    ],
)
def test_what_cannot_be_decoded_is_a_wire_error(raw: bytes) -> None:
    """Cut headers and bodies, unknown keys and keys without a handler end the connection, and no handler
    runs."""
    with pytest.raises(WireError):
        Dispatcher({12: never}, never, YieldQueue()).begin(raw, CONNECTION)


@pytest.mark.parametrize(("key", "version"), [(12, 5), (12, 99), (12, -1), (0, 2), (22, 6)])
def test_a_version_out_of_range_is_a_wire_error(key: int, version: int) -> None:
    """Versions above and below the range, and unstable ones, end the connection."""
    raw = key.to_bytes(2, "big") + version.to_bytes(2, "big", signed=True) + b"\0\0\0\7\0\1c" + bytes(60)
    with pytest.raises(WireError):
        Dispatcher({key: never}, never, YieldQueue()).begin(raw, CONNECTION)


def test_surplus_bytes_are_tolerated() -> None:
    """Bytes after the body are ignored, as Kafka does: librdkafka sends some."""
    dispatcher = Dispatcher({3: lambda context, request: MetadataResponse()}, never, YieldQueue())
    dispatcher.begin(frame(3, 13) + b"\0\0\0", CONNECTION)


def test_only_records_make_a_request_large() -> None:
    """Above the bound a request without records is a wire error, whatever it holds; at the bound, and for
    Produce, it is not."""
    for key, version, surplus_bytes, is_taken in (
        (HEARTBEAT, 4, 0, True),
        (HEARTBEAT, 4, 1, False),
        (METADATA, 12, 1, False),
        (PRODUCE, 12, 1, True),
    ):
        dispatcher = Dispatcher({key: lambda context, request: CLOSE}, never, YieldQueue())
        small = frame(key, version)
        large = small + bytes(OTHER_REQUEST_BYTES_MAX - len(small) + surplus_bytes)
        if is_taken:
            assert dispatcher.begin(large, CONNECTION).outcome is CLOSE
        else:
            with pytest.raises(WireError):
                dispatcher.begin(large, CONNECTION)


def test_a_large_question_is_decoded_and_answered_between_the_turns_of_others() -> None:
    """Whatever its handler gives back; the reply is the same, and others have the loop before, and after, the
    handler is called."""
    request = MetadataRequest([MetadataRequestTopic(name=f"topic {number}") for number in range(20_000)])

    async def run(is_cold: bool) -> None:
        response = MetadataResponse(
            topics=[MetadataResponseTopic(name=topic.name) for topic in request.topics or ()]
        )
        expected = replace(response, topics=list(response.topics))
        loop = asyncio.get_running_loop()
        turns = 0
        turns_at_handler = 0

        def handle(context: RequestContext, asked: MetadataRequest) -> Any:
            nonlocal turns_at_handler
            turns_at_handler = turns
            assert asked == request
            return cold() if is_cold else response

        async def cold() -> MetadataResponse:
            return response

        dispatcher = Dispatcher({METADATA: handle}, loop.create_task, YieldQueue())
        exchange = dispatcher.begin(frame(METADATA, 12, request), CONNECTION)
        assert exchange.is_pending
        while not exchange.outcome.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns_at_handler >= 9
        assert not is_cold or turns - turns_at_handler >= 9
        assert reply(dispatcher, exchange, dispatcher.settle(exchange)) == expected
        assert len(response.topics) == (1_000 if is_cold else 20_000)  # freed on the way

    for is_cold in (False, True):
        asyncio.run(run(is_cold))


def many_partitions(key: int) -> Any:
    if key == PRODUCE:
        parts = [PartitionProduceData(index, memoryview(b"records")) for index in range(20_000)]
        return ProduceRequest(None, -1, 1000, [TopicProduceData("wide", partition_data=parts)])
    if key == FETCH:
        asked, forgotten = range(15_000), range(40_000)
        return FetchRequest(
            topics=[FetchTopic("wide", partitions=[FetchPartition(index) for index in asked])],
            forgotten_topics_data=[ForgottenTopic("wide", partitions=list(forgotten))],
        )
    return JoinGroupRequest("g", protocols=[JoinGroupRequestProtocol(f"p{index}") for index in range(20_000)])


@pytest.mark.parametrize(
    ("key", "version"),
    [(PRODUCE, 8), (PRODUCE, 12), (FETCH, 11), (FETCH, 12), (JOIN_GROUP, 5)],
)
def test_whatever_holds_many_elements_is_decoded_between_the_turns_of_others(key: int, version: int) -> None:
    """Of any API. Its frame may be overwritten as soon as it was begun; it stands in nobody's way while it
    waits for other things; and its connection is told when it was begun."""
    request = many_partitions(key)
    response = API[key].response_type()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[Any] = loop.create_future()
        begun: list[int] = []

        def handle(context: RequestContext, asked: Any) -> Any:
            assert asked == request
            begun.append(turns)
            return waits

        memory = bytearray(b"read" + frame(key, version, request))
        dispatcher = Dispatcher({key: handle}, loop.create_task, YieldQueue())
        exchanges = []
        turns = 0
        told: list[int] = []
        for _ in range(LARGE_AT_ONCE + 1):
            exchange = dispatcher.begin(memoryview(memory)[4:].toreadonly(), CONNECTION)
            exchange.on_begun = lambda: told.append(len(begun))
            assert exchange.is_pending
            assert exchange.is_barrier
            exchanges.append(exchange)
        memory.clear()  # BufferError while it is viewed
        while len(begun) < len(exchanges) and not any(exchange.outcome.done() for exchange in exchanges):
            await asyncio.sleep(0)
            turns += 1
        assert begun[0] >= 15
        assert told == [1, 2, 3]
        waits.set_result(response)
        await asyncio.wait([exchange.outcome for exchange in exchanges])
        replies = [b"".join(dispatcher.settle(exchange)) for exchange in exchanges]
        assert replies == [b"".join(encode_response(API[key], version, 7, response))] * len(exchanges)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        (
            "LeaveGroup",
            LeaveGroupRequest("g", members=[MemberIdentity(f"member {one}") for one in range(20_000)]),
        ),
        ("ElectLeaders", ElectLeadersRequest(0, [TopicPartitions(f"t{one}", [0]) for one in range(20_000)])),
        (
            "AlterPartitionReassignments",
            AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic("t", [ReassignablePartition(one, [1]) for one in range(20_000)])]
            ),
        ),
    ],
)
def test_a_large_list_of_members_or_partitions_is_decoded_between_the_turns_of_others(
    name: str, request_: Any
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        api = NAMED[name]
        seen: list[Any] = []

        def handle(context: RequestContext, asked: Any) -> Any:
            seen.append(asked)
            return api.response_type()

        exchange = Dispatcher({api.key: handle}, loop.create_task, YieldQueue()).begin(
            frame(api.key, api.max_stable_version, request_), CONNECTION
        )
        turns = 0
        assert exchange.is_pending, "it was decoded at once"
        while not exchange.outcome.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 3
        assert seen == [request_]

    asyncio.run(run())


def test_large_answers_are_made_a_few_at_a_time_in_the_order_of_asking() -> None:
    """What all clients ask at once after a restart is megabytes each: others wait before they have built
    anything more than a chunk, a small answer of the same API and a large one of another do not, and one that
    fails or is given up leaves its place."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        begun: list[int] = []
        ended: list[int] = []
        at_most = 0

        def handle(context: RequestContext, asked: MetadataRequest) -> Any:
            return large(context) if asked.topics is None else small()

        async def small() -> MetadataResponse:
            return MetadataResponse()

        async def large(context: RequestContext) -> MetadataResponse:
            nonlocal at_most
            number = context.correlation_id
            await context.work.yield_now()
            begun.append(number)
            for _ in range(3):
                at_most = max(at_most, len(begun) - len(ended))
                await context.work.yield_now()
            ended.append(number)
            if number == 4:
                raise ValueError
            return MetadataResponse()

        async def other(context: RequestContext) -> HeartbeatResponse:
            await context.work.yield_now()
            return HeartbeatResponse()

        dispatcher = Dispatcher(
            {METADATA: handle, HEARTBEAT: lambda context, request: other(context)},
            loop.create_task,
            YieldQueue(),
        )
        all_topics = encode_request(API[METADATA], 12, 0, "c", MetadataRequest(topics=None))[4:]
        frames = [all_topics[:4] + number.to_bytes(4, "big") + all_topics[8:] for number in range(20)]
        exchanges = [dispatcher.begin(one, CONNECTION) for one in frames]
        for _ in range(4):
            await asyncio.sleep(0)
        exchanges[9].outcome.cancel()
        quick = dispatcher.begin(frame(METADATA, 12, MetadataRequest([])), CONNECTION)
        elsewhere = dispatcher.begin(frame(HEARTBEAT, 4), CONNECTION)
        await asyncio.wait([quick.outcome, elsewhere.outcome])
        assert len(ended) < 3
        await asyncio.wait([exchange.outcome for exchange in exchanges])
        expected = [number for number in range(20) if number != 9]
        assert at_most == LARGE_AT_ONCE
        assert begun == expected
        assert ended == expected
        assert all(exchange.is_barrier for exchange in exchanges)
        assert dispatcher.routes[METADATA].large_permits.held_count == 0

    asyncio.run(run())


def test_a_connection_that_asks_for_much_lets_others_pass() -> None:
    """One may have many large requests under way (ListOffsets is answered beside others); another's first is
    next."""

    async def run() -> None:
        begun: list[int] = []

        async def large(context: RequestContext, _: MetadataRequest) -> MetadataResponse:
            await context.work.yield_now()
            begun.append(context.connection.id)
            return MetadataResponse()

        dispatcher = Dispatcher({METADATA: large}, asyncio.get_running_loop().create_task, YieldQueue())
        exchanges = [
            dispatcher.begin(frame(METADATA, 12), replace(CONNECTION, id=number)) for number in [1] * 20 + [2]
        ]
        await asyncio.wait([exchange.outcome for exchange in exchanges])
        assert begun.index(2) <= LARGE_AT_ONCE

    asyncio.run(run())


def test_of_requests_that_hold_much_one_goes_on_at_a_time() -> None:
    """Of whatever APIs; and a small one waits for none of them. What they hold is given back with the answer,
    and with their cancellation."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        at_work: set[int] = set()
        at_most = 0

        async def work(context: RequestContext, chunks_count: int) -> None:
            nonlocal at_most
            try:
                for number in range(chunks_count):
                    await context.work.yield_now()
                    if number == FREE_CHUNKS + LIMIT_CHUNKS:
                        at_work.add(context.connection.id)
                        at_most = max(at_most, len(at_work))
            finally:
                at_work.discard(context.connection.id)

        async def metadata(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
            await work(context, FREE_CHUNKS if request.topics else 200)
            return MetadataResponse()

        async def heartbeat(context: RequestContext) -> HeartbeatResponse:
            await work(context, 200)
            return HeartbeatResponse()

        dispatcher = Dispatcher(
            {METADATA: metadata, HEARTBEAT: lambda context, request: heartbeat(context)},
            loop.create_task,
            YieldQueue(),
            wide=WideRequests(LIMIT_CHUNKS * CHUNK_BYTES),
        )
        wide = [
            dispatcher.begin(raw, replace(CONNECTION, id=number))
            for number, raw in enumerate([frame(METADATA, 12), frame(HEARTBEAT, 4)] * LARGE_AT_ONCE)
        ]
        for _ in range(100):
            await asyncio.sleep(0)
        assert dispatcher.wide.used_bytes > dispatcher.wide.limit_bytes
        wide[0].outcome.cancel()
        await asyncio.wait([wide[0].outcome])
        small = dispatcher.begin(
            frame(METADATA, 12, MetadataRequest([MetadataRequestTopic(name="a")])), CONNECTION
        )
        await asyncio.wait([small.outcome])
        assert sum(not exchange.outcome.done() for exchange in wide) == 2 * LARGE_AT_ONCE - 1
        await asyncio.wait([exchange.outcome for exchange in wide])
        assert at_most == 1
        assert dispatcher.wide.used_bytes == 0
        assert dispatcher.wide.turns.held_count == 0

    asyncio.run(run())


def test_an_answer_that_a_test_delays_has_no_permit() -> None:
    """Whether it was made or failed: nobody waits for who is only late."""

    async def run() -> None:
        async def large(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
            await context.work.yield_now()
            if request.topics is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
            return MetadataResponse()

        faults = Faults()
        faults.of(METADATA).delay_ms = 600_000
        handle = FaultyHandle(METADATA, large, faults).handle
        dispatcher = Dispatcher({METADATA: handle}, asyncio.get_running_loop().create_task, YieldQueue())
        late = [
            dispatcher.begin(frame(METADATA, 12, MetadataRequest(topics)), CONNECTION)
            for topics in ([], None) * LARGE_AT_ONCE
        ]
        faults.rules.clear()
        exchange = dispatcher.begin(frame(METADATA, 12, MetadataRequest([])), CONNECTION)
        done, _ = await asyncio.wait([exchange.outcome], timeout=2)
        assert done, "it waits for a permit that nobody gives back"
        assert dispatcher.routes[METADATA].large_permits.held_count == 0
        for one in late:
            one.outcome.cancel()
        await asyncio.gather(*(one.outcome for one in late), return_exceptions=True)

    asyncio.run(run())


def test_a_large_request_that_cannot_be_decoded_closes() -> None:
    """It ends its connection as a small one does, and no handler runs; errors of its handler are answered."""
    request = MetadataRequest([MetadataRequestTopic(name=f"topic {number}") for number in range(20_000)])

    def refuse(context: RequestContext, asked: MetadataRequest) -> Any:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        dispatcher = Dispatcher({METADATA: never}, loop.create_task, YieldQueue())
        exchange = dispatcher.begin(frame(METADATA, 12, request)[:-3], CONNECTION)
        await asyncio.wait([exchange.outcome])
        assert dispatcher.settle(exchange) is CLOSE
        dispatcher = Dispatcher({METADATA: refuse}, loop.create_task, YieldQueue())
        exchange = dispatcher.begin(frame(METADATA, 13, request), CONNECTION)
        await asyncio.wait([exchange.outcome])
        assert (
            reply(dispatcher, exchange, dispatcher.settle(exchange)).error_code
            == ErrorCode.LEADER_NOT_AVAILABLE
        )

    asyncio.run(run())


def test_futures_and_coroutines_are_parked() -> None:
    """A future is taken as it is, a coroutine becomes a task; both settle to their response."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[HeartbeatResponse] = loop.create_future()

        async def cold() -> HeartbeatResponse:
            await asyncio.sleep(0)
            return HeartbeatResponse(error_code=2)

        for outcome, code in ((future, 1), (cold(), 2)):
            dispatcher = Dispatcher(
                {12: lambda context, request, outcome=outcome: outcome}, loop.create_task, YieldQueue()
            )
            exchange = dispatcher.begin(frame(12, 4), CONNECTION)
            assert exchange.is_pending
            if not future.done():
                future.set_result(HeartbeatResponse(error_code=1))
            await exchange.outcome
            assert reply(dispatcher, exchange, dispatcher.settle(exchange)).error_code == code

    asyncio.run(run())


def test_verdicts_pass() -> None:
    """NO_REPLY and CLOSE come through as they are, at once and from a future."""

    async def run() -> None:
        for verdict in (NO_REPLY, CLOSE):
            _, exchange = begin(lambda context, request, verdict=verdict: verdict)
            assert exchange.outcome is verdict
            future = asyncio.get_running_loop().create_future()
            future.set_result(verdict)
            dispatcher, exchange = begin(lambda context, request, future=future: future)
            assert dispatcher.settle(exchange) is verdict

    asyncio.run(run())


def test_an_exception_becomes_unknown_server_error(caplog: pytest.LogCaptureFixture) -> None:
    """An assertion in a handler is answered with UNKNOWN_SERVER_ERROR, and its trace is logged once."""

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        raise AssertionError("a defect")

    dispatcher, exchange = begin(handle)
    assert reply(dispatcher, exchange, exchange.outcome).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None
    assert "a defect" in caplog.text
    assert exchange.route.error_counts == {"UNKNOWN_SERVER_ERROR": 1}


def test_errors_are_counted_by_their_codes() -> None:
    """Each place of an answer; the first of a code is told, so that a series is made for it; what is answered
    well counts nothing."""
    answers = iter((27, 0, 27, 16, 9999))

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=next(answers))

    dispatcher = Dispatcher({HEARTBEAT: handle}, never, YieldQueue())
    told: list[str] = []
    for number in range(5):
        exchange = dispatcher.begin(frame(HEARTBEAT, 4), CONNECTION)
        if not number:
            exchange.route.on_new_error = told.append
        reply(dispatcher, exchange, exchange.outcome)
    assert exchange.route.error_counts == {"REBALANCE_IN_PROGRESS": 2, "NOT_COORDINATOR": 1, "9999": 1}
    assert told == ["REBALANCE_IN_PROGRESS", "NOT_COORDINATOR", "9999"]


def test_a_wrong_return_value_is_a_defect_too() -> None:
    """A handler that forgets to return anything, or returns another API's response, is answered with
    UNKNOWN_SERVER_ERROR."""
    loop = asyncio.new_event_loop()
    for outcome in (None, MetadataResponse()):
        dispatcher = Dispatcher(
            {12: lambda context, request, outcome=outcome: outcome}, loop.create_task, YieldQueue()
        )
        exchange = dispatcher.begin(frame(12, 4), CONNECTION)
        assert reply(dispatcher, exchange, exchange.outcome).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    loop.close()


def test_refusals_carry_their_code(caplog: pytest.LogCaptureFixture) -> None:
    """KafkaError and the project's remedies become codes, without a trace."""
    cases = [
        (KafkaError(ErrorCode.UNKNOWN_MEMBER_ID), 25),
        (Unavailable(), 7),
        (Fenced(), 6),
        (Corrupt(), 56),
        (TimeoutError(), 7),
    ]
    for error, code in cases:

        def handle(
            context: RequestContext, request: HeartbeatRequest, error: Exception = error
        ) -> HeartbeatResponse:
            raise error

        dispatcher, exchange = begin(handle)
        assert reply(dispatcher, exchange, exchange.outcome).error_code == code
    assert not [record for record in caplog.records if record.exc_info]


class Fussy:
    """A handler with an error form of its own."""

    def handle(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

    def refuse(self, request: MetadataRequest, code: int) -> MetadataResponse:
        return MetadataResponse(cluster_id=f"refused {code} for {len(request.topics or [])}")


def test_a_handlers_own_error_form_comes_first() -> None:
    """`refuse(request, code)` of the handler's object builds the answer."""
    dispatcher, exchange = begin(Fussy().handle, METADATA, 12)
    assert reply(dispatcher, exchange, exchange.outcome).cluster_id == "refused 5 for 0"


def test_where_a_version_has_no_place_for_a_code_the_connection_closes() -> None:
    """Metadata has a top-level code since version 13: there it is used, before it there is no honest
    answer."""

    def handle(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

    dispatcher, exchange = begin(handle, METADATA, 13)
    assert reply(dispatcher, exchange, exchange.outcome).error_code == 5
    _, exchange = begin(handle, METADATA, 12)
    assert exchange.outcome is CLOSE


def test_a_response_that_cannot_be_encoded_is_answered_as_a_defect(caplog: pytest.LogCaptureFixture) -> None:
    """A value out of its field's range is caught at encoding: UNKNOWN_SERVER_ERROR instead, or no answer
    where there is no place."""
    dispatcher, exchange = begin(lambda context, request: HeartbeatResponse(error_code=70000))
    assert reply(dispatcher, exchange, exchange.outcome).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    dispatcher, exchange = begin(lambda context, request: MetadataResponse(controller_id=2**40), METADATA, 9)
    assert dispatcher.encode(exchange, exchange.outcome) is None


def test_malformed_bytes_found_late_close() -> None:
    """A WireError that escapes a handler, and a cancelled future, close the connection without a trace."""

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        raise WireError("inside")

    _, exchange = begin(handle)
    assert exchange.outcome is CLOSE


def test_every_top_level_code_can_be_encoded() -> None:
    """For each API and version that is said to have a top-level code, a response with it is encoded and read
    back."""
    for api in (API[key] for key in TRAITS):
        for version in api.versions:
            if not has_error_code(api.response_type, version):
                continue
            dispatcher = Dispatcher({}, never, YieldQueue())
            route = Route(api, never, Gates(), YieldQueue(), WideRequests(1))
            context = RequestContext(api.key, version, 7, "", CONNECTION, new_work)
            exchange = Exchange(route, context, None, None, version, 0.0)
            assert reply(dispatcher, exchange, api.response_type(error_code=-1)).error_code == -1, (
                api.name,
                version,
            )


def test_a_late_handler_is_made_once_when_it_is_asked_for() -> None:
    """Nothing is made at the start, one at the first request, and the same serves the second."""
    made: list[int] = []

    def handle(context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse()

    def make() -> Any:
        made.append(1)
        return handle

    dispatcher = Dispatcher({HEARTBEAT: Late(make)}, never, YieldQueue())
    assert not made
    for _ in range(2):
        dispatcher.begin(frame(HEARTBEAT, 4), CONNECTION)
    assert made == [1]
    assert dispatcher.routes[HEARTBEAT].requests_count == 2


def project_errors() -> Iterator[type[MillraceError]]:
    """Every subclass of MillraceError, after importing every module of the broker and below it."""
    for package in ("runtime", "protocol", "wal", "s3stream", "kraft", "broker"):
        for module in pkgutil.walk_packages([f"{millrace.__path__[0]}/{package}"], f"millrace.{package}."):
            if module.name.rpartition(".")[2] == "__main__":
                continue
            importlib.import_module(module.name)
    pending = [MillraceError]
    while pending:
        kind = pending.pop()
        yield kind
        pending += kind.__subclasses__()


def test_every_error_of_the_project_has_a_code() -> None:
    """Each subclass of MillraceError, in any package, is in the table itself or through its remedy."""
    roots = {MillraceError}
    gaps = [
        f"{kind.__module__}.{kind.__name__}"
        for kind in project_errors()
        if kind not in roots and not any(base in CODES for base in kind.__mro__)
    ]
    assert not gaps


def test_the_table_prefers_the_nearest_class() -> None:
    """An error's own row wins over its remedy's, and what is no error of the project has no code."""

    class Own(Exhausted):
        pass

    assert code_of(Own()) == CODES[Exhausted]
    assert code_of(Closed()) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(KafkaError(3)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(ValueError()) is None
