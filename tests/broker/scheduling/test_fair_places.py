"""Places shared between owners: bounds, turns, and who is cancelled."""

from __future__ import annotations

import asyncio
import random

from millrace.broker.scheduling.fair_places import FairPlaces
from tests.broker.partitions.build import run


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_one_owner_never_has_all() -> None:
    """However much it asks for; the others come next, in turns, whoever asked for more before them."""

    async def scenario() -> None:
        places, order = FairPlaces(4, 3), []

        async def work(owner: int) -> None:
            await places.take(owner)
            order.append(owner)

        tasks = [asyncio.ensure_future(work(1)) for _ in range(10)]
        await settled()
        assert order == [1, 1, 1]
        tasks += [asyncio.ensure_future(work(owner)) for owner in (2, 2, 3)]
        await settled()
        assert order == [1, 1, 1, 2]
        for owner in (1, 1, 2, 1):
            places.leave(owner)
            await settled()
        assert order == [1, 1, 1, 2, 3, 1, 2, 1]
        assert (places.taken_count, places.waiting_count) == (4, 5)
        for task in tasks:
            task.cancel()
        await settled()
        assert places.waiting_count == 0

    run(scenario())


def test_no_place_is_lost_by_those_who_are_cancelled() -> None:
    """In line, in the turn in which they are given one, and after."""
    chance = random.Random(7)

    async def scenario() -> None:
        places = FairPlaces(3, 2)
        at_work = [0]

        async def work(owner: int) -> None:
            await places.take(owner)
            at_work[0] += 1
            assert at_work[0] <= 3
            try:
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                at_work[0] -= 1
                places.leave(owner)

        tasks: list[asyncio.Task[None]] = []
        for _ in range(400):
            tasks.append(asyncio.ensure_future(work(chance.randrange(5))))
            if chance.randrange(3) == 0:
                chance.choice(tasks).cancel()
            if chance.randrange(2):
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
        assert (places.taken_count, places.waiting_count) == (0, 0)
        assert not places._held
        assert not places._lines

    run(scenario())
