"""A broker that ends gives its partitions to others in turns: each takes no writes for as long as its turn
takes, and not for as long as all of them do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millrace.kraft.commands.leaders import TURN_MIN, TURNS_MAX, in_turns
from millrace.kraft.hand_over import TURN_S, HandOver, Turn
from millrace.kraft.image.delta import MetadataDelta
from millrace.kraft.image.image import MetadataImage
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from millrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from millrace.protocol.messages.close_streams import CloseStreamsRequest, StreamClose
from millrace.protocol.messages.open_partition_streams import OpenPartitionStreamsRequest
from millrace.runtime.scheduling.yielding import run_to_end
from tests.kraft.build import create_topic
from tests.kraft.peers.members import CLUSTER, Member, Members
from tests.sim.loop import SimLoop, run_simulation

SESSION_MS = 3000
ENDS, STAYS = 9, 8
PARTITIONS = 700  # of both


class Brokers:
    """Two brokers beside three controllers, each with half of the partitions, all of which are open. `moved`:
    of one that ends, what others lead and it has not closed."""

    def __init__(self, members: Members) -> None:
        self.members = members
        self.epochs: dict[int, int] = {}
        self.moved: list[int] = []
        self.most_moved = 0
        self.topic_id = b""

    @classmethod
    async def start(cls, loop: SimLoop) -> Brokers:
        members = Members(loop, observers=(ENDS, STAYS))
        await members.start(session_ms=SESSION_MS)
        brokers = cls(members)
        for broker_id in (ENDS, STAYS):
            request = BrokerRegistrationRequest(broker_id, CLUSTER, broker_id.to_bytes(16, "big"))
            brokers.epochs[broker_id] = (await brokers.ask(broker_id, request)).broker_epoch
            await brokers.beat(broker_id)
        created = await create_topic(members.all[ENDS].node, "t", PARTITIONS)
        brokers.topic_id = created.topics[0].topic_id
        await members.until(lambda: len(brokers.member(ENDS).node.publisher.image.topics) == 1)
        own = [index for index in range(PARTITIONS) if brokers.leader(index) == ENDS]
        await asyncio.gather(*(brokers.open(index) for index in own))
        brokers.member(ENDS).node.publisher.subscribe(brokers.on_image)
        return brokers

    def member(self, broker_id: int) -> Member:
        return self.members.all[broker_id]

    def ask(self, broker_id: int, request: Any) -> Awaitable[Any]:
        return self.member(broker_id).transport.channel.send(request)

    async def beat(self, broker_id: int, *, want_shut_down: bool = False) -> Any:
        offset = self.member(broker_id).node.publisher.image.offset
        request = BrokerHeartbeatRequest(
            broker_id, self.epochs[broker_id], offset, want_shut_down=want_shut_down
        )
        return await self.ask(broker_id, request)

    def leader(self, index: int) -> int:
        state = self.member(ENDS).node.publisher.image.topics.partition(self.topic_id, index)
        assert state is not None
        return state.leader

    async def open(self, index: int) -> None:
        request = OpenPartitionStreamsRequest(ENDS, self.epochs[ENDS], self.topic_id, index, 0, [0])
        assert not (await self.ask(ENDS, request)).error_code

    def on_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.moved = [
            one.stream_id for one in image.streams.open_on(ENDS) if self.leader(one.partition) != ENDS
        ]
        self.most_moved = max(self.most_moved, len(self.moved))

    async def close_some(self, count: int) -> None:
        streams = [StreamClose(stream_id, 0) for stream_id in self.moved[:count]]
        closed = await self.ask(ENDS, CloseStreamsRequest(ENDS, self.epochs[ENDS], streams))
        assert {one.error_code for one in closed.streams} == {0}

    async def heard(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.gather(self.beat(STAYS), self.beat(ENDS, want_shut_down=True))
            await asyncio.sleep(1)


def run_ended(scenario: Callable[[Brokers, SimLoop], Awaitable[None]]) -> None:
    async def main(loop: SimLoop) -> None:
        brokers = await Brokers.start(loop)
        hearing = asyncio.ensure_future(brokers.heard())
        await scenario(brokers, loop)
        hearing.cancel()

    run_simulation(main)


def test_partitions_go_in_turns_and_the_next_as_soon_as_half_are_closed() -> None:
    """Hundreds are led, and no more than a turn of them are between two leaders at any moment; no heartbeat
    has to come for the next turn."""

    async def scenario(brokers: Brokers, loop: SimLoop) -> None:
        began_s, closed_count = loop.time(), 0
        while closed_count < PARTITIONS // 2:
            await brokers.members.until(lambda: bool(brokers.moved))
            count = min(30, len(brokers.moved))
            await brokers.close_some(count)
            closed_count += count
        assert brokers.most_moved == TURN_MIN
        assert loop.time() - began_s < 2.5, "it waited for somebody's clock"
        assert {brokers.leader(index) for index in range(PARTITIONS)} == {STAYS}

    run_ended(scenario)


def test_a_turn_that_is_not_closed_holds_up_the_next_for_a_moment_alone() -> None:
    """The store is away, say: other partitions have nothing to upload."""

    async def scenario(brokers: Brokers, loop: SimLoop) -> None:
        await brokers.members.until(lambda: len(brokers.moved) == TURN_MIN)
        began_s = loop.time()
        await brokers.members.until(lambda: len(brokers.moved) == 2 * TURN_MIN)
        assert TURN_S < loop.time() - began_s < TURN_S + SESSION_MS / 1000

    run_ended(scenario)


@pytest.mark.parametrize(
    ("led_count", "between_count", "expected"),
    [
        (30, 0, (30, False)),
        (TURN_MIN, 0, (TURN_MIN, False)),
        (TURN_MIN + 1, 0, (TURN_MIN, True)),
        (500, 20, (TURN_MIN - 20, True)),
        (500, TURN_MIN + 7, (0, True)),
        (TURNS_MAX * 200, 0, (200, True)),
        (0, 50, (0, False)),
    ],
)
def test_how_many_go(
    ended: tuple[MetadataImage, bytes], led_count: int, between_count: int, expected: tuple[int, bool]
) -> None:
    """A few at a time, with those before them that are not closed; of thousands a fortieth."""
    image, topic_id = ended
    leaving = [(topic_id, index) for index in range(led_count)]
    found, turns = run_to_end(in_turns(image, leaving, {ENDS: between_count}))
    assert (len(turns[ENDS].moved), turns[ENDS].has_more) == expected
    assert found == leaving[: expected[0]]


@pytest.fixture(scope="module")
def ended() -> tuple[MetadataImage, bytes]:
    """A broker that ends leads all of a topic's partitions."""
    from millrace.kraft.image.delta import apply_records
    from millrace.kraft.image.image import EMPTY_IMAGE
    from millrace.protocol.metadata_records import PartitionRecord, RegisterBrokerRecord, TopicRecord

    topic_id = bytes(range(16))
    records: list[Any] = [
        RegisterBrokerRecord(ENDS, bytes(16), 1, fenced=False, in_controlled_shutdown=True),
        TopicRecord("t", topic_id),
    ]
    records += [
        PartitionRecord(index, topic_id, [ENDS], [ENDS], [], [], ENDS, 0, 0, 0, [bytes(16)])
        for index in range(TURNS_MAX * 200)
    ]
    return apply_records(EMPTY_IMAGE, records, len(records), 1)[1], topic_id


def test_turns_of_brokers_that_are_gone_are_forgotten(ended: tuple[MetadataImage, bytes]) -> None:
    """What was between two leaders then is recovered from a log, and counts for no turn."""
    image, topic_id = ended
    turns = HandOver()
    turns.begin({ENDS: Turn([(topic_id, 0)], has_more=True)}, 0.0)
    assert (turns.between(), turns.is_waiting) == ({ENDS: 1}, True)
    assert turns.is_due(image, 0.0), "none of its streams is open"
    turns.begin({}, 0.0)
    assert (turns.between(), turns.is_waiting) == ({}, False)
