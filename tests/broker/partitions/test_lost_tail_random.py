"""Random lives of a partition whose log gives up records by each policy: whatever was not given up is served,
in every life after.

`skip` takes the end of one of the partition's streams out of what the log holds; `truncate` all that came
after one record. The leader epoch rises with each loss, as a start raises it. A model knows what was
appended; after each loss it is cut where the log was.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from millrace.broker.partitions.partition import Partition
from millrace.broker.partitions.settings import TopicSettings
from millrace.broker.partitions.time_lookup import Lookups
from millrace.protocol.batches import ProduceRules, iter_headers
from millrace.protocol.records import iter_records
from millrace.s3stream.objects.format import decode_entry
from tests.broker.partitions.build import START_MS, Fixture, batch, read, run

SETTINGS = TopicSettings(index_interval_bytes=150, rules=ProduceRules(segment_bytes=600))
META, DATA, TIME = 0, 1, 2
PRODUCERS = 3
LIVES = 6
WINDOW = 5  # batches that are remembered of a producer


class Life:
    """One partition, and what it should hold: `values[offset - start]` is (value, producer, sequence)."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fixture = Fixture()
        self.epoch = 0
        self.records: list[tuple[bytes, int, int]] = []
        self.log_start = 0
        self.deleted_to = 0  # what was asked for, before any loss
        self.sequences = [0] * PRODUCERS
        self.is_forgotten = [
            False
        ] * PRODUCERS  # all that was remembered of it was lost, and it wrote nothing since
        self.number = 0
        self.partition: Partition

    async def begin(self) -> None:
        await self.fixture.start()
        self.partition = await self.fixture.open(settings=SETTINGS)

    async def act(self) -> None:
        for _ in range(self.chance.randrange(3, 25)):
            what = self.chance.random()
            if what < 0.75:
                await self.produce(self.chance.randrange(PRODUCERS))
            elif what < 0.9:
                await self.partition.save()
            elif what < 0.95 and self.records:
                offset = self.chance.randint(self.log_start, len(self.records))
                self.partition.raise_log_start(offset, START_MS)
                await self.fixture.settle()
                self.log_start = self.partition.log_start_offset

    async def produce(self, producer: int) -> None:
        value = b"%d" % self.number
        data = batch(
            1,
            timestamp=START_MS + len(self.records),
            value=value,
            producer_id=producer,
            sequence=self.sequences[producer],
        )
        appended = await self.fixture.produce(self.partition, data)
        assert appended.base_offset == len(self.records)
        self.records.append((value, producer, self.sequences[producer]))
        self.sequences[producer] += 1
        self.is_forgotten[producer] = False
        self.number += 1

    async def lose(self, policy: str) -> None:
        """Gives up records of the log, and cuts the model to what is left."""
        wal = self.fixture.world.wal
        entries = [decode_entry(record.payload, 0)[0] for record in wal.records]
        if policy == "skip":
            stream = self.chance.choice([META, DATA, DATA, TIME])
            places = [place for place, entry in enumerate(entries) if entry.stream_id == stream]
            gone = set(places[self.chance.randint(0, len(places)) :])
        else:
            gone = set(range(self.chance.randint(0, len(entries)), len(entries)))
        left = len(self.records)
        for place, entry in enumerate(entries):
            if place in gone and entry.stream_id == DATA:
                left = min(left, entry.base_offset)
        wal.records = [record for place, record in enumerate(wal.records) if place not in gone]
        has_lost_meta = any(entries[place].stream_id == META for place in gone)
        lost = [who for _, who, _ in self.records[left:]]
        del self.records[left:]
        for producer in range(PRODUCERS):  # it sends again what was lost
            self.sequences[producer] -= lost.count(producer)
            self.is_forgotten[producer] |= lost.count(producer) >= WINDOW
        await self.fixture.crash()
        self.epoch += 1
        self.partition = await self.fixture.open(settings=SETTINGS, leader_epoch=self.epoch)
        if has_lost_meta:
            assert self.partition.log_start_offset <= self.log_start
        else:
            assert self.partition.log_start_offset == min(self.log_start, left)
        self.log_start = self.partition.log_start_offset

    async def check(self) -> None:
        partition = self.partition
        assert (partition.log_start_offset, partition.high_watermark) == (self.log_start, len(self.records))
        found = {}
        for data in await read(partition, max_bytes=1 << 24):
            for position, header in iter_headers(data):
                for record in iter_records(data[position : position + header.size_bytes]):
                    found[record.offset] = bytes(record.value or b"")
        wanted = {offset: self.records[offset][0] for offset in range(self.log_start, len(self.records))}
        assert {offset: value for offset, value in found.items() if offset >= self.log_start} == wanted
        segments = list(partition.state.segments)
        assert all(a.end_offset == b.base_offset for a, b in pairwise(segments))
        assert segments[-1].end_offset == len(self.records)
        for offset in wanted:
            timed = await Lookups(self.fixture.unpacking).find_time(
                partition, START_MS + offset, len(self.records)
            )
            assert timed == (offset, START_MS + offset)
        await self.check_retries()

    async def check_retries(self) -> None:
        """The last batch that a producer has in the log is not written twice."""
        for producer in range(PRODUCERS):
            places = [place for place, (_, who, _) in enumerate(self.records) if who == producer]
            if not places or places[-1] < self.log_start or self.is_forgotten[producer]:
                continue
            offset = places[-1]
            value, _, sequence = self.records[offset]
            data = batch(
                1,
                timestamp=START_MS + offset,
                value=value,
                producer_id=producer,
                sequence=sequence,
            )
            repeated = await self.fixture.produce(self.partition, data)
            assert repeated.base_offset == offset


@pytest.mark.parametrize("policy", ["skip", "truncate"])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_was_not_given_up_is_served(policy: str, seed: int) -> None:
    """Several lives with a loss between each two, and a crash without one behind each loss."""

    async def scenario() -> None:
        life = Life(seed)
        await life.begin()
        for _ in range(LIVES):
            await life.act()
            await life.lose(policy)
            await life.check()
            await life.act()
            if life.chance.random() < 0.5:
                await life.partition.save()
            await life.check()
            await life.fixture.crash()
            life.partition = await life.fixture.open(settings=SETTINGS, leader_epoch=life.epoch)
            life.log_start = life.partition.log_start_offset
            await life.check()

    run(scenario())
