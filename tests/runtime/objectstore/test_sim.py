"""The simulated store keeps the contract when nothing is wrong, and shows each fault it promises when
something is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from millrace.runtime.clock import SystemClock
from millrace.runtime.objectstore import ObjectMissing, ObjectStore, PreconditionFailed, StoreUnavailable
from millrace.runtime.objectstore.retry import RetryingObjectStore, RetryPolicy
from millrace.runtime.rand import Rand
from millrace.tests.sim.loop import SimLoop, run_simulation
from millrace.tests.sim.objectstore import SimBucket, SimObjectStore, StoreFault, StoreFaults
from tests.runtime.objectstore.contract import ObjectStoreContract, keys_of

QUICK = StoreFaults(latency_ms=(0, 2), timeout_ms=4, late_ms=(2, 6))


def new_store(seed: str = "sim", faults: StoreFaults = QUICK) -> SimObjectStore:
    return SimObjectStore(SimBucket(SystemClock()), Rand(seed.encode()), faults)


def run(test: Callable[[SimObjectStore], Awaitable[None]], faults: StoreFaults = QUICK) -> None:
    """On virtual time: how late something comes is no question of how busy the machine is."""

    async def main(loop: SimLoop) -> None:
        await test(new_store(faults=faults))

    run_simulation(main)


class TestSimObjectStore(ObjectStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        store = new_store(faults=StoreFaults())
        yield store
        await store.close()


class TestRetriesOverFaults(ObjectStoreContract):
    """With a third of all requests failing in every way but LATE and LOST_RACE, which change what a caller
    must see."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ObjectStore]:
        faults = StoreFaults(refused=60, throttled=60, lost_request=100, lost_answer=120, timeout_ms=1)
        sim = new_store(faults=faults)
        policy = RetryPolicy(attempts_max=None, first_wait_ms=0, longest_wait_ms=0)
        yield RetryingObjectStore(sim, Rand(b"retry"), policy)
        if sum(sim.requests.values()) > 50:
            assert {"REFUSED", "THROTTLED", "LOST_REQUEST", "LOST_ANSWER"} <= set(sim.bucket.hits)


@pytest.mark.parametrize(
    ("fault", "at_once", "later"),
    [
        (StoreFault.REFUSED, None, None),
        (StoreFault.THROTTLED, None, None),
        (StoreFault.LOST_REQUEST, None, None),
        (StoreFault.LOST_ANSWER, b"new", b"new"),
        (StoreFault.LATE, None, b"new"),
    ],
)
def test_each_fault_is_unavailable_and_differs_in_effect(
    fault: StoreFault, at_once: bytes | None, later: bytes | None
) -> None:
    """The caller sees Unavailable whichever it is; the effect is none, done already, or still to come."""

    async def test(store: SimObjectStore) -> None:
        store.plan("put", fault)
        with pytest.raises(StoreUnavailable):
            await store.put("a", [b"new"])
        found = store.bucket.objects.get("a")
        assert (found[0] if found else None) == at_once
        await asyncio.sleep(0.6)
        found = store.bucket.objects.get("a")
        assert (found[0] if found else None) == later
        assert store.bucket.hits == {fault.name: 1}

    run(test)


def test_a_lost_race_leaves_the_rival() -> None:
    """A rival's bytes are there an instant before; the next try, and only a conditional one, meets them."""

    async def test(store: SimObjectStore) -> None:
        store.plan("put_if_absent", StoreFault.LOST_RACE)
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("lease", [b"mine"])
        assert await store.get("lease") == b"a rival's bytes"
        with pytest.raises(PreconditionFailed):
            await store.put_if_absent("lease", [b"mine"])

    run(test)


def test_a_cancelled_put_happened_or_not() -> None:
    """Over many seeds a caller that gave up finds its object whole, or not at all, and both occur."""

    async def main(seed: int) -> bytes | None:
        store = new_store(f"cancel {seed}", StoreFaults(latency_ms=(50, 50)))
        task = asyncio.create_task(store.put("a", [b"whole"]))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found = store.bucket.objects.get("a")
        return found[0] if found else None

    outcomes = [asyncio.run(main(seed)) for seed in range(12)]
    assert {None, b"whole"} == set(outcomes)


def test_a_power_cut_decides_what_is_under_way() -> None:
    """What was answered stays, what was not is there whole or not at all, and no one is answered; a new store
    goes on."""

    async def main(seed: int) -> int:
        store = new_store(f"cut {seed}", StoreFaults(latency_ms=(50, 50)))
        store.faults = StoreFaults()
        await store.put("done", [b"x"])
        store.faults = StoreFaults(latency_ms=(50, 50))
        upload = await store.start_multipart("big")
        calls = [asyncio.create_task(store.put(f"k{n}", [b"whole"])) for n in range(6)]
        calls.append(asyncio.create_task(upload.put_part([b"part"])))
        await asyncio.sleep(0)
        assert store.bucket.neglected_uploads() == ["big"]
        store.cut()
        assert store.bucket.neglected_uploads() == []  # nobody is there who could
        calls.append(asyncio.create_task(store.head("done")))
        finished, waiting = await asyncio.wait(calls, timeout=0.06)
        assert not finished
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        restarted = SimObjectStore(store.bucket, Rand(b"restarted"))
        keys = await keys_of(restarted)
        assert "done" in keys
        assert "big" not in keys
        assert store.bucket.unfinished_uploads() == ["big"]
        assert all([await restarted.get(key) == b"whole" for key in keys if key != "done"])
        return len(keys) - 1

    survived = [asyncio.run(main(seed)) for seed in range(4)]
    assert 0 < sum(survived) < 24


def test_a_store_that_is_away_answers_nobody() -> None:
    """Every node's requests time out without effect until it is back."""

    async def test(store: SimObjectStore) -> None:
        await store.put("a", [b"x"])
        store.bucket.is_away = True
        for call in (
            store.put("b", [b"x"]),
            store.get("a"),
            store.head("a"),
            keys_of(store),
            store.delete(["a"]),
        ):
            with pytest.raises(StoreUnavailable):
                await call
        store.bucket.is_away = False
        assert await keys_of(store) == ["a"]

    run(test)


def test_requests_above_the_rate_are_throttled() -> None:
    """Within one second no more than the bound are served."""

    async def test(store: SimObjectStore) -> None:
        results = await asyncio.gather(*(store.head("a") for _ in range(30)), return_exceptions=True)
        # The clock's second may turn in between, which renews the count.
        assert 10 <= sum(isinstance(result, StoreUnavailable) for result in results) <= 20
        assert store.bucket.hits["THROTTLED"] > 0

    run(test, StoreFaults(requests_per_s_max=10))


def test_a_completed_upload_bears_repetition() -> None:
    """`complete` after a lost answer succeeds; after an abort the upload is gone."""

    async def test(store: SimObjectStore) -> None:
        upload = await store.start_multipart("a")
        await upload.put_part([b"x"])
        store.plan("multipart_complete", StoreFault.LOST_ANSWER)
        with pytest.raises(StoreUnavailable):
            await upload.complete()
        await upload.complete()
        assert await store.get("a") == b"x"
        other = await store.start_multipart("b")
        await other.abort()
        with pytest.raises(ObjectMissing):
            await other.complete()

    run(test)


def test_rot_is_seen_by_readers() -> None:
    """A damaged byte is given as it is: to notice is the format's business."""

    async def test(store: SimObjectStore) -> None:
        await store.put("a", [b"abc"])
        store.bucket.rot("a", 1)
        assert await store.get("a") == b"acc"

    run(test)


def test_one_seed_one_history() -> None:
    """The same seed gives the same faults to the same requests; another seed gives others."""

    async def history(seed: str) -> list[str]:
        faults = StoreFaults(refused=200, lost_request=100, lost_answer=100, timeout_ms=1)
        store = new_store(seed, faults)
        results = []
        for number in range(60):
            try:
                await store.put_if_absent(f"k{number % 7}", [b"%d" % number])
                results.append("ok")
            except (StoreUnavailable, PreconditionFailed) as error:
                results.append(repr(error))
        return results

    first, again, other = (asyncio.run(history(seed)) for seed in ("one", "one", "two"))
    assert first == again != other
