"""A broker that ends waits for as long as what it leads goes to others, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace.broker.quorum.heartbeats import LEAVE_MAX_S, LEAVE_S, STUCK_S, Heartbeats
from millrace.kraft.image.delta import apply_records
from millrace.kraft.image.image import EMPTY_IMAGE
from millrace.kraft.news import QuorumNews
from millrace.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from millrace.protocol.metadata_records import PartitionRecord, TopicRecord
from millrace.protocol.stream_records import OwedRangeRecord, StreamRecord
from tests.sim.loop import SimLoop, run_simulation

BROKER, OTHER = 1, 2
TOPIC_ID = bytes(range(16))
STREAMS = 12


class Controller:
    """Lets the broker end once it has no stream open, and owes nothing. `image`: with one partition and
    stream a number."""

    def __init__(self) -> None:
        records: list[Any] = [TopicRecord("t", TOPIC_ID)]
        records += [PartitionRecord(index, TOPIC_ID) for index in range(STREAMS)]
        records += [StreamRecord(index, TOPIC_ID, index, 0, 0, BROKER, 1, 0, 0) for index in range(STREAMS)]
        self.image = apply_records(EMPTY_IMAGE, records, 1, 1)[1]
        self.heartbeats = Heartbeats(BROKER, self, QuorumNews(0), 1.0)  # type: ignore[arg-type]

    async def heartbeat(self, **words: bool) -> BrokerHeartbeatResponse:
        may_end = words["want_shut_down"] and not self.image.streams.are_in_log_of(BROKER)
        return BrokerHeartbeatResponse(should_shut_down=may_end)

    def put(self, stream_id: int, node_id: int, *, is_open: bool) -> None:
        record = StreamRecord(stream_id, TOPIC_ID, stream_id, 0, 0, node_id, int(is_open), 0, 0)
        delta, self.image = apply_records(self.image, [record], self.image.offset + 1, 1)
        self.heartbeats.on_image(delta, self.image)


def test_it_waits_as_long_as_streams_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    """One every twenty seconds: four minutes in all."""

    async def main(loop: SimLoop) -> None:
        controller, began_s = Controller(), loop.time()
        leaving = asyncio.ensure_future(controller.heartbeats.leave())
        for stream_id in range(STREAMS):
            await asyncio.sleep(LEAVE_S * 2 / 3)
            assert not leaving.done()
            controller.put(stream_id, BROKER, is_open=False)
        await leaving
        assert LEAVE_S < loop.time() - began_s < LEAVE_MAX_S

    run_simulation(main)
    assert "before others lead" not in caplog.text


@pytest.mark.parametrize("is_busy", [False, True], ids=["nothing changes", "others open streams"])
def test_it_ends_where_nothing_is_handed_over(caplog: pytest.LogCaptureFixture, is_busy: bool) -> None:
    """What others do with their streams is no word of this broker's."""

    async def main(loop: SimLoop) -> None:
        controller, began_s = Controller(), loop.time()
        leaving = asyncio.ensure_future(controller.heartbeats.leave())
        while not leaving.done():
            await asyncio.sleep(1)
            if is_busy:
                controller.put(1_000, OTHER, is_open=bool(int(loop.time()) % 2))
        assert LEAVE_S < loop.time() - began_s < LEAVE_S + 3

    run_simulation(main)
    assert "before others lead" in caplog.text


@pytest.mark.parametrize("is_open", [False, True])
def test_it_does_not_wait_long_for_a_store_that_takes_nothing(
    caplog: pytest.LogCaptureFixture, is_open: bool
) -> None:
    """Once others lead all: its log has what it owes. Uploads that go on for a moment begin the time anew."""

    async def main(loop: SimLoop) -> None:
        controller, began_s = Controller(), loop.time()
        for stream_id in range(int(is_open), STREAMS):
            controller.put(stream_id, BROKER, is_open=False)
        owed = OwedRangeRecord(STREAMS - 1, 0, 5, BROKER, 0, bytes(16))
        delta, controller.image = apply_records(controller.image, [owed], controller.image.offset + 1, 1)
        controller.heartbeats.on_image(delta, controller.image)
        reasons = ["", *["away"] * 5, "", *["away"] * 100]
        await controller.heartbeats.leave(lambda: reasons.pop(0))
        least_s = LEAVE_S if is_open else STUCK_S + 6
        assert least_s < loop.time() - began_s < least_s + 4

    run_simulation(main)
    said = "no stream was closed for 30 s" if is_open else "the store takes nothing of it: away"
    assert said in caplog.text


def test_it_says_that_its_log_owes_what_others_lead(caplog: pytest.LogCaptureFixture) -> None:
    """All was handed over, and the store takes nothing: that is another thing than partitions that wait."""

    async def main(loop: SimLoop) -> None:
        controller = Controller()
        for stream_id in range(STREAMS):
            controller.put(stream_id, BROKER, is_open=False)
        owed = OwedRangeRecord(0, 0, 5, BROKER, 0, bytes(16))
        delta, controller.image = apply_records(controller.image, [owed], controller.image.offset + 1, 1)
        controller.heartbeats.on_image(delta, controller.image)
        await controller.heartbeats.leave()

    run_simulation(main)
    assert "the broker ends while its log owes some of what others lead" in caplog.text
