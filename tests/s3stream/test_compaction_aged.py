"""Stream-set objects that are old: what leaves them, what stays, and how few requests that is."""

from __future__ import annotations

import pytest

from millrace.s3stream.compaction.config import MIB
from millrace.s3stream.compaction.sets import SetCompactor
from millrace.s3stream.compaction.streams import StreamCompactor
from millrace.s3stream.ids import ObjectKind
from tests.s3stream.build import run
from tests.s3stream.compaction_build import CompactedWorld, LiveObject
from tests.s3stream.test_compaction import HOUR_MS, Books


def test_what_is_little_stays_in_an_old_set() -> None:
    """Two hours after its data was made, a lone set is looked into: of three streams the one that has enough
    gets an object of its own when that is most of the set, the others stay together. Two more looks in four
    hours read two indexes each."""

    async def main() -> None:
        books = Books()
        world, counts = books.world, books.world.work.counts
        await books.upload(1, 2, 3)
        await world.compact()
        world.clock.ms += 2 * HOUR_MS
        await world.compact()
        assert (world.kinds(), counts.gets, counts.commits) == ("1 set", 1, 0)
        await world.upload((4, [bytes(1000)] * 70), (5, [bytes(1000)]))
        world.clock.ms += 2 * HOUR_MS
        compactor = SetCompactor(world.work)
        await compactor.round()
        assert world.kinds() == "2 set 1 own"
        assert [span.stream_id for span in last_set(world).ranges] == [5]
        gets = counts.gets
        for _ in range(8):
            world.clock.ms += HOUR_MS // 2
            await compactor.round()
        assert counts.gets == gets + 2 * 2
        await books.check()

    run(main())


def last_set(world: CompactedWorld) -> LiveObject:
    return [one for one in world.catalog.live.values() if one.kind is ObjectKind.STREAM_SET][-1]


def test_an_old_set_of_which_half_is_gone_is_written_anew() -> None:
    """A stream with half of the bytes is trimmed or deleted: its bytes leave the store though nothing is
    uploaded any more."""

    async def main() -> None:
        for is_deleted in (False, True):
            books = Books()
            world = books.world
            await books.upload(1, count=30)
            await books.upload(1, 2, count=30)
            compactor = SetCompactor(world.work)
            world.clock.ms += 2 * HOUR_MS
            await compactor.round()
            before = sum(len(data) for data in world.store.objects.values())
            if is_deleted:
                world.catalog.delete(1)
            else:
                await books.trim(1, 60)
            await compactor.round()
            due_ms = compactor.next_due_ms()
            assert due_ms == world.clock.ms + 2 * HOUR_MS
            world.clock.ms = due_ms
            await compactor.round()
            world.clean()
            assert sum(len(data) for data in world.store.objects.values()) < before // 2
            assert [span.stream_id for span in last_set(world).ranges] == [2]
            await books.check()

    run(main())


@pytest.mark.parametrize("partitions", [3, 60])
def test_requests_at_a_trickle_do_not_grow_with_partitions(partitions: int) -> None:
    """Twelve hours of a small upload a minute, trimmed to the last three hours: as many requests an hour for
    few streams as for many, few objects at any time, and no more than twice what is wanted in the store."""

    async def main() -> None:
        books = Books(split_bytes=24 * MIB, memory_bytes=64 * MIB, run_count_min=8, block_bytes=2048)
        world, counts = books.world, books.world.work.counts
        sets, streams = SetCompactor(world.work), StreamCompactor(world.work)
        most = 0
        for minute in range(720):
            await books.upload(*range(partitions), count=1, size=100)
            world.clock.ms += 60_000
            if minute % 5 == 4:
                for stream_id in range(partitions):
                    await books.trim(stream_id, max(0, minute - 180))
                await sets.round()
                await streams.round()
                world.clean()
                most = max(most, len(world.catalog.live))
        hours = 12
        assert counts.gets / hours <= 90
        assert counts.puts / hours <= 10
        assert most <= 24
        wanted = 190 * partitions * 150
        assert sum(len(data) for data in world.store.objects.values()) <= 2 * wanted
        await books.check()

    run(main())


def stored_bytes(books: Books) -> int:
    return sum(len(data) for data in books.world.store.objects.values())


def test_what_may_not_be_written_anew_holds_up_nobody_behind_it() -> None:
    """Three neighbours lose much, the first too little to be worth it alone, and together they have more
    streams than a set may have: the others are written anew all the same."""

    async def main() -> None:
        books = Books(streams_per_set_max=3)
        world = books.world
        await world.upload((1, [bytes(100)] * 40), *((number, [bytes(100)] * 20) for number in (2, 3, 4)))
        await world.upload((11, [bytes(100)] * 70), *((number, [bytes(100)] * 10) for number in (12, 13, 14)))
        await world.upload((21, [bytes(100)] * 90), (22, [bytes(100)] * 10))
        before = stored_bytes(books)
        world.clock.ms += 3 * HOUR_MS
        for stream_id in (1, 11, 21):
            world.catalog.delete(stream_id)
        await SetCompactor(world.work).round()
        world.clean()
        assert stored_bytes(books) < before // 2

    run(main())


def test_a_damaged_neighbour_holds_up_nobody() -> None:
    """One of three old objects that lose most of what they hold cannot be read: it is quarantined, and the
    others are written anew in the same look."""

    async def main() -> None:
        books = Books()
        world = books.world
        ids = [await world.upload((1, [bytes(100)] * 70), (2, [bytes(100)] * 30)) for _ in range(3)]
        key = world.work.key(ids[-1])
        data = bytearray(world.store.objects[key])
        data[int(len(data) * 0.8)] ^= 0xFF
        world.store.objects[key] = bytes(data)
        before = stored_bytes(books)
        world.clock.ms += 3 * HOUR_MS
        world.catalog.delete(1)
        await SetCompactor(world.work).round()
        world.clean()
        assert len(world.work.quarantined) == 1
        assert stored_bytes(books) < 0.7 * before

    run(main())


def test_a_clock_that_was_set_back_stops_no_look() -> None:
    """Weeks back: the next look comes its interval later, not when the clock has caught up."""

    async def main() -> None:
        books = Books()
        world = books.world
        world.clock.ms += 1000 * HOUR_MS
        await world.upload((1, [bytes(100)] * 70), (2, [bytes(100)] * 30))
        compactor = SetCompactor(world.work)
        world.clock.ms += 3 * HOUR_MS
        await compactor.round()
        world.clock.ms -= 500 * HOUR_MS
        await world.upload(
            (
                1,
                [bytes(100)] * 70,
            ),
            (2, [bytes(100)] * 30),
        )
        world.catalog.delete(1)
        before = stored_bytes(books)
        await compactor.round()
        world.clock.ms += 3 * HOUR_MS
        await compactor.round()
        world.clean()
        assert stored_bytes(books) < before

    run(main())
