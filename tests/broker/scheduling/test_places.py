"""Places: few at a time, first come, first served, and none lost with who is cancelled."""

from __future__ import annotations

import asyncio

from millrace.broker.scheduling.places import Places
from tests.broker.partitions.build import run
from tests.broker.partitions.stopped import turns


async def queue(places: Places, *sizes: int) -> tuple[list[int], list[asyncio.Task[None]]]:
    """Who has a place by now, by number, and the tasks that wait for one."""
    seated: list[int] = []

    async def take(number: int, size_bytes: int) -> None:
        await places.take(size_bytes)
        seated.append(number)

    tasks = [asyncio.ensure_future(take(number, size)) for number, size in enumerate(sizes)]
    await turns(5)
    return seated, tasks


def test_no_more_than_so_many_and_so_much_and_nobody_overtakes() -> None:
    """What is larger than all the room passes when it is alone; what would fit behind it waits its turn."""

    async def scenario() -> None:
        places = Places(3, 100)
        seated, _ = await queue(places, 40, 40, 500, 10, 10, 10, 10)
        assert seated == [0, 1]
        places.leave(40)
        await turns(5)
        assert seated == [0, 1]
        places.leave(40)
        await turns(5)
        assert seated == [0, 1, 2]
        places.leave(500)
        await turns(5)
        assert (seated, places.taken_count) == ([0, 1, 2, 3, 4, 5], 3)
        places.leave(10)
        await turns(5)
        assert seated[-1] == 6

    run(scenario())


def test_who_is_cancelled_has_no_place() -> None:
    """Neither in line, where those behind may move up, nor in the moment between being given one and going
    on."""

    async def scenario() -> None:
        places = Places(2, 100)
        seated, tasks = await queue(places, 60, 60, 30)
        assert seated == [0]
        tasks[1].cancel()
        await turns(5)
        assert seated == [0, 2]
        _, (given,) = await queue(places, 50)
        places.leave(60)
        given.cancel()
        await turns(5)
        assert given.cancelled()
        assert places.taken_count == 1
        places.leave(30)
        assert places.taken_count == 0
        await places.take(100)

    run(scenario())
