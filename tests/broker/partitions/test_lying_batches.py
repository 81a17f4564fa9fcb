"""Batches whose headers claim later times than their records have: the right record is found all the same,
and no batch is walked twice for that."""

from __future__ import annotations

import random

import pytest

from millrace.broker.partitions import time_lookup
from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.time_lookup import Asker, Lookups
from millrace.broker.partitions.unpacking import Unpacking
from millrace.protocol import record_walk
from millrace.protocol.batches import Codec, ProduceRules
from millrace.runtime.offload import InlineOffload
from millrace.runtime.scheduling.yield_queue import YieldQueue
from tests.broker.partitions.build import MEMORY_BYTES, START_MS, Fixture, batch, run
from tests.live.stamped import stamped

SETTINGS = TopicSettings(rules=ProduceRules(segment_bytes=3000), index_interval_bytes=150)


class CountingUnpacking(Unpacking):
    """Counts what it unpacks."""

    def __init__(self) -> None:
        super().__init__(InlineOffload(), MEMORY_BYTES, YieldQueue())
        self.count = 0

    def unpacked(self, *asked):  # type: ignore[no-untyped-def]
        self.count += 1
        return super().unpacked(*asked)


class CountingAsker(Asker):
    def __init__(self) -> None:
        self.lies = 0

    async def on_lie(self) -> None:
        self.lies += 1


async def lies(fixture: Fixture, partition: Partition, count: int, claimed_ms: int, records: int = 3) -> None:
    """Batches that claim that time, and have records of START_MS alone."""
    for _ in range(count):
        data = stamped(START_MS, claimed_ms, [START_MS] * records, Codec.GZIP)
        await fixture.produce(partition, memoryview(data))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_compiled", [True, False])
def test_any_time_is_found_among_lies_as_by_a_plain_search(
    seed: int, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Honest batches and liars in several segments, asked in any order with the same memory; the latest
    too."""
    if not is_compiled:
        monkeypatch.setattr(record_walk, "IS_COMPILED", False)
    chance = random.Random(seed)

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        records: list[tuple[int, int]] = []
        for _ in range(80):
            times = [START_MS + chance.randrange(40) for _ in range(chance.randrange(1, 5))]
            claimed = max(times) + (chance.randrange(1, 60) if chance.randrange(2) else 0)
            records += [(len(records) + index, time) for index, time in enumerate(times)]
            codec = chance.choice([Codec.NONE, Codec.GZIP])
            await fixture.produce(
                partition, memoryview(stamped(times[0], max(claimed, times[0]), times, codec))
            )
        assert len(partition.state.segments) > 2
        partition.raise_log_start(start := chance.randrange(30), START_MS)
        await fixture.settle()
        end, lookups = partition.high_watermark, Lookups(fixture.unpacking)
        for _ in range(120):
            target, visible_end = START_MS + chance.randrange(-2, 105), chance.choice([end, end, end - 3, 60])
            visible = [record for record in records if start <= record[0] < visible_end]
            expected = next((record for record in visible if record[1] >= target), None)
            assert await lookups.find_time(partition, target, visible_end) == expected
            latest = max(visible, key=lambda record: (record[1], -record[0]))
            assert await lookups.find_latest(partition, visible_end) == latest

    run(scenario())


def test_what_was_found_lying_is_not_walked_again() -> None:
    """Nor read: a second lookup, of that time or a later one, steps over what the first one read."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        await lies(fixture, partition, 60, START_MS + 100)
        await fixture.produce(partition, batch(1, timestamp=START_MS + 200))
        end = partition.high_watermark
        unpacking, asker = CountingUnpacking(), CountingAsker()
        lookups = Lookups(unpacking)
        assert await lookups.find_time(partition, START_MS + 50, end, asker) == (180, START_MS + 200)
        assert (unpacking.count, asker.lies) == (61, 60)
        for later_ms in (50, 60, 99):
            assert await lookups.find_time(partition, START_MS + later_ms, end, asker) == (
                180,
                START_MS + 200,
            )
        assert (unpacking.count, asker.lies) == (64, 60)  # the honest one, each time
        assert await lookups.find_time(partition, START_MS, end, asker) == (0, START_MS)
        assert await lookups.find_latest(partition, end, asker) == (180, START_MS + 200)
        assert asker.lies == 60

    run(scenario())


def test_a_lookup_that_was_ended_goes_on_where_it_was() -> None:
    """What it found out till then is kept for whoever asks again."""

    class Impatient(CountingAsker):
        async def on_lie(self) -> None:
            await super().on_lie()
            if self.lies == 20:
                raise TimeoutError

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        await lies(fixture, partition, 60, START_MS + 100)
        lookups, end = Lookups(CountingUnpacking()), partition.high_watermark
        lie_counts = []
        for _ in range(3):
            asker = Impatient()
            try:
                assert await lookups.find_time(partition, START_MS + 50, end, asker) is None
            except TimeoutError:
                assert asker.lies == 20
            lie_counts.append(asker.lies)
        assert sum(lie_counts) == 60
        assert await lookups.find_time(partition, START_MS + 50, end) is None

    run(scenario())


def test_the_memory_of_lies_is_bounded() -> None:
    """Beyond the bound they are found out anew."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        partition = await fixture.open(settings=SETTINGS)
        await lies(fixture, partition, 30, START_MS + 100)
        lookups = Lookups(fixture.unpacking, time_lookup.TrueTimes(4))
        for _ in range(3):
            assert await lookups.find_time(partition, START_MS + 50, partition.high_watermark) is None
            assert len(lookups.true_times) <= 8

    run(scenario())
