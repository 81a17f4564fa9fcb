"""Producers whose states are in the log: they come back whole, whatever was written, cooled, saved or killed
meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from millrace.broker.partitions.cold_producers import BLOCK_ROWS, SMALL_BLOCKS
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.producers import WINDOW_BATCHES
from millrace.broker.partitions.state import COLD_BLOCK, KEY_COLD_INDEX
from millrace.protocol.error_codes import ErrorCode
from millrace.protocol.errors import KafkaError
from millrace.runtime.objectstore import StoreUnavailable
from tests.broker.partitions.build import START_MS, Fixture, batch, run
from tests.s3stream.build import World

# Not run cold, and why.
HOT_ONLY: dict[str, str] = {}


async def send(
    fixture: Fixture, partition: Partition, producer_id: int, sequence: int, count: int = 1
) -> int:
    """As a Produce: the producer's state is looked for first. The base offset; raises KafkaError."""
    finding = partition.find_producer(producer_id, "a client")
    if finding is not None:
        await finding
    data = batch(count, producer_id=producer_id, sequence=sequence)
    return (await fixture.produce(partition, data)).base_offset


async def code_of(fixture: Fixture, partition: Partition, producer_id: int, sequence: int) -> int:
    with pytest.raises(KafkaError) as caught:
        await send(fixture, partition, producer_id, sequence)
    return caught.value.code


def test_a_cold_producer_is_judged_as_a_hot_one() -> None:
    """Its state left memory: a repeat of any of its last five batches is told their offsets, what is behind a
    gap is refused, the next batch is taken; before it is looked for it is refused, and not taken for a new
    one."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        offsets = [await send(fixture, partition, 7, number) for number in range(6)]
        await send(fixture, partition, 9, 0)
        await partition.cool_producers(0)
        assert partition.state.producers.hot_count == 0
        assert len(partition.state.producers) == 2
        with pytest.raises(KafkaError) as caught:
            partition.append(batch(producer_id=7, sequence=5), 9, START_MS, 0, lambda _: None)
        assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
        for number in range(1, 6):
            assert await send(fixture, partition, 7, number) == offsets[number]
            await partition.cool_producers(0)
        assert await code_of(fixture, partition, 7, 0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await partition.cool_producers(0)
        assert await code_of(fixture, partition, 7, 7) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await send(fixture, partition, 7, 6) == partition.log_end_offset - 1
        assert await send(fixture, partition, 8, 100) == partition.log_end_offset - 1

    run(scenario())


def test_one_that_came_back_stays_until_its_batch_is_judged() -> None:
    """Memory that is crowded may not send it to the log again before that: its client would be refused for
    ever."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        await send(fixture, partition, 7, 0)
        await partition.cool_producers(0)
        finding = partition.find_producer(7, "a client")
        assert finding is not None
        await finding
        await partition.cool_producers(0)
        assert (await fixture.produce(partition, batch(1, producer_id=7, sequence=0))).base_offset == 0
        await asyncio.sleep(1.1)
        await partition.cool_producers(0)
        assert partition.state.producers.is_cold(7)

    run(scenario())


@pytest.mark.parametrize("is_saved", [False, True])
def test_cold_producers_outlive_the_process(is_saved: bool) -> None:
    """After a kill, with or without a checkpoint behind it, cold producers are known, and those that came
    back and wrote are as they were then."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for producer_id in range(600):
            await send(fixture, partition, producer_id, 0)
        await partition.cool_producers(0)
        first = await send(fixture, partition, 5, 1)
        if is_saved:
            await partition.save()
        second = await send(fixture, partition, 6, 1)
        await fixture.crash()
        partition = await fixture.open()
        assert len(partition.state.producers) == 600
        assert await send(fixture, partition, 5, 1) == first
        assert await send(fixture, partition, 6, 1) == second
        assert await send(fixture, partition, 6, 0) == 6
        assert await send(fixture, partition, 599, 0) == 599
        assert await code_of(fixture, partition, 5, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    run(scenario())


def test_blocks_of_another_checkpoint_are_void() -> None:
    """A broker that knows nothing of cold producers may have led meanwhile: what it saved counts, and old
    blocks go."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        await send(fixture, partition, 7, 0)
        await partition.cool_producers(0)
        index = partition.meta.get(KEY_COLD_INDEX)
        await send(fixture, partition, 8, 0)
        await partition.save()
        partition.meta.put({KEY_COLD_INDEX: index})
        await fixture.settle()
        await fixture.crash()
        partition = await fixture.open()
        assert 7 not in partition.state.producers
        assert 8 in partition.state.producers
        await partition.save()
        assert not partition.meta._far

    run(scenario())


def test_small_blocks_are_written_again_together() -> None:
    """Producers that come back leave blocks nearly empty: these are gathered, so that blocks stay few and the
    log short."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        count = 3 * SMALL_BLOCKS
        for producer_id in range(count):
            await send(fixture, partition, producer_id, 0)
            await partition.cool_producers(0)
        cold = partition.state.producers.cold
        assert cold is not None
        assert len(cold) == count
        assert len(cold.blocks) <= SMALL_BLOCKS
        await partition.save()
        assert len([key for key in partition.meta._far if key[0] == COLD_BLOCK]) == len(cold.blocks)
        for producer_id in range(count):
            assert await send(fixture, partition, producer_id, 0) == producer_id

    run(scenario())


def test_memory_is_charged_for_what_is_in_it() -> None:
    """A state in the log costs a fraction of one in memory, one that comes back its full price, a closed
    partition none."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        memory = partition.state.producers.memory
        for producer_id in range(2 * BLOCK_ROWS):
            await send(fixture, partition, producer_id, 0)
        hot_bytes = memory.used_bytes
        assert memory.hot_bytes == hot_bytes
        await partition.cool_producers(0)
        assert memory.hot_bytes == 0
        assert 0 < memory.used_bytes < hot_bytes // 15
        await send(fixture, partition, 3, 0)
        assert memory.hot_bytes == hot_bytes // (2 * BLOCK_ROWS)
        await partition.close()
        assert memory.used_bytes == 0

    run(scenario())


def test_what_cannot_be_read_is_refused_and_not_taken_for_new() -> None:
    """The block of a producer is out of reach: its batches are refused with a code that is sent again, others
    go on."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        await send(fixture, partition, 7, 0)
        await partition.cool_producers(0)
        assert await fixture.engine.upload_all(60_000)
        fixture.engine.drop_caches()
        fixture.world.store.fault = _fail
        assert await code_of(fixture, partition, 7, 1) == ErrorCode.NOT_ENOUGH_REPLICAS
        await send(fixture, partition, 8, 0)
        fixture.world.store.fault = lambda operation, key: None
        assert await send(fixture, partition, 7, 0) == 0

    run(scenario())


def test_one_client_does_not_fill_the_line_of_reads() -> None:
    """Each read of the store takes a second, and one address asks for sixty producers at once: the one that
    another asks for then comes at once, and so do those of a third."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open()
        for producer_id in range(62):
            await send(fixture, partition, producer_id, 0)
            if producer_id % 2:
                await partition.cool_producers(0)
        assert await fixture.engine.upload_all(60_000)
        fixture.engine.drop_caches()
        partition.meta.read_far = _slowly(partition.meta.read_far)  # type: ignore[method-assign]
        greedy = [partition.find_producer(producer_id, "greedy") for producer_id in range(60)]
        began = asyncio.get_running_loop().time()
        for producer_id, who in ((60, "modest"), (61, "third")):
            found = partition.find_producer(producer_id, who)
            assert found is not None
            await found
        assert asyncio.get_running_loop().time() - began < 2.5
        assert sum(one is not None and one.done() for one in greedy) < 20
        await asyncio.gather(*(one for one in greedy if one is not None))
        assert partition.state.producers.hot_count == 62

    run(scenario(), is_virtual=True)


def _slowly(
    read: Callable[[tuple[int, int]], Awaitable[bytes | None]],
) -> Callable[..., Awaitable[bytes | None]]:
    async def read_slowly(key: tuple[int, int]) -> bytes | None:
        await asyncio.sleep(1)
        return await read(key)

    return read_slowly


def _fail(operation: str, key: str) -> None:
    raise StoreUnavailable(key, "away")


@pytest.mark.parametrize("seed", range(6))
def test_any_history_is_judged_as_if_all_were_in_memory(seed: int) -> None:
    """Producers write, repeat, skip, go to the log, come back; checkpoints and kills come between. A repeat
    of the last five batches always has its offsets, and nothing is written twice."""

    async def scenario() -> None:
        chance = random.Random(seed)
        fixture = await Fixture(World()).start()
        partition = await fixture.open()
        written: dict[int, list[tuple[int, int, int]]] = {}  # first sequence, count, offset
        for _ in range(400):
            producer_id = chance.randrange(12)
            known = written.setdefault(producer_id, [])
            action = chance.random()
            following = known[-1][0] + known[-1][1] if known else 0
            if action < 0.45 or not known:
                count = chance.randint(1, 3)
                known.append(
                    (following, count, await send(fixture, partition, producer_id, following, count))
                )
            elif action < 0.7:
                first, count, offset = chance.choice(known[-WINDOW_BATCHES:])
                assert await send(fixture, partition, producer_id, first, count) == offset
            elif action < 0.75:
                code = await code_of(fixture, partition, producer_id, following + 1)
                assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            elif action < 0.9:
                await partition.cool_producers(chance.randrange(4))
            elif action < 0.96:
                await partition.save()
            else:
                await fixture.crash()
                partition = await fixture.open()
        assert partition.log_end_offset == sum(
            count for batches in written.values() for _, count, _ in batches
        )

    run(scenario())
