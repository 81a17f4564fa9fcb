"""A commit of thousands of ranges is decided in steps: others run between, and what they change is seen."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from millrace.kraft.commands.compaction import LONG_COUNT, decide_commit_compaction, decide_yielding, is_long
from millrace.kraft.node import ControllerNode
from millrace.kraft.tables.objects import ObjectState
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages.commit_compaction import (
    CommitCompactionRequest,
    CompactedObject,
    CompactedRange,
)
from millrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.prepare_objects import PrepareObjectsRequest
from millrace.runtime.errors import Closed
from millrace.s3stream.ids import ObjectId, ObjectKind
from tests.kraft.build import NODE, Broker, open_node, run, sim_disk
from tests.sim.disk import SimDisk, drop

PARTITIONS = 60
ENDS = 10


class Fixture:
    """Two uploads of all streams of a topic, and the request that makes of them a set and objects of the
    first twenty streams."""

    def __init__(self, disk: SimDisk, node: ControllerNode, broker: Broker) -> None:
        self.disk = disk
        self.node = node
        self.broker = broker
        self.stream_ids: list[int] = []
        self.sources: list[int] = []

    @classmethod
    async def open(cls) -> Fixture:
        disk = sim_disk()
        node = await open_node(disk)
        fixture = cls(disk, node, await Broker.register(node))
        topic_id = await fixture.broker.create("t", PARTITIONS)
        for partition in range(PARTITIONS):
            assert (await fixture.broker.open(topic_id, partition)).error_code == 0
        fixture.stream_ids = list(node.publisher.image.streams.by_id)
        for number in range(2):
            fixture.sources.append(await fixture.broker.prepare())
            spans = [(one, number * ENDS, number * ENDS + ENDS) for one in fixture.stream_ids]
            assert await fixture.broker.commit(fixture.sources[-1], spans) == 0
        return fixture

    async def request(self, left_out: int = 0) -> CommitCompactionRequest:
        own = self.stream_ids[:20]
        first = await self.broker.prepare(1 + len(own))
        return CommitCompactionRequest(
            NODE,
            self.broker.epoch,
            first,
            900,
            [CompactedRange(one, 0, 2 * ENDS) for one in self.stream_ids[20 + left_out :]],
            [
                CompactedObject(first + n, ObjectKind.STREAM, 400, one, 0, 2 * ENDS)
                for n, one in enumerate(own, 1)
            ],
            list(self.sources),
        )

    def state(self, object_id: int) -> ObjectState:
        found = self.node.publisher.image.objects.get(ObjectId(object_id))
        assert found is not None
        return found.state

    async def check_restart(self) -> None:
        """What was adopted is what the log says."""
        before = self.node.publisher.image
        await self.node.close()
        again = await open_node(self.disk.restart(drop))
        assert replace(again.publisher.image, offset=0, epoch=0) == replace(before, offset=0, epoch=0)
        await again.close()


def test_others_run_between_the_steps() -> None:
    """While a long commit is decided the loop turns many times; a restart, which applies its record at once,
    comes to the same image."""

    async def main() -> None:
        fixture = await Fixture.open()
        request = await fixture.request()
        assert is_long(request)
        steps = len(list(decide_yielding(fixture.node.controller.image, request, 5)))
        reply, turns = fixture.node.controller.submit(request), 0
        while (
            not reply.done()
            and fixture.node.controller.image.objects.get(request.object_id).state
            is not ObjectState.COMMITTED
        ):  # type: ignore[union-attr]
            turns += 1
            await asyncio.sleep(0)
        assert (await reply).error_code == 0
        assert turns >= steps > len(request.ranges) // 32
        assert [fixture.state(one) for one in fixture.sources] == [ObjectState.PENDING_DELETION] * 2
        await fixture.check_restart()

    run(main())


def test_wide_commands_without_end_do_not_keep_it_out() -> None:
    """There is always another behind the one that is decided: a compaction has its turn between them."""

    async def main() -> None:
        fixture = await Fixture.open()
        reply = fixture.node.controller.submit(await fixture.request())
        wide: list[asyncio.Future[object]] = []
        while not reply.done() and len(wide) < 100:
            if sum(not one.done() for one in wide) < 3:
                request = CreateTopicsRequest([CreatableTopic("wide", 2_000, 1)], validate_only=True)
                wide.append(fixture.node.controller.submit(request))
            await asyncio.sleep(0)
        assert reply.done()
        assert (await reply).error_code == 0
        await asyncio.gather(*wide)
        await fixture.check_restart()

    run(main())


@pytest.mark.parametrize("times", [1, 3, 50])
def test_what_others_change_meanwhile_is_seen(times: int) -> None:
    """Ids are prepared while a commit is decided, once or all the time: it is decided anew on what is there,
    in the end at once."""

    async def main() -> None:
        fixture = await Fixture.open()
        request = await fixture.request()
        reply, others = fixture.node.controller.submit(request), []
        for _ in range(times):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            others.append(
                fixture.node.controller.submit(PrepareObjectsRequest(NODE, fixture.broker.epoch, 1, 60_000))
            )
        assert (await reply).error_code == 0
        firsts = [(await one).first_object_id for one in others]
        assert len(set(firsts)) == times
        assert all(fixture.state(one) is ObjectState.PREPARED for one in firsts)
        assert fixture.state(request.object_id) is ObjectState.COMMITTED
        await fixture.check_restart()

    run(main())


def test_a_topic_that_is_deleted_meanwhile_is_not_brought_back() -> None:
    """The topic goes between two steps: the commit is refused, for its sources hold nothing any more, and
    nothing of it stands."""

    async def main() -> None:
        fixture = await Fixture.open()
        request = await fixture.request()
        reply = fixture.node.controller.submit(request)
        await asyncio.sleep(0)
        deleted = fixture.node.controller.submit(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
        assert (await reply).error_code == ErrorCode.INVALID_RECORD_STATE
        assert (await deleted).responses[0].error_code == 0
        assert fixture.state(request.object_id) is ObjectState.PREPARED
        assert [fixture.state(one) for one in fixture.sources] == [ObjectState.PENDING_DELETION] * 2
        await fixture.check_restart()

    run(main())


def test_a_long_commit_that_forgets_a_stream_is_refused() -> None:
    """In steps as at once: the stream is named and nothing is changed."""

    async def main() -> None:
        fixture = await Fixture.open()
        request = await fixture.request(left_out=1)
        answer = await fixture.node.controller.submit(request)
        assert answer.error_code == ErrorCode.INVALID_RECORD_STATE
        assert "in no object" in answer.error_message
        assert [fixture.state(one) for one in fixture.sources] == [ObjectState.COMMITTED] * 2
        await fixture.check_restart()

    run(main())


def test_a_node_that_is_closed_meanwhile_answers() -> None:
    """The reply is the node's end, not silence; after a restart nothing of the commit is there."""

    async def main() -> None:
        fixture = await Fixture.open()
        request = await fixture.request()
        reply = fixture.node.controller.submit(request)
        await asyncio.sleep(0)
        await fixture.node.close()
        with pytest.raises(Closed):
            await reply
        again = await open_node(fixture.disk.restart(drop))
        found = again.publisher.image.objects.get(ObjectId(request.object_id))
        assert found is not None
        assert found.state is ObjectState.PREPARED
        await again.close()

    run(main())


def test_who_asked_may_be_gone_when_it_is_decided() -> None:
    """The wait for a refusal is cancelled between two steps: nothing is raised where nobody would see it, and
    the node goes on."""

    async def main() -> None:
        fixture = await Fixture.open()
        raised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
        reply = fixture.node.controller.submit(await fixture.request(left_out=1))
        await asyncio.sleep(0)
        reply.cancel()
        await asyncio.sleep(1)
        gc.collect()
        assert not raised
        assert await fixture.broker.prepare() > 0
        await fixture.node.close()

    run(main())


def test_no_step_takes_long() -> None:
    """A commit of 120 ranges has a step for every few of them, and steps that end with the decision that is
    made at once."""

    async def main() -> None:
        fixture = await Fixture.open()
        request = await fixture.request()
        image = fixture.node.publisher.image
        assert len(request.ranges) + len(request.stream_objects) == 2 * PARTITIONS > LONG_COUNT
        assert len(list(decide_yielding(image, request, 5))) >= 3 * len(request.ranges) // 32
        once = decide_commit_compaction(image, request, 5)
        assert once.objects is not None
        assert once.objects != image.objects
        await fixture.node.close()

    run(main())
