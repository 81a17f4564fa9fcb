"""Records that an earlier owner's write-ahead log owed were given up with it: the partition opens, serves all
else and takes batches of every producer; offsets stay as they are."""

from __future__ import annotations

import asyncio

import pytest

from millrace.broker.coordinators.runtime.log_reader import read_log
from millrace.broker.partitions.time_lookup import Lookups
from millrace.s3stream.ids import StreamId, StreamRange
from tests.broker.partitions.build import START_MS, Fixture, run
from tests.broker.partitions.test_unread import BEFORE, BEHIND, DATA, END, WITHIN, append, write
from tests.patience import PATIENCE_S

NEXT = {BEFORE: 2, WITHIN: 4, BEHIND: 6}  # sequences that are new to who knows all


@pytest.mark.parametrize(("start", "end"), [(4, 8), (8, 12), (4, 12)])
def test_all_else_is_served(start: int, end: int) -> None:
    """In the middle of the log, or at its end: what is read goes on behind it, lookups by time too; each
    producer goes on; the next record gets the next offset."""

    async def scenario() -> None:
        fixture = await Fixture().start()
        await write(fixture)
        fixture.world.catalog.lost.append(StreamRange(StreamId(DATA), start, end))
        fixture.engine.drop_caches()
        partition = await fixture.open()
        assert (partition.log_start_offset, partition.high_watermark) == (0, END)
        assert not partition.state.doubts
        there = [offset for offset in range(END) if not start <= offset < end]
        found: list[int] = []
        offset = 0
        while entries := await partition.data.fetch(offset, END, 1 << 20) if offset < END else []:
            found += [entry.base_offset for entry in entries]
            offset = entries[-1].end
        assert found == there
        lookup = Lookups(fixture.unpacking)
        async with asyncio.timeout(PATIENCE_S):
            for wanted in (0, start, end - 1, END - 1):
                result = await lookup.find_time(partition, START_MS + wanted, END)
                later = [one for one in there if one >= wanted]
                assert result == ((later[0], START_MS + later[0]) if later else None), wanted
            read: list[object] = []
            await read_log(partition, read.append)
            assert len(read) == len(there)
        for producer_id, sequence in NEXT.items():
            await append(fixture, partition, producer_id, sequence)
        assert partition.high_watermark == END + len(NEXT)

    run(scenario())
