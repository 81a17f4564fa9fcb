"""Second attempts of late GETs: when, how many, and whose answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, StoreUnavailable
from millrace.runtime.objectstore.hedge import (
    GETS_A_HEDGE,
    HEDGES_IN_FLIGHT_MAX,
    MARGIN,
    SAMPLES_MAX,
    SAMPLES_MIN,
    SAVED_MAX,
    GetTimes,
    HedgingObjectStore,
)
from millrace.runtime.objectstore.memory import MemoryObjectStore
from tests.runtime.objectstore.contract import ObjectStoreContract
from tests.sim.loop import SimLoop, run_simulation

SOON_S = 0.02


class Slow(MemoryObjectStore):
    """A store in memory whose GETs take as long as the plan says, or fail so long after; then SOON_S."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.plan: list[float | tuple[float, Exception]] = []
        self.begun = self.answered = self.cancelled = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.begun += 1
        step = self.plan.pop(0) if self.plan else SOON_S
        try:
            await asyncio.sleep(step if isinstance(step, float) else step[0])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.answered += 1
        if not isinstance(step, float):
            raise step[1]
        return await super().get_range(key, start, end)


async def known(count: int = SAMPLES_MAX) -> tuple[Slow, HedgingObjectStore]:
    """A store of which so many GETs were seen."""
    slow = Slow()
    store = HedgingObjectStore(slow)
    await store.put("a", [bytes(range(200))])
    for _ in range(count):
        await store.get_range("a", 0, 100)
    slow.begun = slow.answered = 0
    return slow, store


class TestHedgingObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = HedgingObjectStore(MemoryObjectStore(SystemClock()))
        yield store
        await store.close()


def test_a_late_get_is_sent_again_and_the_first_answer_counts() -> None:
    """Later than almost all: a second attempt, which answers; the first is cancelled. A GET in time is sent
    once."""

    async def main(loop: SimLoop) -> None:
        slow, store = await known()
        slow.plan = [60.0]
        began = loop.time()
        assert await store.get_range("a", 10, 110) == bytes(range(10, 110))
        assert loop.time() - began == pytest.approx((1 + MARGIN) * SOON_S, abs=1e-3)
        await asyncio.sleep(0)
        assert (slow.begun, slow.answered, slow.cancelled) == (2, 1, 1)
        assert (store.hedges.begun, store.hedges.won) == (1, 1)
        slow.plan = [SOON_S * 0.99]
        await store.get_range("a", 0, 100)
        assert slow.begun == 3

    run_simulation(main)


def test_the_first_attempt_may_still_win() -> None:
    """Both under way, the first answers first: the second is cancelled."""

    async def main(loop: SimLoop) -> None:
        slow, store = await known()
        slow.plan = [1.5 * SOON_S, 60.0]
        await store.get_range("a", 0, 100)
        await asyncio.sleep(0)
        assert (slow.begun, slow.cancelled) == (2, 1)
        assert (store.hedges.begun, store.hedges.won) == (1, 0)

    run_simulation(main)


@pytest.mark.parametrize("first_s", [0.03, 5.0])
def test_an_attempt_that_fails_leaves_it_to_the_other(first_s: float) -> None:
    """Unavailable is no answer while another attempt is under way; when both fail, the failure surfaces."""
    error = StoreUnavailable("503")

    async def main(loop: SimLoop) -> None:
        slow, store = await known()
        slow.plan = [(first_s, error), 1.0]
        assert await store.get_range("a", 0, 100) == bytes(range(100))
        slow.plan = [(first_s, error), (0.1, error)]
        with pytest.raises(StoreUnavailable):
            await store.get_range("a", 0, 100)

    run_simulation(main)


def test_an_object_that_is_missing_is_an_answer() -> None:
    """Told by the second attempt, it ends the wait for the first."""

    async def main(loop: SimLoop) -> None:
        slow, store = await known()
        slow.plan = [60.0, (SOON_S, ObjectMissing("a"))]
        with pytest.raises(ObjectMissing):
            await store.get_range("a", 0, 100)
        await asyncio.sleep(0)
        assert slow.cancelled == 1

    run_simulation(main)


def test_too_few_or_other_sizes_are_not_judged() -> None:
    """Nobody knows what is late before enough of about that size were seen."""

    async def main(loop: SimLoop) -> None:
        slow, store = await known(SAMPLES_MIN - 1)
        slow.plan = [10.0]
        await store.get_range("a", 0, 100)
        assert slow.begun == 1
        slow, store = await known()
        slow.plan = [10.0]
        await store.get_range("a", 0, 1)
        assert slow.begun == 1

    run_simulation(main)


def test_a_store_that_is_slow_as_a_whole_is_not_asked_twice_as_much() -> None:
    """When every GET is late, hedges are few: the budget of what was earned, and so many under way."""

    async def main(loop: SimLoop) -> None:
        slow, store = await known()
        slow.plan = [5.0] * 1000
        await asyncio.gather(*(store.get_range("a", 0, 100) for _ in range(100)))
        assert slow.begun <= 100 + min(HEDGES_IN_FLIGHT_MAX, SAVED_MAX)
        hedges_before, slow.plan = (
            store.hedges.begun,
            [6.0 * 1.1**step for step in range(100) for _ in range(2)],
        )
        for _ in range(100):
            await store.get_range("a", 0, 100)
        assert 0 < store.hedges.begun - hedges_before <= SAVED_MAX + 100 / GETS_A_HEDGE + 1

    run_simulation(main)


def test_a_cancelled_get_cancels_both_attempts() -> None:
    """Nothing goes on for a reader that is gone."""

    async def main(loop: SimLoop) -> None:
        slow, store = await known()
        slow.plan = [60.0, 60.0]
        reading = asyncio.create_task(store.get_range("a", 0, 100))
        await asyncio.sleep(1)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await asyncio.sleep(0)
        assert (slow.begun, slow.cancelled) == (2, 2)

    run_simulation(main)


def test_what_is_late_follows_the_store() -> None:
    """The percentile is of recent GETs: after a store has become slower, the new time is normal."""
    times = GetTimes()
    assert times.late_after_s(1 << 20) is None
    for _ in range(SAMPLES_MAX):
        times.note(1 << 20, 0.05)
    assert times.late_after_s(1 << 20) == pytest.approx(0.05 * MARGIN)
    for number in range(SAMPLES_MAX):
        times.note(1 << 20, 0.3 if number % 2 else 0.2)
    assert times.late_after_s(1 << 20) == pytest.approx(0.3 * MARGIN)
