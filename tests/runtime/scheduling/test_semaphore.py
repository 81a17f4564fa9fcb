"""A semaphore: bounds in number and bytes, owners in turns, and no permit lost with who is cancelled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from millrace.runtime.scheduling.semaphore import Owner, Semaphore
from tests.patience import PATIENCE_S


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def ask(semaphore: Semaphore, *sizes: int) -> tuple[list[int], list[asyncio.Task[None]]]:
    """Who has a permit by now, by number, and the tasks that wait for one."""
    served: list[int] = []

    async def acquire(number: int, size_bytes: int) -> None:
        await semaphore.acquire(size_bytes=size_bytes)
        served.append(number)

    tasks = [asyncio.ensure_future(acquire(number, size)) for number, size in enumerate(sizes)]
    await settled()
    return served, tasks


def test_no_more_than_so_many_and_so_much_and_nobody_overtakes() -> None:
    """What is larger than all the room passes when it is alone; what would fit behind it waits its turn."""

    async def scenario() -> None:
        semaphore = Semaphore(3, bytes_max=100)
        served, _ = await ask(semaphore, 40, 40, 500, 10, 10, 10, 10)
        assert served == [0, 1]
        semaphore.release(size_bytes=40)
        await settled()
        assert served == [0, 1]
        semaphore.release(size_bytes=40)
        await settled()
        assert served == [0, 1, 2]
        semaphore.release(size_bytes=500)
        await settled()
        assert (served, semaphore.held_count) == ([0, 1, 2, 3, 4, 5], 3)
        semaphore.release(size_bytes=10)
        await settled()
        assert served[-1] == 6

    asyncio.run(scenario())


def test_who_is_cancelled_has_no_permit() -> None:
    """Neither in the queue, where those behind may move up, nor in the moment between being given one and
    going on."""

    async def scenario() -> None:
        semaphore = Semaphore(2, bytes_max=100)
        served, tasks = await ask(semaphore, 60, 60, 30)
        assert served == [0]
        tasks[1].cancel()
        await settled()
        assert served == [0, 2]
        _, (given,) = await ask(semaphore, 50)
        semaphore.release(size_bytes=60)
        given.cancel()
        await settled()
        assert given.cancelled()
        assert semaphore.held_count == 1
        semaphore.release(size_bytes=30)
        assert semaphore.held_count == 0
        await semaphore.acquire(size_bytes=100)

    asyncio.run(scenario())


def test_one_owner_never_has_all() -> None:
    """However much it asks for; the others come next, in turns, whoever asked for more before them."""

    async def scenario() -> None:
        semaphore, order = Semaphore(4, each_max=3), []

        async def work(owner: int) -> None:
            await semaphore.acquire(Owner(owner))
            order.append(owner)

        tasks = [asyncio.ensure_future(work(1)) for _ in range(10)]
        await settled()
        assert order == [1, 1, 1]
        tasks += [asyncio.ensure_future(work(owner)) for owner in (2, 2, 3)]
        await settled()
        assert order == [1, 1, 1, 2]
        for owner in (1, 1, 2, 1):
            semaphore.release(Owner(owner))
            await settled()
        assert order == [1, 1, 1, 2, 3, 1, 2, 1]
        assert (semaphore.held_count, semaphore.waiting_count) == (4, 5)
        for task in tasks:
            task.cancel()
        await settled()
        assert semaphore.waiting_count == 0

    asyncio.run(scenario())


def test_no_permit_is_lost_by_those_who_are_cancelled() -> None:
    """In the queue, in the iteration in which they are given one, and after; and no bound is passed."""
    chance = random.Random(7)

    async def scenario() -> None:
        semaphore = Semaphore(3, bytes_max=100, each_max=2)
        held: Counter[int] = Counter()
        sizes: list[int] = []

        async def work(owner: int, size_bytes: int) -> None:
            await semaphore.acquire(Owner(owner), size_bytes)
            held[owner] += 1
            sizes.append(size_bytes)
            assert len(sizes) <= 3
            assert held[owner] <= 2
            assert len(sizes) == 1 or sum(sizes) <= 100
            try:
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                held[owner] -= 1
                sizes.remove(size_bytes)
                semaphore.release(Owner(owner), size_bytes)

        tasks: list[asyncio.Task[None]] = []
        for _ in range(600):
            work_bytes = chance.choice((0, 0, 10, 60, 200))
            tasks.append(asyncio.ensure_future(work(chance.randrange(5), work_bytes)))
            if chance.randrange(3) == 0:
                chance.choice(tasks).cancel()
            if chance.randrange(2):
                await asyncio.sleep(0)
        done, _ = await asyncio.wait(tasks)
        assert all(task.cancelled() or task.exception() is None for task in done)
        assert any(not task.cancelled() for task in done)
        assert (semaphore.held_count, semaphore.waiting_count) == (0, 0)
        assert semaphore._bytes == 0
        assert not semaphore._held
        assert not semaphore._queues

    asyncio.run(scenario())


def test_who_needs_nothing_but_bytes_waits_behind_who_needs_more() -> None:
    """Of other owners, too: what is large is not overtaken for ever by what is small."""

    async def scenario() -> None:
        semaphore, order = Semaphore(4, bytes_max=100, each_max=3), []

        async def work(owner: int, size_bytes: int) -> None:
            await semaphore.acquire(Owner(owner), size_bytes)
            order.append(owner)

        for owner, size_bytes in ((1, 80), (2, 50), (3, 10)):
            tasks.append(asyncio.ensure_future(work(owner, size_bytes)))
        await settled()
        assert order == [1]
        semaphore.release(Owner(1), 80)
        await settled()
        assert order == [1, 2, 3]

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(scenario())


def test_a_permit_costs_the_same_among_any_number_of_owners() -> None:
    """After a restart all clients of a broker may wait at once."""

    class Watched(Counter[Owner]):
        looks_count = 0

        def __getitem__(self, owner: Owner) -> int:
            self.looks_count += 1
            return super().__getitem__(owner)

        def __contains__(self, owner: object) -> bool:
            self.looks_count += 1
            return super().__contains__(owner)

    async def scenario() -> None:
        semaphore, order = Semaphore(2), []
        semaphore._held = watched = Watched()

        async def work(owner: int) -> None:
            await semaphore.acquire(Owner(owner))
            order.append(owner)
            await asyncio.sleep(0)
            semaphore.release(Owner(owner))

        await asyncio.gather(*(work(owner) for owner in range(1000)))
        assert order == list(range(1000))
        assert watched.looks_count < 20 * len(order)

    asyncio.run(scenario())


def test_addresses_take_turns_before_their_owners() -> None:
    """However many owners one address has, another waits for as many permits as are held."""

    async def run() -> None:
        semaphore, order = Semaphore(2), list[str]()

        async def work(owner: int, address: str) -> None:
            await semaphore.acquire(Owner(owner, address))
            order.append(address)
            await asyncio.sleep(0)
            semaphore.release(Owner(owner, address))

        many = [asyncio.create_task(work(owner, "many")) for owner in range(20)]
        await asyncio.sleep(0)
        few = [asyncio.create_task(work(100 + owner, "few")) for owner in range(3)]
        await asyncio.gather(*many, *few)
        assert [place for place, one in enumerate(order) if one == "few"][-1] <= 8
        assert semaphore.held_count == semaphore.waiting_count == 0

    asyncio.run(run())


def test_an_address_whose_owners_have_their_part_holds_up_no_other() -> None:
    async def run() -> None:
        semaphore = Semaphore(4, each_max=1)
        await semaphore.acquire(Owner(1, "one"))
        for owner in (10, 11):
            await semaphore.acquire(Owner(owner, "other"))
        again = asyncio.create_task(semaphore.acquire(Owner(1, "one")))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await semaphore.acquire(Owner(12, "other"))
        assert not again.done()
        semaphore.release(Owner(1, "one"))
        await again

    asyncio.run(run())


def test_several_owners_may_ask_for_one_permit() -> None:
    """It is given in the turn of the first of them, who has it; the others' lines go on."""

    async def scenario() -> None:
        semaphore, loop = Semaphore(1), asyncio.get_running_loop()
        await semaphore.acquire(Owner(1))
        permits: list[asyncio.Future[Owner]] = [loop.create_future() for _ in range(10)]
        for permit in permits:
            semaphore.request(permit, Owner(1))
        semaphore.request(permits[8], Owner(2))
        own: asyncio.Future[Owner] = loop.create_future()
        semaphore.request(own, Owner(2))
        order = []
        holder = Owner(1)
        while any(not one.done() for one in permits) or not own.done():
            semaphore.release(holder)
            given = next(one for one in (*permits, own) if one.done() and one not in order)
            order.append(given)
            holder = given.result()
        assert [permits.index(one) if one in permits else "own" for one in order[:4]] == [0, 8, 1, "own"]
        assert permits[8].result() == own.result() == Owner(2)
        assert len(order) == 11
        semaphore.release(holder)
        assert (semaphore.held_count, semaphore.waiting_count) == (0, 0)

    asyncio.run(scenario())
