"""Produce and Fetch for more partitions than may be served in one iteration of the loop: others run
meanwhile, and the answer is as that of few."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.requests.request import CLOSE, NO_REPLY
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.broker.broker_fixture import BrokerFixture, connection, fetch_request, parts_of, topic_id
from tests.broker.others import Others
from tests.broker.partitions.build import batch, run
from tests.patience import PATIENCE_S

MANY = 3000
TURNS_MIN = 5
# Not run cold, and why.
HOT_ONLY: dict[str, str] = {
    "test_a_produce_for_many_partitions_gives_way": "reads nothing",
    "test_what_follows_on_its_connection_stands_behind_it": "reads nothing",
    "test_a_transactional_batch_anywhere_refuses_it_whole": "reads nothing",
    "test_acks_0": "reads nothing",
    "test_a_wide_fetch_hears_of_records": "is about what comes meanwhile",
    "test_a_wide_fetch_whose_client_is_gone_leaves_no_subscription": "reads nothing",
}


def produce_of(data: list[memoryview | None], **fields: Any) -> ProduceRequest:
    """For one partition again and again, behind a topic that nobody has."""
    none = [PartitionProduceData(index, batch()) for index in range(MANY)]
    asked = [PartitionProduceData(0, one) for one in data]
    topics = [TopicProduceData("none", topic_id("none"), none), TopicProduceData("a", topic_id("a"), asked)]
    return ProduceRequest(fields.get("transactional_id"), fields.get("acks", -1), 5000, topics)


async def asked(fixture: BrokerFixture, handler: Any, key: int, request: Any) -> tuple[Any, int]:
    """The answer, and how often another had the loop before it was there."""
    async with Others() as others:
        found = await fixture.ask(handler, key, 12, request)
    return found, others.turns


def test_a_produce_for_many_partitions_gives_way() -> None:
    """Batches are appended in the order of the request, those that nobody can take are refused, each answers
    in its place."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.partition("a")
        found, turns = await asked(fixture, fixture.produce_handler, 0, produce_of([batch(2)] * 700))
        assert turns > TURNS_MIN
        unknown, taken = found.responses
        assert {part.error_code for part in unknown.partition_responses} == {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }
        assert [part.index for part in unknown.partition_responses] == list(range(MANY))
        assert [part.base_offset for part in taken.partition_responses] == list(range(0, 1400, 2))

    run(scenario())


def test_what_follows_on_its_connection_stands_behind_it() -> None:
    """Its outcome is a coroutine, which its connection begins nothing behind."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        outcome = fixture.begin(fixture.produce_handler, 0, 12, produce_of([batch()]))
        assert asyncio.iscoroutine(outcome)
        await outcome

    run(scenario())


@pytest.mark.parametrize("transactional_id", ["t", None])
def test_a_transactional_batch_anywhere_refuses_it_whole(transactional_id: str | None) -> None:
    """By its id, or by its last batch alone."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        last = batch(1, producer_id=5, sequence=0, is_transactional=transactional_id is None)
        request = produce_of([batch(), last], transactional_id=transactional_id)
        found, _ = await asked(fixture, fixture.produce_handler, 0, request)
        codes = {part.error_code for topic in found.responses for part in topic.partition_responses}
        assert codes == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        assert (await fixture.partition("a")).log_end_offset == 0

    run(scenario())


def test_acks_0() -> None:
    """Not answered; where anything was refused the connection closes."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a")
        await fixture.partition("a")
        request = produce_of([batch()] * MANY, acks=0)
        assert await fixture.ask(fixture.produce_handler, 0, 12, request) is CLOSE
        request = produce_of([batch()] * MANY, acks=0)
        request.topic_data.pop(0)
        assert await fixture.ask(fixture.produce_handler, 0, 12, request) is NO_REPLY

    run(scenario())


def test_a_fetch_for_many_partitions_gives_way() -> None:
    """Each partition answers in its place, with its records or its error; a session is opened, and goes
    on."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 3)
        for index in range(3):
            await fixture.partition("a", index)
        await fixture.produce({("a", 1): batch(2)})
        wanted = {("a", index): 0 for index in range(MANY)}
        found, turns = await asked(
            fixture, fixture.fetch_handler, 1, fetch_request(wanted, 12, session_epoch=0)
        )
        assert turns > TURNS_MIN
        parts = parts_of(found)
        assert list(parts) == list(wanted)
        assert [part.error_code for part in parts.values()] == [0] * 3 + [3] * (MANY - 3)
        assert parts["a", 1].records
        assert found.session_id
        following = fetch_request({}, 12, session_id=found.session_id, session_epoch=1)
        news = parts_of((await asked(fixture, fixture.fetch_handler, 1, following))[0])
        assert news["a", 1].records

    run(scenario())


@pytest.mark.parametrize("when", ["delayed", "while it is read"])
def test_a_wide_fetch_hears_of_records(when: str) -> None:
    """That come while it waits, or while its chunks are under way."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", MANY)
        for index in range(MANY):
            await fixture.partition("a", index)
        wanted = {("a", index): 0 for index in range(MANY)}
        request = fetch_request(wanted, 12, max_wait_ms=600_000, min_bytes=1)
        outcome = asyncio.ensure_future(fixture.begin(fixture.fetch_handler, 1, 12, request))
        first = await fixture.partition("a", 0)
        for _ in range(500):
            if fixture.connection.purgatory or (when != "delayed" and first.subscriptions):
                break
            await asyncio.sleep(0)
        assert not outcome.done()
        assert bool(fixture.connection.purgatory) is (when == "delayed")
        await fixture.produce({("a", 0): batch(2)})
        async with asyncio.timeout(PATIENCE_S):
            found = await fixture.finish(outcome, 1, 12)
        assert parts_of(found)["a", 0].records
        assert not fixture.connection.purgatory
        assert not first.subscriptions

    run(scenario())


def test_a_wide_fetch_whose_client_is_gone_leaves_no_subscription() -> None:
    """It is not delayed for nobody."""

    async def scenario() -> None:
        fixture = await BrokerFixture().start()
        fixture.make_topic("a", 2)
        await fixture.partition("a", 0)
        here = connection()
        request = fetch_request({("a", 0): 0}, 12, max_wait_ms=600_000, min_bytes=1)
        request.topics[0].partitions *= MANY
        outcome = asyncio.ensure_future(fixture.begin(fixture.fetch_handler, 1, 12, request, to=here))
        here.is_open = False
        partition = await fixture.partition("a", 0)
        async with asyncio.timeout(PATIENCE_S):
            await outcome
            while partition.subscriptions:  # noqa: ASYNC110  (they are left some a turn)
                await asyncio.sleep(0)

    run(scenario())
