"""A command that names thousands is decided, encoded and applied in steps: others have the loop, and see all
of it or nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from millrace.kraft.errors import LogFull
from millrace.kraft.node import ControllerNode
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.messages import alter_configs as whole
from millrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from millrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from millrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace.runtime.errors import Closed
from tests.kraft.build import Broker, create_topic, open_node, run, sim_disk
from tests.sim.disk import SimDisk, drop

WIDE = 4000
TOPICS = 700
TURNS_MIN = 10


async def turns_of(reply: asyncio.Future[Any]) -> tuple[int, Any]:
    """How many iterations of the loop others had until the answer, and the answer."""
    turns = 0
    while not reply.done():
        turns += 1
        await asyncio.sleep(0)
    return turns, await reply


async def check_restart(node: ControllerNode, disk: SimDisk) -> None:
    """What was applied in steps is what the log says."""
    before = node.publisher.image
    await node.close()
    again = await open_node(disk.restart(drop))
    assert replace(again.publisher.image, offset=0, epoch=0) == replace(before, offset=0, epoch=0)
    await again.close()


def wide_request(name: str = "wide", count: int = WIDE) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, count, 1)])


def many_request() -> CreateTopicsRequest:
    configs = [CreatableTopicConfig("retention.ms", "1000")]
    return CreateTopicsRequest(
        [CreatableTopic(f"t{index}", 1, 1, configs=configs) for index in range(TOPICS)]
    )


def test_others_have_the_loop_meanwhile() -> None:
    """Topics, partitions, values and streams by the thousands are made and deleted over many turns; a restart
    finds the same image."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        broker = await Broker.register(node)
        alter = [
            AlterConfigsResource(2, f"t{index}", [AlterableConfig("retention.ms", 0, "5000")])
            for index in range(TOPICS)
        ]
        requests = [
            wide_request(),
            CreatePartitionsRequest([CreatePartitionsTopic("wide", 2 * WIDE, None)]),
            many_request(),
            IncrementalAlterConfigsRequest(alter),
        ]
        for request in requests:
            turns, answer = await turns_of(node.controller.submit(request))
            rows = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
            assert [row.error_code for row in rows] == [0] * len(rows), request
            assert turns > TURNS_MIN, (type(request), turns)
        topic = node.publisher.image.topics.by_name("wide")
        assert topic is not None
        for partition in range(500):
            assert (await broker.open(topic.topic_id, partition)).error_code == 0
        names = ["wide", *(f"t{index}" for index in range(1, TOPICS))]
        request = DeleteTopicsRequest([DeleteTopicState(name) for name in names])
        turns, answer = await turns_of(node.controller.submit(request))
        assert not any(row.error_code for row in answer.responses)
        assert turns > 5
        image = node.publisher.image
        assert [topic.name for topic in image.topics] == ["t0"]
        assert not len(image.streams)
        assert image.topics.partition_count == 1
        await check_restart(node, disk)

    run(main())


def test_others_have_the_loop_while_partitions_are_refused() -> None:
    """That stay where they are, by the thousands, of one topic and of one each."""

    async def main() -> None:
        node = await open_node(sim_disk())
        await Broker.register(node)
        moved = [ReassignablePartition(index, [1]) for index in range(WIDE)]
        requests = [
            AlterPartitionReassignmentsRequest(topics=[ReassignableTopic("none", moved)]),
            AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(f"t{one}", moved[:1]) for one in range(WIDE)]
            ),
            ElectLeadersRequest(0, [TopicPartitions("none", list(range(WIDE)))]),
            ElectLeadersRequest(0, [TopicPartitions(f"t{one}", [0]) for one in range(WIDE)]),
        ]
        for request in requests:
            turns, answer = await turns_of(node.controller.submit(request))
            topics = getattr(answer, "responses", None) or answer.replica_election_results
            rows = [row for one in topics for row in getattr(one, "partitions", None) or one.partition_result]
            assert [row.error_code for row in rows] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * WIDE
            assert turns > TURNS_MIN, (type(request), turns)
        await node.close()

    run(main())


def test_who_comes_meanwhile_stands_behind() -> None:
    """Commands submitted between two steps are decided on the whole of it, in their order; nobody sees the
    half of it."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        broker = await Broker.register(node)
        first = node.controller.submit(wide_request())
        await asyncio.sleep(0)
        again = node.controller.submit(wide_request())
        widened = node.controller.submit(
            CreatePartitionsRequest([CreatePartitionsTopic("wide", 2 * WIDE, None)])
        )
        deleted = node.controller.submit(DeleteTopicsRequest([DeleteTopicState("wide")]))
        prepared = asyncio.ensure_future(broker.prepare())
        while not first.done():
            found = node.publisher.image.topics.by_name("wide")
            assert found is None or len(found.partitions) in (WIDE, 2 * WIDE)
            await asyncio.sleep(0)
        assert (await first).topics[0].error_code == 0
        assert (await again).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert (await widened).results[0].error_code == 0
        assert (await deleted).responses[0].error_code == 0
        assert await prepared >= 0
        assert node.publisher.image.topics.by_name("wide") is None
        await check_restart(node, disk)

    run(main())


def test_many_stand_behind_one() -> None:
    """Hundreds that came meanwhile are all answered, some a turn, in their order."""

    async def main() -> None:
        node = await open_node(sim_disk())
        broker = await Broker.register(node)
        first = node.controller.submit(wide_request())
        prepared = [asyncio.ensure_future(broker.prepare()) for _ in range(300)]
        assert (await first).topics[0].error_code == 0
        ids = [await one for one in prepared]
        assert ids == sorted(set(ids))
        await node.close()

    run(main())


def test_what_takes_no_steps_waits_for_one_that_does() -> None:
    """However many wide commands came before it: a heartbeat behind all of them would come too late."""

    async def main() -> None:
        node = await open_node(sim_disk())
        broker = await Broker.register(node)
        wide = [node.controller.submit(wide_request(f"w{number}")) for number in range(6)]
        assert await broker.prepare() >= 0
        assert [reply.done() for reply in wide] == [True] + [False] * 5
        for reply in wide:
            assert (await reply).topics[0].error_code == 0
        await node.close()

    run(main())


@pytest.mark.parametrize("turns", [1, 3, 9, 15])
def test_a_node_that_is_closed_meanwhile_answers(turns: int) -> None:
    """Who is decided in steps, and who stands behind, is told of the end; a restart finds all of the topic or
    nothing."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk)
        await Broker.register(node)
        first = node.controller.submit(wide_request())
        behind = node.controller.submit(wide_request("behind", 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        await node.close()
        for reply in (first, behind):
            with pytest.raises(Closed):
                await reply
        again = await open_node(disk.restart(drop))
        found = again.publisher.image.topics.by_name("wide")
        assert found is None or len(found.partitions) == WIDE
        await again.close()

    run(main())


def test_who_asked_may_be_gone() -> None:
    """Cancelling gives up the wait, not the command."""

    async def main() -> None:
        node = await open_node(sim_disk())
        await Broker.register(node)
        raised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
        first = node.controller.submit(wide_request())
        behind = node.controller.submit(wide_request())
        await asyncio.sleep(0)
        first.cancel()
        behind.cancel()
        assert (await create_topic(node, "next")).topics[0].error_code == 0
        assert not raised
        assert node.publisher.image.topics.by_name("wide") is not None
        await node.close()

    run(main())


@pytest.mark.parametrize("is_first_small", [True, False])
def test_what_is_given_up_meanwhile_is_decided_anew(is_first_small: bool) -> None:
    """The disk is full: what was pending before a creation in steps is dropped under it, or it is dropped
    itself. It leaves no trace."""

    async def main() -> None:
        disk = sim_disk()
        node = await open_node(disk, reserve_bytes=64)
        await Broker.register(node)
        disk.capacity_bytes = disk.used_bytes()
        replies = [node.controller.submit(wide_request("big", 100))] if is_first_small else []
        replies += [node.controller.submit(wide_request())]
        results = await asyncio.gather(*replies, return_exceptions=True)
        assert [isinstance(result, LogFull) for result in results][:1] == [True]
        wide = results[-1]
        assert isinstance(wide, LogFull) or wide.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert not len(node.publisher.image.topics)
        disk.capacity_bytes = 1 << 30
        await node.driver.reserve.hold_again()
        assert (await create_topic(node, "wide", WIDE)).topics[0].error_code == 0
        await check_restart(node, disk)

    run(main())


@pytest.mark.parametrize("is_validated", [False, True])
def test_many_keys_of_one_topic(is_validated: bool) -> None:
    """One resource that names thousands of keys, which may all be unknown where they are removed: a pause
    every few hundred."""

    async def main() -> None:
        node = await open_node(sim_disk())
        await Broker.register(node)
        await create_topic(node, "t")
        configs = [AlterableConfig(f"no.such-{index}", 1, None) for index in range(2 * WIDE)]
        configs.append(AlterableConfig("retention.ms", 0, "5000"))
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(2, "t", configs)], is_validated)
        turns, answer = await turns_of(node.controller.submit(request))
        assert answer.responses[0].error_code == 0
        assert turns > 2 * WIDE // 500
        assert node.publisher.image.configs.topic("t") == ({} if is_validated else {"retention.ms": "5000"})
        configs.append(configs[0])
        turns, answer = await turns_of(node.controller.submit(request))
        assert answer.responses[0].error_code == ErrorCode.INVALID_REQUEST
        replaced = [whole.AlterableConfig(config.name, "1") for config in configs]
        request = whole.AlterConfigsRequest([whole.AlterConfigsResource(2, "t", replaced[:-1])], is_validated)
        turns, answer = await turns_of(node.controller.submit(request))
        assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        assert turns > 0
        await node.close()

    run(main())


@pytest.mark.parametrize("operation", [2, 3])
def test_a_long_value_is_heavy(operation: int) -> None:
    """A list of thousands takes as long as many values; items are looked for in a set."""

    async def main() -> None:
        node = await open_node(sim_disk())
        await Broker.register(node)
        for index in range(20):
            await create_topic(node, f"t{index}")
        value = ",".join(f"{index}:1" for index in range(5_000))
        configs = [AlterableConfig("leader.replication.throttled.replicas", operation, value)]
        resources = [AlterConfigsResource(2, f"t{index}", configs) for index in range(20)]
        turns, answer = await turns_of(
            node.controller.submit(IncrementalAlterConfigsRequest(resources, True))
        )
        assert [row.error_code for row in answer.responses] == [0] * 20
        assert turns > 15
        await node.close()

    run(main())
